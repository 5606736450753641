"""The shipped study of ECGs, at a size for a test."""

from pathlib import Path
from typing import Any

import pytest

from wardround.core.threads import torch_threads
from wardround.report import read_evidence
from wardround.report.render.signal_traces import traces
from wardround.runs.execute import run_study
from wardround.runs.folder import RunFolder


def test_its_arms_are_compared_on_the_same_test_rows(tmp_path: Path) -> None:
    """Networks and summary features: other numbers of the same patients. And it is called synthetic."""
    changes: dict[str, Any] = {"data.rows": 240, "data.seconds": 4, "data.rate": 50, "training.rounds": 1}
    changes |= {"model.widths": [4, 8], "evaluation.seeds.count": 1, "evaluation.every": 0}
    with torch_threads(1):
        run = run_study("ecg-rhythms", tmp_path, changes=changes, workers=1)
    tests = run.results["tests"]
    assert {test["arm"] for test in tests} >= {"local", "fedavg", "fedprox", "pooled"}
    assert {test["reference"] for test in tests} == {"summary-logistic"}
    assert "Synthetic data: made by a program" in run.report().read_text()
    drawn = traces(read_evidence(RunFolder(run.folder)))
    assert drawn is not None
    assert [text.get_text() for text in drawn.texts] == [
        "SYNTHETIC: no patient",
        *sorted(run.results["sites"][0]["sites"]),
    ]
    assert len(drawn.axes) == 4 * 3


@pytest.mark.slow
def test_a_federated_network_beats_summary_features(tmp_path: Path) -> None:
    """At the quick size, the whole interval of the difference in AUC is above zero."""
    results = run_study("ecg-rhythms", tmp_path, quick=True, workers=1).results
    for arm in ("fedavg", "fedprox"):
        (test,) = [t for t in results["tests"] if t["arm"] == arm and t["metric"].startswith("auc")][:1]
        assert test["interval"][0] > 0, (arm, test)
