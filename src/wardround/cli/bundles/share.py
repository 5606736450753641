"""`wardround share`: from a run to what a new hospital needs to join."""

from pathlib import Path
from typing import Annotated

import typer

from wardround.cli import rendering as render
from wardround.cli.bundles.adapt import show_shared
from wardround.cli.options import Json


def share(
    run: Annotated[
        Path,
        typer.Argument(metavar="RUN", help="The folder of a complete run, also a coordinator's of a deployed one."),
    ],
    arm: Annotated[str, typer.Option("--arm", metavar="ARM", help="Whose model; it must have private adapters.")],
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="Of which training; the study's first, unless given.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="A new folder; shared/STUDY-ARM, unless given.")
    ] = None,
    json: Json = False,
) -> None:
    """Make a shared part: what all hospitals of an arm share, for a hospital that is new. No row is read.

    Nothing that a hospital keeps to itself is in it.
    """
    from wardround.bundles import load_shared, make_shared

    part = load_shared(make_shared(run, arm=arm, seed=seed, out=out))
    render.show_either(json, {"shared": part.path, **part.about}, show_shared, part)
