"""`wardround coordinate`: run a study across hospitals."""

import os
from pathlib import Path
from typing import Annotated

import typer

from wardround.cli.deployment.render_deployment import ends_on_request, show_kit, stopped, watching
from wardround.cli.options import Json, Quick, Report, Set, StudyArgument, changes
from wardround.cli.studies.render_run import show_finished


def coordinate(
    study: StudyArgument,
    kit: Annotated[Path, typer.Option("--kit", metavar="DIR", help="The folder `coordinator` of the kits.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the run folder is made.")] = Path("runs"),
    listen: Annotated[
        str, typer.Option("--listen", metavar="ADDRESS", help="Where sites connect; 0.0.0.0 for all networks.")
    ] = "127.0.0.1",
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
    from wardround.runs.catalog import load_study
    from wardround.runs.interface.study_run import StudyRun

    os.umask(0o077)  # what hospitals send, and what they keep, is for this user alone
    parsed, families = load_study(study, quick, changes(set_))
    loaded = CoordinatorKit.load(kit)
    folder = deployed_folder(parsed, out)
    fresh = again or not folder.complete
    show_kit(loaded, parsed, listen, shown=not json)
    try:
        with ends_on_request(), watching(shown=not json) as watch:
            coordinate_study(parsed, families, loaded, out, watch, listen, again)
    except KeyboardInterrupt:
        raise stopped(folder.path) from None
    run = StudyRun(folder.path, folder.read_json("results.json"), fresh)
    show_finished(run, json, report)
