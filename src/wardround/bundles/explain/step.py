"""The step of a prediction that explains it: the columns that contributed most to each row's score, or where in an
image each predicted finding is seen."""

from functools import partial

import numpy as np
import pyarrow as pa

from wardround.bundles.bundle import Bundle
from wardround.bundles.explain.explained_images import takes_images
from wardround.bundles.explain.explained_rows import explain_prepared, explainable
from wardround.bundles.explain.image_step import explain_images_of, place_columns
from wardround.bundles.predict.pipeline import Predicting, PredictOptions, Step, Types, known
from wardround.bundles.predict.scoring import number_cells
from wardround.explain.explanation import output_names

TOP = 3  # columns of a row


def reason_columns(bundle: Bundle, options: PredictOptions, top: int = TOP, pictures: bool = False) -> Types:
    if takes_images(bundle):
        return place_columns(suffixes(bundle), pictures)
    explainable(bundle)
    columns: dict[str, pa.DataType] = {}
    for suffix in suffixes(bundle):
        for number in range(1, top + 1):
            columns[f"reason_{number}{suffix}"] = pa.string()
            columns[f"contribution_{number}{suffix}"] = pa.float64()
    return columns


def suffixes(bundle: Bundle) -> list[str]:
    """One for each prediction of a row: of several findings, each has its own reasons."""
    return [name.removeprefix("predicted") for name in bundle.answer.predicted_columns] or [""]


def explain(rows: Predicting, top: int = TOP, pictures: bool = False) -> Predicting:
    """Of a class among several, the score of the class that is predicted is explained."""
    if takes_images(rows.bundle):
        return explain_images_of(rows, suffixes(rows.bundle), pictures)
    bundle, unscored = rows.bundle, known(rows.scored).unscored
    outputs = len(output_names(bundle.task))
    names, groups = suffixes(bundle), len(suffixes(bundle))
    explained = np.tile(np.arange(groups), (len(rows), 1))
    if groups < outputs:
        explained = np.asarray(known(rows.decided).predicted).reshape(len(rows), 1)
    by_group = [reasons_of(rows, explained[:, group], unscored, top) for group in range(groups)]
    columns: dict[str, pa.Array] = {}
    for suffix, (reasons, contributions) in zip(names, by_group, strict=True):
        for place in range(top):
            columns[f"reason_{place + 1}{suffix}"] = pa.array(reasons[:, place].tolist(), pa.string())
            columns[f"contribution_{place + 1}{suffix}"] = number_cells(contributions[:, place])
    return rows.adding(columns)


def reasons_of(rows: Predicting, output: np.ndarray, unscored: np.ndarray, top: int) -> tuple[np.ndarray, np.ndarray]:
    """Names and contributions of the columns that contributed most, whichever way, to an output of each row."""
    x = known(rows.prepared).x
    names = np.full((len(rows), top), None, dtype=object)
    values = np.full((len(rows), top), np.nan)
    for number in np.unique(output[~unscored]).tolist():
        chosen = np.flatnonzero((output == number) & ~unscored)
        explanation = explain_prepared(rows.bundle, x[chosen], outputs=[int(number)])
        contributions, columns = explanation.values[:, 0], np.array(explanation.columns, dtype=object)
        order = np.argsort(-np.abs(contributions), axis=1, kind="stable")[:, :top]
        names[chosen, : order.shape[1]] = columns[order]
        values[chosen, : order.shape[1]] = np.take_along_axis(contributions, order, axis=1)
    return names, values


def explain_step(top: int = TOP, pictures: bool = False) -> Step:
    """`pictures` adds the maps of images."""
    return Step(
        "explain",
        partial(explain, top=top, pictures=pictures),
        partial(reason_columns, top=top, pictures=pictures),
    )


EXPLAIN, EXPLAIN_SERVED = explain_step(), explain_step(pictures=True)
