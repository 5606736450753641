"""NVFlare's simulator on the same rows, in `.venv-nvflare`: `python -m benchmarks.nvflare MOST_ROUNDS`.

The same file is the clients' training script, which NVFlare starts by its path with the word `client`.
"""

import json
import os
import re
import sys
import tempfile
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

DATA = Path(os.environ.get("BENCH_DATA", ""))
STAMP = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})")


def client() -> None:
    import nvflare.client as flare
    import torch

    from benchmarks.work import network, read_data, train_as_people_do

    work, parts, _, _ = read_data(DATA)
    flare.init()
    x, y = parts[int(flare.get_site_name().split("-")[1]) - 1]
    module = network(work)
    while flare.is_running():
        received = flare.receive()
        if received is None:
            break
        module.load_state_dict({name: torch.as_tensor(leaf) for name, leaf in received.params.items()})
        train_as_people_do(work, module, x, y)
        flare.send(flare.FLModel(params=module.state_dict(), meta={"NUM_STEPS_CURRENT_ROUND": len(y)}))


def round_ends(log: Path) -> list[float]:
    """When rounds ended, from the server's own log: the last time seen before a round begins or all is finished."""
    ends, last = [], 0.0
    for line in log.read_text(errors="replace").splitlines():
        if stamp := STAMP.match(line):
            last = datetime.strptime(stamp[1], "%Y-%m-%d %H:%M:%S,%f").timestamp()
        if re.search(r"Round \d+ started|Finished FedAvg", line):
            ends.append(last)
    return ends


def main() -> None:
    import torch
    from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
    from nvflare.recipe import SimEnv

    from benchmarks.work import accuracy, network, peak_megabytes, read_data

    work, parts, x_test, y_test = read_data(DATA)
    rounds = min(work.rounds, int(sys.argv[1]))
    with tempfile.TemporaryDirectory() as folder:
        settings: dict[str, Any] = {"model": network(work), "num_rounds": rounds, "train_args": "client"}
        recipe = FedAvgRecipe(name="bench", min_clients=len(parts), train_script=__file__, **settings)
        recipe.execute(SimEnv(num_clients=len(parts), workspace_root=folder))
        ends = round_ends(Path(folder) / "bench" / "server" / "log.txt")
        (saved,) = Path(folder).glob("bench/**/FL_global_model.pt")
        weights = torch.load(saved, weights_only=False)  # written a moment ago by NVFlare itself
    module = network(work)
    module.load_state_dict({name: torch.as_tensor(leaf) for name, leaf in weights.get("model", weights).items()})
    figures = {
        "seconds": [after - before for before, after in pairwise(ends)],
        "accuracy": accuracy(work, module, x_test, y_test),
        "megabytes": peak_megabytes(),
    }
    sys.stdout.write("RESULT " + json.dumps(figures) + "\n")


if __name__ == "__main__":
    client() if sys.argv[1:] == ["client"] else main()
