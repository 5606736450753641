"""All attacks on one run; their results are the content of attack.json."""

from collections.abc import Callable, Collection, Mapping
from os import PathLike
from typing import Any, Literal, Unpack

from wardround.attacks import canary, inversion
from wardround.attacks.inversion import Effort
from wardround.attacks.membership import infer_membership
from wardround.attacks.target import Target, open_target
from wardround.core.errors import StudyError, shown, suggest
from wardround.core.registry import Members
from wardround.privacy.dp.accountant import Charge, epsilon
from wardround.privacy.dp.epsilons import to_json
from wardround.privacy.dp.example_dp import Rule
from wardround.privacy.dp.protection import seeded_streams
from wardround.study.schema import Arm
from wardround.training.trial import Trial

KINDS = ("inversion", "membership", "canary")
FILE = "attack.json"
SCHEMA = 1
CONFIDENCE = 0.95  # that no bound of the audit exceeds a true claim by chance
MOST_SITES = 4  # of an arm, by sampling rate
Progress = Callable[[str], None]


def attack_run(
    path: str | PathLike[str],
    *,
    arms: Collection[str] = (),
    only: Collection[str] = KINDS,
    quick: bool = False,
    at: Literal["initial", "trained"] = "initial",
    shadows: int | None = None,
    progress: Progress | None = None,
    **members: Unpack[Members],
) -> dict[str, Any]:
    """Attack a complete run; writes attack.json and figures into its folder and returns the content of the file.

    `at` selects the weights for gradient inversion. The audit has failed where `passed` is False.
    """
    for where, names in (("--arm", arms), ("--only", only)):
        if not isinstance(names, list | tuple | set | frozenset) or not all(isinstance(name, str) for name in names):
            raise StudyError(where, f"expected a list of names, found {shown(names)}", "Give names in a list.")
    for kind in only:
        if kind not in KINDS:
            raise StudyError("--only", f"there is no attack {shown(kind)}", suggest(kind, KINDS, "Attacks"))
    target = open_target(path, list(arms), **members)
    return attack_target(target, only, quick, at, shadows, progress or (lambda line: None))


def attack_target(
    target: Target,
    only: Collection[str],
    quick: bool,
    at: Literal["initial", "trained"],
    shadows: int | None,
    progress: Progress,
) -> dict[str, Any]:
    images, starts = (1, 1) if quick else (5, 2)  # rows that are reconstructed, and attempts at each
    usual = (8, 0) if quick else (16, 4)  # shadow models of a small and of a large model
    small_shadows, large_shadows = usual if shadows is None else (shadows, shadows)
    content: dict[str, Any] = {
        "schema": SCHEMA,
        "study": {"name": target.plan.study.name, "hash": target.plan.study.hash},
        "seed": target.seed,
        "quick": quick,
        "synthetic": target.plan.synthetic,
        "arms": {arm.name: _protection_of(arm) for arm in target.arms},
    }
    pictures: list[inversion.Picture] = []
    if "inversion" in only:
        content["inversion"], pictures = inversion.invert_arms(target, at, images, Effort(starts=starts), progress)
    if "membership" in only:
        content["membership"] = {
            arm.name: infer_membership(target, arm, small_shadows, large_shadows, progress) for arm in target.arms
        }
    content["passed"] = None  # no claim was tested
    if "canary" in only:
        content["canary"] = audit_claims(target, 1 if quick else MOST_SITES, progress)
        content["passed"] = all(audit["holds"] for of_arm in content["canary"].values() for audit in of_arm)
    from wardround.attacks.figures import draw

    target.folder.write_json(FILE, content)
    draw(content, pictures, target.folder.path / "figures")
    return content


def _protection_of(arm: Arm) -> dict[str, Any]:
    example = arm.privacy.example
    return {
        "algorithm": arm.algorithm.name,
        "model": arm.model.name,
        "epsilon": to_json(example.promised) if example else None,
        "delta": example.delta if example else None,
        "secure_sum": arm.privacy.secure_sum is not None,
        "site_epsilon": arm.privacy.site.epsilon if arm.privacy.site else None,
    }


def audit_claims(target: Target, most_sites: int, progress: Progress) -> dict[str, list[dict[str, Any]]]:
    """For each protected arm and its sites: a lower bound on epsilon, and the claim."""
    sites_of = {
        arm.name: chosen_sites(target.charges(arm.name), most_sites)
        for arm in target.arms
        if arm.privacy.example is not None and arm.privacy.example.clip != "none"  # without clipping nothing is claimed
    }
    number = sum(len(sites) for sites in sites_of.values())
    confidence = 1 - (1 - CONFIDENCE) / max(number, 1)  # Bonferroni
    audits: dict[str, list[dict[str, Any]]] = {}
    by_release: dict[str, dict[str, Any]] = {}  # arms that differ only in their algorithm have equal releases
    for name, sites in sites_of.items():
        trial = target.trial(target.plan.arm(name, target.seed))
        audits[name] = []
        for site, charges in sites.items():
            key = repr((site, charges, trial.privacy.example))
            if key not in by_release:
                progress(f"{name}: releases of {site}")
                by_release[key] = audit_site(trial, site, charges, confidence, target.seed)
            audits[name].append({"site": site, **by_release[key]})
    return audits


def audit_site(trial: Trial, site: str, charges: list[Charge], confidence: float, seed: int) -> dict[str, Any]:
    names = [trained.name for trained in trial.sites]
    number = names.index(site) if site in names else 0
    rule, example = trial.rule(number), trial.privacy.example
    if rule is None or example is None:
        raise ValueError("only releases of a protected arm can be attacked")
    streams = seeded_streams(seed, 0, f"attack: {site}")
    stages = stages_of(trial, number, sum(charge.steps for charge in charges))
    audit = canary.audit(rule, charges, example.delta, streams, confidence=confidence, stages=stages)
    return {
        "claim": audit.claim,
        "replace_claim": epsilon(charges, example.delta, "replace"),
        "target": example.epsilon,
        "delta": example.delta,
        "bound": audit.bound.epsilon,
        "limit": audit.bound.limit,
        "guess": audit.bound.guess,
        "right": audit.bound.right,
        "wrong": audit.bound.wrong,
        "draws": audit.bound.draws,
        "confidence": confidence,
        "rate": rule.rate,
        "noise": rule.noise,
        "steps": audit.steps,
        "holds": audit.holds,
        "can_fail": audit.can_fail,
    }


def stages_of(trial: Trial, number: int, steps: int) -> list[tuple[Rule, int]]:
    """Rules and their steps at a site whose noise changes over the rounds, up to `steps`; empty if it is constant."""
    if trial.privacy.example is None or trial.privacy.example.noise_schedule is None:
        return []
    stages: dict[Rule, int] = {}
    for round_number, charge in enumerate(trial.charges(number)):
        rule, count = trial.rule(number, round_number), min(charge.steps, steps)
        if rule is not None and count:
            stages[rule] = stages.get(rule, 0) + count
        steps -= count
    return list(stages.items())


def chosen_sites(charges: Mapping[str, list[Charge]], most: int) -> dict[str, list[Charge]]:
    """One site for each distinct list of charges, those with the highest sampling rate first."""
    kinds: dict[tuple[Charge, ...], str] = {}
    for site, of_site in charges.items():
        kinds.setdefault(tuple(sorted(of_site)), site)
    ordered = sorted(kinds, key=lambda kind: (-max((charge.rate for charge in kind), default=0.0), kinds[kind]))
    return {kinds[kind]: list(kind) for kind in ordered[:most] if kind}
