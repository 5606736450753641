"""Arms that form a grid: a number of the partition against one of the algorithm."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from wardround.report.arms import Grid, read_grid
from wardround.report.evidence import ROLES, Evidence
from wardround.report.render.figures import Drawing
from wardround.report.render.style import COLOURS, MARKERS, bar, figure, heat, numbered_style, offset, single_axes
from wardround.report.render.table import Table, make_table
from wardround.report.section import Section

MOST_LINES = 24


def grid_table(evidence: Evidence) -> Table | None:
    grid, headline = read_grid(evidence), evidence.headline
    if grid is None:
        return None
    means = {name: evidence.figure(name)["mean"] for name in grid.cells.values()}
    rows = [[line, *(means.get(grid.arm(line, value) or "") for value in grid.values)] for line in grid.lines]
    columns = [headline.above(f"{grid.setting} {value:g}") for value in grid.values]
    return make_table(
        "grid",
        f"{headline.title} against {grid.setting}",
        {"arm": None, **dict.fromkeys(columns, headline.shown)},
        rows,
        "On all sites' test rows.",
    )


def grid_map(evidence: Evidence) -> Figure | None:
    grid, headline = _drawn_grid(evidence), evidence.headline
    if grid is None or len(grid.lines) < 2:
        return None
    values = headline.scale * _values(grid, {name: evidence.figure(name)["mean"] for name in grid.cells.values()})
    height, width = 1.0 + 0.28 * len(grid.lines), 1.8 + min(5.4, 0.95 * len(grid.values) + 0.9)
    drawn, axes = single_axes(height, width)
    image = heat(axes, values, lambda value: headline.shown(value / headline.scale), grid.lines, _ticks(grid))
    axes.set_xlabel(grid.setting)
    drawn.colorbar(image, ax=axes, label=f"test {headline.word}{headline.unit}")
    return drawn


def grid_sides(evidence: Evidence) -> Figure | None:
    """Training, validation and test rows after the last round: the figure above, the loss below."""
    grid, headline = _drawn_grid(evidence), evidence.curve_headline
    if grid is None or len(grid.lines) < 2:
        return None
    arms = list(grid.cells.values())
    roles = [role for role in ROLES if any(evidence.last(arm, f"{role}_loss") is not None for arm in arms)]
    if len(roles) < 2:
        return None
    drawn = figure(1.0 + 2 * (0.45 + 0.23 * len(grid.lines)))
    panels = drawn.subplots(2, len(roles), sharex=True, sharey=True, squeeze=False)
    kinds = (
        (headline.metric, f"{headline.word}{headline.unit}", "cividis", headline.shown),
        ("loss", "loss", "cividis_r", "{:.2f}".format),
    )
    for line, (metric, word, cmap, shown) in zip(panels, kinds, strict=True):
        for axes, role in zip(line, roles, strict=True):
            values = _values(grid, {arm: evidence.last(arm, f"{role}_{metric}") for arm in arms})
            heat(axes, values, shown, grid.lines, _ticks(grid), cmap)
            axes.set_title(f"{role} {word}", fontsize=9)
    for axes in panels[-1]:
        axes.set_xlabel(grid.setting)
    return drawn


def grid_lines(evidence: Evidence) -> Figure | None:
    """Left: over the partition's number, a line for each of the algorithm's. Right: the other way round."""
    grid, headline = _drawn_grid(evidence), evidence.headline
    if grid is None:
        return None
    both = len(grid.numbers) > 1
    foot = max(-(-len(grid.lines) // 2), -(-len(grid.values) // 2)) if both else -(-len(grid.lines) // 3)
    drawn = figure(2.9 + 0.19 * foot)
    panels = drawn.subplots(1, 2 if both else 1, sharey=True, squeeze=False)[0]
    lines = {line: [grid.arm(line, value) for value in grid.values] for line in grid.lines}
    _draw_lines(evidence, panels[0], lines, _ticks(grid), 2 if both else 3)
    panels[0].set(xlabel=grid.setting, ylabel=f"test {headline.word}{headline.unit}")
    if both:
        columns = sorted(grid.lines, key=lambda line: line not in grid.numbers)
        names = [f"{grid.numbers[line]:g}" if line in grid.numbers else line for line in columns]
        lines = {f"{grid.setting} {value:g}": [grid.arm(line, value) for line in columns] for value in grid.values}
        _draw_lines(evidence, panels[1], lines, names, 2, len(grid.numbers))
        panels[1].set_xlabel(str(grid.own))
    return drawn


def _draw_lines(
    evidence: Evidence,
    axes: Any,
    lines: Mapping[str, list[str | None]],
    ticks: list[str],
    columns: int,
    joined: int | None = None,
) -> None:
    """`joined` points are joined by a line; those after them have no order and stand alone."""
    headline = evidence.headline
    scale = headline.scale
    for number, (title, arms) in enumerate(lines.items()):
        colour, mark = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        aside = offset(number, len(lines), 0.3)
        points = {place + aside: None if arm is None else evidence.figure(arm) for place, arm in enumerate(arms)}
        means = [np.nan if f is None or f["mean"] is None else scale * f["mean"] for f in points.values()]
        if len(means[:joined]) > 2:  # two points are no trend
            axes.plot(list(points)[:joined], means[:joined], linewidth=1, **numbered_style(number))
        known = {place: figures for place, figures in points.items() if figures is not None}
        for place, figures in known.items():
            label = title if place == next(iter(known)) else None
            bar(axes, figures, place, headline, colour, mark, label, upright=True, thin=True, told=title)
    turned = sum(map(len, ticks)) > 30
    axes.set_xticks(range(len(ticks)), ticks, rotation=35 if turned else 0, ha="right" if turned else "center")
    below = (0.5, -0.34 if turned else -0.17)
    axes.legend(loc="upper center", bbox_to_anchor=below, ncols=columns, fontsize=8, columnspacing=1)


def _drawn_grid(evidence: Evidence) -> Grid | None:
    grid = read_grid(evidence)
    return grid if grid is not None and len(grid.lines) <= MOST_LINES else None


def _values(grid: Grid, of_arm: dict[str, float | None]) -> np.ndarray:
    cells = [[of_arm.get(grid.arm(line, value) or "") for value in grid.values] for line in grid.lines]
    return np.array(cells, dtype=float)


def _ticks(grid: Grid) -> list[str]:
    return [f"{value:g}" for value in grid.values]


PAGE = """
{% if "grid" in tables %}<h3>The grid</h3>
{{ show("grid") }}{{ draw("grid") }}{{ draw("grid-lines") }}{{ draw("grid-sides") }}{% endif %}
"""
SECTION = Section(
    PAGE,
    tables=(grid_table,),
    figures={
        "grid": Drawing("Every cell of the grid", "On all sites' test rows; bright is better.", grid_map),
        "grid-sides": Drawing(
            "The grid on training, validation and test rows",
            "After the last round. Above {metric}, below the loss; bright is better.",
            grid_sides,
        ),
        "grid-lines": Drawing("The grid from both sides", "On all sites' test rows, with 95 % CI.", grid_lines),
    },
)
