"""`wardround run`: train every arm of a study and show what came out."""

from pathlib import Path
from typing import Annotated

import typer

from wardround.cli.options import Json, Quick, Set, StudyArgument, changes

INTERRUPTED = 130


def run(
    study: StudyArgument,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the run folder is made.")] = Path("runs"),
    engine: Annotated[str, typer.Option("--engine", help="auto or serial.")] = "auto",
    quick: Quick = False,
    set_: Set = None,
    again: Annotated[bool, typer.Option("--again", help="Repeat a run that is complete.")] = False,
    json: Json = False,
) -> None:
    """Run a study: every arm with every seed, into a run folder."""
    from wardround.cli import render
    from wardround.execute import run_study

    with render.progress_bar(shown=not json) as show:
        try:
            finished = run_study(
                study, out, engine=engine, quick=quick, again=again, changes=changes(set_), progress=show
            )
        except KeyboardInterrupt:
            render.warn("Stopped. The run folder is incomplete; the same command starts it anew.")
            raise typer.Exit(INTERRUPTED) from None
    if json:
        render.show_json({"folder": str(finished.folder), "fresh": finished.fresh, "results": finished.results})
    else:
        render.show_run(finished)
