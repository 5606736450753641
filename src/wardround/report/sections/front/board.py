"""Page one: the question, the answer and what it rests on, for readers who decide and do not do statistics."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from wardround.evaluation.comparisons.differences import is_clear
from wardround.evaluation.decision.words import size
from wardround.report.evidence import Evidence, rows_of
from wardround.report.render.table import CI, FEWEST, NONE, Table, limits, listed, make_table
from wardround.report.section import Section
from wardround.report.sections import remarks
from wardround.report.sections.answer import QUICK, participation_sentence
from wardround.report.sections.front.forest import STAY, Forest, forest_of

MEAN = "mean"
MOST_LINES = 60  # of the forest plot; more do not fit a page
MOST_NAMED = 12
SAME = 1e-6  # of differences that are computed in two ways
TOO_GOOD = (
    "Too good to be true? Nearly every test patient with the outcome has a higher predicted risk than every one "
    "without. Before you believe these figures, look for a column that is known only because of the outcome."
)
RULES = {
    "reference": "it is the study's reference",
    "selected": "it is the first in the study in which all hospitals train together, with the setting that validation "
    "rows chose",
    "first": "it is the first in the study in which all hospitals train together",
}


def cautions(evidence: Evidence) -> list[str]:
    """What must be known before the answer is read."""
    training = [entry["text"] for entry in evidence.results["answer"] if entry["about"] == "training"]
    perfect = {notice.get("arm") for notice in evidence.results["notices"] if notice["code"] == "perfect-scores"}
    training += [TOO_GOOD] if evidence.decision["arm"] in perfect else []
    known = [participation_sentence(evidence.results), QUICK if evidence.environment.get("quick") else None, *training]
    return [sentence for sentence in known if sentence is not None]


def sentences(evidence: Evidence) -> dict[str, str]:
    """Those of the decision. Where nobody trains alone: what the study compares instead."""
    told: dict[str, str] = dict(evidence.decision["sentences"])
    if evidence.decision["why_not"] is not None:
        instead = [entry["text"] for entry in evidence.results["answer"] if entry["about"] == "reference"]
        compares = ". What it compares instead:" if evidence.tests() else "."
        told["size"] = f"A way of training is called an arm{compares} {instead[0]}" if instead else ""
    return told


def alone_compared(evidence: Evidence) -> bool:
    """Whether hospitals are compared with themselves alone; parties are not."""
    return evidence.decision["why_not"] is None and not evidence.decision["parties"]


def comparisons(evidence: Evidence) -> dict[str, Mapping[str, Any] | None]:
    """Each hospital and their mean against staying alone; where that was not compared, arms against the reference."""
    decision = evidence.decision
    if not alone_compared(evidence):
        return {test["arm"]: test for test in evidence.tests() if test["difference"] is not None}
    own = {site: entry["comparison"] for site, entry in decision["sites"].items()}
    return own | ({MEAN: decision["mean"]} if len(own) > 1 else {})


def forest(evidence: Evidence) -> Forest | None:
    """With more than MOST_LINES hospitals those with a gain or a loss, then those with the largest differences."""
    entries = comparisons(evidence)
    if not any(entry and entry["difference"] is not None for entry in entries.values()):
        return None
    shown = dict(entries)
    if len(entries) > MOST_LINES:
        ranked = sorted((name for name in entries if name != MEAN), key=lambda name: _rank(entries[name]))
        kept = {*ranked[: MOST_LINES - 1], MEAN}
        shown = {name: entry for name, entry in entries.items() if name in kept}
    drawn = forest_of(shown, sizes(evidence), evidence.headline.measure, MEAN)
    folded = len(entries) - len(shown)
    if not folded:
        return drawn
    text = f"Not drawn: {folded} hospitals with the smallest differences, none of them clear. Each has a page."
    return replace(drawn, folded=text)


def _rank(entry: Mapping[str, Any] | None) -> tuple[bool, float]:
    """Clear ones first, then by the size of the difference."""
    if entry is None or entry["difference"] is None:
        return True, 0.0
    return not is_clear(entry), -abs(entry["difference"])


def sizes(evidence: Evidence) -> dict[str, str]:
    """By hospital: its rows, and of two classes those with the second."""
    texts = {}
    for site, counts in evidence.site_counts.items():
        event = events(evidence, counts)
        texts[site] = f"{rows_of(counts):,}" if event is None else f"{rows_of(counts):,} / {event}"
    return texts


def events(evidence: Evidence, counts: Mapping[str, Any]) -> str | None:
    """Rows of the second of two classes. Not where one class has few rows: it would follow from the other."""
    if len(evidence.classes) != 2 or evidence.findings:
        return None
    known = counts["classes"].values()
    if any(count is None or 0 < count < FEWEST for count in known):
        return NONE
    return f"{counts['classes'][evidence.classes[1]]:,}"


def forest_table(evidence: Evidence) -> Table | None:
    rows = [
        [name, entry["difference"], *limits(entry["interval"]), entry["verdict"]]
        for name, entry in comparisons(evidence).items()
        if entry is not None and entry["difference"] is not None
    ]
    headline = evidence.headline
    columns = {"hospital": None, **dict.fromkeys((headline.points, *CI), headline.difference), "verdict": None}
    return make_table("forest", "Page one: every hospital and their mean against staying alone", columns, rows)


def facts(evidence: Evidence) -> dict[str, str]:
    told = {
        "How good the predictions are": levels(evidence),
        "Who took part": took_part(evidence),
        "Patients": patients(evidence),
        "What left the hospitals": released(evidence),
        "Privacy": protected(evidence),
        "What these data could have shown": evidence.decision["sentences"]["power"],
        "Other ways": evidence.decision["sentences"]["others"],
    }
    return {title: text for title, text in told.items() if text}


def took_part(evidence: Evidence) -> str:
    names = evidence.sites
    if evidence.decision["parties"]:
        names = list(evidence.study.get("topology", {}).get("parties", names))
    some = listed([*names[:MOST_NAMED], f"{len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else names)
    many = f"{len(names)} hospital{'s' if len(names) != 1 else ''}"
    if simulated := evidence.results.get("adversaries"):
        bad = simulated["sites"]
        which = listed([*bad[:MOST_NAMED], f"{len(bad) - MOST_NAMED} more"] if len(bad) > MOST_NAMED else bad)
        return f"{many}: {some}. Besides, {which} trained, simulated as bad; no figure counts them."
    if not evidence.deployed:
        return f"{many}: {some}."
    missing = participation_sentence(evidence.results)
    return f"{many}: {some}. {'Who did not: see above.' if missing else 'All that were invited took part throughout.'}"


def patients(evidence: Evidence) -> str:
    decision, counts = evidence.decision, evidence.site_counts.values()
    rows, tested = sum(map(rows_of, counts)), sum(site["test"] for site in counts)
    people = decision["patients"] or rows
    text = f"{people:,} patients" + (f" with {rows:,} records" if rows != people else "")
    known = [site["classes"].get(evidence.classes[1]) for site in counts] if _two_classes(evidence) else []
    if known and None not in known and not 0 < sum(known) < FEWEST:
        text += f", {sum(known):,} with {decision['event']}"
    runs = "" if evidence.seeds == 1 else f" in each of {evidence.seeds} training runs"
    return f"{text}. {tested:,} records were kept for testing{runs}."


def _two_classes(evidence: Evidence) -> bool:
    return len(evidence.classes) == 2 and not evidence.findings


def released(evidence: Evidence) -> str:
    cost = evidence.arms[evidence.main_arm]["cost"]
    what = (
        "numbers that its part of the model computes for each patient"
        if evidence.decision["parties"]
        else "its changes to the model's weights"
    )
    sent = (
        f"{what} {cost['rounds']} times in one training run ({cost['bytes_up'] / 1000:,.1f} KB from all hospitals "
        "together)"
    )
    if not evidence.deployed:
        return (
            "Nothing: this was a simulation on one machine. Across hospitals, each would send "
            f"{sent}, and no patient's record."
        )
    told = "after training, counts and sums over its test patients"
    return f"No patient's record. Each hospital sent {sent}, and {told}."


def protected(evidence: Evidence) -> str:
    arm = evidence.private_arms.get(evidence.main_arm)
    if arm is None or not (arm["example"] or arm["site"] or arm["secure_sum"]):
        return (
            "No noise was added (no differential privacy), and the coordinator could read what each hospital sends (no "
            "secure aggregation)."
        )
    from wardround.report.sections.privacy.spending import spent_text  # only where something is protected

    parts = [spent_text(arm, evidence.results["privacy"]["guarantee"])]
    parts.append("only sums over hospitals were seen (secure aggregation)" if arm["secure_sum"] else "")
    return f"{'; '.join(filter(None, parts))}.".replace("epsilon", "privacy loss epsilon", 1)


def levels(evidence: Evidence) -> str:
    """The figures between which the answer's difference lies: a gain means more where models are poor."""
    decision, headline = evidence.decision, evidence.headline
    if not alone_compared(evidence):
        return ""
    values = [_level(evidence, decision[which]) for which in ("arm", "alone")]
    both = [value for value in values if value is not None]
    if len(both) < len(values) or abs(both[0] - both[1] - decision["mean"]["difference"]) > SAME:
        return ""  # one has no result, or they are means over other hospitals than the difference
    together, alone = (headline.text(value) for value in both)
    if not headline.measure.metric.counted:
        return f"{headline.title} {together} when training together, {alone} with each hospital alone."
    sizes_of = [size(headline.measure, value) for value in both]
    return (
        f"Training together: {sizes_of[0]} ({headline.word} {together}). Each hospital alone: {sizes_of[1]} "
        f"({headline.word} {alone})."
    )


