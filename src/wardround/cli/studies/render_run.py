"""A finished run in the terminal: headline, verdicts, and where the report is."""

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from wardround.cli.rendering import MOST_SITES, console, show_json

if TYPE_CHECKING:
    from wardround.report import Evidence
    from wardround.report.compare import Comparison
    from wardround.report.headline import Headline
    from wardround.report.render.table import Table as ReportTable
    from wardround.runs.execute import Progress, StudyRun

SHOWN = {
    "accuracy": "accuracy",
    "auc": "AUC",
    "f1": "F1",
    "sensitivity": "sens.",
    "specificity": "spec.",
    "brier": "Brier",
}
OF_FINDINGS = {name: SHOWN.get(name, "PR-AUC") for name in ("auc", "pr_auc", "f1", "sensitivity", "specificity")}
OF_FINDINGS |= {"brier": "Brier"}
SPREAD_SHOWN = ("accuracy", "auc", "f1")  # with their SD; more would not fit a terminal
MOST_WARNINGS = 6
MOST_ARMS = 40


def show_finished(run: "StudyRun", as_json: bool, with_report: bool) -> None:
    """Make the report, unless it is there already or not wanted, and show the run."""
    from wardround.report import build_report

    report = run.folder / "report.html"
    if with_report and (run.fresh or not report.is_file()):
        build_report(run.folder, drawing_workers())
    path = str(report) if report.is_file() else None
    if as_json:
        show_json({"folder": str(run.folder), "fresh": run.fresh, "report": path, "results": run.results})
    else:
        show_run(run, path)


def with_report_in_mind(show: Callable[["Progress"], None] | None) -> Callable[["Progress"], None]:
    """`show`, which at the first progress also imports what the report needs: by then other processes are training."""

    def first(progress: "Progress") -> None:
        import wardround.report.build  # noqa: F401 - only now, because it takes a second

        if show is not None:
            show(progress)

    return first


def drawing_workers() -> int:
    return min(2, os.cpu_count() or 1)


def show_run(run: "StudyRun", report: str | None) -> None:
    from wardround.report import read_evidence
    from wardround.report.phrases import SYNTHETIC, ranking_sentence
    from wardround.report.sections.answer import answer, participation_sentence
    from wardround.report.sections.design.settings import design
    from wardround.report.sections.findings import left_out_sentences
    from wardround.report.sections.privacy.spending import spent_lines
    from wardround.runs.folder import RunFolder

    results, out = run.results, console()
    evidence = read_evidence(RunFolder(run.folder), checked=True)  # the report has checked what it stands on
    if not run.fresh:
        out.print("A complete run of this study was found; nothing was run again (use --again to repeat it).")
    question = results["study"]["question"]
    seeds = len(results["seeds"])
    title = f"{results['study']['name']}: {question}" if question else results["study"]["name"]
    missing = participation_sentence(results)
    if missing is not None:
        out.print(Text(missing, style="bold"), soft_wrap=True)
    out.print(_metric_table(evidence, title))
    spread = (
        f"Mean ± SD over {seeds} seeds, all sites' test rows together."
        if seeds > 1
        else "One seed, all sites' test rows together."
    )
    word = evidence.curve_headline.word
    out.print(f"{spread} Rounds: until 95 % of the final {word}. KB: tensors sent and received, one seed.")
    out.print(Text(f"Primary metric: {design(evidence)['primary metric']}."), soft_wrap=True)
    if evidence.findings:
        out.print(f"Every figure is the mean over {len(evidence.findings)} findings.")
    if evidence.ranked_within:
        out.print(Text(ranking_sentence(evidence)), soft_wrap=True)
    for sentence in left_out_sentences(evidence):
        out.print(Text(sentence), soft_wrap=True)
    out.print()
    if len(evidence.sites) <= MOST_SITES:
        for sites in _fitting(evidence, out.width):
            out.print(_site_table(evidence.arms, sites, evidence.headline))
    if evidence.variants:
        out.print(_variant_table(evidence))
        for name, variant in evidence.variants.items():
            if variant["text"]:
                out.print(Text(f"{name}: {variant['text']}"), soft_wrap=True)
    for test in evidence.tests():
        out.print(Text(test["sentence"]), soft_wrap=True)
    _show_claims(out, evidence)
    for line in spent_lines(evidence):
        out.print(Text(line), soft_wrap=True)
    _show_warnings(
        out, [*([SYNTHETIC] if evidence.synthetic else []), *(notice["text"] for notice in results["notices"])]
    )
    out.print(Text("\nAnswer", style="bold"))
    for sentence in answer(evidence):
        out.print(Text(f"  {sentence}"), soft_wrap=True)
    out.print(f"\nRun folder: {run.folder}", soft_wrap=True)
    if report is not None:
        out.print(f"Report:     {report}", soft_wrap=True, style="bold")
    if (run.folder / "bundles").is_dir():
        out.print(f"Bundles:    {run.folder / 'bundles'}", soft_wrap=True)


