"""What verbs show, as text for people or JSON for machines. Only `render` and `render_run` print."""

import json
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec

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

KEEP_HEAD = "Keep the head elsewhere: with --head it shows whether lines were cut off at the end."
INTERRUPTED = 130  # exit code after Ctrl-C, as shells have it
LOOKED_FOR = (
    "for leaks of two kinds: patients or copies of rows in both training and test [leak, shared-rows, copies], and "
    "single columns that tell the outcome [target-leak]. Not seen: columns that tell it only together or in part, any "
    "column where fewer than 21 rows are of the rarer class, and what images tell."
)
HETEROGENEITY = {"js": "label JS", "kl": "label KL", "mmd": "feature MMD", "gini": "Gini of sizes"}
MOST_SITES = 12  # a table of more is not readable in a terminal; results.json has them all

Arguments = ParamSpec("Arguments")
OK = Text("ok", style="green")
STYLES = {"error": "red", "warning": "yellow", "info": ""}  # of notices, by severity


def console() -> Console:
    # a pipe or a log has no width of its own; 120 keeps tables whole there
    return Console(width=None if sys.stdout.isatty() else 120, highlight=False)


def stderr_console() -> Console:
    return Console(stderr=True, highlight=False, soft_wrap=True)


def show_json(content: Any, compact: bool = False) -> None:
    sys.stdout.write(json.dumps(_plain(content), indent=None if compact else 2, allow_nan=False) + "\n")


def show_either(
    as_json: bool, content: Any, show: Callable[Arguments, None], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> None:
    """The content as JSON for machines, or what `show` shows of its arguments to people."""
    if as_json:
        show_json(content)
    else:
        show(*args, **kwargs)


def show_lines(lines: Iterable[str], style: str = "", out: Console | None = None) -> None:
    """Each as it stands: square brackets are no markup, and long lines are left to the terminal."""
    out = console() if out is None else out
    for line in lines:
        out.print(Text(line, style=style), soft_wrap=True)


def table_of(
    columns: Iterable[str],
    rows: Iterable[Iterable[str | Text]],
    right: Container[str] = (),
    title: str | Text | None = None,
    title_style: str | None = "bold",
    no_wrap: bool = False,
) -> Table:
    """`right` names the columns that are aligned there."""
    table = Table(title=title, title_justify="left", title_style=title_style)
    for column in columns:
        table.add_column(Text(column), justify="right" if column in right else "left", no_wrap=no_wrap)
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in row))
    return table


def warn(message: str) -> None:
    stderr_console().print(Text(message, style="yellow"))


def stopped(folder: Path) -> Exception:
    """After Ctrl-C: what state the run is in, and the exit that goes with it."""
    from typer import Exit

    warn(f"Stopped. What was done is kept. Go on with:\n  wardround resume {folder}")
    return Exit(INTERRUPTED)


def unreported(folder: Path) -> Exception:
    """After Ctrl-C while the report was made."""
    from typer import Exit

    warn(f"Stopped while the report was made. The run is complete. Make its report with:\n  wardround report {folder}")
    return Exit(INTERRUPTED)


def show_error(error: WardroundError, as_json: bool) -> None:
    if as_json:
        content = {"where": error.where, "problem": error.problem, "remedy": error.remedy, "exit_code": error.exit_code}
        notice = getattr(error, "notice", None)  # of a check that failed, or of a site that left
        show_json({"error": content if notice is None else {**content, "notice": notice.to_json()}})
    else:
        stderr_console().print(Text(f"Error: {error}", style="red"))


@contextmanager
def progress_bar(shown: bool, unit: str = "rounds") -> Iterator[Callable[["Progress"], None] | None]:
    with _bar(shown, unit) as update:
        yield None if update is None else lambda progress: update(progress.title, progress.done, progress.total)


@contextmanager
def report_bar(shown: bool) -> Iterator[Callable[[int, int], None] | None]:
    with _bar(shown, "figures") as update:
        yield None if update is None else lambda done, total: update("report", done, total)


