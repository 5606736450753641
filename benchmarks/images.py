"""Whether memory stays flat as sites grow: the same images at 4 and at 100 sites, each in a process of its own.

`python -m benchmarks.images` prints both peaks and their ratio; `python -m benchmarks.images SITES` is one of them.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.work import peak_megabytes

IMAGES, SIZE = 17_060, 64
SITES = (4, 100)


def run(sites: int) -> dict[str, float]:
    """Two rounds of FedAvg with the chest X-ray study's network, and its predictions and results."""
    import wardround
    from wardround.data.records import Records, Source

    def noise() -> Source:
        """Noise takes as much memory as radiographs, and less time to make."""

        def load() -> Records:
            rng = np.random.default_rng(0)
            images = rng.integers(0, 256, (IMAGES, 1, SIZE, SIZE), dtype=np.uint8)
            target = (rng.random((IMAGES, 14)) < 0.1).astype(np.int64)
            names = tuple(f"finding {number}" for number in range(14))
            return Records(images, target, names, np.full(IMAGES, "bench"), patient=np.arange(IMAGES) // 4)

        return Source(load)

    before = peak_megabytes()
    study = {
        "name": "memory",
        "data": {"source": "noise", "scale": "image"},
        "sites": {"partition": "iid", "count": sites},
        "model": {"kind": "residual"},
        "training": {"rounds": 2, "lr": 0.01, "batch_size": 64},
        "evaluation": {"validation_share": 0.1, "every": 0},
        "arms": [{"algorithm": "fedavg"}],
    }
    with tempfile.TemporaryDirectory() as folder:
        wardround.run_study(study, folder, sources={"noise": noise})
    return {"sites": sites, "before": before, "megabytes": peak_megabytes()}


def main() -> None:
    if len(sys.argv) > 1:
        print("RESULT " + json.dumps(run(int(sys.argv[1]))))
        return
    measurements = []
    for sites in SITES:
        command = [sys.executable, "-m", "benchmarks.images", str(sites)]
        done = subprocess.run(command, cwd=Path(__file__).parents[1], capture_output=True, text=True, check=True)
        measurements.append(json.loads(done.stdout.partition("RESULT ")[2]))
        peak, before = (measurements[-1][name] for name in ("megabytes", "before"))
        print(f"{sites:>4} sites: peak {peak:.0f} MB, {before:.0f} MB of it before data")
    print(
        f"ratio {measurements[1]['megabytes'] / measurements[0]['megabytes']:.2f} "
        f"for {SITES[1] // SITES[0]} times as many sites"
    )


if __name__ == "__main__":
    main()
