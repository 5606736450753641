"""What a carrier, a coordinator or a party may try in a matching, and what comes of it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.privacy.test_psi_group import BASE, add, encode, small
from wardround.core.errors import DataError, DeployError, WardroundError
from wardround.privacy.psi import group as psi_group
from wardround.privacy.psi.psi import Matcher, Party, PsiMessage, Terms
from wardround.privacy.secure_sum.secure_sum import Commitments, InMemory
from wardround.privacy.secure_sum.simulated_sum import simulated_key

TERMS = Terms(b"session", ("desk", "lab", "ward"))
IDS = {"desk": ["a", "b", "c", "d"], "lab": ["b", "c", "x"], "ward": ["y", "c", "b", "z", "w"]}
KEYS = {name: simulated_key(name) for name in TERMS.roster}


def party(name: str, terms: Terms = TERMS, ids: list[str] | None = None, kept: Commitments | None = None) -> Party:
    commitments = InMemory() if kept is None else kept
    return Party(name, ids or IDS[name], terms, name.encode() * 32, KEYS[name], KEYS, commitments)


def signed(message: PsiMessage, terms: Terms = TERMS) -> PsiMessage:
    """As a party that goes its own way would sign it."""
    return replace(message, signature=KEYS[message.sender].sign(message.signed(terms)))


def flipped(content: bytes, at: int = 0) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


class Play:
    """A matching of three parties in which `change` may put another message in the place of any."""

    def __init__(self, terms: Terms = TERMS) -> None:
        self.terms = terms
        self.parties = {name: party(name, terms) for name in terms.roster}
        self.matcher = Matcher(terms, KEYS)
        self.delivered: list[PsiMessage] = []

    def run(self, change: Callable[[PsiMessage], PsiMessage] = lambda message: message) -> "Play":
        waiting = [message for name in self.parties for message in self.parties[name].start()]
        while waiting:
            for answer in self.matcher.take(waiting.pop(0)):
                message = change(answer)
                self.delivered.append(message)
                waiting += self.parties[message.receiver].take(message)
        return self

    def first(self, kind: str, to: str, keys: int = 0) -> PsiMessage:
        return next(m for m in self.delivered if (m.kind, m.receiver) == (kind, to) and keys in (0, m.keys))


def only(kind: str, to: str, **changes: Any) -> Callable[[PsiMessage], PsiMessage]:
    return lambda message: replace(message, **changes) if (message.kind, message.receiver) == (kind, to) else message


def test_without_an_attack_all_find_the_two_patients_whom_all_have() -> None:
    played = Play().run()
    for name in TERMS.roster:
        aligned = played.parties[name].aligned
        assert aligned is not None
        assert aligned.ids == ("b", "c")
    assert played.matcher.common == 2


# A message that was changed on its way


@pytest.mark.parametrize("kind", ["list", "sum", "sum print"])
@pytest.mark.parametrize("at", [0, 15, -1])
def test_a_flipped_bit_is_noticed_at_both_ends(kind: str, at: int) -> None:
    message = Play().run().first(kind, "lab")
    changed = replace(message, content=flipped(message.content, at % len(message.content)))
    fresh = Play()
    fresh.parties["lab"].start()
    with pytest.raises(DeployError, match="is not signed by it for this matching"):
        fresh.parties["lab"].take(changed)
    with pytest.raises(DeployError, match="is not signed by it for this matching"):
        fresh.matcher.take(changed)
    assert fresh.parties["lab"].take(message) or kind == "sum print"  # the attempt has bound it to nothing


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"signature": bytes(64)}, "not signed by it"),
        ({"signature": b""}, "not signed by it"),
        ({"form": "digits"}, "not signed by it"),
        ({"keys": 2}, "does not belong"),
        ({"keys": 0}, "does not belong"),
        ({"keys": -1}, "does not belong"),
        ({"keys": 3}, "does not belong"),
        ({"sender": "ward"}, "does not belong"),
        ({"sender": "stranger"}, "does not belong"),
        ({"owner": "ward"}, "does not belong"),
        ({"owner": "stranger"}, "does not belong"),
        ({"kind": "sum"}, "not signed by it"),
        ({"kind": "prints"}, "does not belong"),
        ({"receiver": "ward"}, "is for somebody else"),
    ],
)
def test_a_changed_head_is_noticed(changes: dict[str, Any], problem: str) -> None:
    message = Play().run().first("list", "lab", keys=1)
    with pytest.raises(DeployError, match=problem):
        party("lab").take(replace(message, **changes))


def test_a_message_for_another_place_in_the_ring_is_refused() -> None:
    message = Play().run().first("list", "lab", keys=1)
    with pytest.raises(DeployError, match="somebody else"):
        party("ward").take(replace(message, receiver="ward"))


@pytest.mark.parametrize(
    "encoded",
    [
        b"",
        b"x",
        bytes(8),
        PsiMessage("list", "a", "b", "a").encode()[:-1],
        PsiMessage("list", "a", "b", "a").encode() + b"\0",
    ],
)
def test_bytes_that_are_no_message_are_refused(encoded: bytes) -> None:
    with pytest.raises(DeployError, match="cannot be read"):
        PsiMessage.decode(encoded)


def test_other_heads_of_messages_are_refused() -> None:
    good = PsiMessage("list", "desk", "lab", "desk", 1, "text", b"content", b"signature")
    assert PsiMessage.decode(good.encode()) == good
    for wrong in (replace(good, kind="unknown"), replace(good, keys="+1"), replace(good, keys="x")):  # type: ignore[arg-type]
        with pytest.raises(DeployError, match="cannot be read"):
            PsiMessage.decode(wrong.encode())
    with pytest.raises(DeployError, match="cannot be read"):
        PsiMessage.decode(good.encode().replace(b"text", b"\xff\xff\xff\xff"))


# A message that is repeated


@pytest.mark.parametrize("other", [Terms(b"another", TERMS.roster), Terms(b"session", TERMS.roster, least_common=2)])
@pytest.mark.parametrize("kind", ["list", "sum", "sum print"])
def test_a_message_of_another_matching_is_refused(other: Terms, kind: str) -> None:
    message = Play(other).run().first(kind, "lab")
    with pytest.raises(DeployError, match="not signed by it for this matching"):
        party("lab").take(message)


def test_the_same_message_again_gets_the_same_answer_and_another_one_none() -> None:
    """A second list would try more ids out on the party: with its key on them, others could look for them."""
    played = Play().run()
    lab, message = played.parties["lab"], played.first("list", "lab", keys=1)
    assert [m.content for m in lab.take(message)] == [m.content for m in lab.take(message)]
    another = party("desk", ids=["p", "q", "r", "s"]).start()[0]
    with pytest.raises(DeployError, match="it is asked about desk a second time, with another list"):
        lab.take(another)
    with pytest.raises(DeployError, match="there are two lists of desk in one matching"):
        played.matcher.take(_prints_of("desk", bytes(16 * 4)))


def _prints_of(owner: str, content: bytes) -> PsiMessage:
    return signed(PsiMessage("prints", TERMS.after(owner, 2), "", owner, 3, content=content))


def test_a_party_that_restarts_says_the_same_and_is_bound_by_what_it_said() -> None:
    message = Play().run().first("list", "lab", keys=1)
    commitments = InMemory()
    before = party("lab", kept=commitments)
    first = [m.content for m in [*before.start(), *before.take(message)]]
    after = party("lab", kept=commitments)
    assert [m.content for m in [*after.start(), *after.take(message)]] == first
    with pytest.raises(DeployError, match="asked about desk a second time"):
        party("lab", kept=commitments).take(party("desk", ids=["p", "q"]).start()[0])
    with pytest.raises(DeployError, match="asked about lab a second time"):
        party("lab", ids=["other", "patients"], kept=commitments).start()


# A party that goes its own way


def bad_points() -> list[bytes]:
    torsion = small()
    off_curve = (2).to_bytes(32, "little")
    return [*(encode(point) for point in torsion), *(encode(add(BASE, point)) for point in torsion[1:]), off_curve]


@pytest.mark.parametrize("number", range(16))
@pytest.mark.parametrize("kind", ["list", "sum"])
def test_points_outside_the_group_are_refused_and_bind_the_party_to_nothing(number: int, kind: str) -> None:
    """A product with a point of small order would show the key modulo that order."""
    good = party("desk").start()[0]
    points = (
        sorted({bad_points()[number], *psi_group.split(good.content)}) if kind == "list" else [bad_points()[number]]
    )
    lab = party("lab")
    with pytest.raises(DeployError, match="a message of desk holds something that is not a valid point"):
        lab.take(signed(PsiMessage(kind, "desk", "lab", "desk", 1, content=b"".join(points))))
    assert lab.take(good)


@pytest.mark.parametrize("order", [[1, 0, 2], [0, 1, 1, 2], [2, 1, 0]])
def test_a_list_that_is_not_sorted_or_names_somebody_twice_is_refused(order: list[int]) -> None:
    good = party("desk").start()[0]
    points = psi_group.split(good.content)
    wrong = signed(replace(good, content=b"".join(points[place] for place in order)))
    with pytest.raises(DeployError, match="names somebody twice, or is not sorted"):
        party("lab").take(wrong)


@pytest.mark.parametrize(
    ("kind", "length", "problem"),
    [
        ("list", 0, "has 0 entries, but the parties agreed on 1 to 1000000"),
        ("list", 33, "another length"),
        ("sum", 0, "another length"),
        ("sum", 64, "another length"),
    ],
)
def test_messages_of_another_length_are_refused(kind: str, length: int, problem: str) -> None:
    with pytest.raises(DeployError, match=problem):
        party("lab").take(signed(PsiMessage(kind, "desk", "lab", "desk", 1, content=bytes(length))))


@pytest.mark.parametrize(
    ("sizes", "agreed"), [({"most_patients": 5}, "1 to 5"), ({"most_patients": 9, "padded_to": 5}, "5 exactly")]
)
def test_a_party_that_tries_more_ids_than_agreed_on_is_refused_by_all(sizes: dict[str, int], agreed: str) -> None:
    terms = Terms(b"session", TERMS.roster, **sizes)
    names = [str(number).encode() for number in range(6)]
    points = sorted(psi_group.hidden(terms.digest, psi_group.scalar(bytes(32)), names))
    greedy = signed(PsiMessage("list", "desk", "lab", "desk", 1, "text", b"".join(points)), terms)
    for refuses in (party("lab", terms).take, Matcher(terms, KEYS).take):
        with pytest.raises(DeployError, match=f"the list of desk has 6 entries, but the parties agreed on {agreed}"):
            refuses(greedy)


def test_a_list_that_grows_or_shrinks_on_its_way_is_refused() -> None:
    played = Play()
    played.matcher.take(played.parties["desk"].start()[0])
    with pytest.raises(DeployError, match="the list of desk changed its length on its way"):
        played.matcher.take(_prints_of("desk", bytes(16 * 5)))


def test_a_party_that_hides_the_form_of_its_ids_is_refused() -> None:
    message = party("desk").start()[0]
    with pytest.raises(DeployError, match="says nothing of the form"):
        Matcher(TERMS, KEYS).take(signed(replace(message, form="secret text")))


# A coordinator that lies


def marks_of(name: str, wanted: set[str]) -> bytes:
    """As the coordinator could not make it: it does not know who stands where."""
    participant = party(name)
    content = participant.start()[0].content
    key = psi_group.scalar(name.encode() * 32, b"matching", TERMS.digest, name.encode())
    hidden = psi_group.hidden(TERMS.digest, key, [patient.encode() for patient in IDS[name]])
    who = dict(zip(hidden, IDS[name], strict=True))
    return np.packbits([who[point] in wanted for point in psi_group.split(content)]).tobytes()


@pytest.mark.parametrize("wanted", [{"b"}, {"c", "x"}, {"b", "c", "x"}, {"x"}])
def test_parties_that_are_told_different_patients_find_out(wanted: set[str]) -> None:
    played = Play()
    with pytest.raises(DeployError, match="the parties were told different patients"):
        played.run(only("common", "lab", content=marks_of("lab", wanted)))
    assert [participant.aligned for participant in played.parties.values()] == [None] * 3


def test_a_coordinator_that_leaves_the_same_patient_out_everywhere_is_not_found_out_but_rows_stay_aligned() -> None:
    """What docs/explanation/matching-patients.md says it can do."""
    contents = {name: marks_of(name, {"c"}) for name in TERMS.roster}
    played = Play().run(lambda m: replace(m, content=contents[m.receiver]) if m.kind == "common" else m)
    assert [participant.aligned.ids for participant in played.parties.values() if participant.aligned] == [("c",)] * 3


@pytest.mark.parametrize("content", [b"", bytes(2), b"\xff"])  # the lab has 3 patients: 5 bits too many
def test_marks_of_another_length_are_refused(content: bytes) -> None:
    with pytest.raises(DeployError, match="in a list of another length"):
        Play().run(only("common", "lab", content=content))


def test_marks_that_name_nobody_are_refused() -> None:
    with pytest.raises(DataError, match="lab: no patients are common to all"):
        Play().run(only("common", "lab", content=bytes(1)))


def test_marks_that_come_before_the_list_or_from_a_party_are_refused() -> None:
    message = Play().run().first("common", "lab")
    with pytest.raises(DeployError, match="out of turn"):
        party("lab").take(message)
    for wrong in (replace(message, sender="desk"), replace(message, owner="desk")):
        started = party("lab")
        started.start()
        with pytest.raises(DeployError, match="out of turn"):
            started.take(wrong)
    with pytest.raises(DeployError, match="does not belong"):
        Matcher(TERMS, KEYS).take(message)


def test_other_marks_later_are_refused() -> None:
    """Else the coordinator could ask for the sums of many sets of patients, one after another."""
    played = Play().run()
    with pytest.raises(DeployError, match="asked about lab a second time, with another common"):
        played.parties["lab"].take(PsiMessage("common", "", "lab", "lab", content=marks_of("lab", {"b"})))


def test_marks_on_an_entry_that_only_fills_the_list_are_refused() -> None:
    terms = Terms(b"session", TERMS.roster, padded_to=8)
    played = Play(terms)
    with pytest.raises(DeployError, match="a patient who does not exist"):
        played.run(only("common", "lab", content=b"\xff"))


def test_no_refusal_shows_an_id() -> None:
    secret = "patient-4711"
    lab = party("lab", ids=[secret, "b"])
    lab.start()
    attempts = [PsiMessage("common", "", "lab", "lab", content=content) for content in (b"", b"\xff", bytes(1))]
    for message in [*attempts, PsiMessage("list", "desk", "lab", "desk", 1)]:
        with pytest.raises(WardroundError) as caught:
            lab.take(message)
        assert secret not in str(caught.value)


def test_a_party_does_not_trust_the_coordinator_to_count() -> None:
    """All ask for two patients in common, and the coordinator tells the lab of one."""
    terms = Terms(b"session", TERMS.roster, least_common=2)
    lab = party("lab", terms)
    lab.start()
    with pytest.raises(DataError, match="lab: 1 patients are common to all of desk, lab, ward, but 2 are asked for"):
        lab.take(PsiMessage("common", "", "lab", "lab", content=b"\x80"))
    assert lab.aligned is None
