"""What a coordinator, a carrier or a colluding site may try in a secure sum, and that it does not work."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from tests.privacy.secure_sum_rounds import Round, member, names, plain_sum, terms_of
from wardround.core.errors import SecureSumError
from wardround.privacy.secure_sum import shamir
from wardround.privacy.secure_sum.fixed_point import Whole
from wardround.privacy.secure_sum.masks import add_masks
from wardround.privacy.secure_sum.secure_sum import (
    Advert,
    Collector,
    InMemory,
    Member,
    Reveal,
    Terms,
    digest,
    own_key,
    pair_key,
)
from wardround.privacy.secure_sum.simulated_sum import SimulatedKey, simulated_key


def flipped(content: bytes, at: int = 0) -> bytes:
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]


# A flipped bit


@pytest.mark.parametrize("part", ["seal_key", "mask_key", "seed_hash", "signature"])
def test_an_advert_with_a_flipped_bit_is_refused_at_both_ends(part: str) -> None:
    played = Round(terms_of(4)).play("advertise")
    wrong: dict[str, Any] = {part: flipped(getattr(played.adverts[2], part), 31)}
    changed = replace(played.adverts[2], **wrong)
    with pytest.raises(SecureSumError, match="keys in the name of site-02 are not signed by it"):
        played.members["site-00"].share([*played.adverts[:2], changed, played.adverts[3]])
    with pytest.raises(SecureSumError, match="keys in the name of site-02 are not signed by it"):
        Collector(played.terms, played.keys).take_advert(changed)


@pytest.mark.parametrize("at", [0, 40, 65, 66, 81])  # 66 bytes of shares, 16 that vouch for them
def test_sealed_shares_with_a_flipped_bit_are_refused(at: int) -> None:
    played = Round(terms_of(4)).play("share")
    sealed = played.sealed["site-00"]
    assert len(sealed["site-02"]) == 82
    with pytest.raises(SecureSumError, match="shares from site-02 were changed"):
        played.members["site-00"].receive({**sealed, "site-02": flipped(sealed["site-02"], at)})
    played.members["site-00"].receive(sealed)  # the attempt has bound it to nothing


@pytest.mark.parametrize("at", [0, 4, 5])  # the last element is the check itself
@pytest.mark.parametrize("bit", [0, 63])
def test_a_masked_vector_with_a_flipped_bit_gives_no_sum(at: int, bit: int) -> None:
    played = Round(terms_of(4))
    honest = played.collector.take_masked

    def changed(site: str, masked: Whole) -> None:
        if site == "site-01":
            masked[at] ^= np.uint64(1 << bit)
        honest(site, masked)

    played.collector.take_masked = changed  # type: ignore[method-assign]
    played.play()
    for _ in range(2):
        with pytest.raises(SecureSumError, match="masks do not cancel"):
            played.collector.total()


def test_a_confirmation_with_a_flipped_bit_is_refused_at_both_ends() -> None:
    played = Round(terms_of(4)).play("mask")
    signature = flipped(played.members["site-01"].confirm(played.survivors), 5)
    with pytest.raises(SecureSumError, match="site-01: did not sign what it was told"):
        played.collector.take_confirmation("site-01", signature)
    played._confirm()
    with pytest.raises(SecureSumError, match="site-01 has not signed what this site was told"):
        played.members["site-00"].reveal(played.survivors, {**played.confirmations, "site-01": signature})


@pytest.mark.parametrize("kind", ["seeds", "keys"])
def test_a_revealed_share_with_a_flipped_bit_gives_no_sum(kind: str) -> None:
    played = Round(terms_of(4), {"site-03": "mask"}).play("confirm")
    of = "site-01" if kind == "seeds" else "site-03"
    for site in played.survivors:
        reveal = played.members[site].reveal(played.survivors, played.confirmations)
        if site == "site-02":
            shares = getattr(reveal, kind)
            wrong: dict[str, Any] = {kind: {**shares, of: shares[of] ^ 1}}
            reveal = replace(reveal, **wrong)
        played.collector.take_reveal(reveal)
    with pytest.raises(SecureSumError, match=f"shares of {of}'s secret do not fit what it signed"):
        played.collector.total()


def test_shares_of_a_number_that_is_no_key_give_no_sum() -> None:
    """A colluding site chooses its share such that together they give 2**256, which has a byte too many."""
    played = Round(terms_of(4), {"site-03": "mask"}).play("confirm")
    reveals = [played.members[site].reveal(played.survivors, played.confirmations) for site in played.survivors]
    shares = {number: reveal.seeds["site-01"] for number, reveal in enumerate(reveals, 1)}
    factor = shamir.combine({**dict.fromkeys(shares, 0), 1: 1})
    chosen = (shares[1] + (2**256 - shamir.combine(shares)) * pow(factor, -1, shamir.PRIME)) % shamir.PRIME
    assert shamir.combine({**shares, 1: chosen}) == 2**256
    reveals[0] = replace(reveals[0], seeds={**reveals[0].seeds, "site-01": chosen})
    for reveal in reveals:
        played.collector.take_reveal(reveal)
    with pytest.raises(SecureSumError, match="shares of site-01's secret do not fit what it signed"):
        played.collector.total()


# A message of another round, for another site, or twice


@pytest.fixture
def earlier() -> Round:
    return Round(terms_of(4, b"round 0"), {"site-03": "mask"}).play()


def test_an_advert_of_another_round_is_refused(earlier: Round) -> None:
    played = Round(terms_of(4)).play("advertise")
    with pytest.raises(SecureSumError, match="not signed by it for this sum"):
        played.members["site-00"].share([*played.adverts[:3], earlier.adverts[3]])
    with pytest.raises(SecureSumError, match="not signed by it for this sum"):
        Collector(played.terms, played.keys).take_advert(earlier.adverts[0])


def test_shares_of_another_round_or_for_another_site_are_refused(earlier: Round) -> None:
    played = Round(terms_of(4)).play("share")
    sealed = played.sealed["site-00"]
    for wrong in (earlier.sealed["site-00"]["site-02"], played.sealed["site-01"]["site-02"], sealed["site-01"]):
        with pytest.raises(SecureSumError, match="not for this sum"):
            played.members["site-00"].receive({**sealed, "site-02": wrong})
    back = played.sealed["site-02"]["site-00"]  # its own, sent back to it: each direction has its own key
    with pytest.raises(SecureSumError, match="not for this sum"):
        played.members["site-00"].receive({**sealed, "site-02": back})


def test_a_masked_vector_of_another_round_gives_no_sum(earlier: Round) -> None:
    played = Round(terms_of(4)).play("share")
    for site in names(3):
        played.members[site].receive(played.sealed[site])
        masked = earlier.masked[site] if site == "site-01" else played.members[site].mask(played.vectors[site])
        played.collector.take_masked(site, masked)
    played.survivors = played.collector.survivors()
    played._confirm()
    played._reveal()
    with pytest.raises(SecureSumError, match="masks do not cancel"):
        played.collector.total()


def test_confirmations_of_another_round_are_refused(earlier: Round) -> None:
    played = Round(terms_of(4), {"site-03": "mask"}).play("mask")
    assert played.survivors == earlier.survivors
    with pytest.raises(SecureSumError, match="did not sign what it was told"):
        played.collector.take_confirmation("site-01", earlier.confirmations["site-01"])
    with pytest.raises(SecureSumError, match="has not signed what this site was told"):
        played.members["site-00"].reveal(played.survivors, earlier.confirmations)


def test_a_reveal_of_another_round_gives_no_sum(earlier: Round) -> None:
    played = Round(terms_of(4), {"site-03": "mask"}).play("confirm")
    for site in played.survivors:
        now = played.members[site].reveal(played.survivors, played.confirmations)
        played.collector.take_reveal(earlier.reveals[site] if site == "site-01" else now)
    with pytest.raises(SecureSumError, match="do not fit what it signed"):
        played.collector.total()


def test_a_vector_that_comes_twice_counts_once() -> None:
    played = Round(terms_of(4), {"site-03": "confirm"}).play("share")
    for site in names(4):
        played.members[site].receive(played.sealed[site])
        masked = played.members[site].mask(played.vectors[site])
        played.collector.take_masked(site, masked)
        with pytest.raises(SecureSumError, match="twice"):
            played.collector.take_masked(site, masked)
    played.survivors = played.collector.survivors()
    played._confirm()
    played._reveal()
    assert np.array_equal(played.collector.total(), plain_sum(played.vectors.values()))


# A coordinator that puts its own keys in the place of a site's


def forged(terms: Terms, name: str, key: SimulatedKey) -> tuple[Advert, Member]:
    """An advert in a site's name, with keys that the forger knows."""
    keys = {site: simulated_key(site) for site in terms.roster}
    forger = Member(name, terms, bytes(range(32)), key, keys, InMemory())
    return forger.advertise(), forger


