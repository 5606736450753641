"""A finished run in the terminal: headline, verdicts, and where the report is."""

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from wardround.cli.rendering import (
    MOST_SITES,
    console,
    report_bar,
    show_either,
    show_lines,
    table_of,
    unreported,
    warn,
)
from wardround.core.lazy import imports_of_a_run

if TYPE_CHECKING:
    from wardround.report import Evidence
    from wardround.report.compare import Comparison
    from wardround.report.headline import Headline
    from wardround.report.render.table import Table as ReportTable
    from wardround.runs.execute import Progress
    from wardround.runs.interface.study_run import StudyRun

MOST_NOTICES = 6
MOST_ARMS = 40
MOST_COLUMNS = 10  # of a table of an analysis, in a terminal


def show_finished(run: "StudyRun", as_json: bool, with_report: bool, opened: bool = False) -> None:
    """Make the report, unless it is there already or not wanted, and show the run; `opened`: in a browser too."""
    report = run.folder / "report.html"
    if with_report and (run.fresh or not report.is_file()):
        make_report(run.folder, not as_json)
    path = str(report) if report.is_file() else None
    content = {"folder": run.folder, "fresh": run.fresh, "report": path, "results": run.results}
    show_either(as_json, content, show_run, run, path)
    if opened and path is not None:
        open_page(report)


def make_report(folder: Path, shown: bool, site: str | None = None) -> Path:
    """With a bar that moves as figures are drawn."""
    from wardround.report import build_report

    with report_bar(shown) as show:
        try:
            return build_report(folder, drawing_workers(), site, show)
        except KeyboardInterrupt:
            raise unreported(folder) from None


