"""Images of every layout from a study to a prediction: as files and arrays, in colour, with ONNX, private, stacked."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.medmnist_files import LAYOUTS, as_folder, as_table, layout, saved
from wardround.bundles import load_bundle, make_bundle, predict_file, predict_images
from wardround.core.threads import torch_threads
from wardround.runs.execute import StudyRun, run_study

CNN = {"kind": "cnn", "channels": [2, 3], "hidden": 8, "kernel": 3, "norm": "group"}


def study(path: Path, **changes: Any) -> dict[str, Any]:
    return {
        "name": "images",
        "data": {"source": "images", "path": str(path), "scale": "ranges"},
        "sites": {"partition": "iid", "count": 2},
        "model": CNN,
        "training": {"rounds": 2, "batch_size": 8, "lr": 0.05},
        "evaluation": {"split": "given", "seeds": {"count": 1}},
        "arms": [{"algorithm": "fedavg"}],
        **changes,
    }


def run(document: dict[str, Any], out: Path, engine: str = "serial") -> StudyRun:
    with torch_threads(1):
        return run_study(document, out, engine=engine, workers=1)


def predictions(finished: StudyRun) -> pd.DataFrame:
    return pd.read_parquet(Path(finished.folder) / "predictions.parquet")


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_folder_gives_the_predictions_of_the_same_npz(tmp_path: Path, name: str) -> None:
    content = layout(name, times=2)
    ours = predictions(run(study(saved(tmp_path / "a.npz", content)), tmp_path / "npz"))
    make = as_table if name == "fourteen" else as_folder
    theirs = predictions(run(study(make(tmp_path / "pictures", content)), tmp_path / "folder"))
    assert len(ours) == 16
    pd.testing.assert_frame_equal(ours, theirs)


@pytest.fixture(scope="module")
def coloured(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StudyRun]:
    folder = tmp_path_factory.mktemp("coloured")
    saved(folder / "a.npz", layout("eight", times=4))
    document = study(folder / "a.npz", training={"rounds": 3, "augment": {"flip": "horizontal", "crop": 0.1}})
    return folder, run(document, folder / "runs")


def test_a_bundle_of_colour_scores_files_and_arrays_as_the_run_did(coloured: tuple[Path, StudyRun]) -> None:
    folder, finished = coloured
    content = layout("eight", times=4)
    bundle = load_bundle(make_bundle(finished.folder, arm="fedavg", site="site-01", out=folder / "bundle", onnx=True))
    assert bundle.inputs.images is not None
    assert bundle.inputs.images.shape == (3, 28, 28)
    scores = list(bundle.answer.scores)
    arrays = predict_images(bundle, content["test_images"])
    as_folder(folder / "pictures", content)
    files = folder / "out.csv"
    predict_file(bundle, folder / "pictures" / "test", files)
    table = pd.read_csv(files)
    by_label = np.argsort(content["test_labels"][:, 0], kind="stable")  # the folder's order: by class, then by name
    np.testing.assert_allclose(table[scores], arrays[scores].iloc[by_label], rtol=0, atol=1e-6)
    saved_rows = predictions(finished)
    own = saved_rows[saved_rows["site"] == "site-01"]
    test = own["row"].to_numpy() - len(content["train_images"]) - len(content["val_images"])
    expected = own[[column for column in own if str(column).startswith("score")]]
    np.testing.assert_allclose(arrays[scores].iloc[test], expected, rtol=0, atol=1e-5)
    grey = predict_images(bundle, content["test_images"].mean(axis=3).astype(np.uint8))
    assert not np.allclose(grey[scores], arrays[scores], atol=1e-3)


def test_stacked_gives_what_serial_gives_in_colour(tmp_path: Path) -> None:
    saved(tmp_path / "a.npz", layout("eight"))
    document = study(tmp_path / "a.npz", model={"kind": "mlp", "hidden": [6]})
    serial, stacked = (predictions(run(document, tmp_path / engine, engine)) for engine in ("serial", "stacked"))
    pd.testing.assert_frame_equal(serial, stacked, rtol=0, atol=1e-5)


@pytest.mark.slow
def test_differential_privacy_takes_colour(tmp_path: Path) -> None:
    saved(tmp_path / "a.npz", layout("eight", times=4))
    privacy = {"example": {"epsilon": 5.0, "delta": 1e-3, "clip": 1.0}}
    data = {**study(tmp_path / "a.npz")["data"], "public": True}
    finished = run(study(tmp_path / "a.npz", data=data, privacy=privacy), tmp_path / "runs")
    assert np.isfinite(predictions(finished).filter(like="score")).all(axis=None)
