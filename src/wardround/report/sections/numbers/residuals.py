"""Whether predicted numbers mean what they say: predicted against observed, and what is left. A part of the results."""

from typing import Any

from matplotlib.figure import Figure

from wardround.report.evidence import Evidence
from wardround.report.render.figures import Drawing
from wardround.report.render.style import MARKERS, figure, legend, looks, single_axes
from wardround.report.render.table import CI, OTHER_CI, Table, decimals, make_table
from wardround.report.section import Section


def _calibrated(evidence: Evidence) -> dict[str, dict[str, Any]]:
    arms = {name: evidence.arms[name]["calibration"] for name in evidence.few_arms if name not in evidence.off_scale}
    return {name: entry for name, entry in arms.items() if entry and entry["bins"]}


def number_calibration_table(evidence: Evidence) -> Table | None:
    rows = [
        [name, *_line(arm["calibration"]["slope"]), *_line(arm["calibration"]["intercept"])]
        for name, arm in evidence.arms.items()
        if arm["calibration"] and arm["calibration"]["slope"]
    ]
    if not rows:
        return None
    intercept = f"intercept, {evidence.unit}" if evidence.unit else "intercept"
    return make_table(
        "number-calibration",
        "Calibration",
        {
            "arm": None,
            **dict.fromkeys(("slope", *CI), decimals),
            **dict.fromkeys((intercept, *OTHER_CI), evidence.in_units),
        },
        rows,
        "The line of observed on predicted, over all test rows, with 95 % CI clustered by patient. A slope of 1 and an "
        "intercept of 0 are calibrated; a slope below 1 means predictions that are too extreme.",
    )


def _line(entry: dict[str, Any]) -> list[float | None]:
    return [entry["value"], *(entry.get("interval") or (None, None))]


def predicted_observed(evidence: Evidence) -> Figure | None:
    arms = _calibrated(evidence)
    if not arms:
        return None
    drawn, axes = single_axes(3.9)
    ends = [bin_[key] for entry in arms.values() for bin_ in entry["bins"] for key in ("score", "observed")]
    axes.plot([min(ends), max(ends)], [min(ends), max(ends)], color="grey", linewidth=0.8)
    for number, (arm, entry) in enumerate(arms.items()):
        bins = entry["bins"]
        look = {"marker": MARKERS[number % len(MARKERS)], "markersize": 4, "linewidth": 1, "label": arm}
        colour = looks(evidence, arm)["color"]
        axes.plot([b["score"] for b in bins], [b["observed"] for b in bins], color=colour, linestyle="-", **look)
    axes.set(xlabel=f"mean predicted {evidence.named_outcome}", ylabel=f"mean observed {evidence.named_outcome}")
    legend(drawn, loc="outside right center")
    return drawn


def residuals(evidence: Evidence) -> Figure | None:
    """Mean of observed less predicted, and one standard deviation on either side, over what was predicted."""
    arms = _calibrated(evidence)
    if not arms:
        return None
    drawn = figure(3.2)
    mean, sd = drawn.subplots(1, 2)
    mean.axhline(0, color="grey", linewidth=0.8)
    for number, (arm, entry) in enumerate(arms.items()):
        x = [b["score"] for b in entry["bins"]]
        look = {"color": looks(evidence, arm)["color"], "marker": MARKERS[number % len(MARKERS)], "markersize": 4}
        mean.plot(x, [b["residual"] for b in entry["bins"]], linewidth=1, label=arm, **look)
        sd.plot(x, [b["residual_sd"] for b in entry["bins"]], linewidth=1, **look)
    sd.set_ylim(bottom=0)
    mean.set_title("mean", fontsize=9)
    sd.set_title("standard deviation", fontsize=9)
    unit = f", {evidence.unit}" if evidence.unit else ""
    mean.set(xlabel=f"mean predicted {evidence.named_outcome}", ylabel=f"observed less predicted{unit}")
    sd.set(xlabel=f"mean predicted {evidence.named_outcome}", ylabel=f"observed less predicted{unit}")
    legend(drawn, loc="outside lower center", ncols=4)
    return drawn


def observed_expected(evidence: Evidence) -> Figure | None:
    """Of counts: in a part the mean outcome over the mean prediction is the ratio of their sums."""
    arms = _calibrated(evidence)
    if not arms:
        return None
    drawn, axes = single_axes(3.0)
    axes.axhline(1, color="grey", linewidth=0.8)
    for number, (arm, entry) in enumerate(arms.items()):
        known = [part for part in entry["bins"] if part["score"] > 0]
        look = {"color": looks(evidence, arm)["color"], "marker": MARKERS[number % len(MARKERS)], "markersize": 4}
        ratios = [part["observed"] / part["score"] for part in known]
        axes.plot([part["score"] for part in known], ratios, linewidth=1, label=arm, **look)
    axes.set_ylim(bottom=0)
    axes.set(xlabel=f"mean predicted {evidence.named_outcome}", ylabel="observed / expected")
    legend(drawn, loc="outside right center")
    return drawn


PAGE = """
{% if "number-calibration" in tables or "predicted-observed" in svgs %}<h3>Calibration and residuals</h3>
{{ show("number-calibration") }}{{ draw("predicted-observed") }}{{ draw("residuals") }}{{ draw("observed-expected") }}
{%- endif %}
"""
SECTION = Section(
    PAGE,
    tables=(number_calibration_table,),
    figures={
        "predicted-observed": Drawing(
            "Predicted and observed",
            "Tenths of all test rows by prediction, or fewer parts where these would hold less than ten rows. On the "
            "diagonal, predictions mean what they say.",
            predicted_observed,
            of_task=True,
            detailed=True,
        ),
        "residuals": Drawing(
            "Residuals",
            "What is left of observed less predicted in the same parts: its mean, which should be 0, and its standard "
            "deviation. Where that grows with the prediction, errors of large predictions are larger.",
            residuals,
            of_task=True,
            detailed=True,
        ),
        "observed-expected": Drawing(
            "Observed / expected",
            "Events that happened in each of these parts, divided by those that were predicted. Above 1 the model "
            "expects too few.",
            observed_expected,
            of_task=True,
            detailed=True,
        ),
    },
)
