"""Differential privacy and a secure sum between real processes: what `wardround demo --private` shows."""

from pathlib import Path

import pytest

from wardround.deployment import deployed_folder, run_demo
from wardround.deployment.demo import PRIVATE
from wardround.runs.catalog import load_study
from wardround.runs.ledger import Ledger


@pytest.mark.slow
def test_four_processes_with_noise_and_masks(tmp_path: Path) -> None:
    """Each hospital's own ledger and the coordinator's say the same; no secret is left; no round was lost."""
    demo = run_demo(tmp_path / "demo", lambda line: None, private=True)
    assert demo.parity is None
    assert [row.site for row in demo.spent] == list(demo.sites)
    assert all(1.9 < row.add_remove <= 2.0 and row.guarantee and row.rounds == 5 for row in demo.spent)
    folder = deployed_folder(load_study(PRIVATE)[0], tmp_path / "demo" / "runs")
    records = folder.records()
    assert records["sites"].map(len).tolist() == [4] * 5
    assert (records["failed"] == "").all()
    assert records["loss"].isna().all()
    theirs = {row.site: row.add_remove for row in Ledger(folder.path / "ledger.jsonl").spent()}
    assert theirs == pytest.approx({row.site: row.add_remove for row in demo.spent}, rel=1e-4)
    assert not list(tmp_path.rglob("secret"))
