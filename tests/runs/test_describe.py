"""How different sites are said to be: feature distances are of columns that all of them record."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import wardround
from wardround.cli.main import app
from wardround.runs.plan import load_plan
from wardround.runs.site_descriptions import describe_sites

ROWS = 120


def study_of(folder: Path, north: dict[str, Any], south: dict[str, Any], **data: Any) -> dict[str, Any]:
    died = ["yes", "no"] * (ROWS // 2)
    for name, columns in {"north": north, "south": south}.items():
        pd.DataFrame({**columns, "died": died}).to_csv(folder / f"{name}.csv", index=False)
    files = {name: str(folder / f"{name}.csv") for name in ("north", "south")}
    return {
        "name": "described",
        "data": {"source": "csv", "files": files, "target": "died", "columns": "own", "schema": "own", **data},
        "model": {"kind": "adapter" if data.get("schema", "own") == "own" else "logistic"},
        "training": {"rounds": 2},
        "arms": [{"algorithm": "fedavg"}],
    }


def described(study: dict[str, Any]) -> dict[str, Any]:
    (description,) = describe_sites(load_plan(*wardround.load_study(study)))
    return description


def numbers(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(50, 10, ROWS).round(3)


@pytest.mark.parametrize(("columns", "schema"), [("own", "own"), ("all", "all")])
def test_columns_of_their_own_do_not_move_sites_apart(tmp_path: Path, columns: str, schema: str) -> None:
    """What one hospital alone records says nothing of how far it is from the others: the distance is that of `x`."""
    x, y = numbers(0), numbers(1)
    north, south = {"x": x, "a": numbers(2)}, {"x": y, "b": numbers(3), "c": numbers(4)}
    both = described(study_of(tmp_path, north, south, columns=columns, schema=schema))
    alone = described(study_of(tmp_path, {"x": x}, {"x": y}, columns="same", schema="all"))
    assert both["heterogeneity"]["mmd"] == pytest.approx(alone["heterogeneity"]["mmd"], abs=0)
    assert both["heterogeneity"]["mmd"] > 0


def test_without_a_common_column_there_is_no_distance_and_nothing_is_made_up(tmp_path: Path) -> None:
    study = study_of(tmp_path, {"a": numbers(2)}, {"b": numbers(3), "a b": ["u", "v"] * (ROWS // 2)})
    description = described(study)
    assert description["heterogeneity"]["mmd"] is None
    assert [pair["mmd"] for pair in description["heterogeneity"]["pairs"]] == [None]
    assert description["heterogeneity"]["js"] == 0.0
    assert description["features"] == ["a", "b", "a b=v"]  # each hospital's own


@pytest.mark.slow
def test_a_run_without_a_common_column_is_reported_without_the_distance(tmp_path: Path) -> None:
    run = wardround.run_study(study_of(tmp_path, {"a": numbers(2)}, {"b": numbers(3)}), tmp_path / "runs")
    result = CliRunner().invoke(app, ["report", str(run.folder)])
    assert result.exit_code == 0, result.output
    report = (run.folder / "report.html").read_text(encoding="utf-8")
    assert "Jensen-Shannon divergence of the labels" in report
    assert "MMD of the features" not in report


def test_with_the_same_columns_the_features_are_those_of_the_common_layout(tmp_path: Path) -> None:
    description = described(study_of(tmp_path, {"x": numbers(0)}, {"x": numbers(1)}, columns="same", schema="all"))
    assert description["features"] == ["x"]
