"""`wardround serve`: a bundle's predictions over HTTP, for programs on this machine."""

from typing import Annotated

import typer

from wardround.cli import rendering as render
from wardround.cli.bundles.predict import show_ready


def serve(
    bundle: Annotated[str, typer.Argument(metavar="BUNDLE", help="A bundle's folder, or a registry's DIR/NAME.")],
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="0: any that is free.")] = 8000,
    host: Annotated[str, typer.Option("--host", help="An address of this machine.")] = "127.0.0.1",
    anyone: Annotated[
        bool, typer.Option("--anyone-may-connect", help="Allow a --host that other machines can reach.")
    ] = False,
) -> None:
    """Answer predictions over HTTP until Ctrl-C: POST /predict, GET /health, GET /schema."""
    from wardround.bundles import find_bundle, load_bundle
    from wardround.serving.serve import is_own
    from wardround.serving.serve import serve as answer

    loaded = load_bundle(find_bundle(bundle))
    if anyone and not is_own(host):
        render.warn("Other machines can connect. There is no password, and nothing is encrypted.")
    answer(loaded, host, port, anyone, lambda address: show_ready(loaded.name, loaded.id, address))
