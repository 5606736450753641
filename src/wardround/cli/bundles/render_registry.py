"""What the verbs around a registry of bundles show."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from wardround.cli.rendering import console

if TYPE_CHECKING:
    from wardround.bundles.registry.bundle_differences import Difference
    from wardround.bundles.registry.listing import Row
    from wardround.bundles.registry.registry import Verified
    from wardround.bundles.registry.versions import Version

NOTHING = "–"


def show_change(what: str, version: "Version", then: str | None) -> None:
    out = console()
    out.print(Text(what, style="bold"), soft_wrap=True)
    out.print(Text(f"bundle  {version.id}"), soft_wrap=True)
    out.print(Text(f"folder  {version.path}"), soft_wrap=True)
    if then:
        out.print(Text(f"next    {then}"), soft_wrap=True)


def show_list(place: Path, rows: Sequence["Row"]) -> None:
    out = console()
    if not rows:
        out.print(Text(f"{place} has no bundles. Add one: wardround bundles add BUNDLE --registry {place}"))
        return
    table = Table(title=Text(f"Bundles in {place}"), title_justify="left", title_style="bold")
    for heading in ("name", "version", "in use", "made", "arm", "site", "seed", "at its site, all seeds"):
        table.add_column(heading, justify="right" if heading in ("version", "seed") else "left")
    before = None
    for row in rows:
        told = (row.made or "")[:10], row.arm or "", row.site or "", "" if row.seed is None else str(row.seed)
        figure = "" if row.metric is None else f"{row.metric} {_figure(row.mean, row.interval)}"
        if not row.as_added:
            figure = "changed: see wardround bundles verify"
        name = "" if row.name == before else row.name
        table.add_row(*map(Text, (name, str(row.version), "yes" if row.in_use else "", *told, figure)))
        before = row.name
    out.print(table)


def show_details(told: Mapping[str, Any]) -> None:
    out = console()
    label = f"{told['name']}@{told['version']}"
    use = "in use" if told["in_use"] == told["version"] else "not in use"
    out.print(Text(f"{label}, {use}", style="bold"), soft_wrap=True)
    out.print(Text(f"bundle  {told['bundle']['id']}"), soft_wrap=True)
    out.print(Text(f"folder  {told['path']}"), soft_wrap=True)
    table = Table(title="What was done with this name", title_justify="left", title_style="bold")
    for heading in ("time", "event", "version", "by", "reason"):
        table.add_column(heading)
    for event in told["history"]:
        cells = (event["time"][:19], event["event"], event["version"], event.get("by"), event.get("reason"))
        table.add_row(*(Text(NOTHING if cell is None else str(cell)) for cell in cells))
    out.print(table)
    out.print()
    out.print(Text(told["card"].rstrip()), soft_wrap=True)


def show_verified(place: Path, found: "Verified") -> None:
    out = console()
    for problem in found.problems:
        out.print(Text(problem, style="red"), soft_wrap=True)
    for left in found.leftovers:
        words = f"{left} is left from an add that did not end. It counts for nothing, and the next add removes it."
        out.print(Text(words, style="yellow"), soft_wrap=True)
    if found.problems:
        out.print(Text(f"{place} is not what its log says."), soft_wrap=True)
        return
    out.print(Text(f"{place}: {found.versions} bundles, each as it was added; {found.entries} entries in the log"))
    out.print(f"head {found.head}", soft_wrap=True)
    out.print("Keep the head elsewhere: with --head it shows whether lines were cut off at the end.")


def show_differences(a: str, b: str, found: Sequence["Difference"]) -> None:
    out = console()
    if not found:
        out.print(Text(f"{a} and {b} are the same bundle."), soft_wrap=True)
        return
    table = Table()
    for heading in ("", "what", a, b):
        table.add_column(Text(heading), overflow="fold")
    before = None
    for one in found:
        if before not in (None, one.topic):
            table.add_section()
        topic = "" if one.topic == before else one.topic
        share = not one.what.startswith("brier")
        table.add_row(*map(Text, (topic, one.what, shown(one.a, share), shown(one.b, share))))
        before = one.topic
    out.print(table)


def shown(value: Any, share: bool = True) -> str:
    """A value of any kind, as a person reads it. `share`: a figure is between 0 and 1."""
    if value is None:
        return NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        if "mean" in value:
            return _figure(value["mean"], value.get("interval"), share)
        return ", ".join(f"{key} {shown(item)}" for key, item in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value))
    return str(value)


def _figure(mean: float | None, interval: Sequence[float] | None, share: bool = True) -> str:
    if mean is None:
        return NOTHING
    if not interval:
        return f"{mean:.3f}"
    # a t-interval does not know that no figure is below 0, nor a share above 1
    low, high = max(0.0, interval[0]), min(1.0, interval[1]) if share else interval[1]
    return f"{mean:.3f} ({low:.3f} to {high:.3f})"
