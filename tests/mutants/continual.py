"""Mistakes in what a study starts from, that leave it without its meaning, or its report without its truth."""

from typing import Any

from tests.mutants.mutant import Mutant, returns
from wardround.evaluation import forgetting as scoring
from wardround.models.starting_weights import StartingModel
from wardround.runs.continual import earlier, fit, forgetting, privacy
from wardround.runs.continual.predecessor import SavedModel
from wardround.study import schema

START = "runs/continual/test_starting.py"
FORGET = "runs/continual/test_forgetting.py"
COST = "runs/continual/test_composed_privacy.py"


def _larger(original: Any, here: Any, ways: Any, delta: float) -> Any:
    """As if a patient of both trainings paid for the dearer one."""
    row = original(here, ways, delta)
    return {**row, "epsilon": max(row["before"], row["here"])}


MUTANTS = (
    Mutant(
        "the trained weights are forgotten",
        StartingModel.first,
        lambda original, self, params: params,
        "training begins with the bits of the run",
        (f"{START}::test_every_seed_starts_with_the_bits_of_its_own",),
    ),
    Mutant(
        "what a site kept is forgotten",
        StartingModel.kept_at,
        lambda original, self, site, private, buffers: (private, buffers),
        "private parts are those of the site of the same name",
        (f"{START}::test_private_parts_are_those_of_the_sites_of_the_same_names",),
    ),
    Mutant(
        "columns are not compared",
        fit.refuse_other_columns,
        returns(None),
        "position 7 means the same there and here",
        (f"{START}::test_descriptions_are_compared_whole",),
    ),
    Mutant(
        "the digest knows no weights",
        SavedModel.digest,
        returns("the same"),
        "other weights are another study",
        (f"{START}::test_the_study_is_another_with_other_weights_and_the_same_wherever_they_are",),
    ),
    Mutant(
        "the hash knows no start",
        schema._identity_of,
        returns(None),
        "the content that a study starts from is part of its hash",
        ("study/test_start_from.py::test_the_hash_knows_the_content_and_not_the_path",),
    ),
    Mutant(
        "rows that were trained on count",
        forgetting.used_rows,
        lambda original, plan, arm, seed: original(plan, arm, seed)[:0],
        "forgetting is measured on patients whom the new model has not seen",
        (f"{FORGET}::test_patients_on_whom_the_new_model_was_trained_are_left_out",),
    ),
    Mutant(
        "nothing is ever forgotten",
        scoring._change,
        lambda original, entry, word, where: f"no evidence that it forgot {where}.",
        "what was forgotten is said",
        (f"{FORGET}::test_what_is_forgotten_is_said",),
    ),
    Mutant(
        "names alone tell patients apart",
        earlier.sharing,
        lambda original, plan, arm, generation, run: {
            site: tuple(other for other in generation.sites if other == site)
            for site in earlier.training_sites(plan, arm)
        },
        "sites that are no hospitals share patients whatever their names",
        (f"{COST}::test_sites_that_are_no_hospitals_are_told_apart_by_their_rows",),
    ),
    Mutant(
        "two trainings cost as much as one",
        privacy._composed,
        _larger,
        "charges of all trainings compose",
        (f"{COST}::test_a_chain_composes_by_the_accountant",),
    ),
    Mutant(
        "weights that know patients are no obstacle",
        privacy._refuse_shared,
        returns(None),
        "an epsilon that does not hold is refused",
        (f"{COST}::test_an_epsilon_that_would_not_hold_is_refused",),
    ),
)
