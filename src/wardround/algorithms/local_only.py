"""Every site alone: the baseline that federation has to beat. Nothing is sent in either direction."""

from dataclasses import replace

from wardround.algorithms.algorithm import Algorithm
from wardround.algorithms.fedavg import fedavg


def local() -> Algorithm:
    return replace(
        fedavg(),
        init=lambda params, sites: {},
        init_memory=lambda params: {"params": params},
        broadcast=lambda server, site: {},
        begin=lambda shared, memory: memory["params"],
        finish=lambda params, shared, memory, work: ({}, {"params": params}),
        aggregate=lambda server, mean, share: server,
        personal=True,
        federated=False,
        citation="",
    )
