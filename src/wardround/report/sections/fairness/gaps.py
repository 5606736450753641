"""Gaps between groups of patients, where one class of two is predicted."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from wardround.evaluation.comparisons.differences import DIFFERS, GAPS
from wardround.evaluation.comparisons.measures import signed
from wardround.report.evidence import Evidence
from wardround.report.render.figures import Drawing
from wardround.report.render.style import figure, legend, looks, name_rows, offset, tell
from wardround.report.render.table import CI, Format, Table, limits, make_table, p_text, percent, points
from wardround.report.section import Section

KNOWN_AS = {
    "sensitivity": "equal opportunity",
    "selection_rate": "demographic parity",
    "calibration": "calibration in the large",
}
MOST_SENTENCES = 6
MOST_GROUPS = 24  # in the figure; the table has them all
DIFFERENCE: dict[str, Format | None] = {"points": points, **dict.fromkeys(CI, points), "p": p_text}


def gaps_of(evidence: Evidence, arm: str) -> list[dict[str, Any]]:
    """In the order in which kinds of groups are named."""
    entries = [entry for entry in evidence.results.get("group_gaps", ()) if entry["arm"] == arm]
    return sorted(entries, key=lambda entry: evidence.kinds.index(entry["kind"]))


def gap_table(evidence: Evidence) -> Table | None:
    rows = []
    for arm in evidence.detailed.few_arms:
        for entry in gaps_of(evidence, arm):
            own, largest = (_rate(evidence, entry, entry[value]) for value in ("group", "from"))
            change = [entry["difference"], *limits(entry["interval"]), entry["p_value"], entry["verdict"]]
            name = GAPS[entry["measure"]].words
            rows.append([arm, f"{entry['kind']}: {entry['group']}", entry["from"], name, own, largest, *change])
    names = {"arm": None, "group": None, "less": None, "figure": None}
    return make_table(
        "group-gaps",
        "Gaps between groups",
        {**names, "of the group": percent, "of the other": percent, **DIFFERENCE, "verdict": None},
        rows,
        "Each group less the one with the most test rows, in points. The share called positive is that at the "
        "threshold of the section Design. 95 % CI, corrected for the groups of an arm."
        f"{_where_told(evidence)}",
    )


def _rate(evidence: Evidence, entry: Mapping[str, Any], group: str) -> float | None:
    known = evidence.arms[entry["arm"]]["subgroups"][entry["kind"]].get(group, {}).get("rates")
    return None if known is None else known[entry["measure"]]["mean"]


def _where_told(evidence: Evidence) -> str:
    return " Over the sites that tell counts by class of a group." if evidence.deployed else ""


def gap_difference_table(evidence: Evidence) -> Table | None:
    rows = [
        [
            *(entry["arm"], entry["against"], f"{entry['kind']}: {entry['group']}", entry["from"]),
            GAPS[entry["measure"]].words,
            *(entry["difference"], *limits(entry["interval"]), entry["p_value"], entry["verdict"]),
        ]
        for entry in evidence.results.get("group_gap_differences", ())
        if entry["arm"] in evidence.arms
    ]
    names = dict.fromkeys(("arm", "against", "group", "less", "figure"))
    return make_table(
        "group-gap-differences",
        "Gaps under one arm less those under another",
        {**names, **DIFFERENCE, "verdict": None},
        rows,
        "In points, paired. A gap of -8 points that becomes one of -3 has changed by +5: see the table of gaps for "
        "where it began. 95 % CI, corrected for the arms and groups of a figure.",
    )


def gap_sentences(evidence: Evidence) -> list[str]:
    entries = gaps_of(evidence, evidence.main_arm)
    if not entries:
        return []
    clear = [entry for entry in entries if entry["verdict"] == DIFFERS]
    known = [entry for entry in entries if entry["interval"] is not None]
    what = "in sensitivity, in the share called positive or in calibration"
    if not clear:
        reason = "is larger than chance can explain" if known else "can be told from chance, for want of intervals"
        return [f"Under {evidence.main_arm} no gap between groups {what} {reason}."]
    shown = sorted(clear, key=lambda entry: -abs(entry["difference"]))[:MOST_SENTENCES]
    more = len(clear) - len(shown)
    return [*map(_sentence, shown), *([f"{more} more gaps are in the table."] if more else [])]


def _sentence(entry: Mapping[str, Any]) -> str:
    low, high = (signed(100 * limit, 1) for limit in entry["interval"])
    direction = "higher" if entry["difference"] > 0 else "lower"
    return (
        f"Under {entry['arm']} the {GAPS[entry['measure']].words} ({KNOWN_AS[entry['measure']]}) is "
        f"{abs(100 * entry['difference']):.1f} points {direction} for {entry['kind']} {entry['group']} than for "
        f"{entry['from']} (95 % CI {low} to {high}, corrected for {entry['comparisons']} comparisons)."
    )


def gaps(evidence: Evidence) -> Figure | None:
    arms = [arm for arm in evidence.few_arms if arm not in evidence.off_scale]
    entries = [entry for arm in arms for entry in gaps_of(evidence, arm)]
    places = list(dict.fromkeys(map(_place, entries)))
    if not 0 < len(places) <= MOST_GROUPS:
        return None
    drawn = figure(1.0 + len(places) * max(0.3, 0.13 * len(arms)))
    panels = dict(zip(GAPS, drawn.subplots(1, len(GAPS), sharey=True, squeeze=False)[0], strict=True))
    for measure, axes in panels.items():
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_xlabel(f"points of {GAPS[measure].words}", fontsize=8)
    for arm in arms:  # for the legend
        panels["sensitivity"].plot([], [], "o", color=looks(evidence, arm)["color"], markersize=4, label=arm)
    for entry in entries:
        aside = offset(arms.index(entry["arm"]), len(arms), 0.7)
        _draw_gap(panels[entry["measure"]], entry, places.index(_place(entry)) + aside, looks(evidence, entry["arm"]))
    name_rows(panels["sensitivity"], [f"{kind} {group} less {largest}" for kind, group, largest in places])
    if len(arms) > 1:
        legend(drawn, loc="outside lower center", ncols=4)
    return drawn


def _place(entry: Mapping[str, Any]) -> tuple[str, str, str]:
    return entry["kind"], entry["group"], entry["from"]


def _draw_gap(axes: Any, entry: Mapping[str, Any], y: float, look: Mapping[str, Any]) -> None:
    if entry["interval"] is not None:
        axes.plot([100 * limit for limit in entry["interval"]], [y, y], color=look["color"], linewidth=1.2)
    (mark,) = axes.plot(100 * entry["difference"], y, "o", color=look["color"], markersize=4)
    tell(mark, f"{entry['arm']}, {entry['group']} less {entry['from']}: {100 * entry['difference']:+.1f} points")


PAGE = """{% if "group-gaps" in tables %}<h3>Gaps between groups</h3>
<ul>{% for sentence in sentences %}<li>{{ sentence }}</li>{% endfor %}</ul>
<p>A gap says that groups are treated unlike, not why: they may differ in what is recorded of them, in how ill they are,
or in who was tested. Where groups have unlike risk, not all three gaps can be 0 at once.</p>
{{ draw("group-gaps") }}{% call fold("Every gap in numbers") %}{{ show("group-gaps") }}{% endcall %}
{% if "group-gap-differences" in tables %}
{% call fold("Every arm against " ~ evidence.reference) %}{{ show("group-gap-differences") }}{% endcall %}{% endif %}
{% endif %}"""
SECTION = Section(
    PAGE,
    values={"sentences": gap_sentences},
    tables=(gap_table, gap_difference_table),
    figures={
        "group-gaps": Drawing(
            "Gaps between groups of patients",
            "Each group less the one with the most test rows, with 95 % CI, corrected for the groups of an arm.",
            gaps,
            detailed=True,
        )
    },
)
