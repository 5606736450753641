"""SCAFFOLD (Karimireddy et al., ICML 2020, arXiv:1910.06378, Algorithm 1, option II).

Assumes SGD without momentum: a site's control is the mean gradient along its path, read off from how far it went.
Controls start at zero, stay at their site, and only their change travels; the coordinator's control is the mean of
the sites' controls because absent sites do not change theirs.
"""

from wardround.algorithms.algorithm import Algorithm, Work, setting
from wardround.core import tree
from wardround.core.settings import Positive
from wardround.core.tree import State, Tree

NOT_ROBUST = (
    "keeps one control that is the mean of the sites' controls, and what a rule makes of their changes is no mean"
)
NOT_REGIONAL = "keeps one control of all sites, which drifts away from their mean while regions are apart"
NOT_ASYNCHRONOUS = (
    "corrects a site's steps by the control of all, which would be as old as the model that it began with"
)
CITATION = (
    "Karimireddy et al. SCAFFOLD: stochastic controlled averaging for federated learning. ICML 2020. arXiv:1910.06378"
)


def scaffold(server_lr: Positive = 1.0) -> Algorithm:
    def init(params: Tree, sites: int) -> State:
        settings = {"server_lr": setting(server_lr, params)}
        return {"params": params, "control": tree.zeros_like(params), "settings": settings}

    def init_memory(params: Tree) -> State:
        return {"control": tree.zeros_like(params)}

    def broadcast(server: State, site: int) -> State:
        return {"params": server["params"], "control": server["control"]}

    def begin(shared: State, memory: State) -> Tree:
        return shared["params"]

    def correct(grad: Tree, params: Tree, shared: State, memory: State) -> Tree:  # line 10
        return tree.add(grad, tree.sub(shared["control"], memory["control"]))

    def finish(params: Tree, shared: State, memory: State, work: Work) -> tuple[State, State]:  # lines 12-14
        moved = tree.sub(params, shared["params"])
        drift = tree.sub(memory["control"], shared["control"])
        control = tree.sub(drift, tree.scale(moved, 1 / work.lr_sum))
        return {"params": moved, "control": tree.sub(control, memory["control"])}, {"control": control}

    def aggregate(server: State, mean: State, share: float) -> State:  # lines 16-17
        return {
            **server,
            "params": tree.add(server["params"], tree.scale(mean["params"], server["settings"]["server_lr"])),
            "control": tree.add(server["control"], tree.scale(mean["control"], share)),
        }

    return Algorithm(
        init, init_memory, broadcast, begin, correct, finish, aggregate,
        weighting="uniform", sound_with=frozenset({"sgd", "weight-decay"}),
        exact=frozenset({"control"}),  # or the coordinator's control would no longer be the mean of the sites'
        not_regional=NOT_REGIONAL, not_robust=NOT_ROBUST, not_asynchronous=NOT_ASYNCHRONOUS, citation=CITATION,
    )  # fmt: skip
