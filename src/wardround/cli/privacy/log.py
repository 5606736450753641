"""`wardround log`: whether an audit log is as it was written."""

from pathlib import Path
from typing import Annotated

import typer

from wardround.cli import rendering as render
from wardround.cli.options import Json

app = typer.Typer(help="Audit logs: hash-chained, so that a change shows.", no_args_is_help=True)


@app.command("verify")
def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An audit log, or a run folder.")],
    head: Annotated[
        str | None, typer.Option("--head", metavar="HASH", help="A head that was kept elsewhere; shows a cut tail.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option("--against", metavar="FILE", help="The other end's log, which has heads of this one."),
    ] = None,
    json: Json = False,
) -> None:
    """Check every line of an audit log, and the run's files beside it. Exit code 6 if any was changed."""
    from wardround.core.errors import RunError
    from wardround.runs.audit import changed_files, heads_in
    from wardround.runs.audit import verify as verify_log

    file = file / "audit.jsonl" if file.is_dir() else file
    heads = [head] if head is not None else []
    result = verify_log(file, heads)
    if against is not None and not result.broken:
        other = against / "audit.jsonl" if against.is_dir() else against
        broken = verify_log(other).broken
        if broken:
            raise RunError(str(other), f"is not in order itself: {broken}", "Compare with a log that is.")
        known_heads = heads_in(other, file)
        if not known_heads:
            raise RunError(str(other), f"has no head of {file}", "Name the log of the other end of the same run.")
        result = verify_log(file, [*heads, *known_heads])
    files = [] if result.broken else changed_files(file)
    shown = {"file": file, "entries": result.entries, "head": result.head, "broken": result.broken}
    render.show_either(json, {**shown, "changed_files": files}, render.show_audit, str(file), result, files)
    if result.broken or files:
        raise typer.Exit(RunError.exit_code)
