"""`wardround run`: train every arm of a study and show the results. `wardround resume`: go on with a stopped run."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wardround.cli import rendering as render
from wardround.cli.completion import complete_run
from wardround.cli.options import Json, Open, Quick, Report, Set, StudyArgument, Workers, changes
from wardround.cli.studies.render_run import show_finished
from wardround.core.lazy import imports_of_a_run

if TYPE_CHECKING:
    from wardround.runs.interface.study_run import StudyRun


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
    show_finished(trained(study, out, engine, quick, changes(set_), again, report, workers, json), json, report, open_)


def trained(
    study: str,
    out: Path,
    engine: str,
    quick: bool,
    settings: Mapping[str, Any],
    again: bool,
    report: bool,
    workers: int | None,
    json: bool,
) -> "StudyRun":
    """The finished run, with a bar that moves as it trains."""
    with imports_of_a_run():
        from wardround.cli.studies.render_run import with_report_in_mind
        from wardround.runs.catalog import load_study
        from wardround.runs.execute import run_study
        from wardround.runs.folder import RunFolder

    with render.progress_bar(shown=not json) as show:
        try:
            return run_study(
                study,
                out,
                engine=engine,
                quick=quick,
                again=again,
                changes=settings,
                progress=with_report_in_mind(show) if report else show,
                workers=workers,
            )
        except KeyboardInterrupt:
            raise render.stopped(RunFolder.of(load_study(study, quick, settings)[0], out).path) from None


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
