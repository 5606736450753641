"""Mistakes in protocol and deployment: memory, rounds, quorum, signatures, and what may leave a hospital."""

from dataclasses import replace
from typing import Any

from tests.mutants.mutant import Mutant, returns
from wardround.data import agreement
from wardround.deployment.common.messaging import Messenger
from wardround.deployment.common.site_store import Store
from wardround.deployment.flat import site_training
from wardround.deployment.flower import gateway
from wardround.deployment.flower.superlink_process import SignedHeads
from wardround.deployment.governance import policy
from wardround.protocol import messages, party_sealing, reading, text
from wardround.protocol.messages import Sealed
from wardround.protocol.party_sealing import Channel

MESSAGES = "deployment/test_messages.py"
STORE = "deployment/test_store.py"
CRASHES = "deployment/test_crashes_in_process.py"
PATIENTS = "deployment/test_nothing_of_a_patient.py"
PARTIES = "deployment/test_vertical_private.py"
TRUST = "deployment/test_trust.py"
POLICY = "deployment/test_policy.py"


class _Credulous:
    def verify(self, signature: bytes, content: bytes) -> bool:
        return True


def _newest_memory(original: Any, self: Any, wave: int, counted: int, first: Any) -> Any:
    return next(reversed(self.cached.values()), None) or original(self, wave, counted, first)


def _sorted_tensors(original: Any, *args: Any, **kwargs: Any) -> Any:
    message = original(*args, **kwargs)
    message.__dict__["tensors"] = dict(sorted(message.tensors.items()))
    return message


MUTANTS = (
    Mutant(
        "nobody looks at signatures",
        messages.open_sealed,
        lambda original, sealed, verifier, *rest, **options: original(sealed, _Credulous(), *rest, **options),
        "one changed byte anywhere is noticed",
        (f"{MESSAGES}::test_one_changed_byte_anywhere_is_noticed",),
    ),
    Mutant(
        "tensors come in the order of the alphabet",
        messages.open_sealed,
        _sorted_tensors,
        "tensors keep their order, and sums their bits",
        (f"{MESSAGES}::test_tensors_keep_their_order",),
    ),
    Mutant(
        "a signature does not cover the tensors",
        Sealed.tensors_hash,
        returns(bytes(32)),
        "one changed byte anywhere is noticed",
        (f"{MESSAGES}::test_one_changed_byte_anywhere_is_noticed",),
    ),
    Mutant(
        "an answer to another question counts",
        reading.belongs,
        returns(True),
        "an answer belongs to one question",
        (f"{MESSAGES}::test_an_answer_belongs_to_one_question",),
    ),
    Mutant(
        "control characters of a hospital reach the screen",
        text.plain_text,
        lambda original, shown, *rest: str(shown),
        "text from a hospital is shown without control characters",
        (
            "deployment/test_answers_checked.py"
            "::test_text_from_a_hospital_reaches_the_screen_without_control_characters",
        ),
    ),
    Mutant(
        "memory of an update that did not count stays in force",
        Store.memories,
        _newest_memory,
        "memory counts when the next message says so",
        (f"{STORE}::test_whatever_counts_and_whoever_dies_the_memory_is_that_of_the_last_that_counted",),
    ),
    Mutant(
        "a round that is over is trained again",
        Store.refuse_old,
        returns(None),
        "rounds that are over are refused",
        (f"{STORE}::test_rounds_that_are_over_are_refused",),
    ),
    Mutant(
        "a round closes without a quorum",
        Messenger._may_close,
        lambda original, self, requested, waiting, began: original(replace(self, quorum=0), requested, waiting, began),
        "a round waits for its quorum whatever the deadline",
        (f"{CRASHES}::test_a_round_waits_for_its_quorum_whatever_the_deadline",),
    ),
    Mutant(
        "a value of one patient is shared",
        agreement.with_enough,
        lambda original, values: values,
        "a value that only one patient has is not shared",
        (f"{PATIENTS}::test_a_value_that_only_one_patient_has_is_not_lent",),
    ),
    Mutant(
        "a site sends an update that is not finite",
        site_training._is_finite,
        returns(True),
        "a hospital sends no update that is not finite",
        (
            "deployment/test_answers_checked.py"
            "::test_a_hospital_sends_no_update_that_is_not_finite_and_others_are_not_harmed",
        ),
    ),
    Mutant(
        "a signed head is good as often as one likes",
        SignedHeads._first,
        returns(True),
        "a head is good once",
        (f"{TRUST}::test_a_head_is_good_once",),
    ),
    Mutant(
        "addresses of one network count apart",
        gateway.network_of,
        lambda original, address: address,
        "one who has many addresses counts as one",
        ("deployment/test_gateway.py::test_one_who_has_many_addresses_counts_as_one",),
    ),
    Mutant(
        "whoever carries a sealed message can open it",
        Channel._key,
        lambda original, self, other, route: bytes(32),
        "whoever has not the secret of a party opens nothing",
        (f"{PARTIES}::test_whoever_has_not_the_secret_of_a_party_opens_nothing",),
    ),
    Mutant(
        "a key that no kit vouches for is taken",
        party_sealing.vouched_key,
        lambda original, run, party, voucher, peers: original(
            run, party, voucher, {name: _Credulous() for name in peers}
        ),
        "a coordinator cannot put itself between two parties",
        (f"{PARTIES}::test_a_coordinator_cannot_put_itself_between_two_parties",),
    ),
    Mutant(
        "a site's policy on its rows is ignored",
        policy.refusal_of_rows,
        returns(None),
        "rows are counted against the policy",
        (f"{POLICY}::test_rows_are_counted_and_the_count_is_not_told",),
    ),
    Mutant(
        "a site is always open",
        policy.closed,
        returns(None),
        "a closed site says when it opens",
        (f"{POLICY}::test_a_closed_site_says_when_it_opens",),
    ),
    Mutant(
        "a study that nobody approved is trained on",
        policy.refusal_of_study,
        returns(None),
        "a study that is not approved is refused before anything else",
        (f"{POLICY}::test_a_study_that_is_not_approved_is_refused_before_anything_else",),
    ),
)