def test_swapped_keys_are_refused() -> None:
    played = Round(terms_of(4)).play("advertise")
    advert, _ = forged(played.terms, "site-02", SimulatedKey())
    with pytest.raises(SecureSumError, match="site-02 are not signed by it"):
        played.members["site-00"].share([*played.adverts[:2], advert, played.adverts[3]])


def adverts_with_another_of_its_own(played: Round) -> list[Advert]:
    stolen, _ = forged(played.terms, "site-00", simulated_key("site-00"))  # signed by its own key, which was stolen
    return [stolen, *played.adverts[1:]]


def adverts_twice(played: Round) -> list[Advert]:
    return [*played.adverts, replace(played.adverts[1])]


def adverts_of_a_stranger(played: Round) -> list[Advert]:
    return [*played.adverts[:3], replace(played.adverts[3], site="stranger")]


def adverts_without_its_own(played: Round) -> list[Advert]:
    return played.adverts[1:]


def adverts_too_few(played: Round) -> list[Advert]:
    return played.adverts[:2]


def adverts_with_a_copied_key(played: Round) -> list[Advert]:
    copied = replace(played.adverts[3], mask_key=played.adverts[2].mask_key)
    signature = simulated_key("site-03").sign(copied.signed(played.terms))
    return [*played.adverts[:3], replace(copied, signature=signature)]


