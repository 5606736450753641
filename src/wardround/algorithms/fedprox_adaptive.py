"""FedProx whose mu follows the loss (Li et al., MLSys 2020, arXiv:1812.06127, section 5.3).

mu rises by `step` when the loss of the shared model rises, and falls by `step` when it has fallen for `patience`
rounds in a row. The loss is the mean over the round's sites of the model that they were sent, so mu reacts one
round later than the coordinator could if it held the data.
"""

from dataclasses import replace

import torch

from wardround.algorithms.algorithm import Algorithm, Work, setting
from wardround.algorithms.fedprox import fedprox
from wardround.core.settings import Count, NonNegative, Positive
from wardround.core.tree import State, Tree

CITATION = "Li et al. Federated optimization in heterogeneous networks. MLSys 2020, section 5.3. arXiv:1812.06127"


def fedprox_adaptive(
    mu: NonNegative = 0.0, step: Positive = 0.1, patience: Count = 5, server_lr: Positive = 1.0
) -> Algorithm:
    base = fedprox(mu, server_lr)

    def init(params: Tree, sites: int) -> State:
        watch = {"last_loss": setting(float("inf"), params), "falls": setting(0.0, params)}
        return {**base.init(params, sites), "watch": watch}

    def finish(params: Tree, shared: State, memory: State, work: Work) -> tuple[State, State]:
        update, memory = base.finish(params, shared, memory, work)
        return {**update, "loss": {"start": work.start_loss}}, memory

    def aggregate(server: State, mean: State, share: float) -> State:
        loss, last = mean["loss"]["start"], server["watch"]["last_loss"]
        fell = (loss < last) & last.isfinite()  # the first loss has nothing to fall from
        falls = torch.where(fell, server["watch"]["falls"] + 1, torch.zeros_like(loss))
        rises = loss > last
        lower = falls >= patience
        old = server["settings"]["mu"]
        new = torch.where(rises, old + step, torch.where(lower, (old - step).clamp(min=0), old))
        return {
            **base.aggregate(server, mean, share),
            "settings": {**server["settings"], "mu": new},
            "watch": {"last_loss": loss, "falls": torch.where(lower, torch.zeros_like(falls), falls)},
        }

    return replace(
        base,
        init=init,
        finish=finish,
        aggregate=aggregate,
        needs_start_loss=True,
        exact=frozenset({"loss"}),
        not_regional="moves one mu by the loss of all sites, and regions have losses of their own",
        not_asynchronous="moves mu by the loss of one model at all sites, and late updates tell the loss of older ones",
        citation=CITATION,
    )
