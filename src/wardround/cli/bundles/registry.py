"""`wardround bundles`: a registry, which is a folder of bundles with versions, one of each name in use."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from wardround.cli import rendering as render
from wardround.cli.options import Json
from wardround.cli.rendering import console, show_either, show_lines, table_of

if TYPE_CHECKING:
    from wardround.bundles.registry.bundle_differences import Difference
    from wardround.bundles.registry.registry import Registry, Verified, Version

NOTHING = "–"


def show_change(what: str, version: "Version", then: str | None) -> None:
    show_lines([what], "bold")
    show_lines([f"bundle  {version.id}", f"folder  {version.path}", *([f"next    {then}"] if then else [])])


def show_list(place: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    out = console()
    if not rows:
        out.print(Text(f"{place} has no bundles. Add one: wardround bundles add BUNDLE --registry {place}"))
        return
    lines, before = [], None
    for row in rows:
        seed = "" if row["seed"] is None else str(row["seed"])
        origin = ((row["made"] or "")[:10], row["arm"] or "", row["site"] or "", seed)
        figure = (
            "" if row["metric"] is None else f"{row['metric']} {_figure(row['mean'], row['interval'], row['metric'])}"
        )
        if not row["as_added"]:
            figure = "changed: see wardround bundles verify"
        name = "" if row["name"] == before else row["name"]
        lines.append((name, str(row["version"]), "yes" if row["in_use"] else "", *origin, figure))
        before = row["name"]
    headings = ("name", "version", "in use", "made", "arm", "site", "seed", "at its site, all seeds")
    out.print(table_of(headings, lines, ("version", "seed"), Text(f"Bundles in {place}")))


def show_details(details: Mapping[str, Any]) -> None:
    use = "in use" if details["in_use"] == details["version"] else "not in use"
    show_lines([f"{details['name']}@{details['version']}, {use}"], "bold")
    show_lines([f"bundle  {details['bundle']['id']}", f"folder  {details['path']}"])
    headings = ("time", "event", "version", "by", "reason")
    events = [{**event, "time": event["time"][:19]} for event in details["history"]]
    rows = [[shown(event.get(heading)) for heading in headings] for event in events]
    console().print(table_of(headings, rows, title="What was done with this name"))
    show_lines(["", details["card"].rstrip()])


def show_verified(place: Path, result: "Verified") -> None:
    show_lines(result.problems, "red")
    unfinished = "is left from an add that did not end. It counts for nothing, and the next add removes it."
    show_lines((f"{left} {unfinished}" for left in result.leftovers), "yellow")
    if result.problems:
        show_lines([f"{place} is not what its log says."])
        return
    log = f"{result.entries} entries in the log"
    console().print(Text(f"{place}: {result.versions} bundles, each as it was added; {log}"))
    show_lines([f"head {result.head}", render.KEEP_HEAD])


def show_differences(a: str, b: str, listed: Sequence["Difference"]) -> None:
    out = console()
    if not listed:
        out.print(Text(f"{a} and {b} are the same bundle."), soft_wrap=True)
        return
    table = Table()
    for heading in ("", "what", a, b):
        table.add_column(Text(heading), overflow="fold")
    before = None
    for difference in listed:
        if before not in (None, difference.topic):
            table.add_section()
        topic = "" if difference.topic == before else difference.topic
        metric = difference.what.partition(",")[0]
        table.add_row(*map(Text, (topic, difference.what, shown(difference.a, metric), shown(difference.b, metric))))
        before = difference.topic
    out.print(table)


def shown(value: Any, metric: str = "") -> str:
    """A value of any kind, as a person reads it. `metric` is what a figure is of."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        if "mean" in value:
            return _figure(value["mean"], value.get("interval"), metric)
        return ", ".join(f"{key} {shown(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value))
    return str(value)


def _figure(mean: float | None, interval: Sequence[float] | None, metric: str) -> str:
    from wardround.tasks import METRIC_FACTS

    if mean is None:
        return NOTHING
    if not interval:
        return f"{mean:.3f}"
    low, high = METRIC_FACTS[metric].within(interval) if metric in METRIC_FACTS else interval
    return f"{mean:.3f} ({low:.3f} to {high:.3f})"


app = typer.Typer(help="A registry of bundles: versions, which is in use, and a log.", no_args_is_help=True)

Place = Annotated[Path, typer.Option("--registry", metavar="DIR", help="The registry's folder.")]
Named = Annotated[str, typer.Argument(metavar="NAME[@VERSION]", help="By default the version in use, or the newest.")]
By = Annotated[str | None, typer.Option("--by", metavar="WHO", help="Who decides; by default the user's name here.")]
Reason = Annotated[str | None, typer.Option("--reason", metavar="TEXT", help="Why; kept in the log.")]
REGISTRY = Path("registry")


def _open(place: Path) -> "Registry":
    from wardround.bundles.registry.registry import Registry

    return Registry(place)


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
    added = _open(registry).add(bundle, name, by)
    then = f"wardround bundles promote {added.label} --registry {registry}"
    show_either(json, added, show_change, f"Added {added.label}", added, then)


@app.command("list")
def list_bundles(registry: Place = REGISTRY, json: Json = False) -> None:
    """List names and versions, which is in use, and how good each was at its site."""
    from wardround.bundles.registry.registry import listing

    rows = listing(_open(registry))
    show_either(json, rows, show_list, registry, rows)


@app.command("show")
def show(name: Named, registry: Place = REGISTRY, json: Json = False) -> None:
    """Show all about one bundle: its card, its files, and what was done with it."""
    from wardround.bundles.registry.registry import details

    content = details(_open(registry), name)
    show_either(json, content, show_details, content)


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
    from wardround.core.errors import RunError

    result = _open(registry).verify(name, head)
    show_either(json, result, show_verified, registry, result)
    if result.problems:
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

    first, second = (_open(registry).open(text) for text in (a, b))
    listed = differences(first, second)
    ids = {"a": {"named": a, "id": first.id}, "b": {"named": b, "id": second.id}}
    content = {**ids, "same": first.id == second.id, "differences": listed}
    show_either(json, content, show_differences, a, b, listed)


@app.command("promote")
def promote(
    name: Annotated[str, typer.Argument(metavar="NAME@VERSION", help="Which version is in use from now on.")],
    registry: Place = REGISTRY,
    by: By = None,
    reason: Reason = None,
    json: Json = False,
) -> None:
    """Put one version to use, in place of the one before. A bundle that was changed is refused."""
    chosen = _open(registry).promote(name, by, reason)
    then = f"wardround predict {registry / chosen.name} DATA --out FILE"
    show_either(json, chosen, show_change, f"{chosen.label} is in use", chosen, then)


@app.command("withdraw")
def withdraw(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of which no version is in use from now on.")],
    registry: Place = REGISTRY,
    by: By = None,
    reason: Reason = None,
    json: Json = False,
) -> None:
    """Take the version in use out of use. It stays in the registry."""
    chosen = _open(registry).withdraw(name, by, reason)
    show_either(json, chosen, show_change, f"{chosen.label} is no longer in use", chosen, None)
