"""`python -m benchmarks.adaptation [--repeats 20] [--epochs N] [--json FILE]`: each heart hospital as a newcomer.

The other three train a shared part, each with the columns that it really records; the fourth adapts to it, and trains
alone for comparison, with 10 to 100 % of its training rows.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from wardround import adapt, make_shared, run_study

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
NOT_RECORDED = {
    "hungarian": ["slope", "ca", "thal"],
    "switzerland": ["chol", "fbs", "ca"],
    "va": ["slope", "ca", "thal"],
}
METRICS = ("auc", "accuracy", "brier")


def study(hospitals: list[str]) -> dict[str, Any]:
    absent = {name: columns for name, columns in NOT_RECORDED.items() if name in hospitals}
    return {
        "name": f"without-{next(name for name in HOSPITALS if name not in hospitals)}",
        "data": {"source": "heart", "hospitals": hospitals, "schema": "own", "not_recorded": absent},
        "model": {"kind": "adapter", "latent": 16, "hidden": [32]},
        "training": {"rounds": 40, "local_epochs": 2, "batch_size": 32, "lr": 0.05},
        "evaluation": {"validation_share": 0.2, "seeds": {"first": 42, "count": 1}, "every": 0},
        "arms": [{"name": "fedprox", "algorithm": "fedprox", "mu": 0.1}],
    }


def newcomer(name: str, folder: Path, repeats: int, epochs: int | None) -> tuple[dict[str, Any], float]:
    """The content of adapt.json, and the seconds that adapting took."""
    run = run_study(study([other for other in HOSPITALS if other != name]), folder / "runs")
    shared = make_shared(run.folder, arm="fedprox", out=folder / f"shared-{name}")
    file = folder / f"{name}.toml"
    file.write_text(f'name = "{name}"\n\n[data]\nsource = "heart"\nhospitals = ["{name}"]\n', encoding="utf-8")
    began = time.perf_counter()
    adaptation = adapt(shared, file, out=folder / f"adapted-{name}", repeats=repeats, epochs=epochs)
    return dict(adaptation.results), time.perf_counter() - began


def lines(results: dict[str, Any]) -> list[list[str]]:
    rows = []
    for entry in results["fractions"]:
        line = [results["hospital"], f"{100 * entry['fraction']:.0f} %", f"{entry['rows']['mean']:.0f}"]
        for metric in METRICS:
            low, high = entry["difference"][metric]["interval"]
            line.append(f"{entry['adapted'][metric]['mean']:.3f} / {entry['alone'][metric]['mean']:.3f}")
            line.append(f"{entry['difference'][metric]['difference']:+.3f} ({low:+.3f} to {high:+.3f})")
        rows.append(line)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    out = Console(width=160, highlight=False)
    table = Table(title="adapted / alone, and the difference with its 95 % interval")
    for name in ("newcomer", "rows", "", *(word for metric in METRICS for word in (metric, "difference"))):
        table.add_column(name, justify="right")
    everything = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in HOSPITALS:
            results, seconds = newcomer(name, Path(folder), asked.repeats, asked.epochs)
            everything[name] = results
            for line in lines(results):
                table.add_row(*line)
            table.add_section()
            out.print(f"{name}: {results['epochs']} epochs, {len(results['seeds'])} repeats, {seconds:.0f} s")
            for left in results["left_out"]:
                out.print(f"{name}: {100 * left['fraction']:.0f} % left out: {left['why']}")
    out.print(table)
    if asked.json is not None:
        asked.json.write_text(json.dumps(everything, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
