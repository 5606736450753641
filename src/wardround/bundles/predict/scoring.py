"""What a bundle says of some rows: scores, calls, marks, and how sure it is. `uncertainty.decision` has the rule.

Rows are scored in tiles of one fixed size. A matrix product may round differently for one row than for a thousand; so
a row has the same score to the last bit however it comes.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa
import torch

from wardround.bundles.bundle import Bundle
from wardround.bundles.predict.blocks import Block
from wardround.bundles.predict.reading import Read, Signs, read_block
from wardround.bundles.uncertainty import in_sets, measure, sets_of
from wardround.uncertainty import decision
from wardround.uncertainty.decision import Answers, Reason

TILE = 1024
IMAGES = 32  # in a tile
LABELS = ("absent", "present")  # of a finding, in its set
Mark = tuple[Reason, str, np.ndarray]  # why, of which column or finding, in which rows
Words = tuple[str, str, np.ndarray]


@dataclass(frozen=True)
class How:
    """What is asked of a prediction."""

    without: tuple[str, ...] = ()  # parties that are left out, whatever a file has of theirs
    uncertain: bool = True  # with intervals, sets and referral, where the bundle has them
    refer_share: float | None = None  # of rows like the validation rows; None: as the bundle says


@dataclass(frozen=True)
class Unsure:
    """Of the rows of one block; None where the bundle cannot say it."""

    low: np.ndarray | None
    high: np.ndarray | None
    answers: Answers | None
    refer: np.ndarray


@dataclass(frozen=True)
class Predicted:
    """Of the rows of one block."""

    score: np.ndarray  # (rows,), (rows, classes) or (rows, findings); NaN where a row has no prediction
    probability: np.ndarray | None
    call: np.ndarray  # class numbers, or (rows, findings) of 1 and 0; -1 where a row has no prediction
    far: np.ndarray
    why: pa.DictionaryArray  # every reason in words; "" where there is none
    counts: Counter[str]
    signs: Mapping[str, Signs]
    kept: Mapping[str, pa.Array]
    unsure: Unsure | None = None
    absent: pa.DictionaryArray | None = None  # parties of whom nothing is known, in words
    unreadable: Mapping[str, str] = field(default_factory=dict)  # by place: why

    def __len__(self) -> int:
        return len(self.call)


@dataclass(frozen=True)
class _Numbers:
    """What the model makes of rows."""

    score: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    unsure: np.ndarray


def predict_block(bundle: Bundle, block: Block, keep: Sequence[str] = (), how: How | None = None) -> Predicted:
    recipe, inputs, how = bundle.recipe, bundle.inputs, How() if how is None else how
    read = read_block(recipe, block, bundle.unrecorded)
    every = np.arange(block.rows)
    absent = absent_parties(bundle, block, how.without)
    with np.errstate(over="ignore", invalid="ignore"):  # a number beyond all bounds is told as `why`
        columns = recipe.apply(read.table, every)
        x = inputs.prepared(columns, block.images, absent, bundle.dtype)
        looks = inputs.looks(recipe, columns, block.images, absent, bundle.out_of_distribution.mean)
    outside = bundle.outside(read.table, every)
    made = _numbers(bundle, x, how)
    by_distance = bundle.out_of_distribution.kind == "distance"
    far = (
        in_tiles(bundle.is_out_of_distribution, looks, TILE)
        if by_distance
        else bundle.is_out_of_distribution(looks, outside)
    )
    recorded = [place for place, one in enumerate(recipe.columns) if one.name not in bundle.unrecorded]
    gaps = _gaps(bundle, read, absent)[:, recorded]
    incomplete = np.asarray(gaps.any(axis=1))
    unread = np.isin(every, list(block.unreadable))
    beyond_reach = np.isnan(made.score.reshape(block.rows, -1 if block.rows else 1)).any(axis=1)
    # where training left incomplete rows out, nothing is known of how well they are predicted
    dropped = recipe.settings.missing == "drop"
    unscored = (beyond_reach | incomplete if dropped else beyond_reach) | unread
    score = np.where(unscored if made.score.ndim == 1 else unscored[:, None], np.nan, made.score)
    called = bundle.predicted(score)
    call = np.where(unscored if called.ndim == 1 else unscored[:, None], -1, called)
    names = {c.name: c.own_name for c in recipe.columns if c.name not in recipe.layout.levels}
    too_far = {names[name]: rows for name, rows in outside.items() if name in names}
    # without indicators a layout does not tell which columns had gaps
    known = recipe.layout.indicators if recipe.settings.indicator and not dropped else [c.name for c in recipe.columns]
    new = {
        recipe.columns[place].own_name: gaps[:, i]
        for i, place in enumerate(recorded)
        if recipe.columns[place].name not in known
    }
    has_new = _any_of(list(new.values()), block.rows)
    outside_any = _any_of(list(too_far.values()), block.rows)
    marks: list[Mark] = [
        *(
            (decision.INCOMPLETE, recipe.columns[place].own_name, gaps[:, i])
            for i, place in enumerate(recorded)
            if dropped
        ),
        *((decision.NEW_GAP, name, rows) for name, rows in new.items()),
        *((decision.UNSEEN, name, rows) for name, rows in read.unseen.items()),
        *((decision.OUTSIDE, name, rows) for name, rows in too_far.items()),
        # by ranges a row is far because it is outside of one, and that is said with the column's name
        (decision.OUT_OF_DISTRIBUTION, "", far if by_distance else far & ~outside_any),
        (decision.TOO_LARGE, "", beyond_reach),
        (decision.UNREADABLE, "", unread),
    ]
    unsure = None
    if bundle.uncertainty is not None and how.uncertain:
        answers, doubts = _decided(bundle, made, call, unscored, how)
        marks = [one for one in (*marks, *doubts) if one[2].any()]
        unsure = _unsure(bundle, made, unscored, answers, _any_of([rows for _, _, rows in marks], block.rows))
    counts = Counter(
        far=int(far.sum()),
        gaps=int((incomplete & ~has_new & ~unscored).sum()),
        new_gaps=int(has_new.sum()),
        unscored=int(unscored.sum()),
        unseen=int(_any_of(list(read.unseen.values()), block.rows).sum()),
        outside=int(outside_any.sum()),
        referred=0 if unsure is None else int(unsure.refer.sum()),
    )
    counts.update(
        {f"empty {recipe.columns[place].own_name}": int(gaps[:, i].sum()) for i, place in enumerate(recorded)}
    )
    counts.update({f"absent {party}": int(gone.sum()) for party, gone in absent.items()})
    counts.update({f"why {code}": int(_any_of(own, block.rows).sum()) for code, own in _by_code(marks).items()})
    wanted = call if call.ndim == 1 else np.where(call == 1, np.arange(call.shape[1]), -1)
    counts.update({f"call {number}": int((wanted == number).sum()) for number in range(len(bundle.classes))})
    return Predicted(
        score,
        bundle.probabilities(score),
        call,
        far,
        in_words([(reason.text, name, rows) for reason, name, rows in marks], block.rows),
        counts,
        read.signs,
        {name: block.columns[name] for name in keep},
        unsure,
        in_words([(party, "", gone) for party, gone in absent.items()], block.rows) if inputs.parts else None,
        {block.place(row): why for row, why in block.unreadable.items()},
    )


def absent_parties(bundle: Bundle, block: Block, without: Sequence[str]) -> dict[str, np.ndarray]:
    """By party: rows that come without its columns, or for which it is left out. Gaps are gaps, as in training: a
    party that knows a patient and has no value of any column is there, and its gaps are filled."""
    found = {}
    every = np.ones(block.rows, dtype=bool)
    for party in bundle.inputs.optional_parties:
        if party in without:
            found[party] = every
        elif party == bundle.inputs.image_at:
            found[party] = np.full(block.rows, block.images is None)
        else:
            own = (bundle.inputs.columns or {}).get(party, ())
            held = [column.own_name for column in bundle.recipe.columns if column.name in own]
            lacking = [block.ungiven.get(name, ~every) if name in block.columns else every for name in held]
            found[party] = np.all([every, *lacking], axis=0) if held else ~every
    return found


def _gaps(bundle: Bundle, read: Read, absent: Mapping[str, np.ndarray]) -> np.ndarray:
    """Gaps that are filled: not those of a party for whom something else stands in."""
    gaps: np.ndarray = read.table.missing
    if not absent:
        return gaps
    gaps = gaps.copy()
    for party, gone in absent.items():
        own = (bundle.inputs.columns or {}).get(party, ())
        held = [place for place, column in enumerate(bundle.recipe.columns) if column.name in own]
        gaps[np.ix_(gone, np.array(held, dtype=np.int64))] = False
    return gaps


def _numbers(bundle: Bundle, x: np.ndarray, how: How) -> _Numbers:
    tile = TILE if bundle.inputs.images is None else IMAGES
    unsure = bundle.uncertainty
    if unsure is None or not how.uncertain:
        score = in_tiles(bundle.scores, x, tile)
        return _Numbers(score, score, score, score, np.zeros(len(score)))
    shape = (tile,) if bundle.model.classes == 2 and not bundle.findings else (tile, bundle.model.classes)

    def work(part: np.ndarray) -> np.ndarray:
        score = bundle.scores(part)
        numbers = torch.from_numpy(part).to(bundle.dtype)
        found = measure(unsure, bundle.model, bundle.params, bundle.buffers, numbers, score, bundle.thresholds)
        return np.column_stack([score.astype(np.float64), found.mean, found.low, found.high, found.uncertainty])

    every = in_tiles(work, x, tile)
    width = 1 if len(shape) == 1 else shape[1]
    ends = [0, *(width * (number + 1) for number in range(4))]
    each = [every[:, start:stop] for start, stop in pairwise(ends)]
    score, mean, low, high = (one[:, 0] if len(shape) == 1 else one for one in each)
    return _Numbers(score, mean, low, high, every[:, -1])


def _decided(
    bundle: Bundle, made: _Numbers, call: np.ndarray, unscored: np.ndarray, how: How
) -> tuple[Answers | None, list[Mark]]:
    """Answers of each row, and what there is to say of its prediction."""
    told = bundle.uncertainty
    if told is None:
        return None, []
    sets = sets_of(told, made.mean)
    answers = None if sets is None else decision.answers(sets, call)
    doubt = np.where(unscored, -np.inf, made.unsure)
    found: list[Mark] = []
    for reason, marks in decision.referral_reasons(doubt, told.cut(how.refer_share), answers).items():
        each = [("", marks)] if marks.ndim == 1 else zip(bundle.classes, marks.T, strict=True)
        found += [(reason, name, rows) for name, rows in each]
    return answers, found


def _unsure(bundle: Bundle, made: _Numbers, unscored: np.ndarray, answers: Answers | None, refer: np.ndarray) -> Unsure:
    blank = unscored if made.score.ndim == 1 else unscored[:, None]
    waver = bundle.uncertainty is not None and bundle.uncertainty.method != "none"
    low, high = (np.where(blank, np.nan, one) if waver else None for one in (made.low, made.high))
    return Unsure(low, high, answers, refer)


def _by_code(marks: Sequence[Mark]) -> dict[str, list[np.ndarray]]:
    """By reason, for each of its columns: which rows."""
    found: dict[str, list[np.ndarray]] = {}
    for reason, _, rows in marks:
        found.setdefault(reason.code, []).append(rows)
    return found


def set_columns(bundle: Bundle, made: Predicted) -> list[pa.Array]:
    """In words: one column, or one for each finding."""
    if made.unsure is None or made.unsure.answers is None:
        return []
    sets, unscored = made.unsure.answers.sets, np.isnan(made.score.reshape(len(made), -1)).any(axis=1)
    each = [(sets[:, f], LABELS) for f in range(sets.shape[1])] if bundle.findings else [(sets, bundle.classes)]
    columns = []
    for held, names in each:
        numbers, words = in_sets(held, names)
        told = pa.DictionaryArray.from_arrays(pa.array(numbers, mask=unscored), pa.array(words, pa.string()))
        columns.append(told.dictionary_decode())
    return columns


def in_words(reasons: Sequence[Words], rows: int) -> pa.DictionaryArray:
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


def in_tiles(work: Callable[[np.ndarray], np.ndarray], x: np.ndarray, tile: int) -> np.ndarray:
    """`work` on rows in tiles of one size; the last is filled up with rows that are then forgotten."""
    lacking = -len(x) % tile or (0 if len(x) else tile)
    filled = np.concatenate([x, np.zeros((lacking, *x.shape[1:]), dtype=x.dtype)]) if lacking else x
    parts = [work(filled[start : start + tile]) for start in range(0, len(filled), tile)]
    return np.concatenate(parts)[: len(x)]


def _any_of(marks: Sequence[np.ndarray], rows: int) -> np.ndarray:
    """Rows that any of the marks names."""
    found = np.zeros(rows, dtype=bool)
    for one in marks:
        found |= one
    return found
