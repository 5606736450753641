"""Whether a study can run across hospitals: checked before a key is made or a hospital is asked."""

from collections.abc import Sequence

from wardround.core.errors import StudyError, suggest
from wardround.deployment.regional.regions import is_federated as is_federated
from wardround.deployment.regional.regions import is_hierarchical, refuse_undeployable_regions, regions_of, trainers
from wardround.deployment.vertical.vertical_validation import is_vertical, refuse_undeployable_parties
from wardround.privacy.secure_sum.groups import refuse_small_groups
from wardround.privacy.validation import LEAST_SITES, Rules, broken
from wardround.runs.continual.privacy import refuse_uncovered_hospitals
from wardround.study.robustness.adversary_validation import refuse_deployed_adversaries
from wardround.study.schema import Arm, Study
from wardround.study.validation import refuse_undeployable_uncertainty
from wardround.training.schedule import tolerance

PARTITION = "by-hospital"


def refuse_undeployable(study: Study, sites: Sequence[str]) -> None:
    """`sites` are the participating hospitals."""
    refuse_deployed_adversaries(study)
    refuse_undeployable_uncertainty(study)
    refuse_undeployable_tuning(study)
    refuse_undeployable_contribution(study)
    for arm in study.arms:
        refuse_several_outcomes(tuple(arm.data.facts.tasks))
    refuse_undeployable_start(study)
    refuse_undeployable_explanations(study)
    if study.arms and is_vertical(study):
        refuse_undeployable_parties(study, sites)
        return
    refuse_undeployable_analyses(study, sites)
    refuse_undeployable_regions(study, sites)
    for arm in study.trained_arms:
        _refuse_undeployable_arm(arm, study.arms[0], sites)
    refuse_hollow_privacy(study)
    refuse_uncovered_hospitals(study, sites)
    if study.selection is not None and study.selection.site is not None:
        _require_site(study.selection.site, sites, "selection: site")
        for arm in study.selection_arms:
            if not set(arm.train_at or sites) - {arm.held_out}:
                remedy = "Hold out a site that is not the only one."
                raise StudyError(f"arms: {arm.name}", "no site is left to train", remedy)
    _refuse_large_quorum(study, sites)


def refuse_undeployable_tuning(study: Study) -> None:
    """A hospital agrees to trainings that it can read before; which come next would follow from scores of its rows."""
    if study.tuning is not None:
        problem = (
            "which settings are tried and for how long follows from scores while the run goes on, and hospitals "
            "approve every training before the first"
        )
        remedy = (
            "Tune in a simulation of public or synthetic rows with the same columns (`wardround run`), write the "
            "values into the arms and leave [tuning] out. Or list few values in an arm and let [selection] choose."
        )
        raise StudyError("tuning", problem, remedy)


def refuse_undeployable_analyses(study: Study, sites: Sequence[str]) -> None:
    for chosen in study.analyses:
        where, rows = f"analyses: {chosen.name}", chosen.rows
        if not rows.sites.facts.keeps_hospitals:
            problem = f"partition {rows.sites.name!r} moves rows between sites; here each hospital is one site"
            raise StudyError(f"{where}: sites: partition", problem, f'Write `partition = "{PARTITION}"` in [sites].')
        if is_hierarchical(study):
            problem = "its steps go from one coordinator to the hospitals, and here regions stand between them"
            raise StudyError(where, problem, "Write a study of its own for it, without [topology].")
        secure = rows.privacy.secure_sum
        needed = max(LEAST_SITES, (secure and secure.threshold) or 0)
        if secure is not None and len(sites) < needed:
            problem = f"{len(sites)} hospitals take part, and a secure sum takes {needed}"
            raise StudyError(f"{where}: privacy: secure_sum", problem, "Let more hospitals take part.")


def refuse_undeployable_explanations(study: Study) -> None:
    between = [arm.name for arm in study.arms if arm.topology.kind != "flat"]
    if study.explain is not None and between:
        problem = f"sums for it go from one coordinator to the hospitals, and {between[0]} has others in between"
        raise StudyError("explain", problem, "Leave [explain] out, or simulate the study with `wardround run`.")


