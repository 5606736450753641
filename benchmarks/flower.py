"""Flower's simulation on the same rows, in `.venv-flower`: `python -m benchmarks.flower MOST_ROUNDS`."""

import os
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
os.environ.setdefault("FLWR_DISABLE_UPDATE_CHECK", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

DATA = Path(os.environ.get("BENCH_DATA", ""))
_READ: dict[str, Any] = {}


def client() -> Any:
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        from benchmarks.work import network, read_data, train_as_people_do

        if "data" not in _READ:  # each worker reads once
            _READ["data"] = read_data(DATA)
        work, parts, _, _ = _READ["data"]
        x, y = parts[int(context.node_config["partition-id"])]
        module = network(work)
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        train_as_people_do(work, module, x, y)
        content = {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
        return Message(content=RecordDict(content), reply_to=message)

    return app


def main() -> None:
    import json

    from flwr.app import ArrayRecord, Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    from benchmarks.work import accuracy, network, peak_megabytes, read_data

    work, parts, x_test, y_test = read_data(DATA)
    rounds = min(work.rounds, int(sys.argv[1]))
    marks: list[float] = []
    trained: dict[str, Any] = {}
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_train=work.share, fraction_evaluate=0.0, min_available_nodes=len(parts))

        def mark(round_number: int, arrays: Any) -> None:
            marks.append(time.perf_counter())

        arrays = ArrayRecord(network(work).state_dict())
        result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=rounds, evaluate_fn=mark)
        trained.update(result.arrays.to_torch_state_dict())

    resources = {"num_cpus": 1, "num_gpus": 0.0}  # two workers on two processors, the fastest setting that we found
    backend = {"init_args": {"_node_ip_address": "127.0.0.1"}, "client_resources": resources}
    run_simulation(server_app=server, client_app=client(), num_supernodes=len(parts), backend_config=backend)
    module = network(work)
    module.load_state_dict(trained)
    seconds = [after - before for before, after in pairwise(marks)]
    figures = {"seconds": seconds, "accuracy": accuracy(work, module, x_test, y_test), "megabytes": peak_megabytes()}
    sys.stdout.write("RESULT " + json.dumps(figures) + "\n")


if __name__ == "__main__":
    main()
