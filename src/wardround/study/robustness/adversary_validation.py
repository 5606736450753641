"""Simulated adversaries of a study: who is bad in which arm, what is compared with what, and what is refused."""

from collections import Counter
from dataclasses import replace

from wardround.core.errors import StudyError
from wardround.study.facts import AdversaryFacts
from wardround.study.schema import Adversary, Arm, Choice, Study

OFF = "write `adversaries = []` in this arm."


def bad_sites(study: Study) -> tuple[str, ...]:
    """Sites that are bad in some arm. Figures of all arms are those of the others, so that arms can be compared."""
    return tuple(dict.fromkeys(site for arm in study.trained_arms if arm.adversaries for site in bad_in(arm)))


def bad_in(arm: Arm) -> tuple[str, ...]:
    """Sites that are bad in an arm and take part in it."""
    named = dict.fromkeys(site for adversary in arm.adversaries for site in adversary.sites)
    return tuple(site for site in named if not arm.train_at or site in arm.train_at)


def twin_of(study: Study, arm: Arm) -> Arm | None:
    """The arm that is the same without adversaries; None for an arm that has none."""
    if not arm.adversaries:
        return None
    return next((other for other in study.arms if not other.adversaries and base_of(other) == base_of(arm)), None)


def reaches_others(arm: Arm) -> bool:
    """Whether what is bad at some sites can spoil the model of the others."""
    if arm.algorithm.facts.federated:
        return bool(arm.adversaries)
    return arm.algorithm.facts.pools and any(bad.kind.facts.poisons == "rows" for bad in arm.adversaries)


def base_of(arm: Arm) -> Arm:
    """All that an arm is except its name and who is bad in it."""
    return replace(arm, name="", family="", variant="", adversaries=())


def is_serial_only(arm: Arm) -> bool:
    """Whether adversaries look at the updates of a round, or rows change on the way. Rows that are poisoned from the
    first round on are rows like any others."""
    forge = any(bad.kind.facts.poisons == "updates" for bad in arm.adversaries) and arm.algorithm.facts.federated
    return forge or any(bad.kind.facts.poisons == "rows" and bad.from_round > 1 for bad in arm.adversaries)


def backdoors_of(study: Study, arm: Arm) -> dict[str, Choice[AdversaryFacts]]:
    """By a name that no two share, the backdoors of this arm and of those that are the same but for adversaries: a
    trigger may look like an illness to an honest model too, and only what it does more than there is the backdoor's."""
    bad_arms = [other for other in study.arms if other.adversaries]  # first: mostly there is none to compare with
    alike = [bad.kind for other in bad_arms if base_of(other) == base_of(arm) for bad in other.adversaries]
    distinct = {repr(kind): kind for kind in alike if kind.facts.target is not None}
    return {f"{number}:{kind.facts.target}": kind for number, kind in enumerate(distinct.values())}


def refuse_deployed_adversaries(study: Study) -> None:
    for arm in study.trained_arms:
        if arm.adversaries:
            problem = "adversaries are simulated, and real hospitals would be told to spoil a model"
            remedy = "Run it with `wardround run`, or leave `adversaries` out."
            raise StudyError(f"arms: {arm.name}: adversaries", problem, remedy)


def check_adversaries(study: Study, where: str) -> None:
    """What can be known before the sites are."""
    for arm in study.arms:
        for number, adversary in enumerate(arm.adversaries):
            _check_adversary(arm, adversary, f"{where}: arms: {arm.name}: adversaries[{number}]")
        forging = Counter(
            site for known in arm.adversaries if known.kind.facts.poisons == "updates" for site in known.sites
        )
        if twice := [site for site, count in forging.items() if count > 1]:
            problem = f"{twice[0]} can send one update in a round, and two adversaries would forge it"
            raise StudyError(f"{where}: arms: {arm.name}: adversaries", problem, "Name each site once.")


def _check_adversary(arm: Arm, adversary: Adversary, where: str) -> None:
    if not adversary.sites:
        raise StudyError(f"{where}: sites", "no site is named", "List the bad sites, or leave the table out.")
    if repeated := [site for site, count in Counter(adversary.sites).items() if count > 1]:
        raise StudyError(f"{where}: sites", f"{repeated[0]!r} is named twice", "Name each once.")
    if arm.topology.kind == "vertical":
        problem = "parties exchange embeddings, and have neither rows of their own nor updates to spoil"
        raise StudyError(where, problem, f"Leave it out, or {OFF}")
    if adversary.from_round > arm.training.rounds:
        problem = f"{adversary.from_round} comes after the last of {arm.training.rounds} rounds"
        raise StudyError(f"{where}: from_round", problem, "Write an earlier round; 1 is the first.")
    least = adversary.kind.facts.least_sites
    if len(adversary.sites) < least:
        problem = f"{adversary.kind.name} goes by how the attackers' own updates differ, and one does not"
        raise StudyError(f"{where}: sites", problem, f'Name {least} sites or more, or write sees = "all".')


def refuse_all_bad(arm: Arm, members: list[str]) -> None:
    """`members` are the sites that train in the arm."""
    if arm.algorithm.facts.federated and len(members) > 1 and set(members) <= set(bad_in(arm)):
        problem = "all sites that train in it are bad, so that there is nobody whom a rule could protect"
        raise StudyError(f"arms: {arm.name}: adversaries", problem, "Leave one site honest at least.")
