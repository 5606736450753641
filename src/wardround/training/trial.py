"""A trial, its state between rounds, and the work of a round."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from wardround.adversaries.of_arm import BadSites
from wardround.algorithms.algorithm import Algorithm
from wardround.core.tree import State, Tree
from wardround.data.site import Site
from wardround.models.model import SMALL_MODEL, Model
from wardround.models.starting_weights import StartingModel
from wardround.privacy.dp.accountant import Charge
from wardround.privacy.dp.example_dp import Rule
from wardround.privacy.dp.protection import Sampling, charge_of, charges_within, noise_by_round, rule_of
from wardround.screening.decisions import Decisions
from wardround.study.schema import Compression, Deployment, Privacy, Screening, Topology, Training
from wardround.study.timing import Timing
from wardround.training.clock import Clock, clock_of
from wardround.training.local import Memory
from wardround.training.schedule import Roster, Schedule, factor_of, planned_epochs, roster, schedule


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
    screening: Screening | None = None
    decisions: Decisions = field(default_factory=dict)  # of people, about sites that were named
    groups: tuple[int, ...] = ()  # by site: its group, where each group of sites has a secure sum of its own
    root: Site | None = None  # whose training rows are the coordinator's, where a rule asks for root data
    bound: float | None = None  # to which each site shortens its update, where nobody else sees it
    within: tuple[str, ...] = ()  # in a deployed region: its sites, the only ones whose work is asked for; empty: all
    starting: StartingModel | None = None  # None: the first weights are drawn by `init_seed`
    forgers: tuple[BadSites, ...] = ()  # simulated bad sites that send something else than their updates
    turned: Mapping[int, tuple[Site, ...]] = field(default_factory=dict)  # the sites from a later round on (1: first)
    clock: Clock | None = None  # None: no time passes
    recorded: Schedule | None = None  # an order that was recorded, in place of that of the study

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.training.precision == "float64" else torch.float32

    @property
    def light(self) -> bool:
        """Whether a step takes less time than starting it. A network for images is never light, however small."""
        looks = self.sites[0].train.x.dim() == 4 and self.model.closed_gradient is None
        return self.model.size < SMALL_MODEL and not looks

    def sites_in(self, round_number: int) -> tuple[Site, ...]:
        """The sites that train, with the rows that they have in a round: some turn bad later."""
        begun = [first for first in self.turned if first - 1 <= round_number]
        return self.turned[max(begun)] if begun else self.sites

    def trainer_of(self, scored: int) -> int:
        """The number of the training site whose model predicts for a scored site."""
        return 0 if self.algorithm.pools else scored

    def is_near(self, number: int) -> bool:
        """Whether a site's work belongs to the holder of this trial. The draw of sites does not depend on it."""
        return not self.within or self.sites[number].name in self.within

    @cached_property
    def schedule(self) -> Schedule | None:
        """All rounds, where their order is known in advance; None where each round is drawn by itself."""
        return self.recorded or (None if self.clock is None else schedule(self.clock))

    def roster(self, round_number: int) -> Roster:
        if self.schedule is not None:
            return self.schedule.rosters[round_number]
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


def on_clock(trial: Trial, timing: Timing, deployment: Deployment) -> Trial:
    """The trial with the clock of a simulation, where time matters to it."""
    names, rows = [site.name for site in trial.sites], [len(site.train) for site in trial.sites]
    agreed = deployment.quorum, deployment.deadline
    clock = clock_of(trial.training, timing, names, rows, trial.batch_seed, *agreed, f"arms: {trial.arm}")
    if clock is None or trial.privacy.example is None:
        return replace(trial, clock=clock)
    works = tuple(sum(charge.steps > 0 for charge in trial.charges(number)) for number in range(len(trial.sites)))
    return replace(trial, clock=replace(clock, most_works=works))


@dataclass(frozen=True)
class Run:
    """The complete state between two rounds. Saved and loaded again, it gives the same numbers."""

    round: int
    server: State
    memories: Mapping[str, Memory]
    earlier: Mapping[int, State] = field(default_factory=dict)  # what sites were sent that still work, by round
    screening: Tree = field(default_factory=dict, kw_only=True)  # what is known of sites' updates (`training.screen`)

    def shared(self, algorithm: Algorithm, number: int, started: int) -> State:
        """What a site was sent when its work began."""
        return algorithm.broadcast(self.server, number) if started == self.round else self.earlier[started]


@dataclass(frozen=True)
class Assignment:
    """One site's work that arrives in a round."""

    site: Site
    number: int
    epochs: int
    counts: bool  # False: its work is dropped
    started: int  # the round with whose model it began; decides its batches, its learning rate and its noise
    factor: float = 1.0  # what its update counts for, beside the weight of the site


def assign(trial: Trial, round_number: int) -> list[Assignment]:
    """The round's work, site by site. Sites that would exceed their epsilon are left out."""
    drawn, planned = trial.roster(round_number), trial.schedule is not None
    assignments = []
    for n in drawn.numbers:
        started = drawn.started.get(n, round_number)
        if trial.is_near(n) and (planned or round_number < trial.stops(n)):
            factor = factor_of(trial.training, round_number - started)
            counts = n not in drawn.dropped
            assignments.append(Assignment(trial.sites_in(started)[n], n, drawn.epochs[n], counts, started, factor))
    late = drawn.late.items()
    epochs = trial.training.local_epochs
    return assignments + [Assignment(trial.sites_in(started)[n], n, epochs, False, started) for n, started in late]


def stopped(trial: Trial, round_number: int) -> tuple[str, ...]:
    """Sites that are drawn for this round and have spent their epsilon."""
    drawn = trial.roster(round_number)
    if trial.schedule is not None:
        return tuple(trial.sites[n].name for n in drawn.spent)
    near = [n for n in drawn.numbers if trial.is_near(n)]
    return tuple(trial.sites[n].name for n in near if round_number >= trial.stops(n))
