"""Mistakes with uncertainty: a figure that looks more certain than it is."""

from dataclasses import replace
from typing import Any

import numpy as np

from tests.mutants.mutant import Mutant
from wardround.evaluation.uncertainty import number_results
from wardround.tasks import Count, Multilabel
from wardround.uncertainty import calibration, conformal, decision, intervals, laplace, referral
from wardround.uncertainty.calibration import Temperature
from wardround.uncertainty.laplace import Laplace

SETS = "uncertainty/test_conformal.py"
INTERVALS = "uncertainty/test_intervals.py"
DECISION = "uncertainty/test_decision.py"
REFERRAL = "uncertainty/test_referral.py"
TEMPERATURE = "uncertainty/test_calibration.py"
LAPLACE = "uncertainty/test_laplace.py"


def _without_the_call(original: Any, sets: Any, call: Any) -> Any:
    answers = original(sets, call)
    return replace(answers, sets=sets | answers.empty[..., None])


def _empty_to_one(original: Any, sets: Any, call: Any) -> Any:
    answers = original(sets, call)
    return replace(answers, sets=sets | (np.arange(sets.shape[-1]) == call[..., None]))


MUTANTS = (
    Mutant(
        "the cut of prediction sets forgets the row that comes",
        conformal.rank,
        lambda original, rows, alpha: int(np.ceil(rows * (1 - alpha))),
        "the cut is at rank (n + 1)(1 - alpha)",
        (f"{SETS}::test_the_rank_of_the_cut",),
    ),
    Mutant(
        "too few rows exclude labels",
        conformal.quantile,
        lambda original, strange, alpha: min(original(strange, alpha), float(strange.max(initial=0.0))),
        "too few rows exclude nothing",
        (f"{SETS}::test_too_few_rows_exclude_nothing",),
    ),
    Mutant(
        "intervals of counts have one width",
        intervals.row_scale,
        lambda original, task, score: np.ones(score.shape),
        "intervals of counts grow with the expected count",
        (f"{INTERVALS}::test_intervals_of_counts_grow_with_the_expected_count_and_hold_whole_numbers_from_nothing_on",),
    ),
    Mutant(
        "intervals are half as wide",
        intervals.prediction_intervals,
        lambda original, task, cut, score: original(task, replace(cut, value=cut.value / 2), score),
        "intervals hold the outcome as often as is to be expected",
        (f"{INTERVALS}::test_coverage_over_200_resamplings_is_what_is_to_be_expected",),
    ),
    Mutant(
        "an interval of counts ends between whole numbers",
        Count.possible,
        lambda original, self, low, high: (low, high),
        "intervals of counts hold whole numbers from 0 on",
        (f"{INTERVALS}::test_where_no_whole_number_lies_within_the_next_on_either_side_do",),
    ),
    Mutant(
        "laplace takes errors of a regression to vary by 1",
        laplace.noise_of,
        lambda original, model, squares, rows: 1.0,
        "Laplace's approximation of a linear regression is its posterior",
        ("uncertainty/test_numbers.py::test_laplace_of_a_linear_regression_is_its_exact_posterior",),
    ),
    Mutant(
        "rows of a patient count as patients in the interval of a coverage",
        number_results.share_interval,
        lambda original, inside, patient: original(inside, np.arange(len(inside))),
        "rows of a patient say less than as many patients",
        ("evaluation/test_number_results.py::test_rows_of_a_patient_say_less_than_as_many_patients",),
    ),
    Mutant(
        "a predicted class is left outside of its prediction set",
        decision.answers,
        _without_the_call,
        "a predicted class is in its prediction set",
        (f"{DECISION}::test_a_call_is_in_its_set_and_who_is_referred_has_a_reason",),
    ),
    Mutant(
        "an empty prediction set becomes one answer",
        decision.answers,
        _empty_to_one,
        "an empty set becomes the set of all labels",
        (f"{DECISION}::test_what_is_added_by_hand",),
    ),
    Mutant(
        "the most certain rows are referred",
        referral.refer,
        lambda original, uncertainty, cut: uncertainty < cut,
        "a cut refers the share of validation rows",
        (f"{REFERRAL}::test_a_cut_refers_the_share_of_validation_rows_or_less_where_some_are_equal",),
    ),
    Mutant(
        "a cut refers the share that should be kept",
        referral.referral_cut,
        lambda original, uncertainty, share: original(uncertainty, 1 - share),
        "a cut refers the share of validation rows",
        (f"{REFERRAL}::test_a_cut_refers_the_share_of_validation_rows_or_less_where_some_are_equal",),
    ),
    Mutant(
        "half a row is referred",
        referral.referred_rows,
        lambda original, rows, share: int(np.ceil(rows * share)),
        "shares are rounded to the nearest row",
        (f"{REFERRAL}::test_shares_are_rounded_to_the_nearest_row",),
    ),
    Mutant(
        "a temperature works the wrong way round",
        Temperature.of,
        lambda original, self, score: original(replace(self, values=1 / self.values), score),
        "held-out rows are better calibrated where scores were wrong",
        (f"{TEMPERATURE}::test_held_out_rows_are_better_calibrated_where_scores_were_wrong",),
    ),
    Mutant(
        "a temperature is fitted on a handful of patients",
        calibration._enough,
        lambda original, outcomes, people: len(people) > 0,
        "patients of either outcome are needed",
        (f"{TEMPERATURE}::test_patients_of_either_outcome_are_needed", f"{TEMPERATURE}::test_too_few_rows_fit_nothing"),
    ),
    Mutant(
        "rows count as patients where a temperature is fitted",
        calibration.fit_temperature,
        lambda original, task, label, score, people=None: original(task, label, score),
        "many rows of a patient are no more evidence than one",
        (f"{TEMPERATURE}::test_many_rows_of_a_patient_are_no_more_evidence_than_one",),
    ),
    Mutant(
        "errors of calibration are those of equal bins",
        calibration.expected_error,
        lambda original, happened, score, bins="adaptive": abs(float(np.mean(happened) - np.mean(score))),
        "errors of calibration do not cancel each other",
        (f"{TEMPERATURE}::test_errors_by_hand",),
    ),
    Mutant(
        "laplace forgets the prior",
        Laplace.variance,
        lambda original, self, features: original(replace(self, prior=1e-9), features),
        "variances follow from the second derivatives of the loss and the prior",
        (f"{LAPLACE}::test_variances_follow_from_the_second_derivatives_of_the_loss",),
    ),
    Mutant(
        "laplace's prior may leave no doubt",
        laplace.plausible_priors,
        lambda original, weight: (1e6,),
        "no prior is above what the weights allow",
        (f"{LAPLACE}::test_unless_told_otherwise_no_prior_is_above_what_the_weights_allow",),
    ),
    Mutant(
        "a row's uncertainty is that of its first finding",
        Multilabel.of_rows,
        lambda original, self, values: values[:, 0],
        "a row's figure is the mean over its findings",
        ("uncertainty/test_parts.py::test_a_rows_figure_is_the_mean_over_its_findings",),
    ),
)
