"""Whether an answer of a party fits the question, as `answer_checks.py` does it for hospitals with the same columns."""

from collections.abc import Collection, Mapping, Sequence
from math import prod
from typing import Any

from wardround.core.errors import DeployError
from wardround.core.tree import Tree
from wardround.deployment.common.answer_checks import check_classes, require, rows_scored
from wardround.deployment.common.deployed_plan import DeployedPlan
from wardround.deployment.vertical.party_plan import VerticalPlan
from wardround.deployment.vertical.patient_matching import messages_in
from wardround.deployment.vertical.vertical_validation import holder_of
from wardround.evaluation.summaries.summary_validation import Expected, check_summary
from wardround.privacy.psi.psi import SUM_PRINT, Matcher, PsiMessage, check_message, due_answers
from wardround.privacy.secure_sum.secure_sum import Verifier
from wardround.protocol.messages import Message
from wardround.training.trial import Trial

MOST_NUMBERS = 1_000_000  # that a party gives of one row
Answered = tuple[Message, Tree]


def check_messages(
    party: str, answer: Answered, received: Sequence[PsiMessage], matcher: Matcher, keys: Mapping[str, Verifier]
) -> None:
    """A party's part of the matching: all that the messages it received ask for and nothing else.

    What is missing cannot be asked for later: the others would have gone on without it, and stand by their answers.
    """
    require(sorted(answer[1]) == [f"{place:03}" for place in range(len(answer[1]))], "messages that are out of order")
    messages = [PsiMessage.decode(encoded) for encoded in messages_in(answer[1])]
    for message in messages:
        if message.sender != party:
            raise DeployError(party, "speaks in another party's name", "Look into its log.")
        check_message(party, matcher.terms, message, keys)
    kinds = [(message.kind, message.owner, message.keys) for message in messages]
    require(kinds == due_answers(party, matcher.terms, received), "other messages than the matching asks for")
    if {message.owner for message in received if message.kind == SUM_PRINT} == set(matcher.terms.roster):
        require(answer[0].body["common"] == matcher.common, "another number of common patients")


def check_assigned(answer: Answered, plan: VerticalPlan, others: Sequence[str]) -> None:
    body, sealed = answer[0].body, answer[1]
    require(set(sealed) == set(others), "rows for other parties than the study has")
    require(len(body["sizes"]) == len(plan.kinds), "rows of another number of arms")
    require(all(sizes["train"] > 0 for sizes in body["sizes"]), "no training rows")
    for part, rows in body["sizes"][0].items():
        require(body["described"][part] == rows, f"two numbers of {part} rows")
    check_classes(body["described"], plan.classes, plan.has_findings)


def check_shapes(party: str, answer: Answered, plan: VerticalPlan) -> None:
    """Who is named with columns gives numbers of every row; an image has three sizes, a table one. The holder of the
    labels may have nothing but these."""
    shapes = answer[0].body["shapes"]
    require(len(shapes) == len(plan.kinds), "sizes for another number of arms")
    for shape, kind in zip(shapes, plan.kinds, strict=True):
        gives = bool(plan.study.arm(kind[0]).topology.parties[party])
        may_be_empty = not gives or party == holder_of(plan.study)
        require((gives and len(shape) in (1, 3)) or (may_be_empty and not shape), "a size that no row has")
        require(prod(shape) <= MOST_NUMBERS, "more numbers than a row may have")


def check_without(
    without: Mapping[str, Any], trials: Sequence[Trial], plan: DeployedPlan, holder: str, others: Collection[str]
) -> None:
    """Figures as they are while another party is missing."""
    for key, by_party in without.items():
        require(key == str(int(key)) and int(key) < len(trials), "figures of a model that the study does not have")
        require(set(by_party) == set(others), "figures without other parties than the study has")
        rows, exact = rows_scored(holder, "test", trials[int(key)], plan)
        for summary in by_party.values():
            check_summary(summary, Expected(plan.classes, plan.has_findings, rows, exact))
