"""The sentences of a report on findings: which are in averages, and from which score on they are called."""

from wardround.report.evidence import Evidence
from wardround.report.table import listed
from wardround.study.schema import CHOSEN


def finding_words(evidence: Evidence) -> list[str]:
    if not evidence.findings:
        return []
    return [
        *left_out_words(evidence),
        *_at_sites(evidence),
        *_thresholds(evidence),
        *_shown(evidence),
    ]


def left_out_words(evidence: Evidence) -> list[str]:
    """Which findings averages are without, and why."""
    lacking: dict[tuple[str, ...], list[str]] = {}
    for name, arm in evidence.arms.items():
        if arm.get("left_out"):
            lacking.setdefault(tuple(arm["left_out"]), []).append(name)
    told = []
    for findings, arms in lacking.items():
        where = "" if len(arms) == len(evidence.arms) else f" under {listed(arms)}"
        has = "it" if len(findings) == 1 else "them"
        why = f"no test row has {has}"
        if evidence.deployed:
            few = evidence.deployment.smallest_cell
            why += f", or fewer than {few} patients of each hospital, which then does not tell"
        told.append(f"Left out of every average over findings{where}, because {why}: {listed(findings)}.")
    return told


def _at_sites(evidence: Evidence) -> list[str]:
    """At a site, averages are over the findings that its own test rows have."""
    arm = evidence.arms[evidence.main_arm]
    described = {name: found for name, found in arm["findings"].items() if name not in arm["left_out"]}
    counts = {
        site: sum(bool(found["sites"].get(site, {}).get("positives")) for found in described.values())
        for site in arm["sites"]
    }
    short = [f"{site} {count} of {len(described)}" for site, count in counts.items() if count < len(described)]
    if not short:
        return []
    which = "of which it tells by class" if evidence.deployed else "that its test rows have"
    return [
        f"At a site, the average is over the findings {which}, so that sites with different ones cannot be compared "
        f"with each other: {listed(short)}."
    ]


def _thresholds(evidence: Evidence) -> list[str]:
    given = evidence.study.get("evaluation", {}).get("threshold", CHOSEN)
    if given != CHOSEN:
        return [f"Every finding is called from a score of {given:g} on, as the study says."]
    sound = [arm for name, arm in evidence.arms.items() if evidence.figure(name)["mean"] is not None]  # not diverged
    chosen = {name: all(arm["findings"][name]["threshold"]["chosen"] for arm in sound) for name in evidence.findings}
    without = [name for name, was in chosen.items() if not was]
    if evidence.deployed:
        return _at_hospitals(evidence, without)
    rule = "A finding is called from the score on that gives the best F1 on validation rows, for each arm and seed"
    if not without:
        return [f"{rule}."]
    if len(without) == len(chosen):
        return ["Thresholds were not chosen, for want of validation rows: every finding is called from a score of 0.5."]
    return [f"{rule}; from 0.5 on where no validation row has it: {listed(without)}."]


def _at_hospitals(evidence: Evidence, without: list[str]) -> list[str]:
    """Across hospitals each chooses for itself, and keeps the threshold."""
    some = f" (at some hospital: {listed(without)})" if without else ""
    return [
        "Each hospital calls a finding from the score on that gives the best F1 on its own validation rows, for each "
        "arm and seed, and keeps that score to itself. Where fewer than "
        f"{evidence.deployment.smallest_cell} of these patients have the finding, it is called from 0.5 on{some}.",
        "ROC and precision-recall curves are drawn from histograms of the hospitals' scores, and are not exact.",
    ]


def _shown(evidence: Evidence) -> list[str]:
    if evidence.reference in evidence.arms:
        return []
    return [f"The study names no reference; shown in detail is {evidence.main_arm}, the highest in AUC."]
