"""`wardround studies`: what ships with the product, and a copy of it to begin with."""

from pathlib import Path
from typing import Annotated

import typer

from wardround.cli import rendering as render
from wardround.cli.options import Json


def studies(
    copy: Annotated[
        str | None, typer.Option("--copy", metavar="NAME", help="Copy this study, with the files that it names.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="Where the copy is made.")] = Path("."),
    json: Json = False,
) -> None:
    """List the shipped studies, or copy one to change it."""
    import tomllib
    from importlib.resources import files

    folder = Path(str(files("wardround").joinpath("studies")))
    if copy is not None:
        from wardround.runs.catalog import copy_study

        study = copy_study(copy, out)
        line = f"Copied to {study}. Change it, then: wardround run {study}"
        render.show_either(json, {"study": study}, render.show_lines, [line])
        return
    # read without parsing, so that the list does not wait for torch
    listed = []
    for path in sorted(folder.glob("*.toml")):
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
        listed.append({"name": path.stem, "question": raw.get("question", ""), "quick": "quick" in raw})
    render.show_either(json, {"studies": listed}, render.show_studies, listed)
