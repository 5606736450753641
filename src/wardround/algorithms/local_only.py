"""Every site alone: the baseline that federation has to beat. Nothing is sent in either direction."""

from dataclasses import replace

from wardround.algorithms.algorithm import Algorithm, Work
from wardround.algorithms.fedavg import fedavg
from wardround.core.tree import State, Tree


def local() -> Algorithm:
    def init(params: Tree, sites: int) -> State:
        return {}

    def init_memory(params: Tree) -> State:
        return {"params": params}

    def broadcast(server: State, site: int) -> State:
        return {}

    def begin(shared: State, memory: State) -> Tree:
        return memory["params"]

    def finish(params: Tree, shared: State, memory: State, work: Work) -> tuple[State, State]:
        return {}, {"params": params}

    def aggregate(server: State, mean: State, share: float) -> State:
        return server

    return replace(
        fedavg(),
        init=init,
        init_memory=init_memory,
        broadcast=broadcast,
        begin=begin,
        finish=finish,
        aggregate=aggregate,
        personal=True,
        federated=False,
        citation="",
    )
