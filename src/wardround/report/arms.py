"""What arms have in common and in what they differ, for the titles of panels, lines and rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wardround.privacy.dp.epsilons import INFINITE
from wardround.report.evidence import Evidence


def differing(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys whose values are not the same everywhere."""
    keys = dict.fromkeys(key for each in settings for key in each)
    return [key for key in keys if len({repr(each.get(key)) for each in settings}) > 1]


def title_of(settings: Mapping[str, Any], keys: Sequence[str]) -> str:
    """`alpha 0.1`; a switch is named where it is on."""
    told = []
    for key in keys:
        value = settings.get(key)
        if value is True:
            told.append(key)
        elif value is not None and value is not False:
            told.append(str(value) if key == "name" else f"{key} {_short(value)}")
    return ", ".join(told)


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
    kept = [setting for setting in settings if setting.partition("=")[0] not in keys]
    return f"{family}[{','.join(kept)}]" if kept else family


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Grid:
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
    arms = {name: arm for name, arm in evidence.arms.items() if not name.endswith("[selected]") and "partition" in arm}
    changing = differing([arm["partition"] for arm in arms.values()])
    if len(changing) != 1 or not all(_is_number(arm["partition"].get(changing[0])) for arm in arms.values()):
        return None
    setting = changing[0]
    swept = {family: _swept(arms, family) for family in dict.fromkeys(arm["family"] for arm in arms.values())}
    cells: dict[tuple[str, float], str] = {}
    numbers: dict[str, float] = {}
    for name, arm in arms.items():
        keys = swept[arm["family"]]
        line = ", ".join(filter(None, (arm["family"], title_of(arm["algorithm"], keys))))
        key = (line, float(arm["partition"][setting]))
        if key in cells:  # they differ in something else
            return None
        cells[key] = name
        if len(keys) == 1 and _is_number(arm["algorithm"].get(keys[0])):
            numbers[line] = float(arm["algorithm"][keys[0]])
    named = {keys[0] for keys in swept.values() if len(keys) == 1}
    families = {line.partition(",")[0] for line in numbers}
    own = next(iter(named)) if len(named) == 1 and len(families) == 1 else None
    titles = dict.fromkeys(line for line, _ in cells)
    ordered = sorted(numbers, key=numbers.__getitem__) if own else []
    lines = (*ordered, *(line for line in titles if line not in ordered))
    return Grid(setting, tuple(sorted({value for _, value in cells})), cells, lines, own, numbers if own else {})


def _swept(arms: Mapping[str, Any], family: str) -> list[str]:
    return differing([arm["algorithm"] for arm in arms.values() if arm["family"] == family])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def swept_values(evidence: Evidence) -> dict[str, tuple[str, dict[float, str]]]:
    """Families that differ in one number: the setting and, for each value, the arm."""
    found = {}
    for family in evidence.families:
        members = {
            name: arm["algorithm"]
            for name, arm in evidence.arms.items()
            if arm["family"] == family and not name.endswith("[selected]")
        }
        settings = {key for algorithm in members.values() for key in algorithm if key != "name"}
        changing = [key for key in sorted(settings) if len({repr(a.get(key)) for a in members.values()}) > 1]
        numbers = [a.get(changing[0]) for a in members.values()] if len(changing) == 1 else []
        if numbers and all(isinstance(number, int | float) for number in numbers) and len(set(numbers)) == len(members):
            found[family] = (changing[0], dict(sorted(zip(map(float, numbers), members, strict=True))))
    return found


YARDSTICKS = ("local", "pooled")  # have no coordinator


def exchange_kind(arm: Mapping[str, Any]) -> str:
    """`local`, `pooled`, `flat`, `hierarchical` or `vertical`."""
    algorithm = str(arm["algorithm"]["name"])
    return algorithm if algorithm in YARDSTICKS else str((arm.get("topology") or {}).get("kind", "flat"))


def patient_epsilon(evidence: Evidence, name: str) -> float | None:
    """Of the site that spent most, where patients are protected. An infinite one promises nothing."""
    spent = (evidence.protection(name).get("sites") or {}).values()
    known = [site["epsilon"] for site in spent if site.get("epsilon") is not None]
    return None if not known or INFINITE in known else max(known)


def approaches_differ(evidence: Evidence) -> bool:
    """Whether arms differ in kind: in who exchanges with whom, or in what protects patients."""
    kinds = set()
    for name, arm in evidence.arms.items():
        kind, open_to_all = exchange_kind(arm), patient_epsilon(evidence, name) is None
        if kind not in YARDSTICKS or not open_to_all:
            kinds.add(("yardstick" if kind in YARDSTICKS else kind, open_to_all))
    return len(kinds) > 1
