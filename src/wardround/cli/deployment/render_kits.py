"""What the verbs around kits show: what was made, a study in plain words, a decision."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from wardround.cli.rendering import console

if TYPE_CHECKING:
    from wardround.deployment.provisioning.kit import CoordinatorKit
    from wardround.study.schema import Study


def show_kits(folder: Path, study: "Study", kit: "CoordinatorKit") -> None:
    out = console()
    out.print(Text(f"Kits of {study.name} are in {folder}", style="bold"), soft_wrap=True)
    out.print(Text(f"study hash   {study.hash}"), soft_wrap=True)
    out.print(Text(f"coordinator  {kit.hosts[0]}, port {kit.port}; certificate for {', '.join(kit.hosts)}"))
    out.print(Text(f"valid until  {kit.expires:%Y-%m-%d}"))
    out.print(Text(f"keep         {kit.path}"), soft_wrap=True)
    for name in kit.sites if kit.hospitals else ():
        out.print(Text(f"give away    {folder / 'regions' / name}"), soft_wrap=True)
    for name in kit.hospitals or kit.sites:
        out.print(Text(f"give away    {folder / 'sites' / name}"), soft_wrap=True)
    out.print(
        "Each kit holds a private key: hand it over in a way that you trust, then delete it here. Tell each hospital "
        "the study's hash in another way, so that it can compare.",
        soft_wrap=True,
    )


def show_revoked(site: str, words: str, left: Sequence[str]) -> None:
    out = console()
    out.print(Text(f"{site} is revoked: {words}"), soft_wrap=True)
    out.print(Text(f"Sites that are left: {', '.join(left) or 'none'}"), soft_wrap=True)


def show_study(site: str, words: Sequence[str], objections: Sequence[str]) -> None:
    out = console()
    for line in words:
        topic, colon, rest = line.partition(":")
        out.print(Text.assemble((topic + colon, "bold"), rest))
    if not objections:
        out.print(Text(f"The policy of {site} has nothing against it.", style="green"))
        return
    out.print(Text(f"The policy of {site} refuses it, approved or not, because:", style="red"))
    for objection in objections:
        out.print(Text(f"  - {objection}", style="red"))


def show_decision(what: str, study_hash: str, name: str, folder: Path) -> None:
    console().print(Text(f"{what}: {study_hash[:12]} by {name}. Recorded in {folder}."), soft_wrap=True)