def adverts_with_a_void_key(played: Round) -> list[Advert]:
    void = replace(played.adverts[3], seal_key=bytes(32))  # with it, every agreement comes to zero
    return [*played.adverts[:3], replace(void, signature=simulated_key("site-03").sign(void.signed(played.terms)))]


@pytest.mark.parametrize(
    ("adverts", "problem"),
    [
        (adverts_with_another_of_its_own, "other keys than its own"),
        (adverts_without_its_own, "other keys than its own"),
        (adverts_twice, "two adverts of site-01"),
        (adverts_of_a_stranger, "in the name of stranger"),
        (adverts_too_few, "2 of 4 sites advertised, but a sum takes 3"),
        (adverts_with_a_copied_key, "two of the keys"),
        (adverts_with_a_void_key, "public key of another site is not valid"),
    ],
)
def test_a_site_shares_with_the_signed_keys_of_the_roster_only(
    adverts: Callable[[Round], list[Advert]], problem: str
) -> None:
    played = Round(terms_of(4)).play("advertise")
    with pytest.raises(SecureSumError, match=problem):
        played.members["site-00"].share(adverts(played))


def test_sites_that_were_sent_different_models_have_no_sum() -> None:
    played = Round(replace(terms_of(4), question=b"model 1")).play("advertise")
    misled = member("site-03", replace(terms_of(4), question=b"model 2"))
    with pytest.raises(SecureSumError, match="site-00 are not signed by it for this sum"):
        misled.share([*played.adverts[:3], misled.advertise()])
    with pytest.raises(SecureSumError, match="site-03 are not signed by it for this sum"):
        played.members["site-00"].share([*played.adverts[:3], misled.advertise()])


