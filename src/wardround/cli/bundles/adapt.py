"""`wardround adapt`: a new hospital trains its own adapter, and sees what it gains by it."""

from pathlib import Path
from typing import Annotated

import typer

from wardround.cli import rendering as render
from wardround.cli.bundles.render_adapt import show_adapted
from wardround.cli.options import Json


def adapt(
    shared: Annotated[
        Path, typer.Argument(metavar="SHARED|RUN", help="A shared part, or the folder of a complete run.")
    ],
    hospital: Annotated[
        Path, typer.Argument(metavar="HOSPITAL.toml", help="A file with `name` and `\\[data]`; a site file will do.")
    ],
    arm: Annotated[str | None, typer.Option("--arm", metavar="ARM", help="Of a RUN: whose model.")] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Of a RUN: of which training; the study's first.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="A new folder; adapted/HOSPITAL, unless given.")
    ] = None,
    repeats: Annotated[
        int | None, typer.Option("--repeats", min=1, metavar="N", help="Splits that are drawn; 20, unless given.")
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option("--epochs", min=1, metavar="N", help="At most so many; as many as in the study, unless given."),
    ] = None,
    accept: Annotated[
        list[str] | None, typer.Option("--accept", metavar="CHECK", help="Accept what a check found. May be repeated.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="3 repeats of at most 10 epochs, unless given.")] = False,
    json: Json = False,
) -> None:
    """Let a new hospital join: train its adapter on its own rows, beside training alone, over 10 to 100 % of them.

    Encoder and head stay as they are. Nothing leaves the hospital.
    """
    from wardround.adaptation.adapt import adapt as run_adaptation

    with render.progress_bar(shown=not json) as show:
        found = run_adaptation(
            shared,
            hospital,
            arm=arm,
            seed=seed,
            out=out,
            repeats=repeats,
            epochs=epochs,
            quick=quick,
            accept=tuple(accept or ()),
            progress=show,
        )
    if json:
        render.show_json({"folder": str(found.folder), "bundle": str(found.bundle), **found.results})
    else:
        show_adapted(found)
