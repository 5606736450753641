"""Which sites work in a round, for all trials of a stack: their lanes, their weights, and when their work began."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wardround.engines.stacked.lanes import Lane, LaneOrder
from wardround.training.round_record import RoundRecord
from wardround.training.schedule import Roster, factor_of, roster, tolerance
from wardround.training.trial import Trial


@dataclass(frozen=True)
class Crew:
    """It stays the same from round to round if the same sites do the same work."""

    work: Hashable  # as `work_of` has it
    lanes: LaneOrder
    counted: tuple[tuple[int, ...], ...]  # site numbers whose work counts, of each trial
    trial_of: Tensor  # of each lane, in the order of `lanes`
    site_of: Tensor
    agos: tuple[int, ...]  # how many rounds ago work began
    ago_of: Tensor  # of each lane, by its place in `agos`
    back: Tensor  # from the order of `lanes` to (trial, site)
    weights: Tensor  # (trials, counted sites)
    factors: Tensor | None  # what updates count for beside the weights, by (trial, site); None: all are 1
    names: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...]  # counted and dropped sites, of each trial

    def rates(self, trials: Sequence[Trial], round_number: int) -> float | Tensor:
        """The learning rate: one for all, or of each lane where trials differ in it, or their work began apart."""
        trainings = {id(trial.training): trial.training for trial in trials}  # mostly one for each arm
        rate_of = [{n: known.lr_in(round_number - ago) for n, known in trainings.items()} for ago in self.agos]
        table = [[rates_then[id(trial.training)] for trial in trials] for rates_then in rate_of]
        rates = {rate for row in table for rate in row}
        if len(rates) == 1:
            return rates.pop()
        return torch.tensor(table, dtype=trials[0].dtype)[self.ago_of, self.trial_of]


def rosters_of(trials: Sequence[Trial], round_number: int) -> tuple[Roster, ...]:
    if trials[0].schedule is not None:
        return tuple(trial.roster(round_number) for trial in trials)
    keys = [(len(trial.sites), trial.batch_seed) for trial in trials]
    drawn = {key: roster(trials[0].training, *key, round_number) for key in set(keys)}
    return tuple(drawn[key] for key in keys)


def work_of(trials: Sequence[Trial], rosters: Sequence[Roster], round_number: int) -> Hashable:
    """What decides the lanes of a round; whichever round it is."""
    works = {
        number: (
            drawn.numbers,
            tuple(drawn.epochs.values()),
            drawn.dropped,
            tuple((n, round_number - began) for n, began in sorted(drawn.started.items())),
        )
        for number, drawn in {id(drawn): drawn for drawn in rosters}.items()  # arms mostly share their seed's roster
    }
    return tuple(works[id(drawn)] for drawn in rosters)


def crew_of(
    trials: Sequence[Trial], all_sizes: Sequence[Sequence[int]], rosters: Sequence[Roster], round_number: int
) -> Crew:
    first, by_rows = trials[0], trials[0].algorithm.weighting == "samples"
    counted = tuple(tuple(n for n in drawn.numbers if n not in drawn.dropped) for drawn in rosters)
    lanes, weights, names = [], [], []
    for trial, known, drawn, numbers in zip(trials, all_sizes, rosters, counted, strict=True):
        lanes += _lanes(trial, known, drawn, numbers, round_number)
        weights.append([float(known[n]) if by_rows else 1.0 for n in numbers])
        names.append((_names(trial, numbers), _names(trial, sorted(drawn.dropped))))
    order = LaneOrder(lanes, first.training.batch_size) if lanes else LaneOrder([], 1)
    sort = torch.from_numpy(order.order)
    trial_of = torch.arange(len(trials)).repeat_interleave(len(counted[0]))
    site_of = torch.tensor([n for numbers in counted for n in numbers], dtype=torch.int64)
    agos = tuple(sorted({lane.ago for lane in lanes})) or (0,)
    ago_of = torch.tensor([agos.index(lane.ago) for lane in lanes], dtype=torch.int64)
    table = torch.tensor(weights, dtype=first.dtype)
    return Crew(
        work=work_of(trials, rosters, round_number),
        lanes=order,
        counted=counted,
        trial_of=trial_of[sort],
        site_of=site_of[sort],
        agos=agos,
        ago_of=ago_of[sort],
        back=torch.argsort(sort),
        weights=table,
        factors=_factors(first, lanes, table),
        names=tuple(names),
    )


def _lanes(trial: Trial, sizes: Sequence[int], drawn: Roster, numbers: Sequence[int], round_number: int) -> list[Lane]:
    return [
        Lane(trial.batch_seed, site.name, site.train, sizes[n], drawn.epochs[n], ago)
        for n in numbers
        for site, ago in [(trial.sites[n], round_number - drawn.started.get(n, round_number))]
    ]


def _names(trial: Trial, numbers: Sequence[int]) -> tuple[str, ...]:
    return tuple(trial.sites[n].name for n in numbers)


def _factors(first: Trial, lanes: Sequence[Lane], weights: Tensor) -> Tensor | None:
    factors = [factor_of(first.training, lane.ago) for lane in lanes]
    return None if set(factors) <= {1.0} else torch.tensor(factors, dtype=weights.dtype).reshape(weights.shape)


def with_time(trial: Trial, drawn: Roster, record: RoundRecord, size: int) -> RoundRecord:
    """The record of a round on a clock. `size` is what each site is sent, in bytes."""
    ago = {trial.sites[n].name: record.round - 1 - drawn.started.get(n, record.round - 1) for n in drawn.numbers}
    return record.but(
        dropped=tuple(trial.sites[n].name for n in drawn.late),
        bytes_down=size * len(drawn.numbers if drawn.sent is None else drawn.sent),
        time=drawn.time,
        staleness=ago if tolerance(trial.training) is not None else {},
    )
