"""[contribution]: how it is estimated what each hospital adds to an arm.

    [contribution]
    method = "shapley"
    trainings = 40

A coalition is some of an arm's sites. Its arm is the arm with these sites alone, trained with one seed and scored on
that seed's validation rows, as a trial of [tuning] is.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from wardround.core.errors import StudyError, refuse_strangers
from wardround.core.settings import Range

if TYPE_CHECKING:  # it imports this module
    from wardround.study.schema import Arm, Study

COALITION = "?sites="  # fedavg?sites=1f: bit n is the nth site of the arm
TRIAL = "?trial="  # of [tuning]: fedprox?trial=3


@dataclass(frozen=True)
class Contribution:
    """Of one arm, on validation rows, with each of the study's seeds."""

    method: Literal["leave-one-out", "shapley", "reconstruction"] = "leave-one-out"
    arm: str | None = None  # None: the first with a coordinator
    trainings: Annotated[int, Range(low=3, high=100_000)] = 40  # shapley: coalitions that train, with each seed
    metric: str | None = None  # None: the study's primary one


def coalition_name(arm: str, coalition: int) -> str:
    return f"{arm}{COALITION}{coalition:x}"


def is_coalition(name: str) -> bool:
    """By the name of an arm."""
    return COALITION in name


def own_arm(name: str) -> str:
    """The arm of the study that a trial or a coalition is of."""
    return name.partition(TRIAL)[0].partition(COALITION)[0]


def contributed_arm(study: "Study") -> "Arm":
    """The arm to which hospitals contribute. Checked before."""
    if study.contribution is None:
        raise ValueError("only a study with [contribution] has such an arm")
    named = study.contribution.arm
    return next(arm for arm in _candidates(study) if named in (None, arm.name))


def _candidates(study: "Study") -> Sequence["Arm"]:
    return [arm for arm in study.arms if not arm.variant and arm.algorithm.facts.federated]


def check_contribution(study: "Study", where: str) -> None:
    settings, here = study.contribution, f"{where}: contribution"
    if settings is None:
        return
    arms = _candidates(study)
    if not arms:
        problem = "no arm has a coordinator, so that no hospital adds anything to another's model"
        raise StudyError(here, problem, 'Add an arm with `algorithm = "fedavg"`, or leave [contribution] out.')
    if settings.arm is not None:
        refuse_strangers([settings.arm], [arm.name for arm in arms], f"{here}: arm", "arm", "Arms with a coordinator")
    if not study.evaluation.validation_share and study.evaluation.split == "drawn":
        problem = "there are no validation rows on which models of fewer hospitals could be compared"
        remedy = "Set evaluation.validation_share above 0, such as 0.2: nothing is estimated on test rows."
        raise StudyError(here, problem, remedy)
    if len(study.data.facts.tasks) > 1:
        problem = "several outcomes are predicted together, and a contribution is to one of them"
        raise StudyError(here, problem, "Write a study for each outcome.")
    _check_arm(contributed_arm(study), settings, here)


def _check_arm(arm: "Arm", settings: Contribution, where: str) -> None:
    from wardround.study.robustness.adversary_validation import is_serial_only  # which imports what imports this module

    protected = [name for name in ("example", "site", "secure_sum") if getattr(arm.privacy, name) is not None]
    retrained = settings.method != "reconstruction"
    rules: list[tuple[bool, str, str]] = [
        (
            bool(protected),
            f"{arm.name} has [privacy.{(protected or [''])[0]}], and what one hospital adds is what that hides: the "
            "figures of models with and without it differ by it alone",
            "Estimate it in a simulation without protection, on public or synthetic rows.",
        ),
        (
            arm.topology.kind != "flat",
            f'{arm.name} has the topology "{arm.topology.kind}", which fewer sites would not have',
            "Choose an arm with one coordinator.",
        ),
        (
            bool(settings.method == "shapley" and not arm.by_mean),
            f"{arm.name} aggregates by {arm.aggregation.name}, which needs more sites than small coalitions have",
            'Write method = "leave-one-out", or choose an arm with the mean.',
        ),
        (
            settings.method == "shapley" and is_serial_only(arm),
            f"bad sites of {arm.name} forge their updates from those of others, and small coalitions have no others",
            'Write method = "leave-one-out".',
        ),
        (
            not retrained and (arm.training.share < 1 or arm.training.stragglers is not None or not arm.by_mean),
            "models are reconstructed from updates of sites that all work in each round and count by their weights",
            'Write method = "leave-one-out", or `share = 1`, no stragglers and the mean.',
        ),
        (
            arm.training.asynchronous is not None or arm.training.late is not None,
            "with fewer hospitals work would arrive in another order",
            "Choose an arm without `asynchronous` and `late`.",
        ),
    ]
    for broken, problem, remedy in rules:
        if broken:
            raise StudyError(where, problem, remedy)
