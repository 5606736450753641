"""`wardround studies`: what ships with the product."""

from wardround.cli.options import Json


def studies(json: Json = False) -> None:
    """List the shipped studies."""
    import tomllib
    from importlib.resources import files
    from pathlib import Path

    from wardround.cli import render

    # read without parsing, so that the list does not wait for torch
    folder = Path(str(files("wardround").joinpath("studies")))
    listed = []
    for path in sorted(folder.glob("*.toml")):
        raw = tomllib.loads(path.read_text(encoding="utf-8"))
        listed.append({"name": path.stem, "question": raw.get("question", ""), "quick": "quick" in raw})
    if json:
        render.show_json({"studies": listed})
    else:
        render.show_studies(listed)
