"""Predictions of a bundle for rows that it has never seen: of a file, of a table in memory, of single rows.

All three go through the same functions, and rows are scored in tiles of one fixed size. A matrix product may round
differently for one row than for a thousand; so a row has the same score to the last bit however it comes.
"""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd
import pyarrow as pa

from wardround.bundles.blocks import Block, Wanted, opened
from wardround.bundles.bundle import Bundle
from wardround.bundles.reading import Signs, headers, judge, read_block, together
from wardround.bundles.writing import Sheet, refuse_target, written
from wardround.data.sources.table import checked_names
from wardround.engines.threads import torch_threads
from wardround.errors import DataError

TILE = 1024
WORKERS = 2
# reasons that `why` may give
FAR = "far from the training rows"
UNSEEN = "unseen level"
OUTSIDE = "outside the known range"
INCOMPLETE = "incomplete"
NEW_GAP = "a gap where training had none"
BEYOND = "too large to compute with"
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


@dataclass(frozen=True)
class Done:
    """How far it is."""

    rows: int
    share: float | None  # of the file, where its length is known
    seconds: float


@dataclass(frozen=True)
class Predicted:
    """Of the rows of one block."""

    score: np.ndarray  # (rows,) or (rows, classes); NaN where a row has no prediction
    probability: np.ndarray | None
    call: np.ndarray  # class numbers; -1 where a row has no prediction
    far: np.ndarray
    why: pa.DictionaryArray  # in words; "" where nothing is to be said
    counts: Counter[str]
    signs: Mapping[str, Signs]
    kept: Mapping[str, pa.Array]

    def __len__(self) -> int:
        return len(self.call)


def predict_file(
    bundle: Bundle,
    source: str | Path,
    out: str | Path,
    keep: Sequence[str] = (),
    progress: Callable[[Done], None] | None = None,
) -> Summary:
    """Predict every row of a CSV (also .gz) or Parquet file, or of standard input (`-`), in constant memory.

    `out` is a .csv or .parquet file, or `-` for CSV on standard output. A file appears when all is done, or not at
    all. `keep` names columns that are copied beside the predictions.
    """
    began, sheet = time.perf_counter(), sheet_of(bundle, keep)
    refuse_target(out, source, sheet)
    whole = _Whole()
    with (
        opened(source, wanted(bundle, keep)) as found,
        torch_threads(1),
        written(out, sheet, found.kept) as target,
        ThreadPoolExecutor(WORKERS) as pool,
    ):
        made = _in_order(pool, lambda unread: predict_block(bundle, unread(), keep), found.blocks)
        numbered = ((first, one) for first, one in whole.numbered(made))
        for shaped in _in_order(pool, lambda pair: target.shaped(batch_of(bundle, sheet, *pair)), numbered):
            target.put(shaped)
            if progress is not None:
                progress(Done(whole.rows, found.share(), time.perf_counter() - began))
        if not whole.rows:
            raise DataError(found.name, "there is a header, but no row below it", "Export it again, with its rows.")
        judge(whole.signs, found.name)
    return whole.summary(bundle, time.perf_counter() - began)


def predict_table(bundle: Bundle, table: pd.DataFrame, keep: Sequence[str] = ()) -> pd.DataFrame:
    """The same for a table in memory, with the same numbers. Its columns may hold numbers, texts and dates."""
    sheet = sheet_of(bundle, keep)
    refuse_target("-", "-", sheet)
    names = checked_names(list(map(str, table.columns)), "table")
    places = wanted(bundle, keep).find(names, "table")
    where = "table, row {} (counted from 0)".format
    columns = {name: as_array(table.iloc[:, place], name, where) for name, place in places.items()}
    types = {name: columns[name].type for name in keep}
    block = Block(len(table), columns, where)
    with torch_threads(1):
        made = predict_block(bundle, block, keep)
    judge(made.signs, "table")
    predicted: pd.DataFrame = batch_of(bundle, sheet, 0, made).cast(sheet.schema(types)).to_pandas()
    return predicted


