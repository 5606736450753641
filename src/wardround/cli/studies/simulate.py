"""`wardround simulate`: run a study on this machine, or a study that a few options describe, which is written down."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wardround.cli import rendering as render
from wardround.cli.options import (
    Alpha,
    Json,
    Mu,
    Open,
    OptionalData,
    OptionalStudy,
    Quick,
    Report,
    Rounds,
    Seed,
    Set,
    Sites,
    Workers,
    changes,
)
from wardround.cli.studies.render_run import show_finished
from wardround.cli.studies.run import trained

if TYPE_CHECKING:
    from wardround.runs.drafting.study_of_flags import Flags


def simulate(
    study: OptionalStudy = None,
    data: OptionalData = None,
    sites: Sites = None,
    alpha: Alpha = None,
    mu: Mu = None,
    rounds: Rounds = None,
    seed: Seed = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="FILE", help="Write the results there too, as JSON.")
    ] = None,
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
    """Simulate a study on this machine. Without STUDY, --data and its options make one, which is written to a file."""
    from wardround.runs.drafting.study_of_flags import Flags

    flags = Flags(data or "", sites, alpha, tuple(mu or ()), rounds, seed)
    path, settings = study_file(study, flags, changes(set_), output, shown=not json)
    finished = trained(path, out, engine, quick, settings, again, report, workers, json)
    if output is not None:
        from wardround.core.atomic_files import reporting_full_disk, write_atomically

        with reporting_full_disk(output.absolute().parent, "Name another --output; the run is complete."):
            write_atomically(output, (finished.folder / "results.json").read_bytes())
    show_finished(finished, json, report, open_)


def study_file(
    study: str | None, flags: "Flags", settings: dict[str, Any], beside: Path | None, shown: bool
) -> tuple[str, dict[str, Any]]:
    """The study that is named, with its changed settings; or the file of the one that the options make, in which the
    settings stand. It has the name of `beside`."""
    from wardround.core.errors import StudyError
    from wardround.runs.catalog import families
    from wardround.runs.drafting.study_of_flags import study_of, write_study
    from wardround.study.sweeps import set_path

    given = [name for name, value in vars(flags).items() if value not in (None, "", ())]
    if study is not None:
        if given:
            problem = f"a study is named, and so is --{given[0]}, which makes one"
            raise StudyError(f"study {study}", problem, "Leave one of them out; --set changes a setting of a study.")
        return study, settings
    if not flags.data:
        remedy = "Name a study, or data: wardround simulate --data fashion-mnist --sites 10 --alpha 0.1 --rounds 50."
        raise StudyError("study", "neither a study nor --data is named", remedy)
    folder = Path() if beside is None else beside.parent
    content = study_of(flags, families(), folder)
    for key, value in settings.items():
        set_path(content, key, value, "--set")
    path = write_study(content, folder / f"{content['name'] if beside is None else beside.stem}.toml")
    if shown:
        render.show_lines([f"The study is in {path}; run it again, or change it: wardround simulate {path}"])
    return str(path), {}
