"""`explanations` of results.json: importance, effects and coefficients of arms, over all hospitals and at each."""

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from wardround.analyses.conduct import Terms, conduct
from wardround.core.errors import DataError, SecureSumError, StudyError
from wardround.evaluation.answer import main_arms
from wardround.evaluation.intervals import Resampling
from wardround.explain.explanation import output_names
from wardround.explain.permutation import REPEATS
from wardround.privacy.disclosure import Limits
from wardround.runs.explaining import coefficients
from wardround.runs.explaining.site_models import (
    SiteModel,
    analysis_of,
    numbers_per_unit,
    site_models,
    why_not,
)
from wardround.runs.finished_run import arm_of, saved_run
from wardround.runs.folder import RunFolder
from wardround.runs.plan import Plan
from wardround.study.explanations import explained_arms, is_protected
from wardround.study.schema import Arm
from wardround.training.trial import Trial

WITHHELD = "patients are protected by differential privacy, and sums over their test rows would have no noise"


def answers_arm(results: Mapping[str, Any]) -> str:
    """The way of training that the answer names; without one the first that is compared."""
    decided = (results.get("decision") or {}).get("arm")
    arms = main_arms(results)
    if not arms:
        raise StudyError(
            "--arm", "the run trained no model, so that there is none to explain", "Run a study with arms."
        )
    return str(decided) if decided in results["arms"] else next(iter(arms))


def models_of(plan: Plan, folder: RunFolder, results: Mapping[str, Any], arm: str, seed: int) -> list[SiteModel]:
    """Those with which the sites of a finished run predict."""
    trained, trial = trained_arm(plan, results, arm, seed)
    refuse_unexplained(trained, trial)
    return models_from(plan, folder, trained, trial)


def trained_arm(plan: Plan, results: Mapping[str, Any], arm: str, seed: int) -> tuple[Arm, Trial]:
    trained = plan.arm(arm_of(plan.study, results, arm, seed).name, seed)
    return trained, plan.trial(trained, seed)


def models_from(plan: Plan, folder: RunFolder, trained: Arm, trial: Trial) -> list[SiteModel]:
    with folder.checked_content():
        run = saved_run(trial, folder.load_model(trained.name, trial.seed))
    return site_models(trial, run, plan.target_scale_of(trained, trial.seed))


def refuse_unexplained(arm: Arm, trial: Trial) -> None:
    reason = why_not(arm, trial)
    if reason:
        raise StudyError(f"arm {arm.name}", f"cannot be explained by columns: {reason}", "Explain a bundle of it.")


def explanations(plan: Plan, folder: RunFolder, results: Mapping[str, Any]) -> dict[str, Any]:
    """`explanations` of results.json, by arm. A study without [explain] has no such key."""
    study, described = plan.study, {}
    if study.explain is None:
        return {}
    for arm in explained_arms(study):
        steps = explain_arm(plan, folder, results, arm.name, study.evaluation.seeds.first, study.explain.repeats)
        described[arm.name] = finished(steps)
    return {"explanations": described}


def finished(steps: Generator[Any, None, dict[str, Any]]) -> dict[str, Any]:
    """What a generator returns at its end."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            content: dict[str, Any] = end.value
            return content


def explain_arm(
    plan: Plan, folder: RunFolder, results: Mapping[str, Any], arm: str, seed: int, repeats: int = REPEATS
) -> Generator[str, None, dict[str, Any]]:
    """What results.json has of an arm. Yields what is done now."""
    trained, trial = trained_arm(plan, results, arm, seed)
    reason = why_not(trained, trial)
    if reason:
        return {"seed": seed, "withheld": reason}
    models = models_from(plan, folder, trained, trial)
    return (yield from explain_models(plan, folder, results, arm, seed, models, repeats))


def explain_models(
    plan: Plan,
    folder: RunFolder,
    results: Mapping[str, Any],
    arm: str,
    seed: int,
    models: Sequence[SiteModel],
    repeats: int = REPEATS,
) -> Generator[str, None, dict[str, Any]]:
    """The same for some of the sites."""
    trained, trial = trained_arm(plan, results, arm, seed)
    described: dict[str, Any] = {"seed": seed, "withheld": None, "scale": trial.model.task.link}
    described |= coefficients_of(plan, folder, results, arm, models)
    if is_protected(trained):
        return described | {"withheld": WITHHELD}
    secure = trained.privacy.secure_sum
    analysis = analysis_of(trained, trial, models[0].recipe.layout, repeats, secure is not None)
    limits = Limits(smallest_cell=plan.study.deployment.smallest_cell)
    terms = Terms(f"explanation of {arm}", limits, secure, plan.study.hash)
    try:
        merged = yield from conduct(analysis, terms, {}, {model.site.name: model.test_rows() for model in models})
    except (DataError, SecureSumError) as error:
        return described | {"withheld": error.problem}
    return described | merged


def coefficients_of(
    plan: Plan, folder: RunFolder, results: Mapping[str, Any], arm: str, models: Sequence[SiteModel]
) -> dict[str, Any]:
    """Of a linear model over all seeds: those of all hospitals, and those that a hospital has of its own."""
    if not models[0].scorer.model.linear:
        return {"coefficients": None}
    task = models[0].scorer.model.task
    by_site: dict[str, list[coefficients.Coefficients]] = {model.site.name: [] for model in models}
    outputs = output_names(task)
    for seed in plan.study.evaluation.seeds:
        trained, trial = trained_arm(plan, results, arm, seed)
        if why_not(trained, trial):
            continue
        for model in models_from(plan, folder, trained, trial):
            if model.site.name not in by_site:
                continue
            terms = model.recipe.layout.names
            by_site[model.site.name].append(coefficients.of_scorer(model.scorer, terms, outputs, model.dtype))
    resampling = Resampling.of(plan.study.evaluation)
    lines = {site: coefficients.over_seeds(own, resampling, task) for site, own in by_site.items()}
    first, *others = lines.values()
    shared = [line for line in first if all(line in own for own in others)]
    apart = {site: [line for line in own if line not in shared] for site, own in lines.items()}
    return {
        "coefficients": {
            "ratio": coefficients.RATIOS.get(task.link),
            "per": numbers_per_unit(models),
            "whole": shared,
            "hospitals": apart if any(apart.values()) else None,
        }
    }
