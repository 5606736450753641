"""Figures of findings, where a row may have several. Each draws, or returns None where there is nothing to draw."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from wardround.report.evidence import Evidence, rows_of
from wardround.report.style import MARKERS, bar, figure, heat, legend, looks, name_rows, small_panels
from wardround.report.table import FEWEST
from wardround.report.tables_findings import auc_at, is_small

MOST_SITES = 16
ACROSS = 5  # panels


def roc(evidence: Evidence) -> Figure | None:
    drawn = _curves(evidence, "roc", ("fpr", "tpr"), "1 - specificity", "sensitivity")
    if drawn is not None:
        for axes in (axes for axes in drawn.axes if axes.lines):
            axes.plot([0, 1], [0, 1], color="grey", linewidth=0.6, zorder=1)
    return drawn


def precision_recall(evidence: Evidence) -> Figure | None:
    """The grey line: a model that knows nothing has the finding's share of rows as its precision."""
    drawn = _curves(evidence, "pr", ("recall", "precision"), "sensitivity (recall)", "precision")
    if drawn is not None:
        described = evidence.arms[evidence.main_arm]["findings"].values()
        for axes, found in zip(drawn.axes, described, strict=True):
            if found["rows"] and not is_small(found):
                axes.axhline(found["positives"] / found["rows"], color="grey", linewidth=0.6, zorder=1)
    return drawn


def _curves(evidence: Evidence, kind: str, names: tuple[str, str], across: str, up: str) -> Figure | None:
    """A panel for each finding, a line for each of few arms."""
    arms = [arm for arm in evidence.few_arms if evidence.arms[arm].get("findings")]
    findings = evidence.findings
    if not any(evidence.arms[arm]["findings"][name][kind] for arm in arms for name in findings):
        return None
    legends = 0.1 + 0.2 * -(-len(arms) // 4)
    drawn, panels = small_panels(len(findings), min(ACROSS, len(findings)), 1.25, below=legends + 0.2)
    handles: dict[str, Any] = {}
    for axes, name in zip(panels, findings, strict=True):
        axes.set_title(name.replace("_", " "), fontsize=8, pad=3)
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(FixedLocator([0, 0.5, 1]))
            axis.set_major_formatter("{x:g}")
        for arm in arms:
            found = evidence.arms[arm]["findings"][name]
            if found[kind] is None or is_small(found):
                continue
            x, y = (found[kind][part] for part in names)
            (handles[arm],) = axes.plot(x, y, linewidth=1.1, color=looks(evidence, arm)["color"])
        if not axes.lines:
            few = any(is_small(evidence.arms[arm]["findings"][name]) for arm in arms)
            why = f"fewer than {FEWEST}\npositive test rows" if few else "no positive\ntest row"
            why = "too few positive\ntest rows, or none" if evidence.deployed else why
            axes.text(0.5, 0.5, why, ha="center", va="center", fontsize=7, color="grey")
    width, height = drawn.get_size_inches()
    drawn.text(0.5, legends / height, across, ha="center", va="bottom", fontsize=9)
    drawn.text(0.08 / width, 0.5, up, rotation=90, ha="left", va="center", fontsize=9)
    drawn.legend(handles.values(), handles.keys(), loc="lower center", ncols=4, fontsize=8, borderpad=0)
    return drawn


def _few(evidence: Evidence) -> str:
    """What stands in a cell that is not shown. Across hospitals each of them says from how many rows on it tells."""
    return "withheld" if evidence.deployed else f"< {FEWEST}"


def auc_by_finding(evidence: Evidence) -> Figure | None:
    """Dots with intervals: a row for each finding and one for their mean, a dot for each of few arms."""
    arms = [arm for arm in evidence.few_arms if evidence.arms[arm].get("findings")]
    if not arms:
        return None
    names = ["mean of all", *evidence.findings]
    drawn = figure(0.9 + len(names) * max(0.26, 0.11 * len(arms)))
    axes = drawn.subplots()
    axes.axvline(0.5, color="grey", linewidth=0.8)
    axes.axhline(0.5, color="grey", linewidth=0.6)
    for number, arm in enumerate(arms):
        offset = (number - (len(arms) - 1) / 2) * 0.76 / len(arms)
        entry = evidence.arms[arm]
        figures = [entry["metrics"], *(entry["findings"][name]["metrics"] for name in evidence.findings)]
        colour, mark = looks(evidence, arm)["color"], MARKERS[number % len(MARKERS)]
        for place, found in enumerate(figures):
            title = arm if place == 0 else None
            bar(axes, found["auc"], place + offset, 1, colour, mark, title, thin=True)
    name_rows(axes, [name.replace("_", " ") for name in names])
    axes.set_xlabel("AUC on all sites' test rows, with 95 % interval; 0.5: a coin")
    legend(drawn, loc="outside lower center", ncols=4)
    return drawn


def prevalence(evidence: Evidence) -> Figure | None:
    """How common each finding is at each site."""
    described = evidence.results["sites"][0]["sites"]
    if not evidence.findings or len(described) > MOST_SITES:
        return None
    values = np.full((len(evidence.classes), len(described)), np.nan)
    for column, counts in enumerate(described.values()):
        for row, name in enumerate(evidence.classes):
            count = counts["classes"][name]
            if count is not None and not 0 < count < FEWEST:
                values[row, column] = 100 * count / rows_of(counts)
    drawn = figure(1.0 + 0.24 * len(values))
    axes = drawn.subplots()
    names = [name.replace("_", " ") for name in evidence.classes]
    image = heat(axes, values, lambda value: f"{value:.1f}", names, list(described), none=_few(evidence))
    drawn.colorbar(image, ax=axes, label="% of the site's rows")
    return drawn


def findings_at_sites(evidence: Evidence) -> Figure | None:
    """AUC of each finding at each site under the arm that is shown in detail."""
    sites = evidence.sites
    if not evidence.findings or not 1 < len(sites) <= MOST_SITES:
        return None
    described = evidence.arms[evidence.main_arm]["findings"]
    figures = [[auc_at(found, site) for site in sites] for found in described.values()]
    values = np.array([[np.nan if v is None else v for v in row] for row in figures], dtype=float)
    if np.isnan(values).all():
        return None
    drawn = figure(1.0 + 0.24 * len(values))
    axes = drawn.subplots()
    names = [name.replace("_", " ") for name in described]
    image = heat(axes, values, lambda value: f"{value:.2f}", names, sites, none=_few(evidence))
    drawn.colorbar(image, ax=axes, label="AUC")
    return drawn
