"""Mistakes in figures, comparisons, selection and in what sites disclose of their predictions."""

from dataclasses import replace
from typing import Any

import numpy as np

from tests.mutants.mutant import Mutant, returns
from wardround.data import split
from wardround.evaluation import intervals, missing_party, scores, thresholds
from wardround.evaluation.claims import verdicts
from wardround.evaluation.comparisons import compare, differences, fairness, selection
from wardround.privacy.disclosure import small_cells
from wardround.tasks import METRIC_FACTS

COMPARE = "evaluation/test_compare.py"
SELECTION = "evaluation/test_selection.py"
SUMMARIES = "evaluation/test_summaries.py"
FINDINGS = "evaluation/test_finding_summaries.py"
CLAIMS = "evaluation/test_claims.py"
VERTICAL = "runs/test_vertical_studies.py"


def _first_choice(original: Any, table: Any, choices: Any) -> Any:
    return original(
        table,
        [
            {**choice, "chosen": dict.fromkeys(choice["chosen"], next(iter(choice["chosen"].values()), None))}
            for choice in choices
        ],
    )


def _over_first_arm(original: Any, a: Any, b: Any) -> Any:
    effects = original(a, b)
    return {**effects, "d_s": None if effects["d_s"] is None else float((a - b).mean() / a.std(ddof=1))}


MUTANTS = (
    Mutant(
        "the correction for shared patients is forgotten",
        intervals.standard_error,
        lambda original, x, resampling: original(x, replace(resampling, extra=0.0)),
        "the correction is Nadeau and Bengio's",
        ("evaluation/test_intervals.py::test_the_correction_is_nadeau_and_bengios",),
    ),
    Mutant(
        "the same difference with every seed is certain",
        intervals.is_uninformative,
        returns(False),
        "the same difference every time is no certainty",
        ("evaluation/test_intervals.py::test_the_same_difference_every_time_is_no_certainty",),
    ),
    Mutant(
        "gaps are taken from the smallest group",
        fairness.largest_group,
        lambda original, kind: int(kind.rows.sum(axis=(0, 1)).argmin()),
        "a gap is a group's figure less that of the largest group",
        ("evaluation/test_fairness.py::test_gaps_are_those_of_a_group_less_the_largest_one_seed_by_seed",),
    ),
    Mutant(
        "the worst hospital is the lowest, whatever the metric",
        fairness.spread_over_sites,
        lambda original, by_site, lower_is_better: original(by_site, False),
        "where lower is better the worst hospital is the highest",
        ("evaluation/test_fairness.py::test_where_lower_is_better_the_worst_hospital_is_the_highest",),
    ),
    Mutant(
        "a lower Brier score is a loss",
        differences.verdict_of,
        lambda original, interval, metric: original(interval, METRIC_FACTS["accuracy"]),
        "where lower is better a lower figure gains",
        (
            f"{COMPARE}::test_a_clearly_better_and_a_clearly_worse_arm_are_called_so_in_every_metric",
            "evaluation/test_benefit.py::test_a_hospital_gains_loses_or_neither_can_be_said",
        ),
    ),
    Mutant(
        "intervals are not corrected for the number of comparisons",
        differences._identity,
        returns(("one", 0.0, 0.0)),
        "the arms are one family in each metric",
        (f"{COMPARE}::test_the_arms_are_one_family_in_each_metric",),
    ),
    Mutant(
        "d_s is over the first arm's SD",
        compare._effect,
        _over_first_arm,
        "effect sizes are scipy's",
        (f"{COMPARE}::test_all_three_t_tests_and_both_effect_sizes_are_scipys",),
    ),
    Mutant(
        "sites of their own models are ranked together",
        scores.within_sites,
        lambda original, by_site: original(dict([next(iter(by_site.items()))])),
        "AUC of sites' own models is compared within sites",
        (f"{COMPARE}::test_the_auc_of_sites_own_models_is_compared_within_sites",),
    ),
    Mutant(
        "the selected arm takes one value for all seeds",
        selection.compose,
        _first_choice,
        "with each seed the selected arm is that of the value chosen",
        (f"{SELECTION}::test_the_selected_arms_predictions_are_with_each_seed_those_of_the_value_chosen",),
    ),
    Mutant(
        "a value is chosen on validation rows that another site tests",
        split.untested_validation,
        lambda original, splits, patient: tuple(splits),
        "no value is chosen on a row that any site tests",
        (f"{SELECTION}::test_no_value_is_chosen_on_a_row_that_any_site_tests_with_the_same_seed",),
    ),
    Mutant(
        "thresholds are chosen on rows of patients who are tested",
        thresholds.untested,
        lambda original, validation, predictions, groups: validation,
        "validation rows of tested patients count nowhere",
        ("evaluation/test_uncertainty_results.py::test_validation_rows_of_tested_patients_count_nowhere",),
    ),
    Mutant(
        "the worst threshold",
        thresholds.youden,
        lambda original, label, score: original(1 - label, score),
        "the threshold is where Youden's index is best",
        ("evaluation/test_thresholds.py::test_the_threshold_is_where_youdens_index_is_best_on_validation_rows",),
    ),
    Mutant(
        "images are counted for patients",
        small_cells.patients_in,
        lambda original, people: len(people),
        "findings count patients and not their images",
        (f"{FINDINGS}::test_findings_count_patients_and_not_their_images",),
    ),
    Mutant(
        "small cells leave a site",
        small_cells.is_small,
        lambda original, counts, smallest: np.zeros_like(np.asarray(counts), dtype=bool),
        "a small class leaves nothing by class",
        (f"{SUMMARIES}::test_a_small_class_leaves_nothing_by_class",),
    ),
    Mutant(
        "a small group can be worked out from the rest",
        small_cells.releasable_groups,
        lambda original, places, label, people, classes, fewest: {
            name
            for name, rows in places.items()
            if not small_cells.is_small(small_cells.patients_by_class(label[rows], people[rows], classes), fewest).any()
        },
        "a small group cannot be worked out from the rest",
        (f"{SUMMARIES}::test_a_small_group_cannot_be_worked_out_from_the_rest",),
    ),
    Mutant(
        "a figure of a source need not follow from the others",
        verdicts._follows,
        returns(True),
        "a figure must follow from those that it is made of",
        (f"{CLAIMS}::test_a_figure_must_follow_from_those_that_it_is_made_of",),
    ),
    Mutant(
        "a missing party counts as present",
        missing_party.rows_without,
        lambda original, rows, part: rows,
        "what is lost without a party is measured without it",
        (f"{VERTICAL}::test_without_a_party_nothing_of_it_is_read",),
    ),
    Mutant(
        "epsilon of embeddings forgets local epochs",
        missing_party.releases_of,
        lambda original, arm: arm.training.rounds,
        "every epoch releases embeddings",
        (f"{VERTICAL}::test_a_rows_embedding_leaves_once_an_epoch",),
    ),
)
