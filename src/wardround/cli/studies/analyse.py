"""`wardround analyse`: the analyses of a study, without training anything."""

from pathlib import Path
from typing import Annotated

import typer

from wardround.cli import rendering as render
from wardround.cli.options import Json, Open, Quick, Report, Set, StudyArgument, changes
from wardround.cli.studies.render_run import show_finished
from wardround.core.lazy import imports_of_a_run


def analyse(
    study: StudyArgument,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the run folder is made.")] = Path("runs"),
    quick: Quick = False,
    set_: Set = None,
    again: Annotated[bool, typer.Option("--again", help="Repeat a run that is complete.")] = False,
    report: Report = True,
    open_: Open = False,
    json: Json = False,
) -> None:
    """Compute the analyses of a study, such as a regression, without training its arms."""
    with imports_of_a_run():
        from wardround.runs.execute import analyse_study

    with render.progress_bar(not json, "analyses") as show:
        finished = analyse_study(study, out, quick=quick, again=again, changes=changes(set_), progress=show)
    show_finished(finished, json, report, open_)
