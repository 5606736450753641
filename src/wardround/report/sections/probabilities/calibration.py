"""Calibration and decision curves: whether a probability comes true, and what acting on it would be worth."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from wardround.report.evidence import Evidence
from wardround.report.render.figures import Drawing
from wardround.report.render.style import (
    MOST_LABELLED,
    WIDTH,
    label_ends,
    looks,
    on_top_of,
    single_axes,
    tell,
)
from wardround.report.render.table import FEWEST
from wardround.report.section import Section

SIDE, BELOW = 2.1, 0.6  # inches: of a panel and of the histogram under it
REACHES = (0.1, 0.2, 0.3, 0.4, 0.5, 1.0)  # of the axes of predicted and observed shares
ROOM = 0.15  # of the axis of thresholds: so much the words "act on all" need


def calibration(evidence: Evidence) -> Figure | None:
    """A panel for each arm: tenths of the rows with their intervals, and how many rows have which score."""
    arms = {arm: evidence.arms[arm]["calibration"] for arm in evidence.few_arms if evidence.arms[arm]["calibration"]}
    if not arms:
        return None
    columns = 2 if len(arms) <= 2 else min(4, len(arms))
    side = SIDE if columns > 2 else 3.0
    lines = -(-len(arms) // columns)
    left, top, foot, gap, title = 0.68, 0.08, 0.42, 0.22, 0.24
    each = title + side + 0.08 + BELOW
    height = top + lines * each + (lines - 1) * 0.28 + foot
    width = (WIDTH - left - 0.12 - gap * (columns - 1)) / columns
    drawn = Figure(figsize=(WIDTH, height))
    tallest = max((max(_cells(evidence, arm).sum(axis=0), default=0) for arm in arms), default=0)
    reach = _reach([entry["bins"] for entry in arms.values()])
    for number, (arm, entry) in enumerate(arms.items()):
        line, column = divmod(number, columns)
        x, y = left + column * (width + gap), height - top - line * (each + 0.28) - title - side
        axes = drawn.add_axes((x / WIDTH, y / height, width / WIDTH, side / height))
        _draw_tenths(evidence, axes, arm, entry["bins"], reach)
        axes.set_title(arm, fontsize=9, pad=4)
        below = drawn.add_axes((x / WIDTH, (y - 0.08 - BELOW) / height, width / WIDTH, BELOW / height), sharex=axes)
        _draw_cells(evidence, below, arm, tallest)
        axes.tick_params(labelbottom=False, labelleft=not column)
        below.tick_params(labelleft=not column)
        if not column:
            axes.set_ylabel(f"share with {evidence.event}")
            below.set_ylabel("rows")
        if number + columns >= len(arms):
            below.set_xlabel("score")
    return drawn


def _reach(of_arms: Sequence[Sequence[Mapping[str, Any]]]) -> float:
    """Where both axes end, alike in all panels: of a rare outcome all points would lie in one corner of the whole."""
    ends = [
        (tenth["score"], tenth["positive"], *(tenth.get("interval") or ())) for tenths in of_arms for tenth in tenths
    ]
    largest = max((value for values in ends for value in values), default=1.0)
    return next(reach for reach in REACHES if reach >= min(1.05 * largest, 1.0))


def _draw_tenths(evidence: Evidence, axes: Any, arm: str, tenths: Sequence[Mapping[str, Any]], reach: float) -> None:
    colour = looks(evidence, arm)["color"]
    axes.plot([0, 1], [0, 1], color="grey", linewidth=0.8)
    for tenth in tenths:
        score, share, interval = tenth["score"], tenth["positive"], tenth.get("interval")
        text = f"{arm}: {100 * share:.0f} %"
        if interval:
            axes.plot([score, score], interval, color=colour, linewidth=1.4)
            text += f" ({100 * interval[0]:.0f} to {100 * interval[1]:.0f})"
        (point,) = axes.plot(score, share, "o", color=colour, markersize=4.5)
        tell(point, f"{text} with {evidence.event} where the mean score is {100 * score:.0f} %")
    axes.set(xlim=(-0.02 * reach, 1.02 * reach), ylim=(-0.02 * reach, 1.02 * reach))


def _cells(evidence: Evidence, arm: str) -> np.ndarray:
    """Rows of one seed, on average, in cells of equal width: without and with the event. Few rows are not shown."""
    histogram = evidence.arms[arm].get("score_histogram")
    if histogram is None:  # a run of an earlier version
        return np.zeros((2, 0))
    counts = np.array([histogram["negative"], histogram["positive"]]) / evidence.seeds
    return np.where(counts < FEWEST, 0.0, counts)


def _draw_cells(evidence: Evidence, axes: Any, arm: str, tallest: float) -> None:
    cells = _cells(evidence, arm)
    size = 1 / max(1, cells.shape[1])
    places, base = size * (np.arange(cells.shape[1]) + 0.5), np.zeros(cells.shape[1])
    for counts, name, colour in zip(cells, evidence.classes, ("#BBBBBB", "#555555"), strict=True):
        bars = axes.bar(places, counts, 0.9 * size, bottom=base, color=colour)
        for bar, place, count in zip(bars, places, counts, strict=True):
            low, high = 100 * (place - size / 2), 100 * (place + size / 2)
            if count:
                tell(bar, f"{count:.0f} test rows with {name}, score {low:.0f} to {high:.0f} %")
        base += counts
    axes.set_ylim(0, 1.05 * tallest or 1)
    axes.locator_params(axis="y", nbins=2)
    axes.grid(visible=False, axis="x")


def decision_curve(evidence: Evidence) -> Figure | None:
    curves = {arm: curve for arm in evidence.few_arms if (curve := evidence.arms[arm]["decision_curve"])}
    if not curves:
        return None
    drawn, axes = single_axes(3.4)
    ends = []
    for number, (arm, curve) in enumerate(curves.items()):
        colour = looks(evidence, arm)["color"]
        look = {"color": colour, **on_top_of(number, len(curves))}
        (line,) = axes.plot(curve["threshold"], curve["net_benefit"], label=arm, **look)
        middle = len(curve["threshold"]) // 2
        told = f"{arm}: net benefit {curve['net_benefit'][middle]:.3f} at a threshold of"
        tell(line, f"{told} {100 * curve['threshold'][middle]:.0f} %")
        ends.append((curve["net_benefit"][-1], arm, colour))
    first = next(iter(curves.values()))
    axes.plot(first["threshold"], first["treat_all"], color="grey", linestyle="--", label="act on all")
    axes.axhline(0, color="grey", linestyle=":", label="act on none")
    top = max(max(curve["net_benefit"]) for curve in curves.values())
    if top > 0:  # where nothing is better than acting on none, there is no top
        axes.set_ylim(-0.12 * top, 1.1 * top)
    axes.set(xlabel="threshold: the risk from which one would act", ylabel="net benefit", xlim=(0, 1))
    if len(curves) > MOST_LABELLED:
        drawn.legend(loc="outside right center")
        return drawn
    inside = next((p for p in zip(first["threshold"], first["treat_all"], strict=True) if p[1] < 0.45 * top), (0.5, 0))
    side = {"xytext": (-4, -2), "ha": "right"} if inside[0] > ROOM else {"xytext": (6, -2), "ha": "left"}
    axes.annotate("act on all", inside, textcoords="offset points", color="grey", va="top", **side)
    label_ends(axes, [*ends, (0.0, "act on none", "grey")])
    return drawn


PAGE = """{{ draw("calibration") }}{{ part("probabilities.ranking") }}{{ draw("decision-curve") }}"""
TENTHS = "Above: tenths of all test rows by score, with 95 % CI; on the diagonal, scores mean what they say."
ROWS_OF_SCORE = (
    "Below: test rows by score, dark with the outcome and light without it; "
    f"cells of fewer than {FEWEST} rows are left empty."
)
SECTION = Section(
    PAGE,
    figures={
        "calibration": Drawing(
            "Calibration",
            f"{TENTHS} {ROWS_OF_SCORE}",
            calibration,
            deployed=f"{TENTHS} {ROWS_OF_SCORE} From the sites' histograms: a cell's rows are taken as evenly spread "
            "around their mean.",
            of_task=True,
            detailed=True,
            tall=True,
        ),
        "decision-curve": Drawing(
            "Decision curve",
            "Net benefit of acting on scores above the threshold, beside acting on everybody and on nobody.",
            decision_curve,
            deployed="Net benefit of acting on scores above the threshold, beside acting on everybody and on nobody. "
            "From the sites' histograms: in a cell that was merged for its few rows, they are taken as evenly spread.",
            of_task=True,
            detailed=True,
        ),
    },
)