def open_page(path: Path) -> None:
    """In the browser of this desktop. Browsers of the terminal are left out: they would not show the figures."""
    import webbrowser

    desktop = sys.platform != "linux" or any(name in os.environ for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
    if not desktop or not webbrowser.open(path.absolute().as_uri()):
        warn(f"No browser was found here. Open this file in one:\n  {path.absolute()}")


def with_report_in_mind(show: Callable[["Progress"], None] | None) -> Callable[["Progress"], None]:
    """`show`, which at the first progress also imports what the report needs: by then other processes are training."""

    def first(progress: "Progress") -> None:
        with imports_of_a_run():
            import wardround.report.build  # noqa: F401 - only now, because it takes a second

        if show is not None:
            show(progress)

    return first


def drawing_workers() -> int:
    return min(2, os.cpu_count() or 1)


def show_run(run: "StudyRun", report: str | None) -> None:
    from wardround.core.notices import lines_of_json
    from wardround.report import read_evidence
    from wardround.report.phrases import SYNTHETIC
    from wardround.report.sections.answer import participation_sentence
    from wardround.runs.folder import RunFolder

    results, out = run.results, console()
    evidence = read_evidence(RunFolder(run.folder), checked=True)  # the report has checked its sources
    if not run.fresh:
        out.print("A complete run of this study was found; nothing was run again (use --again to repeat it).")
    simulated = results.get("adversaries")
    before = [participation_sentence(results), None if simulated is None else simulated["sentence"]]
    show_lines([sentence for sentence in before if sentence is not None], "bold")
    if evidence.trained:
        _show_arms(out, evidence, run, report)
    if results.get("analyses"):
        _show_analyses(out, evidence)
    if not evidence.trained:
        synthetic = [SYNTHETIC] if evidence.synthetic else []
        _show_notices(out, [*synthetic, *lines_of_json(results["notices"])])
    out.print(f"\nRun folder: {run.folder}", soft_wrap=True)
    if report is not None:
        out.print(f"Report:     {report}", soft_wrap=True, style="bold")
    if (run.folder / "bundles").is_dir():
        out.print(f"Bundles:    {run.folder / 'bundles'}", soft_wrap=True)


def _show_analyses(out: Console, evidence: "Evidence") -> None:
    from wardround.report.sections.analyses.all_analyses import sentences, tables

    for _, lines in sentences(evidence):
        out.print()
        show_lines(lines, out=out)
    for table in tables(evidence):
        out.print()
        out.print(_report_table(table.first_columns(MOST_COLUMNS)))
        if (more := len(table.columns) - MOST_COLUMNS) > 0:
            out.print(f"and {more} more columns, in the report")


def _show_arms(out: Console, evidence: "Evidence", run: "StudyRun", report: str | None) -> None:
    from wardround.core.notices import lines_of_json
    from wardround.report.phrases import SYNTHETIC, ranking_sentence
    from wardround.report.sections.answer import answer
    from wardround.report.sections.design.settings import design
    from wardround.report.sections.findings import left_out_sentences
    from wardround.report.sections.privacy.spending import spent_lines

    results = run.results
    out.print(_metric_table(evidence))
    show_lines([_note_on_figures(evidence), f"Primary metric: {design(evidence)['primary metric']}."])
    if evidence.findings:
        show_lines([f"Every figure is the mean over {len(evidence.findings)} findings."])
    show_lines([*([ranking_sentence(evidence)] if evidence.ranked_within else []), *left_out_sentences(evidence)])
    out.print()
    _show_sites_and_variants(out, evidence)
    show_lines([test["sentence"] for test in evidence.tests()])
    _show_claims(out, evidence)
    if evidence.results.get("contribution"):
        from wardround.report.sections.robustness.contribution import terminal_lines

        show_lines(terminal_lines(evidence))
    show_lines(spent_lines(evidence))
    if started := results.get("start_from"):
        from wardround.report.sections.forgetting import composed_lines, forgetting_lines, start_lines

        show_lines([*start_lines(started), *forgetting_lines(started), *composed_lines(started)])
    synthetic = [SYNTHETIC] if evidence.synthetic else []
    # warnings first: what was changed while reading mostly needs no attention
    notices = sorted(results["notices"], key=lambda notice: notice["severity"] == "info")
    _show_notices(out, [*synthetic, *lines_of_json(notices)])
    out.print(Text("\nAnswer", style="bold"))
    show_lines([f"  {sentence}" for sentence in answer(evidence)])
    _show_other_outcomes(out, evidence, run.folder, report is not None)


def _show_other_outcomes(out: Console, evidence: "Evidence", folder: Path, reported: bool) -> None:
    """All above is about the first outcome."""
    from wardround.report.evidence import outcome_page

    for name in evidence.other_outcomes:
        out.print(Text(f"\n{name}", style="bold"))
        show_lines([f"  {sentence['text']}" for sentence in evidence.outcomes[name]["answer"]])
        if reported:
            out.print(f"  Report: {folder / outcome_page(name)}", soft_wrap=True)


def _note_on_figures(evidence: "Evidence") -> str:
    seeds = len(evidence.results["seeds"])
    spread = f"Mean ± SD over {seeds} seeds" if seeds > 1 else "One seed"
    rounds = f"Rounds: until {evidence.nearly} of the final {evidence.curve_headline.word}."
    return f"{spread}, all sites' test rows together. {rounds} KB: tensors sent and received, one seed."


def _show_sites_and_variants(out: Console, evidence: "Evidence") -> None:
    if len(evidence.sites) <= MOST_SITES:
        for sites in _fitting(evidence, out.width):
            out.print(_site_table(evidence.arms, sites, evidence.headline))
    else:
        out.print(
            f"Each of the {len(evidence.sites)} sites: in results.json, and in the report's tables/hospitals.csv.",
            soft_wrap=True,
        )
    if len(evidence.arms) > MOST_ARMS:
        more = len(evidence.arms) - MOST_ARMS
        out.print(f"Not shown: {more} more arms, in results.json and the report's tables/arms.csv.", soft_wrap=True)
    if evidence.variants:
        out.print(_variant_table(evidence))
    show_lines([f"{name}: {variant['text']}" for name, variant in evidence.variants.items() if variant["text"]])


def _show_claims(out: Console, evidence: "Evidence") -> None:
    """One by one where they are few, else counted by subject."""
    from wardround.report.sections.claims import FEW, claim_count_table

    claims, counted = evidence.results["claims"], claim_count_table(evidence)
    if not claims:
        return
    out.print(Text("\nPublished claims", style="bold"))
    if counted is None or len(claims) <= FEW:
        for claim in claims:
            show_lines([f"{claim['text']} ({claim['source']})"], out=out)
            show_lines([f"  {claim['verdict']}"], "bold", out)
        return
    out.print(_report_table(counted))
    out.print("Each claim with its figures: in the report, and in tables/claims.csv.", soft_wrap=True)


def show_comparison(comparison: "Comparison", out: Path | None) -> None:
    shown = console()
    for table in comparison.tables:
        shown.print(_report_table(table))
        show_lines([table.note] if table.note else [])
    show_lines([f"note: {note}" for note in comparison.notes])
    if out is not None:
        shown.print(f"Tables as CSV and LaTeX: {out}", soft_wrap=True)


def _report_table(table: "ReportTable") -> Table:
    return table_of(table.columns, table.shown(), tuple(filter(table.is_number, table.columns)), table.title)


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """An arm and its figures in each row."""
    return table_of(("arm", *columns), rows, columns, title, no_wrap=True)


def _metric_table(evidence: "Evidence") -> Table:
    study, primary, inside = evidence.results["study"], evidence.headline, evidence.ranked_within
    title = f"{study['name']}: {study['question']}" if study["question"] else study["name"]
    facts = evidence.task.report
    shown = [evidence.headline_for(metric) for metric in facts.terminal if metric != primary.metric or inside]
    spread = () if inside else facts.with_sd  # with one more column, SDs would not fit a terminal
    rows = []
    for name, arm in list(evidence.arms.items())[:MOST_ARMS]:
        rounds = arm["convergence"]["rounds_to_95_percent"]["mean"]
        figures = [_figure(arm["metrics"][other.metric], other, other.metric in spread) for other in shown]
        cost = ["–" if rounds is None else f"{rounds:.1f}", f"{arm['cost']['bytes'] / 1000:,.1f}"]
        rows.append([name, _figure(evidence.figure(name), primary), *figures, *cost])
    first = f"{primary.word}{_unit(primary)}{' in sites' if inside else ''}"
    others = [other.measure.metric.narrow_column for other in shown]  # units would not fit a terminal
    return _table(title, [first, *others, "rounds", "KB"], rows)


def _unit(headline: "Headline") -> str:
    """Of the target; shares are written as they are, without per cent."""
    return f", {headline.measure.unit}" if headline.measure.unit else ""


def _variant_table(evidence: "Evidence") -> Table:
    title = f"{evidence.primary_word[0].upper()}{evidence.primary_word[1:]} in the variants of the study"
    rows = []
    for name in evidence.arms:
        names = [name, *(f"{name}@{variant}" for variant in evidence.variants)]
        known = evidence.results["arms"]
        rows.append(
            [name, *(_figure(evidence.figure(arm), evidence.headline) if arm in known else "–" for arm in names)]
        )
    return _table(title, ["as it stands", *evidence.variants], rows)


def _fitting(evidence: "Evidence", width: int) -> list[list[str]]:
    """The sites, in as many tables as the terminal's width needs for their names and figures."""
    headline, known = (
        evidence.headline,
        [figures for arm in evidence.arms.values() for figures in arm["sites"].values()],
    )
    figure = max((len(_figure(figures[headline.metric], headline)) for figures in known), default=0)
    room = width - max(map(len, evidence.arms)) - 4
    each = max(1, room // (max([figure, *map(len, evidence.sites)]) + 3))
    return [evidence.sites[begin : begin + each] for begin in range(0, len(evidence.sites), each)]


def _site_table(arms: Mapping[str, Any], sites: Sequence[str], headline: "Headline") -> Table:
    rows = []
    for name, arm in list(arms.items())[:MOST_ARMS]:
        known = arm["sites"]
        rows.append(
            [name, *(_figure(known[site][headline.metric], headline) if site in known else "–" for site in sites)]
        )
    return _table(f"{headline.title}{_unit(headline)} at each site", sites, rows)


def _figure(figure: Mapping[str, Any], headline: "Headline", with_sd: bool = True) -> str:
    from wardround.evaluation.comparisons.measures import plainly

    digits = headline.measure.digits
    if figure["mean"] is None:
        return "–"
    spread = f" ± {plainly(figure['sd'], digits)}" if with_sd and figure["sd"] is not None else ""
    return f"{plainly(figure['mean'], digits)}{spread}"


def _show_notices(out: Console, texts: Sequence[str]) -> None:
    if texts:
        out.print("\nNotes and warnings:")
        show_lines([f"  - {text}" for text in texts[:MOST_NOTICES]])
    if len(texts) > MOST_NOTICES:
        out.print(f"  and {len(texts) - MOST_NOTICES} more, in the report")
