"""Secure sums for tests: sites with fixed secrets, and a coordinator's round in which some of them fall silent."""

from collections.abc import Iterable, Mapping
from hashlib import sha256

import numpy as np

from wardround.privacy.secure_sum.fixed_point import Whole
from wardround.privacy.secure_sum.secure_sum import Collector, Commitments, InMemory, Member, Terms, default_threshold
from wardround.privacy.secure_sum.simulated_sum import simulated_key

STAGES = ("advertise", "share", "mask", "confirm", "reveal")


def names(count: int) -> tuple[str, ...]:
    return tuple(f"site-{number:02}" for number in range(count))


def terms_of(count: int, context: bytes = b"round 1", threshold: int | None = None) -> Terms:
    return Terms(context, names(count), default_threshold(count) if threshold is None else threshold)


def member(name: str, terms: Terms, commitments: Commitments | None = None) -> Member:
    keys = {site: simulated_key(site) for site in terms.roster}
    store = InMemory() if commitments is None else commitments
    return Member(name, terms, sha256(name.encode()).digest(), keys[name], keys, store)


def vectors_of(sites: Iterable[str], length: int = 5) -> dict[str, Whole]:
    """Numbers from the whole range, so that every sum wraps around."""
    rng = np.random.default_rng(7)
    return {site: rng.integers(0, 2**64, length, dtype=np.uint64) for site in sites}


class Round:
    """A round that a test plays stage by stage. `silent` says from which stage on a site does not answer."""

    def __init__(self, terms: Terms, silent: Mapping[str, str] | None = None, length: int = 5) -> None:
        self.terms, self.silent = terms, silent or {}
        self.keys = {site: simulated_key(site) for site in terms.roster}
        self.members = {site: member(site, terms) for site in terms.roster}
        self.collector = Collector(terms, self.keys)
        self.vectors = vectors_of(terms.roster, length)

    def answering(self, stage: str, asked: Iterable[str]) -> list[str]:
        at = STAGES.index(stage)
        return [site for site in asked if site not in self.silent or STAGES.index(self.silent[site]) > at]

    def play(self, last: str = "reveal") -> "Round":
        """As far as the end of the stage `last`; what came out of each is kept."""
        for stage in STAGES[: STAGES.index(last) + 1]:
            getattr(self, f"_{stage}")()
        return self

    def _advertise(self) -> None:
        for site in self.answering("advertise", self.terms.roster):
            self.collector.take_advert(self.members[site].advertise())
        self.adverts = self.collector.adverts()

    def _share(self) -> None:
        for site in self.answering("share", [advert.site for advert in self.adverts]):
            self.collector.take_shares(site, self.members[site].share(self.adverts))
        self.sealed = self.collector.sealed()

    def _mask(self) -> None:
        self.masked: dict[str, Whole] = {}
        for site in self.answering("mask", self.sealed):
            self.members[site].receive(self.sealed[site])
            self.masked[site] = self.members[site].mask(self.vectors[site])
            self.collector.take_masked(site, self.masked[site])
        self.survivors = self.collector.survivors()

    def _confirm(self) -> None:
        for site in self.answering("confirm", self.survivors):
            self.collector.take_confirmation(site, self.members[site].confirm(self.survivors))
        self.confirmations = self.collector.confirmations()

    def _reveal(self) -> None:
        self.reveals = {
            site: self.members[site].reveal(self.survivors, self.confirmations)
            for site in self.answering("reveal", self.confirmations)
        }
        for reveal in self.reveals.values():
            self.collector.take_reveal(reveal)


def plain_sum(vectors: Iterable[Whole]) -> Whole:
    """Element by element in Python's own integers, modulo 2**64 at the end."""
    summed = [sum(map(int, column)) % 2**64 for column in zip(*vectors, strict=True)]
    return np.array(summed, np.uint64)
