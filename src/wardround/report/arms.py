"""What arms have in common and in what they differ: titles of panels and lines, sweeps, grids, kinds of exchange."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wardround.privacy.dp.epsilons import INFINITE
from wardround.report.evidence import Evidence

SELECTED = "[selected]"
YARDSTICKS = ("local", "pooled")  # have no coordinator


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys whose values are not the same everywhere."""
    keys = dict.fromkeys(key for each in settings for key in each)
    return [key for key in keys if len({repr(each.get(key)) for each in settings}) > 1]


def title_of(settings: Mapping[str, Any], keys: Sequence[str]) -> str:
    """`alpha 0.1`; a switch is named where it is on."""
    parts = []
    for key in keys:
        value = settings.get(key)
        if value is True:
            parts.append(key)
        elif value is not None and value is not False:
            text = f"{value:g}" if isinstance(value, float) else str(value)
            parts.append(text if key == "name" else f"{key} {text}")
    return ", ".join(parts)


def partition_title(evidence: Evidence, partition: Mapping[str, Any]) -> str:
    """What is different about sites that were formed so, among all sites of the run."""
    return title_of(partition, differing([described["partition"] for described in evidence.results["sites"]]))


def panel_keys(evidence: Evidence) -> dict[str, list[str]]:
    """In what partition and data of the arms differ: arms that are alike in it share a panel of a figure."""
    arms = evidence.arms.values()
    return {part: differing([arm.get(part) or {} for arm in arms]) for part in ("partition", "data", "stragglers")}


def panel_title(evidence: Evidence, name: str) -> str:
    arm = evidence.arms[name]
    parts = [title_of(arm.get(part) or {}, keys) for part, keys in panel_keys(evidence).items()]
    return ", ".join(part for part in parts if part)


def line_title(evidence: Evidence, name: str) -> str:
    """The arm without what its panel already says: `fedprox[mu=0.1]` for `fedprox[alpha=0.1,mu=0.1]`."""
    keys = [key for part in panel_keys(evidence).values() for key in part]
    family, bracket, rest = name.partition("[")
    settings = rest.removesuffix("]").split(",") if bracket else []
    own = [setting for setting in settings if setting.partition("=")[0] not in keys]
    return f"{family}[{','.join(own)}]" if own else family


def swept_values(evidence: Evidence) -> dict[str, tuple[str, dict[float, str]]]:
    """Families that differ in one number: the setting and, for each value, the arm."""
    swept = {}
    for family in evidence.families:
        members = {name: arm["algorithm"] for name, arm in _members(evidence).items() if arm["family"] == family}
        changing = [key for key in differing(list(members.values())) if key != "name"]
        values = {name: algorithm.get(changing[0]) for name, algorithm in members.items()} if len(changing) == 1 else {}
        arms = {float(value): name for name, value in values.items() if isinstance(value, int | float)}
        if arms and len(arms) == len(members):
            swept[family] = (changing[0], dict(sorted(arms.items())))
    return swept


def _members(evidence: Evidence) -> dict[str, Any]:
    """Without those that a selection put together."""
    return {name: arm for name, arm in evidence.arms.items() if not name.endswith(SELECTED)}


@dataclass(frozen=True)
class Grid:
    """Arms that form a grid: a number of the partition, such as alpha, against one of the algorithm, such as mu."""

    setting: str  # of the partition
    values: tuple[float, ...]  # in order
    cells: Mapping[tuple[str, float], str]  # the arm of a line with a value
    lines: tuple[str, ...]  # swept values in their order, then algorithms without one
    own: str | None  # the algorithm's setting, where exactly one is swept
    numbers: Mapping[str, float]  # its value in a line

    def arm(self, line: str, value: float) -> str | None:
        return self.cells.get((line, value))


def read_grid(evidence: Evidence) -> Grid | None:
    """None where the arms do not form one: several settings of the partition differ, or one that is no number."""
    arms = {name: arm for name, arm in _members(evidence).items() if "partition" in arm}
    changing = differing([arm["partition"] for arm in arms.values()])
    if len(changing) != 1 or not all(_is_number(arm["partition"].get(changing[0])) for arm in arms.values()):
        return None
    swept = {
        family: differing([arm["algorithm"] for arm in arms.values() if arm["family"] == family])
        for family in {arm["family"]: None for arm in arms.values()}
    }
    cells, numbers = {}, {}
    for name, arm in arms.items():
        keys = swept[arm["family"]]
        line = ", ".join(filter(None, (arm["family"], title_of(arm["algorithm"], keys))))
        cells[line, float(arm["partition"][changing[0]])] = name
        if len(keys) == 1 and _is_number(arm["algorithm"].get(keys[0])):
            numbers[line] = float(arm["algorithm"][keys[0]])
    return _as_grid(changing[0], cells, numbers, swept) if len(cells) == len(arms) else None  # else they differ more


def _as_grid(
    setting: str,
    cells: Mapping[tuple[str, float], str],
    numbers: Mapping[str, float],
    swept: Mapping[str, Sequence[str]],
) -> Grid:
    """Lines have numbers where one setting of one family is swept."""
    settings = {keys[0] for keys in swept.values() if len(keys) == 1}
    if len(settings) != 1 or len({line.partition(",")[0] for line in numbers}) != 1:
        numbers = {}
    ordered = sorted(numbers, key=numbers.__getitem__)
    lines = (*ordered, *dict.fromkeys(line for line, _ in cells if line not in ordered))
    values = tuple(sorted({value for _, value in cells}))
    return Grid(setting, values, cells, lines, settings.pop() if numbers else None, numbers)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def exchange_kind(arm: Mapping[str, Any]) -> str:
    """`local`, `pooled`, `flat`, `hierarchical` or `vertical`."""
    algorithm = str(arm["algorithm"]["name"])
    return algorithm if algorithm in YARDSTICKS else str((arm.get("topology") or {}).get("kind", "flat"))


def patient_epsilon(evidence: Evidence, name: str) -> float | None:
    """Of the site that spent most, where patients are protected. An infinite one promises nothing."""
    spent = (evidence.private_arms.get(name, {}).get("sites") or {}).values()
    known = [site["epsilon"] for site in spent if site.get("epsilon") is not None]
    return None if not known or INFINITE in known else max(known)


def approaches_differ(evidence: Evidence) -> bool:
    """Whether arms differ in kind: in who exchanges with whom, or in what protects patients."""
    kinds = set()
    for name, arm in evidence.arms.items():
        yardstick, private = exchange_kind(arm) in YARDSTICKS, patient_epsilon(evidence, name) is not None
        if private or not yardstick:
            kinds.add(("yardstick" if yardstick else exchange_kind(arm), private))
    return len(kinds) > 1
