"""Our engines on the same rows: trials are made directly, so that engines are timed and nothing else."""

import time
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.loops import Parts
from benchmarks.work import NETWORKS, Work, accuracy
from wardround.algorithms import ALGORITHMS, Algorithm
from wardround.data.site import Rows, Site
from wardround.engines import ENGINES
from wardround.models import Model, Shape, from_module
from wardround.models.logistic import logistic
from wardround.study.schema import Training
from wardround.tasks import class_task, findings_task
from wardround.training.trial import Trial


def model_of(work: Work) -> Model:
    if work.network == "logistic":
        return logistic()(Shape((13,), class_task(2)))
    shape = Shape((1, 28, 28), class_task(10)) if work.network == "cnn" else Shape((1, 64, 64), findings_task(14))
    return from_module(NETWORKS[work.network], shape)


def algorithm_of(work: Work, mu: float) -> Algorithm:
    return ALGORITHMS["fedprox"](mu) if work.mu else ALGORITHMS["fedavg"]()


def trials_of(work: Work, parts: Parts) -> list[Trial]:
    nothing = np.array([], dtype=np.int64)
    sites = tuple(
        Site(f"site-{k:04}", rows, rows, rows, nothing, nothing) for k, rows in enumerate(Rows(x, y) for x, y in parts)
    )
    training = Training(work.rounds, work.epochs, work.batch, work.lr, share=work.share)
    model = model_of(work)
    return [
        Trial(f"mu={mu}", seed, algorithm_of(work, mu), model, training, sites, sites, seed, seed)
        for seed in range(work.seeds)
        for mu in (work.mus or (work.mu,))
    ]


def run(
    kind: str, work: Work, parts: Parts, x_test: torch.Tensor, y_test: torch.Tensor, most: int
) -> dict[str, object]:
    engine: Any = ENGINES[kind]
    trials = trials_of(work, parts)
    if kind == "serial":
        trials = trials[:1]
    seconds, state = [], engine.start(trials)
    steps = engine.rounds(trials, state)
    for _ in range(min(most, work.rounds)):
        began = time.perf_counter()
        state, _records = next(steps)
        seconds.append(time.perf_counter() - began)
    module: nn.Module = NETWORKS[work.network]()
    trained = engine.runs(trials, state)[0].server["params"]
    module.load_state_dict(trained)
    return {"seconds": seconds, "accuracy": accuracy(work, module, x_test, y_test), "runs": len(trials)}
