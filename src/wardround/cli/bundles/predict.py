"""`wardround predict`: predictions of a bundle for the rows of a file, or for images.

Messages go to standard error, because predictions may go to standard output.
"""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from wardround.cli import rendering as render
from wardround.cli.options import Json
from wardround.cli.rendering import show_lines, stderr_console

if TYPE_CHECKING:
    from wardround.bundles import Progress, Summary

NOBODY_READS = 141  # exit code where the reader of a pipe has gone, as shells have it


@contextmanager
def rows_bar(shown: bool) -> Iterator[Callable[["Progress"], None] | None]:
    if not shown or not sys.stderr.isatty():
        yield None
        return
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    counts = TextColumn("{task.fields[rows]:,} rows, {task.fields[speed]:,.0f} per second")
    bar = Bar(BarColumn(), TaskProgressColumn(), counts, TimeElapsedColumn(), console=stderr_console(), transient=True)
    task = bar.add_task("", total=None, rows=0, speed=0.0)

    def show(done: "Progress") -> None:
        bar.start()  # only now, so that a file that is refused shows its error and nothing else
        total = None if done.share is None else 1.0
        bar.update(task, completed=done.share or 0.0, total=total, rows=done.rows, speed=done.rows / done.seconds)

    try:
        yield show
    finally:
        if bar.live.is_started:
            bar.stop()


@contextmanager
def quiet_when_nobody_reads() -> Iterator[None]:
    """`--out - | head` ends the pipe early, which is no defect."""
    from typer import Exit

    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else Python complains when it flushes
        raise Exit(NOBODY_READS) from None


def show_summary(summary: "Summary", out: str) -> None:
    console, where = stderr_console(), "standard output" if out == "-" else out
    speed = f"{summary.rows / summary.seconds:,.0f} rows per second"
    predicted = ", ".join(f"{name} {count:,}" for name, count in summary.predicted.items())
    absent = {party: f"{count:,} {_rows(count)}" for party, count in summary.absent.items() if count}
    lines = [
        f"{summary.rows:,} rows predicted in {summary.seconds:.1f} s ({speed}): {where}",
        *([f"Predicted: {predicted}"] if predicted else []),
        *(f"A stand-in took the place of {party} in {rows} (column `absent`)." for party, rows in absent.items()),
    ]
    show_lines(lines, out=console)
    _show_reasons(console, summary)
    show_lines((f"{name!r} is empty in every row." for name in summary.empty), "yellow", console)
    if summary.gaps:
        show_lines([f"Gaps were filled, as in training, in {summary.gaps:,} {_rows(summary.gaps)}."], out=console)


def _show_reasons(console: Console, summary: "Summary") -> None:
    """A row may have several reasons. Where the bundle refers, each of them refers."""
    from wardround.uncertainty.decision import TEXTS

    because = [f"  {count:,} {_rows(count)}: {TEXTS[code]}" for code, count in summary.reasons.items()]
    if summary.referred is not None:
        refer = f"Refer {summary.referred:,} of {summary.rows:,} {_rows(summary.rows)} to a clinician (column `refer`)"
        console.print(Text(f"{refer}, because (column `why`):" if because else f"{refer}."))
    elif because:
        console.print(Text("Look at these before you trust their predictions (column `why`):", style="yellow"))
    show_lines(because, "yellow", console)
    if not any((summary.out_of_distribution, summary.new_gaps, summary.unseen, summary.outside, summary.unscored)):
        console.print(Text("No row is far from the training rows or has a level or a gap that training did not have."))


def show_ready(name: str, identity: str, address: str) -> None:
    console = stderr_console()
    console.print(Text(f"{name} ({identity[:12]}) answers at {address}", style="bold"))
    console.print(Text(f"  POST {address}/predict   GET {address}/health   GET {address}/schema\nCtrl-C ends it."))


def _rows(count: int) -> str:
    return "row" if count == 1 else "rows"


def predict(
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="A bundle's folder, or a registry's DIR/NAME.")],
    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="A CSV (also .gz) or Parquet file; - for CSV from stdin. For images: a folder, a file, an .npz file, "
            "or a CSV that lists images.",
        ),
    ],
    out: Annotated[str, typer.Option("--out", metavar="FILE", help="A .csv or .parquet file; - for CSV to stdout.")],
    keep: Annotated[
        list[str] | None, typer.Option("--keep", metavar="COLUMN", help="Copy this column too. May be repeated.")
    ] = None,
    without: Annotated[
        list[str] | None,
        typer.Option("--without", metavar="PARTY", help="Use nothing that this party holds. May be repeated."),
    ] = None,
    refer_share: Annotated[
        float | None,
        typer.Option("--refer-share", metavar="SHARE", help="Refer so many of usual rows, in hundredths."),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain", help="Add the three columns that contributed most, or where in an image a finding is seen."
        ),
    ] = False,
    uncertainty: Annotated[
        bool, typer.Option("--uncertainty/--no-uncertainty", help="Intervals, sets and who is referred, or none.")
    ] = True,
    json: Json = False,
) -> None:
    """Predict every row of a file, in constant memory, and mark rows that are unlike the training rows."""
    from wardround.core.errors import StudyError

    if json and out == "-":
        raise StudyError("--json", "the predictions go to standard output already", "Name a file with --out.")
    from wardround.bundles import EXPLAIN, STEPS, PredictOptions, find_bundle, load_bundle, predict_file

    loaded = load_bundle(find_bundle(bundle))
    with rows_bar(shown=not json) as show, quiet_when_nobody_reads():
        options = PredictOptions(tuple(without or ()), uncertainty, refer_share)
        steps = (*STEPS, EXPLAIN) if explain else STEPS
        summary = predict_file(loaded, data, out, tuple(keep or ()), show, options, steps)
    render.show_either(json, {"bundle": loaded.id, "out": out, **vars(summary)}, show_summary, summary, out)
