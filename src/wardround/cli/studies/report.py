"""`wardround report` and `wardround compare`: from run folders to something that people read."""

from pathlib import Path
from typing import Annotated

import typer

from wardround.cli import rendering as render
from wardround.cli.options import Json
from wardround.cli.studies.render_run import drawing_workers, show_comparison, show_report


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a complete run.")], json: Json = False
) -> None:
    """Make a run's report.html, figures and tables again, from its folder alone."""
    from wardround.report import build_report

    path = build_report(run, drawing_workers())
    if json:
        render.show_json({"report": str(path)})
    else:
        show_report(path)


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of two or more complete runs.")],
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
    if json:
        tables = {t.name: {"columns": t.columns, "rows": t.rows} for t in comparison.tables}
        render.show_json({"tables": tables, "notes": comparison.notes})
    else:
        show_comparison(comparison, out)