def predict_rows(bundle: Bundle, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same for single rows, by the names of their columns. A value is a number, a text, or None for a gap."""
    asked, where = wanted(bundle), "row {} (counted from 0)".format
    for number, row in enumerate(rows):
        missing = [name for name in asked.needed if name not in row]
        if missing:
            problem = f"there is no {', '.join(map(repr, missing))}"
            raise DataError(where(number), problem, "Give every column; null stands for a gap.")
        for name in (*asked.needed, *asked.optional):
            value = row.get(name)
            if isinstance(value, bool) or not isinstance(value, int | float | str | None):
                raise DataError(where(number), f"{name!r} is neither a number, a text nor null", "Give one of these.")
    columns = {
        name: as_array([row.get(name) for row in rows], name, where) for name in (*asked.needed, *asked.optional)
    }
    with torch_threads(1):
        made = predict_block(bundle, Block(len(rows), columns, where))
    judge(made.signs, "rows")
    found: list[dict[str, Any]] = batch_of(bundle, sheet_of(bundle), 0, made).drop_columns(["row"]).to_pylist()
    return found


def predict_block(bundle: Bundle, block: Block, keep: Sequence[str] = ()) -> Predicted:
    recipe = bundle.recipe
    read = read_block(recipe, block, bundle.unrecorded)
    every = np.arange(block.rows)
    with np.errstate(over="ignore", invalid="ignore"):  # a number beyond all bounds is told as `why`
        x = recipe.apply(read.table, every)
    outside = bundle.outside(read.table, every)
    score = _in_tiles(bundle.scores, x)
    far = bundle.is_far(x, outside) if bundle.far.kind == "ranges" else _in_tiles(bundle.is_far, x)
    recorded = [place for place, one in enumerate(recipe.columns) if one.name not in bundle.unrecorded]
    gaps: np.ndarray = read.table.missing[:, recorded]
    incomplete = np.asarray(gaps.any(axis=1))
    beyond_reach = np.isnan(score.reshape(block.rows, -1 if block.rows else 1)).any(axis=1)
    # where training left incomplete rows out, nothing is known of how well they are predicted
    dropped = recipe.settings.missing == "drop"
    unscored = beyond_reach | incomplete if dropped else beyond_reach
    score = np.where(unscored if score.ndim == 1 else unscored[:, None], np.nan, score)
    probability = bundle.probabilities(score)
    call = np.where(unscored, -1, bundle.calls(score))
    names = {c.name: c.written for c in recipe.columns if c.name not in recipe.layout.levels}
    too_far = {names[name]: rows for name, rows in outside.items() if name in names}
    # without indicators a layout does not tell which columns had gaps
    known = recipe.layout.indicators if recipe.settings.indicator and not dropped else [c.name for c in recipe.columns]
    new = {
        recipe.columns[place].written: gaps[:, i]
        for i, place in enumerate(recorded)
        if recipe.columns[place].name not in known
    }
    has_new = np.any([*new.values(), np.zeros(block.rows, dtype=bool)], axis=0)
    reasons: list[Reason] = [
        *((INCOMPLETE, recipe.columns[place].written, gaps[:, i]) for i, place in enumerate(recorded) if dropped),
        *((NEW_GAP, name, rows) for name, rows in new.items()),
        *((UNSEEN, name, rows) for name, rows in read.unseen.items()),
        *((OUTSIDE, name, rows) for name, rows in too_far.items()),
        (FAR, "", far if bundle.far.kind == "distance" else np.zeros(block.rows, dtype=bool)),
        (BEYOND, "", beyond_reach),
    ]
    counts = Counter(
        far=int(far.sum()),
        gaps=int((incomplete & ~has_new & ~unscored).sum()),
        new_gaps=int(has_new.sum()),
        unscored=int(unscored.sum()),
        unseen=_rows_of(read.unseen),
        outside=_rows_of(too_far),
    )
    counts.update({f"empty {recipe.columns[place].written}": int(gaps[:, i].sum()) for i, place in enumerate(recorded)})
    counts.update({f"call {number}": int((call == number).sum()) for number in range(len(bundle.classes))})
    kept = {name: block.columns[name] for name in keep}
    return Predicted(score, probability, call, far, in_words(reasons, block.rows), counts, read.signs, kept)


def batch_of(bundle: Bundle, sheet: Sheet, first: int, made: Predicted) -> pa.RecordBatch:
    scores = (made.score[:, None] if made.score.ndim == 1 else made.score).T.astype(np.float64)
    numbers = [*scores, *([] if made.probability is None else [made.probability])]
    call = pa.DictionaryArray.from_arrays(
        pa.array(made.call, mask=made.call < 0), pa.array(bundle.classes, pa.string())
    )
    columns = [
        pa.array(np.arange(first, first + len(made))),
        *made.kept.values(),
        *(pa.array(one, pa.float64(), from_pandas=True) for one in numbers),  # NaN becomes a gap
        call.dictionary_decode(),
        pa.array(made.far),
        made.why.dictionary_decode(),
    ]
    names = ["row", *made.kept, *sheet.scores, *(["probability"] if sheet.calibrated else []), "call", "far", "why"]
    return pa.RecordBatch.from_arrays(columns, names)


Reason = tuple[str, str, np.ndarray]  # what, in which column, in which rows


def in_words(reasons: Sequence[Reason], rows: int) -> pa.DictionaryArray:
    """A text per row. Each combination of reasons is put into words once."""
    reasons = [one for one in reasons if one[2].any()]
    code = np.zeros(rows, dtype=np.int64)
    combinations: list[tuple[int, ...]] = [()]
    for number, (_, _, chosen) in enumerate(reasons):
        code = 2 * code + chosen
        present = np.flatnonzero(np.bincount(code, minlength=1))
        combinations = [(*combinations[one // 2], *([number] if one % 2 else [])) for one in present.tolist()]
        renumbered = np.zeros(int(present[-1]) + 1, dtype=np.int64)
        renumbered[present] = np.arange(len(present))
        code = renumbered[code]
    texts = []
    for combination in combinations:
        said: dict[str, list[str]] = {}
        for number in combination:
            what, column, _ = reasons[number]
            said.setdefault(what, []).append(column)
        texts.append("; ".join(f"{what}: {', '.join(names)}" if any(names) else what for what, names in said.items()))
    return pa.DictionaryArray.from_arrays(pa.array(code.astype(np.int32)), pa.array(texts, pa.string()))


def as_array(values: Any, name: str, where: Callable[[int], str]) -> pa.Array:
    """A column of Python's or pandas' values. Where numbers and texts are mixed, numbers become texts without loss."""
    try:
        made = pa.array(values, from_pandas=True)
    except (pa.ArrowException, OverflowError, ValueError):
        texts = [_as_text(value) for value in values]
        broken = next((row for row, text in enumerate(texts) if not _is_unicode(text)), None)
        if broken is not None:
            problem = f"the text in {name!r} has half of a letter in it, which cannot be written as UTF-8"
            raise DataError(where(broken), problem, "Read the rows again with their right encoding.") from None
        made = pa.array(texts, pa.string())
    return made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made


def _as_text(value: Any) -> str | None:
    if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
        return None
    return value if isinstance(value, str) else repr(float(value)) if isinstance(value, float) else str(value)


def _is_unicode(text: str | None) -> bool:
    """Not so with a lone surrogate, which programs leave that decode carelessly."""
    return text is None or not any("\ud800" <= letter <= "\udfff" for letter in text)


def wanted(bundle: Bundle, keep: Sequence[str] = ()) -> Wanted:
    return Wanted(*headers(bundle.recipe, bundle.unrecorded), tuple(keep))


def sheet_of(bundle: Bundle, keep: Sequence[str] = ()) -> Sheet:
    return Sheet(tuple(keep), bundle.classes, bundle.calibration is not None)


@dataclass
class _Whole:
    """What is known of all blocks so far."""

    rows: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    signs: dict[str, Signs] = field(default_factory=dict)

    def numbered(self, made: Iterable[Predicted]) -> Iterator[tuple[int, Predicted]]:
        """Each with the number of its first row."""
        for one in made:
            yield self.rows, one
            self.rows += len(one)
            self.counts.update(one.counts)
            self.signs = together(self.signs, one.signs)

    def summary(self, bundle: Bundle, seconds: float) -> Summary:
        figures = {name: self.counts[name] for name in ("far", "gaps", "new_gaps", "unseen", "outside", "unscored")}
        needed = wanted(bundle).needed
        empty = tuple(name for name in needed if self.counts[f"empty {name}"] == self.rows)
        calls = {name: self.counts[f"call {number}"] for number, name in enumerate(bundle.classes)}
        return Summary(rows=self.rows, empty=empty, calls=calls, seconds=seconds, **figures)


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


def _in_tiles(work: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
    """`work` on rows in tiles of one size; the last is filled up with rows that are then forgotten."""
    filled = np.concatenate([x, np.zeros((-len(x) % TILE or (0 if len(x) else TILE), x.shape[1]))])
    parts = [work(filled[start : start + TILE]) for start in range(0, len(filled), TILE)]
    return np.concatenate(parts)[: len(x)]


def _rows_of(marks: Mapping[str, np.ndarray]) -> int:
    return int(np.any(list(marks.values()), axis=0).sum()) if marks else 0
