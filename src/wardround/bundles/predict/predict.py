"""Predictions of a bundle for rows that it has never seen: of a file, of images, of a table in memory, of single rows.

All go through the same steps (`scoring.py`), so that a row has the same score to the last bit however it comes.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa

from wardround.bundles.bundle import Bundle, load_bundle
from wardround.bundles.inputs import wrong_parties
from wardround.bundles.predict.blocks import Block, RequiredColumns, RowSource, open_rows
from wardround.bundles.predict.images import IMAGE, block_of_arrays, block_of_requests, open_images
from wardround.bundles.predict.pipeline import Predicting, PredictOptions, Step, columns_of
from wardround.bundles.predict.reading import Notation, merge_notations, refuse_ambiguous
from wardround.bundles.predict.recordings import RECORDING, block_of_signal_requests, block_of_signals, open_signals
from wardround.bundles.predict.scoring import STEPS, predict_block
from wardround.bundles.predict.writing import OutputColumns, open_output, refuse_output
from wardround.core.errors import DataError, StudyError, shown
from wardround.core.threads import torch_threads
from wardround.data.frames import as_array
from wardround.data.text_table import checked_names
from wardround.uncertainty.decision import REASONS

WORKERS = 2
NAMED = 5  # images in a message
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Summary:
    """Counts of rows. `seconds` is the time that prediction took."""

    rows: int
    out_of_distribution: int
    gaps: int  # rows in which a gap was filled, all in columns that had gaps in training too
    new_gaps: int  # rows with a gap in a column that had none in training
    unseen: int  # rows with a level that no training row had
    outside: int  # rows with a value outside a known range
    unscored: int  # rows without a prediction: incomplete, where training left such rows out; or numbers too large
    empty: tuple[str, ...]  # columns that the bundle needs and that have no value in any row
    predicted: Mapping[str, int]  # by class or finding
    seconds: float
    referred: int | None = None  # rows that a clinician should look at; None: the bundle does not refer
    absent: Mapping[str, int] = field(default_factory=dict)  # by party: rows of which nothing of it is known
    reasons: Mapping[str, int] = field(default_factory=dict)  # by code, as in `uncertainty.decision`: rows


@dataclass(frozen=True)
class Progress:
    rows: int
    share: float | None  # of the file, where its length is known
    seconds: float


def predict_file(
    bundle: Bundle | str | PathLike[str],
    source: str | Path,
    out: str | Path,
    keep: Sequence[str] = (),
    progress: Callable[[Progress], None] | None = None,
    options: PredictOptions | None = None,
    steps: Sequence[Step] = STEPS,
) -> Summary:
    """Predict every row of a CSV (also .gz) or Parquet file, or of standard input (`-`), in constant memory.

    For a bundle of signals, it is a folder of WFDB records, one .hea or .npz file, or a table of visits.
    For a bundle of images, `source` is a folder of images, one image, an .npz file, or a CSV that lists images. `out`
    is a .csv or .parquet file, or `-` for CSV on standard output. A file appears when all is done, or not at all.
    `keep` names columns that are copied into the output. `steps` are those of `scoring.STEPS`, and any that add columns
    of their own to the answer.
    """
    bundle = opened(bundle)
    options = checked_options(bundle, options)
    began, layout = time.perf_counter(), output_columns(bundle, keep, options, steps)
    refuse_output(out, source, layout)
    totals = _Totals()
    with (
        file_blocks(bundle, source, keep, options) as rows,
        torch_threads(1),
        open_output(out, layout, rows.keep) as output,
        ThreadPoolExecutor(WORKERS) as pool,
    ):

        def formatted(numbered: tuple[int, Predicting]) -> Any:
            return output.formatted(batch_of(layout, *numbered))

        blocks = _in_order(pool, lambda read: predict_block(bundle, read(), options, steps), rows.blocks)
        for content in _in_order(pool, formatted, totals.numbered(blocks)):
            output.write(content)
            if progress is not None:
                progress(Progress(totals.rows, rows.share(), time.perf_counter() - began))
        if not totals.rows:
            raise DataError(rows.name, "there is a header, but no row below it", "Export it again, with its rows.")
        totals.refuse_unreadable(rows.name)
        refuse_ambiguous(totals.notations, rows.name)
    return totals.summary(bundle, time.perf_counter() - began, options)


def predict_table(
    bundle: Bundle | str | PathLike[str],
    table: pd.DataFrame,
    keep: Sequence[str] = (),
    options: PredictOptions | None = None,
    steps: Sequence[Step] = STEPS,
) -> pd.DataFrame:
    """Predict every row of a table in memory, with the numbers that `predict_file` gives for its file.

    Its columns may hold numbers, texts and dates.
    """
    bundle = opened(bundle)
    options = checked_options(bundle, options)
    if bundle.inputs.images is not None and bundle.inputs.image_at not in options.without:
        raise DataError("table", "the bundle is for images", "Use predict_images, or predict_file.")
    if bundle.inputs.signals is not None:
        raise DataError("table", "the bundle is for signals", "Use predict_signals, or predict_file.")
    layout = output_columns(bundle, keep, options, steps)
    refuse_output("-", "-", layout)
    batch = _predict_in_memory(bundle, table_block(bundle, table, keep, options), layout, "table", options, steps)
    return _table_of(batch, layout)


def table_block(bundle: Bundle, table: pd.DataFrame, keep: Sequence[str], options: PredictOptions) -> Block:
    """The columns of a table that the bundle needs."""
    _refuse_other_type(table, pd.DataFrame, "table")
    names = checked_names(list(map(str, table.columns)), "table")
    places = required_columns(bundle, keep, options).locate(names, "table")
    where = "table, row {} (counted from 0)".format
    columns = {name: as_array(table.iloc[:, place], name, where) for name, place in places.items()}
    if bundle.inputs.images is not None:  # the party with the image is left out: its rows have no name
        columns[IMAGE] = pa.nulls(len(table), pa.string())
    return Block(len(table), columns, where)


def predict_images(
    bundle: Bundle | str | PathLike[str],
    images: np.ndarray,
    table: pd.DataFrame | None = None,
    options: PredictOptions | None = None,
    steps: Sequence[Step] = STEPS,
) -> pd.DataFrame:
    """Predict images in memory: (images, height, width) of 8 or 16 bits, grey, or with an axis of colours.

    `table` has a row for each, with the columns that the bundle takes besides the image: age, sex, view.
    """
    bundle = opened(bundle)
    options = checked_options(bundle, options)
    _refuse_other_type(images, np.ndarray, "images")
    if table is not None:
        _refuse_other_type(table, pd.DataFrame, "table")
    layout = output_columns(bundle, (), options, steps)
    block = block_of_arrays(bundle, images, table, options.without)
    return _table_of(_predict_in_memory(bundle, block, layout, "images", options, steps), layout)


def predict_signals(
    bundle: Bundle | str | PathLike[str],
    signals: np.ndarray,
    rate: float | None = None,
    options: PredictOptions | None = None,
    steps: Sequence[Step] = STEPS,
) -> pd.DataFrame:
    """Predict signals in memory: (recordings, channels, samples), NaN where nothing was measured.

    `rate` is their sampling rate, which need not be that of the training; sequences of visits have none.
    """
    bundle = opened(bundle)
    options = checked_options(bundle, options)
    _refuse_other_type(signals, np.ndarray, "signals")
    layout = output_columns(bundle, (), options, steps)
    block = block_of_signals(bundle, signals, rate)
    return _table_of(_predict_in_memory(bundle, block, layout, "signals", options, steps), layout)


def predict_rows(
    bundle: Bundle,
    rows: Sequence[Mapping[str, Any]],
    options: PredictOptions | None = None,
    steps: Sequence[Step] = STEPS,
) -> list[dict[str, Any]]:
    """Predict single rows, by the names of their columns. A value is a number, a text, or None for a gap. An
    image is the content of its file in base64; signals are lists of numbers with their `rate`, or `visits`."""
    options = checked_options(bundle, options)
    if not isinstance(rows, list | tuple) or not all(isinstance(row, Mapping) for row in rows):
        raise DataError("rows", f"expected a list of dicts, found {shown(rows)}", "Give a dict for each row.")
    required, where = required_columns(bundle, (), options), "row {} (counted from 0)".format
    of_parties = [name for party in required.parties for name in party]
    names = [*required.needed, *required.optional, *of_parties]
    for number, row in enumerate(rows):
        _refuse_row(row, required, names, where(number))
    if bundle.inputs.images is not None:
        block = block_of_requests(bundle, rows, options.without, where)
    elif bundle.inputs.signals is not None:
        block = block_of_signal_requests(bundle, rows, where)
    else:
        columns = {name: as_array([row.get(name) for row in rows], name, where) for name in names}
        without = {name: np.array([name not in row for row in rows], dtype=bool) for name in of_parties}
        block = Block(len(rows), columns, where, without_column=without)
    layout = output_columns(bundle, (), options, steps)
    batch = _predict_in_memory(bundle, block, layout, "rows", options, steps)
    return list(batch.drop_columns(["row", *layout.keep]).to_pylist())


def _refuse_row(row: Mapping[str, Any], required: RequiredColumns, names: Sequence[str], where: str) -> None:
    missing = [name for name in (*required.needed, *required.of_parties(row)) if name not in row]
    if missing:
        problem = f"there is no {', '.join(map(repr, missing))}"
        raise DataError(where, problem, "Give every column; null stands for a gap.")
    for name in names:
        value = row.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float | str | None):
            raise DataError(where, f"{name!r} is neither a number, a text nor null", "Give one of these.")


def _predict_in_memory(
    bundle: Bundle, block: Block, layout: OutputColumns, where: str, options: PredictOptions, steps: Sequence[Step]
) -> pa.RecordBatch:
    with torch_threads(1):
        predictions = predict_block(bundle, block, options, steps)
    for place, why in predictions.unreadable.items():
        raise DataError(place, f"the image cannot be read: {why}", "Give a PNG, JPEG or DICOM image, one picture each.")
    refuse_ambiguous(predictions.notations, where)
    return batch_of(layout, 0, predictions)


def _table_of(batch: pa.RecordBatch, layout: OutputColumns) -> pd.DataFrame:
    types = {name: batch.column(name).type for name in layout.keep}
    table: pd.DataFrame = batch.cast(layout.schema(types)).to_pandas()
    return table


def batch_of(layout: OutputColumns, first: int, rows: Predicting) -> pa.RecordBatch:
    """The answer as columns of the output; `first` is the number of the first row."""
    columns = {
        "row": pa.array(np.arange(first, first + len(rows))),
        **{name: rows.block.columns[name] for name in layout.keep},
        **{name: rows.columns[name] for name in layout.columns},
    }
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def required_columns(
    bundle: Bundle, keep: Sequence[str] = (), options: PredictOptions | None = None
) -> RequiredColumns:
    """Of a file of columns, by the names that it has for them.

    A file may have columns that only other sites recorded by now; training had gaps there, and so they are read as
    gaps. Columns of a party that may be missing are required together.
    """
    columns = bundle.recipe.columns
    needed = [column.own_name for column in columns if column.name not in bundle.unrecorded]
    optional = [column.own_name for column in columns if column.name in bundle.unrecorded]
    by_party = _columns_of_parties(bundle)
    of_parties = {name for names in by_party.values() for name in names}
    without = () if options is None else options.without
    return RequiredColumns(
        [*(name for name in needed if name not in of_parties), *bundle.task.columns],
        [name for name in optional if name not in needed],
        tuple(keep),
        tuple(names for party, names in by_party.items() if names and party not in without),
    )


def _columns_of_parties(bundle: Bundle) -> dict[str, tuple[str, ...]]:
    """Of parties that may be missing: the columns that each holds, by their names in a file."""
    headers, inputs = {column.name: column.own_name for column in bundle.recipe.columns}, bundle.inputs
    return {
        party: tuple(headers[name] for name in inputs.held_by(party) if name in headers)
        for party in inputs.optional_parties
    }


def output_columns(
    bundle: Bundle,
    keep: Sequence[str] = (),
    options: PredictOptions | None = None,
    steps: Sequence[Step] = STEPS,
) -> OutputColumns:
    name = () if bundle.inputs.images is None else (IMAGE,)
    name = name if bundle.inputs.signals is None else (RECORDING,)
    return OutputColumns((*name, *keep), columns_of(steps, bundle, PredictOptions() if options is None else options))


def checked_options(bundle: Bundle, options: PredictOptions | None) -> PredictOptions:
    """Refused where the bundle cannot do it."""
    options = PredictOptions() if options is None else options
    wrong = wrong_parties(bundle.inputs, options.without)
    if wrong is not None:
        others = ", ".join(bundle.inputs.optional_parties) or "none"
        raise StudyError("--without", wrong, f"Parties that may be left out: {others}.")
    if options.refer_share is None:
        return options
    if not 0 <= options.refer_share <= 1:
        raise StudyError("--refer-share", "is not a share", "Write 0.2 to refer one row in five.")
    uncertainty = bundle.uncertainty
    if not options.uncertainty or uncertainty is None or uncertainty.referral is None:
        why = "" if uncertainty is None or not uncertainty.unchosen else f": {uncertainty.unchosen}"
        raise StudyError("--refer-share", f"the bundle knows no cut for it{why}", "Leave it out.")
    return options


def file_blocks(
    bundle: Bundle, source: str | Path, keep: Sequence[str], options: PredictOptions
) -> AbstractContextManager[RowSource]:
    """The rows of a source, with the columns or images that the bundle needs."""
    if bundle.inputs.images is not None:
        return open_images(bundle, source, keep, options.without)
    if bundle.inputs.signals is not None:
        return open_signals(bundle, source, keep)
    return open_rows(source, required_columns(bundle, keep, options))


def opened(bundle: Bundle | str | PathLike[str]) -> Bundle:
    """A bundle that is loaded already, or that of a folder."""
    return bundle if isinstance(bundle, Bundle) else load_bundle(bundle)


def _refuse_other_type(value: object, expected: type, where: str) -> None:
    if not isinstance(value, expected):
        problem = f"expected an object of type {expected.__name__}, found {shown(value)}"
        raise DataError(where, problem, "Use predict_file for a file, and predict_rows for single rows.")


@dataclass
class _Totals:
    """Of all blocks so far."""

    rows: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    notations: dict[str, Notation] = field(default_factory=dict)
    unreadable: int = 0
    examples: dict[str, str] = field(default_factory=dict)  # the first few that cannot be read, and why

    def numbered(self, blocks: Iterable[Predicting]) -> Iterator[tuple[int, Predicting]]:
        """Each block with the number of its first row."""
        for block in blocks:
            yield self.rows, block
            self.rows += len(block)
            self.counts.update(block.counts)
            self.notations = merge_notations(self.notations, block.notations)
            self.unreadable += len(block.unreadable)
            self.examples.update(list(block.unreadable.items())[: NAMED - len(self.examples)])

    def refuse_unreadable(self, where: str) -> None:
        """After all images were read, so that all can be fixed at once. Nothing is written."""
        if self.unreadable:
            more = ", ..." if self.unreadable > NAMED else ""
            names = ", ".join(f"{name} ({why})" for name, why in self.examples.items())
            problem = f"{self.unreadable} of {self.rows} images cannot be read: {names}{more}"
            raise DataError(where, problem, "Fix them, or take them away, and predict again.")

    def summary(self, bundle: Bundle, seconds: float, options: PredictOptions) -> Summary:
        kinds = ("out_of_distribution", "gaps", "new_gaps", "unseen", "outside", "unscored")
        needed = required_columns(bundle).needed
        refers = options.uncertainty_of(bundle) is not None
        reasons = {reason.code: self.counts[f"why {reason.code}"] for reason in REASONS}
        return Summary(
            rows=self.rows,
            empty=tuple(name for name in needed if self.counts[f"empty {name}"] == self.rows),
            predicted={name: self.counts[f"predicted {name}"] for name in bundle.classes},
            seconds=seconds,
            referred=self.counts["referred"] if refers else None,
            absent={party: self.counts[f"absent {party}"] for party in bundle.inputs.optional_parties},
            reasons={code: count for code, count in reasons.items() if count},
            **{name: self.counts[name] for name in kinds},
        )


def _in_order(pool: ThreadPoolExecutor, work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """The results in the order of the items; a few are under way at a time, so that memory stays bounded."""
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > WORKERS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
