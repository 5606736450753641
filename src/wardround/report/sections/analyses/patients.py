"""Table 1 in the report: a line for each figure of a column; over all, by group, and at each hospital."""

import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from wardround.report.render.table import Table, counted, listed, make_table
from wardround.report.sections.analyses.regression import left_out, significant

Result = Mapping[str, Any]
Line = Mapping[str, Any]
WITHHELD = "withheld"
MOST_LEVELS = 30  # of a column in the page; results.json has all
QUARTILES = ("q1", "median", "q3")
OVERALL = ("overall", "")
Head = tuple[str, str]  # "overall", "groups" or "hospitals", and which of them


def table_one_sentences(name: str, result: Result) -> list[str]:
    flow = result["flow"]["overall"]
    patients = "" if flow["patients"] == flow["rows"] else f" of {counted(flow['patients'], 'patient')}"
    whole = "" if flow["complete"] is None else f"; {flow['complete']:,} of them have a value in every column"
    rows = f"{counted(flow['rows'], 'row')}{patients} of {listed(result['sites'])}{whole}"
    lines = [
        f"{name}: {rows}. Counts, means and standard deviations are what one would get with all these rows together."
    ]
    if any(None in _counts(_line(column, head)) for column in result["columns"].values() for head in _heads(result)):
        lines.append(
            "What counts few patients is withheld, and so is whatever would give it away: other counts beside it, and "
            "totals over hospitals of which one withholds its part."
        )
    return [*lines, *left_out(result)]


def table_one_tables(name: str, result: Result) -> list[Table]:
    heads = _heads(result)
    differences = {
        "difference_of_groups": "difference of groups" if result["by"] else "",
        "difference_of_hospitals": "largest difference of hospitals" if len(result["flow"]["hospitals"]) > 1 else "",
    }
    told = {key: title for key, title in differences.items() if title}
    shown: dict[str, Any] = {"": None, **{_title(result, head): None for head in heads}}
    shown |= dict.fromkeys(told.values(), "{:.2f}".format)
    rows: list[list[Any]] = [["rows", *(_rows(result, head) for head in heads), *[None] * len(told)]]
    for column, own in result["columns"].items():
        lines = [_line(own, head) for head in heads]
        for place, (text, figure_of) in enumerate(_figures(column, own["kind"], lines)):
            rows.append([text, *map(figure_of, lines), *(own.get(key) if place == 0 else None for key in told)])
    by = f" by {result['by']}" if result["by"] else ""
    note = (
        "± behind quartiles: the most that they are off, since counts are told for enough patients only. Differences "
        "are standardised, in standard deviations; above 0.1 is often called an imbalance. Shares are of rows with a "
        "value. Withheld: few patients, or what would give their number away."
    )
    return [make_table(f"analysis-{name}", f"Table 1{by}: {name}", shown, rows, note)]


def _heads(result: Result) -> list[Head]:
    """What the table has columns for. Groups in which nobody is have none."""
    heads: list[Head] = [OVERALL]
    if result["by"]:
        heads += [("groups", group) for group, rows in result["rows"].items() if group != "overall" and rows != 0]
    return [*heads, *(("hospitals", site) for site in result["flow"]["hospitals"])]


def _title(result: Result, head: Head) -> str:
    part, which = head
    return {"overall": "overall", "groups": f"{result['by']}: {which}", "hospitals": which}[part]


def _line(column: Result, head: Head) -> Line:
    part, which = head
    line: Line = column["overall"] if part == "overall" else column[part][which]
    return line


def _counts(line: Line) -> list[int | None]:
    if "levels" in line:
        return [*line["levels"].values(), line["other"], line["missing"]]
    return [line["count"], line["missing"]]


def _rows(result: Result, head: Head) -> str:
    part, which = head
    return _count(result["flow"]["hospitals"][which]["rows"] if part == "hospitals" else result["rows"][which or part])


def _figures(name: str, kind: str, lines: list[Line]) -> Iterator[tuple[str, Callable[[Line], str]]]:
    """The lines of a column: a text, and what stands behind it under each heading."""
    if kind == "number":
        yield f"{name}, mean (SD)", _mean
        yield f"{name}, median (quartiles)", _quartiles
    else:
        levels = list(lines[0]["levels"])
        for level in levels[:MOST_LEVELS]:
            yield f"{name} = {level}, n (%)", partial(_level_share, level)
        if len(levels) > MOST_LEVELS:
            yield f"{name}: {len(levels) - MOST_LEVELS} more levels in results.json", lambda line: ""
        if any(line["other"] != 0 for line in lines):
            yield f"{name}, other levels, n (%)", lambda line: _share(line, line["other"])
    if any(line["missing"] != 0 for line in lines):
        yield f"{name}, no value, n", lambda line: _count(line["missing"])


def _count(count: int | None) -> str:
    return WITHHELD if count is None else f"{count:,}"


def _level_share(level: str, line: Line) -> str:
    return _share(line, line["levels"][level])


def _share(line: Line, count: int | None) -> str:
    counts = [*line["levels"].values(), line["other"]]
    if count is None or None in counts or not sum(counts):
        return _count(count)
    return f"{count:,} ({100 * count / sum(counts):.1f})"


def _mean(line: Line) -> str:
    if line["mean"] is None:
        return "" if line["count"] == 0 else WITHHELD
    return significant(line["mean"]) + ("" if line["sd"] is None else f" ({significant(line['sd'])})")


def _quartiles(line: Line) -> str:
    """With the decimals that their error leaves."""
    if line["median"] is None:
        return "" if line["count"] == 0 else WITHHELD
    error = max(line[f"{key}_error"] for key in QUARTILES if line[f"{key}_error"] is not None)
    digits = max(0, -math.ceil(math.log10(error))) if error > 0 else 2
    low, middle, high = (
        WITHHELD if line[key] is None else f"{round(line[key], digits) + 0.0:.{digits}f}" for key in QUARTILES
    )
    return f"{middle} ({low} to {high}) ± {significant(error)}"
