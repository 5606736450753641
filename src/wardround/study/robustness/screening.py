"""[screening]: what it may say, checked when the study is read."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from wardround.core.errors import StudyError

if TYPE_CHECKING:
    from wardround.study.schema import Arm, Study


@dataclass(frozen=True)
class Screening:
    """Whether sites are named whose updates differ from the others', and what follows (`screening.rule`)."""

    policy: Literal["off", "notice", "hold", "drop"] = "notice"


def check_screening(study: "Study", where: str) -> None:
    for arm in study.arms:
        if arm.screening is not None and arm.screening.policy != "off" and arm.algorithm.facts.federated:
            here = f"{where}: arms: {arm.name}: screening: policy"
            _check_arm(arm, here)
            if arm.screening.policy == "hold" and study.tuning is not None:
                problem = "each trial of settings would be held until somebody decides"
                raise StudyError(here, problem, 'Write "notice" or "drop", or leave out [tuning].')


def _check_arm(arm: "Arm", where: str) -> None:
    off = 'Write `"screening.policy" = "off"` in this arm.'
    if arm.topology.kind == "vertical":
        problem = "parties exchange embeddings and gradients, so that there are no updates to compare"
        raise StudyError(where, problem, off)
    if arm.topology.kind == "hierarchical":
        problem = "a region's coordinator sees the updates of its own sites only, which are too few to compare"
        raise StudyError(where, problem, off)
    if arm.training.asynchronous is not None or arm.training.late is not None:
        problem = "updates that began with different models do not compare"
        raise StudyError(where, problem, off[:-1] + ", or leave `asynchronous` and `late` out.")
    hidden = hidden_by(arm)
    if hidden is not None and arm.screening is not None and arm.screening.policy in ("drop", "hold"):
        problem = f"under [privacy.{hidden}] nobody sees the update of a single site, so that none could be left out"
        remedy = 'Write `"screening.policy" = "off"` in this arm, or "notice", which then says that it saw nothing.'
        raise StudyError(where, problem, remedy)


def hidden_by(arm: "Arm") -> str | None:
    """The protection under which single updates cannot be seen, or say nothing that may be told."""
    if not arm.algorithm.facts.federated:
        return None
    if arm.privacy.secure_sum is not None:
        return "secure_sum"
    return "site" if arm.privacy.site is not None else None
