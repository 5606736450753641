"""A bundle as an estimator: the numbers of `predict`, by scikit-learn's conventions."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest

import wardround
from tests.bundles.image_runs import garments, run_of
from tests.bundles.number_runs import ADMISSIONS, STAY, number_study, patients
from tests.hospital_frames import SMALL, hospital, hospitals, study_of
from wardround.bundles import bundle_from
from wardround.bundles.estimator import class_values
from wardround.core.errors import BundleError, DataError

Tables = Mapping[str, pd.DataFrame]


def finished(tmp: pytest.TempPathFactory, tables: Tables, **data: Any) -> wardround.StudyRun:
    return wardround.run_study(study_of(dict(tables), **data), tmp.mktemp("run"), changes=SMALL, workers=1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> wardround.StudyRun:
    return finished(tmp_path_factory, hospitals())


@pytest.fixture(scope="module")
def model(run: wardround.StudyRun) -> Any:
    return run.model("fedavg", site="north")


@pytest.fixture(scope="module")
def later() -> pd.DataFrame:
    return hospital(300, 9)


def test_its_predictions_are_those_of_the_bundle_bit_for_bit(
    run: wardround.StudyRun, model: Any, later: pd.DataFrame, tmp_path: Path
) -> None:
    bundle = wardround.make_bundle(run, arm="fedavg", site="north", out=tmp_path / "bundle")
    answer = wardround.predict_table(bundle, later)
    assert "probability" in answer  # there are validation rows, so that it is calibrated
    assert model.predict(later).tolist() == answer["predicted"].astype(int).tolist()
    assert model.predict_proba(later)[:, 1].tobytes() == answer["probability"].to_numpy().tobytes()
    assert model.predict_proba(later).sum(axis=1) == pytest.approx(1, abs=1e-15)
    later.to_csv(tmp_path / "later.csv", index=False)
    wardround.predict_file(bundle, tmp_path / "later.csv", tmp_path / "answer.parquet")
    of_file = pd.read_parquet(tmp_path / "answer.parquet")["probability"]
    assert model.predict_proba(later)[:, 1].tobytes() == of_file.to_numpy().tobytes()


def test_it_says_what_it_is(model: Any) -> None:
    from sklearn.base import clone, is_classifier, is_regressor
    from sklearn.utils.validation import check_is_fitted

    check_is_fitted(model)
    assert is_classifier(model)
    assert not is_regressor(model)
    assert model.classes_.tolist() == [0, 1]
    assert model.feature_names_in_.tolist() == ["age", "sex", "visits", "smokes"]
    assert model.n_features_in_ == 4
    assert clone(model).get_params() == model.get_params()
    assert "BundleClassifier(bundle=" in repr(model)


def test_scikit_learn_takes_it_as_a_classifier(model: Any, later: pd.DataFrame) -> None:
    """Every figure is compared with one that is computed from `predict` or `predict_proba` directly."""
    from sklearn.calibration import CalibratedClassifierCV, CalibrationDisplay
    from sklearn.frozen import FrozenEstimator
    from sklearn.inspection import PartialDependenceDisplay, permutation_importance
    from sklearn.metrics import RocCurveDisplay, get_scorer, roc_auc_score
    from sklearn.model_selection import cross_val_score

    mpl.use("agg")
    y, positive = later["died"], model.predict_proba(later)[:, 1]
    auc = roc_auc_score(y, positive)
    assert get_scorer("roc_auc")(model, later, y) == auc
    assert get_scorer("neg_brier_score")(model, later, y) == pytest.approx(-np.mean((positive - y) ** 2), rel=1e-12)
    assert get_scorer("accuracy")(model, later, y) == model.score(later, y) == np.mean(model.predict(later) == y)
    for name in ("neg_log_loss", "average_precision", "f1"):
        assert np.isfinite(get_scorer(name)(model, later, y))
    columns = later[list(model.feature_names_in_)]
    found = permutation_importance(model, columns, y, scoring="roc_auc", n_repeats=2, random_state=0)
    assert found.importances_mean.argmax() == 0  # age alone decides who died
    assert RocCurveDisplay.from_estimator(model, later, y).roc_auc == auc
    assert CalibrationDisplay.from_estimator(model, later, y).y_prob.tolist() == positive.tolist()
    drawn = PartialDependenceDisplay.from_estimator(model, columns, ["age"])
    averages = drawn.pd_results[0]["average"][0]
    assert averages[0] < averages[-1]
    frozen = FrozenEstimator(model)
    assert frozen.predict_proba(later).tobytes() == model.predict_proba(later).tobytes()
    assert np.isfinite(cross_val_score(frozen, columns, y, scoring="roc_auc", cv=3)).all()
    assert CalibratedClassifierCV(frozen).fit(columns, y).predict_proba(columns).shape == (300, 2)


def test_it_takes_arrays_in_the_order_of_its_columns(model: Any, later: pd.DataFrame) -> None:
    columns = later[list(model.feature_names_in_)]
    expected = model.predict_proba(later).tobytes()
    assert model.predict_proba(columns.to_numpy(dtype=object)).tobytes() == expected
    assert model.predict_proba(columns.astype(object).values.tolist()).tobytes() == expected
    for wrong, problem in (
        (np.zeros((5, 4)), "these columns hold words: 'sex', 'smokes'"),
        (np.zeros((5, 3), dtype=object), "expected 4 columns"),
        (np.zeros(5, dtype=object), "expected 4 columns"),
        ("rows.csv", "expected a table"),
        (later.drop(columns="age"), "there is no column 'age'"),
    ):
        with pytest.raises(DataError, match=problem):
            model.predict(wrong)


def test_it_cannot_be_fitted(model: Any, later: pd.DataFrame) -> None:
    with pytest.raises(BundleError, match="cannot be fitted") as refused:
        model.fit(later, later["died"])
    assert "FrozenEstimator" in refused.value.remedy


def test_each_seed_has_a_model_of_its_own(run: wardround.StudyRun, model: Any, later: pd.DataFrame) -> None:
    first, second = (run.model("fedavg", site="north", seed=seed) for seed in run.results["seeds"])
    assert first.bundle == model.bundle
    assert first.predict_proba(later).tobytes() == model.predict_proba(later).tobytes()
    assert second.predict_proba(later).tobytes() != model.predict_proba(later).tobytes()
    assert second.bundle_.about["seed"] == run.results["seeds"][1]
    assert second.bundle_.path.parent == run.folder / "bundles"


def test_classes_are_sorted_and_of_the_type_that_pandas_reads(tmp_path_factory: pytest.TempPathFactory) -> None:
    """`died` comes before `survived`, and is the positive class: the columns follow the names, not the positive one."""
    from sklearn.metrics import get_scorer, roc_auc_score

    words = finished(tmp_path_factory, hospitals(("survived", "died")), positive="died").model("fedavg", site="south")
    later = hospital(200, 9, ("survived", "died"))
    assert words.bundle_.classes == ("survived", "died")
    assert words.classes_.tolist() == ["died", "survived"]
    answer = wardround.predict_table(words.bundle, later)
    assert "probability" not in answer  # too few validation rows for a calibration: then it is the score
    assert words.predict_proba(later)[:, 0].tobytes() == answer["score"].to_numpy().tobytes()
    assert words.predict(later).tolist() == answer["predicted"].tolist()
    died = later["died"] == "died"
    assert get_scorer("roc_auc")(words, later, later["died"]) == pytest.approx(
        roc_auc_score(died, words.predict_proba(later)[:, 0])
    )
    assert class_values(("False", "True")).tolist() == [False, True]
    assert class_values(("0", "1", "10")).dtype.kind == "i"
    assert class_values(("01", "2")).tolist() == ["01", "2"]


def test_three_classes_have_three_columns(tmp_path_factory: pytest.TempPathFactory) -> None:
    tables = hospitals()
    for table in tables.values():
        table["died"] = np.select([table["age"] > 66, table["age"] > 54], ["old", "middle"], "young")
    model = finished(tmp_path_factory, tables).model("fedavg", site="north")
    later = hospital(50, 9)
    answer, known = wardround.predict_table(model.bundle, later), model.predict_proba(later)
    assert model.classes_.tolist() == ["middle", "old", "young"]
    for place, name in enumerate(model.classes_):
        assert known[:, place].tolist() == answer[f"score_{name}"].tolist()
    assert known.sum(axis=1) == pytest.approx(1, abs=1e-6)
    assert known.dtype == np.dtype(model.bundle_.about["precision"])
    assert model.predict(later).tolist() == answer["predicted"].tolist()


@pytest.mark.parametrize("task", [STAY, ADMISSIONS], ids=["a number", "a count"])
def test_numbers_have_a_regressor(task: dict[str, Any], tmp_path: Path) -> None:
    from sklearn.base import is_regressor
    from sklearn.metrics import r2_score

    run = wardround.run_study(number_study(tmp_path, task), tmp_path / "runs", changes=SMALL, workers=1)
    model, later = run.model("fedavg", site="north"), patients(60, 8)
    target = "stay" if task is STAY else "admissions"
    assert is_regressor(model)
    assert ("months" in model.feature_names_in_) == (task is ADMISSIONS)  # the exposure
    assert (
        model.predict(later).tobytes() == wardround.predict_table(model.bundle, later)["predicted"].to_numpy().tobytes()
    )
    assert model.score(later, later[target]) == r2_score(later[target], model.predict(later))


def test_a_row_without_a_prediction_is_an_error(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Training left incomplete rows out, so that nothing is known of them. A row out of distribution has numbers."""
    model = finished(tmp_path_factory, hospitals(), missing="drop").model("fedavg", site="north")
    later = hospital(50, 9).dropna().reset_index(drop=True)
    later.loc[0, "age"] = 500
    assert wardround.predict_table(model.bundle, later)["out_of_distribution"][0]
    assert np.isfinite(model.predict_proba(later)).all()
    later.loc[[4, 7], "age"] = np.nan
    with pytest.raises(DataError, match=rf"2 of {len(later)} rows have no prediction, the first is row 4"):
        model.predict_proba(later)


def test_images_have_no_estimator(tmp_path: Path) -> None:
    finished = run_of(garments(), tmp_path, arms=[{"algorithm": "local", "model": {"kind": "logistic"}}])
    bundle = bundle_from(finished, arm="local", site="shop-0", out=tmp_path / "bundle")
    with pytest.raises(BundleError, match="is for images"):
        wardround.as_estimator(bundle)


def test_an_estimator_goes_to_another_process_without_its_bundle(model: Any, later: pd.DataFrame) -> None:
    """What scikit-learn's workers are sent: the path, from which they load it again."""
    model.predict(later.head(2))
    state = model.__getstate__()
    assert "bundle_" not in state
    copy = wardround.BundleClassifier("elsewhere")
    copy.__setstate__(state)
    assert copy.predict_proba(later).tobytes() == model.predict_proba(later).tobytes()
