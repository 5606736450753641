"""The coordinator's part in explanations of models, which are analyses after the last round."""

from collections.abc import Generator
from typing import Any

from wardround.core.errors import DataError, SecureSumError, StudyError
from wardround.deployment.common.deployed_plan import DeployedPlan
from wardround.deployment.common.messaging import Messenger, Step
from wardround.deployment.coordinating.analyses import DeployedAnalysis
from wardround.deployment.flat.explanation_parts import conducted, explanation_of, shared_coefficients
from wardround.runs.explaining.explain_arms import WITHHELD
from wardround.study.explanations import KIND, explained_arms
from wardround.study.schema import Arm


def conduct_explanations(messenger: Messenger, plan: DeployedPlan, waves: int) -> Generator[Step, None, dict[str, Any]]:
    """`explanations` of results.json, by arm, once every hospital has its models."""
    described = {}
    for arm in explained_arms(messenger.study):
        own: dict[str, Any] = {"seed": messenger.study.evaluation.seeds.first, "withheld": None}
        own |= {"scale": plan.task.link}
        own |= yield from explained(messenger, plan, waves, arm)
        described[arm.name] = own
    return described


def explained(messenger: Messenger, plan: DeployedPlan, waves: int, arm: Arm) -> Generator[Step, None, dict[str, Any]]:
    """What comes to nothing is withheld, and does not keep the run from its end."""
    analyses = conducted(messenger.study)
    numbers = [n for n, own in enumerate(analyses) if own.kind == KIND and own.options["arm"] == arm.name]
    known: dict[str, Any] = {}
    try:
        known = {"coefficients": shared_coefficients(plan, messenger.folder, arm)}
        if not numbers:
            return known | {"withheld": WITHHELD}
        [number] = numbers
        analysis = explanation_of(plan, analyses[number])
        asked = DeployedAnalysis(messenger, number, analyses[number], analysis, waves + number)
        return known | (yield from asked.run())
    except (StudyError, DataError, SecureSumError) as error:
        return known | {"withheld": error.problem}
