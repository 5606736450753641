"""All attacks on one run, and what they found as plain data: the content of attack.json."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from wardround.attacks import canary, inversion, membership
from wardround.attacks.gradient_inversion import Effort
from wardround.attacks.shadows import Everyone, losses, shadow_losses
from wardround.attacks.target import Target, open_target
from wardround.core import seeds
from wardround.core.errors import StudyError, shown, suggest
from wardround.core.settings import Factory
from wardround.privacy.dp.accountant import Charge, epsilon
from wardround.privacy.dp.epsilons import to_json
from wardround.privacy.dp.example_dp import Rule
from wardround.privacy.dp.protection import seeded_streams
from wardround.study.schema import Arm
from wardround.training.trial import Trial

KINDS = ("inversion", "membership", "canary")
FILE = "attack.json"
SCHEMA = 1
CONFIDENCE = 0.95  # that no bound of the whole audit exceeds its claim by chance
MOST_SITES = 4  # of an arm whose releases are attacked: those whose patients are drawn most often
Said = Callable[[str], None]


@dataclass(frozen=True)
class Sizes:
    """How much is tried."""

    images: int  # rows that are reconstructed
    starts: int  # of the search for an image
    shadows: int  # shadow models of a small model
    large_shadows: int  # of a large one
    sites: int

    @classmethod
    def of(cls, quick: bool, shadows: int | None) -> "Sizes":
        found = cls(1, 1, 8, 0, 1) if quick else cls(5, 2, 16, 4, MOST_SITES)
        return found if shadows is None else cls(found.images, found.starts, shadows, shadows, found.sites)


def attack_run(
    path: str | Path,
    *,
    arms: Collection[str] = (),
    only: Collection[str] = KINDS,
    quick: bool = False,
    at: Literal["initial", "trained"] = "initial",
    shadows: int | None = None,
    models: Mapping[str, Factory] | None = None,
    sources: Mapping[str, Factory] | None = None,
    progress: Said | None = None,
) -> dict[str, Any]:
    """Attack a run folder; writes attack.json and figures there, and returns the content of the file.

    `at` says which weights a gradient is inverted at. The audit has failed where `passed` is False.
    """
    for kind in only:
        if kind not in KINDS:
            raise StudyError("--only", f"there is no attack {shown(kind)}", suggest(kind, KINDS, "Attacks"))
    target = open_target(path, list(arms), models, sources)
    return attack_target(target, only, quick, at, shadows, progress or (lambda line: None))


def attack_target(
    target: Target,
    only: Collection[str],
    quick: bool,
    at: Literal["initial", "trained"],
    shadows: int | None,
    say: Said,
) -> dict[str, Any]:
    """The same for a run that is open already."""
    sizes = Sizes.of(quick, shadows)
    found: dict[str, Any] = {
        "schema": SCHEMA,
        "study": {"name": target.plan.study.name, "hash": target.plan.study.hash},
        "seed": target.seed,
        "quick": quick,
        "synthetic": target.plan.synthetic,
        "arms": {arm.name: describe(arm) for arm in target.arms},
    }
    pictures: list[inversion.Picture] = []
    if "inversion" in only:
        found["inversion"], pictures = inversion.invert_arms(target, at, sizes.images, Effort(starts=sizes.starts), say)
    if "membership" in only:
        found["membership"] = {arm.name: tell_members(target, arm, sizes, say) for arm in target.arms}
    found["passed"] = None  # no claim was tested
    if "canary" in only:
        found["canary"] = audit_claims(target, sizes, say)
        found["passed"] = all(one["holds"] for of_arm in found["canary"].values() for one in of_arm)
    write(target, found, pictures)
    return found


def describe(arm: Arm) -> dict[str, Any]:
    """What protects an arm."""
    example = arm.privacy.example
    return {
        "algorithm": arm.algorithm.name,
        "model": arm.model.name,
        "epsilon": to_json(example.promised) if example else None,
        "delta": example.delta if example else None,
        "secure_sum": arm.privacy.secure_sum is not None,
        "site_epsilon": arm.privacy.site.epsilon if arm.privacy.site else None,
    }


def tell_members(target: Target, arm: Arm, sizes: Sizes, say: Said) -> dict[str, Any]:
    """Both attacks on the arm's last model: training rows are members, test rows are not."""
    trial = target.trial(arm)
    if [site.name for site in trial.scored] != [site.name for site in trial.sites] and not trial.algorithm.pools:
        return {"note": "not attacked: some sites do not train in this arm"}
    say(f"{arm.name}: who was trained on")
    everyone = Everyone.of(trial)
    of_target = losses(trial, target.run(trial), everyone)
    found: dict[str, Any] = {"threshold": measured(trial, everyone, [-loss for loss in of_target])}
    count = sizes.shadows if trial.light else sizes.large_shadows
    if count:
        say(f"{arm.name}: {count} shadow models")
        made, present = shadow_losses(trial, everyone, count)
        scores = [
            membership.likelihood_ratio(
                membership.confidence_scores(own), membership.confidence_scores(of_shadows), had
            )
            for own, of_shadows, had in zip(of_target, made, present, strict=True)
        ]
        found["likelihood_ratio"] = {"shadows": count, **measured(trial, everyone, scores)}
    return found