# A coordinator that asks for too much


def test_too_few_shares_or_shares_of_strangers_are_refused() -> None:
    played = Round(terms_of(4)).play("share")
    asked, sealed = played.members["site-00"], played.sealed["site-00"]
    with pytest.raises(SecureSumError, match="2 of 4 sites shared"):
        asked.receive({"site-01": sealed["site-01"]})
    with pytest.raises(SecureSumError, match="whose keys it was not shown"):
        asked.receive({**sealed, "stranger": sealed["site-01"]})
    with pytest.raises(SecureSumError, match="whose keys it was not shown"):
        asked.receive({**sealed, "site-00": sealed["site-01"]})


def test_nothing_is_masked_confirmed_or_revealed_before_its_time() -> None:
    played = Round(terms_of(4)).play()
    fresh = member("site-00", played.terms)
    with pytest.raises(SecureSumError, match="whose keys it was not shown"):
        fresh.receive(played.sealed["site-00"])
    for _ in range(2):
        with pytest.raises(SecureSumError, match=r"[01] of 4 sites shared"):
            fresh.mask(played.vectors["site-00"])
        with pytest.raises(SecureSumError, match="not among those that shared"):
            fresh.confirm(played.survivors)
        with pytest.raises(SecureSumError, match="not among those that shared"):
            fresh.reveal(played.survivors, played.confirmations)
        fresh.share(played.adverts)


@pytest.mark.parametrize(
    ("survivors", "problem"),
    [
        (["site-00", "site-01"], "2 of 4 sites remain"),
        (["site-01", "site-02", "site-03"], "leave it out itself"),
        (["site-00", "site-01", "site-01"], "not among those that shared"),
        (["site-00", "site-01", "site-02", "stranger"], "not among those that shared"),
    ],
)
def test_survivors_that_cannot_be_are_not_confirmed(survivors: list[str], problem: str) -> None:
    played = Round(terms_of(4)).play("mask")
    for ask in (played.members["site-00"].confirm, lambda listed: played.members["site-00"].reveal(listed, {})):
        with pytest.raises(SecureSumError, match=problem):
            ask(survivors)


def test_a_second_list_of_survivors_is_refused() -> None:
    played = Round(terms_of(4)).play("confirm")
    fewer = played.survivors[:3]
    with pytest.raises(SecureSumError, match="second time in this round, with other survivors"):
        played.members["site-00"].confirm(fewer)
    with pytest.raises(SecureSumError, match="second time in this round, with other survivors"):
        played.members["site-00"].reveal(fewer, {site: played.confirmations[site] for site in fewer})


def test_too_few_or_foreign_confirmations_reveal_nothing() -> None:
    played = Round(terms_of(4), {"site-03": "mask"}).play("confirm")
    asked, two = played.members["site-00"], dict(list(played.confirmations.items())[:2])
    with pytest.raises(SecureSumError, match="2 of 4 sites confirmed, but a sum takes 3"):
        asked.reveal(played.survivors, two)
    with pytest.raises(SecureSumError, match="not among the survivors"):
        asked.reveal(played.survivors, {**two, "site-03": two["site-00"]})
    with pytest.raises(SecureSumError, match="site-02 has not signed"):
        asked.reveal(played.survivors, {**two, "site-02": two["site-00"]})  # one signature under two names


def test_a_site_that_has_not_confirmed_itself_wants_as_many_signatures_of_others() -> None:
    """Its own signature counts as one of three, and only if it is there."""
    played = Round(terms_of(4), {"site-00": "confirm"}).play("confirm")
    asked = played.members["site-00"]
    wrong = {**played.confirmations, "site-03": flipped(played.confirmations["site-03"])}
    assert len(wrong) == 3
    with pytest.raises(SecureSumError, match="site-03 has not signed"):
        asked.reveal(played.survivors, wrong)
    assert asked.reveal(played.survivors, played.confirmations).seeds.keys() == set(names(4))


