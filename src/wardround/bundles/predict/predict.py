"""Predictions of a bundle for rows that it has never seen: of a file, of images, of a table in memory, of single rows.

All go through the same functions (`scored.py`), so that a row has the same score to the last bit however it comes.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa

from wardround.bundles.bundle import Bundle
from wardround.bundles.inputs import wrong_parties
from wardround.bundles.predict.blocks import Block, Opened, Wanted, as_array, opened
from wardround.bundles.predict.image_request import block_of_arrays, block_of_rows
from wardround.bundles.predict.images import IMAGE, opened_pictures
from wardround.bundles.predict.reading import Signs, headers, judge, together
from wardround.bundles.predict.scoring import TILE as TILE
from wardround.bundles.predict.scoring import How as How
from wardround.bundles.predict.scoring import Predicted, predict_block, set_columns
from wardround.bundles.predict.scoring import in_words as in_words
from wardround.bundles.predict.writing import Sheet, refuse_target, written
from wardround.core.errors import DataError, StudyError, shown
from wardround.core.threads import torch_threads
from wardround.data.text_table import checked_names
from wardround.uncertainty.decision import REASONS

WORKERS = 2
NAMED = 5  # images in a message
Given = TypeVar("Given")
Made = TypeVar("Made")


@dataclass(frozen=True)
class Summary:
    """What was predicted, in counts. `seconds` is the time that it took."""

    rows: int
    far: int
    gaps: int  # rows in which a gap was filled, and every one where training had gaps too
    new_gaps: int  # rows with a gap in a column that had none in training
    unseen: int  # rows with a level that no training row had
    outside: int  # rows with a value outside a known range
    unscored: int  # rows without a prediction: incomplete, where training left such rows out; or numbers too large
    empty: tuple[str, ...]  # columns that the bundle needs and that have no value in any row
    calls: Mapping[str, int]
    seconds: float
    referred: int | None = None  # rows that a clinician should look at; None: nothing is said of it
    absent: Mapping[str, int] = field(default_factory=dict)  # by party: rows of which nothing of it is known
    reasons: Mapping[str, int] = field(default_factory=dict)  # by code, as in `uncertainty.decision`: rows


@dataclass(frozen=True)
class Done:
    """How far it is."""

    rows: int
    share: float | None  # of the file, where its length is known
    seconds: float


def predict_file(
    bundle: Bundle,
    source: str | Path,
    out: str | Path,
    keep: Sequence[str] = (),
    progress: Callable[[Done], None] | None = None,
    how: How | None = None,
) -> Summary:
    """Predict every row of a CSV (also .gz) or Parquet file, or of standard input (`-`), in constant memory.

    For a bundle of images, `source` is a folder of images, one image, an .npz file, or a CSV that lists images. `out`
    is a .csv or .parquet file, or `-` for CSV on standard output. A file appears when all is done, or not at all.
    `keep` names columns that are copied beside the predictions.
    """
    how = refuse_wish(bundle, how)
    began, sheet = time.perf_counter(), sheet_of(bundle, keep, how)
    refuse_target(out, source, sheet)
    whole = _Whole()
    with (
        _source(bundle, source, keep, how) as found,
        torch_threads(1),
        written(out, sheet, found.kept) as target,
        ThreadPoolExecutor(WORKERS) as pool,
    ):
        made = _in_order(pool, lambda unread: predict_block(bundle, unread(), sheet.keep, how), found.blocks)
        numbered = ((first, one) for first, one in whole.numbered(made))
        for shaped in _in_order(pool, lambda pair: target.shaped(batch_of(bundle, sheet, *pair)), numbered):
            target.put(shaped)
            if progress is not None:
                progress(Done(whole.rows, found.share(), time.perf_counter() - began))
        if not whole.rows:
            raise DataError(found.name, "there is a header, but no row below it", "Export it again, with its rows.")
        _refuse_unreadable(whole, found.name)
        judge(whole.signs, found.name)
    return whole.summary(bundle, time.perf_counter() - began, how)


def predict_table(
    bundle: Bundle, table: pd.DataFrame, keep: Sequence[str] = (), how: How | None = None
) -> pd.DataFrame:
    """The same for a table in memory, with the same numbers. Its columns may hold numbers, texts and dates."""
    how = refuse_wish(bundle, how)
    if needs_images(bundle, how):
        raise DataError("table", "the bundle is for images", "Use predict_images, or predict_file.")
    _refuse_other_kind(table, pd.DataFrame, "table")
    sheet = sheet_of(bundle, keep, how)
    refuse_target("-", "-", sheet)
    names = checked_names(list(map(str, table.columns)), "table")
    places = wanted(bundle, keep, how).find(names, "table")
    where = "table, row {} (counted from 0)".format
    columns = {name: as_array(table.iloc[:, place], name, where) for name, place in places.items()}
    block = Block(len(table), columns, where)
    if bundle.inputs.images is not None:  # whose party is left out: its rows have no name
        block = Block(len(table), {**columns, IMAGE: pa.nulls(len(table), pa.string())}, where)
    return _in_memory(bundle, block, sheet, "table", how)


def predict_images(
    bundle: Bundle, images: np.ndarray, table: pd.DataFrame | None = None, how: How | None = None
) -> pd.DataFrame:
    """The same for images in memory: (images, height, width) of 8 or 16 bits, grey, or with an axis of colours.

    `table` has a row for each, with the columns that the bundle takes beside the image: age, sex, view.
    """
    how = refuse_wish(bundle, how)
    _refuse_other_kind(images, np.ndarray, "images")
    if table is not None:
        _refuse_other_kind(table, pd.DataFrame, "table")
    sheet = sheet_of(bundle, (), how)
    block = block_of_arrays(bundle, images, table, how.without)
    return _in_memory(bundle, block, sheet, "images", how)


def predict_rows(bundle: Bundle, rows: Sequence[Mapping[str, Any]], how: How | None = None) -> list[dict[str, Any]]:
    """The same for single rows, by the names of their columns. A value is a number, a text, or None for a gap. An
    image is the content of its file in base64."""
    how = refuse_wish(bundle, how)
    asked, where = wanted(bundle, (), how), "row {} (counted from 0)".format
    if not isinstance(rows, list | tuple) or not all(isinstance(row, Mapping) for row in rows):
        raise DataError("rows", f"expected a list of dicts, found {shown(rows)}", "Give a dict for each row.")
    parties = [name for party in asked.together for name in party]
    optional = [*asked.optional, *parties]
    for number, row in enumerate(rows):
        given = [name for party in asked.together if any(one in row for one in party) for name in party]
        missing = [name for name in (*asked.needed, *given) if name not in row]
        if missing:
            problem = f"there is no {', '.join(map(repr, missing))}"
            raise DataError(where(number), problem, "Give every column; null stands for a gap.")
        for name in (*asked.needed, *optional):
            value = row.get(name)
            if isinstance(value, bool) or not isinstance(value, int | float | str | None):
                raise DataError(where(number), f"{name!r} is neither a number, a text nor null", "Give one of these.")
    if bundle.inputs.images is not None:
        block = block_of_rows(bundle, rows, how.without, where)
    else:
        named = (*asked.needed, *optional)
        columns = {name: as_array([row.get(name) for row in rows], name, where) for name in named}
        ungiven = {name: np.array([name not in row for row in rows], dtype=bool) for name in parties}
        block = Block(len(rows), columns, where, ungiven=ungiven)
    sheet = sheet_of(bundle, (), how)
    with torch_threads(1):
        made = predict_block(bundle, block, sheet.keep, how)
    _refuse_unread_row(made)
    judge(made.signs, "rows")
    told = batch_of(bundle, sheet, 0, made).drop_columns(["row", *sheet.keep])
    found: list[dict[str, Any]] = told.to_pylist()
    return found


def _in_memory(bundle: Bundle, block: Block, sheet: Sheet, where: str, how: How) -> pd.DataFrame:
    types = {name: block.columns[name].type for name in sheet.keep}
    with torch_threads(1):
        made = predict_block(bundle, block, sheet.keep, how)
    _refuse_unread_row(made)
    judge(made.signs, where)
    predicted: pd.DataFrame = batch_of(bundle, sheet, 0, made).cast(sheet.schema(types)).to_pandas()
    return predicted


def batch_of(bundle: Bundle, sheet: Sheet, first: int, made: Predicted) -> pa.RecordBatch:
    columns: dict[str, pa.Array] = {"row": pa.array(np.arange(first, first + len(made))), **made.kept}

    def put(names: Sequence[str], numbers: np.ndarray | None) -> None:
        if numbers is not None:
            each = (numbers[:, None] if numbers.ndim == 1 else numbers).T.astype(np.float64)
            # NaN becomes a gap
            columns.update(
                {n: pa.array(one, pa.float64(), from_pandas=True) for n, one in zip(names, each, strict=True)}
            )

    put(sheet.scores, made.score)
    probability = made.probability
    if probability is not None and sheet.findings:
        probability = probability[:, [bundle.classes.index(name) for name in sheet.with_calibration]]
    put(sheet.probabilities, probability)
    if made.unsure is not None:
        put(sheet.each("low") if sheet.interval else (), made.unsure.low)
        put(sheet.each("high") if sheet.interval else (), made.unsure.high)
        columns.update(zip(sheet.all_sets, set_columns(bundle, made), strict=True))
        columns["refer"] = pa.array(made.unsure.refer)
    if sheet.findings:
        each_call = zip(sheet.calls, made.call.T, strict=True)
        columns.update({name: pa.array(one == 1, mask=one < 0) for name, one in each_call})
    else:
        number = pa.array(made.call, mask=made.call < 0)
        columns["call"] = pa.DictionaryArray.from_arrays(
            number, pa.array(bundle.classes, pa.string())
        ).dictionary_decode()
    columns["far"] = pa.array(made.far)
    if made.absent is not None:
        columns["absent"] = made.absent.dictionary_decode()
    columns["why"] = made.why.dictionary_decode()
    names = ["row", *made.kept, *sheet.columns]
    return pa.RecordBatch.from_arrays([columns[name] for name in names], names)


def wanted(bundle: Bundle, keep: Sequence[str] = (), how: How | None = None) -> Wanted:
    """Of a file of columns. What is held by parties that may be absent is asked for party by party."""
    needed, optional = headers(bundle.recipe, bundle.unrecorded)
    inputs = bundle.inputs
    if not inputs.parts:
        return Wanted(needed, optional, tuple(keep))
    written = {column.name: column.own_name for column in bundle.recipe.columns}
    others = {
        party: [written[name] for name in (inputs.columns or {})[party] if name in written]
        for party in inputs.optional_parties
    }
    theirs = {name for names in others.values() for name in names}
    left_out = () if how is None else how.without
    asked = tuple(tuple(names) for party, names in others.items() if names and party not in left_out)
    return Wanted([name for name in needed if name not in theirs], optional, tuple(keep), asked)


def needs_images(bundle: Bundle, how: How) -> bool:
    return bundle.inputs.images is not None and bundle.inputs.image_at not in how.without


def sheet_of(bundle: Bundle, keep: Sequence[str] = (), how: How | None = None) -> Sheet:
    unsure = bundle.uncertainty if how is None or how.uncertain else None
    fitted = zip(bundle.classes, bundle.findings, strict=False)
    return Sheet(
        (*((IMAGE,) if bundle.inputs.images is not None else ()), *keep),
        bundle.classes,
        bundle.calibration is not None,
        bool(bundle.findings),
        tuple(name for name, one in fitted if one.calibration is not None),
        unsure is not None and unsure.method != "none",
        unsure is not None and unsure.cuts is not None,
        unsure is not None,
        bool(bundle.inputs.parts),
    )


def refuse_wish(bundle: Bundle, how: How | None) -> How:
    """What cannot be asked of this bundle."""
    how = How() if how is None else how
    wrong = wrong_parties(bundle.inputs, how.without)
    if wrong is not None:
        others = ", ".join(bundle.inputs.optional_parties) or "none"
        raise StudyError("--without", wrong, f"Parties that may be left out: {others}.")
    if how.refer_share is None:
        return how
    if not 0 <= how.refer_share <= 1:
        raise StudyError("--refer-share", "is not a share", "Write 0.2 to refer one row in five.")
    told = bundle.uncertainty
    if not how.uncertain or told is None or told.referral is None:
        why = "" if told is None or not told.unchosen else f": {told.unchosen}"
        raise StudyError("--refer-share", f"the bundle knows no cut for it{why}", "Leave it out.")
    return how


def _source(bundle: Bundle, source: str | Path, keep: Sequence[str], how: How) -> AbstractContextManager[Opened]:
    if bundle.inputs.images is not None:
        return opened_pictures(bundle, source, keep, how.without)
    return opened(source, wanted(bundle, keep, how))


def _refuse_other_kind(given: object, kind: type, where: str) -> None:
    if not isinstance(given, kind):
        problem = f"expected an object of type {kind.__name__}, found {shown(given)}"
        raise DataError(where, problem, "Use predict_file for a file, and predict_rows for single rows.")


def _refuse_unreadable(whole: "_Whole", where: str) -> None:
    """After all were looked at, so that all can be mended at once. Nothing is written."""
    names = list(whole.unreadable)
    if names:
        more = ", ..." if whole.unread > NAMED else ""
        told = ", ".join(f"{name} ({whole.unreadable[name]})" for name in names)
        problem = f"{whole.unread} of {whole.rows} images cannot be read: {told}{more}"
        raise DataError(where, problem, "Mend them, or take them away, and predict again.")


def _refuse_unread_row(made: Predicted) -> None:
    for place, why in made.unreadable.items():
        raise DataError(place, f"the image cannot be read: {why}", "Give a PNG, JPEG or DICOM image, one picture each.")


@dataclass
class _Whole:
    """What is known of all blocks so far."""

    rows: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    signs: dict[str, Signs] = field(default_factory=dict)
    unread: int = 0
    unreadable: dict[str, str] = field(default_factory=dict)  # the first few

    def numbered(self, made: Iterable[Predicted]) -> Iterator[tuple[int, Predicted]]:
        """Each with the number of its first row."""
        for one in made:
            yield self.rows, one
            self.rows += len(one)
            self.counts.update(one.counts)
            self.signs = together(self.signs, one.signs)
            self.unread += len(one.unreadable)
            for place, why in list(one.unreadable.items())[: NAMED - len(self.unreadable)]:
                self.unreadable[place] = why

    def summary(self, bundle: Bundle, seconds: float, how: How) -> Summary:
        figures = {name: self.counts[name] for name in ("far", "gaps", "new_gaps", "unseen", "outside", "unscored")}
        needed = wanted(bundle).needed
        empty = tuple(name for name in needed if self.counts[f"empty {name}"] == self.rows)
        calls = {name: self.counts[f"call {number}"] for number, name in enumerate(bundle.classes)}
        says = bundle.uncertainty is not None and how.uncertain
        absent = {party: self.counts[f"absent {party}"] for party in bundle.inputs.optional_parties}
        return Summary(
            rows=self.rows,
            empty=empty,
            calls=calls,
            seconds=seconds,
            referred=self.counts["referred"] if says else None,
            absent=absent,
            reasons={one.code: self.counts[f"why {one.code}"] for one in REASONS if self.counts[f"why {one.code}"]},
            **figures,
        )


def _in_order(pool: ThreadPoolExecutor, work: Callable[[Given], Made], items: Iterable[Given]) -> Iterator[Made]:
    """What `work` makes of each item, in their order; a few are under way at a time, so that memory stays bounded."""
    waiting: deque[Future[Made]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > WORKERS:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for one in waiting:
            one.cancel()
