"""`wardround bundles`: a registry, which is a folder of bundles with versions, one of each name in use."""

from pathlib import Path
from typing import Annotated

import typer

from wardround.cli import rendering as render
from wardround.cli.bundles.render_registry import show_change, show_details, show_differences, show_list, show_verified
from wardround.cli.options import Json

app = typer.Typer(help="A registry of bundles: versions, which is in use, and a log.", no_args_is_help=True)

Place = Annotated[Path, typer.Option("--registry", metavar="DIR", help="The registry's folder.")]
Named = Annotated[str, typer.Argument(metavar="NAME[@VERSION]", help="By default the version in use, or the newest.")]
By = Annotated[str | None, typer.Option("--by", metavar="WHO", help="Who decides; by default the user's name here.")]
Reason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why; kept in the log.")]
REGISTRY = Path("registry")


@app.command("add")
def add(
    bundle: Annotated[Path, typer.Argument(metavar="BUNDLE", help="A folder that `wardround bundle` has made.")],
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="By default the bundle's own: study-arm-site.")
    ] = None,
    registry: Place = REGISTRY,
    by: By = None,
    json: Json = False,
) -> None:
    """Copy a bundle into the registry, as the next version of its name. It is not in use by that."""
    from wardround.bundles.registry.registry import Registry

    added = Registry(registry).add(bundle, name, by)
    if json:
        render.show_json(added)
    else:
        then = f"wardround bundles promote {added.label} --registry {registry}"
        show_change(f"Added {added.label}", added, then)


@app.command("list")
def list_bundles(registry: Place = REGISTRY, json: Json = False) -> None:
    """List names and versions, which is in use, and how good each was at its site."""
    from wardround.bundles.registry.listing import listing
    from wardround.bundles.registry.registry import Registry

    rows = listing(Registry(registry))
    if json:
        render.show_json(rows)
    else:
        show_list(registry, rows)


@app.command("show")
def show(name: Named, registry: Place = REGISTRY, json: Json = False) -> None:
    """Show all about one bundle: its card, its files, and what was done with it."""
    from wardround.bundles.registry.listing import details
    from wardround.bundles.registry.registry import Registry

    told = details(Registry(registry), name)
    if json:
        render.show_json(told)
    else:
        show_details(told)


@app.command("verify")
def verify(
    name: Annotated[str | None, typer.Argument(metavar="[NAME[@VERSION]]", help="By default everything.")] = None,
    registry: Place = REGISTRY,
    head: Annotated[
        str | None, typer.Option("--head", metavar="HASH", help="A head of the log that was kept elsewhere.")
    ] = None,
    json: Json = False,
) -> None:
    """Check the log, every bundle's hashes, and that the folder holds what the log says. Exit code 6 if not."""
    from wardround.bundles.registry.registry import Registry
    from wardround.core.errors import RunError

    found = Registry(registry).verify(name, head)
    if json:
        render.show_json(found)
    else:
        show_verified(registry, found)
    if found.problems:
        raise typer.Exit(RunError.exit_code)


@app.command("diff")
def diff(
    a: Annotated[str, typer.Argument(metavar="A", help="NAME\\[@VERSION], or the folder of a bundle.")],
    b: Annotated[str, typer.Argument(metavar="B", help="NAME\\[@VERSION], or the folder of a bundle.")],
    registry: Place = REGISTRY,
    json: Json = False,
) -> None:
    """Show in what two bundles differ: origin, model, columns, decision, weights, figures, privacy."""
    from wardround.bundles.registry.bundle_differences import differences
    from wardround.bundles.registry.registry import Registry

    first, second = (Registry(registry).open(text) for text in (a, b))
    found = differences(first, second)
    if json:
        ids = {"a": {"named": a, "id": first.id}, "b": {"named": b, "id": second.id}}
        render.show_json({**ids, "same": first.id == second.id, "differences": found})
    else:
        show_differences(a, b, found)


@app.command("promote")
def promote(
    name: Annotated[str, typer.Argument(metavar="NAME@VERSION", help="Which version is in use from now on.")],
    registry: Place = REGISTRY,
    by: By = None,
    reason: Reason = None,
    json: Json = False,
) -> None:
    """Put one version to use, in place of the one before. A bundle that was changed is refused."""
    from wardround.bundles.registry.registry import Registry

    chosen = Registry(registry).promote(name, by, reason)
    if json:
        render.show_json(chosen)
    else:
        place = registry / chosen.name
        show_change(f"{chosen.label} is in use", chosen, f"wardround predict {place} DATA --out FILE")


@app.command("withdraw")
def withdraw(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of which no version is in use from now on.")],
    registry: Place = REGISTRY,
    by: By = None,
    reason: Reason = None,
    json: Json = False,
) -> None:
    """Take the version in use out of use. It stays in the registry."""
    from wardround.bundles.registry.registry import Registry

    chosen = Registry(registry).withdraw(name, by, reason)
    if json:
        render.show_json(chosen)
    else:
        show_change(f"{chosen.label} is no longer in use", chosen, None)
