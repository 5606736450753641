"""An algorithm whose sites' updates become one by a rule other than the mean.

The rule stands where the mean of the updates stood: between the sites and `aggregate`, which is given its result in
place of the mean. It is applied to the model's change, all of it as one vector. Other parts of an update (the number of
steps of FedNova, the loss of adaptive FedProx) are a few numbers that a site says about itself: of each the median is
taken.

Each site counts once, whatever number of training rows it claims; only the norm bound, which is a mean, weighs sites as
the algorithm does. An update with a number that is not finite is left out, and is one of the bad ones.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from wardround.aggregation.mixing import fewest, mixed, most_bad
from wardround.aggregation.rule import Rule, Updates
from wardround.algorithms.algorithm import ROOT, Algorithm, Arrival
from wardround.core import tree
from wardround.core.errors import StudyError
from wardround.core.threads import torch_threads
from wardround.core.tree import State, Tree
from wardround.study.robustness.preaggregation import Preaggregation
from wardround.study.schema import Arm, Training

# parts of the server's state: what the rule keeps, updates with momentum, what buckets are drawn by
KEPT, MOMENTUM, BUCKETS = "aggregation", "site momentum", "buckets"


def by_rule(
    arm: Arm, algorithm: Algorithm, rules: Mapping[str, Callable[..., Rule]], sites: int, seed: int
) -> Algorithm:
    """The arm's algorithm with the arm's rule. Where the coordinator sees sums only, a rule that can be kept to there
    is kept to at the sites."""
    if arm.by_mean or arm.bounded_at_site is not None:
        return algorithm
    rule: Rule = arm.aggregation.build(rules)
    if arm.topology.kind != "hierarchical":  # there each region has sites of its own (`training.validation`)
        refuse_too_many_bad(arm, rule, sites)
    return with_rule(algorithm, rule, arm.preaggregation, arm.preaggregation.groups or sites, seed)


def with_rule(inner: Algorithm, rule: Rule, before: Preaggregation, sites: int, seed: int = 0) -> Algorithm:
    """`inner` with the rule in place of the mean. `sites`, or groups of them, send an update each; `seed` is that of
    buckets."""

    def init(params: Tree, count: int) -> State:
        like = torch.zeros_like(torch.cat([leaf.flatten() for leaf in in_order(params)]))
        state = inner.init(params, count)
        if kept := rule.init(like):
            state[KEPT] = kept
        if before.momentum:
            state[MOMENTUM] = {"updates": like.repeat(count, 1)}
        if before.before == "bucketing":
            state[BUCKETS] = {"seed": torch.tensor(seed), "round": torch.tensor(0)}
        return state

    def aggregate_each(server: State, arrivals: Sequence[Arrival]) -> State:
        with torch_threads(1):  # a block of rows takes less time than to start a thread
            after, draw = dict(server), server.get(BUCKETS, {})
            if draw:
                after[BUCKETS] = {**draw, "round": draw["round"] + 1}
            arrivals, root = [a for a in arrivals if a.site != ROOT], [a for a in arrivals if a.site == ROOT]
            usable, rows = finite_rows(arrivals)
            trusted, root_row = finite_rows(root) if root else ([], rows)
            if not usable or len(trusted) < len(root):
                return after
            if before.momentum:
                rows, after[MOMENTUM] = with_momentum(rows, usable, server[MOMENTUM], before.momentum)
            bad = max(rule.bad - (len(arrivals) - len(usable)), 0)
            updates = mixed(Updates(rows, weights_of(usable, rule, rows), bad), before, draw)
            updates = updates._replace(root=root_row[0]) if root else updates
            vector, kept = rule.combine(updates, server.get(KEPT, {}))
            if kept:
                after[KEPT] = kept
            result = {**medians_beside(usable), "params": as_tree(vector, usable[0].update["params"])}
            return inner.aggregate(after, result, len(usable) / sites)

    return replace(inner, init=init, aggregate_each=aggregate_each, fewest=fewest(rule, before, rule.bad))


def refuse_too_many_bad(arm: Arm, rule: Rule, sites: int) -> None:
    """`sites` train in the arm; in a round some of them may have no part."""
    each_round = arm.preaggregation.groups or planned_updates(arm.training, sites)
    most = most_bad(rule, arm.preaggregation, each_round)
    if rule.bad <= most:
        return
    needed, name = fewest(rule, arm.preaggregation, rule.bad), arm.aggregation.name
    buckets = f" in buckets of {arm.preaggregation.bucket_size}" if arm.preaggregation.before == "bucketing" else ""
    several = f"the {each_round} sites of a round" if each_round < sites else f"{sites} sites"
    if arm.preaggregation.groups is not None:
        several = f"{each_round} groups, each of which a bad site spoils"
    problem = f"{name}{buckets} withstands {most} bad of {several}; to withstand {rule.bad} it needs {needed}"
    remedy = f"Lower it to {most}, or use a rule that needs fewer sites." if most else "Use the mean, or more sites."
    raise StudyError(f"arms: {arm.name}: aggregation: bad", problem, remedy)


def planned_updates(training: Training, sites: int) -> int:
    """The updates that come in a round in which nothing fails."""
    drawn = max(1, round(training.share * sites))
    late = training.stragglers
    return drawn - (round(late.share * drawn) if late is not None and late.policy == "drop" else 0)


def finite_rows(arrivals: Sequence[Arrival]) -> tuple[list[Arrival], Tensor]:
    """The arrivals that are numbers, and the model's changes among them as the rows of a matrix."""
    leaves = in_order(arrivals[0].update["params"])
    sizes = [leaf.numel() for leaf in leaves]
    rows = leaves[0].new_empty(len(arrivals), sum(sizes))
    for row, arrival in zip(rows, arrivals, strict=True):
        for part, leaf in zip(torch.split(row, sizes), in_order(arrival.update["params"]), strict=True):
            part.copy_(leaf.flatten())
    beside = [
        torch.stack([leaf.sum() for leaf in said_beside(arrival)] or [rows.new_zeros(())]) for arrival in arrivals
    ]
    if bool(torch.isfinite(rows.sum() + torch.cat(beside).sum())):  # one pass, which nearly always answers for all
        return list(arrivals), rows
    usable = [
        bool(torch.isfinite(row).all() and torch.isfinite(other).all()) for row, other in zip(rows, beside, strict=True)
    ]
    return [arrival for arrival, fits in zip(arrivals, usable, strict=True) if fits], rows[torch.tensor(usable)]