def _level(evidence: Evidence, arm: str) -> float | None:
    """Of the metric by which arms are compared: the mean of the hospitals' own."""
    value: float | None = evidence.arms[arm]["within_sites"].get(evidence.headline.metric, {}).get("mean")
    return value


def _against(decision: Mapping[str, Any]) -> str:
    if decision["alone"] is None:
        return ""
    return f", compared with {decision['alone']}" + (
        "" if decision["parties"] else ", in which each hospital trains alone"
    )


def notes(evidence: Evidence) -> list[str]:
    """What words mean, and by which rules the page was made."""
    decision, mean = evidence.decision, evidence.decision["mean"]
    lines = []
    if decision["arm"] is not None:
        alone = _against(decision)
        lines.append(
            f"“Training together” is the way of training (below: arm) called {decision['arm']}{alone}. It was "
            f"chosen before any result was known: {RULES[decision['chosen_by']]}."
        )
    if mean is not None and mean["interval"] is not None:
        count = mean["comparisons"]
        widened = f", widened because this report looks at {count} differences" if count > 1 else ""
        lines.append(
            "95 % CI (confidence interval): the range in which the true difference lies in 95 of 100 such "
            f"studies{widened}."
        )
    if decision["patients_needed"] is not None:
        important = decision["important_difference"]
        which = "is stated by the study" if important["stated"] else "is the default, because the study states none"
        lines.append(
            f"The smallest difference taken to matter {which}. Numbers of patients assume enough training runs, and "
            "that uncertainty shrinks with the square root of the number of patients."
        )
    return lines


