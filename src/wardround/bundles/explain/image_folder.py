"""The folder of explained images: maps as numbers, overlays as PNG, one page."""

import base64
import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
from markupsafe import Markup
from matplotlib.figure import Figure

from wardround.bundles.build.assemble import plain_name
from wardround.bundles.explain.explained_images import ImageMaps
from wardround.bundles.explain.explanation_folder import ABOUT, PAGE, ROWS, page_of
from wardround.core.atomic_files import new_folder
from wardround.explain import METHODS
from wardround.report.explained.checks_table import checks_table
from wardround.report.render.overlays import Overlay, sheet
from wardround.report.render.style import STYLE, save_png

ON_PAGE, OF_SHEET = 24, 12  # images
TEMPLATE = "images.html.jinja"


def write_image_folder(
    parts: Sequence[ImageMaps], title: str, about: dict[str, Any], out: Path, synthetic: bool = False
) -> Path:
    """Of a bundle, or of each site of a run. It holds patients' images, and stays at the hospital. They are named by
    their numbers in the source."""
    table = pd.concat([maps.table() for maps in parts], ignore_index=True)
    checks = checks_table({maps.site: maps.checks for maps in parts})
    with new_folder(out) as folder:
        table.to_csv(folder / f"{ROWS}.csv", index=False)
        table.to_parquet(folder / f"{ROWS}.parquet", index=False)
        np.savez_compressed(folder / "maps.npz", **arrays_of(parts))
        (folder / f"{checks.name}.csv").write_text(checks.csv(), encoding="utf-8")
        (folder / "overlays").mkdir()
        on_page: list[Overlay] = []
        for maps in parts:
            overlays = overlays_of(maps)
            prefix = f"{plain_name(maps.site)}-" if maps.site else ""
            for row, output, overlay in zip(maps.row, maps.output, overlays, strict=True):
                save_png(drawn([overlay], synthetic), folder / "overlays" / f"{prefix}{row:05d}-{output:02d}.png")
            on_page += overlays[: max(1, ON_PAGE // len(parts))]
        sheets = [on_page[start : start + OF_SHEET] for start in range(0, len(on_page), OF_SHEET)]
        (folder / ABOUT).write_text(json.dumps(about, indent=2), encoding="utf-8")
        method = METHODS.get(parts[0].method)
        page = page_of(
            TEMPLATE,
            title=title,
            about=about,
            tables={checks.name: checks},
            failures=about["failed_checks"],
            checked=[checked_text(maps) for maps in parts],
            sheets=[Markup(picture(each, synthetic)) for each in sheets],
            shown=len(on_page),
            synthetic=synthetic,
            citation="" if method is None else method().citation,
        )
        (folder / PAGE).write_text(page, encoding="utf-8")
    return out


def arrays_of(parts: Sequence[ImageMaps]) -> dict[str, Any]:
    arrays: dict[str, Any] = {
        "maps": np.concatenate([maps.values for maps in parts]).astype(np.float32),
        "row": np.concatenate([maps.row for maps in parts]),
        "output": np.concatenate([maps.output for maps in parts]),
    }
    if parts[0].site:
        arrays["site"] = np.array([maps.site for maps in parts for _ in range(len(maps))])
    return arrays


def checked_text(maps: ImageMaps) -> str:
    rows, finding = maps.checks[0].rows, maps.outputs[maps.checked_output]
    where = f"{maps.site}: checked" if maps.site else "Checked"
    return f"{where} on {rows} image{'' if rows == 1 else 's'}, for {finding}."


def overlays_of(maps: ImageMaps) -> list[Overlay]:
    """The whole scale of a map is its own: its highest value is told in words."""
    heat, names, tops = maps.heat, maps.names(), maps.heat.max(axis=(1, 2))
    where = f"{maps.site}, " if maps.site else ""
    return [
        Overlay(
            maps.pixels[number],
            heat[number],
            f"{where}image {maps.row[number]}: {names[number].replace('_', ' ')}\n{score_text(maps, number)}",
            f"highest: {tops[number]:.2g}" if tops[number] > 0 else "shows nothing",
            [tuple(box[1:]) for box in maps.boxes if box[0] == number],
        )
        for number in range(len(maps))
    ]


def score_text(maps: ImageMaps, number: int) -> str:
    said = "" if maps.predicted[number] else ", not predicted"
    return f"score {maps.score[number]:+.2f}{said}"


def drawn(overlays: Sequence[Overlay], synthetic: bool) -> Figure:
    with mpl.rc_context(STYLE):
        return sheet(overlays, synthetic)


def picture(overlays: Sequence[Overlay], synthetic: bool) -> str:
    """An image of the page; `alt` says what it shows."""
    content = BytesIO()
    figure = drawn(overlays, synthetic)
    figure.savefig(content, format="png", dpi=110)
    told = "; ".join(overlay.title.replace("\n", ", ") for overlay in overlays)
    data = base64.b64encode(content.getvalue()).decode()
    return f'<img src="data:image/png;base64,{data}" alt="{told}" style="max-width:100%;height:auto">'
