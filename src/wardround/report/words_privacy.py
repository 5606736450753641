"""The sentences of a report on differential privacy and secure sums, for whoever answers for the patients' data."""

import math
from collections.abc import Mapping
from typing import Any

from wardround.evaluation.comparisons.compare import in_words
from wardround.evaluation.comparisons.differences import is_clear
from wardround.privacy.dp.epsilons import from_json
from wardround.privacy.dp.exposure import exposure_text
from wardround.report.evidence import Evidence
from wardround.report.spent import (
    Line,
    epsilon_lines,
    is_clipped,
    noisy_arms,
    protected_arms,
    same_setting,
    spent_epsilon,
    unclipped_arms,
    unprotected_arms,
)
from wardround.report.table import listed
from wardround.report.tables_privacy import said
from wardround.runs.spending import EACH_SITE

UNPROTECTED = (
    "Neither differential privacy nor secure aggregation was used: whoever sees single updates may learn something "
    "about single patients from them."
)
SEEDED = (
    "No guarantee: this was a simulation. Its noise and its draws of patients follow from the study's seed, so that "
    "whoever has the study file can take the noise away again. The figures below say what the same study would "
    "promise when it runs across hospitals, where noise comes from a secret of each site."
)
KEPT = (
    "Guaranteed: noise and draws of patients came from a secret that each site drew from its operating system (for "
    "whole sites, the coordinator) and destroyed after the run."
)
MANY = 0.05  # of the budget: a total that is further above the largest arm's is worth a sentence


def protection_words(evidence: Evidence) -> list[str]:
    """What is protected from whom, arm by arm where arms differ; what nothing protects is said too."""
    protected = protected_arms(evidence)
    if not protected:
        return [UNPROTECTED]
    noisy, told = noisy_arms(evidence), []
    if noisy:
        told.append(KEPT if evidence.results["privacy"]["guarantee"] else SEEDED)
    told += _patients(noisy) + _sites(noisy) + _sums(protected) + _without(evidence) + _unclipped(evidence)
    told += _ends(protected)
    if noisy:
        told += [*_in_all(evidence), *_conditions(noisy)]
    return told


def asked_words(blocks: Mapping[str, Any]) -> str:
    """What the study asks for; arms may differ from it."""
    told = []
    for name, whose in (("example", "patients"), ("site", "whole sites")):
        block = blocks.get(name)
        if block:
            told.append(_asked(block, whose))
    if blocks.get("secure_sum") is not None:
        told.append("secure sum")
    return "; ".join(told) + ", unless an arm says otherwise"


def _asked(block: Mapping[str, Any], whose: str) -> str:
    noise = f", noise {block['noise']:g}" if block.get("noise") else ""
    if block.get("noise_schedule"):
        noise += f", in the last round {block['noise_schedule']['last']:g} times the noise of the first"
    if block["clip"] == "none":
        return f"no clip, so that no epsilon holds for {whose}{noise}"
    clip = "an adaptive clip from" if block.get("adaptive") else "clip"
    asked = f"epsilon {block['epsilon']:g}, delta {block['delta']:g}, {clip} {block['clip']:g}{noise}"
    return f"differential privacy of {whose}: {asked}"


def _patients(noisy: Mapping[str, Any]) -> list[str]:
    arms = {name: arm for name, arm in noisy.items() if arm["example"]}
    spent = {name: spent_epsilon(arm) for name, arm in arms.items()}
    known = {name: value for name, value in spent.items() if value is not None}
    if not known:
        return []
    deltas = sorted({arms[name]["example"]["delta"] for name in known})
    levels = ", ".join(f"{name} {said(value)}" for name, value in known.items())
    return [
        "Across hospitals, patients are protected from everybody who sees what their hospital sends or the finished "
        "model, the coordinator and the other hospitals included: in every step the influence of a patient, with all "
        "rows, is cut to the clip and drowned in noise before anything leaves the hospital.",
        f"Epsilon that was spent (by the site that spent most; delta {listed([f'{delta:g}' for delta in deltas])}): "
        f"{levels}. {_meaning(min(known.values()), max(known.values()))}",
    ]


