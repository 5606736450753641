"""What a study must be like to run across hospitals: known before a key is made or a hospital is asked."""

from collections.abc import Sequence

from wardround.errors import StudyError, suggest
from wardround.study import Arm, Study
from wardround.studyfile import Families

PARTITION = "by-hospital"


def refuse_undeployable(study: Study, families: Families, sites: Sequence[str]) -> None:
    """`sites` are the hospitals that take part, by name."""
    first = study.arms[0]
    for arm in study.trained_arms:
        if families.algorithms[arm.algorithm.name](**arm.algorithm.options).pools:
            problem = f"{arm.algorithm.name}: all rows at one place is what a deployment avoids"
            raise StudyError(f"arms: {arm.name}", problem, _leave_out(arm))
        if arm.sites.name != PARTITION:
            problem = f"partition {arm.sites.name!r} moves rows between sites; here each hospital is one site"
            remedy = f'Write `partition = "{PARTITION}"` in [sites]. {_leave_out(arm)}'
            raise StudyError(f"arms: {arm.name}: sites: partition", problem, remedy)
        if arm.data != first.data:
            problem = f"has other data than {first.name}, and a hospital brings one set of rows"
            raise StudyError(f"arms: {arm.name}: data", problem, _leave_out(arm))
        for name in arm.train_at:
            _require_site(name, sites, f"arms: {arm.name}: train_at")
    if study.selection is not None and study.selection.site is not None:
        _require_site(study.selection.site, sites, "selection: site")
        for arm in study.selection_arms:
            if not set(arm.train_at or sites) - {arm.held_out}:
                remedy = "Hold out a site that is not the only one."
                raise StudyError(f"arms: {arm.name}", "no site is left to train", remedy)
    quorum = study.deployment.quorum
    if quorum is not None and quorum > len(sites):
        problem = f"{quorum} sites are needed in a round, and {len(sites)} take part"
        raise StudyError("deployment: quorum", problem, f"Write at most {len(sites)}, or leave it out.")


def _leave_out(arm: Arm) -> str:
    if arm.variant:
        return (
            f"Leave {arm.family!r} out of the `arms` of the variant {arm.variant!r}, or remove that [[variants]] table."
        )
    return f"Leave this arm out: remove the [[arms]] table of {arm.family!r}, and its name wherever the study uses it."


def _require_site(name: str, sites: Sequence[str], where: str) -> None:
    if name not in sites:
        raise StudyError(where, f"no site is called {name!r}", suggest(name, sites, "Sites that take part"))