def test_sites_that_were_told_of_different_survivors_reveal_nothing() -> None:
    """Half of ten sites hear that site-00 is gone, the other half that it is not: neither finds seven signatures."""
    played = Round(terms_of(10)).play("mask")
    without, everybody = played.survivors[1:], played.survivors
    survivors = {site: without if int(site[-1]) % 2 else everybody for site in everybody[1:]}
    survivors["site-00"] = everybody
    signed = {site: played.members[site].confirm(survivors[site]) for site in everybody}
    for site in everybody:
        same = {other: signature for other, signature in signed.items() if survivors[other] == survivors[site]}
        with pytest.raises(SecureSumError, match="5 of 10 sites confirmed"):
            played.members[site].reveal(survivors[site], same)
        with pytest.raises(SecureSumError, match="has not signed"):
            played.members[site].reveal(survivors[site], {other: signed[other] for other in without})


def test_sites_that_were_told_of_different_senders_of_shares_reveal_nothing() -> None:
    played = Round(terms_of(5)).play("share")
    for site in names(5):
        sealed = dict(played.sealed[site])
        if site in ("site-00", "site-01"):
            del sealed["site-04"]  # to these two it never shared
        played.members[site].receive(sealed)
    survivors = names(4)
    signed = {site: played.members[site].confirm(survivors) for site in survivors}
    for site in survivors:
        with pytest.raises(SecureSumError, match="has not signed what this site was told"):
            played.members[site].reveal(survivors, signed)


def test_sites_that_were_shown_different_keys_reveal_nothing() -> None:
    """Two of five never see the keys of a site that shares with nobody, so that all agree on who shared."""
    played = Round(terms_of(5)).play("advertise")
    sealed = {site: played.members[site].share(played.adverts[: 4 if site < "site-02" else 5]) for site in names(4)}
    for site in names(4):
        played.members[site].receive({other: sealed[other][site] for other in names(4) if other != site})
    signed = {site: played.members[site].confirm(names(4)) for site in names(4)}
    for site in names(4):
        with pytest.raises(SecureSumError, match="has not signed what this site was told"):
            played.members[site].reveal(names(4), signed)


def test_of_no_site_both_secrets_are_revealed() -> None:
    played = Round(terms_of(10), {"site-01": "mask", "site-05": "share", "site-08": "confirm"}).play()
    for reveal in played.reveals.values():
        assert reveal.seeds.keys() == set(played.survivors)
        assert reveal.keys.keys() == {"site-01"}


def test_a_reveal_of_other_secrets_than_those_asked_for_is_refused() -> None:
    played = Round(terms_of(4), {"site-03": "mask"}).play("confirm")
    reveal = played.members["site-00"].reveal(played.survivors, played.confirmations)
    for wrong in (
        replace(reveal, keys={}),
        replace(reveal, seeds={**reveal.seeds, "site-03": 1}),
        Reveal("site-00", reveal.keys, reveal.seeds),
    ):
        with pytest.raises(SecureSumError, match="did not reveal what it was asked for"):
            played.collector.take_reveal(wrong)


def test_shares_for_others_than_those_that_advertised_are_refused() -> None:
    played = Round(terms_of(4)).play("advertise")
    shared = played.members["site-00"].share(played.adverts)
    for wrong in ({**shared, "site-00": b""}, {site: shared[site] for site in ("site-01", "site-02")}):
        with pytest.raises(SecureSumError, match="did not share with exactly those that advertised"):
            played.collector.take_shares("site-00", wrong)


# The same round a second time: the site has said something before, and keeps to it


def test_a_second_attempt_with_another_roster_threshold_or_question_is_refused() -> None:
    commitments = InMemory()
    member("site-00", terms_of(5), commitments)
    for other in (terms_of(4, threshold=4), terms_of(5, threshold=5), replace(terms_of(5), question=b"model 2")):
        with pytest.raises(
            SecureSumError, match="second time in this round, with another roster, threshold or question"
        ):
            member("site-00", other, commitments)
    member("site-00", terms_of(5), commitments)
    member("site-00", terms_of(4, b"round 2"), commitments)


