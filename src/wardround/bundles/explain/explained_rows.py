"""The rows of a bundle explained: what a table, a file, `predict --explain`, a server and a review all use."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from wardround.bundles.bundle import Bundle
from wardround.bundles.inputs import Inputs
from wardround.bundles.predict.blocks import Block
from wardround.bundles.predict.pipeline import Predicting, PredictOptions, known
from wardround.bundles.predict.predict import checked_options, file_blocks, opened, table_block
from wardround.bundles.predict.reading import read_block
from wardround.bundles.predict.scoring import STEPS, predict_block
from wardround.core import seeds
from wardround.core.errors import BundleError, DataError
from wardround.core.threads import torch_threads
from wardround.data.prepare import Recipe
from wardround.explain import Columns, Scorer
from wardround.explain.checks import Check, check_all
from wardround.explain.explanation import SEED, Background, Explanation, explain_rows, known_methods, output_names

AVERAGE = "the average of the site's training rows"
FILLED = "a row with the values that fill gaps, because the bundle tells nothing else of its patients"
TO_SCORES = STEPS[: [step.name for step in STEPS].index("score") + 1]
CHECKED, YARDSTICK = 8, "lime"  # rows on which an explanation is checked, and what it is compared with
MOST_BACKGROUND = 100  # rows; more cost time and change little


@dataclass(frozen=True, eq=False)
class ExplainedRows:
    """Rows of a table with a prediction, by their numbers in it, counted from 0."""

    numbers: np.ndarray
    unscored: int  # rows without a prediction
    explanation: Explanation
    prepared: np.ndarray  # all rows that have a prediction, as the model takes them
    checks: tuple[Check, ...] = ()


def explain_table(
    bundle: Bundle | str | PathLike[str],
    table: pd.DataFrame,
    *,
    method: str | None = None,
    background: pd.DataFrame | None = None,
) -> ExplainedRows:
    """Explain every row of a table in memory. `method` is one of `explain.METHODS`; by default the bundle's model
    decides. `background` has rows to compare with in place of the bundle's own average."""
    bundle = explainable(opened(bundle))
    options = checked_options(bundle, PredictOptions(uncertainty=False))
    compared = None if background is None else prepared_rows(bundle, [table_block(bundle, background, (), options)])
    return _explained(bundle, [table_block(bundle, table, (), options)], method, compared, None)


def explain_file(
    bundle: Bundle | str | PathLike[str],
    source: str | Path,
    *,
    method: str | None = None,
    background: str | Path | None = None,
    most: int | None = None,
    checked: bool = False,
) -> ExplainedRows:
    """The same for a CSV or Parquet file. `most` rows are explained, at equal distances in the file. `checked`: whether
    the explanation is true to the model is checked on some of them."""
    bundle = explainable(opened(bundle))
    options = checked_options(bundle, PredictOptions(uncertainty=False))
    compared = None
    if background is not None:
        with file_blocks(bundle, background, (), options) as rows:
            compared = prepared_rows(bundle, [read() for read in rows.blocks])
    with file_blocks(bundle, source, (), options) as rows:
        blocks = [read() for read in rows.blocks]
    if not sum(block.rows for block in blocks):
        raise DataError(str(source), "there is a header, but no row below it", "Export it again, with its rows.")
    return _explained(bundle, blocks, method, compared, most, checked)


def explainable(bundle: Bundle) -> Bundle:
    """Refused where rows are images together with columns: a method explains one or the other."""
    if bundle.inputs.arrays is not None:
        what = "images" if bundle.inputs.signals is None else "signals"
        raise BundleError(
            str(bundle.path), f"is for {what}, and tables are explained here", "Give it a table's bundle."
        )
    return bundle


def scorer_of(bundle: Bundle) -> Scorer:
    return Scorer(bundle.model, bundle.params, bundle.buffers, columns_of(bundle.recipe, bundle.inputs), bundle.scale)


def columns_of(recipe: Recipe, inputs: Inputs) -> Columns:
    """By their names in the hospital's file. What says whether a party knows a row is no column."""
    whole = Columns.of_recipe(recipe)
    if not inputs.parts:
        return whole
    place = {number: inputs.pixels + at for at, number in enumerate(inputs.places)}
    return Columns(whole.names, tuple(tuple(place[number] for number in own) for own in whole.places))