def refuse_undeployable_contribution(study: Study) -> None:
    """Figures of models with and without a hospital differ by that hospital alone."""
    if study.contribution is not None:
        problem = (
            "what a hospital adds follows from models with and without it, scored on validation rows that stay at "
            "other hospitals, and the figures of two such models tell of that hospital alone"
        )
        remedy = (
            "Estimate it in a simulation of public or synthetic rows (`wardround run`), and leave [contribution] out. "
            "Arms with `train_at` leave a hospital out where all agree to it."
        )
        raise StudyError("contribution", problem, remedy)


def refuse_several_outcomes(outcomes: Sequence[str]) -> None:
    """A hospital tells of the predictions of one outcome: what it withholds of another could follow from both."""
    if len(outcomes) > 1:
        problem = f"{', '.join(outcomes)} are predicted together, and across hospitals only one outcome is"
        raise StudyError("data: outcomes", problem, "Deploy a study for each outcome, or simulate this one.")


def refuse_undeployable_start(study: Study) -> None:
    """The model that an arm starts from is at the coordinator, and travels as the shared model of the first round."""
    for arm in study.trained_arms:
        where, off = f"arms: {arm.name}: model: start_from", '`"model.start_from" = "off"` in this arm.'
        if arm.start.start_from is None:
            continue
        if arm.topology.kind == "vertical":
            problem = "every party keeps its own part of the model, and the coordinator has none to start from"
            raise StudyError(where, problem, f"Simulate it with `wardround run`, or write {off}")
        if not arm.algorithm.facts.federated:
            problem = "hospitals that train alone are sent no model, and do not have the one to start from"
            raise StudyError(where, problem, f"Write {off}")


def _refuse_undeployable_arm(arm: Arm, first: Arm, sites: Sequence[str]) -> None:
    rules: Rules = [
        (
            arm.algorithm.facts.pools,
            f"arms: {arm.name}",
            f"{arm.algorithm.name}: all rows at one place is what a deployment avoids",
            _leave_out(arm),
        ),
        (
            bool(arm.aggregation.facts.root) and not arm.by_mean,
            f"arms: {arm.name}: aggregation: rule",
            f"{arm.aggregation.name} asks for root data, and a coordinator across hospitals has no rows",
            _leave_out(arm),
        ),
        (
            not arm.sites.facts.keeps_hospitals,
            f"arms: {arm.name}: sites: partition",
            f"partition {arm.sites.name!r} moves rows between sites; here each hospital is one site",
            f'Write `partition = "{PARTITION}"` in [sites]. {_leave_out(arm)}',
        ),
        (
            arm.data != first.data,
            f"arms: {arm.name}: data",
            f"has other data than {first.name}, and a hospital brings one set of rows",
            _leave_out(arm),
        ),
    ]
    for refusal in broken([*rules, *_not_in_time(arm, sites)]):
        raise StudyError(*refusal)
    for name in arm.train_at:
        _require_site(name, sites, f"arms: {arm.name}: train_at")
    _refuse_small_sums(arm, sites)


def _not_in_time(arm: Arm, sites: Sequence[str]) -> Rules:
    """What a deployment does not have where rounds do not wait for all work."""
    training, at = arm.training, f"arms: {arm.name}: training"
    name = "asynchronous" if training.asynchronous is not None else "late"
    overlaps = tolerance(training) is not None and is_federated(arm)
    off = f'`"training.{name}" = "off"` in this arm'
    simulate = f"Write {off}, or simulate it with `wardround run`."
    working = len(trainers(arm, sites))
    return [
        (
            overlaps and arm.privacy.secure_sum is not None,
            f"{at}: {name}",
            "sites that add up under masks agree before a round who is in its sum, and here nobody knows it",
            f"{simulate} Or leave out [privacy.secure_sum].",
        ),
        (
            overlaps and training.asynchronous is not None and training.share < 1,
            f"{at}: share",
            "hospitals that are ready are asked at once, so that nobody is drawn",
            f"Write `share = 1`, or {off}.",
        ),
        (
            overlaps and training.asynchronous is not None and training.asynchronous.buffer > working,
            f"{at}: asynchronous: buffer",
            f"{working} sites train in this arm, so that no buffer is ever full",
            f"Write at most {working}.",
        ),
    ]