def measured(trial: Trial, everyone: Everyone, scores: list[np.ndarray]) -> dict[str, Any]:
    """Over all sites, and at each of them."""
    rng = seeds.generator(trial.seed, "attack: bootstrap")
    by_site = {
        site.name: one_measure(scores[n], everyone.member[n], everyone.people[n], rng)
        for n, site in enumerate(trial.scored)
    }
    # numbers of patients may be the same at two sites
    widest = 1 + max(int(people.max(initial=0)) for people in everyone.people)
    apart = [people + n * widest for n, people in enumerate(everyone.people)]
    together = one_measure(np.concatenate(scores), np.concatenate(everyone.member), np.concatenate(apart), rng)
    return {**together, "sites": by_site}


def one_measure(scores: np.ndarray, member: np.ndarray, people: np.ndarray, rng: np.random.Generator) -> dict[str, Any]:
    usable = np.isfinite(scores)
    inside, outside = member & usable, ~member & usable
    if not inside.any() or not outside.any():
        return {"note": "no rows to compare"}
    return asdict(membership.measure(scores[inside], scores[outside], (people[inside], people[outside]), rng))


def audit_claims(target: Target, sizes: Sizes, say: Said) -> dict[str, list[dict[str, Any]]]:
    """A lower bound on epsilon beside the claim, for each protected arm and its sites."""
    wanted = {
        arm.name: chosen_sites(target.charges(arm.name), sizes.sites)
        for arm in target.arms
        if arm.privacy.example is not None and arm.privacy.example.clip != "none"  # which claims nothing
    }
    number = sum(len(sites) for sites in wanted.values())
    confidence = 1 - (1 - CONFIDENCE) / max(number, 1)  # each of them may be wrong so seldom that none is
    found: dict[str, list[dict[str, Any]]] = {}
    known: dict[str, dict[str, Any]] = {}  # arms that differ in their algorithm alone release alike
    for name, sites in wanted.items():
        trial = target.trial(target.plan.study.arm(name))
        found[name] = []
        for site, charges in sites.items():
            key = repr((site, charges, trial.privacy.example))
            if key not in known:
                say(f"{name}: releases of {site}")
                known[key] = audit_site(trial, site, charges, confidence, target.seed)
            found[name].append({"site": site, **known[key]})
    return found


def audit_site(trial: Trial, site: str, charges: list[Charge], confidence: float, seed: int) -> dict[str, Any]:
    names = [one.name for one in trial.sites]
    number = names.index(site) if site in names else 0
    rule, example = trial.rule(number), trial.privacy.example
    if rule is None or example is None:
        raise ValueError("only releases of a protected arm can be attacked")
    streams = seeded_streams(seed, 0, f"attack: {site}")
    stages = stages_of(trial, number, sum(charge.steps for charge in charges))
    made = canary.audit(rule, charges, example.delta, streams, confidence=confidence, stages=stages)
    return {
        "claim": made.claim,
        "replace_claim": epsilon(charges, example.delta, "replace"),
        "target": example.epsilon,
        "delta": example.delta,
        "bound": made.bound.epsilon,
        "limit": made.bound.limit,
        "guess": made.bound.guess,
        "right": made.bound.right,
        "wrong": made.bound.wrong,
        "draws": made.bound.draws,
        "confidence": confidence,
        "rate": rule.rate,
        "noise": rule.noise,
        "steps": made.steps,
        "holds": made.holds,
        "can_fail": made.can_fail,
    }


def stages_of(trial: Trial, number: int, steps: int) -> list[tuple[Rule, int]]:
    """Rules and steps of a site whose noise changes over the rounds, up to so many steps; nothing where it does not."""
    if trial.privacy.example is None or trial.privacy.example.noise_schedule is None:
        return []
    found: dict[Rule, int] = {}
    for round_number, charge in enumerate(trial.charges(number)):
        rule, count = trial.rule(number, round_number), min(charge.steps, steps)
        if rule is not None and count:
            found[rule] = found.get(rule, 0) + count
        steps -= count
    return list(found.items())


def chosen_sites(charges: Mapping[str, list[Charge]], most: int) -> dict[str, list[Charge]]:
    """One site of each kind of charge, those with the highest rate first."""
    kinds: dict[tuple[Charge, ...], str] = {}
    for site, of_site in charges.items():
        kinds.setdefault(tuple(sorted(of_site)), site)
    ordered = sorted(kinds, key=lambda kind: (-max((charge.rate for charge in kind), default=0.0), kinds[kind]))
    return {kinds[kind]: list(kind) for kind in ordered[:most] if kind}


def write(target: Target, found: Mapping[str, Any], pictures: list[inversion.Picture]) -> None:
    from wardround.attacks.figures import draw

    target.folder.write_json(FILE, found)
    draw(found, pictures, target.folder.path / "figures")
