"""`wardround approve`: a hospital reads a study in plain words and decides."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wardround.cli import rendering as render
from wardround.cli.deployment.provision import show_decision, show_study
from wardround.cli.options import Json

if TYPE_CHECKING:
    from wardround.deployment import SiteFile


def approve(
    study: Annotated[
        str,
        typer.Argument(metavar="STUDY", help="The kit's study.toml; with --withdraw also a hash, or how it begins."),
    ],
    name: Annotated[str, typer.Option("--name", metavar="PERSON", help="Who decides; kept with the date.")],
    site: Annotated[Path, typer.Option("--site", metavar="FILE", help="The hospital's site file.")] = Path("site.toml"),
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Take an approval back.")] = False,
    json: Json = False,
) -> None:
    """Show a study in plain words and what the site's policy says of it; approve it, or take an approval back."""
    from wardround.deployment import SiteFile, in_plain_words, objections
    from wardround.deployment import approve as record
    from wardround.runs.catalog import load_study

    here = SiteFile.load(site)
    if withdraw:
        _withdraw(here, study, name, yes, json)
        return
    parsed, _ = load_study(study)
    description = in_plain_words(parsed, here.sites)
    policy_objections = objections(here.policy, parsed, here.name, here.sites or None)
    if not json:
        show_study(here.name, description, policy_objections)
    recorded = yes or not json  # with --json nobody is asked: without --yes nothing is recorded
    if recorded:
        _confirm(f"Approve this study for {here.name}, as {name}?", yes)
        record(here, parsed, name)
    study_id = {"name": parsed.name, "hash": parsed.hash}
    answer = {"site": here.name, "study": study_id, "words": description, "objections": policy_objections}
    content = {**answer, "recorded": recorded}
    render.show_either(json, content, show_decision, "Approved", parsed.hash, name, here.approved)


def _withdraw(here: "SiteFile", study: str, name: str, yes: bool, json: bool) -> None:
    from wardround.deployment import approvals_of, withdraw

    chosen = _hash_of(study, list(approvals_of(here)))
    recorded = yes or not json
    if recorded:
        _confirm(f"Take back the approval of study {chosen[:12]} at {here.name}, as {name}?", yes)
        withdraw(here, chosen, name)
    answer = {"site": here.name, "study": {"hash": chosen}, "recorded": recorded}
    render.show_either(json, answer, show_decision, "Withdrawn", chosen, name, here.approved)


def _hash_of(study: str, approved: list[str]) -> str:
    """The hash of a study file, or of the only approval that starts with this text: the file may be gone by now."""
    from wardround.runs.catalog import load_study

    alike = [known for known in approved if len(study) >= 8 and known.startswith(study)]
    return alike[0] if len(alike) == 1 else load_study(study)[0].hash


def _confirm(question: str, yes: bool) -> None:
    from wardround.core.errors import DeployError

    try:
        agreed = yes or typer.confirm(question, err=True)
    except typer.Abort:
        agreed = False
    if not agreed:
        raise DeployError("approve", "nobody said yes, so that nothing was recorded", "Answer y, or give --yes.")
