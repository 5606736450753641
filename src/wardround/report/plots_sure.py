"""Figures of how sure models are. Each draws, or returns None where no arm says so."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from wardround.report.evidence import Evidence
from wardround.report.style import COLOURS, figure, heat, legend, looks, name_rows, small_panels
from wardround.report.sure import MEASURES, has_cuts, with_uncertainty

MOST_ARMS = 12  # with a panel or a mark of their own
MOST_SITES = 20


def reliability(evidence: Evidence) -> Figure | None:
    """What was predicted against what happened, before and after temperatures: a panel for each arm."""
    told = dict(list(with_uncertainty(evidence).items())[:MOST_ARMS])
    if not told:
        return None
    points = [one["calibration"]["reliability"] for one in told.values()]
    top = 1.05 * max(max(p["score"], p["positive"]) for one in points for side in one.values() for p in side)
    across = min(len(told), 4)
    drawn, panels = small_panels(len(told), across, 1.65 if across > 2 else 2.6, below=0.72)
    kinds = {"before": ("as the model says it", COLOURS[1], "s"), "after": ("with temperature", COLOURS[0], "o")}
    for axes, (name, one) in zip(panels, told.items(), strict=True):
        axes.plot([0, top], [0, top], color="grey", linewidth=0.8)
        for kind, (title, colour, marker) in kinds.items():
            found = one["calibration"]["reliability"][kind]
            x, y = [p["score"] for p in found], [p["positive"] for p in found]
            axes.plot(x, y, marker=marker, markersize=3.5, linewidth=1, color=colour, label=title)
        axes.set_xlim(0, top)
        axes.set_ylim(0, top)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
            axis.set_major_formatter("{x:g}")
        axes.set_title(name, fontsize=8, pad=3)
    width, height = drawn.get_size_inches()
    drawn.text(0.5, 0.27 / height, "mean score of a tenth of the rows", ha="center", va="bottom", fontsize=9)
    drawn.text(0.04 / width, 0.5, "share in which it came true", rotation=90, ha="left", va="center", fontsize=9)
    handles, labels = panels[0].get_legend_handles_labels()
    drawn.legend(handles, labels, loc="lower center", ncols=2, fontsize=8, borderpad=0)
    return drawn


def coverage(evidence: Evidence) -> Figure | None:
    """How often conformal sets hold the right answer at each site, beside where chance would put it. What the call adds
    to them is left out: chance says nothing of it. A site with so few
    validation rows that its bundle would have no sets has a hollow mark."""
    told = dict(list(with_uncertainty(evidence).items())[:MOST_ARMS])
    sites = list(dict.fromkeys(site for one in told.values() for site in one["sets"]["sites"]))
    if not told or len(sites) > MOST_SITES:
        return None
    drawn = figure(1.2 + len(sites) * max(0.42, 0.14 * len(told)))
    axes = drawn.subplots()
    asked = {100 * (1 - one["sets"]["alpha"]) for one in told.values()}
    for share in asked:
        axes.axvline(share, color="black", linewidth=0.8, linestyle="--", label="asked for")
    for place, site in enumerate(sites):
        low, high = _band(site, told)
        if low is not None and high is not None:
            label = "expected in 99 of 100 runs" if place == 0 else None
            axes.barh(place, 100 * (high - low), 0.86, left=100 * low, color="gainsboro", label=label, zorder=0)
    for number, (name, one) in enumerate(told.items()):
        offset = (number - (len(told) - 1) / 2) * 0.76 / len(told)
        for place, site in enumerate(sites):
            found = one["sets"]["sites"].get(site)
            if found is None or found["conformal_coverage"] is None:
                continue
            y, label, colour = place + offset, name if place == 0 else None, looks(evidence, name)["color"]
            inside = colour if has_cuts(one, site) else "white"
            shown = {"color": colour, "markerfacecolor": inside, "markersize": 4.5, "linestyle": "none"}
            axes.plot(100 * found["conformal_coverage"], y, "o", label=label, **shown)
    few = {site for one in told.values() for site in one["sets"]["sites"] if not has_cuts(one, site)}
    name_rows(axes, [f"{site} (few rows)" if site in few else site for site in sites])
    axes.set_xlabel("test rows whose right answer lies within its cut, %")
    legend(drawn, loc="outside lower center", ncols=4)
    return drawn


def _band(site: str, told: dict[str, dict[str, Any]]) -> tuple[float | None, float | None]:
    """What is expected at a site of any arm: mostly they have the same rows, and so the same."""
    those = [one for one in told.values() if site in one["sets"]["sites"] and has_cuts(one, site)]
    known = [one["sets"]["sites"][site]["expected"] for one in those]
    known = [ends for ends in known if ends[0] is not None]
    return (min(low for low, _ in known), max(high for _, high in known)) if known else (None, None)


def referral(evidence: Evidence) -> Figure | None:
    """What a model is worth on the rows that it keeps, against the share that a clinician takes over."""
    told = dict(list(with_uncertainty(evidence).items())[:MOST_ARMS])
    if not told:
        return None
    drawn = figure(3.2)
    panels = drawn.subplots(1, 2)
    words = {"accuracy": ("accuracy, %", 100), "auc": ("AUC", 1)}
    first = evidence.referral_headline.metric
    order = [first, *(name for name in words if name != first)]
    for axes, metric in zip(panels, order, strict=True):
        word, scale = words[metric]
        for name, one in told.items():
            curve = one["referral"]["curve"]
            known = [(x, y) for x, y in zip(curve["share"], curve[metric], strict=True) if y is not None]
            x, y = [100 * a for a, _ in known], [scale * b for _, b in known]
            axes.plot(x, y, linewidth=1.4, label=name if axes is panels[0] else None, **looks(evidence, name))
        for share in {one["referral"]["at"]["asked"] for one in told.values()}:
            axes.axvline(100 * share, color="grey", linewidth=0.8, linestyle=":")
        axes.set_xlabel("rows referred, %")
        axes.set_ylabel(f"{word} on the rest")
    legend(drawn, loc="outside lower center", ncols=4)
    return drawn


def doubt(evidence: Evidence) -> Figure | None:
    """Doubt on right and on wrong calls, and how well it tells them apart."""
    told = {
        name: one["errors"]
        for name, one in list(with_uncertainty(evidence).items())[:MOST_ARMS]
        if one["errors"]["errors"] is not None and one["errors"]["hits"] is not None
    }
    if not told:
        return None
    drawn = figure(1.2 + 0.26 * len(told))
    left, right = drawn.subplots(1, 2, sharey=True)
    for place, (name, found) in enumerate(told.items()):
        colour = looks(evidence, name)["color"]
        left.plot([found["hits"], found["errors"]], [place, place], color="lightgrey", linewidth=2, zorder=1)
        for kind, marker in (("hits", "o"), ("errors", "X")):
            title = {"hits": "right calls", "errors": "wrong calls"}[kind] if place == 0 else None
            left.plot(found[kind], place, marker, color=colour, markersize=6, label=title, linestyle="none")
        auc = found["auc"]
        if auc["mean"] is not None:
            if auc["interval"] is not None:
                right.plot(auc["interval"], [place, place], color=colour, linewidth=1.4)
            right.plot(auc["mean"], place, "o", color=colour, markersize=5)
    right.axvline(0.5, color="grey", linewidth=0.8, linestyle=":")
    name_rows(left, list(told))
    left.set_xlabel("mean doubt, bits")
    right.set_xlabel("AUC of telling wrong calls from right ones")
    legend(drawn, loc="outside lower center", ncols=2)
    return drawn


def strange(evidence: Evidence) -> Figure | None:
    """How well changed images are told from unchanged ones, by each measure."""
    told = {
        name: one["shifted"]
        for name, one in list(with_uncertainty(evidence).items())[:MOST_ARMS]
        if one["shifted"] is not None
    }
    if not told:
        return None
    kinds = list(next(iter(told.values())))
    shown = [
        name for name in MEASURES if any(found[name] is not None for one in told.values() for found in one.values())
    ]
    drawn = figure(1.3 + 0.3 * len(told))
    panels = np.atleast_1d(drawn.subplots(1, len(shown), sharey=True))
    for axes, measure in zip(panels, shown, strict=True):
        values = np.array([[_number(one[kind][measure]) for kind in kinds] for one in told.values()])
        image = heat(axes, values, lambda value: f"{value:.2f}", list(told), kinds)
        image.set_clim(0, 1)
        for text, value in zip(axes.texts, values.flat, strict=True):
            text.set_color("white" if value < 0.5 else "black")  # of the whole scale, not of this panel's
        axes.set_title(f"by {MEASURES[measure]}", fontsize=8)
        axes.tick_params(axis="x", labelsize=7)
    return drawn


def _number(value: Any) -> float:
    return float("nan") if value is None else float(value)