def said_beside(arrival: Arrival) -> list[Tensor]:
    """The numbers of an update beside the model's change."""
    return [leaf for part, leaves in arrival.update.items() if part != "params" for leaf in leaves.values()]


def in_order(leaves: Tree) -> list[Tensor]:
    """By name: a run that was loaded from a file has its leaves in another order than one that was not."""
    return [leaves[name] for name in sorted(leaves)]


def with_momentum(rows: Tensor, arrivals: Sequence[Arrival], kept: Tree, momentum: float) -> tuple[Tensor, Tree]:
    """Each site's updates so far in place of its last one, the older the less (Karimireddy et al. 2021, algorithm
    1)."""
    places = torch.tensor([arrival.site for arrival in arrivals], device=rows.device)
    before = kept["updates"]
    if len(places) == len(before) and torch.equal(places, torch.arange(len(before), device=rows.device)):
        updates = torch.lerp(rows, before, momentum)  # all sites, in their order: nothing needs to be copied
        return updates, {"updates": updates}
    moved = torch.lerp(rows, before[places], momentum)
    return moved, {"updates": before.index_copy(0, places, moved)}


def weights_of(arrivals: Sequence[Arrival], rule: Rule, rows: Tensor) -> Tensor:
    """Adding up to 1."""
    weights = [arrival.weight if rule.weighs else 1.0 for arrival in arrivals]
    total = torch.tensor(weights, dtype=torch.float64, device=rows.device)
    return total / total.sum()


def medians_beside(arrivals: Sequence[Arrival]) -> State:
    """Of every part beside the model's change, the median of each number."""
    return {
        part: {
            name: torch.quantile(torch.stack([arrival.update[part][name] for arrival in arrivals]), 0.5, dim=0)
            for name in leaves
        }
        for part, leaves in arrivals[0].update.items()
        if part != "params"
    }


def as_tree(vector: Tensor, like: Tree) -> Tree:
    parts = torch.split(vector, [leaf.numel() for leaf in in_order(like)])
    return tree.apply(lambda leaf, part: part.reshape(leaf.shape), like, dict(zip(sorted(like), parts, strict=True)))
