"""Clustered federated learning (Sattler et al., IEEE TNNLS 2020, arXiv:1910.01991).

All sites start in one cluster. When a cluster's mean update has become small while single updates have not, its sites
pull in different directions, and it is split in two so that the largest cosine similarity across the cut is smallest
(the optimal bipartition). The paper's two thresholds are in the units of the weights; here the first is a ratio (mean
update over largest update) and the second a share of the largest update seen so far, so that one value suits models of
any size. A cluster is split only in a round in which all of its sites took part. There are `slots` models in all; a
full house splits no further.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor

from wardround.algorithms.algorithm import Algorithm, Arrival, setting
from wardround.algorithms.fedavg import fedavg
from wardround.core import tree
from wardround.core.settings import Count, Fraction, NonNegative, Range
from wardround.core.tree import State, Tree


def clustered(
    slots: Annotated[int, Range(low=2)] = 4,
    ratio: Fraction = 0.4,
    smallest_update: NonNegative = 0.2,
    gamma: Fraction = 0.5,
    warm_up: Count = 5,
) -> Algorithm:
    """`smallest_update` is the paper's second threshold, `gamma` its bound on the noise within a cluster: a
    split needs gamma < sqrt((1 - largest similarity across the cut) / 2).
    """

    def init(params: Tree, sites: int) -> State:
        return {
            "params": tree.apply(lambda leaf: leaf.unsqueeze(0).repeat(slots, *[1] * leaf.dim()), params),
            "cluster": {
                "of_site": torch.zeros(sites, dtype=torch.int64),
                "used": torch.tensor(1),
                "round": torch.tensor(0),
                "peak": setting(0.0, params),  # length of the largest update so far
            },
        }

    def broadcast(server: State, site: int) -> State:
        slot = server["cluster"]["of_site"][site]
        return {"params": tree.apply(lambda leaf: leaf[slot], server["params"])}

    def aggregate_each(server: State, arrivals: Sequence[Arrival]) -> State:
        slot_of, used = server["cluster"]["of_site"].tolist(), int(server["cluster"]["used"])
        warm = int(server["cluster"]["round"]) >= warm_up
        # a row for each model and each update: fewer and larger operations than leaf by leaf
        stacked = {name: torch.stack([a.update["params"][name] for a in arrivals]) for name in server["params"]}
        models, updates = tree.as_rows(server["params"]), tree.as_rows(stacked)
        lengths = updates.norm(dim=1)
        peak = torch.maximum(server["cluster"]["peak"], lengths.max())
        for slot in range(used):
            places = [place for place, arrival in enumerate(arrivals) if slot_of[arrival.site] == slot]
            if not places:
                continue
            everybody = len(places) == len(arrivals)
            weights = updates.new_tensor([arrivals[place].weight for place in places])
            members = updates if everybody else updates[places]
            mean = weights / weights.sum() @ members
            models[slot] += mean
            may_split = warm and used < slots and len(places) == slot_of.count(slot)
            longest = float((lengths if everybody else lengths[places]).max())
            leaving = split(members, mean, longest, ratio, smallest_update * float(peak), gamma) if may_split else []
            if leaving:
                models[used] = models[slot]
                for number in leaving:
                    slot_of[arrivals[places[number]].site] = used
                used += 1
        kept = {"of_site": torch.tensor(slot_of), "used": torch.tensor(used), "round": server["cluster"]["round"] + 1}
        return {"params": tree.as_leaves(models, server["params"]), "cluster": {**kept, "peak": peak}}

    return replace(
        fedavg(), init=init, broadcast=broadcast, aggregate_each=aggregate_each, personal=True,
        not_regional="finds groups of sites by itself",
        not_asynchronous="compares the directions of updates that began with one model",
        not_robust="compares the sites' updates itself, so that there is no mean that a rule could replace",
        citation="Sattler, Müller, Samek. Clustered federated learning. IEEE TNNLS 2020. arXiv:1910.01991",
    )  # fmt: skip


def split(vectors: Tensor, mean: Tensor, largest: float, ratio: float, smallest: float, gamma: float) -> list[int]:
    """The members, a row of `vectors` each, that leave for a new cluster; none if the cluster holds together. `largest`
    is the length of the longest."""
    if len(vectors) < 2 or largest <= smallest or float(mean.norm()) >= ratio * largest:
        return []
    unit = vectors / vectors.norm(dim=1, keepdim=True).clamp(min=torch.finfo(vectors.dtype).tiny)
    leaving = bipartition(similarity := unit @ unit.T)
    if not leaving.any() or gamma >= math.sqrt(max(0.0, (1 - float(similarity[leaving][:, ~leaving].max())) / 2)):
        return []
    return leaving.nonzero().flatten().tolist()


def bipartition(similarity: Tensor) -> Tensor:
    """Join the most similar until two groups are left (single linkage). True marks the group without the first."""
    from scipy.cluster.hierarchy import fcluster, linkage  # here, because most studies never split a cluster
    from scipy.spatial.distance import squareform

    distance = squareform((1 - similarity).double().numpy(), checks=False)
    groups = fcluster(linkage(distance, method="single"), 2, criterion="maxclust")
    return torch.from_numpy(groups != groups[0])