def background_of(bundle: Bundle) -> Background:
    """What a bundle knows of its training rows: their mean, from which no row can be read. One of patients that are
    protected has no mean either."""
    if bundle.out_of_distribution.kind == "distance":
        return Background(_inputs(bundle, bundle.out_of_distribution.mean[None]), AVERAGE)
    gaps = read_block(bundle.recipe, Block(1, {}, str), [column.name for column in bundle.recipe.columns]).table
    filled = replace(gaps, missing=np.zeros_like(gaps.missing))  # its indicators of gaps are those of a known value
    return Background(_inputs(bundle, bundle.recipe.apply(filled, np.arange(1))), FILLED)


def _inputs(bundle: Bundle, columns: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(bundle.inputs.prepared(columns, None, {}, bundle.dtype)).to(bundle.dtype)


def drawn_background(rows: np.ndarray, words: str, dtype: torch.dtype, linear: bool) -> Background:
    """At most `MOST_BACKGROUND` of the rows, at equal distances; of a linear model their mean is enough, so that all
    rows count."""
    chosen = at_equal_distances(len(rows), None if linear else MOST_BACKGROUND)
    count = f"{len(chosen)} of {len(rows):,}" if len(chosen) < len(rows) else f"{len(rows):,}"
    return Background(torch.from_numpy(rows[chosen]).to(dtype), f"{count} {words}")


def at_equal_distances(rows: int, most: int | None) -> np.ndarray:
    if most is None or rows <= most:
        return np.arange(rows)
    return np.unique(np.linspace(0, rows - 1, most).round().astype(np.int64))


def explain_prepared(
    bundle: Bundle,
    x: np.ndarray,
    *,
    method: str | None = None,
    background: Background | None = None,
    outputs: Sequence[int] | None = None,
) -> Explanation:
    """Of rows as the bundle prepares them."""
    compared = background_of(bundle) if background is None else background
    with torch_threads(1):
        return explain_rows(scorer_of(bundle), torch.from_numpy(x).to(bundle.dtype), compared, method, outputs=outputs)


def prepared_rows(bundle: Bundle, blocks: Sequence[Block]) -> np.ndarray:
    """Those that have a prediction."""
    scored, unscored = _scored(bundle, blocks)
    if not len(scored) or unscored.all():
        raise DataError("background", "no row of it has a prediction", "Give rows without the gaps that rule them out.")
    usable: np.ndarray = scored[~unscored]
    return usable


def _scored(bundle: Bundle, blocks: Sequence[Block]) -> tuple[np.ndarray, np.ndarray]:
    with torch_threads(1):
        read: list[Predicting] = [predict_block(bundle, block, steps=TO_SCORES) for block in blocks]
    x: np.ndarray = np.concatenate([known(rows.prepared).x for rows in read])
    return x, np.concatenate([known(rows.scored).unscored for rows in read])


def _explained(
    bundle: Bundle,
    blocks: Sequence[Block],
    method: str | None,
    compared: np.ndarray | None,
    most: int | None,
    checked: bool = False,
) -> ExplainedRows:
    x, unscored = _scored(bundle, blocks)
    numbers = np.flatnonzero(~unscored)
    if not len(numbers):
        raise DataError("rows", "none of them has a prediction", "`wardround predict` has a reason for each row.")
    chosen = numbers[at_equal_distances(len(numbers), most)]
    background = (
        background_of(bundle)
        if compared is None
        else drawn_background(compared, "rows that were given", bundle.dtype, bundle.model.linear)
    )
    explanation = explain_prepared(bundle, x[chosen], method=method, background=background)
    checks = checks_of_rows(bundle, x[chosen], background, explanation.method) if checked else ()
    return ExplainedRows(chosen, int(unscored.sum()), explanation, x[numbers], checks)


def checks_of_rows(bundle: Bundle, x: np.ndarray, background: Background, name: str) -> tuple[Check, ...]:
    """Of the method, for the last score, on a few of the rows; and whether it agrees with LIME."""
    scorer = scorer_of(bundle).of(len(output_names(bundle.task)) - 1)
    rows = torch.from_numpy(x[at_equal_distances(len(x), CHECKED)]).to(bundle.dtype)
    methods = {each: known_methods()[each]() for each in dict.fromkeys((name, YARDSTICK))}
    draws = seeds.generator(SEED, "explanation checks")
    with torch_threads(1):
        values = {
            each: method.attribute(scorer, rows, background.rows, draws).values for each, method in methods.items()
        }
        made = check_all(scorer, rows, background.rows, methods, values, draws)
    return tuple(check for check in made if check.method == methods[name].title or check.name == "agreement")
