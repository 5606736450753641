"""Mistakes in simulated adversaries: who is bad, what is forged, and whose figures count."""

import numpy as np

from tests.mutants.mutant import Mutant, returns
from wardround.adversaries import of_arm
from wardround.evaluation.under_attack import backdoor, damage
from wardround.study.robustness import adversary_validation
from wardround.training import forging

STUDIES = "adversaries/test_in_studies.py"
DAMAGE = "evaluation/under_attack/test_damage.py"

MUTANTS = (
    Mutant(
        "bad sites send what they have trained",
        forging.with_forged,
        lambda original, trial, run, outcomes: outcomes,
        "what a bad site sends is forged",
        (f"{STUDIES}::test_what_bad_sites_send_is_forged_and_what_they_keep_is_not",),
    ),
    Mutant(
        "rows are poisoned from the first round on",
        of_arm.poisoned_sites,
        lambda original, arm, known, sites, task, seed, until: original(arm, known, sites, task, seed, 10**6),
        "rows turn bad in the round that the study names",
        (f"{STUDIES}::test_rows_turn_bad_in_the_round_that_the_study_names",),
    ),
    Mutant(
        "patients of bad sites count in every figure",
        damage.honest_tables,
        lambda original, study, predictions, others: (
            predictions,
            {**others, "at_bad_sites": original(study, predictions, others)[1]["at_bad_sites"]},
        ),
        "figures are those of the sites that are bad in no arm",
        (f"{DAMAGE}::test_every_figure_is_that_of_the_sites_that_are_bad_in_no_arm",),
    ),
    Mutant(
        "rows of the target's own class count as a backdoor's success",
        backdoor.called,
        lambda original, scores, arm, target: np.array(
            [
                (scores.predicted[places] == target).mean()
                for places in (
                    scores.of_arm(arm)[scores.seed[scores.of_arm(arm)] == seed] for seed in range(len(scores.seeds))
                )
            ]
        ),
        "a backdoor works on rows of other classes",
        (f"{DAMAGE}::test_a_backdoor_is_measured_with_and_without_its_trigger_and_on_an_honest_model",),
    ),
    Mutant(
        "a deployment takes simulated adversaries",
        adversary_validation.refuse_deployed_adversaries,
        returns(None),
        "a study with adversaries is not deployed",
        (f"{STUDIES}::test_a_study_with_adversaries_is_not_deployed",),
    ),
)
