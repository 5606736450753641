"""`wardround demo`: four hospitals on this machine, each a process of its own."""

from pathlib import Path
from typing import Annotated

import typer

from wardround.cli.deployment.render_deployment import plain_lines, show_demo
from wardround.cli.options import Json


def demo(
    out: Annotated[
        Path | None, typer.Option("--out", metavar="DIR", help="Keep kits, sites and run there; else they are removed.")
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="With differential privacy for patients and a secure sum.")
    ] = False,
    json: Json = False,
) -> None:
    """Run a small study across four hospitals on this machine, with TLS and keys, and compare with a simulation."""
    from wardround.deployment.provisioning.kit_files import need_flower

    need_flower()  # before the imports below, which need parts of it
    from wardround.core.errors import DeployError
    from wardround.deployment import run_demo

    result = run_demo(out, plain_lines(shown=not json), private)
    show_demo(result, json)
    if result.parity is not None and not result.parity.equal:
        raise typer.Exit(DeployError.exit_code)
