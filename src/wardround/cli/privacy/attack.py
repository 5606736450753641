"""`wardround attack`: try to break what a run promises its patients."""

from pathlib import Path
from typing import Annotated

import typer

from wardround.cli import rendering as render
from wardround.cli.options import Json, Quick, Set, changes
from wardround.cli.privacy.render_attack import say, show_attack

FAILED = 9  # exit code: an attack showed more than a run claims


def attack(
    target: Annotated[
        str, typer.Argument(metavar="RUN|STUDY", help="The folder of a complete run, or a study, which is run first.")
    ],
    arm: Annotated[
        list[str] | None, typer.Option("--arm", metavar="ARM", help="Attack this arm only. May be repeated.")
    ] = None,
    only: Annotated[
        str, typer.Option("--only", metavar="A,B", help="Some of: inversion, membership, canary.")
    ] = "inversion,membership,canary",
    at: Annotated[
        str, typer.Option("--at", help="Invert gradients of the `initial` or the `trained` model.")
    ] = "initial",
    shadows: Annotated[
        int | None, typer.Option("--shadows", min=0, metavar="N", help="Shadow models of each arm; 0 for none.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the run folder of a STUDY is made.")] = Path(
        "runs"
    ),
    quick: Quick = False,
    set_: Set = None,
    json: Json = False,
) -> None:
    """Attack a run: rebuild patients' rows, tell who was trained on, and test the claimed epsilon.

    Exit code 9 if an attack shows a larger epsilon than the run claims.
    """
    from wardround.attacks.attack import attack_run
    from wardround.core.errors import StudyError

    if at not in ("initial", "trained"):
        raise StudyError("--at", f"{at!r} is not known", "Write initial or trained.")
    folder = Path(target)
    if not folder.is_dir():
        from wardround.runs.catalog import load_study
        from wardround.runs.execute import run_study

        known = load_study(target, quick, changes(set_))[0]
        for name in arm or ():
            known.arm(name)  # refused now rather than after training
        with render.progress_bar(shown=not json) as show:
            folder = run_study(target, out, quick=quick, changes=changes(set_), progress=show).folder
    elif set_:
        raise StudyError("--set", "a run has its settings already", "Name the study instead of its run folder.")
    found = attack_run(
        folder,
        arms=tuple(arm or ()),
        only=tuple(name.strip() for name in only.split(",") if name.strip()),
        quick=quick,
        at="trained" if at == "trained" else "initial",
        shadows=shadows,
        progress=None if json else say,
    )
    if json:
        render.show_json({"folder": str(folder), **found})
    else:
        show_attack(found, folder)
    if found["passed"] is False:
        raise typer.Exit(FAILED)
