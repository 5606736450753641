"""Curves over rounds of studies of images: a panel for each figure and way of forming sites, a line for each arm."""

from typing import Any

from matplotlib.figure import Figure

from wardround.report.arms import line_title, panel_title
from wardround.report.evidence import Evidence
from wardround.report.style import COLOURS, DASHES, WIDTH, figure, looks

MOST_LINES = 24
LOSSES = {"loss": "training loss", "validation_loss": "validation loss", "test_loss": "test loss"}
MOVEMENT = {"change": "weight change", "divergence": "divergence"}


def losses(evidence: Evidence) -> Figure | None:
    return _panels(evidence, LOSSES)


def headline_curves(evidence: Evidence) -> Figure | None:
    metric, word = evidence.curve_headline.metric, evidence.curve_headline.word
    return _panels(evidence, {f"{side}_{metric}": f"{side} {word}" for side in ("validation", "test")})


def movement(evidence: Evidence) -> Figure | None:
    return _panels(evidence, MOVEMENT)


def _panels(evidence: Evidence, columns: dict[str, str]) -> Figure | None:
    """Figures from left to right; sites that were formed differently from top to bottom."""
    if not evidence.of_images:
        return None
    arms = list(evidence.arms)
    points = {column: {name: evidence.curve(name, column) for name in arms} for column in columns}
    shown = [column for column in columns if any(any(values) for _, values in points[column].values())]
    if not shown:
        return None
    panel = {name: panel_title(evidence, name) for name in arms}
    line = {name: line_title(evidence, name) for name in arms}
    rows, titles = list(dict.fromkeys(panel.values())), list(dict.fromkeys(line.values()))
    foot = 0.5 + 0.19 * -(-len(titles) // 4)
    drawn = figure(foot + max(2.5 if len(rows) == 1 else 1.75, 0) * len(rows), WIDTH)
    grid = drawn.subplots(len(rows), len(shown), sharex=True, sharey="col", squeeze=False)
    handles: dict[str, Any] = {}
    for name in arms:
        for column, axes in zip(shown, grid[rows.index(panel[name])], strict=True):
            rounds, values = points[column][name]
            if any(values) or not rounds:  # a line that is 0 throughout, of one site alone, says nothing
                # an arm that diverged at once has no number to draw, but keeps its place in the legend
                (handles[line[name]],) = axes.plot(
                    rounds, values, linewidth=1.3, **_style(evidence, name, titles, line)
                )
    for j, column in enumerate(shown):
        grid[0][j].set_title(columns[column], fontsize=9)
        grid[-1][j].set_xlabel("round")
    for i, title in enumerate(rows):
        grid[i][0].set_ylabel(title if len(rows) > 1 else "")
    for axes in grid.flat:
        axes.xaxis.get_major_locator().set_params(integer=True)
    drawn.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(4, len(titles)), fontsize=8)
    return drawn


def _style(evidence: Evidence, name: str, titles: list[str], line: dict[str, str]) -> dict[str, Any]:
    """The family's colour where every arm has a line of its own, else a colour for each line."""
    looking = {repr(looks(evidence, arm)) for arm in line}
    if len(looking) == len(line) == len(titles):
        return looks(evidence, name)
    number = titles.index(line[name])
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number // len(COLOURS) % len(DASHES)]}
