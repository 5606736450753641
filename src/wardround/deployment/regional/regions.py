"""A study whose sites form regions, as it runs across hospitals: who coordinates whom, and what such a study must be.

To the coordinator of all a region is a site; to its hospitals a region is their coordinator. Every arm has the same
regions, because a hospital has one coordinator.
"""

from collections.abc import Iterable, Mapping, Sequence

from wardround.algorithms.regions import region_of_each, with_only
from wardround.core.errors import StudyError, suggest
from wardround.privacy.validation import LEAST_SITES
from wardround.study.schema import Arm, Study

WHERE = "topology: regions"


def is_hierarchical(study: Study) -> bool:
    return any(_has_regions(arm) for arm in study.trained_arms)


def regions_of(study: Study, sites: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Each region with those of `sites` that are in it, in their order; nothing where there are no regions."""
    arm = next((arm for arm in study.trained_arms if _has_regions(arm)), None)
    return {} if arm is None else with_only(arm.topology.regions, sites)


def companions(study: Study, site: str, sites: Sequence[str]) -> tuple[str, ...]:
    """The sites of its region, itself among them; empty where there are no regions."""
    return next((members for members in regions_of(study, sites).values() if site in members), ())


def trainers(arm: Arm, sites: Iterable[str]) -> list[str]:
    """Those of `sites` that train in an arm."""
    return [site for site in sites if (not arm.train_at or site in arm.train_at) and site != arm.held_out]


def span_of(arm: Arm) -> int:
    """Rounds that a region has by itself before the coordinator of all hears of it."""
    return arm.topology.regional_rounds if arm.topology.kind == "hierarchical" else 1


def refuse_undeployable_regions(study: Study, sites: Sequence[str]) -> None:
    """`sites` are the hospitals that take part, by name. Nothing is asked of a study without regions."""
    first = next((arm for arm in study.trained_arms if _has_regions(arm)), None)
    if first is None:
        return
    region_of = region_of_each(first.topology.regions, sites, WHERE)
    for region in first.topology.regions:
        if region in sites:
            problem = f"{region!r} is a region and a site, and each needs a name of its own"
            raise StudyError(WHERE, problem, "Rename the region, or the site.")
    for arm in study.trained_arms:
        if not is_federated(arm):
            continue
        if arm.topology.kind != "hierarchical":
            problem = "a hospital has one coordinator: where some arms have regions, the others cannot be without"
            remedy = "Deploy it as a study of its own, or leave it out here."
            raise StudyError(f"arms: {arm.name}: topology: kind", problem, remedy)
        if dict(arm.topology.regions) != dict(first.topology.regions):
            problem = f"has other regions than {first.name}, and a hospital has one coordinator"
            raise StudyError(f"arms: {arm.name}: topology: regions", problem, "Give all arms the same regions.")
        _refuse_small_sums(arm, region_of)


def check_regions(study: Study, named: Sequence[str], sites: Sequence[str]) -> None:
    """`named` are regions for which somebody gave an address: exactly those of the study."""
    known = regions_of(study, sites)
    for name in named:
        if name not in known:
            raise StudyError("provision: region", f"no region is called {name!r}", suggest(name, known, "Regions"))
    lacking = [name for name in known if name not in named]
    if lacking:
        problem = f"no address is given for {', '.join(lacking)}, where its hospitals are to connect"
        raise StudyError("provision: region", problem, f"Write --region {lacking[0]}=HOST:PORT for each of them.")


def _refuse_small_sums(arm: Arm, region_of: Mapping[str, str]) -> None:
    if arm.privacy.secure_sum is None:
        return
    needed = max(LEAST_SITES, arm.privacy.secure_sum.threshold or 0)
    for region in dict.fromkeys(region_of.values()):
        members = [site for site, of in region_of.items() if of == region]
        working = trainers(arm, members)
        if working and len(working) < needed:
            problem = f"{len(working)} sites of {region} train, and its secure sum takes {needed}"
            raise StudyError(f"arms: {arm.name}: privacy: secure_sum", problem, "Form larger regions.")


def is_federated(arm: Arm) -> bool:
    """Whether anything of its training leaves a site. Algorithms of a deployment are those that are shipped."""
    return arm.algorithm.facts.federated


def _has_regions(arm: Arm) -> bool:
    return arm.topology.kind == "hierarchical" and is_federated(arm)
