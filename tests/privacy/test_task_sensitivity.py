"""Differential privacy of every task: no patient moves the clipped sum by more than the clip, whatever the number is;
gradients that are written out are those of autograd; numbers need a public range; and sums stay secret."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.contract.test_tasks import EXAMPLES, model_of, sites_of
from tests.data.number_hospitals import COUNT, hospitals, notices_of, study_of
from tests.privacy.reference_gradients import Batch, clipped_by_hand, length_of, params_of
from tests.representatives import represented
from wardround.core.errors import StudyError
from wardround.core.threads import torch_threads
from wardround.privacy.dp.example_dp import BELOW, clipped_sum
from wardround.runs.execute import run_study
from wardround.tasks import Task

PEOPLE = [0, 1, 1, 2, 3, 3, 3, 4, 5, 6, 6, 7, 8, 9, 9, 9, 9, 10, 11, 12, 13, 13, 14]  # some have several rows
CASES = [(name, model) for name in EXAMPLES for model in ("linear", "mlp")]
OFTEN = [case for case in CASES if case[1] == "linear"]
CLIP = 0.05


def batch_of(task: Task, extreme: bool) -> Batch:
    """With `extreme`, one patient's number is far beyond everything, and so are some features."""
    rows = sites_of(task, sizes=(len(PEOPLE), len(PEOPLE)))[0].train
    x, y = (values.clone() for values in rows.everything(torch.float64))
    if extreme:
        x[5] *= 20.0
        if task.answers == "number":
            y[5, 0] = 1e6
    return Batch(x, y, {}, torch.tensor(PEOPLE))


@pytest.mark.parametrize(("example", "model_name"), represented(CASES, by=OFTEN))
@pytest.mark.parametrize("extreme", [False, True])
def test_no_patient_moves_the_sum_by_more_than_the_clip(example: str, model_name: str, extreme: bool) -> None:
    task = EXAMPLES[example]
    model, batch = model_of(task, model_name), batch_of(task, extreme)
    params = {name: leaf + 0.05 for name, leaf in params_of(model).items()}

    def summed(some: Batch) -> dict[str, torch.Tensor]:
        return clipped_sum(model, params, some.x, some.y, some.masks, some.people, CLIP)[0]

    with torch_threads(1):
        whole = summed(batch)
        by_hand = clipped_by_hand(model, params, batch, CLIP * BELOW)
        for name, leaf in whole.items():
            torch.testing.assert_close(leaf, by_hand[name], rtol=1e-6, atol=1e-9)
        for patient in sorted(set(PEOPLE)):
            rest = summed(batch.without(patient))
            assert length_of({name: leaf - rest[name] for name, leaf in whole.items()}) <= CLIP * (1 + 1e-12), patient


PRIVATE: dict[str, Any] = {"privacy": {"example": {"epsilon": 5.0, "delta": 1e-4, "clip": 0.5}}}
PUBLIC: dict[str, Any] = {
    "public": True,
    "scale": "ranges",
    "missing": "drop",
    "ranges": {"age": [0, 120], "crp": [0, 500]},
}


@pytest.mark.parametrize("target", ["stay", "admissions"])
def test_a_number_is_private_with_a_public_range_and_refused_without(target: str, tmp_path: Path) -> None:
    other = "admissions" if target == "stay" else "stay"
    unused = {"types": {other: "ignore", **({"months": "ignore"} if target == "stay" else {})}}
    data = {**PUBLIC, **unused, **(COUNT if target == "admissions" else {})}
    with pytest.raises(StudyError, match="would be read off patients' rows without noise") as refused:
        notices_of(study_of(tmp_path, hospitals(), data, **PRIVATE))
    assert "public range" in refused.value.remedy
    ranges = {**PUBLIC["ranges"], target: [0, 60]}
    study = study_of(tmp_path, hospitals(), {**data, "ranges": ranges}, **PRIVATE)
    run = run_study(study, tmp_path / "runs")
    figures = run.results["arms"]["fedavg"]["metrics"]["mae"]
    assert np.isfinite(figures["mean"])


def test_a_secure_sum_of_a_number_is_the_plain_sum(tmp_path: Path) -> None:
    """To the digits of its fixed point."""
    figures: dict[str, Any] = {}
    privacy: dict[str, dict[str, Any]] = {"plain": {}, "secret": {"privacy": {"secure_sum": {}}}}
    for name, sections in privacy.items():
        study = study_of(tmp_path, hospitals(), None, **sections)
        run = run_study(study, tmp_path / name)
        figures[name] = run.results["arms"]["fedavg"]["metrics"]
    for metric in ("mae", "rmse", "r2"):
        assert figures["secret"][metric]["mean"] == pytest.approx(figures["plain"][metric]["mean"], rel=1e-4)
