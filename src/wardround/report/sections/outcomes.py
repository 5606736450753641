"""Several outcomes of one model: what each came to, and where its own report is."""

from typing import Any

from wardround.evaluation.answer import main_arms, primary_figure, primary_word
from wardround.evaluation.comparisons.measures import measure_of
from wardround.report.evidence import Evidence, outcome_page
from wardround.report.render.table import Table, make_table
from wardround.report.section import Section
from wardround.tasks import METRIC_FACTS

PAGE = """<section id="outcomes"><h2>Outcomes</h2>
<p>The study predicts {{ outcome_names }} with one model: the outcomes share its body, and each has a head of its own.
The loss of a row is the sum of the outcomes' losses times their weights ({{ outcome_weights }}). This report is about
<b>{{ evidence.results["outcome"] }}</b>; each outcome is scored by its own metrics.</p>
{{ show("outcomes") }}
<ul>
{% for other in other_outcomes %}
<li><a href="{{ other.page }}">{{ other.name }}</a>: {{ other.answer }}</li>
{% endfor %}
</ul></section>"""


def outcomes_table(evidence: Evidence) -> Table:
    """Each outcome's primary metric under every arm of the study as it stands."""
    arms = list(main_arms(evidence.results))
    rows = [
        [name, _metric(content), *(_figure(content, arm) for arm in arms)]
        for name, content in evidence.outcomes.items()
    ]
    columns = {"outcome": None, "metric": None, **dict.fromkeys(arms)}
    return make_table("outcomes", "Every outcome by its own metric", columns, rows, "Mean with its 95 % CI.")


def _metric(content: dict[str, Any]) -> str:
    better = METRIC_FACTS[content["primary_metric"]].better
    return f"{primary_word(content)} ({better} is better)"


def _figure(content: dict[str, Any], arm: str) -> str:
    figure, measure = primary_figure(content, arm), measure_of(content, content["primary_metric"])
    if figure["mean"] is None:
        return "none"
    mean = measure.figure(figure["mean"])
    if figure["interval"] is None:
        return mean
    low, high = map(measure.figure, measure.metric.within(figure["interval"]))
    return f"{mean} ({low} to {high})"


def _others(evidence: Evidence) -> list[dict[str, str]]:
    return [
        {
            "name": name,
            "page": "report.html" if name == next(iter(evidence.outcomes)) else outcome_page(name),
            "answer": " ".join(sentence["text"] for sentence in evidence.outcomes[name]["answer"]),
        }
        for name in evidence.other_outcomes
    ]


def _weights(evidence: Evidence) -> str:
    given = evidence.study["data"].get("outcome_weights") or {}
    return ", ".join(f"{name} {given.get(name, 1):g}" for name in evidence.outcomes)


SECTION = Section(
    PAGE,
    anchor="outcomes",
    link="Outcomes",
    values={
        "outcome_names": lambda evidence: ", ".join(evidence.outcomes),
        "outcome_weights": _weights,
        "other_outcomes": _others,
    },
    tables=(outcomes_table,),
)
