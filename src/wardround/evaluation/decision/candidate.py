"""Which way of training together the answer is about. A rule that looks at the study alone: the best of several on test
rows would owe some of its lead to chance."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from wardround.evaluation.comparisons.benefit import alone_arm
from wardround.study.schema import SELECTED, Arm, Study

Rule = Literal["reference", "selected", "first"]


class Candidate(NamedTuple):
    arm: str
    rule: Rule


def candidate(study: Study, origin: Mapping[str, Arm]) -> Candidate | None:
    """The study's reference where hospitals train together in it; else the first such arm of the study, and of a swept
    one that validation rows selected a value of, the selected. Where some can be compared with training alone, only
    those count. None where no arm trains at all hospitals together.

    `origin` has the arms by name, selected ones by the first of their family.
    """
    together = [
        name for name, arm in origin.items() if arm.algorithm.facts.federated and not arm.variant and not arm.train_at
    ]
    if not together:
        return None
    names = list(origin)
    # only those of the same rows at the same hospitals as the arm in which these train alone, where there is one
    together = [name for name in together if alone_arm(study, name, names) is not None] or together
    reference = study.reference_of("")
    if reference in together:
        return Candidate(str(reference), "reference")
    first = together[0]
    selected = f"{origin[first].family}[{SELECTED}]"
    return Candidate(selected, "selected") if selected in together else Candidate(first, "first")
