"""Arms that form a grid: a number of the partition against one of the algorithm."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from wardround.report.arms import Grid, read_grid
from wardround.report.evidence import Evidence
from wardround.report.render.figures import Drawing
from wardround.report.render.style import COLOURS, DASHES, MARKERS, bar, figure, heat
from wardround.report.render.table import Format, Table, make_table
from wardround.report.section import Section
from wardround.report.sections.results import SIDES, last


def grid_table(evidence: Evidence) -> Table | None:
    grid = read_grid(evidence)
    if grid is None:
        return None
    headline = evidence.headline
    rows: list[list[Any]] = []
    for line in grid.lines:
        arms = [grid.arm(line, value) for value in grid.values]
        rows.append([line, *(None if arm is None else evidence.figure(arm)["mean"] for arm in arms)])
    columns: dict[str, Format | None] = {"arm": None}
    columns |= {headline.above(f"{grid.setting} {value:g}"): headline.shown for value in grid.values}
    title = f"{headline.title} against {grid.setting}"
    return make_table("grid", title, columns, rows, "On all sites' test rows.")


MOST_LINES = 24


def grid_map(evidence: Evidence) -> Figure | None:
    """What every cell came to on test rows."""
    grid, headline = _grid(evidence), evidence.headline
    if grid is None or len(grid.lines) < 2:
        return None
    means = {name: evidence.figure(name)["mean"] for name in grid.cells.values()}
    values = headline.scale * _values(grid, means)
    drawn = figure(1.0 + 0.28 * len(grid.lines), 1.8 + min(5.4, 0.95 * len(grid.values) + 0.9))
    axes = drawn.subplots()
    image = heat(axes, values, lambda value: headline.shown(value / headline.scale), grid.lines, _ticks(grid))
    axes.set_xlabel(grid.setting)
    drawn.colorbar(image, ax=axes, label=f"test {headline.word}{headline.unit}")
    return drawn


def grid_sides(evidence: Evidence) -> Figure | None:
    """Training, validation and test rows after the last round: the figure above, the loss below."""
    grid, headline = _grid(evidence), evidence.curve_headline
    if grid is None or len(grid.lines) < 2:
        return None
    arms = list(grid.cells.values())
    sides = [side for side in SIDES if any(last(evidence, arm, f"{side}_loss") is not None for arm in arms)]
    if len(sides) < 2:
        return None
    drawn = figure(1.0 + 2 * (0.45 + 0.23 * len(grid.lines)))
    axes_of = drawn.subplots(2, len(sides), sharex=True, sharey=True, squeeze=False)
    for row, (figure_name, word, cmap) in enumerate(
        ((headline.metric, f"{headline.word}{headline.unit}", "cividis"), ("loss", "loss", "cividis_r"))
    ):
        for axes, side in zip(axes_of[row], sides, strict=True):
            values = _values(grid, {arm: last(evidence, arm, f"{side}_{figure_name}") for arm in arms})
            shown = headline.shown if row == 0 else "{:.2f}".format
            heat(axes, values, shown, grid.lines, _ticks(grid), cmap)
            axes.set_title(f"{side} {word}", fontsize=9)
    for axes in axes_of[-1]:
        axes.set_xlabel(grid.setting)
    return drawn


def grid_lines(evidence: Evidence) -> Figure | None:
    """Left: over the partition's number, a line for each of the algorithm's. Right: the other way round."""
    grid, headline = _grid(evidence), evidence.headline
    if grid is None:
        return None
    both = len(grid.numbers) > 1
    foot = max(-(-len(grid.lines) // 2), -(-len(grid.values) // 2)) if both else -(-len(grid.lines) // 3)
    drawn = figure(2.9 + 0.19 * foot)
    panels = drawn.subplots(1, 2 if both else 1, sharey=True, squeeze=False)[0]
    lines = [(line, [(grid.arm(line, value)) for value in grid.values]) for line in grid.lines]
    _lines(evidence, panels[0], lines, _ticks(grid), 2 if both else 3)
    panels[0].set_xlabel(grid.setting)
    panels[0].set_ylabel(f"test {headline.word}{headline.unit}")
    if both:
        numbers = [line for line in grid.lines if line in grid.numbers]
        others = [line for line in grid.lines if line not in grid.numbers]
        columns = [*numbers, *others]
        names = [f"{grid.numbers[line]:g}" for line in numbers] + others
        across = [(f"{grid.setting} {value:g}", [grid.arm(line, value) for line in columns]) for value in grid.values]
        _lines(evidence, panels[1], across, names, 2, len(numbers))
        panels[1].set_xlabel(str(grid.own))
    return drawn


def _lines(
    evidence: Evidence,
    axes: Any,
    lines: list[tuple[str, list[str | None]]],
    ticks: list[str],
    columns: int,
    joined: int | None = None,
) -> None:
    """`joined` points are joined by a line; those after them have no order and stand alone."""
    scale = evidence.headline.scale
    for number, (title, arms) in enumerate(lines):
        colour, mark = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        offset = (number - (len(lines) - 1) / 2) * 0.3 / len(lines)
        found = [None if arm is None else evidence.figure(arm) for arm in arms]
        places = [place + offset for place in range(len(arms))]
        means = [np.nan if f is None or f["mean"] is None else scale * f["mean"] for f in found]
        end = len(means) if joined is None else joined
        dash = DASHES[number // len(COLOURS) % len(DASHES)]
        axes.plot(places[:end], means[:end], color=colour, linestyle=dash, linewidth=1)
        known = [(place, figures) for place, figures in zip(places, found, strict=True) if figures is not None]
        for place, figures in known:
            label = title if place == known[0][0] else None
            bar(axes, figures, place, scale, colour, mark, label, upright=True, thin=True)
    turned = sum(map(len, ticks)) > 30
    axes.set_xticks(range(len(ticks)), ticks, rotation=35 if turned else 0, ha="right" if turned else "center")
    below = (0.5, -0.34 if turned else -0.17)
    axes.legend(loc="upper center", bbox_to_anchor=below, ncols=columns, fontsize=8, columnspacing=1)


def _grid(evidence: Evidence) -> Grid | None:
    grid = read_grid(evidence)
    return grid if grid is not None and len(grid.lines) <= MOST_LINES else None


def _values(grid: Grid, of_arm: dict[str, float | None]) -> np.ndarray:
    found = [[of_arm.get(grid.arm(line, value) or "") for value in grid.values] for line in grid.lines]
    return np.array([[np.nan if value is None else value for value in row] for row in found], dtype=float)


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
        "grid-lines": Drawing("The grid from both sides", "On all sites' test rows, with 95 % intervals.", grid_lines),
    },
)
