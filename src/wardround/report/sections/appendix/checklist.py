"""TRIPOD+AI (Collins et al., BMJ 2024): each item in our words, filled in where the run knows the answer.

What a run cannot know (why, who, ethics, registration) is left to the authors, and says so.
"""

from collections.abc import Callable, Mapping
from typing import Any

from wardround.report.evidence import Evidence
from wardround.report.section import Section
from wardround.report.sections.design.settings import design


def checklist(evidence: Evidence) -> list[tuple[str, str, str]]:
    """Number, topic and answer of each item; an empty answer is for the authors."""
    settings = design(evidence)
    answers = _on_data(evidence, settings) | _on_analysis(evidence, settings) | _on_results(evidence, settings)
    return [(number, topic, answers.get(number, "")) for number, topic in TOPICS.items()]


def _on_data(evidence: Evidence, settings: Mapping[str, str]) -> dict[str, str]:
    question, data = evidence.study.get("question"), evidence.study["data"]
    described = evidence.results["sites"][0]
    sizes = described["heterogeneity"]["sizes"]
    features = described["features"]
    fitted = "from public ranges and levels, nothing fitted" if data.get("public") else "fitted on training rows"
    return {
        "4": f"Question of the study: {question}" if question else "",
        "5": f"Source: {settings['data']}",
        "6": f"{len(sizes)} sites: " + ", ".join(f"{site} ({rows} rows)" for site, rows in sizes.items()),
        "7": f"Images, scale = {data['scale']}"
        if evidence.of_images
        else f"missing = {data['missing']}, categories = {data['categories']}, scale = {data['scale']}; {fitted}",
        "8": evidence.task.report.outcome,
        "9": f"{len(features)} prepared columns: {', '.join(features)}"
        if features
        else "signals"
        if evidence.signals
        else "images",
        "10": "Rows at hand; see the table of sites. No sample size was calculated.",
        "11": "" if evidence.of_images else _missing_values(data),
    }


def _missing_values(data: Mapping[str, Any]) -> str:
    missing = data["missing"]
    if missing == "drop":
        return "Rows with gaps were left out"
    value = "the middle of the column's public range" if missing == "range" else f"the site's own {missing}"
    return f"Filled with {value}" + (", with indicator columns" if data["indicator"] else "")


def _on_analysis(evidence: Evidence, settings: Mapping[str, str]) -> dict[str, str]:
    sites, facts = evidence.site_counts.values(), evidence.task.report
    per_class = {name: [site["classes"][name] for site in sites] for name in evidence.classes}
    withheld = any(None in counts for counts in per_class.values())
    imbalance = ", ".join(f"{name} {sum(filter(None, counts))}" for name, counts in per_class.items())
    weights = evidence.study["training"].get("class_weights", "none")
    weighting = "No reweighting" if weights == "none" else f"Loss weighted by class: {weights}"
    arms = f"{len(evidence.arms)} arms: {', '.join(evidence.arms)}"
    groups = sorted({kind for arm in evidence.arms.values() for kind in arm["subgroups"]})
    return {
        "12": f"{settings['model']}; {settings['training']}; {settings['split']}; {arms}",
        "13": facts.balance
        or f"Classes: {imbalance}{', without sites that withhold them' if withheld else ''}. {weighting}.",
        "14": f"Results by {', '.join(groups)}, by site, and the spread between sites" if groups else "Results by site",
        "15": facts.output,
    }


def _on_results(evidence: Evidence, settings: Mapping[str, str]) -> dict[str, str]:
    versions = evidence.environment.get("versions", {})
    calibrated = any(arm["calibration"] for arm in evidence.arms.values())
    external = "; external tests at hospitals that took no part" if evidence.partial else ""
    overlap = ", and of patients on both sides"
    if evidence.deployed:
        overlap = "; whether hospitals share patients is not known"
    curves = evidence.task.report.curves if calibrated else ""
    curves += " from the sites' score histograms" if calibrated and evidence.deployed else ""
    return {
        "16": f"Test rows are rows of the same sites, held out{external}",
        "18": f"Study file and hash in this page; wardround {versions.get('wardround')}, torch {versions.get('torch')}",
        "20": f"See the table of sites{overlap}",
        "21": f"Training and test rows of each site in the table of sites; seeds: {settings['seeds']}",
        "22": "Weights of every arm and seed in the run folder, as safetensors",
        "23": f"{evidence.task.report.quality}{curves}; with intervals, overall, by site and by group",
        "26": "See the section on limits",
    }


TOPICS = {
    "1": "Title: names the kind of study, the population and the outcome",
    "2": "Abstract",
    "3": "Background: the clinical question, who is to use the model, known differences in care",
    "4": "Objectives",
    "5": "Data: where they come from, and when they were collected",
    "6": "Participants: settings, hospitals, who was eligible, treatments",
    "7": "Preparation of the data, and whether it was alike for all groups",
    "8": "Outcome: definition, how and by whom it was assessed",
    "9": "Predictors: choice, definition, how they were measured",
    "10": "Sample size",
    "11": "Missing data",
    "12": "Analysis: use of the data, kind of model, tuning, differences between hospitals, measures of performance",
    "13": "Class imbalance",
    "14": "Fairness",
    "15": "What the model gives, and how groups are formed from it",
    "16": "Differences between training and evaluation data",
    "17": "Ethical approval and consent",
    "18": "Open science: funding, interests, protocol, registration, data and code",
    "19": "Involvement of patients and the public",
    "20": "Flow and characteristics of the participants",
    "21": "Numbers of participants and events in each analysis",
    "22": "The full model",
    "23": "Performance, with intervals and for important groups; differences between hospitals",
    "24": "Updating of the model",
    "25": "Interpretation, with regard to fairness and earlier studies",
    "26": "Limits",
    "27": "Use in practice: poor input, skills needed, next steps",
}
ITEMS = """
<p>Filled in where the run knows the answer; 
{{ items | rejectattr(2) | list | length }} of {{ items | length }} items are for the authors.</p>
<div class="scroll"><table class="checklist">
<thead><tr><th scope="col">item</th><th scope="col">topic</th><th scope="col">answer</th></tr></thead><tbody>
{% for number, topic, answer in items %}<tr><td>{{ number }}</td><th scope="row">{{ topic }}</th>
<td>{% if answer %}{{ answer }}{% else %}<i>for the authors</i>{% endif %}</td></tr>
{% endfor %}</tbody></table></div></section>"""


def checklist_section(
    anchor: str, heading: str, link: str, items: Callable[[Evidence], list[tuple[str, str, str]]]
) -> Section:
    """Of any reporting guideline."""
    return Section(f'<section id="{anchor}"><h2>{heading}</h2>{ITEMS}', anchor, link, {"items": items})


SECTION = checklist_section("checklist", "TRIPOD+AI checklist", "Checklist", checklist)
