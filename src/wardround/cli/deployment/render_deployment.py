"""Runs across hospitals in the terminal: who is connected, what is happening, and how it ended."""

import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text
from typer import Exit

from wardround.cli.rendering import INTERRUPTED, OK, console, show_either, show_json, show_lines, table_of, warn

if TYPE_CHECKING:
    from wardround.core.health import Condition
    from wardround.deployment import CoordinatorKit, Demo, Parity, Step
    from wardround.runs.ledger import Spent
    from wardround.study.schema import Study


Watch = Callable[["Step"], None]


def show_kit(kit: "CoordinatorKit", study: "Study", listen: str, shown: bool) -> None:
    from wardround.deployment.provisioning.kit import WARN_BEFORE

    if not shown:
        return
    out = console()
    out.print(f"{study.name} ({study.hash[:12]}) for {', '.join(kit.sites)}; sites connect to {listen}:{kit.port}")
    if kit.revoked:
        out.print(f"revoked: {', '.join(kit.revoked)}")
    if kit.days_left < WARN_BEFORE:
        out.print(f"The certificate ends in {kit.days_left} days: provision anew before that.", style="bold")


@contextmanager
def watching(shown: bool) -> Iterator[Watch]:
    """A progress bar and a table of sites on a terminal; lines elsewhere."""
    if not shown:
        yield lambda step: None
        return
    out = Console(stderr=True)
    if not out.is_terminal:
        yield progress_lines(plain_lines(shown), at_most_every=1)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    progress = Progress(*columns, console=out)
    task = progress.add_task("waiting for sites", total=None)
    with Live(Group(progress), console=out, refresh_per_second=4) as live:

        def watch(step: "Step") -> None:
            progress.update(task, description=step.title, completed=step.done, total=step.total or None)
            live.update(Group(_sites(step), progress))
            if step.line:
                live.console.print(Text(step.line))

        yield watch


def _sites(step: "Step") -> Table:
    table = Table("site", "now", box=None, pad_edge=False)
    for site, doing in step.sites.items():
        table.add_row(Text(site, style="bold"), Text(doing, style="red" if doing == "not connected" else ""))
    return table


def progress_lines(show_line: Callable[[str], None], at_most_every: float = 0.0) -> Watch:
    """Progress as lines, without repeats. `at_most_every` are seconds; missing sites are shown at once."""
    shown, when = "", 0.0

    def watch(step: "Step") -> None:
        nonlocal shown, when
        away = [site for site, doing in step.sites.items() if doing == "not connected"]
        missing = f"; not connected: {', '.join(away)}" if away else ""
        line = f"{step.title}: {step.done} of {step.total} rounds{missing}" if step.total else f"{step.title}{missing}"
        if step.line:
            show_line(step.line)
        if line != shown and time.monotonic() - when > (0 if missing else at_most_every):
            show_line(line)
            shown, when = line, time.monotonic()

    return watch


def stopped(folder: Path) -> Exception:
    """The exit after Ctrl-C, once the state of the run has been shown."""
    warn(f"Stopped. Every closed round is kept in {folder}, and the answers that had arrived.")
    warn("The same command goes on from there; sites may stay as they are.")
    return Exit(INTERRUPTED)


@contextmanager
def ends_on_request() -> Iterator[None]:
    """Treat SIGTERM, with which a service is stopped, as Ctrl-C."""

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def taking_part(kind: str, name: str, state: Path, as_json: bool) -> Iterator[Callable[[str], None]]:
    """Shows one line per event, with the time, as in a service's log, until it is stopped. `kind` is site or region."""

    def notice(line: str) -> None:
        now = time.strftime("%Y-%m-%d %H:%M:%S")
        if as_json:
            show_json({kind: name, "time": now, "line": line}, compact=True)
        else:
            show_lines([f"{now} {name}: {line}"])
        sys.stdout.flush()

    try:
        with ends_on_request():
            yield notice
    except KeyboardInterrupt:
        notice(f"stopped; what this {kind} knows is in {state}, and the same command goes on from there")


def show_preflight(site: str, conditions: Sequence["Condition"], as_json: bool, what: str = "site") -> None:
    """Exits with the code of a failed check if a necessary condition is not met."""
    from wardround.core.errors import CheckError

    passed = all(condition.ok for condition in conditions if condition.needed)
    content = {what: site, "ok": passed, "conditions": conditions}
    show_either(as_json, content, _show_conditions, f"{site}: nothing was sent", conditions)
    if not passed:
        raise Exit(CheckError.exit_code)


def _show_conditions(title: str, conditions: Sequence["Condition"]) -> None:
    marks = {True: OK, False: Text("no", style="bold red")}
    rows = [(marks[each.ok] if each.needed else "note", each.name, each.state) for each in conditions]
    console().print(table_of(("", "what", "found"), rows, title=title))
    show_lines(f"{each.name}: {each.remedy}" for each in conditions if not each.ok)


def plain_lines(shown: bool) -> Callable[[str], None]:
    out = Console(stderr=True)
    return lambda line: out.print(Text(line), soft_wrap=True) if shown else None


def show_demo(demo: "Demo", as_json: bool) -> None:
    parity = demo.parity
    if as_json:
        equal = {"equal": None} if parity is None else _parity(parity)
        spent = {row.site: {"epsilon": row.add_remove, "delta": row.delta, "rounds": row.rounds} for row in demo.spent}
        show_json({**equal, "spent": spent, "sites": demo.sites, "folder": demo.folder})
        return
    out = console()
    out.print(f"{len(demo.sites)} hospitals in processes of their own, TLS and a key for each")
    if parity is None:
        _show_spent(demo.spent)
    else:
        out.print(f"{parity.models} models")
        out.print(f"deployed   {parity.deployed}")
        out.print(f"simulated  {parity.simulated}")
        if parity.equal:
            out.print("deployed = simulated", style="bold green")
        else:
            out.print(f"deployed and simulated differ, by {parity.largest:.1e} at most", style="bold red")
    if demo.folder is not None:
        out.print(f"Everything is in {demo.folder}", soft_wrap=True)


def _parity(parity: "Parity") -> dict[str, Any]:
    return {
        "equal": parity.equal,
        "deployed": parity.deployed,
        "simulated": parity.simulated,
        "largest_difference": parity.largest,
        "models": parity.models,
    }


def _show_spent(spent: Sequence["Spent"]) -> None:
    table = Table("hospital", "epsilon", "delta", "rounds", title="Spent, by each hospital's own ledger")
    for row in spent:
        table.add_row(row.site, f"{row.add_remove:.3f}", f"{row.delta:g}", str(row.rounds))
    out = console()
    out.print(table)
    out.print(
        "The coordinator saw masked vectors and their sums. Noise comes from secrets that were destroyed, so that no "
        "simulation can repeat this run.",
        soft_wrap=True,
    )
