"""Mistakes in secure sums: somebody sees an update, or a sum that is not one."""

from copy import copy
from typing import Any

from tests.mutants.mutant import Mutant, returns
from wardround.privacy.secure_sum import secure_sum, shamir
from wardround.privacy.secure_sum.secure_sum import Collector, InMemory, Member

SUM = "privacy/test_secure_sum.py"
ATTACKS = "privacy/test_secure_sum_attacks.py"
DROPOUTS = "privacy/test_secure_sum_dropouts.py"
SHAMIR = "privacy/test_shamir.py"


def _without_threshold(original: Any, self: Any, stage: str, arrived: Any, following: str) -> Any:
    true_terms = self.terms
    object.__setattr__(self, "terms", _with_threshold(true_terms, 1))
    try:
        return original(self, stage, arrived, following)
    finally:
        object.__setattr__(self, "terms", true_terms)


def _with_threshold(agreed: Any, threshold: int) -> Any:
    changed = copy(agreed)
    object.__setattr__(changed, "threshold", threshold)
    return changed


def _forgetful(original: Any, self: Any, kind: str, context: bytes, digest: bytes) -> bytes:
    return digest


MUTANTS = (
    Mutant(
        "a vector leaves without masks",
        Member.mask,
        lambda original, self, vector: (original(self, vector), vector)[1],
        "a masked vector looks like noise",
        (f"{SUM}::test_a_masked_vector_looks_like_noise_and_leaves_the_vector_alone",),
    ),
    Mutant(
        "the threshold of a secure sum is not kept",
        Collector._close,
        _without_threshold,
        "with one site too few there is no sum",
        (f"{DROPOUTS}::test_one_site_more_that_falls_silent_and_there_is_no_sum",),
    ),
    Mutant(
        "half of the sites are enough",
        secure_sum.default_threshold,
        lambda original, sites: max(2, sites // 2),
        "the default threshold is two thirds and one more",
        (f"{DROPOUTS}::test_default_threshold_is_two_thirds_and_one_more",),
    ),
    Mutant(
        "nobody looks at the signature of a key",
        secure_sum.check_advert,
        returns(None),
        "swapped keys are refused",
        (f"{ATTACKS}::test_swapped_keys_are_refused", f"{ATTACKS}::test_an_advert_of_another_round_is_refused"),
    ),
    Mutant(
        "a site does not hold to what it said",
        InMemory.commit,
        _forgetful,
        "a second list of survivors is refused, after a restart too",
        (f"{ATTACKS}::test_another_list_of_survivors_is_refused_after_a_restart_too",),
    ),
    Mutant(
        "a site says another vector in the same round",
        Member._commit,
        returns(None),
        "another vector in the same round is refused",
        (f"{ATTACKS}::test_another_vector_in_the_same_round_is_refused_after_a_restart_too",),
    ),
    Mutant(
        "sites agree on nothing before they reveal",
        secure_sum.agreed,
        returns(b"agreed"),
        "sites that were told of different survivors reveal nothing",
        (f"{ATTACKS}::test_sites_that_were_told_of_different_survivors_reveal_nothing",),
    ),
    Mutant(
        "too few confirmations are enough",
        Member._enough,
        returns(None),
        "too few confirmations reveal nothing",
        (f"{ATTACKS}::test_too_few_or_foreign_confirmations_reveal_nothing",),
    ),
    Mutant(
        "a revealed seed is not checked",
        secure_sum.seed_hash,
        returns(bytes(32)),
        "a revealed share with a flipped bit gives no sum",
        (f"{ATTACKS}::test_a_revealed_share_with_a_flipped_bit_gives_no_sum",),
    ),
    Mutant(
        "every share is the secret",
        shamir.split,
        lambda original, secret, drawn, *rest: original(secret, [0] * len(drawn), *rest),
        "one share less than the threshold says nothing about the secret",
        (f"{SHAMIR}::test_one_share_less_says_nothing_about_the_secret",),
    ),
)
