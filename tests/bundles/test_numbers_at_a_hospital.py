"""Bundles of numbers at hospitals of a deployed run: those of a simulation, with the scale that all agreed on."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.deployment import number_hospitals
from tests.deployment.in_process_federation import OpenGate, own_records
from tests.deployment.parity import KNOWN, Both, deploy
from wardround.bundles import load_bundle, make_bundle, predict_table
from wardround.core.errors import RunError
from wardround.data.records import Column, Records
from wardround.deployment.flat.site_bundle import bundle_of
from wardround.deployment.flat.site_session import Session
from wardround.runs.catalog import load_study
from wardround.runs.execute import run_study

EVALUATION = {"seeds": {"first": 3, "count": 1}, "validation_share": 0.2, "test_share": 0.3}


def document(kind: str) -> dict[str, Any]:
    return number_hospitals.study(kind, ["fedavg"], evaluation=EVALUATION)


@pytest.fixture(scope="module", params=["regression", "count", "fitted"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Both]:
    kind = str(request.param)
    folder = tmp_path_factory.mktemp(kind)
    return kind, deploy(document(kind), folder, number_hospitals.at_sites(kind))


def session_of(both: tuple[str, Both], site: str, change: Any = lambda records: records) -> Session:
    kind, deployed = both
    study, families = load_study(document(kind), sources=KNOWN)
    source = number_hospitals.at_sites(kind)[site]

    def load() -> Records:
        records: Records = change(own_records(source(), site))
        return records

    return Session.restore(site, deployed.site_folder(site), OpenGate(study), families, load)


def test_a_hospital_makes_the_bundle_of_a_simulation(both: tuple[str, Both], tmp_path: Path) -> None:
    kind, _ = both
    here = load_bundle(bundle_of(session_of(both, "alder"), arm="fedavg", out=tmp_path / "here"))
    run = run_study(
        {**document(kind), "sites": {"partition": "by-hospital"}}, tmp_path / "runs", sources=KNOWN, engine="serial"
    )
    there = load_bundle(make_bundle(run.folder, arm="fedavg", site="alder", out=tmp_path / "there", sources=KNOWN))
    assert here.task == there.task
    assert here.scale == pytest.approx(there.scale, rel=1e-12)
    assert (here.path / "weights.safetensors").read_bytes() == (there.path / "weights.safetensors").read_bytes()
    assert here.about["rows"] == there.about["rows"]
    table = there_rows(there.recipe.columns)
    mine, theirs = predict_table(here, table), predict_table(there, table)
    pd.testing.assert_frame_equal(mine, theirs, rtol=1e-9)
    assert mine["predicted"].notna().all()
    card = (here.path / "card.md").read_text()
    assert "across hospitals" in card
    assert "all sites" not in card


def there_rows(columns: Sequence[Column]) -> pd.DataFrame:
    values = {column.own_name: [50.0, 70.0] if column.kind == "numeric" else [None, None] for column in columns}
    return pd.DataFrame({**values, "months": [6.0, 12.0]})


def test_a_file_with_another_outcome_is_refused(both: tuple[str, Both], tmp_path: Path) -> None:
    def changed(records: Records) -> Records:
        return replace(records, target=records.target + 1)

    with pytest.raises(RunError, match="its rows are not those of the run"):
        bundle_of(session_of(both, "alder", changed), arm="fedavg", out=tmp_path / "b")
