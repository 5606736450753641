"""What anybody can tell of a withheld count from all tables of a hospital: a linear programme of its own over columns,
groups and margins, the cohort flow, and the tables of earlier studies of the same patients."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog

from tests.analyses.test_table_one import FLOOR, described, frame
from wardround.privacy.disclosure.told_cells import ToldCells

Cell = tuple[str, str, str, str]  # column, level, and the column and level of the group; empty: over all
Tables = Sequence[Mapping[str, Any]]


def lines(table: Mapping[str, Any]) -> list[tuple[str, str]]:
    groups = [(str(table["by"]), group) for group in table["rows"] if group != "overall"]
    return [("", ""), *(groups if table["by"] else [])]


def cells(table: Mapping[str, Any]) -> Iterator[tuple[Cell, int | None]]:
    for by, group in lines(table):
        yield ("", "", by, group), table["rows"][group if by else "overall"]
        for name, column in table["columns"].items():
            line = column["groups"][group] if by else column["overall"]
            parts = {
                **line.get("levels", {}),
                "other": line.get("other", line.get("count")),
                "missing": line["missing"],
            }
            for level, count in parts.items():
                yield (name, level, by, group), count


def relations(table: Mapping[str, Any]) -> Iterator[tuple[Cell, list[Cell]]]:
    """A total and its parts."""
    own = [cell for cell, _ in cells(table)]
    for by, group in lines(table):
        for name in table["columns"]:
            yield ("", "", by, group), [cell for cell in own if cell[0] == name and cell[2:] == (by, group)]
    for name, level in dict.fromkeys(cell[:2] for cell in own) if table["by"] else ():
        yield (name, level, "", ""), [cell for cell in own if cell[:2] == (name, level) and cell[2]]


def possible(tables: Tables) -> dict[Cell, tuple[float, float]]:
    """Of each cell that some table withholds, the least and the most that it can be."""
    every = [pair for table in tables for pair in cells(table)]
    place = {cell: number for number, cell in enumerate(dict.fromkeys(cell for cell, _ in every))}
    known = {cell: count for cell, count in every if count is not None}
    rows = []
    for total, parts in dict.fromkeys((total, tuple(parts)) for table in tables for total, parts in relations(table)):
        rows.append(np.bincount([place[part] for part in parts], minlength=len(place)).astype(float))
        rows[-1][place[total]] -= 1
    uneven, sides = gaps_of_rows(tables, place)
    limits = [(known.get(cell, 0), known.get(cell)) for cell in place]
    found = {}
    for cell in dict.fromkeys(cell for cell, count in every if count is None):
        one = (np.arange(len(place)) == place[cell]).astype(float)
        solved = [
            linprog(sign * one, uneven, sides, np.array(rows), np.zeros(len(rows)), bounds=limits) for sign in (1, -1)
        ]
        assert all(own.status == 0 for own in solved)
        low, high = (float(np.asarray(own.x)[place[cell]]) for own in solved)
        found[cell] = low, high
    return found


def gaps_of_rows(tables: Tables, place: Mapping[Cell, int]) -> tuple[np.ndarray, np.ndarray]:
    """The flow: rows without any gap are no more than those with a value in one column, and no fewer than those that
    gaps in all columns leave."""
    uneven, sides = [np.zeros(len(place))], [0.0]
    for table in tables:
        flow, missing = table["flow"]["overall"], [place[name, "missing", "", ""] for name in table["columns"]]
        if flow["complete"] is None:
            continue
        for one in missing:
            uneven.append(np.bincount([one], minlength=len(place)).astype(float))
            sides.append(flow["rows"] - flow["complete"])
        uneven.append(-np.bincount(missing, minlength=len(place)).astype(float))
        sides.append(flow["complete"] - flow["rows"])
    return np.array(uneven), np.array(sides)


STUDIES: dict[str, Sequence[Mapping[str, Any]]] = {
    "groups": [{"by": "sex"}],
    "groups after a plain table": [{}, {"by": "sex"}],
    "a plain table after groups": [{"by": "sex"}, {}],
    "other groups": [{"by": "ward"}, {"by": "sex"}],
    "other columns": [{"columns": ("ward", "age"), "by": "died"}, {"columns": ("ward", "sex")}, {"by": "sex"}],
}


@pytest.mark.parametrize("studies", STUDIES.values(), ids=STUDIES)
def test_no_withheld_count_follows_from_all_tables_of_a_hospital(studies: Sequence[Mapping[str, Any]]) -> None:
    withheld = 0
    for seed in range(6):
        own, told = {"a": frame(90, seed, rare=0.05)}, {"a": ToldCells()}
        tables = [described(own, told=told, counted=("died",), **settings) for settings in studies]
        for cell, (low, high) in possible(tables).items():
            withheld += 1
            enough = high - low > FLOOR or (low, high) == pytest.approx((0, told_before(cell, tables)))
            assert enough, (seed, cell, low, high)
    assert withheld > 50


def told_before(cell: Cell, tables: Tables) -> float:
    """A total that was told before there were groups. No table can hide of a part of five that it is at most five."""
    totals = [count for table in tables[:-1] for own, count in cells(table) if own == (*cell[:2], "", "")]
    return next((total for total in totals if total is not None and cell[2] and total <= FLOOR), -1)


def test_without_a_memory_of_the_earlier_table_a_count_follows() -> None:
    own = {"a": frame(90, 1, rare=0.05)}
    found = possible([described(own, counted=("died",)), described(own, counted=("died",), by="sex")])
    assert any(high - low <= 1e-6 for low, high in found.values())


def test_a_table_of_records_that_changed_is_refused() -> None:
    own, told = {"a": frame(90, 2), "b": frame(90, 3)}, {"a": ToldCells()}
    described(own, told=told)
    other = "f" if own["a"].loc[7, "sex"] == "m" else "m"
    changed = own["a"].assign(sex=own["a"]["sex"].where(np.arange(90) != 7, other))
    assert described({**own, "a": changed}, told=told)["left_out"] == [{"site": "a", "rule": "earlier-release"}]
