"""FedNova (Wang et al., NeurIPS 2020, arXiv:2007.07481): sites that take more steps no longer count for more.

Each site sends its change divided by the total weight of its gradients (the paper's ||a_i||_1: its number of steps
for plain SGD, more with momentum). The coordinator multiplies the mean by the mean of those weights (the paper's
tau_eff in its default form), so that with equal numbers of steps the result is FedAvg's.
"""

from dataclasses import replace

from wardround.algorithms.algorithm import Algorithm, Work
from wardround.algorithms.fedavg import fedavg
from wardround.core import tree
from wardround.core.settings import Positive
from wardround.core.tree import State, Tree

CITATION = (
    "Wang et al. Tackling the objective inconsistency problem in heterogeneous federated optimization. NeurIPS 2020. "
    "arXiv:2007.07481"
)


def fednova(server_lr: Positive = 1.0) -> Algorithm:
    base = fedavg(server_lr)

    def finish(params: Tree, shared: State, memory: State, work: Work) -> tuple[State, State]:
        moved = tree.sub(params, shared["params"])
        update = {"params": tree.scale(moved, 1 / work.gradient_weight), "work": {"weight": work.gradient_weight}}
        return update, memory

    def aggregate(server: State, mean: State, share: float) -> State:
        effective = tree.scale(mean["params"], mean["work"]["weight"])
        return base.aggregate(server, {"params": effective}, share)

    return replace(
        base,
        finish=finish,
        aggregate=aggregate,
        sound_with=frozenset({"sgd", "momentum", "weight-decay"}),
        data_free=frozenset({"work"}),
        not_regional="divides by the steps of all sites that work in a round, and regions have rounds of their own",
        not_asynchronous="multiplies by the mean number of steps of sites that began with one model",
        citation=CITATION,
    )
