"""`wardround coordinate`: run a study across hospitals."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wardround.cli.deployment.render_deployment import ends_on_request, show_kit, stopped, watching
from wardround.cli.options import Json, Mu, OptionalData, OptionalStudy, Quick, Report, Rounds, Seed, Set, changes
from wardround.cli.rendering import show_lines
from wardround.cli.studies.render_run import show_finished
from wardround.cli.studies.simulate import study_file

if TYPE_CHECKING:
    from wardround.deployment import CoordinatorKit


def coordinate(
    study: OptionalStudy = None,
    kit: Annotated[
        Path | None,
        typer.Option("--kit", metavar="DIR", help="The folder `coordinator` of the kits; of a split by itself."),
    ] = None,
    data: OptionalData = None,
    mu: Mu = None,
    rounds: Rounds = None,
    seed: Seed = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the run folder is made.")] = Path("runs"),
    listen: Annotated[
        str, typer.Option("--listen", metavar="ADDRESS", help="Where sites connect; 0.0.0.0 for all networks.")
    ] = "127.0.0.1",
    host: Annotated[
        list[str] | None, typer.Option("--host", help="For the kits of a split: where sites find this machine.")
    ] = None,
    port: Annotated[int | None, typer.Option("--port", help="For the kits of a split; 9090.")] = None,
    quick: Quick = False,
    set_: Set = None,
    again: Annotated[bool, typer.Option("--again", help="Repeat a run that is complete.")] = False,
    report: Report = True,
    json: Json = False,
) -> None:
    """Run a study across hospitals: wait for the sites, train, compute. Started again, it goes on where it stopped."""
    from wardround.deployment.provisioning.kit_files import need_flower

    need_flower()  # before the imports below, which need parts of it
    from wardround.deployment import CoordinatorKit, coordinate_study, deployed_folder
    from wardround.deployment.provisioning.split_kits import kits_of_split
    from wardround.runs.catalog import load_study
    from wardround.runs.drafting.study_of_flags import Flags
    from wardround.runs.interface.study_run import StudyRun

    os.umask(0o077)  # what hospitals send, and what they keep, is for this user alone
    flags = Flags(data or "", mu=tuple(mu or ()), rounds=rounds, seed=seed)
    path, settings = study_file(study, flags, changes(set_), None, shown=not json)
    parsed, families = load_study(path, quick, settings)
    kits, made = kits_of_split(parsed, families, kit, host, port)
    loaded = CoordinatorKit.load(kits)
    folder = deployed_folder(parsed, out)
    fresh = again or not folder.complete
    if made and not json:
        _show_made(kits, loaded)
    show_kit(loaded, parsed, listen, shown=not json)
    try:
        with ends_on_request(), watching(shown=not json) as watch:
            coordinate_study(parsed, families, loaded, out, watch, listen, again)
    except KeyboardInterrupt:
        raise stopped(folder.path) from None
    run = StudyRun(folder.path, folder.read_json("results.json"), fresh)
    show_finished(run, json, report)


def _show_made(kits: Path, kit: "CoordinatorKit") -> None:
    """What each site types next."""
    first, *others = kit.sites
    place = Path(os.path.relpath(kits / "sites" / first))
    more = f", and so for {len(others)} more" if others else ""
    show_lines([f"Made keys for {len(kit.sites)} sites in {kits}.", f"wardround join {place} --approve NAME{more}"])
