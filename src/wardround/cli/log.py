"""`wardround log`: whether an audit log is as it was written."""

from pathlib import Path
from typing import Annotated

import typer

from wardround.cli.options import Json

app = typer.Typer(help="Audit logs: hash-chained, so that a change shows.", no_args_is_help=True)


@app.command("verify")
def verify(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="An audit log, or a run folder.")],
    head: Annotated[
        str | None, typer.Option("--head", metavar="HASH", help="A head that was kept elsewhere; shows a cut tail.")
    ] = None,
    json: Json = False,
) -> None:
    """Check every line of an audit log, and the run's files beside it. Exit code 6 if any was changed."""
    from wardround.artifacts.audit import changed_files
    from wardround.artifacts.audit import verify as verify_log
    from wardround.cli import render
    from wardround.errors import RunError

    file = file / "audit.jsonl" if file.is_dir() else file
    found = verify_log(file, head)
    files = [] if found.broken else changed_files(file)
    if json:
        shown = {"file": str(file), "entries": found.entries, "head": found.head, "broken": found.broken}
        render.show_json({**shown, "changed_files": files})
    else:
        render.show_audit(str(file), found, files)
    if found.broken or files:
        raise typer.Exit(RunError.exit_code)
