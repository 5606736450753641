"""Figures of the data, of training, and of the sites. Each draws, or returns None where there is nothing to draw."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from wardround.report.arms import partition_title
from wardround.report.evidence import Evidence, rows_of
from wardround.report.grid import read_grid
from wardround.report.style import COLOURS, DASHES, WIDTH, figure, looks
from wardround.report.table import FEWEST

MOST_SITES = 20
MOST_COLUMNS = 16


def sites(evidence: Evidence) -> Figure | None:
    """Rows of each class at each site; where a grid forms sites in several ways, a panel for each."""
    ways = evidence.results["sites"] if read_grid(evidence) is not None else evidence.results["sites"][:1]
    most = max(len(way["sites"]) for way in ways)
    if evidence.findings or most > MOST_SITES or len(evidence.classes) > len(COLOURS):
        return None  # a row with several findings has no place in one bar
    across = min(len(ways), 3)
    down = -(-len(ways) // across)
    drawn = figure(0.9 + down * (0.28 * most + (0.3 if len(ways) > 1 else 0)))
    grid = drawn.subplots(down, across, sharex=True, squeeze=False)
    for axes in grid.flat[len(ways) :]:
        axes.set_visible(False)
    for axes, way in zip(grid.flat, ways, strict=False):
        _class_bars(axes, evidence.classes, way["sites"])
        if len(ways) > 1:
            axes.set_title(partition_title(evidence, way["partition"]), fontsize=9)
    for axes in grid[-1]:
        axes.set_xlabel("rows")
    handles, labels = grid[0][0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=4)
    return drawn


def _class_bars(axes: Any, classes: list[str], described: dict[str, Any]) -> None:
    left = np.zeros(len(described))
    for number, name in enumerate(classes):
        counts = np.array([site["classes"][name] or 0 for site in described.values()], dtype=float)
        counts[counts < FEWEST] = 0
        axes.barh(range(len(described)), counts, left=left, color=COLOURS[number], label=name, height=0.65)
        left += counts
    if any(None in site["classes"].values() for site in described.values()):
        rest = np.array([rows_of(site) for site in described.values()]) - left
        axes.barh(range(len(described)), rest, left=left, color="lightgrey", label="class withheld", height=0.65)
    axes.set_yticks(range(len(described)), list(described))
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")


def correlation(evidence: Evidence) -> Figure | None:
    columns = evidence.results["columns"]
    if columns is None or len(columns["correlation"]["columns"]) < 3:
        return None
    names = columns["correlation"]["columns"]
    values = np.array([[np.nan if v is None else v for v in row] for row in columns["correlation"]["values"]])
    side = min(WIDTH, 1.8 + 0.32 * len(names))
    drawn = figure(side * 0.86, side)
    axes = drawn.subplots()
    image = axes.imshow(values, cmap="PuOr", vmin=-1, vmax=1)
    if len(names) <= 16:
        for i in range(len(names)):
            for j in range(i):
                if not np.isnan(values[i, j]):
                    colour = "white" if abs(values[i, j]) > 0.6 else "black"
                    axes.text(
                        j,
                        i,
                        f"{values[i, j]:.1f}".replace("-0.0", "0").replace("0.", "."),
                        ha="center",
                        va="center",
                        fontsize=6.5,
                        color=colour,
                    )
    axes.set_xticks(range(len(names)), names, rotation=90)
    axes.set_yticks(range(len(names)), names)
    axes.grid(visible=False)
    drawn.colorbar(image, ax=axes, label="correlation", shrink=0.8)
    return drawn


def distributions(evidence: Evidence) -> Figure | None:
    """Each column before sites form (grey) and at each site (lines)."""
    columns = evidence.results["columns"]
    if columns is None:
        return None
    shown = dict(list(columns["distributions"].items())[:MOST_COLUMNS])
    across = 4
    rows = -(-len(shown) // across)
    height = 0.6 + 1.3 * rows
    drawn = Figure(figsize=(WIDTH, height))  # laid out by hand: searching for a layout of so many axes takes a second
    drawn.subplots_adjust(left=0.075, right=0.99, top=1 - 0.2 / height, bottom=0.62 / height, hspace=0.62, wspace=0.28)
    grid = drawn.subplots(rows, across, squeeze=False)
    for axes in grid.flat[len(shown) :]:
        axes.set_visible(False)
    handles: dict[str, Any] = {}
    for axes, (name, found) in zip(grid.flat, shown.items(), strict=False):
        places = np.arange(len(found["labels"]))
        handles["all rows"] = axes.bar(places, _percent(found["all"]["shares"]), color="lightgrey", width=0.9)
        for number, (site, part) in enumerate(found["sites"].items()):
            style = {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number // len(COLOURS) % len(DASHES)]}
            (handles[site],) = axes.plot(
                places, _percent(part["shares"]), marker=".", linewidth=1, markersize=4, **style
            )
        axes.set_title(name, fontsize=8, pad=2)
        marks = places if len(places) <= 4 else places[:: -(-len(places) // 3)]
        axes.set_xticks(marks, [found["labels"][mark].split(" to ")[0][:8] for mark in marks])
        axes.tick_params(labelsize=7)
        axes.grid(visible=False, axis="x")
        axes.set_ylim(bottom=0)
    drawn.supylabel("% of recorded values", fontsize=8, x=0.005)
    drawn.legend(handles.values(), handles.keys(), loc="lower center", ncols=min(6, len(handles)), fontsize=8)
    return drawn


def _percent(shares: list[float | None]) -> list[float]:
    return [np.nan if share is None else 100 * share for share in shares]


def curve(evidence: Evidence, column: str, label: str, log: bool = False) -> Figure | None:
    """Means over seeds: a column for each data set, a row for each share of stragglers, a line for each arm."""
    if evidence.of_images:
        return None  # `plots_curves` has more of them
    arms = evidence.arms
    points = {name: evidence.curve(name, column) for name in arms}
    if not any(values for _, values in points.values()):
        return None
    data = {name: _data_title(evidence, name) for name in arms}
    late = {name: _straggler_title(arm) for name, arm in arms.items()}
    lines = {name: _line_title(evidence, name) for name in arms}
    columns, rows, titles = (list(dict.fromkeys(part.values())) for part in (data, late, lines))
    size = (max(WIDTH, 3.1 * len(columns)), 0.6 + max(2.9, 2.2 * len(rows)) + 0.16 * len(titles))
    drawn = figure(size[1], size[0])
    grid = drawn.subplots(len(rows), len(columns), sharex=True, sharey=column == "test_accuracy", squeeze=False)
    handles: dict[str, Any] = {}
    for name in arms:
        axes = grid[rows.index(late[name])][columns.index(data[name])]
        number = titles.index(lines[name])
        style = {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number // len(COLOURS) % len(DASHES)]}
        if lines[name] == name:
            style = looks(evidence, name)
        # an arm that diverged at once has no number to draw, but keeps its place in the legend
        (handles[lines[name]],) = axes.plot(*points[name], linewidth=1.4, **style)
    for i, row in enumerate(rows):
        grid[i][0].set_ylabel(f"{row}\n{label}" if row else label)
    for j, title in enumerate(columns):
        grid[0][j].set_title(title if len(columns) > 1 else "", fontsize=9)
        grid[-1][j].set_xlabel("round")
    if log and all(value > 0 for _, values in points.values() for value in values):
        for axes in grid.flat:
            axes.set_yscale("log")
    drawn.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(4, len(titles)))
    return drawn


def _data_title(evidence: Evidence, name: str) -> str:
    """What is different about this arm's data."""
    options = [arm["data"] for arm in evidence.arms.values()]
    common = {key for key, value in options[0].items() if all(other.get(key) == value for other in options)}
    changed = {key: value for key, value in evidence.arms[name]["data"].items() if key not in common}
    switched_on = [key for key, value in changed.items() if value is True]  # such as iid, which makes the rest moot
    described = [f"{key} {value}" for key, value in changed.items() if value is not False]
    return ", ".join(switched_on or described) or str(evidence.arms[name]["data"]["name"])


def _straggler_title(arm: dict[str, Any]) -> str:
    return f"{arm['stragglers']['share']:.0%} stragglers" if arm["stragglers"] else ""


def _line_title(evidence: Evidence, name: str) -> str:
    """The arm without what its panel already says."""
    arm = evidence.arms[name]
    if len({_data_title(evidence, other) for other in evidence.arms}) == 1 and not arm["stragglers"]:
        return name
    policy = f", {arm['stragglers']['policy']} late work" if arm["stragglers"] else ""
    mu = f" mu {arm['algorithm']['mu']:g}" if "mu" in arm["algorithm"] else ""
    return f"{arm['algorithm']['name']}{mu}{policy}"
