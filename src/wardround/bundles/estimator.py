"""A bundle as a fitted estimator of scikit-learn's conventions: for its scorers, displays and inspection.

The numbers are those of `predict_table`, to the last bit. Classes are in scikit-learn's order, which is the sorted one,
and of the type that pandas reads them as: 0 and 1 are numbers. `predict` follows the bundle's threshold.
A row that `predict_table` refers to a clinician, or marks as out of distribution, has numbers like any other row; one
that it gives no prediction is an error, because scikit-learn has no word for it.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import pyarrow as pa
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from wardround.bundles.bundle import Bundle, load_bundle
from wardround.bundles.predict.pipeline import PredictOptions
from wardround.bundles.predict.predict import predict_table, required_columns
from wardround.core.errors import BundleError, DataError, as_path, shown
from wardround.core.settings import Factory
from wardround.data.frames import is_frame

SCORES_ONLY = PredictOptions(uncertainty=False)  # intervals and prediction sets change no score
TABLE = "Give a DataFrame with the columns of `feature_names_in_`, or an array with these columns in their order."


def as_estimator(
    bundle: Bundle | str | PathLike[str], models: Mapping[str, Factory] | None = None
) -> "BundleClassifier | BundleRegressor":
    """A classifier, or for numbers and counts a regressor. `bundle` is a bundle's folder, or a loaded bundle.

    `models` holds your own models under the names that the study uses, as in `load_bundle`.
    """
    loaded = bundle if isinstance(bundle, Bundle) else load_bundle(bundle, models)
    if loaded.inputs.signals is not None:
        raise BundleError(str(loaded.path), "is for signals, and an estimator takes tables", "Use predict_signals.")
    if loaded.inputs.images is not None:
        raise BundleError(str(loaded.path), "is for images, and an estimator takes tables", "Use predict_images.")
    if loaded.answer.form == "findings":
        raise BundleError(str(loaded.path), "predicts several findings of a row", "Use predict_table.")
    estimator = BundleRegressor if loaded.answer.form == "number" else BundleClassifier
    return estimator(bundle if isinstance(bundle, Bundle) else as_path(bundle, "bundle", BundleError), models)


class BundleEstimator(BaseEstimator):  # type: ignore[misc]
    """What classifier and regressor share. Parameters are what scikit-learn copies: a path, or a loaded bundle."""

    def __init__(self, bundle: Bundle | str | Path, models: Mapping[str, Factory] | None = None) -> None:
        self.bundle = bundle
        self.models = models

    @cached_property
    def bundle_(self) -> Bundle:
        """The loaded bundle: its card, its thresholds, its calibration."""
        return self.bundle if isinstance(self.bundle, Bundle) else load_bundle(self.bundle, self.models)

    @property
    def feature_names_in_(self) -> np.ndarray:
        """Columns that a table needs; others may be there too."""
        needed = required_columns(self.bundle_)
        parties = [name for party in needed.parties for name in party]
        return np.array([*needed.needed, *parties], dtype=object)

    @property
    def n_features_in_(self) -> int:
        """How many columns these are."""
        return len(self.feature_names_in_)

    def fit(self, X: Any, y: Any = None, **settings: Any) -> NoReturn:
        """Refused: the model was trained in its study."""
        remedy = "Use it as it is, or as sklearn.frozen.FrozenEstimator(model) where something would fit it again."
        raise BundleError(str(self.bundle_.path), "was trained in a study, and cannot be fitted here", remedy)

    def explain(self, X: Any, *, method: str | None = None, background: Any = None) -> pd.DataFrame:
        """What each column contributes to each row's score: a line for each row, or for each class of each row.

        Contributions are on the scale before the inverse link (log odds, log rate, units). The table's `attrs` have
        that scale, the method, and what rows are compared with: the average of the site's training rows, or the rows
        in `background`.
        """
        from wardround.bundles.explain.explained_rows import explain_table

        compared = None if background is None else self._table(background)
        explained = explain_table(self.bundle_, self._table(X), method=method, background=compared)
        table = explained.explanation.by_column(explained.numbers)
        table.attrs |= {**explained.explanation.facts(), "base": explained.explanation.base.tolist()}
        return table

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = True
        return tags

    def __getstate__(self) -> dict[str, Any]:
        """For another process, which loads the bundle again."""
        return {name: value for name, value in super().__getstate__().items() if name != "bundle_"}

    def _answer(self, X: Any) -> pd.DataFrame:
        answer = predict_table(self.bundle_, self._table(X), options=SCORES_ONLY)
        missing = np.flatnonzero(answer[list(self.bundle_.answer.scores)].isna().any(axis=1))
        if len(missing):
            problem = f"{len(missing)} of {len(answer)} rows have no prediction, the first is row {missing[0]}"
            remedy = "Leave them out. `predict_table` has a reason for each row in its column `why`."
            raise DataError("table", f"{problem} (counted from 0)", remedy)
        return answer

    def _table(self, X: Any) -> pd.DataFrame:
        if isinstance(X, pd.DataFrame):
            return X
        if is_frame(X):
            table: pd.DataFrame = pa.table(X).to_pandas()
            return table
        if hasattr(X, "tocsr") or not isinstance(X, np.ndarray | list | tuple):
            raise DataError("table", f"expected a table, found {shown(X)}", TABLE)
        array = X if isinstance(X, np.ndarray) else np.array(X, dtype=object)
        names = self.feature_names_in_
        if array.ndim != 2 or array.shape[1] != len(names):
            raise DataError("table", f"expected {len(names)} columns, found {shown(array)}", TABLE)
        if array.dtype.kind in "fiub" and (words := self._columns_of_words()):
            problem = f"an array of numbers, and these columns hold words: {', '.join(map(repr, words))}"
            raise DataError("table", problem, "Give a DataFrame, or an array of objects.")
        return pd.DataFrame(array, columns=names).infer_objects()

    def _columns_of_words(self) -> list[str]:
        columns = self.bundle_.recipe.columns
        return [column.own_name for column in columns if column.kind == "categorical" and not column.coded]


class BundleClassifier(ClassifierMixin, BundleEstimator):  # type: ignore[misc]
    """A bundle for two classes or more, as a fitted classifier; `score` is its accuracy."""

    @property
    def classes_(self) -> np.ndarray:
        """Sorted, as scikit-learn has them. Metrics of one class are about the last, or about `pos_label`."""
        return np.sort(class_values(self.bundle_.classes))

    def predict(self, X: Any) -> np.ndarray:
        """The class that the bundle predicts: of two the positive one where its score reaches the threshold."""
        values = dict(zip(self.bundle_.classes, class_values(self.bundle_.classes), strict=True))
        predicted = [values[name] for name in self._answer(X)["predicted"]]
        return np.array(predicted, dtype=self.classes_.dtype)

    def predict_proba(self, X: Any) -> np.ndarray:
        """A column for each of `classes_`: the calibrated probability where the bundle has one, else the score."""
        answer, names = self._answer(X), self.bundle_.answer
        columns = [
            own if own in answer else score
            for own, score in zip(names.columns("probability"), names.scores, strict=True)
        ]
        known = answer[columns].to_numpy()
        if len(names.events):  # of two classes, the positive one is known
            known = np.column_stack([1 - known[:, 0], known[:, 0]])
        else:  # in the model's precision, in which they sum to 1
            known = known.astype(str(self.bundle_.about["precision"]))
        return known[:, np.argsort(class_values(self.bundle_.classes))]


class BundleRegressor(RegressorMixin, BundleEstimator):  # type: ignore[misc]
    """A bundle for a number, or for a number of events, as a fitted regressor; `score` is its R squared."""

    def predict(self, X: Any) -> np.ndarray:
        """The number, in the units of its target."""
        return self._answer(X)[self.bundle_.answer.scores[0]].to_numpy()


def class_values(names: Sequence[str]) -> np.ndarray:
    """Names of classes as the values that pandas reads in a file: true and false, whole numbers, numbers, or texts."""
    if all(name.casefold() in ("true", "false") for name in names):
        return np.array([name.casefold() == "true" for name in names])
    if all(re.fullmatch(r"0|-?[1-9][0-9]{0,17}", name) for name in names):
        return np.array([int(name) for name in names])
    return np.array(names)
