"""The answer in sentences: what the study found. Page one says the same in plain words."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from wardround.evaluation.participation.hospitals import was_there
from wardround.report.evidence import Evidence
from wardround.report.phrases import SYNTHETIC
from wardround.report.section import Section
from wardround.report.sections import remarks

QUICK = "This is the study at its quick size (--quick): fewer rows or rounds than it needs to be believed."
MOST_NAMED = 12  # hospitals; the table of results has all


def answer(evidence: Evidence) -> list[str]:
    """Page one's answer, then that in figures: the arms against the reference, federation against staying alone,
    classes that a model never predicts, and what was published.

    Before it one sentence where an audit failed, one where not all invited hospitals took part, and one where no
    patient is behind it all; after it what privacy cost.
    """
    sentences = [
        *remarks(evidence, "alarms"),
        participation_sentence(evidence.results),
        SYNTHETIC if evidence.synthetic else None,
        QUICK if evidence.environment.get("quick") else None,
        *(_decided(evidence) if evidence.decided else []),
        *in_figures(evidence),
    ]
    return [sentence for sentence in sentences if sentence is not None]


def _decided(evidence: Evidence) -> list[str]:
    """What page one says first."""
    told = evidence.decision["sentences"]
    return [sentence for sentence in (told["answer"], told["size"], f"Next: {told['next']}") if sentence]


def in_figures(evidence: Evidence) -> list[str]:
    """On the report's page, where page one stands before it."""
    return [*(sentence["text"] for sentence in evidence.results["answer"]), *remarks(evidence, "answer")]


def on_page(evidence: Evidence) -> list[str]:
    return in_figures(evidence) if evidence.decided else answer(evidence)


def participation_sentence(results: Mapping[str, Any]) -> str | None:
    """None where everybody took part in everything, and in a simulation."""
    invited: Mapping[str, Mapping[str, Any]] = results.get("participation") or {}
    missing = {site: entry for site, entry in invited.items() if not was_there(entry)}
    if not missing:
        return None
    named = [_absence(site, entry) for site, entry in list(missing.items())[:MOST_NAMED]]
    if len(missing) > MOST_NAMED:
        named.append(f"and {len(missing) - MOST_NAMED} more")
    here = len(invited) - len(missing)
    whole = f"{here} of {len(invited)} invited hospitals were there throughout"
    return f"Not everybody took part: {whole}. {'; '.join(named)}."


def _absence(site: str, entry: Mapping[str, Any]) -> str:
    why = f" ({entry['reason']})" if entry["reason"] else ""
    if not entry["joined"]:
        return f"{site} did not take part{why}"
    parts = []
    if entry["rounds"] < entry["of"]:
        parts.append(f"its work counted in {entry['rounds']} of {entry['of']} rounds over all arms and seeds")
    if not entry["scored"]:
        parts.append("none of its patients are in the figures")
    return f"{site}: {' and '.join(parts)}{why}"


PAGE = """
<section id="answer"><h2>{{ "The answer in figures" if evidence.decided else "Answer" }}</h2>
{% for sentence in sentences %}
{% set kind = "failed" if sentence in alarms else "synthetic" if sentence == synthetic else "answer" %}
<p class="{{ kind }}"{{ " role=alert" if kind == "failed" }}>{{ sentence }}</p>
{% endfor %}
</section>"""
SECTION = Section(PAGE, "answer", "Answer", values={"sentences": on_page, "alarms": partial(remarks, target="alarms")})
