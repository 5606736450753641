"""What a federated algorithm is: pure functions over parameter trees, and declared facts (`study.facts`).

One round, wherever it runs:

    coordinator         broadcast(server, site)               -> shared           what this site is sent
    site, start         begin(shared, memory)                 -> params           where local work starts
    site, each step     correct(grad, params, shared, memory) -> grad
    site, end           finish(params, shared, memory, work)  -> update, memory   what leaves, what stays
    in between          protection and the mean: the algorithm never sees them
    coordinator         aggregate(server, mean, share)        -> server

`server`, `shared`, `memory` and `update` are dicts of named trees, so saving a run is saving data. A setting that a
study may sweep (mu, the server's learning rate) is a leaf of `server`, so that one program can run many values at once.
An algorithm sees the shared leaves of a model only; private leaves and buffers are the local loop's business.
Nothing here branches on a tensor's value or counts its axes: written with `core.tree`, the same lines run one site
or a stack of sites and runs along leading axes. Only `aggregate_each`, once a round, sees one run at a time.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from wardround.algorithms.regions import Regions
from wardround.core.tree import State, Tree
from wardround.study.facts import AlgorithmFacts


class Work(NamedTuple):
    """A site's work in a round. Tensors without dimensions, so that a stack of sites can carry one value each."""

    steps: Tensor
    lr_sum: Tensor  # of all steps
    gradient_weight: Tensor  # sum of the weights with which gradients entered the result; equals steps for plain SGD
    start_loss: Tensor  # of the model that the site began with, on its training rows; NaN unless the algorithm asks


ROOT = -1  # in place of a site's number: the coordinator's own update, of root data


@dataclass(frozen=True)
class Arrival:
    """One site's update, for algorithms that need each of them."""

    site: int
    weight: float
    update: State


@dataclass(frozen=True)
class Algorithm(AlgorithmFacts):
    init: Callable[[Tree, int], State]  # parameters, number of sites
    init_memory: Callable[[Tree], State]
    broadcast: Callable[[State, int], State]
    begin: Callable[[State, State], Tree]
    correct: Callable[[Tree, Tree, State, State], Tree]
    finish: Callable[[Tree, State, State, Work], tuple[State, State]]
    aggregate: Callable[[State, State, float], State]
    aggregate_each: Callable[[State, Sequence[Arrival]], State] | None = None
    fewest: int = 1  # updates without which a round comes to nothing, where each is needed
    # where sites form regions: each region's mean, or its updates where each is needed (None: no update came), and its
    # weight, and the round, from 0 on
    aggregate_regions: (
        Callable[[State, Iterable[State | Sequence[Arrival] | None], Sequence[float | Tensor], int], State] | None
    ) = None
    regions: Regions | None = None
    # what a site predicts with, from (shared, memory); None: where its local work starts
    own_model: Callable[[State, State], Tree] | None = None
    # a second model that a site trains for itself on the same batches; its memory and the private part of the network
    # stay, and nothing of it leaves
    own: "Algorithm | None" = None
    # what a state tells of the distribution of its weights; sites are sent it with the final model
    posterior: Callable[[State], State] | None = None

    def model_at(self, shared: State, memory: State) -> Tree:
        """What a site predicts with."""
        return (self.own_model or self.begin)(shared, memory)

    @property
    def needs(self) -> Literal["mean", "each"]:
        return "mean" if self.aggregate_each is None else "each"


def setting(value: float, params: Tree) -> Tensor:
    """A hyper-parameter as a leaf of the server's state, in the parameters' precision."""
    like = next(iter(params.values()))
    return torch.tensor(value, dtype=like.dtype, device=like.device)
