"""Explanations of models as analyses of a deployment: both ends build the same one from the study and what was agreed.

They come after the last round, when every hospital has the model with which it predicts. So they are numbered, and
counted as waves, after the study's own analyses.
"""

from typing import Any

from wardround.analyses.analysis import Analysis
from wardround.core.errors import StudyError
from wardround.data.prepare import Layout
from wardround.deployment.common.deployed_plan import DeployedPlan
from wardround.evaluation.intervals import Resampling
from wardround.evaluation.prediction import has_site_models
from wardround.explain import Columns, Scorer
from wardround.explain.across_sites import ModelExplanation
from wardround.explain.explanation import output_names
from wardround.runs.explaining import coefficients
from wardround.runs.explaining.site_models import IMAGES, IN_PARTS, OWN_COLUMNS, analysis_of
from wardround.runs.finished_run import saved_run
from wardround.runs.folder import RunFolder
from wardround.study.analyses import StudyAnalysis, build_analysis
from wardround.study.explanations import KIND, conducted_explanations
from wardround.study.schema import Arm, Study
from wardround.training.rounds import site_model


def conducted(study: Study) -> tuple[StudyAnalysis, ...]:
    """All analyses that hospitals are asked for, in the order of their numbers."""
    return (*study.analyses, *conducted_explanations(study))


def built(chosen: StudyAnalysis, plan: DeployedPlan, kinds: Any) -> Analysis:
    if chosen.kind == KIND:
        return explanation_of(plan, chosen)
    analysis: Analysis = build_analysis(chosen, kinds)
    return analysis


def explained_arm(plan: DeployedPlan, chosen: StudyAnalysis) -> tuple[Arm, int]:
    return plan.study.arm(chosen.options["arm"]), plan.study.evaluation.seeds.first


def explanation_of(plan: DeployedPlan, chosen: StudyAnalysis) -> ModelExplanation:
    """StudyError where columns do not explain the arm."""
    arm, seed = explained_arm(plan, chosen)
    layout = agreed_layout(plan, arm, seed)
    secure = chosen.rows.privacy.secure_sum is not None
    return analysis_of(arm, plan.trial(arm, seed), layout, chosen.options["repeats"], secure)


def shared_coefficients(plan: DeployedPlan, folder: RunFolder, arm: Arm) -> dict[str, Any] | None:
    """Those of the model that all sites share, over seeds. None where sites have models of their own, which stay
    there."""
    of_seeds, per = [], None
    for seed in plan.study.evaluation.seeds:
        trial = plan.trial(arm, seed)
        run = saved_run(trial, folder.load_model(arm.name, seed))
        if not trial.model.linear or has_site_models(trial, run) or not trial.algorithm.federated:
            return None
        layout = agreed_layout(plan, arm, seed)
        per = numbers_per_unit(plan, arm, seed, layout) if seed == plan.study.evaluation.seeds.first else per
        params, buffers = site_model(trial, run, 0)
        scorer = Scorer(trial.model, params, buffers, Columns.of(layout.columns), plan.target_scale_of(arm, seed))
        of_seeds.append(coefficients.of_scorer(scorer, layout.names, output_names(plan.task), trial.dtype))
    lines = coefficients.over_seeds(of_seeds, Resampling.of(plan.study.evaluation), plan.task)
    return {"ratio": coefficients.RATIOS.get(plan.task.link), "per": per, "whole": lines, "hospitals": None}


def numbers_per_unit(plan: DeployedPlan, arm: Arm, seed: int, layout: Layout) -> dict[str, float] | None:
    """How much of a column is 1 prepared, where all sites scale alike."""
    common = plan.agreed[plan.alike[arm.name], plan.data_seed(arm, seed)].common
    if common is None or common.scale is None:
        return None
    _, spread = common.scale
    return {column.name: float(size) for column, size in zip(layout.numeric, spread, strict=True)}


def agreed_layout(plan: DeployedPlan, arm: Arm, seed: int) -> Layout:
    agreed = plan.agreed[plan.alike[arm.name], plan.data_seed(arm, seed)]
    reason = IN_PARTS if arm.model.facts.in_parts else OWN_COLUMNS if arm.preparation.schema == "own" else ""
    if reason or agreed.layout is None or not agreed.layout.names:
        raise StudyError(f"arm {arm.name}", reason or IMAGES, "Leave the arm out of [explain].")
    return agreed.layout
