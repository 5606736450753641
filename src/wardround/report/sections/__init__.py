"""The sections of a report in their order. To add one: write its module here, with a `SECTION`, and add its line.

A module is imported only for a run that its section applies to.
"""

from collections.abc import Callable
from importlib import import_module

from wardround.report.arms import approaches_differ, read_grid
from wardround.report.evidence import Evidence
from wardround.report.section import Section


def always(_: Evidence) -> bool:
    return True


def tells_uncertainty(evidence: Evidence) -> bool:
    return bool(evidence.uncertainty or (evidence.deployed and evidence.study.get("uncertainty")))


def has_analyses(evidence: Evidence) -> bool:
    return bool(evidence.results.get("analyses"))


UNTRAINED = ("analyses.all_analyses", "appendix.citations", "appendix.strobe")  # of a study without arms
SECTIONS: dict[str, Callable[[Evidence], bool]] = {
    "front.board": lambda evidence: evidence.decided,
    "robustness.adversaries": lambda evidence: bool(evidence.results.get("adversaries")),
    "front.hospital_pages": lambda evidence: evidence.decided,
    "analyses.all_analyses": has_analyses,
    "answer": always,
    "outcomes": lambda evidence: bool(evidence.outcomes),
    "sites": always,
    "images": lambda evidence: evidence.of_images,
    "results": always,
    "fairness.gaps": lambda evidence: bool(evidence.results.get("group_gaps")),
    "fairness.evenness": lambda evidence: any(arm["spread"].get("over_sites") for arm in evidence.arms.values()),
    "probabilities.calibration": lambda evidence: evidence.task.answers == "class",
    "probabilities.ranking": lambda evidence: evidence.task.answers in ("class", "findings"),
    "numbers.residuals": lambda evidence: evidence.task.answers == "number",
    "grid": lambda evidence: read_grid(evidence) is not None,
    "findings": lambda evidence: bool(evidence.findings),
    "hospitals": always,
    "explaining.explanations": lambda evidence: bool(evidence.results.get("explanations")),
    "approaches": approaches_differ,
    "uncertainty": lambda evidence: tells_uncertainty(evidence) and evidence.task.answers != "number",
    "numbers.intervals": lambda evidence: tells_uncertainty(evidence) and evidence.task.answers == "number",
    "topology": lambda evidence: bool(evidence.topologies("hierarchical") or evidence.topologies("vertical")),
    "participation.virtual_time": lambda evidence: any(arm.get("time") for arm in evidence.arms.values()),
    "forgetting": lambda evidence: bool(evidence.results.get("start_from")),
    "tuning": lambda evidence: bool(evidence.results.get("tuning")),
    "robustness.contribution": lambda evidence: bool(evidence.results.get("contribution")),
    "robustness.screening": lambda evidence: bool(evidence.results.get("screening")),
    "claims": lambda evidence: bool(evidence.results["claims"]),
    "statistics": always,
    "privacy.releases": always,
    "privacy.attacks": lambda evidence: evidence.attack is not None,
    "privacy.spending": lambda evidence: bool(evidence.private_arms),
    "design.settings": always,
    "design.federation": always,
    "design.pipeline": always,
    "limits": always,
    "appendix.citations": always,
    "appendix.checklist": always,
    "appendix.strobe": has_analyses,
    "appendix.cost": always,
}


def load_section(name: str) -> Section:
    section: Section = import_module(f"{__name__}.{name}").SECTION
    return section


def sections_of(evidence: Evidence) -> dict[str, Section]:
    known = SECTIONS if evidence.trained else {name: SECTIONS[name] for name in UNTRAINED}
    return {name: load_section(name) for name, applies in known.items() if applies(evidence)}


def remarks(evidence: Evidence, target: str) -> list[str]:
    """What sections that apply have to say in another one."""
    makers = [section.remarks[target] for section in sections_of(evidence).values() if target in section.remarks]
    return [sentence for maker in makers for sentence in maker(evidence)]
