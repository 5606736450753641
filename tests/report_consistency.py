"""Does anything that a run says contradict the interval beside it? In results.json, and on the page people read."""

import re
from collections.abc import Iterator, Mapping, Sequence
from html.parser import HTMLParser
from typing import Any

from wardround.report.render.table import CI
from wardround.tasks import METRIC_FACTS

CLEAR = ("gains", "loses", "differs")
LOWER_IS_BETTER = tuple(name for name, metric in METRIC_FACTS.items() if metric.lower_is_better)
NUMBER = r"[+-]?\d+(?:\.\d+)?"
BESIDE = re.compile(rf"95 % CI ({NUMBER}) to ({NUMBER})")
# as page one has it, in words: "95 % CI: 12 fewer to 3 more", "95 % CI: 0.2 days less to 1.3 days more"
BELOW = ("fewer", "less", "lower")
IN_WORDS = re.compile(
    r"95 % CI: (\d+(?:\.\d+)?)\D*? (more|fewer|less|higher|lower) to (\d+(?:\.\d+)?)\D*? (more|fewer|less|higher|lower)"
)
NOTHING = (
    "no evidence",
    "not shown",
    "neither gain nor loss",
    "chance can explain",
    "no more than chance",
    "differs from",
    "cannot tell",
)
SOMETHING = ("better", "worse", "helped", "harmed", " gains", " loses", "more than chance explains")


def contradictions(results: Mapping[str, Any], html: str) -> list[str]:
    page = _Page(html)
    return [*_in_results(results), *_in_tables(page), *_in_sentences(page.text)]


def _entries(value: Any, where: str = "results") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Whatever has a verdict and an interval, however deep."""
    if isinstance(value, Mapping):
        if {"verdict", "interval", "metric", "difference"} <= set(value):
            yield where, value
        for name, item in value.items():
            yield from _entries(item, f"{where}.{name}")
    elif isinstance(value, list):
        for place, item in enumerate(value):
            yield from _entries(item, f"{where}[{place}]")


def _in_results(results: Mapping[str, Any]) -> Iterator[str]:
    for where, entry in _entries(results):
        interval, verdict = entry["interval"], entry["verdict"]
        if interval is None:
            if verdict != "cannot be told":
                yield f"{where}: {verdict} without an interval"
            continue
        measure = entry.get("measure")  # of how evenly hospitals are served, or groups, of which neither way is better
        lower_is_better = entry["metric"] in LOWER_IS_BETTER or measure in ("sd", "gap")
        low, high = (-interval[1], -interval[0]) if lower_is_better else interval
        better, worse = ("differs", "differs") if "group" in entry else ("gains", "loses")
        expected = better if low > 0 else worse if high < 0 else "no evidence"
        if verdict != expected:
            yield f"{where}: {verdict} beside {interval}"
        if (entry["p_value"] < 0.05) != (verdict in CLEAR):
            yield f"{where}: {verdict} beside p = {entry['p_value']}"
        if not interval[0] <= entry["difference"] <= interval[1]:
            yield f"{where}: {entry['difference']} is outside {interval}"


def _in_tables(page: "_Page") -> Iterator[str]:
    for head, rows in page.tables:
        for low, high, verdict, p in _columns(head):
            for row in rows:
                limits = [_number(row[low]), _number(row[high])]
                if None in limits:
                    if row[verdict] in CLEAR:
                        yield f"table {head}: {row}"
                    continue
                # what is rounded to 0.0 may be on either side
                across = limits[0] <= 0 <= limits[1]  # type: ignore[operator]
                touches = 0.0 in limits
                clear = row[verdict] in CLEAR or "better" in row[verdict] or "worse" in row[verdict]
                if clear == across and not touches:
                    yield f"table {head}: {row}"
                if p is not None and _number(row[p]) is not None and (float(_number(row[p]) or 0) < 0.05) != clear:
                    yield f"table {head}: p of {row}"


def _columns(head: Sequence[str]) -> Iterator[tuple[int, int, int, int | None]]:
    if {*CI, "verdict"} <= set(head):
        yield head.index(CI[0]), head.index(CI[1]), head.index("verdict"), head.index("p") if "p" in head else None


def _in_sentences(text: str) -> Iterator[str]:
    for clause in re.split(r"(?:;|\.)\s|\n", text):
        intervals = [*BESIDE.findall(clause), *map(_signed, IN_WORDS.findall(clause))]
        if len(intervals) != 1:
            continue  # several intervals in one clause: each stands in a table too
        low, high = map(float, intervals[0])
        across = low <= 0 <= high
        if 0.0 in (low, high):
            continue  # rounded
        wording = clause.replace(" better than chance", "")
        if any(word in wording for word in NOTHING):
            if not across:
                yield f"sentence: {clause}"
        elif any(word in wording for word in SOMETHING) and across:
            yield f"sentence: {clause}"


def _signed(found: tuple[str, str, str, str]) -> tuple[str, str]:
    low, below, high, above = found
    return f"{'-' * (below in BELOW)}{low}", f"{'-' * (above in BELOW)}{high}"


def _number(cell: str) -> float | None:
    cell = cell.replace("\u2212", "-").replace("<", "").replace(",", "").strip()
    try:
        return float(cell)
    except ValueError:
        return None


class _Page(HTMLParser):
    """Tables as lists of cells, and all text."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tables: list[tuple[list[str], list[list[str]]]] = []
        self.text = ""
        self._cell: str | None = None
        self._row: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.tables.append(([], []))
        elif tag == "tr":
            self._row = []
        elif tag in ("td", "th"):
            self._cell = ""
        elif tag in ("p", "li", "dd", "dt", "h2", "h3", "figcaption"):
            self.text += "\n"

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th") and self._cell is not None:
            self._row.append(self._cell.strip())
            self._cell = None
        elif tag == "tr" and self.tables:
            head, rows = self.tables[-1]
            if not head:
                head.extend(self._row)
            elif len(self._row) == len(head):
                rows.append(self._row)

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self._cell += data
        self.text += data
