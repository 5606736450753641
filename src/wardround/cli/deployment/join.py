"""`wardround join`: a hospital takes part."""

import os
from pathlib import Path
from typing import Annotated

import typer

from wardround.cli.deployment.render_deployment import show_preflight, taking_part
from wardround.cli.options import Json


def join(
    site: Annotated[Path, typer.Argument(metavar="SITE", help="The hospital's site.toml.")],
    check: Annotated[bool, typer.Option("--check", help="Look at rows, policy and connection; send nothing.")] = False,
    json: Json = False,
) -> None:
    """Take part in studies that this hospital approved, until it is stopped. Connects again by itself."""
    from wardround.deployment.provisioning.kit_files import need_flower

    need_flower()  # before the imports below, which need parts of it
    from wardround.deployment import SiteFile, join_studies, preflight

    os.umask(0o077)  # what hospitals send, and what they keep, is for this user alone
    loaded = SiteFile.load(site)
    if check:
        show_preflight(loaded.name, preflight(loaded), json)
        return
    with taking_part("site", loaded.name, loaded.state, json) as notice:
        notice(f"joins {loaded.coordinator}; state in {loaded.state}")
        join_studies(loaded, notice)
