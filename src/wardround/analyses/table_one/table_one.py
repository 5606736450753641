"""Table 1: who the patients are, at each hospital, over all, and in groups. Two steps:

    counts       rows and patients, rows by level of each column and group, and sums of numbers
    quartiles    counts below common edges, and squares around the means

A site tells no count, sum or quartile of few patients, nor one from which it would follow: the total of a line of which
a hospital withholds something is not known to anybody, and stands as withheld.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd

from wardround.analyses.agreement import BINARY
from wardround.analyses.analysis import Agreed, Block, Blocks, Question, Schema, Sums, Uses
from wardround.analyses.site_rows import SiteRows, levels_of
from wardround.analyses.table_one.cells import Cells, Rows, cells_of, contradicts
from wardround.analyses.table_one.differences import largest_of_means, largest_of_shares
from wardround.analyses.table_one.quantiles import Quantile, bounds_below, edges_between, quantile, told_in_groups
from wardround.core.errors import DeployError, StudyError, suggest
from wardround.privacy.disclosure import Limits, Release, broken_rule

UNDECLARED = 1e15  # of a column without a public range: a cap under a secure sum, not a claim about the data
QUARTILES = {"q1": 0.25, "median": 0.5, "q3": 0.75}
REACH = np.sqrt(3.0) * (1 + 1e-9)  # standard deviations from the mean to a quartile, at most
Line = dict[str, Any]


@dataclass(frozen=True, eq=False)
class State:
    agreed: Agreed
    step: Literal["counts", "quartiles", "done"] = "counts"
    sums: Sums = field(default_factory=dict)  # of both steps
    by_site: Mapping[str, Sums] = field(default_factory=dict)
    edges: Mapping[str, np.ndarray] = field(default_factory=dict)
    centres: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class TableOne:
    kind: ClassVar[str] = "table-one"

    columns: tuple[str, ...] = ()  # empty: all
    by: str = ""  # a column whose levels are groups
    counted: tuple[str, ...] = ()  # columns of numbers that are counted by value; those of 0 and 1 always are
    hospitals: bool = True  # whether each hospital's own line is told; False: only what holds over all

    @property
    def tells_sites(self) -> str:
        return "each hospital's counts, means and quartiles" if self.hospitals else ""

    # -- what it reads

    @property
    def citations(self) -> tuple[str, ...]:
        return (
            "Austin. Balance diagnostics for comparing the distribution of baseline covariates between treatment "
            "groups. Statistics in Medicine 28, 2009",
            "Fischetti, Salazar. Solving the cell suppression problem on tabular data with linear constraints. "
            "Management Science 47, 2001",
        )

    def uses(self, schema: Schema) -> Uses:
        for key, names in {
            "columns": self.columns,
            "by": (self.by,) if self.by else (),
            "counted": self.counted,
        }.items():
            for name in names:
                if name not in schema:
                    raise StudyError(key, f"no hospital has a column {name!r}", suggest(name, schema, "Columns"))
        by = (self.by,) if self.by else ()
        levels = self.by_level(schema)
        numbers = tuple(name for name in self.names(schema) if name not in levels)
        return Uses((*self.names(schema), *by), (*levels, *by), numbers, every_row=True)

    def names(self, schema: Schema) -> tuple[str, ...]:
        """The columns of the table. The one that makes groups is their heads."""
        return tuple(name for name in dict.fromkeys(self.columns or schema) if name != self.by)

    def by_level(self, schema: Schema) -> tuple[str, ...]:
        """Columns that are counted by level, whatever their values."""
        return tuple(n for n in self.names(schema) if schema[n].kind == "categorical" or n in self.counted)

    def numbers(self, agreed: Agreed) -> list[str]:
        """Columns with means and quartiles: not those that are 0 or 1 everywhere."""
        levels = self.by_level(agreed.schema)
        return [n for n in self.names(agreed.schema) if n not in levels and agreed.levels[n] != BINARY]

    def eligible(self, rows: SiteRows) -> np.ndarray:
        return np.ones(len(rows), dtype=bool)

    def release(self, agreed: Agreed, rows: SiteRows) -> Release:
        changed = contradicts(self._coded(agreed, rows), rows.told)
        return Release(rows.people, within=("secondary-suppression", "dominance"), changed=changed)

    # -- the loop

    def begin(self, agreed: Agreed) -> State:
        return State(agreed)

    def groups(self, agreed: Agreed) -> tuple[str, ...]:
        """Of other or no level of `by`: the last one."""
        return (*agreed.levels[self.by], "other or missing") if self.by else ()

    def ask(self, state: State) -> Question | None:
        if state.step == "counts":
            return Question("counts", {}, "counts")
        if state.step == "done":
            return None
        arrays: dict[str, np.ndarray] = {}
        for name, edges in state.edges.items():
            arrays |= {f"edges {name}": edges, f"centres {name}": state.centres[name]}
        return Question("quartiles", arrays, "quartiles")

    def blocks(self, agreed: Agreed, question: Question) -> Blocks:
        rows, lines = float(agreed.most_rows), 1 + len(self.groups(agreed))
        if question.step == "counts" and not question.arrays:
            return self._count_blocks(agreed, rows, lines)
        asked = [name for name in self.numbers(agreed) if f"edges {name}" in question.arrays]
        if question.step != "quartiles" or not asked or not _is_of_lines(question, asked, lines):
            problem = "asks what is no step of a Table 1"
            raise DeployError("coordinator", problem, "Install the same version everywhere.")
        blocks: dict[str, Block] = {}
        for name in asked:
            width = len(question.arrays[f"edges {name}"])
            blocks |= {f"{end} {name}": Block((lines, width), rows) for end in ("low", "high")}
            blocks[f"squares {name}"] = Block((lines,), rows * (2 * _largest(agreed, name)) ** 2)
        return blocks

    def _count_blocks(self, agreed: Agreed, rows: float, lines: int) -> dict[str, Block]:
        blocks = {"patients": Block((1,), rows), "complete": Block((2,), rows)}
        blocks |= {"rows": Block((lines,), rows), "rows hidden": Block((lines,), 1.0)}
        for name in self.names(agreed.schema):
            width = self._width(agreed, name)
            blocks |= {f"cells {name}": Block((lines, width), rows), f"hidden {name}": Block((lines, width), 1.0)}
        for name in self.numbers(agreed):
            most = rows * _largest(agreed, name)
            blocks |= {f"sums {name}": Block((lines,), most), f"sums hidden {name}": Block((lines,), 1.0)}
            blocks[f"raw squares {name}"] = Block((lines,), most * _largest(agreed, name))
        return blocks

    def answer(self, agreed: Agreed, question: Question, rows: SiteRows) -> Sums:
        return self._counts(agreed, rows) if question.step == "counts" else self._quartiles(agreed, question, rows)

    def advance(self, state: State, sums: Sums, by_site: Mapping[str, Sums]) -> State:
        together = {**state.sums, **sums}
        sites = {site: {**state.by_site.get(site, {}), **own} for site, own in by_site.items()}
        after = replace(state, sums=together, by_site=sites)
        if state.step == "quartiles":
            return replace(after, step="done")
        brackets = {name: self._bracket(after, name) for name in self.numbers(state.agreed)}
        known = {name: bracket for name, bracket in brackets.items() if bracket is not None}
        edges = {name: edges_between(low, high) for name, (low, high, _) in known.items()}
        centres = {name: centre for name, (_, _, centre) in known.items()}
        return replace(after, step="quartiles" if known else "done", edges=edges, centres=centres)

    def _bracket(self, state: State, name: str) -> tuple[float, float, np.ndarray] | None:
        """From where to where the quartiles of all lines lie, and each mean; None where no line is known whole."""
        sums = state.sums
        count = np.where(sums[f"hidden {name}"][:, 0] > 0, 0, sums[f"cells {name}"][:, 0])
        count = np.where(sums[f"sums hidden {name}"] > 0, 0, count)
        if not count.any():
            return None
        size = np.maximum(count, 1)
        mean = np.where(count > 0, sums[f"sums {name}"] / size, 0.0)
        spread = np.sqrt(np.maximum(sums[f"raw squares {name}"] / size - mean**2, 0.0))
        # around a large mean the difference of squares is rounded: a margin that no quartile needs, and no bin misses
        spread = spread + 1e-7 * np.abs(mean) + 1e-12
        low, high = (mean - REACH * spread)[count > 0].min(), (mean + REACH * spread)[count > 0].max()
        return float(low), float(high), mean

    # -- at a site

    def _counts(self, agreed: Agreed, rows: SiteRows) -> Sums:
        coded, limits = self._coded(agreed, rows), rows.limits
        cells = self._cells(agreed, rows)
        sums: dict[str, np.ndarray] = {
            "patients": np.array([float(len(np.unique(rows.people)))]),
            "complete": self._complete(agreed, rows, coded, cells),
            "rows": cells.rows.astype(np.float64),
            "rows hidden": cells.rows_hidden.astype(np.float64),
        }
        for name, counts in cells.counts.items():
            sums[f"cells {name}"], sums[f"hidden {name}"] = counts.astype(np.float64), cells.hidden[name].astype(float)
        for name in self.numbers(agreed):
            values = _numbers(rows, name)
            told = _told_lines(values, coded, limits, cells.hidden[name][:, 0])
            lines = [
                values[mask & ~np.isnan(values)] if tell else values[:0]
                for mask, tell in zip(_masks(coded), told, strict=True)
            ]
            sums[f"sums {name}"] = np.array([line.sum() for line in lines])
            sums[f"raw squares {name}"] = np.array([(line**2).sum() for line in lines])
            sums[f"sums hidden {name}"] = 1.0 - np.array(told, dtype=np.float64)
        return sums

    def _complete(self, agreed: Agreed, rows: SiteRows, coded: Rows, cells: Cells) -> np.ndarray:
        """Rows without any gap, and whether their number is withheld: it would tell of gaps that are withheld."""
        whole = ~rows.frame[list(self.names(agreed.schema))].isna().to_numpy().any(axis=1)
        few = whole.any() and broken_rule(Release(rows.people[whole]), rows.limits)
        withheld = few or any(mask[:, -1].any() for mask in cells.hidden.values())
        return np.array([0.0, 1.0]) if withheld else np.array([float(whole.sum()), 0.0])

    def _quartiles(self, agreed: Agreed, question: Question, rows: SiteRows) -> Sums:
        coded, cells, sums = self._coded(agreed, rows), self._cells(agreed, rows), dict[str, np.ndarray]()
        for name in self.numbers(agreed):
            if f"edges {name}" not in question.arrays:
                continue
            edges, centres = question.arrays[f"edges {name}"], question.arrays[f"centres {name}"]
            values = _numbers(rows, name)
            told = _told_lines(values, coded, rows.limits, cells.hidden[name][:, 0])
            low, high = _bounds(values, coded, told, edges, rows.limits.smallest_cell)
            squares = [
                float(((values[mask & ~np.isnan(values)] - centre) ** 2).sum()) if tell else 0.0
                for mask, tell, centre in zip(_masks(coded), told, centres.tolist(), strict=True)
            ]
            sums |= {f"low {name}": low, f"high {name}": high, f"squares {name}": np.array(squares)}
        return sums

    def _cells(self, agreed: Agreed, rows: SiteRows) -> Cells:
        coded = self._coded(agreed, rows)
        return rows.once(("cells", self), lambda: cells_of(coded, rows.limits.smallest_cell, rows.told))

    def _coded(self, agreed: Agreed, rows: SiteRows) -> Rows:
        def make() -> Rows:
            levels = {name: self._levels(agreed, rows, name) for name in self.names(agreed.schema)}
            names = {name: self._level_names(agreed, name) for name in levels}
            group = np.minimum(self._levels(agreed, rows, self.by), len(agreed.levels[self.by])) if self.by else None
            lines = ("", *(f"{self.by} = {level}" for level in self._groups_named(agreed)))
            return Rows(rows.people, group, len(self.groups(agreed)), levels, names, lines)

        return rows.once(("table one", self), make)

    def _width(self, agreed: Agreed, name: str) -> int:
        return 2 if name in self.numbers(agreed) else len(agreed.levels[name]) + 2

    def _level_names(self, agreed: Agreed, name: str) -> tuple[str, ...]:
        """Which rows are others hangs on the levels that are named."""
        if name in self.numbers(agreed):
            return "a number", "no value"
        return (*(f"= {level}" for level in agreed.levels[name]), _none_of(agreed.levels[name]), "no value")

    def _groups_named(self, agreed: Agreed) -> tuple[str, ...]:
        known = agreed.levels[self.by] if self.by else ()
        return (*known, f"{_none_of(known)}, or none") if self.by else ()

    def _levels(self, agreed: Agreed, rows: SiteRows, name: str) -> np.ndarray:
        """By number: the levels that are named, others, and no value; of a number, whether it is there."""
        missing = rows.frame[name].isna().to_numpy()
        if name in self.numbers(agreed):
            return missing.astype(np.int64)
        known, values = agreed.levels[name], rows.frame[name]
        numeric = agreed.schema[name].kind == "numeric"
        place = pd.Index([float(level) for level in known]) if numeric else pd.Index(known, dtype=object)
        coded = place.get_indexer(pd.Index(values if numeric else levels_of(values, numeric)))
        coded = np.where(coded < 0, len(known), coded)
        coded[missing] = len(known) + 1
        return coded

    # -- what it is worth

    def result(self, state: State) -> dict[str, Any]:
        agreed = state.agreed
        whole = self._population(state, state.sums)
        sites = {site: self._population(state, own) for site, own in state.by_site.items()}
        lines = ["overall", *self.groups(agreed)]
        columns = {}
        for name in self.names(agreed.schema):
            column: dict[str, Any] = {"kind": "number" if name in self.numbers(agreed) else "levels"}
            column |= {"overall": whole[name][0]}
            if self.by:
                column["groups"] = dict(zip(lines[1:], whole[name][1:], strict=True))
                column["difference_of_groups"] = _difference(whole[name][1:-1])
            if sites:
                column["hospitals"] = {site: own[name][0] for site, own in sites.items()}
                column["difference_of_hospitals"] = _difference([own[name][0] for own in sites.values()])
            columns[name] = column
        return {
            "by": self.by or None,
            "rows": self._rows(state.sums, lines),
            "flow": {
                "overall": _flow(state.sums),
                "hospitals": {site: _flow(own) for site, own in state.by_site.items()},
            },
            "columns": columns,
        }

    def _rows(self, sums: Sums, lines: Sequence[str]) -> dict[str, int | None]:
        return {
            line: None if hidden else int(count)
            for line, count, hidden in zip(lines, sums["rows"].tolist(), sums["rows hidden"].tolist(), strict=True)
        }

    def _population(self, state: State, sums: Sums) -> dict[str, list[Line]]:
        """Of all hospitals or of one: the lines of each column."""
        agreed = state.agreed
        count = 1 + len(self.groups(agreed))
        return {
            name: [self._line(state, sums, name, line) for line in range(count)] for name in self.names(agreed.schema)
        }

    def _line(self, state: State, sums: Sums, name: str, line: int) -> Line:
        agreed, cells, hidden = state.agreed, sums[f"cells {name}"][line], sums[f"hidden {name}"][line] > 0
        counts = [None if mask else int(cell) for cell, mask in zip(cells.tolist(), hidden.tolist(), strict=True)]
        if name not in self.numbers(agreed):
            *named, other, missing = counts
            return {
                "levels": dict(zip(agreed.levels[name], named, strict=True)),
                "other": other,
                "missing": missing,
            }
        present, missing = counts
        return {"count": present, "missing": missing, **self._figures(state, sums, name, line, present)}

    def _figures(self, state: State, sums: Sums, name: str, line: int, count: int | None) -> Line:
        """Mean, standard deviation and quartiles; None where they are withheld or there is nothing to describe."""
        nothing: Line = dict.fromkeys(("mean", "sd", *QUARTILES, *(f"{q}_error" for q in QUARTILES)))
        if not count or sums[f"sums hidden {name}"][line] > 0:
            return nothing
        mean = float(sums[f"sums {name}"][line]) / count
        if f"squares {name}" not in sums:
            return nothing | {"mean": mean}
        away = float(sums[f"squares {name}"][line]) - count * (mean - float(state.centres[name][line])) ** 2
        found: dict[str, Quantile | None] = {
            key: quantile(sums[f"low {name}"][line], sums[f"high {name}"][line], state.edges[name], count, share)
            for key, share in QUARTILES.items()
        }
        quartiles = {key: None if q is None else q.value for key, q in found.items()}
        errors = {f"{key}_error": None if q is None else q.error for key, q in found.items()}
        return {"mean": mean, "sd": (max(away, 0.0) / (count - 1)) ** 0.5 if count > 1 else None, **quartiles, **errors}


def _none_of(levels: Sequence[str]) -> str:
    return f"none of {sorted(levels)}"


def _largest(agreed: Agreed, name: str) -> float:
    limits = agreed.schema[name].limits
    return UNDECLARED if limits is None else max(abs(limits[0]), abs(limits[1]))


def _numbers(rows: SiteRows, name: str) -> np.ndarray:
    return rows.frame[name].to_numpy(dtype=np.float64)


def _masks(rows: Rows) -> list[np.ndarray]:
    """The rows of each line."""
    everybody = np.ones(len(rows.people), dtype=bool)
    return [everybody] if rows.group is None else [everybody, *(rows.group == group for group in range(rows.groups))]


def _told_lines(values: np.ndarray, rows: Rows, limits: Limits, uncounted: np.ndarray) -> list[bool]:
    """Of each line whether its sums leave the site: not where the number of its values is hidden (`uncounted`), which
    counts below edges would tell. Sums of all rows are told where they may be; then the groups whose sums are not told
    must, together, be patients enough: their sum is what the others leave of it."""
    present = ~np.isnan(values)

    def forbidden(mask: np.ndarray) -> bool:
        own = mask & present
        return bool(own.any() and broken_rule(Release(rows.people[own], summed=values[own]), limits))

    everybody, *groups = _masks(rows)
    if uncounted[0] or forbidden(everybody):
        return [False] * (1 + len(groups))
    told = [not hide and not forbidden(mask) for mask, hide in zip(groups, uncounted[1:].tolist(), strict=True)]
    by_size = sorted(range(len(groups)), key=lambda number: int((groups[number] & present).sum()))
    while not all(told) and forbidden(
        np.any([mask for mask, tell in zip(groups, told, strict=True) if not tell], axis=0)
    ):
        further = next((number for number in by_size if told[number] and (groups[number] & present).any()), None)
        if further is None:
            break
        told[further] = False
    return [True, *told]


def _bounds(
    values: np.ndarray, rows: Rows, told: Sequence[bool], edges: np.ndarray, smallest: int
) -> tuple[np.ndarray, np.ndarray]:
    """For each line, between which numbers the count of its values below each edge lies; 0 where it is not told."""
    present = ~np.isnan(values)
    low, high = np.zeros((len(told), len(edges))), np.zeros((len(told), len(edges)))
    if not told[0]:
        return low, high
    masks = _masks(rows)
    shown = [mask & present for mask, tell in zip(masks[1:], told[1:], strict=True) if tell]
    rest = [mask & present for mask, tell in zip(masks[1:], told[1:], strict=True) if not tell]
    together = [*shown, *([np.any(rest, axis=0)] if rest else [])]
    own, people = values[present], None if rows.most_rows == 1 else rows.people[present]
    overall, common = told_in_groups(own, people, [mask[present] for mask in together], edges, smallest)
    low[0], high[0] = bounds_below(own, edges, overall)
    for line in range(1, len(told)):
        if told[line]:
            low[line], high[line] = bounds_below(values[masks[line] & present], edges, common)
    return low, high


def _flow(sums: Sums) -> dict[str, int | None]:
    complete, withheld = sums["complete"].tolist()
    return {
        "rows": int(sums["rows"][0]),
        "patients": int(sums["patients"][0]),
        "complete": None if withheld else int(complete),
    }


def _difference(lines: Sequence[Line]) -> float | None:
    """The largest standardised difference between two of them, of those that are known."""
    if lines and "levels" in lines[0]:
        counts = [[*line["levels"].values(), line["other"]] for line in lines]
        known = [np.array(own, dtype=np.float64) for own in counts if None not in own and sum(own)]
        return largest_of_shares([own / own.sum() for own in known])
    return largest_of_means([(line["mean"], line["sd"]) for line in lines if None not in (line["mean"], line["sd"])])


def _is_of_lines(question: Question, asked: Sequence[str], lines: int) -> bool:
    """Whether a question has edges of bins and the centres of all lines, of these columns and of no others."""
    expected = {f"{what} {name}" for name in asked for what in ("edges", "centres")}
    return (
        set(question.arrays) == expected
        and all(array.ndim == 1 for array in question.arrays.values())
        and all(question.arrays[f"centres {name}"].shape == (lines,) for name in asked)
    )
