"""Mistakes with explanations: a reason that is not the model's, or a figure that leaves a hospital."""

import numpy as np

from tests.mutants.mutant import Mutant
from wardround.explain import accumulated_effects, permutation
from wardround.explain.coalitions import own_numbers
from wardround.explain.exact_shapley import shapley_weights
from wardround.explain.linear_shapley import line
from wardround.report.sections.explaining import explanations
from wardround.study.explanations import is_protected

SUMS = "explain/test_sums.py"
SHAPLEY = "explain/test_shapley.py"
ACROSS = "deployment/test_explanations.py"
SECTION = "report/sections/test_explanations.py"


MUTANTS = (
    Mutant(
        "bins of few patients are told",
        accumulated_effects.shown_bins,
        lambda original, own, people, bins, smallest: np.ones(bins, dtype=bool),
        "a bin of fewer than smallest_cell patients counts as empty",
        (f"{SUMS}::test_a_bin_of_few_patients_counts_as_empty_and_cannot_be_computed_from_the_others",),
    ),
    Mutant(
        "bins without rows change nothing",
        accumulated_effects.filled_between,
        lambda original, change, rows, width: change,
        "between two bins with rows the line goes on",
        (f"{SUMS}::test_a_bin_of_few_patients_counts_as_empty_and_cannot_be_computed_from_the_others",),
    ),
    Mutant(
        "a column is shuffled without its other numbers",
        permutation.shuffled,
        lambda original, x, places, order: original(x, places[:1], order),
        "all numbers of a column move together",
        (f"{SUMS}::test_importance_of_hospitals_is_that_of_all_rows_shuffled_within_them",),
    ),
    Mutant(
        "all subsets weigh alike",
        shapley_weights,
        lambda original, subsets: np.sign(original(subsets)) / (1 << (subsets.shape[1] - 1)),
        "a subset weighs by how many orders begin with it",
        (f"{SHAPLEY}::test_all_subsets_give_the_values_of_the_definition_for_every_task",),
    ),
    Mutant(
        "the numbers of a column are those of the background",
        own_numbers,
        lambda original, scorer, own, like: ~original(scorer, own, like),
        "a subset has the row's own numbers",
        (f"{SHAPLEY}::test_all_subsets_give_the_values_of_the_definition_for_every_task",),
    ),
    Mutant(
        "the intercept of a linear model is forgotten",
        line,
        lambda original, scorer, like: (original(scorer, like)[0], 0.0),
        "base and contributions add up to the score",
        ("explain/test_linear_shapley.py::test_values_are_those_of_the_definition_for_every_task",),
    ),
    Mutant(
        "arms whose patients are protected are explained",
        is_protected,
        lambda original, arm: False,
        "sums without noise are withheld",
        (f"{ACROSS}::test_patients_with_differential_privacy_are_withheld_and_nobody_is_asked",),
    ),
    Mutant(
        "hospitals disagree without a correction",
        explanations.apart,
        lambda original, content: original(
            {**content, "differences": {n: {**d, "p_holm": d["p"]} for n, d in content["differences"].items()}}
        ),
        "p values are corrected for the columns",
        (f"{SECTION}::test_hospitals_that_disagree_are_named_with_their_figures",),
    ),
)
