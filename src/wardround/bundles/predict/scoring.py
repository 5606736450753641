"""From a block of rows to predictions, step by step: read, prepare, score, calibrate, measure uncertainty, refer.

Rows are scored in tiles of one fixed size. A matrix product may round differently for one row than for a thousand; so
a row has the same score to the last bit however it comes. `uncertainty.decision` has the rule for referral.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import torch

from wardround.bundles.bundle import Bundle
from wardround.bundles.out_of_distribution import any_of
from wardround.bundles.predict.blocks import Block
from wardround.bundles.predict.reading import Notation, ReadBlock, read_block
from wardround.bundles.uncertainty import Uncertainty, conformal_sets, measure
from wardround.uncertainty import decision
from wardround.uncertainty.decision import Reason

TILE = 1024
IMAGES = 32  # in a tile
Mark = tuple[Reason, str, np.ndarray]  # the reason, its column or finding, and which rows it holds for


@dataclass(frozen=True)
class PredictOptions:
    without: tuple[str, ...] = ()  # parties that are left out, whatever a file has of theirs
    uncertainty: bool = True  # with intervals, prediction sets and referral, where the bundle has them
    refer_share: float | None = None  # of rows like the validation rows; None: the bundle's own


@dataclass(frozen=True)
class Predictions:
    """Of the rows of one block. What the bundle does not offer is None."""

    score: np.ndarray  # (rows,), (rows, classes) or (rows, findings); NaN where a row has no prediction
    probability: np.ndarray | None  # calibrated
    low: np.ndarray | None
    high: np.ndarray | None
    sets: np.ndarray | None  # (rows, classes), or (rows, findings, 2)
    predicted: np.ndarray  # class numbers, or (rows, findings) of 1 and 0; -1 where a row has no prediction
    out_of_distribution: np.ndarray
    missing_parties: pa.DictionaryArray | None  # their names
    refer: np.ndarray | None
    why: pa.DictionaryArray  # the text of every reason; "" where there is none
    counts: Counter[str]
    notations: Mapping[str, Notation]
    keep: Mapping[str, pa.Array]
    unreadable: Mapping[str, str] = field(default_factory=dict)  # by place: why

    def __len__(self) -> int:
        return len(self.predicted)

    @property
    def unscored(self) -> np.ndarray:
        return self.predicted < 0 if self.predicted.ndim == 1 else np.asarray((self.predicted < 0).any(axis=1))


@dataclass(frozen=True)
class _Prepared:
    """Rows as the model takes them, and what is unusual about them."""

    x: np.ndarray
    out_of_distribution: np.ndarray
    outside: Mapping[str, np.ndarray]  # by header: rows with a value outside the column's public range
    unseen: Mapping[str, np.ndarray]  # by header: rows with a level that no training row had
    gaps: Mapping[str, np.ndarray]  # by header of a column that this site records: rows in which it is filled
    new_gaps: Mapping[str, np.ndarray]  # those of columns that had no gap in training
    missing_parties: Mapping[str, np.ndarray]
    unreadable: np.ndarray
    notations: Mapping[str, Notation]


@dataclass(frozen=True)
class _Scored:
    score: np.ndarray  # NaN where there is none
    mean: np.ndarray  # over passes
    low: np.ndarray | None  # NaN where there is no score; None: there is no interval
    high: np.ndarray | None
    uncertainty: np.ndarray
    too_large: np.ndarray  # rows whose numbers give no score
    unscored: np.ndarray


def predict_block(
    bundle: Bundle, block: Block, keep: Sequence[str] = (), options: PredictOptions | None = None
) -> Predictions:
    options = PredictOptions() if options is None else options
    settings = bundle.uncertainty if options.uncertainty else None
    rows = _prepare(bundle, block, options)
    scored = _score(bundle, settings, rows)
    predicted = bundle.predicted(scored.score)
    predicted[scored.unscored] = -1
    marks, sets, refer = _marks_of_rows(bundle, rows, scored), None, None
    if settings is not None:
        sets, doubts = _decide(bundle, settings, scored, predicted, options.refer_share)
        marks += doubts
        refer = any_of((mark for _, _, mark in marks), block.rows)
    parties = [(party, "", missing) for party, missing in rows.missing_parties.items()]
    return Predictions(
        scored.score,
        bundle.probabilities(scored.score),
        scored.low,
        scored.high,
        sets,
        predicted,
        rows.out_of_distribution,
        join_texts(parties, block.rows) if bundle.inputs.parts else None,
        refer,
        join_texts([(reason.text, name, mark) for reason, name, mark in marks], block.rows),
        _count(bundle, rows, predicted, scored.unscored, marks, refer),
        rows.notations,
        {name: block.columns[name] for name in keep},
        {block.place(row): why for row, why in block.unreadable.items()},
    )


def _prepare(bundle: Bundle, block: Block, options: PredictOptions) -> _Prepared:
    recipe, inputs, ood = bundle.recipe, bundle.inputs, bundle.out_of_distribution
    read = read_block(recipe, block, bundle.unrecorded)
    every = np.arange(block.rows)
    missing = missing_parties(bundle, block, options.without)
    with np.errstate(over="ignore", invalid="ignore"):  # rows with too large numbers are marked
        columns = recipe.apply(read.table, every)
        x = inputs.prepared(columns, block.images, missing, bundle.dtype)
        looks = inputs.looks(recipe, columns, block.images, missing, ood.mean)
    outside = bundle.outside(read.table, every)
    if ood.kind == "distance":
        [marked] = in_tiles(lambda tile: (ood.marks(tile),), looks, TILE)
    else:
        marked = ood.marks(looks, outside)
    gaps = _gaps(bundle, read, missing)
    # without indicators a layout does not tell which columns had gaps
    indicated = recipe.settings.indicator and recipe.settings.missing != "drop"
    had_gaps = set(recipe.layout.indicators) if indicated else {column.name for column in recipe.columns}
    headers = {column.name: column.own_name for column in recipe.columns}
    return _Prepared(
        x,
        marked,
        {headers[name]: rows for name, rows in outside.items() if name not in recipe.layout.levels},
        read.unseen,
        {headers[name]: rows for name, rows in gaps.items()},
        {headers[name]: rows for name, rows in gaps.items() if name not in had_gaps},
        missing,
        np.isin(every, list(block.unreadable)),
        read.notations,
    )


def missing_parties(bundle: Bundle, block: Block, without: Sequence[str]) -> dict[str, np.ndarray]:
    """By party: rows that come without its columns, or for which it is left out. Gaps are gaps, as in training: a
    party that knows a patient and has no value of any column is there, and its gaps are filled."""
    missing = {}
    every = np.ones(block.rows, dtype=bool)
    for party in bundle.inputs.optional_parties:
        own = {column.own_name for column in bundle.recipe.columns if column.name in bundle.inputs.held_by(party)}
        if party in without:
            missing[party] = every
        elif party == bundle.inputs.image_at:
            missing[party] = np.full(block.rows, block.images is None)
        else:
            lacking = [block.without_column.get(name, ~every) if name in block.columns else every for name in own]
            missing[party] = np.all([every, *lacking], axis=0) if own else ~every
    return missing


def _gaps(bundle: Bundle, read: ReadBlock, missing: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """By column that this site records: rows in which a gap is filled. What a missing party holds is no gap."""
    gaps = {
        column.name: read.table.missing[:, place]
        for place, column in enumerate(bundle.recipe.columns)
        if column.name not in bundle.unrecorded
    }
    for party, rows in missing.items():
        gaps |= {name: gaps[name] & ~rows for name in bundle.inputs.held_by(party) if name in gaps}
    return gaps


def _score(bundle: Bundle, settings: Uncertainty | None, rows: _Prepared) -> _Scored:
    def score_tile(x: np.ndarray) -> tuple[np.ndarray, ...]:
        score = bundle.scores(x)
        if settings is None:
            return (score,)
        numbers = torch.from_numpy(x).to(bundle.dtype)
        measured = measure(settings, bundle.model, bundle.params, bundle.buffers, numbers, score, bundle.thresholds)
        return score, measured.mean, measured.low, measured.high, measured.uncertainty

    tile = TILE if bundle.inputs.images is None else IMAGES
    score, *measured = in_tiles(score_tile, rows.x, tile)
    mean, low, high, uncertainty = measured or (score, None, None, score)
    too_large = np.isnan(score.reshape(len(score), -1 if len(score) else 1)).any(axis=1)
    unscored = too_large | rows.unreadable
    if bundle.recipe.settings.missing == "drop":  # how well incomplete rows are predicted is not known
        unscored |= any_of(rows.gaps.values(), len(score))
    if settings is None or settings.method == "none":
        low = high = None
    for values in (score, low, high):
        if values is not None:
            values[unscored] = np.nan
    return _Scored(score, mean, low, high, uncertainty, too_large, unscored)


def _marks_of_rows(bundle: Bundle, rows: _Prepared, scored: _Scored) -> list[Mark]:
    """Reasons that do not depend on the prediction."""
    marked = rows.out_of_distribution
    if bundle.out_of_distribution.kind == "ranges":  # then the mark of the column says so already
        marked = marked & ~any_of(rows.outside.values(), len(marked))
    by_column = {decision.NEW_GAP: rows.new_gaps, decision.UNSEEN: rows.unseen, decision.OUTSIDE: rows.outside}
    if bundle.recipe.settings.missing == "drop":
        by_column = {decision.INCOMPLETE: rows.gaps, **by_column}
    return [
        *((reason, name, marks) for reason, columns in by_column.items() for name, marks in columns.items()),
        (decision.OUT_OF_DISTRIBUTION, "", marked),
        (decision.TOO_LARGE, "", scored.too_large),
        (decision.UNREADABLE, "", rows.unreadable),
    ]


def _decide(
    bundle: Bundle, settings: Uncertainty, scored: _Scored, predicted: np.ndarray, refer_share: float | None
) -> tuple[np.ndarray | None, list[Mark]]:
    """Prediction sets, and reasons that follow from the prediction."""
    conformal = conformal_sets(settings, bundle.model.task, scored.mean)
    answers = None if conformal is None else decision.answers(conformal, predicted)
    doubt = np.where(scored.unscored, -np.inf, scored.uncertainty)
    marks: list[Mark] = []
    for reason, rows in decision.referral_reasons(doubt, settings.cut(refer_share), answers).items():
        by_name = [("", rows)] if rows.ndim == 1 else zip(bundle.classes, rows.T, strict=True)
        marks += [(reason, name, own) for name, own in by_name]
    return None if answers is None else answers.sets, marks


def _count(
    bundle: Bundle,
    rows: _Prepared,
    predicted: np.ndarray,
    unscored: np.ndarray,
    marks: Sequence[Mark],
    refer: np.ndarray | None,
) -> Counter[str]:
    """Rows of each kind, for the summary."""
    size = len(unscored)
    new_gaps = any_of(rows.new_gaps.values(), size)
    kinds = {
        "out_of_distribution": rows.out_of_distribution,
        "gaps": any_of(rows.gaps.values(), size) & ~new_gaps & ~unscored,
        "new_gaps": new_gaps,
        "unscored": unscored,
        "unseen": any_of(rows.unseen.values(), size),
        "outside": any_of(rows.outside.values(), size),
        "referred": np.zeros(size, dtype=bool) if refer is None else refer,
        **{f"empty {name}": gaps for name, gaps in rows.gaps.items()},
        **{f"absent {party}": missing for party, missing in rows.missing_parties.items()},
    }
    for reason in {reason for reason, _, _ in marks}:
        kinds[f"why {reason.code}"] = any_of((mark for own, _, mark in marks if own == reason), size)
    for number in range(len(bundle.classes)):
        kinds[f"predicted {number}"] = predicted == number if predicted.ndim == 1 else predicted[:, number] == 1
    return Counter({kind: int(marked.sum()) for kind, marked in kinds.items()})


def join_texts(texts: Iterable[tuple[str, str, np.ndarray]], rows: int) -> pa.DictionaryArray:
    """A text per row, from texts, their columns and the rows that they hold for. Each combination is joined once."""
    present = [text for text in texts if text[2].any()]
    code = np.zeros(rows, dtype=np.int64)
    combinations: list[tuple[int, ...]] = [()]
    for number, (_, _, marks) in enumerate(present):
        code = 2 * code + marks
        used = np.flatnonzero(np.bincount(code))  # faster than np.unique, which sorts
        combinations = [(*combinations[old // 2], *([number] if old % 2 else [])) for old in used.tolist()]
        new_codes = np.zeros(int(used[-1]) + 1, dtype=np.int64)
        new_codes[used] = np.arange(len(used))
        code = new_codes[code]
    joined = []
    for combination in combinations:
        columns: dict[str, list[str]] = {}
        for number in combination:
            columns.setdefault(present[number][0], []).append(present[number][1])
        parts = [f"{text}: {', '.join(names)}" if any(names) else text for text, names in columns.items()]
        joined.append("; ".join(parts))
    return pa.DictionaryArray.from_arrays(pa.array(code.astype(np.int32)), pa.array(joined, pa.string()))


def in_tiles(work: Callable[[np.ndarray], tuple[np.ndarray, ...]], x: np.ndarray, tile: int) -> tuple[np.ndarray, ...]:
    """What `work` gives for rows in tiles of one size; the last is filled up with rows that are then dropped."""
    lacking = -len(x) % tile or (0 if len(x) else tile)
    filled = np.concatenate([x, np.zeros((lacking, *x.shape[1:]), dtype=x.dtype)]) if lacking else x
    parts = [work(filled[start : start + tile]) for start in range(0, len(filled), tile)]
    return tuple(np.concatenate(arrays)[: len(x)] for arrays in zip(*parts, strict=True))
