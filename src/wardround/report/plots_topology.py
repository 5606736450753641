"""Figures of regions: who belongs to whom, and each region's own model beside the model of all."""

from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from wardround.report.evidence import Evidence
from wardround.report.style import COLOURS, WIDTH, bar, figure, legend, name_rows
from wardround.report.topology import with_regions

ACROSS = 5  # sites in a line
MOST_SITES = 150
LINE = 0.26  # inches
ROOT, REGION, SITES, END = 0.09, 0.3, 0.47, 0.985  # where columns begin, as parts of the width
SHORTEN = 14  # letters of a site's name


def regions_tree(evidence: Evidence) -> Figure | None:
    """The coordinator of all, its regions, and each region's sites; of the first arm that has regions."""
    told = next(iter(with_regions(evidence).values()), None)
    if told is None or sum(len(found["sites"]) for found in told["regions"].values()) > MOST_SITES:
        return None
    lines = [-(-len(found["sites"]) // ACROSS) for found in told["regions"].values()]
    height = 0.45 + LINE * sum(max(count, 2) + 0.6 for count in lines)
    drawn = Figure(figsize=(WIDTH, height))
    axes = drawn.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, 1)
    axes.set_ylim(height, 0)
    axes.axis("off")
    middles, top = [], 0.4
    for number, ((name, found), count) in enumerate(zip(told["regions"].items(), lines, strict=True)):
        tall = LINE * max(count, 2)
        middles.append(top + tall / 2)
        _region(axes, name, found, middles[-1], COLOURS[number % len(COLOURS)], top + (tall - LINE * count) / 2)
        top += tall + 0.6 * LINE
    root = (middles[0] + middles[-1]) / 2
    for middle in middles:
        axes.plot([ROOT, REGION - 0.06], [root, middle], color="grey", linewidth=1, zorder=0)
    box = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": "black"}
    axes.text(ROOT, root, "coordinator\nof all", ha="center", va="center", fontsize=8, bbox=box)
    each, merged = told["regional_rounds"], told["global_rounds"]
    times = f"{merged} average{'s' if merged != 1 else ''} over regions"
    rounds = f"{each} round{'s' if each != 1 else ''} of the sites before each of them"
    axes.text((ROOT + REGION) / 2 - 0.02, 0.16, times, ha="center", va="center", fontsize=7.5, color="dimgrey")
    axes.text((SITES + END) / 2, 0.16, rounds, ha="center", va="center", fontsize=7.5, color="dimgrey")
    return drawn


def _region(axes: Any, name: str, found: dict[str, Any], middle: float, colour: str, top: float) -> None:
    """One region's box, and its sites line by line."""
    step = (END - SITES) / ACROSS
    lines = -(-len(found["sites"]) // ACROSS)
    across = min(len(found["sites"]), ACROSS)
    corner, size = (SITES - 0.018, top), (step * across + 0.005, LINE * lines)
    axes.add_patch(Rectangle(corner, *size, facecolor=colour, edgecolor="none", alpha=0.12, zorder=0))
    axes.plot([REGION + 0.06, corner[0]], [middle, middle], color=colour, linewidth=1.2, zorder=0)
    for number, site in enumerate(found["sites"]):
        row, column = divmod(number, ACROSS)
        x, y = SITES + step * column, top + LINE * (row + 0.5)
        axes.plot(x, y, "o", color=colour, markersize=5)
        shown = site if len(site) <= SHORTEN else f"{site[: SHORTEN - 1]}…"
        axes.text(x + 0.012, y, shown, va="center", fontsize=7)
    box = {"boxstyle": "round,pad=0.3", "facecolor": "white", "edgecolor": colour}
    text = f"{name if len(name) <= SHORTEN else f'{name[: SHORTEN - 1]}…'}\n{found['train']:,} rows train"
    axes.text(REGION, middle, text, ha="center", va="center", fontsize=7.5, bbox=box)


def regional_models(evidence: Evidence) -> Figure | None:
    """Own model and model of all in each region, of every arm that has regions."""
    headline = evidence.headline
    scored = {
        (name, region): found["metrics"]
        for name, topology in with_regions(evidence).items()
        for region, found in topology["regions"].items()
        if found["metrics"] is not None
    }
    if not scored or len(scored) > 40:
        return None
    drawn = figure(1.0 + 0.3 * len(scored))
    axes = drawn.subplots()
    kinds = {"regional": ("the region's own model", COLOURS[1], "s"), "global": ("the model of all", COLOURS[0], "o")}
    for place, metrics in enumerate(scored.values()):
        for offset, (kind, (title, colour, marker)) in zip((-0.13, 0.13), kinds.items(), strict=True):
            label = title if place == 0 else None
            bar(axes, metrics[kind][headline.metric], place + offset, headline.scale, colour, marker, label)
    several = len({name for name, _ in scored}) > 1
    name_rows(axes, [f"{name}: {region}" if several else region for name, region in scored])
    axes.set_xlabel(f"{headline.word} on the region's own test rows{headline.unit}, with 95 % interval")
    legend(drawn, loc="outside lower center", ncols=2)
    return drawn
