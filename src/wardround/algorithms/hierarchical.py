"""Hierarchical federated averaging (Liu et al., IEEE ICC 2020, arXiv:1905.06641): sites, regions, one coordinator.

Each region averages its own sites' updates for `regions.rounds` rounds, as the algorithm within says; then the regions'
models are averaged, each with the weight of the updates that made it since the last time. One region is the flat
federation, bit for bit; one regional round with sites weighed by rows is the flat federation but for rounding.

The server's state holds the model of all (`params`), each region's model before the last average (`region NAME`), what
each region weighed in it (`weight`), and whether regions stand on the model of all (`clock`). The clock is the same for
all runs of a stack, so that it may be looked at.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from wardround.algorithms.algorithm import Algorithm, Arrival
from wardround.algorithms.regions import Regions, form_regions
from wardround.core import tree
from wardround.core.tree import State, Tree
from wardround.study.schema import Arm

CLOCK, WEIGHT = "clock", "weight"


def hierarchical(inner: Algorithm, regions: Regions) -> Algorithm:
    """`inner` is an algorithm whose coordinator keeps nothing but the model from round to round."""

    def init(params: Tree, sites: int) -> State:
        like = next(iter(params.values()))
        return {
            **inner.init(params, sites),
            **{part_of(name): params for name in regions.names},
            WEIGHT: {name: torch.zeros((), dtype=torch.float64, device=like.device) for name in regions.names},
            CLOCK: {"merged": torch.tensor(True, device=like.device)},
        }

    def model(server: State, region: int) -> Tree:
        """The model with which a region's next round begins."""
        return server["params"] if is_merged(server) else server[part_of(regions.names[region])]

    def broadcast(server: State, site: int) -> State:
        return inner.broadcast({**server, "params": model(server, regions.of_site[site])}, site)

    def of_region(before: State, came: State | Sequence[Arrival] | None) -> State:
        if came is None:
            return before
        if isinstance(came, dict):
            return inner.aggregate(before, came, 1.0)
        return before if inner.aggregate_each is None else inner.aggregate_each(before, came)

    def aggregate(
        server: State,
        came: Iterable[State | Sequence[Arrival] | None],
        weights: Sequence[float | Tensor],
        round_number: int,
    ) -> State:
        models: dict[str, Tree] = {}
        for number, (name, of_one) in enumerate(zip(regions.names, came, strict=True)):
            before = {**server, "params": model(server, number)}
            models[name] = of_region(before, of_one)["params"]
        weighed = dict(zip(regions.names, weights, strict=True))
        return aggregate_regions(server, models, weighed, regions.merges(round_number))

    return replace(inner, init=init, broadcast=broadcast, regions=regions, aggregate_regions=aggregate)


def aggregate_regions(
    server: State, models: dict[str, Tree], weights: Mapping[str, float | Tensor], merges: bool
) -> State:
    """The next state, from each region's model and the weight of the updates that it has just had. Where it `merges`,
    the model of all is their mean, each with the weight of its updates since the last mean."""
    fresh, weighed = is_merged(server), {}
    for name, weight in weights.items():
        earlier = torch.zeros_like(server[WEIGHT][name]) if fresh else server[WEIGHT][name]
        weighed[name] = earlier + weight
    return {
        **server,
        "params": average(models, weighed, server["params"]) if merges else server["params"],
        **{part_of(name): leaves for name, leaves in models.items()},
        WEIGHT: weighed,
        CLOCK: {"merged": torch.full_like(server[CLOCK]["merged"], merges)},
    }


def in_regions(arm: Arm, algorithm: Algorithm, sites: Sequence[str], members: Sequence[str]) -> Algorithm:
    """The arm's algorithm within its regions, if it has some. Baselines have no coordinator, and so no regions."""
    if arm.topology.kind != "hierarchical" or not algorithm.federated:
        return algorithm
    where = f"arms: {arm.name}: topology: regions"
    regions = form_regions(arm.topology.regions, arm.topology.regional_rounds, sites, members, where)
    return hierarchical(algorithm, regions)


def part_of(region: str) -> str:
    """The part of the server's state that is a region's own model."""
    return f"region {region}"


def is_merged(server: State) -> bool:
    return bool(server[CLOCK]["merged"].all())


def as_merged(server: State) -> State:
    """The state in which every site is sent the model of all, as it was last averaged; a flat one as it is."""
    return {**server, CLOCK: tree.apply(torch.ones_like, server[CLOCK])} if CLOCK in server else server


def as_regional(server: State) -> State:
    """The state in which every site is sent its region's own model, as it was before the last average."""
    return {**server, CLOCK: tree.apply(torch.zeros_like, server[CLOCK])}


def average(models: dict[str, Tree], weights: Tree, before: Tree) -> Tree:
    """The mean of the regions' models by weight; `before` where no update came to any of them."""
    total = torch.stack(list(weights.values())).sum(0)
    some = total > 0
    shares = {name: weight / torch.where(some, total, torch.ones_like(total)) for name, weight in weights.items()}
    mean: Tree = {}
    for name, leaves in models.items():
        part = tree.apply(lambda leaf, share=shares[name]: leaf * tree.align(share.to(leaf.dtype), leaf), leaves)
        mean = tree.add(mean, part) if mean else part
    if bool(some.all()):
        return mean
    return tree.apply(lambda new, old: torch.where(tree.align(some, new), new, old), mean, before)


def active_regions(server: State) -> Tensor:
    """How many regions had an update since the last average."""
    return torch.stack([(weight > 0) for weight in server[WEIGHT].values()]).sum(0)