def _show_claims(out: Console, evidence: "Evidence") -> None:
    """One by one where they are few, else counted by subject."""
    from wardround.report.sections.claims import FEW, claim_count_table

    claims, counted = evidence.results["claims"], claim_count_table(evidence)
    if not claims:
        return
    out.print(Text("\nPublished claims", style="bold"))
    if counted is None or len(claims) <= FEW:
        for claim in claims:
            out.print(Text(f"{claim['text']} ({claim['source']})"), soft_wrap=True)
            out.print(Text(f"  {claim['verdict']}", style="bold"), soft_wrap=True)
        return
    table = Table()
    for column in counted.columns:
        table.add_column(column, justify="right" if counted.is_number(column) else "left")
    for row in counted.shown():
        table.add_row(*row)
    out.print(table)
    out.print("Each claim with its figures: in the report, and in tables/claims.csv beside it.", soft_wrap=True)


def show_report(report: Path) -> None:
    console().print(f"Report: {report}", soft_wrap=True)


def show_comparison(found: "Comparison", out: Path | None) -> None:
    shown = console()
    for table in found.tables:
        shown.print(_plain_table(table))
        if table.note:
            shown.print(Text(table.note), soft_wrap=True)
    for note in found.notes:
        shown.print(Text(f"note: {note}"), soft_wrap=True)
    if out is not None:
        shown.print(f"Tables as CSV and LaTeX: {out}", soft_wrap=True)


def _plain_table(table: "ReportTable") -> Table:
    made = Table(title=table.title, title_justify="left", title_style="bold")
    for column in table.columns:
        made.add_column(Text(column), justify="right" if table.is_number(column) else "left")
    for row in table.shown():
        made.add_row(*map(Text, row))
    return made


def _metric_table(evidence: "Evidence", title: str) -> Table:
    shown = OF_FINDINGS if evidence.findings else SHOWN
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("arm", no_wrap=True)
    primary = evidence.headline.metric
    first = f"{evidence.headline.word}{' in sites' if evidence.ranked_within else ''}"
    shown = {metric: word for metric, word in shown.items() if metric != primary or evidence.ranked_within}
    for heading in (first, *shown.values(), "rounds", "KB"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, arm in list(evidence.arms.items())[:MOST_ARMS]:
        rounds = arm["convergence"]["rounds_to_95_percent"]["mean"]
        cells = [_figure(evidence.figure(name))]
        # with a column more, those of several SDs would not fit a terminal
        spread = () if evidence.ranked_within else SPREAD_SHOWN
        cells += [_figure(arm["metrics"][metric], metric in spread) for metric in shown]
        table.add_row(
            Text(name), *cells, "–" if rounds is None else f"{rounds:.1f}", f"{arm['cost']['bytes'] / 1000:,.1f}"
        )
    return table


def _variant_table(evidence: "Evidence") -> Table:
    title = f"{evidence.primary_word[0].upper()}{evidence.primary_word[1:]} in the variants of the study"
    table = Table(title=title, title_justify="left", title_style="bold")
    for name in ("arm", "as it stands", *evidence.variants):
        table.add_column(Text(name), justify="left" if name == "arm" else "right", no_wrap=True)
    for name in evidence.arms:
        known = [name, *(f"{name}@{variant}" for variant in evidence.variants)]
        found = [_figure(evidence.figure(one)) if one in evidence.results["arms"] else "–" for one in known]
        table.add_row(Text(name), *found)
    return table


def _fitting(evidence: "Evidence", width: int) -> list[list[str]]:
    """The sites, in as many tables as the terminal's width needs for their names and figures."""
    figure = len("0.000 ± 0.000") if evidence.seeds > 1 else len("0.000")
    room = width - max(map(len, evidence.arms)) - 4
    each = max(1, room // (max([figure, *map(len, evidence.sites)]) + 3))
    return [evidence.sites[begin : begin + each] for begin in range(0, len(evidence.sites), each)]


def _site_table(arms: Mapping[str, Any], sites: Sequence[str], headline: "Headline") -> Table:
    table = Table(title=f"{headline.title} at each site", title_justify="left", title_style="bold")
    table.add_column("arm", no_wrap=True)
    for site in sites:
        table.add_column(Text(site), justify="right")
    for name, arm in list(arms.items())[:MOST_ARMS]:
        known = [arm["sites"].get(site) for site in sites]
        table.add_row(Text(name), *("–" if found is None else _figure(found[headline.metric]) for found in known))
    return table


def _figure(figure: Mapping[str, Any], with_sd: bool = True) -> str:
    if figure["mean"] is None:
        return "–"
    return f"{figure['mean']:.3f}" + (f" ± {figure['sd']:.3f}" if with_sd and figure["sd"] is not None else "")


def _show_warnings(out: Console, warnings: Sequence[str]) -> None:
    if warnings:
        out.print("\nNotes and warnings:")
        for line in warnings[:MOST_WARNINGS]:
            out.print(Text(f"  - {line}"), soft_wrap=True)
        if len(warnings) > MOST_WARNINGS:
            out.print(f"  and {len(warnings) - MOST_WARNINGS} more, in the report")