def _refuse_large_quorum(study: Study, sites: Sequence[str]) -> None:
    quorum, most = study.deployment.quorum, len(sites)
    if is_hierarchical(study):  # it counts the answers to one coordinator: those of a region's sites, or of the regions
        regions = regions_of(study, sites)
        most = max(len(regions), *(len(members) for members in regions.values()))
    if quorum is not None and quorum > most:
        problem = f"{quorum} sites are needed in a round, and {most} take part"
        raise StudyError("deployment: quorum", problem, f"Write at most {most}, or leave it out.")


def _refuse_small_sums(arm: Arm, sites: Sequence[str]) -> None:
    """Refuse rounds that always have too few sites for their secure sum."""
    if arm.privacy.secure_sum is None or not is_federated(arm) or arm.topology.kind == "hierarchical":
        return
    groups = None if arm.by_mean else arm.preaggregation.groups
    if groups is not None:
        refuse_small_groups(len(trainers(arm, sites)), groups, f"arms: {arm.name}: aggregation: groups")
    working = max(1, round(arm.training.share * len(trainers(arm, sites))))
    needed = max(LEAST_SITES, arm.privacy.secure_sum.threshold or 0)
    if working < needed:
        problem = f"a round has {working} sites, and its secure sum takes {needed}"
        raise StudyError(f"arms: {arm.name}: privacy: secure_sum", problem, "Let more sites take part in each round.")


def is_private(study: Study) -> bool:
    return any(arm.privacy.example is not None for arm in study.trained_arms)


def refuse_hollow_privacy(study: Study) -> None:
    """Refuse guarantees that another part of the study, or public knowledge, would undo. Sites check this too."""
    for arm in study.trained_arms:
        if arm.privacy.example is not None and arm.privacy.example.clip == "none":
            problem = "without a clip one patient can move the sum as far as it likes, so that no epsilon holds"
            remedy = "Simulate it: it is there to compare with. Or write a clip."
            raise StudyError(f"arms: {arm.name}: privacy: example: clip", problem, remedy)
    shared = [arm for arm in study.trained_arms if is_federated(arm)]
    private = next((arm for arm in shared if arm.privacy.example is not None), None)
    for arm in shared:
        if private is not None and arm.privacy.example is None:
            problem = f"has no [privacy.example], and would reveal about the same patients what {private.name} hides"
            remedy = "Give all arms that leave a hospital such privacy, or deploy them as studies with other patients."
            raise StudyError(f"arms: {arm.name}: privacy: example", problem, remedy)
        if arm.privacy.site is not None and arm.training.share < 1:
            problem = "every hospital can work out who is drawn, so that drawing a share of them hides nobody"
            raise StudyError(f"arms: {arm.name}: training: share", problem, "Write `share = 1`, or simulate it.")
    if private is not None:
        _refuse_other_preparation(study.trained_arms, private)


def _refuse_other_preparation(arms: Sequence[Arm], private: Arm) -> None:
    for arm in arms:
        if arm.preparation != private.preparation:
            problem = f"prepares rows otherwise than {private.name}, and what hospitals send for that is not paid for"
            raise StudyError(f"arms: {arm.name}: data", problem, f"Prepare rows as in {private.name}.")


def _leave_out(arm: Arm) -> str:
    if arm.variant:
        return (
            f"Leave {arm.family!r} out of the `arms` of the variant {arm.variant!r}, or remove that [[variants]] table."
        )
    return f"Leave this arm out: remove the [[arms]] table of {arm.family!r}, and its name wherever the study uses it."


def _require_site(name: str, sites: Sequence[str], where: str) -> None:
    if name not in sites:
        raise StudyError(where, f"no site is called {name!r}", suggest(name, sites, "Sites that take part"))
