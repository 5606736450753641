"""ROC and precision-recall curves: of the positive class of two, of each of several classes, or of each finding."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

from wardround.report.evidence import STAY, Evidence
from wardround.report.render.figures import Drawing
from wardround.report.render.style import looks, on_top_of, small_panels, tell
from wardround.report.render.table import FEWEST
from wardround.report.section import Section

PANELS_IN_A_LINE = 5
ROC, PR = ("fpr", "tpr"), ("recall", "precision")
AXES = {"roc": ("1 - specificity", "sensitivity"), "pr": ("sensitivity (recall)", "precision")}
Ranked = Mapping[str, Mapping[str, Any]]  # by class or finding: rows, positives, `roc` and `pr`


def ranked(evidence: Evidence, arm: str) -> Ranked:
    """Nothing in a run of an earlier version, which has no curves of classes."""
    known: Ranked = evidence.arms[arm].get("findings" if evidence.findings else "ranking") or {}
    return known


def _names(evidence: Evidence) -> list[str]:
    return list(dict.fromkeys(name for arm in evidence.arms for name in ranked(evidence, arm)))


def is_withheld(entry: Mapping[str, Any]) -> bool:
    """Where so few test rows are of a class, or are not, that a curve would be about single patients."""
    if entry["positives"] is None:  # hospitals do not tell it
        return True
    return any(0 < count < FEWEST for count in (entry["positives"], entry["rows"] - entry["positives"]))


def _area(evidence: Evidence, arm: str, metric: str) -> str:
    figures, headline = evidence.arms[arm]["metrics"][metric], evidence.headline_for(metric)
    if figures["mean"] is None:
        return f"{headline.word} none"
    low, high = headline.limits(figures["interval"])
    interval = "" if low is None or high is None else f" ({headline.text(low)} to {headline.text(high)})"
    return f"{headline.word} {headline.text(figures['mean'])}{interval}"


def both_curves(evidence: Evidence) -> Figure | None:
    """Of two classes, side by side, with the point at which rows are called positive."""
    names = _names(evidence)
    if len(names) != 1 or evidence.findings:
        return None
    entries = {arm: entry for arm in evidence.few_arms if (entry := ranked(evidence, arm).get(names[0]))}
    shown = {arm: entry for arm, entry in entries.items() if entry["roc"] and not is_withheld(entry)}
    if not shown:
        return None
    drawn, panels = small_panels(2, 2, 3.3, below=0.55 + 0.18 * len(shown), labelled=True)
    handles: dict[str, Any] = {}
    for number, (arm, entry) in enumerate(shown.items()):
        areas = f"{arm}: {_area(evidence, arm, 'auc')}, {_area(evidence, arm, 'pr_auc')}"
        look = {"color": looks(evidence, arm)["color"], **on_top_of(number, len(shown))}
        for axes, kind, keys in zip(panels, ("roc", "pr"), (ROC, PR), strict=True):
            (handles[areas],) = axes.plot(*(entry[kind][key] for key in keys), **look)
            tell(handles[areas], areas)
        _draw_called(evidence, arm, panels, look["color"])
    first = next(iter(shown.values()))
    panels[0].plot([0, 1], [0, 1], color="grey", linewidth=0.8, zorder=1)
    panels[1].axhline(first["positives"] / first["rows"], color="grey", linewidth=0.8, zorder=1)
    for axes, (kind, (below, left)) in zip(panels, AXES.items(), strict=True):
        axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), xlabel=below, ylabel=left)
        axes.set_title("ROC" if kind == "roc" else "precision and recall", fontsize=9, pad=4)
    drawn.legend(handles.values(), handles.keys(), loc="lower center", fontsize=8)
    return drawn


def _draw_called(evidence: Evidence, arm: str, panels: list[Any], colour: str) -> None:
    """What the study's threshold comes to; it is another one with each seed, so that it need not lie on the curve."""
    counts = evidence.arms[arm]["predicted_classes"] or {}
    if not counts.get("confusion"):
        return
    (tn, fp), (fn, tp) = counts["confusion"]
    if not (tp + fn and fp + tn and tp + fp):
        return
    sensitivity, fallout, precision = tp / (tp + fn), fp / (fp + tn), tp / (tp + fp)
    at = f", called from {counts['threshold']['mean']:.2f} on" if counts.get("threshold") else ""
    text = f"{arm}{at}: sensitivity {sensitivity:.2f}, specificity {1 - fallout:.2f}, precision {precision:.2f}"
    for axes, point in zip(panels, ((fallout, sensitivity), (sensitivity, precision)), strict=True):
        look = {"markersize": 7, "markeredgecolor": "white", "markeredgewidth": 0.8}
        tell(axes.plot(*point, "o", color=colour, zorder=5, **look)[0], text)


def roc(evidence: Evidence) -> Figure | None:
    drawn = _curves(evidence, "roc", ROC)
    for axes in (axes for axes in (drawn.axes if drawn else ()) if axes.lines):
        axes.plot([0, 1], [0, 1], color="grey", linewidth=0.6, zorder=1)
    return drawn


def precision_recall(evidence: Evidence) -> Figure | None:
    """The grey line: a model that knows nothing has the share of rows as its precision."""
    drawn = _curves(evidence, "pr", PR)
    entries = ranked(evidence, evidence.main_arm).values()
    for axes, entry in zip(drawn.axes if drawn else (), entries, strict=False):
        if entry["rows"] and not is_withheld(entry):
            axes.axhline(entry["positives"] / entry["rows"], color="grey", linewidth=0.6, zorder=1)
    return drawn


