"""Regions of sites in the stacked engine: what each lane is sent, each region's mean, and what regions cost."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from wardround.algorithms.algorithm import Algorithm
from wardround.algorithms.hierarchical import heard
from wardround.algorithms.regions import Regions, between_regions
from wardround.core import tree
from wardround.core.tree import State
from wardround.training.trial import RoundRecord


def broadcast_regions(
    algorithm: Algorithm, regions: Regions, server: State, trial_of: Tensor, site_of: Tensor
) -> State:
    """What each lane is sent, from one broadcast to each region."""
    sent = [algorithm.broadcast(server, regions.first_site(number)) for number in range(len(regions.names))]
    region_of = torch.tensor(regions.of_site)[site_of]
    return {
        part: {name: torch.stack([one[part][name] for one in sent])[region_of, trial_of] for name in leaves}
        for part, leaves in sent[0].items()
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


def with_regions(
    records: Sequence[RoundRecord], regions: Regions, server: State, round_number: int
) -> list[RoundRecord]:
    """The records with what went between regions and the coordinator of all; `server` is the state after the round."""
    size = tree.count_bytes({"params": server["params"]}) // len(records)
    came = heard(server).tolist()
    sent = [between_regions(regions, round_number, came[t], size) for t in range(len(records))]
    return [
        replace(
            record,
            change=record.change if regions.merges(round_number) else None,
            region_messages=one.messages,
            region_bytes=one.bytes,
        )
        for record, one in zip(records, sent, strict=True)
    ]
