"""Why the model says so: what matters over all hospitals and at each, and coefficients of a linear model."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from scipy.special import ndtri

from wardround.report.evidence import Evidence
from wardround.report.explained import explained_figures, explained_tables
from wardround.report.render.figures import Drawing
from wardround.report.render.table import Table, listed
from wardround.report.section import Section

NAMED = 3  # columns in a sentence
CERTAIN = 0.05


def content_of(evidence: Evidence) -> Mapping[str, Any]:
    """Of the arm that is shown in detail; of the first explained one where that is none of them."""
    explained: Mapping[str, Mapping[str, Any]] = evidence.results["explanations"]
    return explained.get(arm_of(evidence), {})


def arm_of(evidence: Evidence) -> str:
    explained = evidence.results["explanations"]
    return evidence.main_arm if evidence.main_arm in explained else next(iter(explained), "")


def sentences(evidence: Evidence) -> list[str]:
    content, arm = content_of(evidence), arm_of(evidence)
    if not content.get("whole"):
        return [f"For {arm} importance and effects are withheld: {content.get('withheld')}."]
    return [*important(content, arm), *apart(content), *left_out(content)]


def important(content: Mapping[str, Any], arm: str) -> list[str]:
    ranked = explained_tables.ranked(content["whole"]["importance"])
    widened = ndtri(1 - CERTAIN / 2 / len(ranked))  # Bonferroni's, because the largest of many is named
    sure = [name for name, own in ranked if own["se"] is not None and own["increase"] > widened * own["se"]]
    patients = f"{content['whole']['patients']:,} test patients"
    if not sure:
        return [f"No column of {arm} matters by more than chance can explain, on {patients}."]
    others = len(ranked) - len(sure)
    each = "shuffled, each raises" if len(sure) > 1 else "shuffled, it raises"
    words = f"{arm} relies most on {listed(sure[:NAMED])}: {each} the loss on {patients}."
    rest = f" {others} of {len(ranked)} columns cannot be told from chance (corrected for their number)."
    return [words + (rest if others else "")]


def apart(content: Mapping[str, Any]) -> list[str]:
    """Where hospitals disagree."""
    own = content.get("hospitals") or {}
    if len(own) < 2:
        return []
    differ = content.get("differences") or {}
    clear = sorted((name for name, test in differ.items() if test["p_holm"] < CERTAIN), key=lambda n: differ[n]["p"])
    if not clear:
        return ["For no column do hospitals differ in importance by more than chance can explain."]
    return [where_apart(name, own) for name in clear[:NAMED]]


def where_apart(name: str, own: Mapping[str, Any]) -> str:
    rises = {site: told["importance"][name]["increase"] for site, told in own.items()}
    most, least = max(rises, key=rises.__getitem__), min(rises, key=rises.__getitem__)
    return (
        f"Hospitals disagree about {name}: shuffling it changes the loss by {rises[most]:+.3f} at {most} and by "
        f"{rises[least]:+.3f} at {least}. Look how each of them records it."
    )


def left_out(content: Mapping[str, Any]) -> list[str]:
    names = [site["site"] for site in content.get("left_out", ())]
    return [f"Left out by a rule of disclosure: {listed(names)}."] if names else []


def as_table(name: str) -> Callable[[Evidence], Table | None]:
    make: Callable[[Mapping[str, Any]], Table | None] = getattr(explained_tables, name)
    return lambda evidence: make(content_of(evidence))


def importance(evidence: Evidence) -> Figure | None:
    return explained_figures.importance_figure(content_of(evidence))


def effects(evidence: Evidence) -> Figure | None:
    return explained_figures.effects_figure(content_of(evidence))


def arms(evidence: Evidence) -> Sequence[str]:
    return [name for name in evidence.results["explanations"] if name != arm_of(evidence)]


PAGE = """<section id="explanations"><h2>Why the model says so</h2>
<ul>{% for sentence in sentences %}<li>{{ sentence }}</li>{% endfor %}</ul>
<p>These figures are about what {{ arm }} does with the columns, not about what causes the outcome. Of two columns that
say the same, each may look unimportant, because the other is still there.</p>
{{ draw("importance") }}
{% if "importance" in tables %}{% call fold("Importance in numbers") %}{{ show("importance") }}
{{ show("importance-hospitals") }}{% endcall %}{% endif %}
{{ show("coefficients") }}
{{ draw("effects") }}
{% if "effects" in tables %}{% call fold("Effects in numbers") %}{{ show("effects") }}{% endcall %}{% endif %}
{% if others %}<p class="meta">results.json also explains {{ others | join(", ") }}; <code>wardround explain RUN --arm
NAME --out DIR</code> makes their pages.</p>{% endif %}</section>"""
SECTION = Section(
    PAGE,
    "explanations",
    "Why the model says so",
    values={"sentences": sentences, "arm": arm_of, "others": arms},
    tables=tuple(
        as_table(name)
        for name in ("importance_table", "hospital_importance_table", "coefficient_table", "effect_table")
    ),
    figures={
        "importance": Drawing(
            "How much each column matters",
            "By how much the mean loss on test rows rises when the column is shuffled within each hospital, with 95 % "
            "CI over patients. Each grey dot is a hospital.",
            importance,
        ),
        "effects": Drawing(
            "How the score changes along the columns that matter most",
            "Accumulated local effects of numbers; of each level the mean score when every row is given it. Grey lines "
            "and dots are hospitals. 0 is the mean over rows.",
            effects,
        ),
    },
)
