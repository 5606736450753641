"""A trial, its state between rounds, and which sites work in a round."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import torch

from wardround.algorithms.algorithm import Algorithm
from wardround.core import seeds
from wardround.core.tree import State
from wardround.data.site import Site
from wardround.models.model import SMALL_MODEL, Model
from wardround.models.starting_weights import StartingModel
from wardround.privacy.dp.accountant import Charge
from wardround.privacy.dp.example_dp import Rule
from wardround.privacy.dp.protection import Sampling, charge_of, charges_within, noise_by_round, rule_of
from wardround.study.schema import Compression, Privacy, Topology, Training
from wardround.training.local import Memory


@dataclass(frozen=True)
class Trial:
    """One arm with one seed: all that stays the same from round to round."""

    arm: str
    seed: int
    algorithm: Algorithm
    model: Model
    training: Training
    sites: tuple[Site, ...]  # that train
    scored: tuple[Site, ...]  # whose validation and test rows are predicted; the same sites, unless rows are pooled
    batch_seed: int
    init_seed: int
    privacy: Privacy = field(default_factory=Privacy)
    compression: Compression = field(default_factory=Compression)
    topology: Topology = field(default_factory=Topology)
    bound: float | None = None  # to which each site shortens its update, where nobody else sees it
    within: tuple[str, ...] = ()  # in a deployed region: its sites, the only ones whose work is asked for; empty: all
    starting: StartingModel | None = None  # None: the first weights are drawn by `init_seed`

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.training.precision == "float64" else torch.float32

    @property
    def light(self) -> bool:
        """Whether a step takes less time than starting it. A network for images is never light, however small."""
        looks = self.sites[0].train.x.dim() == 4 and self.model.closed_gradient is None
        return self.model.size < SMALL_MODEL and not looks

    def trainer_of(self, scored: int) -> int:
        """The number of the training site whose model predicts for a scored site."""
        return 0 if self.algorithm.pools else scored

    def is_near(self, number: int) -> bool:
        """Whether a site's work belongs to the holder of this trial. The draw of sites does not depend on it."""
        return not self.within or self.sites[number].name in self.within

    def roster(self, round_number: int) -> "Roster":
        return roster(
            self.training, len(self.sites), self.batch_seed, round_number, by_chance=self.privacy.site is not None
        )

    def rule(self, number: int, round_number: int = 0) -> Rule | None:
        """How a site protects its patients in a round; None without protection."""
        example = self.privacy.example
        if example is None:
            return None
        train, epochs = self.sites[number].train, self.epochs(number)
        return rule_of(example, train, self.training.batch_size, epochs, round_number)

    def charge(self, number: int, epochs: int, round_number: int) -> Charge | None:
        """The privacy that these epochs of a round cost a site's patients."""
        example, sampling = self.privacy.example, self.sampling(number)
        if example is None:
            return None
        noise = noise_by_round(example, sampling, self.epochs(number))[round_number]
        return charge_of(example, sampling, noise, epochs)

    def charges(self, number: int) -> tuple[Charge, ...]:
        """The planned charges of the rounds in which a site may still work."""
        example = self.privacy.example
        return () if example is None else charges_within(example, self.sampling(number), self.epochs(number))

    def stops(self, number: int) -> int:
        """The first round in which a site no longer works, because it would exceed its epsilon."""
        return self.training.rounds if self.privacy.example is None else len(self.charges(number))

    def sampling(self, number: int) -> Sampling:
        return Sampling.of(len(self.sites[number].train), self.training.batch_size)

    def epochs(self, number: int) -> tuple[int, ...]:
        """The planned epochs of each round."""
        return planned_epochs(self.training, len(self.sites), self.batch_seed, self.privacy.site is not None)[number]


@dataclass(frozen=True)
class Run:
    """The complete state between two rounds. Saved and loaded again, it gives the same numbers."""

    round: int
    server: State
    memories: Mapping[str, Memory]


@dataclass(frozen=True)
class Assignment:
    """One site's work in one round."""

    site: Site
    number: int
    epochs: int
    counts: bool  # False: a straggler whose work is dropped


@dataclass(frozen=True)
class Roster:
    """Which sites work in a round, by number, and how much."""

    numbers: tuple[int, ...]
    epochs: Mapping[int, int]
    dropped: frozenset[int]  # stragglers whose work does not count


def roster(training: Training, sites: int, seed: int, round_number: int, by_chance: bool = False) -> Roster:
    """Depends on (seed, round) only, so that all arms see the same draw.

    `by_chance`: each site is drawn independently, as site-level privacy assumes, so that their number varies.
    """
    count = max(1, round(training.share * sites))
    chosen = list(range(sites))
    if by_chance and training.share < 1:
        drawn = seeds.generator(seed, "participation by chance", round_number).random(sites) < training.share
        chosen = np.flatnonzero(drawn).tolist()
        count = len(chosen)
    elif count < sites:
        rng = seeds.generator(seed, "participation", round_number)
        chosen = sorted(rng.choice(sites, size=count, replace=False).tolist())
    epochs = dict.fromkeys(chosen, training.local_epochs)
    slow: list[int] = []
    if training.stragglers is not None:
        rng = seeds.generator(seed, "stragglers", round_number)
        slow = rng.choice(chosen, size=round(training.stragglers.share * count), replace=False).tolist()
        # x epochs, uniform between 1 and E, as in the FedProx paper
        epochs |= {number: int(rng.integers(1, training.local_epochs + 1)) for number in slow}
    drop = training.stragglers is not None and training.stragglers.policy == "drop"
    return Roster(tuple(chosen), epochs, frozenset(slow) if drop else frozenset())


@lru_cache(maxsize=64)
def planned_epochs(training: Training, sites: int, seed: int, by_chance: bool) -> tuple[tuple[int, ...], ...]:
    """By site, then by round: 0 if a site does not work or its work does not count."""
    if training.share == 1 and training.stragglers is None:
        return ((training.local_epochs,) * training.rounds,) * sites
    rosters = [roster(training, sites, seed, number, by_chance) for number in range(training.rounds)]
    return tuple(tuple(0 if n in r.dropped else r.epochs.get(n, 0) for r in rosters) for n in range(sites))


def assign(trial: Trial, round_number: int) -> list[Assignment]:
    """The round's work, site by site. Sites that would exceed their epsilon are left out."""
    drawn = trial.roster(round_number)
    return [
        Assignment(trial.sites[n], n, drawn.epochs[n], n not in drawn.dropped)
        for n in drawn.numbers
        if trial.is_near(n) and round_number < trial.stops(n)
    ]


def stopped(trial: Trial, round_number: int) -> tuple[str, ...]:
    """Sites that are drawn for this round and have spent their epsilon."""
    drawn = [n for n in trial.roster(round_number).numbers if trial.is_near(n)]
    return tuple(trial.sites[n].name for n in drawn if round_number >= trial.stops(n))
