"""Where the time of a stacked round goes, by part."""

import cProfile
import pstats
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.ours import trials_of
from benchmarks.work import Work, read_data, write_data
from wardround.engines.stacked.stacked import STACKED

PARTS = {
    "gradient": ("logistic.py", "closed_gradient"),
    "batches": ("lanes.py", "between"),
    "drawing of orders": ("lanes.py", "_draw"),
    "correction": ("fedprox.py", "correct"),
    "optimiser": ("training/optimisers.py", "step"),
    "records": ("stacked.py", "_records"),
}


def profile_stack(work: Work) -> dict[str, float]:
    """Share of each part in the whole, parts below it included."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.npz"
        write_data(work, path)
        _, parts, _, _ = read_data(path)
    trials = trials_of(work, parts)
    watch = cProfile.Profile()
    watch.enable()
    for _ in STACKED.rounds(trials, STACKED.start(trials)):
        pass
    watch.disable()
    stats: Any = pstats.Stats(watch)
    spent = {
        name: sum(
            row[3] for (file, _, function), row in stats.stats.items() if file.endswith(where) and function == what
        )
        for name, (where, what) in PARTS.items()
    }
    whole = stats.total_tt
    return {name: seconds / whole for name, seconds in spent.items()} | {"the rest": 1 - sum(spent.values()) / whole}
