"""What verbs show, as text for people or JSON for machines. Only `render` and `render_run` print."""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from wardround.core.errors import WardroundError

if TYPE_CHECKING:
    from wardround.core.extras import Extra
    from wardround.core.health import Condition
    from wardround.core.notices import Notice
    from wardround.runs.audit import Audit
    from wardround.runs.execute import Progress
    from wardround.runs.units import Kind
    from wardround.study.schema import Study

INTERRUPTED = 130  # exit code after Ctrl-C, as shells have it
LOOKED_FOR = (
    "for leaks of two kinds: patients or copies of rows in both training and test [leak, shared-rows, copies], and "
    "single columns that tell the outcome [target-leak]. Not seen: columns that tell it only together or in part, any "
    "column where fewer than 21 rows are of the rarer class, and what images tell."
)
MOST_SITES = 12  # a table of more is not readable in a terminal; results.json has them all

STYLES = {"error": "red", "warning": "yellow", "info": ""}  # of notices, by severity


def console() -> Console:
    # a pipe or a log has no width of its own; 120 keeps tables whole there
    return Console(width=None if sys.stdout.isatty() else 120, highlight=False)


def show_json(content: Any, compact: bool = False) -> None:
    sys.stdout.write(json.dumps(_plain(content), indent=None if compact else 2, allow_nan=False) + "\n")


def warn(message: str) -> None:
    Console(stderr=True, highlight=False, soft_wrap=True).print(Text(message, style="yellow"))


def stopped(folder: Path) -> Exception:
    """After Ctrl-C: what state the run is in, and the exit that goes with it."""
    from typer import Exit

    warn(f"Stopped. What was done is kept. Go on with:\n  wardround resume {folder}")
    return Exit(INTERRUPTED)


def show_error(error: WardroundError, as_json: bool) -> None:
    if as_json:
        content = {"where": error.where, "problem": error.problem, "remedy": error.remedy, "exit_code": error.exit_code}
        notice = getattr(error, "notice", None)  # of a check that failed, or of a site that left
        show_json({"error": content if notice is None else {**content, "notice": notice.to_json()}})
    else:
        Console(stderr=True, highlight=False, soft_wrap=True).print(Text(f"Error: {error}", style="red"))


