"""What each end of a matching sees, and that it learns the intersection and sizes from it and nothing else."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, permutations

import numpy as np
import pytest
from scipy.stats import chi2, ks_2samp, spearmanr

from tests.privacy.test_psi_group import ORDER
from wardround.core import seeds
from wardround.privacy.psi import group as psi_group
from wardround.privacy.psi.psi import Party, PsiMessage, Terms
from wardround.privacy.psi.simulated_psi import _secret, match_patients
from wardround.privacy.secure_sum.secure_sum import InMemory
from wardround.privacy.secure_sum.simulated_sum import simulated_key

SEED = 5
ONE = (1).to_bytes(32, "little")
TWO, THREE = ("lab", "ward"), ("desk", "lab", "ward")


@dataclass
class Seen:
    """All that travels in one matching."""

    ids: dict[str, list[str]]
    sent: list[tuple[str, PsiMessage]] = field(default_factory=list)  # a party's messages go to the coordinator first

    def __post_init__(self) -> None:
        self.terms = Terms(b"views", tuple(self.ids))
        self.matched = match_patients(
            self.ids, seed=SEED, terms=self.terms, watch=lambda to, message: self.sent.append((to, message))
        )

    def by(self, party: str) -> list[PsiMessage]:
        """What a party receives, or the coordinator with its name "", which carries all that parties say."""
        return [message for to, message in self.sent if to == party]

    def everything(self) -> bytes:
        return b"\0".join(message.encode() for _, message in self.sent)

    def key(self, party: str) -> bytes:
        return psi_group.scalar(_secret(SEED, party), b"matching", self.terms.digest, party.encode())

    def points(self, ids: Iterable[str], *parties: str) -> set[bytes]:
        """Of ids, with the keys of parties."""
        blinded_points = psi_group.hidden(self.terms.digest, ONE, [name.encode() for name in ids])
        for party in parties:
            blinded_points = psi_group.multiply(self.key(party), b"".join(blinded_points))
        return set(blinded_points)


def names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}-{number:05}" for number in range(count)]


def shape(messages: Iterable[PsiMessage]) -> list[tuple[str | int, ...]]:
    return [(m.kind, m.sender, m.receiver, m.owner, m.keys, m.form, len(m.content)) for m in messages]


def entries(messages: Iterable[PsiMessage], kinds: Sequence[str] = ("list", "sum")) -> list[bytes]:
    return [point for message in messages if message.kind in kinds for point in psi_group.split(message.content)]


def two_parties(others: str = "ward") -> Seen:
    common = names("common", 20)
    return Seen({"lab": names("lab", 30) + common, "ward": common + names(others, 44)})


def three_parties() -> Seen:
    """Each two of them have patients in common whom the third does not have: 5, 7 and 11. All three have 13."""
    desk_lab, desk_ward, lab_ward, every = names("dl", 5), names("dw", 7), names("lw", 11), names("all", 13)
    return Seen(
        {
            "desk": [*names("d", 3), *desk_lab, *desk_ward, *every],
            "lab": [*names("l", 4), *desk_lab, *lab_ward, *every],
            "ward": [*names("w", 6), *desk_ward, *lab_ward, *every],
        }
    )


# What is on the way


def test_a_party_of_two_receives_one_list_a_mark_for_each_of_its_patients_and_three_short_values() -> None:
    assert sorted(shape(two_parties().by("lab"))) == [
        ("common", "", "lab", "lab", 0, "", 7),  # 50 bits
        ("list", "ward", "lab", "ward", 1, "text", 64 * 32),
        ("sum", "ward", "lab", "ward", 1, "", 32),
        ("sum print", "lab", "lab", "ward", 2, "", 16),
        ("sum print", "ward", "lab", "lab", 2, "", 16),
    ]


def test_other_patients_of_the_other_party_change_nothing_that_a_party_sees_but_the_points() -> None:
    view, other = two_parties("ward"), two_parties("somebody-else")
    assert view.ids["ward"] != other.ids["ward"]
    for party in ("lab", ""):
        assert shape(view.by(party)) == shape(other.by(party))
    marks = [message.content for seen in (view, other) for message in seen.by("lab") if message.kind == "common"]
    assert marks[0] == marks[1]
    common = [set(entries(seen.by("lab"), ["list"])) for seen in (view, other)]
    assert len(common[0] & common[1]) == 20  # with the same key, the points of the common patients
    assert len(common[0]) == len(common[1]) == 64


def test_no_id_and_no_hash_of_one_is_in_any_message() -> None:
    """Neither plain nor with anything that others know: the session, the names, the hash of the terms."""
    seen = three_parties()
    everything = seen.everything()
    public = [b"", seen.terms.session, seen.terms.digest, *(party.encode() for party in seen.terms.roster)]
    salts = [b"".join(pair) for pair in [*permutations(public, 2), *((salt,) for salt in public)]]
    for name in {name for column in seen.ids.values() for name in column}:
        assert name.encode() not in everything
        for salt in salts:
            for content in (salt + name.encode(), name.encode() + salt):
                for method in ("md5", "sha1", "sha256", "sha512", "blake2b", "sha3_256"):
                    assert hashlib.new(method, content).digest()[:12] not in everything
    for point in seen.points(name for column in seen.ids.values() for name in column):
        assert point not in everything
        assert seen.terms.print_of(point) not in everything


@pytest.mark.slow
def test_points_look_alike_whatever_the_ids_and_the_order_of_the_file_is_lost() -> None:
    """Numbers in a row at one party, unlike texts at the other: byte by byte, both lists are uniform.

    Of 800 points the first byte is left out, by which lists are sorted; the other 31 have each value 97 times on
    average. All bounds are those that a fair draw passes but once in 10,000 times; the draw here is always the same.
    """
    count = 800
    rng = seeds.generator(SEED, "texts")
    texts = [rng.bytes(6).hex() for _ in range(count - 1)]
    seen = Seen({"lab": [str(number) for number in range(count)], "ward": [*texts, "7"]})
    lists = {m.owner: psi_group.split(m.content) for m in seen.by("") if m.kind == "list"}
    arrays = {owner: np.frombuffer(b"".join(points), np.uint8).reshape(count, 32) for owner, points in lists.items()}
    for values in arrays.values():
        counts = np.bincount(values[:, 1:].ravel(), minlength=256)  # the lists are sorted by their first bytes
        expected = counts.sum() / 256
        assert ((counts - expected) ** 2 / expected).sum() < chi2.ppf(1 - 1e-4, 255)
    numbers = [values[:, :6].astype(float) @ 256.0 ** np.arange(5, -1, -1) for values in arrays.values()]
    assert ks_2samp(*numbers).pvalue > 1e-4

    place = {point: place for place, point in enumerate(lists["lab"])}
    hidden = psi_group.hidden(seen.terms.digest, seen.key("lab"), [str(number).encode() for number in range(count)])
    assert spearmanr(range(count), [place[point] for point in hidden]).pvalue > 1e-4
    backwards = Seen({"lab": seen.ids["lab"][::-1], "ward": seen.ids["ward"]})
    assert backwards.everything() == seen.everything()


def test_entries_that_fill_a_list_are_known_to_nobody_else() -> None:
    """Else another party could put them into its own list, and count them. Without its key, a list with other filling
    has the points of its patients in common with this one and no other."""
    terms, lists = Terms(b"filled", TWO, padded_to=9), list[set[bytes]]()
    keys = {party: simulated_key(party) for party in TWO}
    for secret in (bytes(32), bytes(31) + b"x"):
        lab = Party("lab", ["a", "b"], terms, secret, keys["lab"], keys, InMemory())
        key = psi_group.scalar(secret, b"matching", terms.digest, b"lab")
        inverse = pow(int.from_bytes(key, "little"), -1, ORDER).to_bytes(32, "little")
        lists.append(set(psi_group.multiply(inverse, lab.start()[0].content)))
    assert [len(points) for points in lists] == [9, 9]
    assert lists[0] & lists[1] == set(psi_group.hidden(terms.digest, ONE, [b"a", b"b"]))


# What a party can make of it


def test_a_partys_view_can_be_made_up_from_its_own_ids_and_the_result() -> None:
    """So it learns nothing more from it (but sizes and the form of ids).

    The lab is played messages that somebody made up who knows the lab's ids, the common patients and how many the ward
    has, but no other patient of the ward and not its key: random points in the place of the ward's. The lab takes them,
    says the same as in a true matching wherever its answer rests on its own list, and comes to the same result.
    """
    true = two_parties()
    mine, common, size = true.ids["lab"], set(names("common", 20)), len(true.ids["ward"])
    keys = {party: simulated_key(party) for party in TWO}
    lab = Party("lab", mine, true.terms, _secret(SEED, "lab"), keys["lab"], keys, InMemory())
    own_list = lab.start()

    draws = seeds.generator(11, "made up")
    drawn = psi_group.hidden(b"nobody", psi_group.scalar(draws.bytes(32)), [draws.bytes(16) for _ in range(size)])
    chosen = [drawn[place] for place in draws.choice(size, len(common), replace=False)]
    total = psi_group.add_up(chosen)
    own = dict(zip(psi_group.hidden(true.terms.digest, true.key("lab"), [n.encode() for n in mine]), mine, strict=True))
    marks = np.packbits([own[point] in common for point in psi_group.split(own_list[0].content)]).tobytes()
    last = true.terms.print_of(psi_group.multiply(true.key("lab"), total)[0])

    def from_ward(kind: str, owner: str, count: int, content: bytes, form: str = "") -> PsiMessage:
        message = PsiMessage(kind, "ward", "lab", owner, count, form, content)
        return replace(message, signature=keys["ward"].sign(message.signed(true.terms)))

    messages = [*own_list, *lab.take(from_ward("list", "ward", 1, b"".join(sorted(drawn)), "text"))]
    messages += lab.take(PsiMessage("common", "", "lab", "lab", content=marks))
    answer = lab.take(from_ward("sum", "ward", 1, total))
    lab.take(from_ward("sum print", "lab", 2, last))
    lab.take(replace(answer[0], receiver="lab"))
    assert answer[0].content == last
    assert lab.aligned is not None
    assert lab.aligned.ids == true.matched.patients["lab"].ids == tuple(sorted(common))

    truly = [message for message in true.by("") if message.sender == "lab"]
    about_own = {message.kind: message.content for message in truly if message.owner == "lab"}
    assert {m.kind: m.content for m in messages if m.owner == "lab"} == {k: about_own[k] for k in ("list", "sum")}
    assert {(m.kind, m.owner, len(m.content)) for m in [*messages, *answer]} == {
        (m.kind, m.owner, len(m.content)) for m in truly
    }


def test_a_party_cannot_try_ids_on_the_list_of_another() -> None:
    """All that the lab can make from ids it guesses (and it guesses right) and from its own key meets nothing that it
    received, whether or not it takes its own key off again. With the ward's key it would: the control."""
    seen = two_parties()
    received = entries(seen.by("lab"))
    own = seen.key("lab")
    inverse = pow(int.from_bytes(own, "little"), -1, ORDER).to_bytes(32, "little")
    reach = {*received, *psi_group.multiply(own, b"".join(received)), *psi_group.multiply(inverse, b"".join(received))}
    reach |= {seen.terms.print_of(point) for point in reach} | set(_prints(seen.by("lab"), ["sum print"]))
    guesses = seen.ids["ward"]
    guessed_points = seen.points(guesses) | seen.points(guesses, "lab") | seen.points(guesses, "lab", "lab")
    guessed_points |= {seen.terms.print_of(point) for point in guessed_points}
    assert not guessed_points & reach
    assert seen.points(guesses, "ward") <= reach
    assert seen.points(guesses, "ward", "lab") <= reach


