"""Algorithms by the name that a study gives. A factory's signature is the list of the algorithm's settings."""

from collections.abc import Callable

from wardround.algorithms.algorithm import Algorithm, Arrival, Work
from wardround.algorithms.clustered import clustered
from wardround.algorithms.fairness.afl import afl
from wardround.algorithms.fairness.ditto import ditto
from wardround.algorithms.fairness.qfedavg import qfedavg
from wardround.algorithms.fairness.reptile import reptile
from wardround.algorithms.fedavg import fedavg
from wardround.algorithms.fednova import fednova
from wardround.algorithms.fedopt import fedadagrad, fedadam, fedyogi
from wardround.algorithms.fedprox import fedprox
from wardround.algorithms.fedprox_adaptive import fedprox_adaptive
from wardround.algorithms.local_only import local
from wardround.algorithms.pooled import pooled
from wardround.algorithms.scaffold import scaffold
from wardround.algorithms.split import split

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {
    "fedavg": fedavg,
    "fedprox": fedprox,
    "fedprox-adaptive": fedprox_adaptive,
    "scaffold": scaffold,
    "fednova": fednova,
    "fedadam": fedadam,
    "fedyogi": fedyogi,
    "fedadagrad": fedadagrad,
    "clustered": clustered,
    "qfedavg": qfedavg,
    "afl": afl,
    "ditto": ditto,
    "reptile": reptile,
    "local": local,
    "pooled": pooled,
    "split": split,
}

__all__ = ["ALGORITHMS", "Algorithm", "Arrival", "Work"]
