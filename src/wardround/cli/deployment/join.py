"""`wardround join`: a hospital takes part."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wardround.cli.deployment.provision import show_decision, show_study
from wardround.cli.deployment.render_deployment import show_preflight, taking_part
from wardround.cli.options import Json

if TYPE_CHECKING:
    from wardround.deployment import SiteFile


def join(
    site: Annotated[Path, typer.Argument(metavar="SITE", help="The hospital's site.toml, or its folder.")],
    approve: Annotated[
        str | None,
        typer.Option("--approve", metavar="PERSON", help="Approve the kit's study first, in this person's name."),
    ] = None,
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
    if approve is not None:
        _approve(loaded, approve, shown=not json)
    with taking_part("site", loaded.name, loaded.state, json) as notice:
        notice(f"joins {loaded.coordinator}; state in {loaded.state}")
        join_studies(loaded, notice)


def _approve(here: "SiteFile", person: str, shown: bool) -> None:
    """The study of the kit, once: what it says and what the policy has against it is shown first."""
    from wardround.deployment import approvals_of, approve, in_plain_words, objections
    from wardround.runs.catalog import load_study

    study, _ = load_study(here.path.parent / "study.toml")
    if study.hash in approvals_of(here):
        return
    if shown:
        show_study(here.name, in_plain_words(study, here.sites), objections(here.policy, study, here.name, here.sites))
    approve(here, study, person)
    if shown:
        show_decision("Approved", study.hash, person, here.approved)