@contextmanager
def _bar(shown: bool, unit: str) -> Iterator[Callable[[str, int, int], None] | None]:
    if not shown:
        yield None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("{task.description:<34.34}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
    )
    bar = Bar(*columns, console=Console(stderr=True))
    task = bar.add_task("", total=None)

    def show(title: str, done: int, total: int) -> None:
        bar.start()  # only now, so that a study that is refused shows its error and nothing else
        bar.update(task, description=title, completed=done, total=total)

    try:
        yield show
    finally:
        if bar.live.is_started:
            bar.stop()


def show_notices(out: Console, notices: Sequence["Notice"]) -> None:
    """What sites, arms or columns have in common is said once."""
    from wardround.core.notices import grouped, remedy_of

    for members, line in grouped(notices):
        first = members[0]
        text = f"{first.severity:<8} {line} [{first.code}]"
        out.print(Text(text, style=STYLES[first.severity]), soft_wrap=True)
        if first.severity == "error":
            out.print(Text(f"         {remedy_of(first)}"), soft_wrap=True)


def show_check(
    study: "Study",
    of_source: Sequence["Notice"],
    notices: Sequence["Notice"],
    sites: Sequence[Mapping[str, Any]],
    kinds: Sequence["Kind"],
    started: Mapping[str, Any],
    trainings: Mapping[str, int],
) -> None:
    from wardround.core.notices import lines_of

    out = console()
    _show_contents(out, study)
    _show_trainings(out, study, trainings)
    for described in sites:
        out.print(_sites_of(described))
        known = {key: value for key, value in described["heterogeneity"].items() if value is not None}
        words = [f"{label} {known[key]:.3f}" for key, label in HETEROGENEITY.items() if key in known]
        out.print("Between sites, on average: " + ", ".join(words))
    _show_start(started)
    show_lines(f"note     {line}" for line in lines_of(of_source))
    show_notices(out, notices)
    show_lines([f"looked   {LOOKED_FOR}"])
    refused = sum(notice.severity == "error" for notice in notices)
    count = f"{refused} error{'s' if refused != 1 else ''}"
    out.print(f"{count}: this study would be refused." if refused else "Ready to run.")
    _show_times(kinds)


def _show_contents(out: Console, study: "Study") -> None:
    out.print(Text(f"{study.name} ({study.hash[:8]})", style="bold"), Text(f" {study.question}"))
    if study.arms:
        arms = ", ".join(arm.name for arm in study.arms)
        out.print(f"{len(study.arms)} arms x {study.evaluation.seeds.count} seeds: {arms}", markup=False)
    if study.analyses:
        out.print(f"Analyses: {', '.join(chosen.name for chosen in study.analyses)}", markup=False)


def _show_times(kinds: Sequence["Kind"]) -> None:
    show_lines(
        f"time     {kind.title} and its like: rounds of {kind.seconds:.2g} s, {kind.rounds} of them, "
        f"{_duration(kind.total)}"
        for kind in kinds
    )
    if kinds:
        total = _duration(sum(kind.total for kind in kinds))
        show_lines([f"Training would take about {total} here, by a few rounds of each kind; results come on top."])


def _show_trainings(out: Console, study: "Study", counts: Mapping[str, int]) -> None:
    """How many trainings a run is, where it is more than arms x seeds."""
    if study.tuning is not None:
        out.print(
            f"{counts['tried'] + counts['compared']:,} trainings: {counts['tried']:,} try settings "
            f"({study.tuning.method}, {counts['rounds_tried']:,} rounds), then {counts['compared']:,} are compared.",
            markup=False,
        )
    if counts["coalitions"]:
        out.print(f"{counts['coalitions']:,} trainings of some of the hospitals show what each adds.", markup=False)


