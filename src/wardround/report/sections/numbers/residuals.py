"""Whether predicted numbers mean what they say: predicted against observed, and what is left. A part of the results."""

from typing import Any

from matplotlib.figure import Figure

from wardround.report.evidence import Evidence
from wardround.report.render.figures import Drawing
from wardround.report.render.style import MARKERS, figure, legend, looks, single_axes
from wardround.report.render.table import Table, decimals, make_table
from wardround.report.section import Section


def _calibrated(evidence: Evidence) -> dict[str, dict[str, Any]]:
    arms = {name: evidence.arms[name]["calibration"] for name in evidence.few_arms}
    return {name: entry for name, entry in arms.items() if entry and entry["bins"]}


def number_calibration_table(evidence: Evidence) -> Table | None:
    rows = [
        [name, *_line(arm["calibration"]["slope"]), *_line(arm["calibration"]["intercept"])]
        for name, arm in evidence.arms.items()
        if arm["calibration"] and arm["calibration"]["slope"]
    ]
    if not rows:
        return None
    return make_table(
        "number-calibration",
        "Calibration",
        {"arm": None, **dict.fromkeys(("slope", "from", "to", "intercept", "from ", "to "), decimals)},
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
    drawn, axes = single_axes(3.9, 5.4)
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
    mean.set(xlabel=f"mean predicted {evidence.named_outcome}", ylabel="observed less predicted, mean")
    sd.set(xlabel=f"mean predicted {evidence.named_outcome}", ylabel="observed less predicted, SD")
    legend(drawn, loc="outside lower center", ncols=4)
    return drawn


PAGE = """
{% if "number-calibration" in tables or "predicted-observed" in svgs %}<h3>Calibration and residuals</h3>
{{ show("number-calibration") }}{{ draw("predicted-observed") }}{{ draw("residuals") }}{% endif %}
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
        ),
        "residuals": Drawing(
            "Residuals",
            "What is left of observed less predicted in the same parts: its mean, which should be 0, and its standard "
            "deviation. Where that grows with the prediction, errors of large predictions are larger.",
            residuals,
        ),
    },
)
