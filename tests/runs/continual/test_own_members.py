"""Studies with a caller's own model and source go on as shipped ones do."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from torch import nn

from tests.runs.continual.chained_studies import refusal, run
from wardround.core.settings import Count
from wardround.data.records import Column, Records
from wardround.data.sources import Source
from wardround.models import Model, ModelBuilder, Shape, from_module


def narrow(width: Count = 3) -> ModelBuilder:
    def build(shape: Shape) -> Model:
        return from_module(
            lambda: nn.Sequential(nn.Linear(shape.inputs[0], width), nn.Tanh(), nn.Linear(width, shape.outputs)), shape
        )

    return build


def clinic(first: int = 0) -> Source:
    def load() -> Records:
        rng = np.random.default_rng(first)
        table = pd.DataFrame({"x": rng.normal(size=160), "y": rng.normal(size=160)})
        label = (table["x"].to_numpy() + rng.normal(size=160) > 0).astype(np.int64)
        hospital = np.repeat(np.array([f"h{first}", f"h{first + 1}"], dtype=object), 80)
        return Records(table, label, ("no", "yes"), hospital, (Column("x"), Column("y")))

    return Source(load)


def test_they_start_and_forget(tmp_path: Path) -> None:
    members: dict[str, Any] = {"models": {"narrow": narrow}, "sources": {"clinic": clinic}}

    def document(name: str, first: int, **model: Any) -> dict[str, Any]:
        return {
            "name": name,
            "data": {"source": "clinic", "first": first},
            "model": {"kind": "narrow", **model},
            "training": {"rounds": 3},
            "evaluation": {"seeds": {"first": 1, "count": 2}},
            "arms": [{"algorithm": "fedavg"}],
        }

    old = run(document("old", 0), tmp_path, **members)
    start = {"run": str(old.folder), "arm": "fedavg"}
    later = run(document("later", 2, start_from=start), tmp_path, **members)
    assert set(later.results["start_from"]["fedavg"]["forgetting"]["sites"]) == {"h0", "h1"}
    wide = document("wide", 2, width=4, start_from=start)
    assert "width is 3 there and 4 here" in refusal(lambda: run(wide, tmp_path, **members))