def _show_start(started: Mapping[str, Any]) -> None:
    """Arms that go on from a trained model, as `start_from` of results.json has them."""
    if started:
        from wardround.report.sections.forgetting import start_lines

        show_lines(f"start    {line}" for line in start_lines(started))


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
    subsets = ("train", "validation", "test")
    numbers = [*subsets, *(f"{name}, all rows" for name in shown)]
    rows = [
        [name, *map(str, (*(counts[subset] for subset in subsets), *(counts["classes"][c] for c in shown)))]
        for name, counts in list(described["sites"].items())[: 3 * MOST_SITES]
    ]
    left_out = (
        ""
        if len(rows) == len(described["sites"])
        else f"; {len(rows)} of {len(described['sites'])} are shown, all with --json"
    )
    return table_of(["site", *numbers], rows, numbers, Text(f"Sites ({words}), first seed{left_out}"))


def show_studies(listed: Sequence[Mapping[str, Any]]) -> None:
    rows = [[study["name"], study["question"], "yes" if study["quick"] else "no"] for study in listed]
    console().print(table_of(("name", "question", "--quick"), rows, title="Shipped studies (wardround run NAME)"))


def show_members(listed: Mapping[str, Mapping[str, Any]]) -> None:
    out = console()
    for family, members in listed.items():
        table = table_of(("name", "setting", "type", "default"), (), title=family.capitalize())
        for name, settings in members.items():
            rows = [
                (key, s["type"], "required" if s["required"] else "–" if s["default"] is None else str(s["default"]))
                for key, s in settings.items()
            ]
            for number, row in enumerate(rows or [("", "", "")]):
                table.add_row("" if number else name, *map(Text, row))
            table.add_section()
        out.print(table)


def show_described(described: Mapping[str, Any]) -> None:
    out = console()
    out.print(Text(f"{described['name']}: {described['rows']} rows", style="bold"))
    show_lines(f"note: {line}" for line in described.get("summary", ()))
    for notice in described["notices"]:
        is_problem = notice["severity"] != "info"
        show_lines([f"{'problem' if is_problem else 'note'}: {notice['text']}"], "red" if is_problem else "")
    headings = list(dict.fromkeys(key for column in described["columns"] for key in column))
    rows = [[_cell(column.get(heading)) for heading in headings] for column in described["columns"]]
    out.print(table_of(headings, rows, right={*headings} - {"name", "type", "problems"}))


def _cell(value: Any) -> str:
    if value is None or value != value:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def show_files(folder: Path, files: Mapping[str, int]) -> None:
    rows = [(name, str(count)) for name, count in files.items()]
    console().print(table_of(("file", "rows"), rows, ("rows",), f"Written to {folder}"))


def show_audit(file: str, audit: "Audit", changed: Sequence[str]) -> None:
    if audit.broken:
        show_lines([f"{file}: {audit.broken}"], "red")
        before = f"{audit.entries} entries before it are in order; the last of them has the hash {audit.head}"
        console().print(before)
    else:
        show_lines([f"{file}: {audit.entries} entries, each as it was written", f"head {audit.head}", KEEP_HEAD])
    show_lines(changed, "red")


def show_machine(conditions: Sequence["Condition"], extras: Sequence["Extra"], rules: Mapping[str, str]) -> None:
    """No study needs every extra, so that a missing one is no fault."""
    rows = [
        (
            OK if condition.ok else Text("missing", style="red") if condition.needed else "–",
            condition.name,
            condition.state,
            "" if condition.ok else condition.remedy,
        )
        for condition in conditions
    ]
    console().print(table_of(("", "what", "found", "to do"), rows))
    rows = [(OK if extra.installed else "–", extra.name, extra.purpose, extra.remedy) for extra in extras]
    console().print(table_of(("", "extra", "what it is for", "to do"), rows, title="Extras", title_style=None))
    title = "Rules of disclosure: what does not leave a hospital"
    console().print(table_of(("rule", "forbids"), list(rules.items()), title=title, title_style=None))


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