def test_of_three_parties_none_can_tell_whom_it_shares_with_one_other_only() -> None:
    seen = three_parties()
    for party in THREE:
        assert seen.matched.patients[party].ids == tuple(names("all", 13))
        received = entries(seen.by(party))
        own = seen.key(party)
        reach = {*received, *psi_group.multiply(own, b"".join(received))}
        reach |= {seen.terms.print_of(point) for point in reach}
        before = THREE[THREE.index(party) - 1]
        for help_of in ((), (before,)):  # the control: with the key of the party whose list comes first to it, it could
            own_points = seen.points(seen.ids[party], *help_of) | seen.points(seen.ids[party], party, *help_of)
            own_points |= {seen.terms.print_of(point) for point in own_points}
            assert bool(own_points & reach) == bool(help_of)
        assert not [message for message in seen.by(party) if message.kind == "prints"]


def test_lists_that_one_party_sees_never_have_the_same_keys() -> None:
    """Else it could compare two lists of others with each other."""
    seen = three_parties()
    for party in THREE:
        lists = [message for message in seen.by(party) if message.kind == "list"]
        assert sorted(message.keys for message in lists) == [1, 2]
        assert len({message.owner for message in lists} | {party}) == 3
        own = next(m for m in seen.by("") if m.kind == "list" and m.owner == party and m.keys == 1)
        seen_twice = [set(psi_group.split(listing.content)) for listing in (*lists, own)]
        times_own = [set(psi_group.multiply(seen.key(party), listing.content)) for listing in lists]
        for listing, other in combinations([*seen_twice, *times_own], 2):
            assert not listing & other


