"""Mistakes in the compression of updates: what is lost, remembered, counted, clipped and checked."""

from dataclasses import replace
from typing import Any

import torch

from tests.mutants.mutant import Mutant, returns
from wardround.core import tree
from wardround.deployment.common import update_checks
from wardround.training import compression, intake, validation
from wardround.training.local import Memory, Outcome

KINDS = "training/test_compression_kinds.py"
ROUNDS = "training/test_compression_rounds.py"
DEPLOYED = "deployment/test_compressed_updates.py"


def _without_residual(original: Any, trial: Any, outcome: Any, residual: Any, *rest: Any) -> Any:
    return original(trial, outcome, {}, *rest)


def _remembers_update(original: Any, trial: Any, outcome: Any, *rest: Any) -> Any:
    compressed = original(trial, outcome, *rest)
    if not compressed.memory.residual:
        return compressed
    return replace(compressed, memory=replace(compressed.memory, residual=tree.flatten(outcome.update)))


def _to_nearest(original: Any, leaves: Any, settings: Any, rng: Any) -> Any:
    class Halves:
        def random(self, count: int, dtype: Any) -> Any:
            return torch.full((count,), 0.5).numpy()

    return original(leaves, settings, Halves())


MUTANTS = (
    Mutant(
        "what compression left out is never sent",
        compression.compress_outcome,
        _without_residual,
        "all that was sent and the residual make up all updates",
        (f"{ROUNDS}::test_what_was_sent_and_what_is_remembered_make_up_all_updates_exactly",),
    ),
    Mutant(
        "the residual is the whole update",
        compression.compress_outcome,
        _remembers_update,
        "all that was sent and the residual make up all updates",
        (f"{ROUNDS}::test_what_was_sent_and_what_is_remembered_make_up_all_updates_exactly",),
    ),
    Mutant(
        "a first residual is missing",
        compression.first_residual,
        returns({}),
        "kinds that keep what they lose have a memory",
        (f"{ROUNDS}::test_only_kinds_that_keep_what_they_lose_have_a_memory",),
    ),
    Mutant(
        "a residual is not saved",
        Memory.leaves,
        lambda original, self: original(replace(self, residual={})),
        "a saved run goes on to the same bits",
        (f"{ROUNDS}::test_a_run_that_is_saved_after_any_round_goes_on_to_the_same_bits",),
    ),
    Mutant(
        "half precision has no exponents",
        compression._exponent,
        returns(0),
        "the bound of half precision does not depend on the size of an update",
        (f"{KINDS}::test_a_half_changes_a_number_by_a_2048th_of_itself_whatever_the_size_of_the_update",),
    ),
    Mutant(
        "numbers are rounded to the nearest multiple",
        compression.quantise,
        _to_nearest,
        "quantised numbers have the right mean",
        (f"{KINDS}::test_quantised_numbers_have_the_right_mean_and_the_derived_variance",),
    ),
    Mutant(
        "one number more or less is sent",
        compression._largest,
        lambda original, count, settings: min(count, original(count, settings) + 1),
        "round(share x n) numbers are sent",
        (f"{KINDS}::test_the_largest_numbers_are_kept_exactly_and_the_others_are_zero",),
    ),
    Mutant(
        "all parts of an update are compressed",
        compression.compressed_parts,
        lambda original, algorithm, update: list(update),
        "parts that must be exact are sent as they are",
        (f"{ROUNDS}::test_parts_that_must_be_exact_are_sent_as_they_are",),
    ),
    Mutant(
        "a compressed update is not clipped on arrival",
        compression._clipped,
        lambda original, trial, update: update,
        "no update that is summed is longer than the clip",
        (
            f"{ROUNDS}::test_no_update_that_is_summed_is_longer_than_the_clip",
            f"{ROUNDS}::test_rounding_that_lengthens_an_update_is_clipped_on_arrival",
        ),
    ),
    Mutant(
        "bytes are those of the whole update",
        Outcome.leaving,
        lambda original, self: self.update,
        "the record counts the bytes that are sent",
        (f"{ROUNDS}::test_the_record_counts_the_bytes_that_are_sent",),
    ),
    Mutant(
        "the error of compression at a protected site is told",
        intake.Intake._compression_error,
        lambda original, self: self.error / self.weight if self.weight else None,
        "under site-level privacy no error is recorded",
        (f"{ROUNDS}::test_no_update_that_is_summed_is_longer_than_the_clip",),
    ),
    Mutant(
        "clusters are found among the largest numbers",
        validation._check_compression,
        returns(None),
        "an algorithm that compares updates is refused what changes their directions",
        (f"{ROUNDS}::test_an_algorithm_that_compares_updates_is_refused_what_changes_their_directions",),
    ),
    Mutant(
        "compressed numbers are not looked at before they are kept",
        update_checks.problem_in_sent,
        returns(""),
        "what no hospital sends is refused",
        (f"{DEPLOYED}::test_what_no_hospital_sends_is_refused_and_its_sender_named",),
    ),
)
