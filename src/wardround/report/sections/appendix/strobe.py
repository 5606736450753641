"""STROBE (von Elm et al., BMJ 2007), for a study's analyses: each item in our words, filled in where the run knows the
answer. What a run cannot know is left to the authors, and says so."""

from collections.abc import Mapping
from typing import Any

from wardround.report.evidence import Evidence
from wardround.report.render.table import counted, listed
from wardround.report.sections.analyses.regression import FAMILIES
from wardround.report.sections.appendix.checklist import checklist_section

Results = Mapping[str, Mapping[str, Any]]


def strobe(evidence: Evidence) -> list[tuple[str, str, str]]:
    """Number, topic and answer of each item; an empty answer is for the authors."""
    analyses: Results = evidence.results["analyses"]
    regressions = {name: own for name, own in analyses.items() if own["kind"] == "glm"}
    described = [name for name, own in analyses.items() if own["kind"] == "table-one"]
    question = evidence.study.get("question")
    sites = dict.fromkeys(site for own in analyses.values() for site in own["sites"])
    answers = {
        "3": f"Question of the study: {question}" if question else "",
        "5": f"{counted(len(sites), 'hospital')}: {', '.join(sites)}",
        "7": "; ".join(f"{name}: {own['formula']}" for name, own in regressions.items()),
        "8": f"Source: {evidence.study['data']['source']}",
        "10": "Rows at hand. No sample size was calculated.",
        "12": "; ".join(
            [*(_methods(name, own) for name, own in regressions.items()), *_missing(regressions, described)]
        ),
        "13": "; ".join(_numbers(name, own) for name, own in analyses.items()),
        "14": f"See Table 1 ({listed(described)}), with the rows that have no value in each column"
        if described
        else "",
        "16": f"See the tables of {listed(list(regressions))}, with intervals" if regressions else "",
    }
    return [(number, topic, answers.get(number, "")) for number, topic in TOPICS.items()]


def _methods(name: str, own: Mapping[str, Any]) -> str:
    methods = f"{name}: {FAMILIES[own['family']]}"
    if own["site_effects"] == "random":
        return f"{methods} at each hospital, then random effects (REML); {100 * own['confidence']:g} % intervals"
    errors = "robust standard errors, clustered by patient" if own["errors"] == "robust" else "model standard errors"
    methods += " with Firth's correction" if own["firth"] else ""
    return f"{methods}, {errors}, {100 * own['confidence']:g} % intervals"


def _missing(regressions: Results, described: list[str]) -> list[str]:
    of_regressions = "rows with a gap in a column of a regression do not count in it" if regressions else ""
    of_tables = "gaps are counted in Table 1, and none is filled" if described else ""
    return [words for words in (of_regressions, of_tables) if words]


def _numbers(name: str, own: Mapping[str, Any]) -> str:
    numbers = own["flow"]["overall"] if own["kind"] == "table-one" else {"rows": own["n"], "patients": own["patients"]}
    told = f"{name}: {counted(numbers['rows'], 'row')} of {counted(numbers['patients'], 'patient')}"
    left_out = [site["site"] for site in own["left_out"]]
    return told + (f", without {listed(left_out)} (a rule of disclosure)" if left_out else "")


TOPICS = {
    "1": "Title and abstract: the design, what was done, what was found",
    "2": "Background",
    "3": "Objectives",
    "4": "Study design",
    "5": "Setting: places and dates",
    "6": "Participants: who was eligible, and how they were found",
    "7": "Variables: outcomes, exposures, confounders",
    "8": "Sources of data, and how variables were measured",
    "9": "Bias",
    "10": "Study size",
    "11": "Quantitative variables: how they were handled, and which groups were formed",
    "12": "Statistical methods; missing data",
    "13": "Numbers of participants at each stage",
    "14": "Characteristics of the participants; missing values of each variable",
    "15": "Outcome data",
    "16": "Main results, with their precision",
    "17": "Other analyses",
    "18": "Key results",
    "19": "Limits",
    "20": "Interpretation",
    "21": "Generalisability",
    "22": "Funding",
}
SECTION = checklist_section("strobe", "STROBE checklist", "STROBE", strobe)
