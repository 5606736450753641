"""Whether memory stays flat with regions: 50 sites of a network of a million weights, flat and in 5 regions.

`python -m benchmarks.hierarchical` prints the peak of both, what their rounds added to it in sizes of the model, and
the seconds of a round; `python -m benchmarks.hierarchical flat` or `regions` is one of them. To hold every site's
update would take 50 models more; regions take a model and a sum each.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.work import peak_megabytes

SITES, REGIONS, ROUNDS = 50, 5, 4
KINDS = ("flat", "regions")


def study(kind: str) -> dict[str, Any]:
    regions = {f"r{n}": [f"site-?{n}", f"site-?{n + REGIONS}"] for n in range(REGIONS)}
    topology = {"kind": "hierarchical", "regional_rounds": 2, "regions": regions}
    return {
        "name": f"memory-{kind}",
        "data": {"source": "synthetic", "count": SITES, "features": 500, "classes": 2, "largest": 60},
        "model": {"kind": "mlp", "hidden": [1000, 500]},  # 500 x 1000 + 1000 x 500 weights and some
        "training": {"rounds": ROUNDS, "lr": 0.01, "batch_size": 32},
        **({"topology": topology} if kind == "regions" else {}),
        "arms": [{"algorithm": "fedavg"}],
    }


def run(kind: str) -> dict[str, float]:
    """All rounds of FedAvg, one site after another."""
    from wardround import load_plan, load_study
    from wardround.engines.serial import SERIAL

    plan = load_plan(*load_study(study(kind)))
    trials = [plan.trial(plan.study.arms[0], plan.study.evaluation.seeds.first)]
    state = SERIAL.start(trials)
    before, began = peak_megabytes(), time.perf_counter()
    for _ in SERIAL.rounds(trials, state):
        pass
    seconds = (time.perf_counter() - began) / ROUNDS
    model = 4 * trials[0].model.size / 2**20
    return {"before": before, "megabytes": peak_megabytes(), "model": model, "seconds": seconds}


def main() -> None:
    if len(sys.argv) > 1:
        print("RESULT " + json.dumps(run(sys.argv[1])))
        return
    measurements = {}
    for kind in KINDS:
        command = [sys.executable, "-m", "benchmarks.hierarchical", kind]
        done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True)
        measurements[kind] = measurement = json.loads(done.stdout.partition("RESULT ")[2])
        added = (measurement["megabytes"] - measurement["before"]) / measurement["model"]
        print(
            f"{kind:>8}: peak {measurement['megabytes']:.0f} MB, {added:.1f} models more than before the rounds; ",
            end="",
        )
        print(f"{measurement['seconds']:.2f} s a round")
    flat, regions = (measurements[kind] for kind in KINDS)
    more = (regions["megabytes"] - flat["megabytes"]) / flat["model"]
    print(
        f"ratio {regions['megabytes'] / flat['megabytes']:.2f} of memory, {more:+.1f} models of {flat['model']:.1f} MB;"
    )
    print(f"ratio {regions['seconds'] / flat['seconds']:.2f} of time")


if __name__ == "__main__":
    main()