def test_a_second_attempt_with_other_keys_or_shares_is_refused() -> None:
    played = Round(terms_of(5)).play("share")
    commitments = InMemory()
    asked = member("site-00", played.terms, commitments)
    asked.share(played.adverts)
    asked.receive(played.sealed["site-00"])
    restarted = member("site-00", played.terms, commitments)
    with pytest.raises(SecureSumError, match="second time in this round, with other keys"):
        restarted.share(played.adverts[:4])
    restarted.share(played.adverts)
    fewer = {site: sealed for site, sealed in played.sealed["site-00"].items() if site != "site-03"}
    with pytest.raises(SecureSumError, match="second time in this round, with other shares"):
        restarted.receive(fewer)


def test_another_vector_in_the_same_round_is_refused_after_a_restart_too() -> None:
    played = Round(terms_of(4)).play("share")
    commitments = InMemory()
    vector = played.vectors["site-00"]
    others = [vector + np.uint64(1), vector[:-1].copy(), np.append(vector, np.uint64(0)), vector[::-1].copy()]
    for attempt in range(2):
        asked = member("site-00", played.terms, commitments)
        asked.share(played.adverts)
        asked.receive(played.sealed["site-00"])
        if not attempt:
            asked.mask(vector)
        for other in others:
            with pytest.raises(SecureSumError, match="second time in this round, with another vector"):
                asked.mask(other)
        asked.mask(vector)


def test_another_list_of_survivors_is_refused_after_a_restart_too() -> None:
    played = Round(terms_of(4)).play("mask")
    commitments = InMemory()
    for attempt in range(2):
        asked = member("site-00", played.terms, commitments)
        asked.share(played.adverts)
        asked.receive(played.sealed["site-00"])
        if not attempt:
            asked.confirm(played.survivors)
        with pytest.raises(SecureSumError, match="other survivors"):
            asked.confirm(played.survivors[:3])


# What those who work together can and cannot take away


def test_with_one_share_less_than_the_threshold_a_seed_stays_hidden() -> None:
    """t - 1 colluding sites put their shares together: what comes out is not the seed, whose hash is known."""
    played = Round(terms_of(7)).play()
    victim = "site-06"
    numbers = {site: played.terms.roster.index(site) + 1 for site in played.reveals}
    held = {numbers[site]: reveal.seeds[victim] for site, reveal in played.reveals.items()}

    def opens(count: int) -> bool:
        seed = shamir.combine(dict(list(held.items())[:count])) % 2**256
        known = digest(b"seed", played.terms.digest, victim.encode(), seed.to_bytes(32, "big"))
        return known == next(advert.seed_hash for advert in played.adverts if advert.site == victim)

    assert opens(5)
    assert not opens(4)


def test_each_mask_alone_hides_a_vector_and_both_together_are_what_hides_it() -> None:
    """Undoing a site's pair masks leaves its own mask, and the other way round; only both show the vector."""
    played = Round(terms_of(4)).play("mask")
    victim = played.members["site-01"]
    adverts = {advert.site: advert for advert in played.adverts}
    mask_key: X25519PrivateKey = victim._mask_key
    others = ("site-00", "site-02", "site-03")
    pairs = [(site, pair_key(played.terms, mask_key, adverts["site-01"], adverts[site])) for site in others]
    vector, masked = played.vectors["site-01"], played.masked["site-01"]
    plus = [key for site, key in pairs if site < "site-01"]
    minus = [key for site, key in pairs if site > "site-01"]
    own = own_key(played.terms, victim._seed)
    assert np.array_equal(add_masks(masked.copy(), plus, [*minus, own])[:-1], vector)
    assert not (add_masks(masked.copy(), plus, minus)[:-1] == vector).any()
    assert not (add_masks(masked.copy(), [], [own])[:-1] == vector).any()
    assert not (add_masks(masked.copy(), plus[:-1], [*minus, own])[:-1] == vector).any()
