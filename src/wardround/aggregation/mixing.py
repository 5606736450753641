"""What is done with updates before a rule, because honest sites differ: each is mixed with some others.

Bucketing (Karimireddy, He, Jaggi, ICLR 2022, arXiv:2006.09365, algorithm 1): updates in a random order, the mean of
every few. A bad update spoils its bucket, so that as many of fewer are bad. Nearest-neighbour mixing (Allouah et al.,
AISTATS 2023, arXiv:2302.01772, algorithm 2): in place of each update, the mean of the n - f nearest to it, itself
included.
"""

import math

import torch
from torch import Tensor

from wardround.aggregation.distances import squared_distances, weighted
from wardround.aggregation.rule import Rule, Updates
from wardround.core import seeds
from wardround.core.tree import Tree
from wardround.study.robustness.preaggregation import Preaggregation


def mixed(updates: Updates, before: Preaggregation, draw: Tree) -> Updates:
    """`draw` has the seed and the round of buckets, each a leaf of the server's state, so that a stack of runs can have
    seeds of its own and a resumed run goes on with the same buckets."""
    if before.before == "bucketing":
        order = seeds.generator(int(draw["seed"]), "buckets", int(draw["round"])).permutation(len(updates.rows))
        return buckets(updates, torch.from_numpy(order).to(updates.rows.device), before.bucket_size)
    if before.before == "nearest-neighbours":
        return nearest_neighbours(updates)
    return updates


def buckets(updates: Updates, order: Tensor, size: int) -> Updates:
    """The means of every `size` updates in this order; the last bucket may have fewer."""
    count = math.ceil(len(order) / size)
    bucket_of = torch.empty_like(order)
    bucket_of[order] = torch.arange(len(order), device=order.device) // size
    member = (bucket_of == torch.arange(count, device=order.device)[:, None]).double()
    return evenly(weighted(member / member.sum(1, keepdim=True), updates.rows), min(updates.bad, count))


def nearest_neighbours(updates: Updates) -> Updates:
    rows = updates.rows
    near = squared_distances(rows).argsort(dim=1, stable=True)[:, : len(rows) - updates.bad]
    member = torch.zeros(len(rows), len(rows), dtype=torch.float64, device=rows.device).scatter_(1, near, 1.0)
    return evenly(weighted(member / near.shape[1], rows), updates.bad)


def evenly(rows: Tensor, bad: int) -> Updates:
    return Updates(rows, torch.full((len(rows),), 1 / len(rows), dtype=torch.float64, device=rows.device), bad)


def most_bad(rule: Rule, before: Preaggregation, count: int) -> int:
    """How many of so many sites may be bad, with what is done before the rule."""
    if before.before == "bucketing":
        return rule.most_bad(math.ceil(count / before.bucket_size))
    return rule.most_bad(count)


def fewest(rule: Rule, before: Preaggregation, bad: int) -> int:
    """The updates that must arrive so that as many may be bad."""
    count = 1
    while most_bad(rule, before, count) < bad:
        count += 1
    return count