def _meaning(spent: float, most: float) -> str:
    """Of the smallest and the largest epsilon. By Bayes: odds change by a factor of e^epsilon at most, but for the
    small delta."""
    chance, highest = (1 / (1 + math.exp(-one)) for one in (spent, most))
    other = f"; with {said(most)}, {_percent(highest)} sure" if most > spent else ""
    told = f"Whoever held it for even odds that a certain patient took part can be at most {_percent(chance)} sure"
    return (
        f"What {said(spent)} means: {told} after seeing everything, whatever else is known{other} (but for a chance of "
        "about delta). Below 1 is strong, up to about 8 is common practice, far above it the promise is on paper only."
    )


def _percent(chance: float) -> str:
    if chance < 0.995:
        return f"{100 * chance:.0f} %"
    return f"{100 * chance:.1f} %" if chance < 0.9995 else "all but 100 %"


def _sites(noisy: Mapping[str, Any]) -> list[str]:
    arms = {name: (arm["sites"].get(EACH_SITE) or {}).get("epsilon") for name, arm in noisy.items() if arm["site"]}
    if not arms:
        return []
    told = listed([name if value is None else f"{name} (epsilon {said(value)})" for name, value in arms.items()])
    return [
        f"Whole hospitals are protected in {told}: the update of a site is clipped as one and the coordinator "
        "adds noise to the sum. That protects from whoever sees the models, not from the coordinator."
    ]


def _sums(protected: Mapping[str, Any]) -> list[str]:
    arms = [name for name, arm in protected.items() if arm["secure_sum"] and arm["federated"]]
    if not arms:
        return []
    return [
        f"Secure sum in {listed(arms)}: the coordinator learnt the sum of the sites' updates in each round, and the "
        "number of rows behind it, and no single site's update. The sum itself is not hidden."
    ]


def _without(evidence: Evidence) -> list[str]:
    federated = [name for name in unprotected_arms(evidence) if name in evidence.federated]
    if not federated or not noisy_arms(evidence):
        return []
    alone = [name for name in unprotected_arms(evidence) if name not in evidence.federated]
    also = f" So do figures of {listed(alone)}, which have no noise either." if alone else ""
    return [
        f"Without differential privacy: {listed(federated)}. Such an arm tells what the others hide of the same "
        f"patients; it is there to compare with, in a simulation.{also}"
    ]


def _unclipped(evidence: Evidence) -> list[str]:
    arms = unclipped_arms(evidence)
    if not arms:
        return []
    return [
        f"Without a clip: {listed(arms)}. One patient can move such a model as far as it likes, so that no noise hides "
        "anybody: epsilon is infinite, there and in every total that counts such an arm. It is there to compare with, "
        "in a simulation, and refused across hospitals."
    ]


def _ends(protected: Mapping[str, Any]) -> list[str]:
    told = []
    for name, arm in protected.items():
        if arm["stopped"]:
            sites = listed([f"{site} (from round {number} on)" for site, number in arm["stopped"].items()])
            told.append(f"{name}: stopped because the next round would have exceeded epsilon: {sites}.")
        if arm["failed_rounds"]:
            count = len(arm["failed_rounds"])
            first = arm["failed_rounds"][0]
            which = f"the first is round {first['round']} with seed {first['seed']}: {first['why']}"
            told.append(f"{name}: {count} round{'s' if count > 1 else ''} without a secure sum; {which}.")
            told[-1] += " Such a round fails closed: nothing was revealed, and the model stayed as it was."
    return told


def _in_all(evidence: Evidence) -> list[str]:
    spent = {site: from_json(row["epsilon"]) or 0.0 for site, row in evidence.results["privacy"]["total"].items()}
    arms = [value for arm in noisy_arms(evidence).values() if (value := spent_epsilon(arm)) is not None]
    if not spent or not arms:
        return []
    site = max(spent, key=lambda name: spent[name])
    covered = (
        exposure_text(evidence.results["privacy"]["exposure"]) if "exposure" in evidence.results["privacy"] else ""
    )
    if spent[site] <= (1 + MANY) * max(arms):
        return [covered] if covered else []
    return [
        f"All arms and seeds used the same patients, and what they tell adds up: together epsilon "
        f"{said(spent[site])} at {site}. An arm's own epsilon holds for whoever sees that arm's model and "
        "updates of one seed only. A hospital that means it runs one private arm with one seed.",
        *([covered] if covered else []),
    ]


def _conditions(noisy: Mapping[str, Any]) -> list[str]:
    told = [
        "Two ways to count: add/remove compares the study with one without the patient (or site); replace compares it "
        "with one in which another takes the place, and is larger, mostly about twice. Targets are for add/remove.",
        "The numbers of rows and patients of each site are treated as public.",
    ]
    if any(arm["example"] for arm in noisy.values()):
        told.append(
            "Covered are patients whose rows train. Test and validation patients are not: metrics on their rows leave "
            "a site without noise."
        )
    return told