def _curves(evidence: Evidence, kind: str, coordinates: tuple[str, str]) -> Figure | None:
    """A panel for each class or finding, a line for each of few arms. Two classes have a figure of their own."""
    names = _names(evidence)
    arms = {arm: ranked(evidence, arm) for arm in evidence.few_arms}
    if (len(names) == 1 and not evidence.findings) or not any(e[kind] for each in arms.values() for e in each.values()):
        return None
    legends = 0.1 + 0.2 * -(-len(arms) // 4)
    columns = min(PANELS_IN_A_LINE, len(names))
    drawn, panels = small_panels(len(names), columns, 1.25, below=legends + 0.2)
    handles: dict[str, Any] = {}
    for axes, name in zip(panels, names, strict=True):
        known = {arm: each[name] for arm, each in arms.items() if name in each}
        handles |= _draw_panel(evidence, axes, name, known, kind, coordinates)
    width, height = drawn.get_size_inches()
    below, left = AXES[kind]
    drawn.text(0.5, legends / height, below, ha="center", va="bottom", fontsize=9)
    drawn.text(0.08 / width, 0.5, left, rotation=90, ha="left", va="center", fontsize=9)
    drawn.legend(handles.values(), handles.keys(), loc="lower center", ncols=4, fontsize=8, borderpad=0)
    return drawn


def _draw_panel(
    evidence: Evidence, axes: Any, name: str, arms: Ranked, kind: str, coordinates: tuple[str, str]
) -> dict[str, Any]:
    """Of one class or finding; the lines by arm."""
    axes.set_title(name.replace("_", " "), fontsize=8, pad=3)
    axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(FixedLocator([0, 0.5, 1]))
        axis.set_major_formatter("{x:g}")
    handles = {}
    for number, (arm, entry) in enumerate(arms.items()):
        if entry[kind] is not None and not is_withheld(entry):
            look = {"color": looks(evidence, arm)["color"], **on_top_of(number, len(arms))}
            (handles[arm],) = axes.plot(*(entry[kind][key] for key in coordinates), **look)
            tell(handles[arm], _of_line(evidence, arm, name, entry, kind))
    if not handles:
        why = _why_no_curve(evidence, any(map(is_withheld, arms.values())))
        axes.text(0.5, 0.5, why, ha="center", va="center", fontsize=7, color="grey")
    return handles


def _of_line(evidence: Evidence, arm: str, name: str, entry: Mapping[str, Any], kind: str) -> str:
    headline = evidence.headline_for("auc" if kind == "roc" else "pr_auc")
    value = entry.get("metrics", {}).get(headline.metric, {}).get("mean")
    return f"{arm}, {name}" + ("" if value is None else f": {headline.word} {headline.text(value)}")


def _why_no_curve(evidence: Evidence, small: bool) -> str:
    if evidence.deployed:
        return "too few positive\ntest rows, or none"
    return f"fewer than {FEWEST} test rows\nwith or without it" if small else "no positive\ntest row"


def why_no_curves(evidence: Evidence) -> str:
    """Where a classification has no curve."""
    if evidence.task.answers != "class":
        return ""
    known = [entry for arm in evidence.detailed.few_arms for entry in ranked(evidence, arm).values()]
    if any(entry["roc"] and not is_withheld(entry) for entry in known):
        return ""
    if any(map(is_withheld, known)):
        return f"No ROC curve is drawn: fewer than {FEWEST} test rows are of one of the classes."
    if evidence.deployed:
        several = (
            "send histograms of their scores for two classes alone" if len(evidence.classes) > 2 else "told too few"
        )
        return f"No ROC curve is drawn: {STAY}, and hospitals {several}."
    if not any("ranking" in arm for arm in evidence.arms.values()):
        return "No ROC curve is drawn: an earlier version of wardround made this run. Run the study again with --again."
    return "No ROC curve is drawn: all test rows are of one class, or the model diverged."


PAGE = """
{{ draw("ranking") }}{% if not evidence.findings %}{{ draw("roc") }}{{ draw("precision-recall") }}{% endif %}
{% if why_no_curves %}<p>{{ why_no_curves }}</p>{% endif %}
"""
OVER_ALL = "Over all sites' test rows, of all seeds."
HISTOGRAMS = "From histograms of the sites' scores on test rows."
KNOWS_NOTHING = "Grey: how common it is, which is what guessing would reach."
AREAS = "Areas with their 95 % CI. The dot: the threshold from which {positive} is predicted. Grey: guessing."
SECTION = Section(
    PAGE,
    values={"why_no_curves": why_no_curves},
    figures={
        "ranking": Drawing(
            "ROC and precision-recall curves",
            f"{OVER_ALL} {AREAS} Where each hospital has a model of its own, the scores of all are ranked together.",
            both_curves,
            deployed=f"{HISTOGRAMS} {AREAS}",
            detailed=True,
        ),
        "roc": Drawing(
            "ROC curve of each {part}",
            f"{OVER_ALL} Grey: guessing.",
            roc,
            deployed=f"{HISTOGRAMS} Grey: guessing.",
            tall=True,
            detailed=True,
        ),
        "precision-recall": Drawing(
            "Precision-recall curve of each {part}",
            f"{OVER_ALL} {KNOWS_NOTHING}",
            precision_recall,
            deployed=f"{HISTOGRAMS} {KNOWS_NOTHING}",
            tall=True,
            detailed=True,
        ),
    },
)
