"""`wardround run`: train every arm of a study and show the results. `wardround resume`: go on with a stopped run."""

from pathlib import Path
from typing import Annotated

import typer

from wardround.cli import rendering as render
from wardround.cli.completion import complete_run
from wardround.cli.options import Json, Open, Quick, Report, Set, StudyArgument, Workers, changes
from wardround.cli.studies.render_run import show_finished
from wardround.core.lazy import imports_of_a_run


def run(
    study: StudyArgument,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the run folder is made.")] = Path("runs"),
    engine: Annotated[str, typer.Option("--engine", help="auto, serial or stacked.")] = "auto",
    quick: Quick = False,
    set_: Set = None,
    again: Annotated[bool, typer.Option("--again", help="Repeat a run that is complete.")] = False,
    report: Report = True,
    open_: Open = False,
    workers: Workers = None,
    json: Json = False,
) -> None:
    """Run a study: every arm with every seed, into a run folder."""
    with imports_of_a_run():
        from wardround.cli.studies.render_run import with_report_in_mind
        from wardround.runs.catalog import load_study
        from wardround.runs.execute import run_study
        from wardround.runs.folder import RunFolder

    with render.progress_bar(shown=not json) as show:
        try:
            finished = run_study(
                study,
                out,
                engine=engine,
                quick=quick,
                again=again,
                changes=changes(set_),
                progress=with_report_in_mind(show) if report else show,
                workers=workers,
            )
        except KeyboardInterrupt:
            raise render.stopped(RunFolder.of(load_study(study, quick, changes(set_))[0], out).path) from None
    show_finished(finished, json, report, open_)


def resume(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of an unfinished run.", autocompletion=complete_run)
    ],
    report: Report = True,
    open_: Open = False,
    workers: Workers = None,
    json: Json = False,
) -> None:
    """Go on with an unfinished run, exactly where its last checkpoint stands."""
    with imports_of_a_run():
        from wardround.runs.execute import resume_study

    with render.progress_bar(shown=not json) as show:
        try:
            finished = resume_study(run, progress=show, workers=workers)
        except KeyboardInterrupt:
            raise render.stopped(run) from None
    show_finished(finished, json, report, open_)
