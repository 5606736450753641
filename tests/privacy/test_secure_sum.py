"""The secure sum as a protocol: its bytes, its messages, its terms, and the coordinator's side of it."""

import tracemalloc
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import numpy as np
import orjson
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES256
from cryptography.hazmat.primitives.ciphers.modes import CTR
from scipy import stats

from tests.privacy.secure_sum_rounds import Round, member, names, plain_sum, terms_of, vectors_of
from wardround.core.errors import SecureSumError
from wardround.privacy.secure_sum.fixed_point import Encoding, Whole
from wardround.privacy.secure_sum.masks import add_masks, keystream
from wardround.privacy.secure_sum.secure_sum import Advert, InMemory, Member, Reveal, Terms
from wardround.privacy.secure_sum.simulated_sum import simulated_key, sum_securely


@pytest.mark.parametrize("length", [1, 16383, 16384, 40001])  # 16384 elements are masked at a time
def test_vectors_of_any_length(length: int) -> None:
    played = Round(terms_of(4), {"site-02": "mask"}, length).play()
    summed = played.vectors["site-00"] + played.vectors["site-01"] + played.vectors["site-03"]
    assert np.array_equal(played.collector.total(), summed)


def test_every_message_travels_as_json() -> None:
    played = Round(terms_of(4), {"site-03": "mask"}).play()
    for advert in played.adverts:
        assert Advert.read(orjson.loads(orjson.dumps(advert.plain()))) == advert
    for reveal in played.reveals.values():
        assert Reveal.read(orjson.loads(orjson.dumps(reveal.plain()))) == reveal
        assert reveal.keys.keys() == {"site-03"}


@pytest.mark.parametrize(
    "plain", [{}, {"site": "a"}, {"site": "a", "seeds": {"b": 7}, "keys": {}}, {"site": "a", "seeds": 3}]
)
def test_garbage_instead_of_a_message_is_an_error_with_a_remedy(plain: dict[str, Any]) -> None:
    for kind in (Advert, Reveal):
        with pytest.raises(SecureSumError, match="cannot be read"):
            kind.read(plain)


def test_a_masked_vector_looks_like_noise_and_leaves_the_vector_alone() -> None:
    """Bytes of 65,537 masked zeros: chi-square with 255 degrees of freedom over 524,296 bytes, secrets fixed."""
    zeros = np.zeros(65536, np.uint64)
    seen = []
    for context in (b"round 1", b"round 2"):
        played = Round(terms_of(4, context)).play("share")
        for site in played.terms.roster:
            played.members[site].receive(played.sealed[site])
            seen.append(played.members[site].mask(zeros))
    assert not zeros.any()
    for masked in seen:
        counts = np.bincount(masked.view(np.uint8), minlength=256)
        assert 0.001 < stats.chisquare(counts).pvalue < 0.999
    for first in range(len(seen)):  # neither sites nor rounds have a mask in common
        for second in range(first):
            assert np.count_nonzero(seen[first] == seen[second]) == 0


def test_masks_are_keystreams_of_aes_in_counter_mode() -> None:
    """By the plain mode, counting from 2 in big-endian blocks of 16 bytes; 40,001 elements are three pieces."""
    plus, minus = bytes(range(32)), bytes(range(32, 64))
    counter = CTR((2).to_bytes(16, "big"))
    streams = [Cipher(AES256(key), counter).encryptor().update(bytes(8 * 40_001)) for key in (plus, minus)]
    added, subtracted = (np.frombuffer(stream, "<u8") for stream in streams)
    start = np.arange(40_001, dtype=np.uint64)
    assert np.array_equal(add_masks(start.copy(), [plus], [minus]), start + added - subtracted)
    assert keystream(plus, 100) == streams[0][:100]


def test_the_bytes_of_the_protocol_stay_as_they_are() -> None:
    """Sites with different versions must not be able to disagree unseen: a change here is a change of protocol."""
    played = Round(terms_of(4)).play("mask")
    checksum = sha256()
    for site in played.terms.roster:
        advert = played.members[site].advertise()
        checksum.update(advert.seal_key + advert.mask_key + advert.seed_hash)
        checksum.update(b"".join(sealed for _, sealed in sorted(played.sealed[site].items())))
        checksum.update(played.masked[site].astype("<u8").tobytes())
    assert checksum.hexdigest() == "de4f9d3caf2daa99b441cd0f1f8b856f0e1fe88f94ed465214576b276d6d463d"


