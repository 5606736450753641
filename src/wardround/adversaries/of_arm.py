"""An arm's simulated adversaries, once its sites are known: poisoned training rows, and who forges updates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from wardround.adversaries.adversary import Adversary, Setting
from wardround.core import seeds
from wardround.core.errors import StudyError, refuse_strangers
from wardround.core.notices import Notice
from wardround.core.settings import Factory
from wardround.data.site import Site
from wardround.study.robustness.adversary_validation import backdoors_of, bad_sites, refuse_all_bad
from wardround.study.schema import Adversary as Described
from wardround.study.schema import Arm, Study
from wardround.tasks import Task


@dataclass(frozen=True)
class BadSites:
    """Sites of one kind that forge updates together."""

    numbers: frozenset[int]  # among the sites that train
    adversary: Adversary
    from_round: int  # 1 is the first


def refuse_strange_adversaries(study: Study, arm: Arm, sites: Sequence[str], members: Sequence[str]) -> None:
    """`members` are the sites that train."""
    for number, described in enumerate(arm.adversaries):
        refuse_strangers(described.sites, sites, f"{_place(arm, number)}: sites", "site", "Sites")
    refuse_all_bad(arm, list(members))
    if set(sites) <= set(bad_sites(study)):
        problem = "every site is bad in some arm, and figures are those of sites that are bad in none"
        raise StudyError("adversaries", problem, "Let one site be honest in all arms.")


def poisoned_sites(
    arm: Arm, known: Mapping[str, Factory], sites: Sequence[Site], task: Task, seed: int, until: int
) -> tuple[Site, ...]:
    """The sites with the training rows that they have in round `until`, 1 being the first. Other rows stay as they are:
    a bad site spoils what others learn from it, and its patients are as ill as before."""
    poisoned = {site.name: site for site in sites}
    for number, described in enumerate(arm.adversaries):
        adversary = built(described, known)
        if adversary.poison is None or described.from_round > until:
            continue
        for name in (name for name in described.sites if name in poisoned):
            site = poisoned[name]
            rng = seeds.generator(seed, f"poisoned rows {number}", site=name)
            rows = adversary.poison(site.train, Setting(task, site.recipe, _place(arm, number)), rng)
            poisoned[name] = replace(site, train=rows)
    return tuple(poisoned.values())


def turning_rounds(arm: Arm) -> list[int]:
    """Rounds after the first from which on rows are poisoned."""
    firsts = {known.from_round for known in arm.adversaries if known.kind.facts.poisons == "rows"}
    return sorted(firsts - {1})


def forgers(arm: Arm, known: Mapping[str, Factory], trainers: Sequence[str]) -> tuple[BadSites, ...]:
    """Who forges updates, by the numbers of the sites that train. Nobody where there are no updates."""
    if not arm.algorithm.facts.federated:
        return ()
    return tuple(
        BadSites(
            frozenset(number for number, name in enumerate(trainers) if name in described.sites),
            built(described, known),
            described.from_round,
        )
        for described in arm.adversaries
        if described.kind.facts.poisons == "updates"
    )


def built_backdoors(study: Study, arm: Arm, known: Mapping[str, Factory]) -> dict[str, Adversary]:
    """Those whose triggers the arm's model is shown, by name."""
    return {name: kind.build(known) for name, kind in backdoors_of(study, arm).items()}


def idle_adversaries(study: Study) -> list[Notice]:
    """Arms in which an adversary has nothing to forge."""
    return [
        Notice("idle-adversary", "info", arm=arm.name, other_sites=described.sites, variant=arm.variant)
        for arm in study.arms
        for described in arm.adversaries
        if described.kind.facts.poisons == "updates" and not arm.algorithm.facts.federated
    ]


def built(described: Described, known: Mapping[str, Factory]) -> Adversary:
    adversary: Adversary = described.kind.build(known)
    return adversary


def _place(arm: Arm, number: int) -> str:
    return f"arms: {arm.name}: adversaries[{number}]"
