"""Where the time of a stacked round goes, by part."""

import cProfile
import pstats
import tempfile
from pathlib import Path

from benchmarks.ours import trials_of
from benchmarks.work import Work, read_data, write_data
from wardround.engines.stacked import STACKED

PARTS = {
    "gradient": ("logistic.py", "closed_gradient"),
    "batches": ("lanes.py", "batches"),
    "drawing of orders": ("lanes.py", "_draw"),
    "correction": ("fedprox.py", "correct"),
    "optimiser": ("optimisers.py", "step"),
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
    stats = pstats.Stats(watch)
    whole = stats.total_tt  # type: ignore[attr-defined]
    spent = {
        name: sum(
            row[3] for (file, _, function), row in stats.stats.items() if file.endswith(where) and function == what
        )  # type: ignore[attr-defined]
        for name, (where, what) in PARTS.items()
    }
    return {name: seconds / whole for name, seconds in spent.items()} | {"the rest": 1 - sum(spent.values()) / whole}
