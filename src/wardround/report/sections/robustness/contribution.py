"""What each hospital adds: dots with intervals, and a table."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure

from wardround.report.evidence import Evidence
from wardround.report.headline import Headline
from wardround.report.render.figures import Drawing
from wardround.report.render.style import COLOURS, legend, name_rows, offset, single_axes, tell
from wardround.report.render.table import CI, Table, make_table
from wardround.report.section import Section

SEVERAL = {"value": "Shapley value", "leave_one_out": "left out", "to_others": "left out, for the others"}
MOST_LINES = 8  # hospitals in the terminal


def content_of(evidence: Evidence) -> Mapping[str, Any]:
    content: Mapping[str, Any] = evidence.results["contribution"]
    return content


def scored_by(evidence: Evidence) -> Headline:
    return evidence.headline_for(content_of(evidence)["metric"])


def shown_kinds(evidence: Evidence) -> list[str]:
    """Which figures there are. Where hospitals are left out one by one, that is the value."""
    content = content_of(evidence)
    if content["method"] == "leave-one-out":
        return ["leave_one_out", "to_others"]
    return ["value", "leave_one_out", "to_others"] if content["method"] == "shapley" else ["value"]


def how_estimated(evidence: Evidence) -> str:
    content = content_of(evidence)
    trained, models = content["trainings"], content["models"]
    if content["method"] == "leave-one-out":
        return f"each hospital is left out once, in {trained} trainings with each seed"
    exact = "all coalitions of hospitals" if content["exact"] else "some coalitions of hospitals, drawn by chance"
    if content["method"] == "shapley":
        return f"Shapley values from {exact}: {trained} trainings with each seed"
    return f"Shapley values from {exact}: {models} models with each seed, put together from the updates of one training"


def lines(evidence: Evidence) -> list[str]:
    content, metric = content_of(evidence), scored_by(evidence)
    found = [f"What each hospital adds to the {metric.word} of {content['arm']}: {how_estimated(evidence)}."]
    if content["whole"] is not None and content["nobody"] is not None:
        found.append(
            f"The model of all has {metric.text(content['whole'])}, the model before any training "
            f"{metric.text(content['nobody'])}, on validation rows of all hospitals together; test rows had no part in "
            "it."
        )
    if content["method"] != "leave-one-out":
        found.append("Shapley values of all hospitals add up to the difference of these two.")
    if content["method"] == "reconstruction":
        found.append(
            "Updates were computed beside those of the others, so that a model put together from some of them is not "
            "the one that these hospitals would have trained. Take it as an approximation."
        )
    else:
        found.append(
            "A hospital's own patients are among the validation rows. What it adds for the others is measured without "
            "them."
        )
    found.append("A small value is no judgement: where hospitals have alike patients, any of them can be spared.")
    return found


def terminal_lines(evidence: Evidence) -> list[str]:
    content = content_of(evidence)
    kind = shown_kinds(evidence)[0]
    known = {site: own[kind] for site, own in content["sites"].items() if own[kind]["mean"] is not None}
    order = sorted(known, key=lambda site: float(known[site]["mean"]))  # whoever adds least comes first
    shown = [f"{site} {_text(evidence, known[site])}" for site in order[:MOST_LINES]]
    more = f" and {len(order) - MOST_LINES} more" if len(order) > MOST_LINES else ""
    return [lines(evidence)[0], f"  {'; '.join(shown)}{more}"] if shown else [lines(evidence)[0]]


def _text(evidence: Evidence, figures: Mapping[str, Any]) -> str:
    measure = scored_by(evidence).measure
    ends = figures["interval"]
    interval = "" if ends is None else f" ({' to '.join(measure.difference(end, with_unit=False) for end in ends)})"
    return f"{measure.difference(figures['mean'])}{interval}"


def contribution_table(evidence: Evidence) -> Table:
    content, metric = content_of(evidence), scored_by(evidence)
    kinds = shown_kinds(evidence)
    rows = []
    for site, own in content["sites"].items():
        first = own[kinds[0]]
        rows.append([site, first["mean"], *(first["interval"] or (None, None)), first["error"]])
        rows[-1] += [own[kind]["mean"] for kind in kinds[1:]]
    columns: dict[str, Any] = {
        "hospital": None,
        f"{SEVERAL[kinds[0]]}, {metric.points}": metric.difference,
        CI[0]: metric.difference,
        CI[1]: metric.difference,
        "standard error of the estimate": metric.difference,
    } | {f"{SEVERAL[kind]}, {metric.points}": metric.difference for kind in kinds[1:]}
    return make_table(
        "contribution",
        "What each hospital adds",
        columns,
        rows,
        "Positive: the model is better with the hospital. Intervals are over seeds; with one seed over the coalitions "
        "that were drawn. The standard error is that of drawing some coalitions in place of all.",
    )


def by_hospital(evidence: Evidence) -> Figure | None:
    content, metric, kinds = content_of(evidence), scored_by(evidence), shown_kinds(evidence)
    names = list(content["sites"])
    if not names:
        return None
    drawn, axes = single_axes(1.2 + 0.3 * len(names))
    for place, kind in enumerate(kinds):
        for row, site in enumerate(names):
            own = content["sites"][site][kind]
            if own["mean"] is not None:
                y = row + offset(place, len(kinds), 0.6)
                _draw(axes, own, y, metric, place, SEVERAL[kind], first=row == 0)
                tell(axes.lines[-1], f"{site}, {SEVERAL[kind]}: {_text(evidence, own)}")
    axes.axvline(0, color="0.3", linewidth=0.8)
    name_rows(axes, names)
    axes.set_xlabel(metric.amount_of(metric.word))
    legend(drawn, loc="outside lower center", ncols=3)
    return drawn


def _draw(
    axes: Any, figures: Mapping[str, Any], y: float, metric: Headline, place: int, label: str, first: bool
) -> None:
    colour, scale = COLOURS[place], metric.difference_scale
    if figures["interval"] is not None:
        axes.plot([scale * end for end in figures["interval"]], [y, y], color=colour, linewidth=1.4)
    style = {"color": colour, "linestyle": "none", "markersize": 5, "label": label if first else None}
    axes.plot([scale * figures["mean"]], [y], "osD"[place], **style)


PAGE = """
<section id="contribution"><h2>What each hospital adds</h2>
{% for line in lines %}<p>{{ line }}</p>
{% endfor %}
{{ draw("contribution") }}
{{ show("contribution") }}
</section>
"""

SECTION = Section(
    PAGE,
    "contribution",
    "What each hospital adds",
    values={"lines": lines},
    tables=(contribution_table,),
    figures={
        "contribution": Drawing(
            "What each hospital adds",
            "Dots are means over seeds with 95 % intervals. To the right of 0 the model is better with the hospital.",
            by_hospital,
            one_seed="Dots with the 95 % interval that drawing some coalitions leaves, where they were drawn. To the "
            "right of 0 the model is better with the hospital.",
        )
    },
)