@pytest.mark.parametrize("stage", ["advertise", "share", "mask", "confirm", "reveal"])
def test_a_site_that_died_and_is_asked_again_says_the_same(stage: str) -> None:
    played = Round(terms_of(4), {"site-03": "mask"}).play()
    again = member("site-01", played.terms)
    if stage == "advertise":
        assert again.advertise() == played.adverts[1]
        return
    shared = again.share(played.adverts)
    assert shared == {site: played.sealed[site]["site-01"] for site in shared}
    again.receive(played.sealed["site-01"])
    if stage == "mask":
        assert np.array_equal(again.mask(played.vectors["site-01"]), played.masked["site-01"])
    if stage == "confirm":
        assert again.confirm(played.survivors) == played.confirmations["site-01"]
    if stage == "reveal":
        assert again.reveal(played.survivors, played.confirmations) == played.reveals["site-01"]


def test_repeated_questions_change_nothing() -> None:
    played = Round(terms_of(4)).play("confirm")
    asked = played.members["site-01"]
    shared, confirmed = asked.share(played.adverts), asked.confirm(reversed(played.survivors))
    assert shared == {site: played.sealed[site]["site-01"] for site in shared}
    assert np.array_equal(asked.mask(played.vectors["site-01"]), played.masked["site-01"])
    assert confirmed == played.confirmations["site-01"]
    played._reveal()
    assert np.array_equal(played.collector.total(), plain_sum(played.vectors.values()))


def test_the_coordinator_keeps_one_vector_however_many_sites_there_are() -> None:
    roster, length = names(12), 125_000  # a megabyte each

    def one_at_a_time() -> Iterator[tuple[str, Whole]]:
        for number, site in enumerate(roster):
            yield site, np.full(length, number, np.uint64)

    sum_securely([(site, np.zeros(1, np.uint64)) for site in roster], roster, b"warm up")
    tracemalloc.start()
    try:
        total = sum_securely(one_at_a_time(), roster, b"round 1")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (total == sum(range(12))).all()
    assert peak < 5e6  # the sum, one site's vector and the same masked: 3 MB, where all vectors are 12 MB


def test_in_simulation_a_vector_that_does_not_come_is_a_site_that_is_gone() -> None:
    roster = names(5)
    vectors = vectors_of(roster)
    assert np.array_equal(
        sum_securely(((site, vectors[site]) for site in roster[1:]), roster, b"round"),
        plain_sum(vectors[site] for site in roster[1:]),
    )
    with pytest.raises(SecureSumError, match="3 of 5 sites answered at the stage 'mask', but a sum takes 4"):
        sum_securely(((site, vectors[site]) for site in roster[2:]), roster, b"round")
    with pytest.raises(SecureSumError, match="not in the roster"):
        sum_securely([("stranger", vectors[roster[0]])], roster, b"round")


def test_simulated_sums_take_a_threshold_of_their_own() -> None:
    roster = names(10)
    vectors = vectors_of(roster)
    few = sum_securely(((site, vectors[site]) for site in roster[:6]), roster, b"round", threshold=6)
    assert np.array_equal(few, plain_sum(vectors[site] for site in roster[:6]))
    with pytest.raises(SecureSumError, match="9 of 10"):
        sum_securely(((site, vectors[site]) for site in roster[:9]), roster, b"round", threshold=10)


def test_the_weighted_mean_is_the_plain_one_to_the_resolution() -> None:
    roster = names(4)
    rng = np.random.default_rng(3)
    encoding = Encoding(sites=4, most_weight=1000, largest=8.0)
    updates = {site: rng.uniform(-8, 8, 500) for site in roster}
    weights = {site: float(rng.integers(1, 1000)) for site in roster}
    vectors = ((site, encoding.encode(updates[site], weights[site])) for site in roster)
    summed, weight = encoding.decode(sum_securely(vectors, roster, b"round"))
    assert weight == sum(weights.values())
    plain = sum(weights[site] * updates[site] for site in roster) / weight
    # 2 steps of 2**-48 by rounding four products to whole numbers, and doubles of at most 8000 at 53 bits
    assert encoding.resolution == 2.0**-48
    np.testing.assert_allclose(summed / weight, plain, rtol=0, atol=(2 * 2.0**-48 + 8 * 4000 * 2.0**-52) / weight)


