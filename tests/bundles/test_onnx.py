"""A bundle's model as ONNX: the same scores in another program, or no file."""

import json
import sys
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.bundles.untrained_bundles import made
from tests.representatives import represented
from wardround.bundles import Bundle, export_onnx
from wardround.bundles.build import onnx as exporting
from wardround.bundles.build.onnx import RANDOM_ROWS, TOLERANCE, largest_difference, trial_rows
from wardround.core.errors import BundleError, MachineError

pytestmark = pytest.mark.skipif(
    not (find_spec("onnxruntime") and find_spec("onnxscript")), reason="the extra `onnx` is not installed"
)

THREE = ("no", "mild", "severe")
KINDS: dict[str, dict[str, Any]] = {
    "logistic": {},
    "logistic, three classes": {"classes": THREE},
    "mlp with dropout": {"kind": "mlp", "options": {"hidden": [8, 4], "dropout": 0.3}},
    "mlp, three classes, float64": {
        "kind": "mlp",
        "options": {"hidden": [8]},
        "classes": THREE,
        "precision": "float64",
    },
    "adapter": {"kind": "adapter", "options": {"latent": 8, "hidden": [8], "adapter_hidden": [6], "dropout": 0.2}},
    "adapter that aligns": {"kind": "adapter", "options": {"latent": 4, "align": "coral"}, "classes": THREE},
    "adapter, float64": {"kind": "adapter", "options": {"latent": 4, "head": "private"}, "precision": "float64"},
}


def scored(file: Path, x: np.ndarray) -> np.ndarray:
    session = import_module("onnxruntime").InferenceSession(str(file), providers=["CPUExecutionProvider"])
    scores: np.ndarray = session.run(["scores"], {"features": x})[0]
    return scores


@pytest.mark.parametrize("kind", represented(KINDS, by=["mlp, three classes, float64"]))
def test_every_model_of_tables_scores_the_same(kind: str, tmp_path: Path) -> None:
    bundle = made(tmp_path / "bundle", **KINDS[kind])
    largest_error = export_onnx(bundle, tmp_path / "model.onnx")
    assert largest_error <= TOLERANCE
    x = np.random.default_rng(5).normal(size=(257, 3)).astype(str(bundle.about["precision"]))
    expected = bundle.scores(x)
    scores = scored(tmp_path / "model.onnx", x)
    assert scores.dtype == expected.dtype
    assert scores.shape == expected.shape == ((257,) if len(bundle.classes) == 2 else (257, 3))
    np.testing.assert_allclose(scores, expected, rtol=0, atol=1e-12 if scores.dtype == np.float64 else 1e-6)
    assert np.ptp(expected) > 0.1  # not all alike: the rows matter
    for rows in (1, 2, 4099):
        assert scored(tmp_path / "model.onnx", np.zeros((rows, 3), x.dtype)).shape == (rows, *expected.shape[1:])


