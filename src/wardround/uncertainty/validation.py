"""Refusals of methods of uncertainty that do not fit a study, before anything trains."""

import torch

from wardround.core.errors import StudyError
from wardround.models import Model
from wardround.models.joined import MISSING
from wardround.study.schema import Arm
from wardround.training.rounds import site_model, start
from wardround.training.trial import Trial


def has_dropout(model: Model) -> bool:
    """Parties that are left out at random in training are not dropout: they are present in prediction, or not."""
    return any(not (model.cut is not None and name.startswith(MISSING)) for name in model.mask_shapes)


def refuse_unfit(arm: Arm, trial: Trial) -> None:
    """What can be known of an arm with its rows and its model."""
    settings, where = arm.uncertainty, f"arms: {arm.name}: uncertainty"
    if settings is None or arm.held_out is not None:  # an arm that only helps to choose a value has no uncertainty
        return
    if trial.model.task.outcomes:
        problem = "intervals, prediction sets and referral are of one outcome, and this study has several"
        raise StudyError(where, problem, "Leave [uncertainty] out, or make a study of one outcome.")
    if not any(len(site.validation) for site in trial.scored):
        problem = "no site has validation rows, and whatever is chosen for it is chosen on them"
        raise StudyError(where, problem, "Set evaluation.validation_share above 0, or leave [uncertainty] out.")
    if settings.method == "dropout" and not has_dropout(trial.model):
        problem = f"{arm.model.name} has no dropout here, so that all passes would be the same"
        remedy = "Give it a `dropout` above 0 in [model], or use laplace, or an ensemble of several seeds."
        raise StudyError(f"{where}: method", problem, remedy)
    if settings.method == "laplace":
        _refuse_laplace(arm, trial, f"{where}: method")
    if settings.method == "swag":
        _refuse_own_parts(trial, f"{where}: method")


def _refuse_own_parts(trial: Trial, where: str) -> None:
    """What else an arm's algorithm must be, `uncertainty.swag` says."""
    if trial.model.private or trial.model.blank[1]:
        problem = "SWAG follows the shared weights, and here sites keep parts of the model or its statistics"
        remedy = 'Take norm = "group" and no private part in [model], or use dropout, laplace or an ensemble.'
        raise StudyError(where, problem, remedy)


def _refuse_laplace(arm: Arm, trial: Trial, where: str) -> None:
    from wardround.uncertainty.laplace import fit_laplace  # SciPy, which other studies need only at their end

    if arm.privacy.example is not None:
        problem = "Laplace reads the training rows once more without noise, and [privacy.example] does not cover that"
        raise StudyError(where, problem, 'Write `"uncertainty.method" = "dropout"` or "none" in this arm.')
    params, buffers = site_model(trial, start(trial), 0)
    rows = trial.sites[0].train
    x, y = rows.take(torch.arange(min(2, len(rows))), trial.dtype)
    try:
        fit_laplace(trial.model, params, buffers, x, y)
    except StudyError as error:
        raise StudyError(where, error.problem, error.remedy) from None
