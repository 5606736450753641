"""Test patients whom the model that training starts from has seen already: their figures would be too good.

An old run draws its own split, so that a new study's test rows may be among its training rows, unless both draw the
same seeds from the same rows. Where the old rows are not at hand, hospitals of the same name may have the same
patients, and nobody can tell.
"""

from collections.abc import Iterator

import numpy as np

from wardround.core.notices import Notice, Severity
from wardround.data.checks.before_training import FEW, accepted, refuse_errors
from wardround.runs.continual.earlier import Earlier, shared_rows, sharing
from wardround.runs.continual.privacy import opener
from wardround.runs.finished_run import arm_of
from wardround.runs.plan import Plan
from wardround.study.schema import Arm


def start_notices(plan: Plan) -> list[Notice]:
    """One for each arm that starts from a trained model and may test patients whom that model knows."""
    if not plan.cohorts:
        return []
    open_predecessor = opener(plan)
    notices: list[Notice] = []
    for arm in plan.study.arms:
        predecessor = plan.predecessor_of(arm)
        if predecessor is None:
            continue
        earlier = open_predecessor(predecessor)
        if isinstance(earlier, Earlier):
            notices += _seen(plan, arm, earlier)
        else:
            notices += _unknown(plan, arm)
    return accepted(notices, plan.study.evaluation.accept)


def refuse_tested_before(plan: Plan) -> list[Notice]:
    """CheckError for an arm that tests patients whom its first model knows, unless the study accepts it knowingly."""
    notices = start_notices(plan)
    refuse_errors(notices)
    return notices


def _seen(plan: Plan, arm: Arm, earlier: Earlier) -> Iterator[Notice]:
    predecessor = plan.predecessor_of(arm)
    if predecessor is None:
        return
    results, seen, tested = earlier.folder.read_json("results.json"), 0, 0
    for seed, model in predecessor.models.items():
        old_arm = arm_of(earlier.plan.study, results, predecessor.arm, model.seed)
        shared = shared_rows(plan.cohort_of(arm), earlier.plan.cohort_of(old_arm))
        test = np.concatenate([split.test for split in plan.splits(arm, seed)])
        trained = np.concatenate([split.train for split in earlier.plan.splits(old_arm, model.seed)])
        seen, tested = seen + int(shared.seen(test, trained).sum()), tested + len(test)
    if seen:
        severity: Severity = "warning" if seen < 2 or seen / tested <= FEW else "error"
        yield Notice("start-leak", severity, arm=arm.name, counts={"rows": seen, "of": tested})


def _unknown(plan: Plan, arm: Arm) -> Iterator[Notice]:
    predecessor = plan.predecessor_of(arm)
    generations = () if predecessor is None else predecessor.first.description.trained
    common = {site for generation in generations for site, old in sharing(plan, arm, generation, None).items() if old}
    if common or not generations:
        yield Notice("start-unknown", "warning", arm=arm.name, other_sites=tuple(sorted(common)))
