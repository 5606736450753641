"""The whole heart study as a user runs it: time, and its ratio to the reference engine and to one process.

`python -m benchmarks.study [SEEDS]` measures the reference engine on SEEDS seeds (one, unless given) and takes the rest
to be as long: fifty would take the better part of an hour.
"""

import sys
import tempfile
import time
from pathlib import Path

import wardround

STUDY = "heart-fedprox"


def seconds(folder: Path, seeds: int | None, engine: str, workers: int | None) -> float:
    changes = {} if seeds is None else {"evaluation.seeds.count": seeds}
    began = time.perf_counter()
    wardround.run_study(STUDY, folder, engine=engine, workers=workers, changes=changes, again=True)
    return time.perf_counter() - began


def main(seeds: int = 1) -> None:
    all_seeds = wardround.load_study(STUDY)[0].evaluation.seeds.count
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        fast = seconds(folder, None, "auto", None)
        alone = seconds(folder, None, "auto", 1)
        serial = seconds(folder, seeds, "serial", 1) * all_seeds / seeds
        began = time.perf_counter()
        run = wardround.run_study(STUDY, folder)
        wardround.build_report(run.folder, workers=2)
        report = time.perf_counter() - began
    print(f"{STUDY}, {all_seeds} seeds, without imports")
    print(f"  as it is        {fast:8.1f} s")
    print(f"  one process     {alone:8.1f} s   {alone / fast:6.1f} x")
    print(f"  engine serial   {serial:8.1f} s   {serial / fast:6.1f} x   (from {seeds} seed{'s' if seeds > 1 else ''})")
    print(f"  report          {report:8.1f} s")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
