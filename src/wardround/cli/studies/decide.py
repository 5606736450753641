"""`wardround decide`: a person decides about hospitals that hold a run."""

from pathlib import Path
from typing import Annotated

import typer

from wardround.cli import rendering as render
from wardround.cli.completion import complete_run
from wardround.cli.options import Json


def decide(
    run: Annotated[
        Path, typer.Argument(metavar="RUN", help="The folder of a run that is held.", autocompletion=complete_run)
    ],
    name: Annotated[str, typer.Option("--name", metavar="PERSON", help="Who decides; kept with the date.")],
    keep: Annotated[
        list[str] | None, typer.Option("--keep", metavar="SITE", help="Its updates go on counting. May be repeated.")
    ] = None,
    drop: Annotated[
        list[str] | None, typer.Option("--drop", metavar="SITE", help="It is left out from now on. May be repeated.")
    ] = None,
    json: Json = False,
) -> None:
    """Decide about hospitals whose updates differ, in a run that is held for it. `resume` then goes on."""
    from wardround.runs.decisions.decide import decide as record

    decisions = record(run, keep=keep or (), drop=drop or (), name=name)
    words = {"keep": "kept", "drop": "dropped"}
    lines = [f"{each.site}: {words[each.decision]}, as {each.name} decided" for each in decisions]
    render.show_either(json, {"run": run, "decisions": decisions}, render.show_lines, lines)
