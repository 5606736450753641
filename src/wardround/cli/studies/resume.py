"""`wardround resume`: go on with a run that was stopped or died, to the same numbers."""

from pathlib import Path
from typing import Annotated

import typer

from wardround.cli import rendering as render
from wardround.cli.options import Json, Report, Workers
from wardround.cli.studies.render_run import show_finished


def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of an unfinished run.")],
    report: Report = True,
    workers: Workers = None,
    json: Json = False,
) -> None:
    """Go on with an unfinished run, exactly where its last checkpoint stands."""
    from wardround.runs.execute import resume_study

    with render.progress_bar(shown=not json) as show:
        try:
            finished = resume_study(run, progress=show, workers=workers)
        except KeyboardInterrupt:
            raise render.stopped(run) from None
    show_finished(finished, json, report)
