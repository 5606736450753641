"""Figures of one arm's `explanations`: importance, and effects of the columns that matter most."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from wardround.report.explained.explained_tables import Content, content_link, ranked
from wardround.report.render.style import COLOURS, MARKERS, figure, name_rows, numbered_style, single_axes, tell

MOST_COLUMNS = 15
MOST_PANELS = 6
MOST_NAME = 24
SOFT = "#777777"


def importance_figure(content: Content) -> Figure | None:
    """Of all hospitals with its interval, and each hospital's as a faint dot."""
    if not content.get("whole"):
        return None
    shown = ranked(content["whole"]["importance"])[:MOST_COLUMNS]
    drawn, axes = single_axes(0.9 + 0.27 * len(shown))
    axes.axvline(0, color="black", linewidth=0.8)
    for place, (name, own) in enumerate(shown):
        for site, told in (content.get("hospitals") or {}).items():
            value = told["importance"][name]["increase"]
            (dot,) = axes.plot(value, place, "o", color=SOFT, alpha=0.4, markersize=3.5)
            tell(dot, f"{site}, {name}: {value:+.3f}")
        if own["interval"]:
            axes.plot(own["interval"], [place, place], color=COLOURS[0], linewidth=1.6)
        (mark,) = axes.plot(own["increase"], place, "D", color=COLOURS[0], markersize=5)
        tell(mark, f"{name}: {own['increase']:+.3f}")
    name_rows(axes, [short(name) for name, _ in shown])
    axes.set_xlabel("rise of the mean loss when the column is shuffled within each hospital")
    return drawn


def contributions_figure(table: pd.DataFrame, link: str) -> Figure:
    """Mean size of each column's contributions over rows, where there are no labels to compute a loss from."""
    sizes = table.assign(size=table["contribution"].abs()).groupby("column")["size"].mean().sort_values(ascending=False)
    shown = sizes.head(MOST_COLUMNS)
    drawn, axes = single_axes(0.9 + 0.27 * len(shown))
    axes.barh(range(len(shown)), shown.to_numpy(), color=COLOURS[0], height=0.6)
    name_rows(axes, [short(str(name)) for name in shown.index])
    axes.set_xlabel(f"mean size of the contribution, {link}")
    return drawn


def effects_figure(content: Content) -> Figure | None:
    """Effects of the columns that matter most. Of several outputs each has a line."""
    if not content.get("whole"):
        return None
    effects = content["whole"]["effects"]
    order = [name for name, _ in ranked(content["whole"]["importance"]) if name in effects][:MOST_PANELS]
    if not order:
        return None
    drawn = figure(0.4 + 1.9 * -(-len(order) // 3))
    panels = drawn.subplots(-(-len(order) // 3), 3, squeeze=False)
    for axes in panels.flat[len(order) :]:
        axes.set_visible(False)
    for name, axes in zip(order, panels.flat, strict=False):
        draw_effect(axes, effects[name], [own["effects"][name] for own in (content.get("hospitals") or {}).values()])
        axes.set_title(short(name), fontsize=9)
    for axes in panels[:, 0]:
        axes.set_ylabel(content_link(content), fontsize=7.5)
    if len(content["outputs"]) > 1:
        for number, output in enumerate(content["outputs"][: len(COLOURS)]):
            panels[0, 0].plot([], [], **numbered_style(number), label=str(output))
        drawn.legend(loc="outside lower center", ncols=4, fontsize=8)
    return drawn


def draw_effect(axes: Any, whole: Mapping[str, Any], of_hospitals: Sequence[Mapping[str, Any]]) -> None:
    for own in of_hospitals if len(whole["effect"]) == 1 else ():
        places, line = known_part(own, own["effect"][0])
        if whole["ordered"]:
            axes.plot(places, line, color=SOFT, alpha=0.35, linewidth=0.8)
        else:
            axes.plot(places, line, "o", color=SOFT, alpha=0.4, markersize=3)
    for number, effect in enumerate(whole["effect"][: len(COLOURS)]):
        places, line = known_part(whole, effect)
        if whole["ordered"]:
            axes.plot(places, line, **numbered_style(number), linewidth=1.8)
        else:
            marker = MARKERS[number % len(MARKERS)]
            axes.plot(places, line, marker, color=COLOURS[number], markersize=5)
    axes.axhline(0, color="black", linewidth=0.6)
    if not whole["ordered"]:
        names = [short(str(value), 10) for value in whole["values"]]
        turned = sum(map(len, names)) > 22
        axes.set_xticks(
            range(len(names)), names, fontsize=7, rotation=35 if turned else 0, ha="right" if turned else "center"
        )
    else:
        axes.set_xlabel("SD from the mean" if min(whole["values"]) < 0 else "share of its range", fontsize=7.5)


def known_part(own: Mapping[str, Any], effect: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """From the first bin with rows to the last: beyond them nothing is known."""
    line = np.asarray(effect, dtype=float)
    if not own["ordered"]:
        return np.arange(len(line)), line
    filled = np.flatnonzero(np.asarray(own["rows"]) > 0)
    if not len(filled):
        return np.zeros(0), np.zeros(0)
    part = slice(filled[0], filled[-1] + 2)
    return np.asarray(own["values"], dtype=float)[part], line[part]


def short(name: str, most: int = MOST_NAME) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"
