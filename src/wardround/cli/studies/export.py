"""`wardround export`: a run where a team looks at its other experiments."""

from typing import TYPE_CHECKING, Annotated

import typer

from wardround.cli import rendering as render
from wardround.cli.options import Json, RunArgument

if TYPE_CHECKING:
    from wardround.tracking import Exported


def export(
    run: RunArgument,
    to: Annotated[str, typer.Option("--to", metavar="TRACKER", help="mlflow or tensorboard.")],
    out: Annotated[
        str, typer.Option("--out", metavar="PLACE", help="A tracking URI of MLflow, or a folder for TensorBoard.")
    ] = "",
    each_seed: Annotated[bool, typer.Option("--each-seed", help="Also an entry for each seed of each arm.")] = False,
    json: Json = False,
) -> None:
    """Write a run's settings, curves, figures and report for MLflow or TensorBoard; no predictions."""
    from wardround.tracking import export_run

    exported = export_run(run, to, out, each_seed=each_seed)
    render.show_either(json, exported, _show, exported)


def _show(exported: "Exported") -> None:
    written = f"{exported.arms} arms are written to {exported.where}."
    there = f"This run is in {exported.where} already; nothing was written."
    render.show_lines([written if exported.fresh else there, f"Look at it: {exported.show}"])