@contextmanager
def progress_bar(shown: bool) -> Iterator[Callable[["Progress"], None] | None]:
    if not shown:
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description:<34.34}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("rounds"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    bar = Bar(*columns, console=Console(stderr=True))
    task = bar.add_task("", total=None)

    def show(progress: "Progress") -> None:
        bar.start()  # only now, so that a study that is refused shows its error and nothing else
        bar.update(task, description=progress.title, completed=progress.done, total=progress.total)

    try:
        yield show
    finally:
        if bar.live.is_started:
            bar.stop()


def show_notices(out: Console, notices: Sequence["Notice"]) -> None:
    """What sites have in common is said once."""
    from wardround.core.notices import grouped, remedy_of

    for members, line in grouped(notices):
        first = members[0]
        text = f"{first.severity:<8} {line} [{first.code}]"
        out.print(Text(text, style=STYLES[first.severity]), soft_wrap=True)
        if first.severity == "error":
            out.print(Text(f"         {remedy_of(first)}"), soft_wrap=True)


def show_check(
    study: "Study", of_source: Sequence["Notice"], notices: Sequence["Notice"], sites: Sequence[Mapping[str, Any]]
) -> None:
    from wardround.core.notices import line_of

    out = console()
    seeds = study.evaluation.seeds
    out.print(Text(f"{study.name} ({study.hash[:8]})", style="bold"), Text(f" {study.question}"))
    out.print(
        f"{len(study.arms)} arms x {seeds.count} seeds: " + ", ".join(arm.name for arm in study.arms), markup=False
    )
    for described in sites:
        out.print(_sites_of(described))
        h = described["heterogeneity"]
        words = [
            f"{label} {h[key]:.3f}"
            for key, label in (
                ("js", "label JS"),
                ("kl", "label KL"),
                ("mmd", "feature MMD"),
                ("gini", "Gini of sizes"),
            )
            if h[key] is not None
        ]
        out.print("Between sites, on average: " + ", ".join(words))
    for notice in of_source:
        out.print(Text(f"note     {line_of(notice)}"), soft_wrap=True)
    show_notices(out, notices)
    out.print(Text(f"looked   {LOOKED_FOR}"), soft_wrap=True)
    refused = sum(notice.severity == "error" for notice in notices)
    count = f"{refused} error{'s' if refused != 1 else ''}"
    out.print(f"{count}: this study would be refused." if refused else "Ready to run.")


def show_estimate(kinds: Sequence["Kind"]) -> None:
    if not kinds:
        return
    out = console()
    for kind in kinds:
        line = (
            f"{kind.title} and its like: rounds of {kind.seconds:.2g} s, {kind.rounds} of them, {_duration(kind.total)}"
        )
        out.print(Text(f"time     {line}"), soft_wrap=True)
    total = _duration(sum(kind.total for kind in kinds))
    out.print(f"Training would take about {total} here, by a few rounds of each kind; results come on top.")


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _sites_of(described: Mapping[str, Any]) -> Table:
    classes = list(next(iter(described["sites"].values()))["classes"])
    shown = classes if len(classes) <= 10 else []
    chosen = {name: value for name, value in described["partition"].items() if name != "name"}
    words = ", ".join([described["partition"]["name"], *(f"{name} {value}" for name, value in chosen.items())])
    table = Table(title=Text(f"Sites ({words}), first seed"), title_justify="left", title_style="bold")
    for name in ("site", "train", "validation", "test", *(f"{c}, all rows" for c in shown)):
        table.add_column(Text(name), justify="left" if name == "site" else "right")
    for name, counts in list(described["sites"].items())[: 3 * MOST_SITES]:
        numbers = [counts["train"], counts["validation"], counts["test"], *(counts["classes"][c] for c in shown)]
        table.add_row(Text(name), *map(str, numbers))
    return table


def show_studies(listed: Sequence[Mapping[str, Any]]) -> None:
    table = Table(title="Shipped studies (wardround run NAME)", title_justify="left", title_style="bold")
    for name in ("name", "question", "--quick"):
        table.add_column(name)
    for study in listed:
        table.add_row(study["name"], study["question"], "yes" if study["quick"] else "no")
    console().print(table)


def show_copied(study: Path) -> None:
    console().print(f"Copied to {study}. Change it, then: wardround run {study}", soft_wrap=True)


def show_members(listed: Mapping[str, Mapping[str, Any]]) -> None:
    out = console()
    for family, members in listed.items():
        table = Table(title=family.capitalize(), title_justify="left", title_style="bold")
        for name in ("name", "setting", "type", "default"):
            table.add_column(name)
        for name, settings in members.items():
            rows = [
                (key, s["type"], "required" if s["required"] else _default(s["default"])) for key, s in settings.items()
            ]
            for number, row in enumerate(rows or [("", "", "")]):
                table.add_row("" if number else name, *map(Text, row))
            table.add_section()
        out.print(table)


def _default(value: Any) -> str:
    return "–" if value is None else str(value)


def show_described(described: Mapping[str, Any]) -> None:
    out = console()
    out.print(Text(f"{described['name']}: {described['rows']} rows", style="bold"))
    for line in described.get("summary", ()):
        out.print(Text(f"note: {line}"), soft_wrap=True)
    for notice in described["notices"]:
        is_problem = notice["severity"] != "info"
        text = f"{'problem' if is_problem else 'note'}: {notice['text']}"
        out.print(Text(text, style="red" if is_problem else ""), soft_wrap=True)
    table = Table()
    headings = list(dict.fromkeys(key for column in described["columns"] for key in column))
    for heading in headings:
        table.add_column(heading, justify="left" if heading in ("name", "type", "problems") else "right")
    for column in described["columns"]:
        table.add_row(*(Text(_cell(column.get(heading))) for heading in headings))
    out.print(table)


def _cell(value: Any) -> str:
    if value is None or value != value:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def show_files(folder: Path, files: Mapping[str, int]) -> None:
    table = Table(title=f"Written to {folder}", title_justify="left", title_style="bold")
    table.add_column("file")
    table.add_column("rows", justify="right")
    for name, rows in files.items():
        table.add_row(Text(name), str(rows))
    console().print(table)


def show_audit(file: str, audit: "Audit", changed: Sequence[str]) -> None:
    out = console()
    if audit.broken:
        out.print(Text(f"{file}: {audit.broken}", style="red"), soft_wrap=True)
        out.print(f"{audit.entries} entries before it are in order; the last of them has the hash {audit.head}")
    else:
        out.print(f"{file}: {audit.entries} entries, each as it was written", soft_wrap=True)
        out.print(f"head {audit.head}", soft_wrap=True)
        out.print("Keep the head elsewhere: with --head it shows whether lines were cut off at the end.")
    for problem in changed:
        out.print(Text(problem, style="red"), soft_wrap=True)


def show_conditions(conditions: Sequence["Condition"]) -> None:
    table = Table()
    for heading in ("", "what", "found", "to do"):
        table.add_column(heading)
    for condition in conditions:
        mark = (
            Text("ok", style="green")
            if condition.ok
            else Text("missing", style="red")
            if condition.needed
            else Text("–")
        )
        table.add_row(mark, condition.name, condition.state, "" if condition.ok else condition.remedy)
    console().print(table)


def show_extras(extras: Sequence["Extra"]) -> None:
    """None of them is needed by every study, so that a missing one is no fault."""
    table = Table(title="Extras", title_justify="left")
    for heading in ("", "extra", "what it is for", "to do"):
        table.add_column(heading)
    for extra in extras:
        mark = Text("ok", style="green") if extra.installed else Text("–")
        table.add_row(mark, extra.name, extra.purpose, Text(extra.remedy))  # square brackets are no markup here
    console().print(table)


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return _plain(asdict(value))
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return None
    return str(value) if isinstance(value, Path) else value
