"""Radiographs with what an explanation shows in them, readable in grey and with any kind of colour vision.

What is shown is told twice: by a colour that grows denser, and by a line around all that is at least half as high as
the highest. Boxes that were drawn around a finding are dashed. The image itself stands beside it, untouched.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.patheffects import Normal, Stroke

from wardround.report.render.style import STYLE, WIDTH

HEAT, BOX = "#D55E00", "#56B4E9"  # vermilion and sky blue of Okabe and Ito
DENSEST = 0.75  # opacity of the highest value: the image stays visible below it
HALF = 0.5  # of the highest value: where the line runs
PAIRS = 3  # in a line of a sheet
PICTURE, GAP, HEAD, FOOT, KEY = 1.28, 0.06, 0.30, 0.18, 0.62  # inches
COLOURS = LinearSegmentedColormap.from_list(
    "heat", [(*mpl.colors.to_rgb(HEAT), 0.0), (*mpl.colors.to_rgb(HEAT), DENSEST)]
)


@dataclass(frozen=True, eq=False)
class Overlay:
    """One image and what raises one of its scores."""

    image: np.ndarray  # (height, width) of grey values
    heat: np.ndarray  # (height, width), 0 and above
    title: str
    highest: str = ""  # the highest value of the map as it was given, with its unit
    boxes: Sequence[tuple[float, float, float, float]] = ()  # x, y, width and height in parts of the image


def sheet(overlays: Sequence[Overlay], synthetic: bool = False) -> Figure:
    """Pairs of an image and the same image with its map, and a key that states the scale."""
    across = min(PAIRS, max(1, len(overlays)))
    lines = -(-len(overlays) // across)
    marked = any(overlay.boxes for overlay in overlays)
    width = WIDTH
    pair = width / PAIRS
    top = 0.24 if synthetic else 0.04
    height = top + lines * (HEAD + PICTURE + FOOT) + KEY
    drawn = Figure(figsize=(width, height))
    if synthetic:  # in the picture itself, which may end up on a slide
        drawn.text(0.1 / width, 1 - 0.05 / height, "SYNTHETIC: no patient", fontsize=9, color="#a33c00", va="top")
    for number, overlay in enumerate(overlays):
        line, place = divmod(number, across)
        left, upper = 0.1 + place * pair, height - top - line * (HEAD + PICTURE + FOOT)
        drawn.text(left / width, (upper - 0.04) / height, overlay.title, fontsize=7.5, va="top")
        bottom = upper - HEAD - PICTURE
        for column, with_heat in enumerate((False, True)):
            x = left + column * (PICTURE + GAP)
            axes = drawn.add_axes((x / width, bottom / height, PICTURE / width, PICTURE / height))
            draw(axes, overlay, with_heat)
            for layer, image in enumerate(axes.get_images()):  # the same picture twice would have the same id in a page
                image.set_gid(f"picture-{number}-{column}-{layer}")
        if overlay.highest:
            x = left + PICTURE + GAP
            drawn.text(x / width, (bottom - 0.03) / height, overlay.highest, fontsize=6.5, va="top")
    _key(drawn, marked)
    return drawn


def draw(axes: Any, overlay: Overlay, with_heat: bool) -> None:
    axes.set_axis_off()
    axes.imshow(overlay.image, cmap="gray", vmin=0, vmax=255, interpolation="none")
    height, width = overlay.image.shape
    highest = float(overlay.heat.max(initial=0))
    if with_heat and highest > 0:
        relative = overlay.heat / highest
        axes.imshow(relative, cmap=COLOURS, vmin=0, vmax=1, interpolation="bilinear")
        if relative.min() < HALF:
            outline = axes.contour(relative, levels=[HALF], colors="white", linewidths=1.1)
            outline.set_path_effects([Stroke(linewidth=2.2, foreground="black"), Normal()])
    for x, y, wide, tall in overlay.boxes:
        corner = (x * width - 0.5, y * height - 0.5)
        for colour, thick, dashes in (("black", 2.4, "-"), (BOX, 1.3, (0, (4, 2)))):
            axes.add_patch(
                Rectangle(corner, wide * width, tall * height, fill=False, edgecolor=colour, linewidth=thick,
                          linestyle=dashes)
            )  # fmt: skip
    axes.set_xlim(-0.5, width - 0.5)
    axes.set_ylim(height - 0.5, -0.5)


def _key(drawn: Figure, marked: bool) -> None:
    """What colour, line and box mean."""
    width, height = drawn.get_size_inches()
    with mpl.rc_context({**STYLE, "axes.grid": False}):
        axes = drawn.add_axes((0.1 / width, 0.34 / height, 1.6 / width, 0.11 / height))
        axes.imshow(np.full((1, 2, 3), 0.55), extent=(0, 1, 0, 1), aspect="auto")
        axes.imshow(np.linspace(0, 1, 128)[None], cmap=COLOURS, extent=(0, 1, 0, 1), aspect="auto")
        axes.set_yticks([])
        axes.set_xticks([0, 0.5, 1], ["0", "half", "highest of this map"], fontsize=6.5)
        axes.tick_params(length=2, pad=1)
    handles: list[Any] = [
        Line2D([], [], color="white", linewidth=1.3, path_effects=[Stroke(linewidth=2.4, foreground="black"), Normal()])
    ]
    texts = ["at least half of the highest value"]
    if marked:
        handles.append(Patch(facecolor="none", edgecolor=BOX, linestyle=(0, (4, 2)), linewidth=1.3))
        texts.append("box drawn around the finding")
    drawn.legend(
        handles,
        texts,
        loc="lower left",
        bbox_to_anchor=(2.65 / width, 0.12 / height),
        ncols=2,
        fontsize=7,
        frameon=False,
    )