# What the coordinator can make of it


def _prints(messages: Iterable[PsiMessage], kinds: Sequence[str] = ("prints",)) -> list[bytes]:
    contents = [message.content for message in messages if message.kind in kinds]
    return [content[start : start + 16] for content in contents for start in range(0, len(content), 16)]


def test_the_coordinator_sees_no_point_with_all_keys_and_of_three_parties_it_sees_how_many_each_two_share() -> None:
    """The sizes of all overlaps, which docs/explanation/matching-patients.md says it sees."""
    seen = three_parties()
    carried = seen.by("")
    points = set(entries(carried))
    everybody = {name for column in seen.ids.values() for name in column}
    assert not seen.points(everybody, *THREE) & points
    lists = {m.owner: set(_prints([m])) for m in carried if m.kind == "prints"}
    assert {owner: len(prints) for owner, prints in lists.items()} == {"desk": 28, "lab": 33, "ward": 37}
    overlaps = {(party, other): len(lists[party] & lists[other]) for party, other in combinations(THREE, 2)}
    assert overlaps == {("desk", "lab"): 5 + 13, ("desk", "ward"): 7 + 13, ("lab", "ward"): 11 + 13}
    every = seen.points(everybody, *THREE)
    assert {seen.terms.print_of(point) for point in every} == set().union(*lists.values())
    assert not any(
        point[:16] in short_hashes or point[16:] in short_hashes for short_hashes in lists.values() for point in every
    )
    for count in range(len(THREE)):  # whichever keys but the last it were told, in the points of no id
        for parties in combinations(THREE, count):
            prints = {seen.terms.print_of(point) for point in seen.points(everybody, *parties)}
            assert not any(prints & short_hashes for short_hashes in lists.values())


def test_points_that_the_coordinator_carries_meet_only_in_lists_that_have_all_keys() -> None:
    seen = three_parties()
    lists = {(m.owner, m.keys): set(psi_group.split(m.content)) for m in seen.by("") if m.kind == "list"}
    assert len(lists) == 6
    for point_set, other in combinations(lists.values(), 2):
        assert not point_set & other
