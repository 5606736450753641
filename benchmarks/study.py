"""The whole heart study as a user runs it: against another revision, or its parts on this one.

`python -m benchmarks.study --against REVISION [--repeats 3] [--study heart-fedprox]` runs the command `wardround run`,
imports and report included, by this tree and by that revision of it, one after the other and again, so that both have
the machine's good and bad minutes. The revision is checked out beside this tree and removed again; both use this
environment, and both are compiled beforehand, as whatever ran once is. Processor time is that of all processes; on a
machine that does other work too it says more than seconds.

`python -m benchmarks.study [SEEDS]` compares the engines in one process. It measures the reference engine on SEEDS
seeds (one, unless given) and takes the rest to be as long: fifty would take the better part of an hour.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
STUDY = "heart-fedprox"
COMMAND = "from wardround.cli.main import main; main()"


class Taken(NamedTuple):
    seconds: float
    processor: float  # of all processes


def seconds(folder: Path, seeds: int | None, engine: str, workers: int | None) -> float:
    import wardround

    changes = {} if seeds is None else {"evaluation.seeds.count": seeds}
    began = time.perf_counter()
    wardround.run_study(STUDY, folder, engine=engine, workers=workers, changes=changes, again=True)
    return time.perf_counter() - began


def engines(seeds: int) -> None:
    import wardround

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


@contextmanager
def checked_out(revision: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        tree = Path(name) / "tree"
        subprocess.run(["git", "worktree", "add", "--quiet", "--detach", str(tree), revision], cwd=ROOT, check=True)
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, check=True)


def whole_command(tree: Path, study: str) -> Taken:
    """`wardround run STUDY` by the sources in `tree`, into a folder that is removed."""
    compiled = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as out:
        before, began = _processor(), time.perf_counter()
        subprocess.run(
            [sys.executable, "-c", COMMAND, "run", study, "--out", out],
            env={**compiled, "PYTHONPATH": str(tree / "src")},
            cwd=out,
            check=True,
            capture_output=True,
        )
        return Taken(time.perf_counter() - began, _processor() - before)


def _processor() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def against(revision: str, study: str, repeats: int) -> None:
    print(f"wardround run {study}, imports and report included, in turns")
    with checked_out(revision) as other:
        trees, taken = {revision: other, "this tree": ROOT}, dict[str, list[Taken]]()
        for tree in trees.values():
            subprocess.run([sys.executable, "-m", "compileall", "-q", str(tree / "src")], check=True)
        for number in range(repeats):
            for name, tree in trees.items():
                taken.setdefault(name, []).append(whole_command(tree, study))
                last = taken[name][-1]
                print(
                    f"  {number + 1}  {name:12} {last.seconds:6.1f} s {last.processor:6.1f} s of processors", flush=True
                )
    middle = {name: [statistics.median(column) for column in zip(*runs, strict=True)] for name, runs in taken.items()}
    for name, (wall, processor) in middle.items():
        print(f"  median {name:10} {wall:6.1f} s {processor:6.1f} s of processors")
    ratios = [old / new for old, new in zip(middle[revision], middle["this tree"], strict=True)]
    print(f"  {revision} takes {ratios[0]:.2f} times the seconds, {ratios[1]:.2f} times the processor time")


def is_known(revision: str) -> bool:
    """A copy without the project's history has no earlier revision."""
    found = subprocess.run(["git", "cat-file", "-e", f"{revision}^{{commit}}"], cwd=ROOT, capture_output=True)
    return found.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seeds", nargs="?", type=int, default=1)
    parser.add_argument("--against", metavar="REVISION")
    parser.add_argument("--study", default=STUDY)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    if options.against and not is_known(options.against):
        print(f"there is no revision {options.against} here to compare with")
    elif options.against:
        against(options.against, options.study, options.repeats)
    else:
        engines(options.seeds)


if __name__ == "__main__":
    main()
