"""`wardround region`: coordinate a region's hospitals, as one site of the coordinator of all."""

import os
from pathlib import Path
from typing import Annotated

import typer

from wardround.cli.deployment.render_deployment import progress_lines, show_preflight, taking_part
from wardround.cli.options import Json


def region(
    region: Annotated[Path, typer.Argument(metavar="REGION", help="The region.toml of the region's kit.")],
    listen: Annotated[
        str, typer.Option("--listen", metavar="ADDRESS", help="Where its hospitals connect; 0.0.0.0 for all networks.")
    ] = "127.0.0.1",
    check: Annotated[
        bool, typer.Option("--check", help="Look at study, keys, certificates, port and connection; send nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Take part with a region's hospitals, until it is stopped. Started again, it goes on where it stopped."""
    from wardround.deployment.provisioning.kit_files import need_flower

    need_flower()  # before the imports below, which need parts of it
    from wardround.deployment import RegionFile, coordinate_region, preflight_region

    os.umask(0o077)  # what hospitals send, and what they keep, is for this user alone
    loaded = RegionFile.load(region)
    if check:
        show_preflight(loaded.name, preflight_region(loaded, listen), json, what="region")
        return
    own = f"hospitals {', '.join(loaded.kit.sites)} connect to {listen}:{loaded.kit.port}"
    with taking_part("region", loaded.name, loaded.state, json) as notice:
        notice(f"joins {loaded.coordinator}; {own}; state in {loaded.state}")
        coordinate_region(loaded, notice, progress_lines(notice), listen)
