"""`wardround runs`: which runs there are, and what came out."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wardround.cli import rendering as render
from wardround.cli.options import Json

if TYPE_CHECKING:
    from wardround.runs.listing import ListedRun

AGES = ((86400 * 60, 86400 * 30, "months"), (86400 * 2, 86400, "days"), (7200, 3600, "hours"), (120, 60, "minutes"))
UNITS = ("B", "KB", "MB", "GB")


def runs(
    folder: Annotated[Path, typer.Argument(metavar="[FOLDER]", help="Where runs were made.")] = Path("runs"),
    json: Json = False,
) -> None:
    """List runs with their question, answer, age and size, the latest first."""
    from wardround.runs.listing import list_runs

    found = list_runs(folder)
    render.show_either(json, {"folder": folder, "runs": found}, _show, found, folder)


def _show(found: "list[ListedRun]", folder: Path) -> None:
    if not found:
        render.show_lines([f"No run is in {folder}."])
        return
    rows = [
        (Path(run.folder).name, run.question, run.answer or "–", run.state, age(run.changed), size(run.bytes))
        for run in found
    ]
    columns = ("run", "question", "answer", "state", "when", "size")
    render.console().print(render.table_of(columns, rows, right=("size",)))


def age(changed: str, now: datetime | None = None) -> str:
    seconds = ((now or datetime.now(UTC)) - datetime.fromisoformat(changed)).total_seconds()
    for least, unit, word in AGES:
        if seconds >= least:
            return f"{seconds / unit:.0f} {word} ago"
    return "just now"


def size(count: float) -> str:
    for unit in UNITS[:-1]:
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} {UNITS[-1]}"
