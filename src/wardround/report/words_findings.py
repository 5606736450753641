"""The sentences of a report on findings: which are in averages, and from which score on they are called."""

from wardround.report.evidence import Evidence
from wardround.report.table import listed


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
        told.append(
            f"Left out of every average over findings{where}, because no test row has {has}: {listed(findings)}."
        )
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
    return [
        "At a site, the average is over the findings that its test rows have, so that sites with different ones cannot "
        f"be compared with each other: {listed(short)}."
    ]


def _thresholds(evidence: Evidence) -> list[str]:
    sound = [arm for name, arm in evidence.arms.items() if evidence.figure(name)["mean"] is not None]  # not diverged
    chosen = {name: all(arm["findings"][name]["threshold"]["chosen"] for arm in sound) for name in evidence.findings}
    without = [name for name, was in chosen.items() if not was]
    rule = "A finding is called from the score on that gives the best F1 on validation rows, for each arm and seed"
    if not without:
        return [f"{rule}."]
    if len(without) == len(chosen):
        return ["Thresholds were not chosen, for want of validation rows: every finding is called from a score of 0.5."]
    return [f"{rule}; from 0.5 on where no validation row has it: {listed(without)}."]


def _shown(evidence: Evidence) -> list[str]:
    if evidence.reference in evidence.arms:
        return []
    return [f"The study names no reference; shown in detail is {evidence.main_arm}, the highest in AUC."]