@pytest.mark.slow
def test_the_file_says_what_it_is_and_nothing_of_this_machine(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import onnx

    bundle = made(tmp_path / "bundle", kind="mlp", options={"hidden": [4], "dropout": 0.3}, name="heart-mlp-north")
    export_onnx(bundle, tmp_path / "model.onnx")
    assert capfd.readouterr() == ("", "")  # the exporter's words about its own insides are not the user's
    content = (tmp_path / "model.onnx").read_bytes()
    assert b"site-packages" not in content
    assert b".py" not in content
    assert str(tmp_path).encode() not in content
    graph = onnx.load_from_string(content)
    onnx.checker.check_model(graph, full_check=True)
    metadata = {pair.key: pair.value for pair in graph.metadata_props}
    assert metadata["wardround.bundle"] == bundle.id
    assert json.loads(metadata["wardround.features"]) == ["age", "crp", "sodium"]
    assert json.loads(metadata["wardround.classes"]) == ["no", "yes"]
    assert json.loads(metadata["wardround.threshold"]) == 0.5
    assert graph.graph.name == "heart-mlp-north"
    assert [value.name for value in graph.graph.input] == ["features"]
    assert [value.name for value in graph.graph.output] == ["scores"]
    # the same bundle gives the same bytes, so that a bundle with its ONNX file has one id
    export_onnx(bundle, tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == content


def test_rows_to_try_are_many_random_and_extreme() -> None:
    rows = trial_rows((3,))
    assert len(rows) == 1 + 2 * RANDOM_ROWS + 6 * 3 + 6
    assert RANDOM_ROWS >= 1000
    assert not rows[0].any()
    assert [100.0, 0.0, 0.0] in rows.tolist()
    assert [-100.0, -100.0, -100.0] in rows.tolist()
    assert np.array_equal(rows, trial_rows((3,)))


@dataclass(frozen=True)
class Exported:
    bundle: Bundle
    graph: Any


@pytest.fixture(scope="module")
def constant(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """All weights 0 and the intercept 0.4: every score is sigmoid(0.4)."""
    bundle = made(tmp_path_factory.mktemp("constant") / "bundle")
    weights = {name: torch.zeros_like(leaf) for name, leaf in bundle.params.items()}
    bundle = replace(bundle, params={**weights, "bias": torch.tensor([0.4])})
    return Exported(bundle, exporting.model_graph(bundle))


def with_intercept(bundle: Bundle, intercept: float) -> Bundle:
    return replace(bundle, params={**bundle.params, "bias": torch.tensor([intercept])})


def test_the_difference_is_the_largest_of_any_row(constant: Exported) -> None:
    """An intercept of 0 gives 0.5 for every row, so that the scores are sigmoid(0.4) - 0.5 apart."""
    content = constant.graph.SerializeToString()
    apart = largest_difference(with_intercept(constant.bundle, 0.0), content)
    assert apart == pytest.approx(1 / (1 + np.exp(-0.4)) - 0.5, abs=1e-7)
    assert largest_difference(constant.bundle, content) < 1e-7


@pytest.mark.parametrize(("intercept", "words"), [(0.4001, "2e-05"), (float("nan"), "nan")])
def test_a_file_that_scores_otherwise_is_refused_and_not_left(
    intercept: float, words: str, constant: Exported, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slope of the sigmoid at 0.4 is 0.24: an intercept 0.0001 further gives scores 2.4e-5 apart."""
    monkeypatch.setattr(exporting, "model_graph", lambda bundle: constant.graph)
    with pytest.raises(BundleError, match=f"differ from its own by {words}, and 1e-05 is allowed"):
        export_onnx(with_intercept(constant.bundle, intercept), tmp_path / "model.onnx")
    assert list(tmp_path.iterdir()) == []
    # 0.00001 further is 2.4e-6 apart, and allowed
    assert export_onnx(with_intercept(constant.bundle, 0.40001), tmp_path / "model.onnx") == pytest.approx(
        2.4e-6, rel=0.1
    )
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    with pytest.raises(BundleError, match="cannot be written"):
        export_onnx(constant.bundle, tmp_path / "nowhere" / "model.onnx")


def test_a_model_that_onnx_cannot_hold_is_refused_in_plain_words(tmp_path: Path) -> None:
    bundle = made(tmp_path / "bundle")

    def by_value(params: Any, buffers: Any, x: torch.Tensor, masks: Any) -> Any:
        return (x[:, :1] if float(x.sum()) > 0 else -x[:, :1]), buffers  # what it does depends on the rows' values

    odd = replace(bundle, model=replace(bundle.model, logits=by_value))
    with pytest.raises(BundleError, match="its model cannot be written as ONNX") as caught:
        export_onnx(odd, tmp_path / "model.onnx")
    assert "\n" not in caught.value.problem
    assert not (tmp_path / "model.onnx").exists()


@pytest.mark.parametrize("name", exporting.NEEDED)
def test_a_missing_package_is_named_with_its_extra(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MachineError, match=rf"{name} is not installed\n.*wardround\[onnx\]"):
        export_onnx(made(tmp_path / "bundle"), tmp_path / "model.onnx")
    assert not (tmp_path / "model.onnx").exists()
