"""How exact and how dear explanations of a row are: `python -m benchmarks.shapley`.

accuracy    sampled Shapley values of a network with 10 columns against those of all subsets: error and scores, beside
            the packages shap and Captum where they are installed
latency     one row through `predict_rows` with its reasons, as a server answers it
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import torch

from wardround.bundles import EXPLAIN, STEPS, load_bundle, predict_rows
from wardround.core.seeds import generator
from wardround.explain import METHODS, Columns, Scorer
from wardround.models import MODELS, Shape, built
from wardround.runs.execute import run_study
from wardround.runs.interface.quick_comparison import comparison_study
from wardround.tasks import class_task

WIDTH, ROWS, BACKGROUND = 10, 20, 50
Values = Callable[[Scorer, torch.Tensor, torch.Tensor], np.ndarray]


class CountedScorer(Scorer):
    """Counts the rows that a model is asked for."""

    asked = 0

    def outputs(self, x: torch.Tensor) -> torch.Tensor:
        CountedScorer.asked += len(x)
        return super().outputs(x)


def network(width: int) -> CountedScorer:
    rng = generator(1, "weights of a benchmark")
    model = built(MODELS["mlp"](hidden=[16]), Shape((width,), class_task(2)))
    params = {name: torch.from_numpy(rng.normal(size=leaf.shape)) for name, leaf in model.init(0)[0].items()}
    return CountedScorer(model, params, {}, Columns.of([f"c{number}" for number in range(width)]))


def ours(method: str, **settings: Any) -> Values:
    def values(scorer: Scorer, rows: torch.Tensor, background: torch.Tensor) -> np.ndarray:
        rng = generator(2, "draws of a benchmark")
        return METHODS[method](**settings).attribute(scorer, rows, background, rng).values

    return values


def of_shap(kind: str, **settings: Any) -> Values:
    def values(scorer: Scorer, rows: torch.Tensor, background: torch.Tensor) -> np.ndarray:
        import shap

        def score(x: np.ndarray) -> np.ndarray:
            return scorer.values(torch.from_numpy(np.asarray(x, dtype=np.float64)))

        if kind == "kernel":
            kernel = shap.KernelExplainer(score, background.numpy())
            return np.asarray(kernel.shap_values(rows.numpy(), silent=True, **settings))
        masker = shap.maskers.Independent(background.numpy(), max_samples=len(background))
        explainer = shap.explainers.Permutation(score, masker, seed=1)
        return np.asarray(explainer(rows.numpy(), silent=True, **settings).values)

    return values


def of_captum(samples: int) -> Values:
    def values(scorer: Scorer, rows: torch.Tensor, background: torch.Tensor) -> np.ndarray:
        from captum.attr import ShapleyValueSampling

        torch.manual_seed(0)
        with torch.no_grad():
            sampling = ShapleyValueSampling(scorer)
            each = [sampling.attribute(rows, baselines=row[None], n_samples=samples).numpy() for row in background]
        return np.asarray(np.mean(each, axis=0))

    return values


WAYS: dict[str, Values] = {
    "ours, all subsets": ours("exact-shapley"),
    "ours, 100 orders": ours("sampled-shapley"),
    "ours, 200 orders": ours("sampled-shapley", orders=200),
    "shap Permutation, its default": of_shap("permutation"),
    "shap Permutation, 88 masks": of_shap("permutation", max_evals=88),
    "shap Kernel, 88 coalitions": of_shap("kernel", nsamples=88),
    "Captum ShapleyValueSampling, 4 for each": of_captum(4),
}


def accuracy() -> list[dict[str, Any]]:
    scorer, rng = network(WIDTH), generator(3, "rows of a benchmark")
    rows, background = (torch.from_numpy(rng.normal(size=(count, WIDTH))) for count in (ROWS, BACKGROUND))
    exact = WAYS["ours, all subsets"](scorer, rows, background)
    size = float(np.sqrt((exact**2).mean()))
    measured = []
    for name, way in WAYS.items():
        try:
            way(scorer, rows[:1], background)  # imports and compiles
        except ImportError:
            continue
        CountedScorer.asked, began = 0, time.process_time()
        values = way(scorer, rows, background)
        seconds = time.process_time() - began
        error = float(np.sqrt(((values - exact) ** 2).mean()) / size)
        asked = CountedScorer.asked // ROWS
        measured.append({"way": name, "error": error, "scores_per_row": asked, "ms_per_row": 1000 * seconds / ROWS})
    return measured


def latency(kind: str, columns: int, repeats: int) -> dict[str, Any]:
    """Of a bundle that is loaded: the median and the slowest in twenty."""
    rng = generator(4, "patients of a benchmark")
    names = [f"lab_{number:02}" for number in range(columns)]
    tables = {site: pd.DataFrame(rng.normal(size=(300, columns)), columns=names) for site in ("north", "south")}
    for table in tables.values():
        table["died"] = (table["lab_00"] + rng.normal(size=300) > 0).astype(int)
    study = comparison_study(tables, "died")
    study["model"], study["training"]["rounds"] = {"kind": kind}, 2
    run = run_study(study, "runs", again=True)
    bundle = load_bundle(run.model("fedavg", site="north").bundle_.path)
    row, seconds = dict(tables["north"].iloc[0].drop("died")), []
    for _ in range(repeats + 3):
        began = time.perf_counter()
        predict_rows(bundle, [row], None, (*STEPS, EXPLAIN))
        seconds.append(time.perf_counter() - began)
    median, slow = np.quantile(seconds[3:], [0.5, 0.95]).tolist()
    return {"model": kind, "columns": columns, "median_ms": 1000 * median, "p95_ms": 1000 * slow}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=("accuracy", "latency", "all"), nargs="?", default="all")
    parser.add_argument("--repeats", type=int, default=40)
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.part != "latency":
        print(json.dumps(accuracy(), indent=1))
    if given.part != "accuracy":
        shapes = (("linear", 13), ("mlp", 10), ("mlp", 13), ("mlp", 40))
        print(json.dumps([latency(*shape, given.repeats) for shape in shapes], indent=1))


if __name__ == "__main__":
    main()
