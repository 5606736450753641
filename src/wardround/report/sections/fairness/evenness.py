"""How evenly hospitals are served: intervals, arms against the reference, spread against mean over a swept setting."""

import numpy as np
from matplotlib.figure import Figure

from wardround.evaluation.comparisons.differences import SPREAD
from wardround.report.arms import swept_values
from wardround.report.evidence import Evidence
from wardround.report.phrases import corrected
from wardround.report.render.figures import Drawing
from wardround.report.render.style import legend, looks, single_axes, tell
from wardround.report.render.table import CI, Table, limits, make_table, p_text
from wardround.report.section import Section

FEWEST_ARMS = 3  # that a figure of spread against mean has


def interval_table(evidence: Evidence) -> Table | None:
    headline, rows = evidence.headline, []
    for name, arm in evidence.arms.items():
        for measure, figure in (arm["spread"].get("over_sites") or {}).items():
            low, high = limits(figure["interval"])
            rows.append([name, SPREAD[measure], figure["mean"], low, high])
    return make_table(
        "spread-intervals",
        "How evenly the sites are served, with intervals",
        {"arm": None, "of the sites' figures": None, **dict.fromkeys((headline.above(), *CI), headline.spread)},
        rows,
        "Within one seed, on average over seeds. Hospitals with few test rows differ by chance alone, so that no "
        "arm comes to 0: what counts is the difference between arms.",
    )


def difference_table(evidence: Evidence) -> Table | None:
    headline = evidence.headline
    rows = [
        [
            *(entry["arm"], entry["against"], SPREAD[entry["measure"]], entry["difference"]),
            *(*limits(entry["interval"]), entry["p_value"], entry["verdict"]),
        ]
        for entry in evidence.results.get("spread_differences", ())
        if entry["arm"] in evidence.arms
    ]
    numbers = {**dict.fromkeys((headline.points, *CI), headline.difference), "p": p_text, "verdict": None}
    return make_table(
        "spread-differences",
        "How evenly the sites are served, against the reference",
        {**dict.fromkeys(("arm", "against", "of the sites' figures")), **numbers},
        rows,
        f"Paired. A smaller SD or distance is a gain, and a better worst hospital. {corrected(evidence)}",
    )


def spread_against_mean(evidence: Evidence) -> Figure | None:
    """A mark for each arm; the values of a swept setting are joined in their order."""
    headline, points = evidence.headline, _points(evidence)
    swept = {family: values for family, values in swept_values(evidence).items() if len(values[1]) > 1}
    if not swept or len(points) < FEWEST_ARMS:
        return None
    drawn, axes = single_axes(4.0)
    for setting, values in swept.values():
        known = {value: points[name] for value, name in values.items() if name in points}
        axes.plot(*np.array(list(known.values())).reshape(-1, 2).T, "-", color="grey", linewidth=1)
        for value, point in known.items():
            axes.annotate(f"{setting} {value:g}", point, textcoords="offset points", xytext=(5, 4), fontsize=8)
    first = {evidence.arms[name]["family"]: name for name in reversed(points)}  # of each family: it is in the legend
    for name, point in points.items():
        family = evidence.arms[name]["family"]
        label = family if first[family] == name else None
        (mark,) = axes.plot(*point, "o", color=looks(evidence, name)["color"], markersize=5, label=label)
        tell(mark, f"{name}: {point[0]:.3g}, SD over sites {point[1]:.3g}")
    axes.set_xlabel(f"mean {headline.word} over sites{headline.unit}")
    axes.set_ylabel(f"SD over sites, {'points' if headline.in_points else headline.word}{headline.unit}")
    axes.margins(0.12)
    legend(drawn, loc="outside lower center", ncols=5)
    return drawn


def _points(evidence: Evidence) -> dict[str, tuple[float, float]]:
    """Mean and SD over sites of each arm that has both."""
    headline, points = evidence.headline, {}
    for name in (name for name in evidence.arms if name not in evidence.off_scale):
        arm = evidence.arms[name]
        spread, mean = arm["spread"].get("over_sites"), arm["within_sites"].get(headline.metric)
        if spread and mean and None not in (spread["sd"]["mean"], mean["mean"]):
            points[name] = headline.scale * mean["mean"], headline.difference_scale * spread["sd"]["mean"]
    return points


PAGE = """{% if "spread-intervals" in tables %}{{ draw("spread-against-mean") }}
{% call fold("How evenly the sites are served, with intervals") %}
{{ show("spread-intervals") }}{{ show("spread-differences") }}{% endcall %}{% endif %}"""
SECTION = Section(
    PAGE,
    tables=(interval_table, difference_table),
    figures={
        "spread-against-mean": Drawing(
            "Spread over hospitals against their mean",
            "A mark for each arm: mean {metric} over hospitals and its SD over hospitals, within one seed, on average "
            "over seeds. Lines join the values of a swept setting.",
            spread_against_mean,
        )
    },
)
