"""Arms that form a grid: a number of the partition, such as alpha, against an algorithm's own, such as mu."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wardround.report.arms import differing, title_of
from wardround.report.evidence import Evidence


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
