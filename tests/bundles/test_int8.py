"""Models with weights of eight bits: what they lose, what is refused, and what of a patient is in the file."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.numpy_helper import to_array

from wardround.bundles import FinishedRun, Int8, bundle_from, load_bundle
from wardround.bundles.build import int8 as module
from wardround.bundles.build.int8 import RESAMPLES, Scored, loss_of, rounded_outwards
from wardround.bundles.build.run_inputs import LabelledRows
from wardround.bundles.sealed_files import INT8, INT8_REPORT
from wardround.core.errors import BundleError, StudyError
from wardround.tasks.class_metrics import auc

SITE = "hungarian"
onnxruntime = pytest.importorskip("onnxruntime")


def made(finished: FinishedRun, out: Path, kind: Any, most_loss: float = 0.05, arm: str = "network") -> dict[str, Any]:
    bundle_from(finished, arm=arm, site=SITE, out=out, int8=Int8(kind, most_loss))
    return dict(json.loads((out / INT8_REPORT).read_bytes()))


@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_the_file_scores_by_itself_what_is_reported(kind: str, finished: FinishedRun, tmp_path: Path) -> None:
    report = made(finished, tmp_path / "bundle", kind)
    bundle = load_bundle(tmp_path / "bundle")
    model = onnx.load(tmp_path / "bundle" / INT8)
    assert {prop.key: prop.value for prop in model.metadata_props}["wardround.int8"] == kind
    assert any(to_array(part).dtype == np.int8 for part in model.graph.initializer)
    assert report["bytes"]["int8"] == (tmp_path / "bundle" / INT8).stat().st_size
    plan = finished.plan
    [site] = [s for s in plan.trial(plan.study.arm("network"), 1).scored if s.name == SITE]
    session = onnxruntime.InferenceSession(tmp_path / "bundle" / INT8, providers=["CPUExecutionProvider"])
    for subset, rows in (("validation", site.validation), ("test", site.test)):
        x, y = rows.x.numpy().astype(np.float32), rows.y.numpy()
        scores = np.concatenate([session.run(None, {"features": row[None]})[0] for row in x])
        assert report[subset]["int8"] == pytest.approx(auc(y == 1, scores), abs=1e-12)
        assert report[subset]["float32"] == pytest.approx(auc(y == 1, bundle.scores(x)), abs=1e-12)
        assert report[subset]["loss"] == pytest.approx(report[subset]["float32"] - report[subset]["int8"])
        assert np.abs(scores - bundle.scores(x)).max() < 0.05


def test_the_interval_is_that_of_a_paired_bootstrap_over_patients(
    finished: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = load_bundle(bundle_from(finished, arm="network", site=SITE, out=tmp_path / "bundle"))
    rng = np.random.default_rng(0)
    rows = 60
    label, people = rng.integers(0, 2, rows), np.repeat(np.arange(rows // 2), 2)
    exact = rng.random(rows).astype(np.float32)
    rough = np.round(exact, 1)
    monkeypatch.setattr(module, "scores_of", lambda content, x: rough)
    scored = Scored(LabelledRows(np.zeros((rows, 1)), label, label, people), exact)
    told = loss_of(bundle, b"", "auc", scored)
    assert told["loss"] == pytest.approx(auc(label == 1, exact) - auc(label == 1, rough))
    drawn, again = [], np.random.default_rng(3)
    for _ in range(RESAMPLES):
        chosen = (2 * again.integers(rows // 2, size=rows // 2)[:, None] + [0, 1]).ravel()
        drawn.append(auc(label[chosen] == 1, exact[chosen]) - auc(label[chosen] == 1, rough[chosen]))
    spread = np.std(drawn)
    assert told["interval"] == pytest.approx(np.percentile(drawn, [2.5, 97.5]), abs=0.3 * float(spread))
    # a metric of which less is better loses when it rises
    higher = loss_of(bundle, b"", "brier", scored)
    assert higher["loss"] == pytest.approx(np.mean((rough - label) ** 2) - np.mean((exact - label) ** 2), abs=1e-6)


def test_more_than_the_stated_loss_is_refused_whatever_test_rows_say(
    finished: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def lossy(content: bytes, x: Any) -> np.ndarray:
        seen.append(len(x))
        return np.random.default_rng(0).random(len(x)).astype(np.float32)

    monkeypatch.setattr(module, "scores_of", lossy)
    with pytest.raises(
        BundleError, match=r"int8 \(dynamic\) may lose more than 0.05 of auc: .* validation rows"
    ) as told:
        made(finished, tmp_path / "bundle", "dynamic")
    assert "--most-loss" in told.value.remedy
    assert len(seen) == 1  # test rows were not looked at
    assert not (tmp_path / "bundle").exists()


def test_what_cannot_be_decided_is_refused(finished: FinishedRun, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="double precision"):
        made(finished, tmp_path / "exact", "dynamic", arm="exact")
    with pytest.raises(BundleError, match="fewer than 30"):
        bundle_from(finished, arm="network", site="switzerland", out=tmp_path / "few", int8=Int8("static"))
    with pytest.raises(StudyError, match="'int4' is not known"):
        Int8("int4")  # type: ignore[arg-type]
    with pytest.raises(StudyError, match="0 or more"):
        Int8("static", -1.0)


def test_no_number_of_a_patient_is_in_a_static_file(finished: FinishedRun, tmp_path: Path) -> None:
    """The range of the input is that of the training rows, rounded outwards; their extremes are nowhere."""
    made(finished, tmp_path / "bundle", "static")
    plan = finished.plan
    [site] = [s for s in plan.trial(plan.study.arm("network"), 1).scored if s.name == SITE]
    x = site.train.x.numpy()
    arrays = [to_array(part) for part in onnx.load(tmp_path / "bundle" / INT8).graph.initializer]
    scalars = [float(array.ravel()[0]) for array in arrays if array.size == 1 and array.dtype == np.float32]
    low, high = rounded_outwards(float(x.min())), rounded_outwards(float(x.max()))
    assert any(value == pytest.approx((high - low) / 255) for value in scalars)
    assert not any(value == pytest.approx((x.max() - x.min()) / 255, rel=1e-4) for value in scalars)


@pytest.mark.parametrize(
    ("value", "expected"), [(0.0, 0.0), (1.0, 1.0), (1.1, 2**0.25), (-3.0, -(2**1.75)), (4.0, 4.0)]
)
def test_ranges_are_rounded_to_quarters_of_an_octave(value: float, expected: float) -> None:
    assert rounded_outwards(value) == pytest.approx(expected)
