"""pfl-research's simulation on the same rows, in `.venv-pfl`: `python -m benchmarks.pfl MOST_ROUNDS`."""

import json
import os
import sys
import time
from itertools import pairwise
from pathlib import Path
from types import MethodType
from typing import Any


def main() -> None:
    import numpy as np
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.algorithm.fedprox import FedProx, FedProxParams
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    from benchmarks.work import accuracy, loss_of, network, peak_megabytes, read_data

    work, parts, x_test, y_test = read_data(Path(os.environ["BENCH_DATA"]))
    rounds = min(work.rounds, int(sys.argv[1]))
    np.random.seed(0)  # noqa: NPY002 (pfl draws from it)
    module = network(work)
    marks = [time.perf_counter()]

    def loss(self: Any, x: Any, y: Any, eval: bool = False) -> Any:  # noqa: A002 (pfl's name)
        return loss_of(work, self(x), y)

    def metrics(self: Any, x: Any, y: Any, eval: bool = False) -> Any:  # noqa: A002
        return {"loss": Weighted(float(loss_of(work, self(x), y)) * len(y), len(y))}

    module.loss, module.metrics = MethodType(loss, module), MethodType(metrics, module)  # type: ignore[assignment]

    class Mark(TrainingProcessCallback):  # type: ignore[misc, valid-type]
        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            marks.append(time.perf_counter())
            return False, Metrics()

    def site(number: int) -> Any:
        x, y = parts[number]
        order = torch.randperm(len(y))
        return Dataset(raw_data=[x[order], y[order]], user_id=str(number))

    sampler = get_user_sampler("minimize_reuse" if work.share == 1 else "random", range(len(parts)))
    data = FederatedDataset(site, sampler)
    shared: dict[str, Any] = {
        "central_num_iterations": rounds,
        "evaluation_frequency": 10**6,
        "train_cohort_size": round(work.share * len(parts)),
        "val_cohort_size": 0,
    }
    algorithm = FedProx() if work.mu else FederatedAveraging()
    params = FedProxParams(mu=work.mu, **shared) if work.mu else NNAlgorithmParams(**shared)
    algorithm.run(
        algorithm_params=params,
        backend=SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
        model=PyTorchModel(
            module,
            local_optimizer_create=torch.optim.SGD,
            central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
        ),
        model_train_params=NNTrainHyperParams(
            local_num_epochs=work.epochs, local_learning_rate=work.lr, local_batch_size=work.batch
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[Mark()],
    )
    figures = {
        "seconds": [after - before for before, after in pairwise(marks)],
        "accuracy": accuracy(work, module, x_test, y_test),
        "megabytes": peak_megabytes(),
    }
    sys.stdout.write("RESULT " + json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
