"""Regions of sites in the stacked engine: what each lane is sent, each region's mean, and what regions cost."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from wardround.algorithms.algorithm import Algorithm
from wardround.algorithms.hierarchical import active_regions
from wardround.algorithms.regions import Regions
from wardround.core import tree
from wardround.core.tree import State
from wardround.training.intake import with_traffic
from wardround.training.trial import RoundRecord


def broadcast_regions(
    algorithm: Algorithm, regions: Regions, server: State, trial_of: Tensor, site_of: Tensor
) -> State:
    """What each lane receives, from one broadcast to each region."""
    shared = [algorithm.broadcast(server, regions.of_site.index(number)) for number in range(len(regions.names))]
    region_of = torch.tensor(regions.of_site)[site_of]
    return {
        part: {name: torch.stack([state[part][name] for state in shared])[region_of, trial_of] for name in leaves}
        for part, leaves in shared[0].items()
    }


def aggregate_regions(
    algorithm: Algorithm,
    regions: Regions,
    server: State,
    update: State,
    weights: Tensor,
    counted: Sequence[Sequence[int]],
    round_number: int,
) -> State:
    """`update` and `weights` are (trials, counted sites, ...). Where nobody counted, regions may still be averaged."""
    if algorithm.aggregate_regions is None:
        raise ValueError("an algorithm with regions aggregates them")
    if not weights.numel():
        nothing = [None] * len(regions.names)
        return algorithm.aggregate_regions(server, nothing, [0.0] * len(nothing), round_number)
    region_of = torch.tensor([[regions.of_site[site] for site in sites] for sites in counted])
    inside = [region_of == number for number in range(len(regions.names))]
    totals = [(weights * own).sum(1) for own in inside]

    def means() -> Iterator[State]:
        for own, total in zip(inside, totals, strict=True):
            shares = weights * own / torch.where(total > 0, total, torch.ones_like(total))[:, None]
            yield {part: tree.apply(_mean_of(shares, own), leaves) for part, leaves in update.items()}

    return algorithm.aggregate_regions(server, means(), totals, round_number)


def _mean_of(shares: Tensor, inside: Tensor) -> Callable[[Tensor], Tensor]:
    def mean(leaf: Tensor) -> Tensor:
        # not by a share of 0 alone: another region's model may have diverged, and 0 times infinity is no number
        weighted = leaf * tree.align(shares, leaf)
        return torch.where(tree.align(inside, leaf), weighted, torch.zeros_like(weighted)).sum(1)

    return mean


def with_regions(records: Sequence[RoundRecord], regions: Regions, server: State) -> list[RoundRecord]:
    """The records with what regions cost; `server` is the state after the round."""
    size = tree.count_bytes({"params": server["params"]}) // len(records)
    active = active_regions(server).tolist()
    return [with_traffic(record, regions, count, size) for record, count in zip(records, active, strict=True)]
