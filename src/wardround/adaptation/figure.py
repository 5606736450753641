"""The learning curve as a figure: adapted and alone against training rows, each with its interval."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator

from wardround.adaptation.train import WAYS
from wardround.report.render.style import COLOURS, DASHES, MARKERS, STYLE, as_svg, figure, save_png
from wardround.tasks import METRIC_FACTS
from wardround.tasks.metric import Metric

LABELS = {"adapted": "adapted to the shared part", "alone": "trained alone"}


def write_curve(content: Mapping[str, Any], folder: Path) -> None:
    with mpl.rc_context(STYLE):
        curve = draw(content)
        svg = as_svg(curve, "adapt-curve")
        (folder / "curve.svg").write_text(svg, encoding="utf-8")
        save_png(curve, folder / "curve.png")


def draw(content: Mapping[str, Any]) -> Figure:
    fractions = content["fractions"]
    rows = [entry["rows"]["mean"] for entry in fractions]
    curve = figure(3.0)
    panels = curve.subplots(1, len(content["metrics"]))
    for axes, metric in zip(panels, content["metrics"], strict=True):
        facts = METRIC_FACTS[metric]
        for number, way in enumerate(WAYS):
            points = [(x, entry[way][metric]) for x, entry in zip(rows, fractions, strict=True)]
            points = [(x, estimate) for x, estimate in points if estimate["mean"] is not None]
            if not points:
                continue
            places, means = [x for x, _ in points], [estimate["mean"] for _, estimate in points]
            look = {"color": COLOURS[number], "linestyle": DASHES[number], "marker": MARKERS[number]}
            axes.plot(places, means, linewidth=1.5, markersize=4.5, label=LABELS[way], **look)
            banded = [(x, *facts.within(estimate["interval"])) for x, estimate in points if estimate["interval"]]
            if banded:
                at, low, high = zip(*banded, strict=True)
                axes.fill_between(at, low, high, color=COLOURS[number], alpha=0.15, linewidth=0)
        axes.set_xscale("log")
        axes.set_xticks(rows, [f"{x:.0f}" for x in rows])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_title(_words(facts), fontsize=9)
        axes.set_xlabel("training rows")
    handles, names = panels[0].get_legend_handles_labels()
    if handles:
        curve.legend(handles, names, loc="outside lower center", ncols=2, fontsize=8)
    curve.suptitle(_title(content), fontsize=9.5)
    return curve


def _words(metric: Metric) -> str:
    return f"{metric.words} (lower is better)" if metric.lower_is_better else metric.words


def _title(content: Mapping[str, Any]) -> str:
    repeats = len(content["seeds"])
    return (
        f"{content['hospital']}: means over {repeats} splits, with 95 % CI" if repeats > 1 else str(content["hospital"])
    )
