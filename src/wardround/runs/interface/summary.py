"""A finished run on one screen, as text and as HTML for notebooks. Both say what results.json says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from textwrap import wrap
from typing import Any

from wardround.evaluation.comparisons.measures import recorded_task

WIDTH = 100
MOST_ARMS, MOST_METRICS, MOST_NOTICES = 16, 6, 8
MOST_LINES = 12  # of the question, and of the answer
LONGEST_NAME = 28
STYLE = """
.wardround-run { color: inherit; max-width: 60em; line-height: 1.4; }
.wardround-run table { border-collapse: collapse; margin: 0.5em 0; }
.wardround-run th, .wardround-run td {
  padding: 0.15em 0.8em; text-align: right; border-bottom: 1px solid rgba(128, 128, 128, 0.35);
  background: none; color: inherit;
}
.wardround-run th:first-child, .wardround-run td:first-child { text-align: left; }
.wardround-run .quiet { opacity: 0.75; }
"""


@dataclass(frozen=True)
class Summary:
    name: str
    question: str
    size: str
    answer: Sequence[str]
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]  # an arm and its figures
    more_arms: int
    notices: Sequence[str]  # warnings first
    more_notices: int
    folder: str
    report: str  # empty: not made yet


def summary_of(folder: Path, results: Mapping[str, Any]) -> Summary:
    metrics = _metrics(results) if results["arms"] else []
    arms = list(results["arms"].items())
    notices = sorted(results["notices"], key=lambda notice: notice["severity"] == "info")
    report = folder / "report.html"
    return Summary(
        name=results["study"]["name"],
        question=results["study"]["question"],
        size=_size(results),
        answer=_answer(results),
        columns=("arm", *(f"{metric} in sites" if inside else metric for metric, inside in metrics)),
        rows=[
            (name, *(_figure(arm["within_sites" if inside else "metrics"].get(metric)) for metric, inside in metrics))
            for name, arm in arms[:MOST_ARMS]
        ],
        more_arms=max(0, len(arms) - MOST_ARMS),
        notices=[notice["text"] for notice in notices[:MOST_NOTICES]],
        more_notices=max(0, len(notices) - MOST_NOTICES),
        folder=str(folder),
        report=str(report) if report.is_file() else "",
    )


def _metrics(results: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """The primary one, then those of a terminal, each with whether it is the mean of the sites' own, by which the
    answer compares arms."""
    known = {name for arm in results["arms"].values() for name in arm["metrics"]}
    names = dict.fromkeys((results["primary_metric"], *recorded_task(results).report.terminal))
    shown = [(name, False) for name in names if name in known]
    inside = [(results["primary_metric"], True)] if results.get("primary_within_sites") else []
    return [*inside, *shown][:MOST_METRICS]


def _size(results: Mapping[str, Any]) -> str:
    sites = {site for arm in results["arms"].values() for site in arm["sites"]}
    counts = {"hospital": len(sites), "way of training": len(results["arms"]), "seed": len(results["seeds"])}
    plurals = {"hospital": "hospitals", "way of training": "ways of training", "seed": "seeds"}
    return ", ".join(f"{count} {noun if count == 1 else plurals[noun]}" for noun, count in counts.items())


def _answer(results: Mapping[str, Any]) -> list[str]:
    """Page one's sentences first, where hospitals alone are compared; a run of an earlier version has none."""
    outcomes = results.get("outcomes") or {}
    if not outcomes:
        decision = results.get("decision")
        told = decision["sentences"] if decision and decision["why_not"] is None else None
        first = [told["answer"], told["size"], f"What to do next: {told['next']}"] if told else []
        return [*filter(None, first), *(sentence["text"] for sentence in results["answer"])]
    return [f"{name}: {sentence['text']}" for name, own in outcomes.items() for sentence in own["answer"]]


def _figure(figure: Mapping[str, Any] | None) -> str:
    return "–" if figure is None or figure["mean"] is None else f"{figure['mean']:.3f}"


def as_text(summary: Summary) -> str:
    lines = [f"{summary.name}: a finished study ({summary.size})"]
    if summary.question:
        lines += _cut(wrap(summary.question, WIDTH), MOST_LINES)
    lines += ["", *_cut([line for text in summary.answer for line in wrap(text, WIDTH)], MOST_LINES), ""]
    lines += _table(summary)
    lines += [f"and {summary.more_arms} more: run.table()"] if summary.more_arms else []
    if summary.notices:
        lines += ["", "Notes and warnings:", *(_shortened(f"- {text}") for text in summary.notices)]
    lines += [f"and {summary.more_notices} more: run.notices"] if summary.more_notices else []
    return "\n".join([*lines, "", f"Folder: {summary.folder}", f"Report: {summary.report or 'run.report() makes it'}"])


def _cut(lines: Sequence[str], most: int) -> list[str]:
    return list(lines) if len(lines) <= most else [*lines[: most - 1], "..."]


def _shortened(text: str, most: int = WIDTH) -> str:
    text = " ".join(text.split())
    return text if len(text) <= most else f"{text[: most - 3]}..."


def _table(summary: Summary) -> list[str]:
    rows = [summary.columns, *summary.rows]
    rows = [(_shortened(name, LONGEST_NAME), *figures) for name, *figures in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def as_html(summary: Summary) -> str:
    """Colours are those of the notebook, light or dark. Every text is escaped: names come from files."""
    head = "".join(f"<th>{escape(name)}</th>" for name in summary.columns)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in summary.rows)
    report = escape(summary.report) if summary.report else "<code>run.report()</code> makes it"
    parts = [
        f"<style>{STYLE}</style>",
        f"<h3>{escape(summary.question or summary.name)}</h3>",
        *(f"<p>{escape(text)}</p>" for text in summary.answer),
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>",
        _more(summary.more_arms, "run.table()"),
    ]
    if summary.notices:
        items = "".join(f"<li>{escape(text)}</li>" for text in summary.notices)
        counted = len(summary.notices) + summary.more_notices
        more = _more(summary.more_notices, "run.notices")
        parts.append(f"<details><summary>Notes and warnings: {counted}</summary><ul>{items}</ul>{more}</details>")
    parts.append(
        f'<p class="quiet">{escape(summary.name)}: {escape(summary.size)}<br>'
        f"Folder: {escape(summary.folder)}<br>Report: {report}</p>"
    )
    return f'<div class="wardround-run">{"".join(parts)}</div>'


def _more(count: int, where: str) -> str:
    return f'<p class="quiet">and {count} more: <code>{escape(where)}</code></p>' if count else ""
