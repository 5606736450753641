"""`wardround report`, `compare`, `results` and `plots`: from run folders to what people and programs read."""

from pathlib import Path
from typing import Annotated

import typer

from wardround.cli import rendering as render
from wardround.cli.completion import complete_run
from wardround.cli.options import Json, Open, RunArgument
from wardround.cli.studies.render_run import drawing_workers, make_report, open_page, show_comparison


def report(
    run: RunArgument,
    site: Annotated[
        str | None, typer.Option("--site", metavar="NAME", help="Only this hospital's page, as a file by itself.")
    ] = None,
    open_: Open = False,
    json: Json = False,
) -> None:
    """Make a run's report.html, figures and tables again, from its folder alone."""
    path = make_report(run, not json, site)
    render.show_either(json, {"report": path}, render.show_lines, [f"Report: {path}"])
    if open_:
        open_page(path)


def compare(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Folders of two or more complete runs.", autocompletion=complete_run),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Also write the tables there, as CSV and LaTeX.")
    ] = None,
    json: Json = False,
) -> None:
    """Set runs side by side: what differs in their studies, and in their results."""
    from wardround.report import compare_runs, write_tables

    comparison = compare_runs(runs)
    if out is not None:
        write_tables({table.name: table for table in comparison.tables}, out)
    tables = {t.name: {"columns": t.columns, "rows": t.rows} for t in comparison.tables}
    render.show_either(json, {"tables": tables, "notes": comparison.notes}, show_comparison, comparison, out)


def results(run: RunArgument) -> None:
    """Print a run's results as JSON: the content of its results.json, checked against what the run made."""
    from wardround.report.evidence import read_evidence
    from wardround.runs.folder import RunFolder

    render.show_json(read_evidence(RunFolder(run)).results)


def plots(
    run: RunArgument,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Default: the run's own folder `figures`.")
    ] = None,
    json: Json = False,
) -> None:
    """Draw a run's figures as SVG and PNG: arms, sites, curves, and what changes over alpha and over mu."""
    from wardround.core.errors import RunError
    from wardround.report import draw_figures, read_evidence
    from wardround.runs.folder import RunFolder

    folder = run / "figures" if out is None else out
    if out is not None and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise RunError(str(out), "is there already and not an empty folder", "Give --out a new folder.")
    drawn = draw_figures(read_evidence(RunFolder(run)), folder, drawing_workers())
    line = f"{len(drawn)} figures, as SVG and PNG, in {folder}"
    render.show_either(json, {"folder": folder, "figures": list(drawn)}, render.show_lines, [line])
