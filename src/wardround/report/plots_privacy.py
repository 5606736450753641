"""Figures on privacy: the budget over rounds, patients' gradients before and after clipping, and what epsilon costs."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from wardround.report.evidence import Evidence
from wardround.report.spent import Line, epsilon_lines, noisy_arms, unprotected_arms
from wardround.report.style import COLOURS, DASHES, MARKERS, bar, figure, legend
from wardround.report.table import FEWEST
from wardround.report.tables_privacy import said

MOST_PANELS = 12
MOST_NAMED = 16  # sites that a legend has room for
MOST_ARMS = 6
TOGETHER = 2  # bins of a histogram that are drawn as one
FIRST, LAST = "#0072B2", "#D55E00"


def budget(evidence: Evidence) -> Figure | None:
    """Epsilon spent after each round, a line for each site, a panel for each arm; the target is a dashed line."""
    arms = {name: arm for name, arm in noisy_arms(evidence).items() if arm["sites"]}
    names = list(arms)[:MOST_PANELS]
    if not names:
        return None
    across = min(3, len(names))
    down = -(-len(names) // across)
    sites = list(dict.fromkeys(site for name in names for site in arms[name]["sites"]))
    named = sites if len(sites) <= MOST_NAMED else []
    drawn = figure(0.75 + 0.19 * -(-len(named) // 4) + (2.6 if across < 3 else 2.0) * down)
    grid = drawn.subplots(down, across, sharex=True, squeeze=False)
    for axes in grid.flat[len(names) :]:
        axes.set_visible(False)
    handles: dict[str, Any] = {}
    for axes, name in zip(grid.flat, names, strict=False):
        arm = arms[name]
        for site, found in arm["sites"].items():
            number = sites.index(site)
            rounds, spent = zip((0, 0.0), *found["curve"], strict=True)
            look = {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number % len(DASHES)]}
            (handles[site],) = axes.plot(rounds, spent, linewidth=1.4, **look)
            if site in arm["stopped"]:
                axes.plot(rounds[-1], spent[-1], "X", color=look["color"], markersize=7)
        for target in {block["epsilon"] for block in (arm["example"], arm["site"]) if block}:
            axes.axhline(target, color="black", linewidth=1, linestyle=(0, (4, 2)))
        axes.set_ylim(bottom=0)
        axes.set_title(name, fontsize=8.5)
        axes.xaxis.get_major_locator().set_params(integer=True)
    for place, axes in enumerate(grid.flat[: len(names)]):
        if place % across == 0:
            axes.set_ylabel("epsilon spent")
        if place + across >= len(names):
            axes.set_xlabel("round")
            axes.tick_params(labelbottom=True)
    if named:
        shown = [handles[site] for site in named]
        drawn.legend(shown, named, loc="outside lower center", ncols=min(4, len(named)), fontsize=8)
    return drawn


def lengths(evidence: Evidence) -> Figure | None:
    """Of all sites together: left before clipping, right after it, where all that was longer lies at the clip."""
    measured = {name: arm["lengths"] for name, arm in noisy_arms(evidence).items() if arm.get("lengths")}
    names = list(measured)[:MOST_ARMS]
    if not names:
        return None
    drawn = figure(0.95 + 1.45 * len(names))
    grid = drawn.subplots(len(names), 2, sharex=True, sharey="row", squeeze=False)
    reach: list[float] = []
    for row, name in zip(grid, names, strict=True):
        edges = np.asarray(measured[name]["bins"])[::TOGETHER]
        for model, colour, dash in (("first", FIRST, "-"), ("last", LAST, "--")):
            before = _counts(measured[name]["sites"], model)
            for axes, counts in zip(row, (before, clipped(before, edges)), strict=True):
                shown = np.where(counts < FEWEST, 0, counts)
                axes.stairs(shown, edges, color=colour, fill=True, alpha=0.18)
                axes.stairs(shown, edges, color=colour, linestyle=dash, linewidth=1.3, label=f"{model} model")
                filled = np.flatnonzero(shown)
                reach += [edges[filled[0]], edges[filled[-1] + 1]] if len(filled) else []
        for axes in row:
            axes.axvline(1, color="black", linewidth=1, linestyle=(0, (4, 2)))
            axes.set_xscale("log")
        row[0].set_ylabel("patients")
        row[0].set_title(f"{name}: before clipping", fontsize=8.5)
        row[1].set_title("after clipping", fontsize=8.5)
    low, high = (min(reach), max(reach)) if reach else (0.1, 10.0)
    for axes in grid[-1]:
        axes.set_xlim(low / 1.3, max(high, 2.0) * 1.3)
        axes.set_xlabel("length of a patient's gradient, in clips")
    handles, labels = grid[0][0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8)
    return drawn


def _counts(sites: dict[str, Any], model: str) -> np.ndarray:
    """Over all sites, neighbouring bins together."""
    total = np.sum([found[model]["counts"] for found in sites.values()], axis=0)
    return np.asarray(total.reshape(-1, TOGETHER).sum(1))


def clipped(counts: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """What is longer than the clip, which is 1, ends up in the last bin below it."""
    below = int(np.searchsorted(edges, 1 - 1e-9))
    found = counts.copy()
    found[below - 1] += found[below:].sum()
    found[below:] = 0
    return found


def cost_of_epsilon(evidence: Evidence) -> Figure | None:
    """The headline figure against the epsilon that was spent; arms without noise stand apart, at the right end."""
    lines = epsilon_lines(evidence)
    if not lines:
        return None
    plain = list(dict.fromkeys(line.unprotected for line in lines if line.unprotected))
    others = [name for name in unprotected_arms(evidence) if name == evidence.reference and name not in plain]
    if sum(len(line.arms) for line in lines) + len(plain) + len(others) < 2:
        return None
    drawn = figure(3.1 + 0.19 * -(-(len(lines) + len(plain) + len(others)) // 3))
    axes = drawn.subplots()
    spent = [epsilon for line in lines for epsilon, _ in line.arms]
    low, high = min(spent), max(spent)
    room = max(high / low, 3.0) ** (1 / 6)  # between what has an epsilon and what has none
    end = high * room * room
    for number, line in enumerate(lines):
        colour, mark = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
        _draw_line(evidence, axes, line, (colour, mark), (end / low) ** (0.012 * (number - (len(lines) - 1) / 2)), end)
    for number, name in enumerate([*plain, *others]):
        place = end * (end / low) ** (0.012 * number)
        label = f"{name} (no noise)"
        bar(axes, evidence.figure(name), place, evidence.headline.scale, "#555555", "d", label, upright=True)
    axes.set_xscale("log")
    axes.xaxis.set_minor_locator(NullLocator())
    ticks = _apart(spent, (end / low) ** 0.05)
    axes.set_xticks([*ticks, *([end] if plain or others else [])])
    axes.set_xticklabels([*(said(tick) for tick in ticks), *(["no noise"] if plain or others else [])])
    if plain or others:
        axes.axvline(high * room, color="grey", linewidth=0.8, linestyle=":")
    axes.set_xlabel("epsilon spent, by the site that spent most (smaller: more privacy)")
    axes.set_ylabel(f"test {evidence.headline.word}{evidence.headline.unit}")
    legend(drawn, loc="outside lower center", ncols=3, fontsize=8)
    return drawn


def _draw_line(evidence: Evidence, axes: Any, line: Line, look: tuple[str, str], aside: float, end: float) -> None:
    """`aside` moves the line a little, so that intervals at one epsilon do not cover each other."""
    (colour, mark), scale = look, evidence.headline.scale
    found = [(epsilon * aside, evidence.figure(name)) for epsilon, name in line.arms]
    known = [(place, figures) for place, figures in found if figures["mean"] is not None]
    axes.plot([p for p, _ in known], [scale * f["mean"] for _, f in known], color=colour, linewidth=1)
    for place, figures in known:
        label = line.title if place == known[0][0] else None
        bar(axes, figures, place, scale, colour, mark, label, upright=True)
    without = evidence.figure(line.unprotected)["mean"] if line.unprotected else None
    if known and without is not None:
        (place, last) = known[-1]
        means = [scale * last["mean"], scale * without]
        axes.plot([place, end], means, color=colour, linewidth=0.8, linestyle=":")


def _apart(values: list[float], least: float) -> list[float]:
    """Without those that would be written over the one before."""
    kept: list[float] = []
    for value in sorted(set(values)):
        if not kept or value / kept[-1] > least:
            kept.append(value)
    return kept