def cost_words(evidence: Evidence) -> str | None:
    """What privacy cost, beside the arm without noise: one sentence or two of the answer."""
    lines = epsilon_lines(evidence)
    told = [(line, against) for line in lines if (against := _against(evidence, line)) is not None]
    if not told:
        return None
    line, against = max(told, key=lambda pair: (pair[0].unprotected == evidence.reference, len(pair[0].arms)))
    tests = {test["arm"]: test for test in evidence.tests() if test["reference"] == against}
    parts = [f"epsilon {said(spent)}: {_cost(evidence, tests.get(name), name, against)}" for spent, name in line.arms]
    alike = "" if line.unprotected == against else ", which differs in more than that"
    if line.unprotected == against and not same_setting(evidence, line.arms[0][1], against):
        alike = ", which was trained with settings of its own"
    word, point = evidence.headline.word, evidence.headline.point
    tail = "" if evidence.results["privacy"]["guarantee"] else " Simulated noise: what it would cost, not a guarantee."
    return (
        f"What privacy cost in {word}, against {against} without noise{alike}, in points with 95 % CI, corrected for "
        f"all comparisons: {'; '.join(parts)}.{point}{_verdict(line, tests)}{tail}"
    )


def _against(evidence: Evidence, line: Line) -> str | None:
    """The arm without noise that a line is compared with: its like, or the reference where that has none."""
    reference = evidence.reference
    return line.unprotected or (reference if reference in unprotected_arms(evidence) else None)


def _cost(evidence: Evidence, test: Mapping[str, Any] | None, name: str, against: str) -> str:
    metric = evidence.headline.metric
    if test is not None and test["difference"] is not None:
        limits = [in_words(limit, metric, False) for limit in test["interval"] or ()]
        return f"{in_words(test['difference'], metric, False)} ({' to '.join(limits) or 'one seed, no interval'})"
    mine, other = evidence.figure(name)["mean"], evidence.figure(against)["mean"]
    if mine is None or other is None:
        return "no figures"
    return f"{in_words(mine - other, metric, False)} (no interval: {against} is not the reference)"


def _verdict(line: Line, tests: Mapping[str, Mapping[str, Any]]) -> str:
    found = {spent: tests[name] for spent, name in line.arms if name in tests and tests[name]["interval"] is not None}
    if not found:
        return ""
    clear = [spent for spent, test in found.items() if is_clear(test)]
    if not clear:
        return " All of it may be chance."
    return f" Chance does not explain epsilon {listed([said(spent) for spent in clear])}."


def privacy_limits(evidence: Evidence) -> list[str]:
    if not noisy_arms(evidence):
        return []
    lines = ["Differential privacy limits what is learnt of one patient. It does not hide what is true of all of them."]
    if not evidence.results["privacy"]["guarantee"]:
        lines.append("The noise of this run was simulated from a seed: no patient was protected by it.")
    lines.append(
        "Clip, learning rate and number of rounds are not paid for by any epsilon here. Whoever tried several on the "
        "same patients and kept the best has spent what all of them spent together."
    )
    return lines


def spent_lines(evidence: Evidence) -> list[str]:
    """For the terminal: one line for each private arm."""
    tail = "" if (evidence.results.get("privacy") or {}).get("guarantee") else "; no guarantee: simulation"
    told = []
    for name, arm in protected_arms(evidence).items():
        spent = spent_epsilon(arm)
        parts = []
        if not is_clipped(arm):
            parts.append("not clipped: epsilon infinite")
        elif arm["example"] or arm["site"]:
            whose = "a patient, the site that spent most" if arm["example"] else "a whole site"
            delta = (arm["example"] or arm["site"])["delta"]
            amount = "nothing was spent" if spent is None else f"epsilon {said(spent)} spent (delta {delta:g}"
            parts.append(amount if spent is None else f"{amount}, {whose}){tail}")
        if arm["secure_sum"] and arm["federated"]:
            parts.append("secure sum")
        parts += [f"{site} stopped in round {number}" for site, number in arm["stopped"].items()]
        if arm["failed_rounds"]:
            parts.append(f"{len(arm['failed_rounds'])} rounds without a sum")
        if parts:
            told.append(f"{name}: {'; '.join(parts)}")
    return told
