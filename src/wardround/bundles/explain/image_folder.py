"""The folder of explained images: maps as numbers, overlays as PNG, one page."""

import base64
import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure

from wardround.bundles.explain.explained_images import ImageMaps
from wardround.bundles.explain.explanation_folder import ABOUT, PAGE, ROWS, page_of
from wardround.core.atomic_files import new_folder
from wardround.explain import METHODS
from wardround.report.explained.checks_table import checks_table, failures
from wardround.report.render.overlays import Overlay, sheet
from wardround.report.render.style import STYLE, save_png

ON_PAGE, OF_SHEET = 24, 12  # images
TEMPLATE = "images.html.jinja"


def write_image_folder(maps: ImageMaps, title: str, about: dict[str, Any], out: Path) -> Path:
    """It holds patients' images, and stays at the hospital. They are named by their numbers in the source."""
    table, checks = maps.table(), checks_table(maps.checks)
    with new_folder(out) as folder:
        table.to_csv(folder / f"{ROWS}.csv", index=False)
        table.to_parquet(folder / f"{ROWS}.parquet", index=False)
        np.savez_compressed(folder / "maps.npz", maps=maps.values.astype(np.float32), row=maps.row, output=maps.output)
        (folder / f"{checks.name}.csv").write_text(checks.csv(), encoding="utf-8")
        overlays = overlays_of(maps)
        (folder / "overlays").mkdir()
        for number, overlay in enumerate(overlays):
            name = f"{maps.row[number]:05d}-{maps.output[number]:02d}.png"
            save_sheet([overlay], folder / "overlays" / name)
        sheets = [overlays[start : start + OF_SHEET] for start in range(0, min(len(overlays), ON_PAGE), OF_SHEET)]
        (folder / ABOUT).write_text(json.dumps(about, indent=2), encoding="utf-8")
        method = METHODS.get(maps.method)
        page = page_of(
            TEMPLATE,
            title=title,
            about=about,
            tables={checks.name: checks},
            failures=failures(maps.checks),
            sheets=[Markup(picture(each)) for each in sheets],
            shown=min(len(overlays), ON_PAGE),
            citation="" if method is None else method().citation,
        )
        (folder / PAGE).write_text(page, encoding="utf-8")
    return out


def overlays_of(maps: ImageMaps) -> list[Overlay]:
    """The whole scale of a map is its own: its highest value is told in words."""
    heat, names, tops = maps.heat, maps.names(), maps.heat.max(axis=(1, 2))
    return [
        Overlay(
            maps.pixels[number],
            heat[number],
            f"image {maps.row[number]}: {names[number].replace('_', ' ')}\n{score_text(maps, number)}",
            f"highest: {tops[number]:.2g}" if tops[number] > 0 else "shows nothing",
        )
        for number in range(len(maps))
    ]


def score_text(maps: ImageMaps, number: int) -> str:
    said = "" if maps.predicted[number] else ", not predicted"
    return f"score {maps.score[number]:+.2f}{said}"


def save_sheet(overlays: Sequence[Overlay], path: Path) -> None:
    save_png(drawn(overlays), path)


def drawn(overlays: Sequence[Overlay]) -> Figure:
    with mpl.rc_context(STYLE):
        return sheet(overlays)


def picture(overlays: Sequence[Overlay]) -> str:
    """An image of the page; `alt` says what it shows."""
    content = BytesIO()
    figure = drawn(overlays)
    figure.savefig(content, format="png", dpi=110)
    told = "; ".join(overlay.title.replace("\n", ", ") for overlay in overlays)
    data = base64.b64encode(content.getvalue()).decode()
    return f'<img src="data:image/png;base64,{data}" alt="{told}" style="max-width:100%;height:auto">'