@pytest.mark.parametrize(
    ("count", "threshold", "problem"),
    [
        (2, 2, "in a sum of 2 sites nothing is hidden"),
        (0, 0, "in a sum of 0 sites nothing is hidden"),
        (3, 2, "threshold of 2 of 3"),  # a sum of two shows each of them the other
        (6, 3, "threshold of 3 of 6"),  # two halves of three could each be told another story
        (4, 5, "threshold of 5 of 4"),
    ],
)
def test_terms_that_would_hide_nothing_are_refused(count: int, threshold: int, problem: str) -> None:
    with pytest.raises(SecureSumError, match=problem):
        terms_of(count, threshold=threshold)


def test_a_roster_names_each_site_once_and_in_any_order() -> None:
    with pytest.raises(SecureSumError, match="twice"):
        Terms(b"round", ("a", "b", "c", "a"), 3)
    assert Terms(b"round", ("c", "a", "b"), 3).digest == Terms(b"round", ("a", "b", "c"), 3).digest


def test_terms_differ_in_every_part() -> None:
    digests = {
        Terms(b"round", ("a", "b", "c", "d"), 3).digest,
        Terms(b"round", ("a", "b", "c", "d"), 4).digest,
        Terms(b"round", ("a", "b", "c", "d"), 3, b"model").digest,
        Terms(b"roundmodel", ("a", "b", "c", "d"), 3).digest,
        Terms(b"round 2", ("a", "b", "c", "d"), 3).digest,
        Terms(b"round", ("a", "b", "cd", "e"), 3).digest,
        Terms(b"round", ("a", "bc", "d", "e"), 3).digest,
    }
    assert len(digests) == 7


def test_a_member_needs_its_name_secret_and_keys() -> None:
    terms = terms_of(4)
    keys = {site: simulated_key(site) for site in terms.roster}
    for name, secret, known in [
        ("stranger", bytes(32), keys),
        ("site-00", bytes(31), keys),
        ("site-00", bytes(32), {site: keys[site] for site in names(3)}),
    ]:
        with pytest.raises(SecureSumError, match="kits of the same study"):
            Member(name, terms, secret, keys["site-00"], known, InMemory())


def test_the_coordinator_takes_each_message_once_in_its_stage_and_from_whom_it_may_come() -> None:
    played = Round(terms_of(4), {"site-03": "mask"})
    collector, members = played.collector, played.members
    with pytest.raises(SecureSumError, match="0 of 4 sites answered at the stage 'advertise'"):
        collector.adverts()
    advert = members["site-00"].advertise()
    collector.take_advert(advert)
    refused: list[tuple[str, tuple[Any, ...]]] = [("take_advert", (advert,)), ("take_shares", ("site-00", {}))]
    refused += [("take_masked", ("site-00", np.zeros(3, np.uint64))), ("take_confirmation", ("site-00", b""))]
    refused += [("take_reveal", (Reveal("site-00", {}, {}),))]
    for name, arguments in refused:
        with pytest.raises(SecureSumError, match="twice, too late, or uncalled for"):
            getattr(collector, name)(*arguments)
    played = Round(terms_of(4), {"site-03": "mask"}).play("mask")
    with pytest.raises(SecureSumError, match="uncalled for"):
        played.collector.take_confirmation("site-03", b"")  # it sent no vector


@pytest.mark.parametrize("wrong", [np.zeros(4, np.uint64), np.zeros(6), np.zeros((6, 1), np.uint64)])
def test_a_masked_vector_of_another_shape_or_type_is_refused(wrong: Any) -> None:
    played = Round(terms_of(4), {"site-03": "mask"}).play("share")
    members, collector = played.members, played.collector
    for site in names(4):
        members[site].receive(played.sealed[site])
    collector.take_masked("site-00", members["site-00"].mask(played.vectors["site-00"]))
    with pytest.raises(SecureSumError, match="another type or length"):
        collector.take_masked("site-01", wrong)
    for site in names(4)[1:]:  # what was refused has changed nothing
        collector.take_masked(site, members[site].mask(played.vectors[site]))
    played.survivors = collector.survivors()
    played._confirm()
    played.silent = {}
    played._reveal()
    assert np.array_equal(collector.total(), plain_sum(played.vectors.values()))


def test_only_vectors_of_whole_numbers_are_masked() -> None:
    played = Round(terms_of(4)).play("share")
    asked: Any = played.members["site-00"]
    asked.receive(played.sealed["site-00"])
    for wrong in (np.zeros(5), np.zeros((5, 1), np.uint64)):
        with pytest.raises(ValueError, match="unsigned 64-bit"):
            asked.mask(wrong)


def test_the_same_collector_shows_the_same_total_twice() -> None:
    played = Round(terms_of(4)).play()
    first = played.collector.total().copy()
    assert np.array_equal(played.collector.total(), first)
