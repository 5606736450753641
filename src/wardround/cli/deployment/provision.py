"""`wardround provision`: keys and certificates of a study across hospitals."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from wardround.cli.options import Json, Quick, Set, StudyArgument, changes
from wardround.cli.rendering import console, show_either, show_lines
from wardround.deployment.provisioning.kit_files import DAYS, HOSTS, PORT

if TYPE_CHECKING:
    from wardround.deployment import CoordinatorKit
    from wardround.study.schema import Study


def show_kits(folder: Path, study: "Study", kit: "CoordinatorKit") -> None:
    show_lines([f"Kits of {study.name} are in {folder}"], "bold")
    show_lines([f"study hash   {study.hash}"])
    console().print(Text(f"coordinator  {kit.hosts[0]}, port {kit.port}; certificate for {', '.join(kit.hosts)}"))
    show_lines(
        [
            f"valid until  {kit.expires:%Y-%m-%d}",
            f"keep         {kit.path}",
            *(f"give away    {folder / 'regions' / name}" for name in (kit.sites if kit.hospitals else ())),
            *(f"give away    {folder / 'sites' / name}" for name in kit.hospitals or kit.sites),
            "Each kit holds a private key: hand it over in a way that you trust, then delete it here. Tell each "
            "hospital the study's hash in another way, so that it can compare.",
        ]
    )


def show_study(site: str, description: Sequence[str], objections: Sequence[str]) -> None:
    out = console()
    for line in description:
        topic, colon, rest = line.partition(":")
        out.print(Text.assemble((topic + colon, "bold"), rest))
    if not objections:
        out.print(Text(f"The policy of {site} has nothing against it.", style="green"))
        return
    out.print(Text(f"The policy of {site} refuses it, approved or not, because:", style="red"))
    for objection in objections:
        out.print(Text(f"  - {objection}", style="red"))


def show_decision(what: str, study_hash: str, name: str, folder: Path) -> None:
    show_lines([f"{what}: {study_hash[:12]} by {name}. Recorded in {folder}."])


app = typer.Typer(help="Make the kits of a study across hospitals, and revoke a site.", no_args_is_help=True)


@app.command("new")
def new(
    study: StudyArgument,
    sites: Annotated[str, typer.Option("--sites", metavar="A,B,C", help="Names of the hospitals, in order.")],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="A folder that does not exist yet.")],
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host",
            help="Name or IP address of the coordinator; repeatable, sites are told the first. "
            "Default: 127.0.0.1 and localhost.",
        ),
    ] = None,
    port: Annotated[int, typer.Option("--port", help="Where the coordinator listens.")] = PORT,
    region: Annotated[
        list[str] | None,
        typer.Option(
            "--region",
            metavar="NAME=HOST:PORT",
            help="Where a region's coordinator listens, where sites form regions; one for each region.",
        ),
    ] = None,
    days: Annotated[int, typer.Option("--days", help="How long the certificates are valid.")] = DAYS,
    quick: Quick = False,
    set_: Set = None,
    json: Json = False,
) -> None:
    """Make a kit for the coordinator and one for each hospital: keys, certificates, the study, site.toml."""
    from wardround.deployment import CoordinatorKit, provision
    from wardround.runs.catalog import load_study

    parsed, families = load_study(study, quick, changes(set_))
    names = [name.strip() for name in sites.split(",") if name.strip()]
    folder = provision(parsed, names, out, host or HOSTS, port, days, families, _regions(region or ()))
    kit = CoordinatorKit.load(folder)
    folders = {name: folder / "sites" / name for name in kit.hospitals or kit.sites}
    hashed = {"name": parsed.name, "hash": parsed.hash}
    shown = {"folder": folder, "coordinator": kit.path, "sites": folders, "study": hashed}
    shown |= {"regions": {name: folder / "regions" / name for name in kit.sites}} if kit.hospitals else {}
    shown |= {"hosts": kit.hosts, "port": kit.port, "expires": kit.expires.isoformat()}
    show_either(json, shown, show_kits, folder, parsed, kit)


def _regions(options: Sequence[str]) -> dict[str, str]:
    from wardround.core.errors import DeployError

    regions: dict[str, str] = {}
    for text in options:
        name, equals, address = text.partition("=")
        if not equals or name in regions:
            problem = f"{text!r} names no region, or one twice"
            raise DeployError("provision: region", problem, "Write --region NAME=HOST:PORT once for each region.")
        regions[name.strip()] = address.strip()
    return regions


@app.command("revoke")
def revoke(
    site: Annotated[str, typer.Argument(metavar="SITE", help="Name of the hospital.")],
    kit: Annotated[Path, typer.Option("--kit", metavar="DIR", help="The coordinator's kit.")] = Path("coordinator"),
    reason: Annotated[str, typer.Option("--reason", help="Why; kept in the kit and its audit log.")] = "",
    json: Json = False,
) -> None:
    """Shut a site out: the coordinator takes nothing from it any more, not even in a run that goes on."""
    from wardround.deployment import revoke as revoke_site
    from wardround.deployment.provisioning.kit import folder_of, read_keys

    revoke_site(kit, site, reason)
    keys = read_keys(folder_of(kit))
    left = ", ".join(name for name in keys.sites if name not in keys.revoked) or "none"
    lines = [f"{site} is revoked: {keys.revoked[site]}", f"Sites that are left: {left}"]
    show_either(json, {"kit": folder_of(kit), "site": site, "revoked": keys.revoked}, show_lines, lines)
