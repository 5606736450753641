"""Bundles of signals: files, arrays and requests get the scores of the run, at any sampling rate; gaps stay gaps."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.bundles.signal_runs import ecgs, run_of, write_visits
from tests.data.signal_files import write_record
from tests.serving.test_serve import Client
from wardround.bundles import (
    Bundle,
    bundle_from,
    load_bundle,
    predict_file,
    predict_rows,
    predict_signals,
    predict_table,
)
from wardround.core.errors import DataError, WardroundError
from wardround.serving.app import make_app
from wardround.serving.serve import warm_up

NAN = np.nan


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    folder = tmp_path_factory.mktemp("ecg")
    return load_bundle(bundle_from(run_of(folder / "runs"), arm="fedavg", site="synthetic-1", out=folder / "b"))


@pytest.fixture(scope="module")
def visits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, Path]:
    folder = tmp_path_factory.mktemp("visits")
    write_visits(folder / "v.csv")
    data = {"source": "visit-sequences", "path": str(folder / "v.csv"), "target": "died", "visits": 5}
    finished = run_of(folder / "runs", data=data, model={"kind": "gru", "hidden": 4})
    return load_bundle(bundle_from(finished, arm="fedavg", site="north", out=folder / "b")), folder / "v.csv"


def scores(table: pd.DataFrame) -> np.ndarray:
    return table[[name for name in table if str(name).startswith("score")]].to_numpy()


def recordings(rows: int = 5) -> np.ndarray:
    return np.asarray(ecgs().features)[:rows]


def test_a_bundle_says_what_it_takes_and_that_it_is_synthetic(bundle: Bundle) -> None:
    signals = bundle.inputs.signals
    assert signals is not None
    assert (signals.channels, signals.samples, signals.rate, signals.scale) == (("I", "II"), 200, 50.0, "site")
    card = (bundle.path / "card.md").read_text()
    assert (
        "Recordings of I, II at any sampling rate that the file names; they are brought to 50 samples a second" in card
    )
    assert "synthetic" in card


def test_files_arrays_and_requests_get_the_same_scores(bundle: Bundle, tmp_path: Path) -> None:
    signals = np.round(recordings() * 1000) / 1000  # as a file of 16 bits has them
    signals[2, 0, 50:80] = NAN
    expected = predict_signals(bundle, signals, 50)
    for row, recording in enumerate(signals):
        write_record(tmp_path / "r", f"{row}", recording, ("I", "II"), "50")
    np.savez(tmp_path / "a.npz", signals=signals, rate=50, channels=np.array(["I", "II"]))
    for source in (tmp_path / "r", tmp_path / "a.npz"):
        predict_file(bundle, source, tmp_path / "out.csv")
        table = pd.read_csv(tmp_path / "out.csv")
        np.testing.assert_allclose(scores(table), scores(expected), atol=1e-6)
        assert table["recording"].astype(str).tolist() == ["0", "1", "2", "3", "4"]
    cells = [[[None if np.isnan(v) else float(v) for v in channel] for channel in row] for row in signals]
    answers = predict_rows(bundle, [{"signals": row, "rate": 50} for row in cells])
    np.testing.assert_allclose(scores(pd.DataFrame(answers)), scores(expected), atol=1e-6)


def test_another_rate_length_and_order_of_leads_change_little(bundle: Bundle) -> None:
    """Drawn at 50 samples a second, and shown at 200: within a few hundredths, as far as a filter goes."""
    signals = np.nan_to_num(recordings())
    fine = np.stack([[np.interp(np.arange(800) / 200, np.arange(200) / 50, c) for c in row] for row in signals])
    expected = scores(predict_signals(bundle, signals, 50))
    np.testing.assert_allclose(scores(predict_signals(bundle, fine, 200)), expected, atol=0.08)
    padded = np.concatenate([recordings(), np.full((5, 2, 90), NAN)], axis=-1)
    np.testing.assert_array_equal(
        scores(predict_signals(bundle, padded, 50)), scores(predict_signals(bundle, recordings(), 50))
    )
    turned = [{"signals": row[::-1].tolist(), "rate": 50, "channels": ["II", "I"]} for row in signals]
    np.testing.assert_allclose(scores(pd.DataFrame(predict_rows(bundle, turned))), expected, atol=1e-6)


def test_a_missing_rate_is_one_clear_error(bundle: Bundle, tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", recordings())
    np.savez(tmp_path / "a.npz", signals=recordings())
    calls: list[Callable[[], Any]] = [
        lambda: predict_signals(bundle, recordings()),
        lambda: predict_file(bundle, tmp_path / "a.npy", tmp_path / "o.csv"),
        lambda: predict_file(bundle, tmp_path / "a.npz", tmp_path / "o.csv"),
        lambda: predict_rows(bundle, [{"signals": recordings()[0].tolist()}]),
    ]
    for call in calls:
        with pytest.raises(WardroundError, match="sampling rate"):
            call()
    assert not (tmp_path / "o.csv").exists()


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"signals": "text", "rate": 50},
        {"signals": [], "rate": 50},
        {"signals": [[1, 2], [3]], "rate": 50},
        {"signals": [[1, "a"], [3, 4]], "rate": 50},
        {"signals": [[1, True], [3, 4]], "rate": 50},
        {"signals": [[1, 2]], "rate": 50},
        {"signals": [[1, 2], [3, 4]], "rate": "fast"},
        {"signals": [[1, 2], [3, 4]], "rate": 50, "channels": ["X", "Y"]},
        {"signals": [[None, None], [None, None]], "rate": 50},
    ],
)
def test_a_request_of_another_form_is_refused(bundle: Bundle, row: dict[str, Any]) -> None:
    with pytest.raises(DataError):
        predict_rows(bundle, [row])


def test_noise_is_out_of_distribution(bundle: Bundle) -> None:
    rng = np.random.default_rng(1)
    marked = predict_signals(bundle, 30 * rng.normal(size=(4, 2, 200)), 50)["out_of_distribution"]
    assert marked.all()


def test_it_is_served(bundle: Bundle) -> None:
    warm_up(bundle)
    client = Client(make_app(bundle))
    row = {"signals": np.nan_to_num(recordings()[0]).tolist(), "rate": 50}
    answer = client.post("/predict", json={"rows": [row]})
    assert answer.status_code == 200
    assert answer.json()["rows"] == predict_rows(bundle, [row])
    assert set(client.get("/schema").json()["required"]) == {"signals", "rate"}
    assert client.post("/predict", json={"rows": [{"signals": [[1]]}]}).status_code == 422


def test_visits_are_predicted_from_a_table_and_from_requests(visits: tuple[Bundle, Path], tmp_path: Path) -> None:
    bundle, file = visits
    predict_file(bundle, file, tmp_path / "o.csv")
    table = pd.read_csv(tmp_path / "o.csv")
    assert len(table) == 60
    own = pd.read_csv(file)
    of_first = own[own["patient"] == table["recording"][0]].sort_values("time")
    cells = [
        {name: None if pd.isna(value) else float(value) for name, value in visit.items()}
        for visit in of_first[["time", "pulse", "pressure"]].to_dict("records")
    ]
    [answer] = predict_rows(bundle, [{"visits": cells}])
    assert answer["score"] == pytest.approx(table["score"][0], abs=1e-6)
    with pytest.raises(DataError, match="no list in `visits`"):
        predict_rows(bundle, [{"pulse": 70}])
    with pytest.raises(DataError, match="is for signals"):
        predict_table(bundle, own)


@pytest.mark.slow
def test_both_networks_are_written_as_onnx(visits: tuple[Bundle, Path], bundle: Bundle, tmp_path: Path) -> None:
    from wardround.bundles import export_onnx

    for of_kind in (bundle, visits[0]):
        assert export_onnx(of_kind, tmp_path / "m.onnx") < 1e-5