PAGE = """
{% from "front.html" import forest_plot with context %}
<section id="front">
{% for sentence in alarms %}<p class="failed" role="alert">{{ sentence }}</p>{% endfor %}
{% for sentence in cautions %}<p class="caution">{{ sentence }}</p>{% endfor %}
<p class="board">{{ sentences.answer }}</p>
{% if sentences.size %}<p class="lead">{{ sentences.size }} {{ sentences.hospitals }}</p>{% endif %}
<p class="next"><b>What to do next.</b> {{ sentences.next }}</p>
{% set explained %}<p class="meta">{{ notes | join(" ") }}</p>{% endset %}
{% set many = forest and forest.is_dense %}
<div class="beside">
{% if forest %}<div>
{{ forest_plot(forest, "table-forest", caption, sized) }}{{ explained if not many }}</div>{% endif %}
<div><dl class="facts">
{% for title, text in facts.items() %}<div><dt>{{ title }}</dt><dd>{{ text }}</dd></div>{% endfor %}
</dl>{{ explained if many or not forest }}</div>
</div>
</section>"""


def caption(evidence: Evidence) -> str:
    if not alone_compared(evidence):
        return f"Each way of training (arm) against {evidence.reference}"
    return "Training together against staying alone"


def sized(evidence: Evidence) -> str:
    """The heading of the numbers of patients; empty where lines are no hospitals."""
    if not alone_compared(evidence):
        return ""
    return f"records / with{STAY}{evidence.decision['outcome']}" if _two_classes(evidence) else "records"


SECTION = Section(
    PAGE,
    "front",
    "Page one",
    values={
        "alarms": partial(remarks, target="alarms"),
        "cautions": cautions,
        "sentences": sentences,
        "forest": forest,
        "caption": caption,
        "sized": sized,
        "facts": facts,
        "notes": notes,
    },
    tables=(forest_table,),
)
