"""The steps of a prediction: read, prepare, score, calibrate, interval, decide, refer.

Rows are scored in tiles of one fixed size. A matrix product may round differently for one row than for a thousand; so
a row has the same score to the last bit however it comes. `uncertainty.decision` has the rule for referral.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import torch

from wardround.bundles.bundle import Bundle
from wardround.bundles.out_of_distribution import any_of
from wardround.bundles.predict.blocks import Block
from wardround.bundles.predict.pipeline import (
    Decided,
    Mark,
    Predicting,
    PredictOptions,
    Prepared,
    Scored,
    Step,
    Types,
    known,
    run_steps,
)
from wardround.bundles.predict.reading import ReadBlock, read_block
from wardround.bundles.uncertainty import Measured, Uncertainty, conformal_sets, measure, set_texts
from wardround.uncertainty import decision

TILE = 1024
IMAGES = 32  # in a tile


def predict_block(
    bundle: Bundle, block: Block, options: PredictOptions | None = None, steps: Sequence[Step] | None = None
) -> Predicting:
    """`steps` are STEPS, unless given."""
    rows = Predicting(bundle, block, PredictOptions() if options is None else options)
    return run_steps(STEPS if steps is None else steps, rows)


def read(rows: Predicting) -> Predicting:
    """The cells of the file as numbers and levels, and which parties know a row."""
    bundle, block = rows.bundle, rows.block
    missing = missing_parties(bundle, block, rows.options.without)
    cells = read_block(bundle.recipe, block, bundle.unrecorded, bundle.task.columns)
    return replace(rows, read=cells, missing_parties=missing)


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


def prepare(rows: Predicting) -> Predicting:
    """As the model takes them, and what is unusual about them."""
    bundle, block, cells, missing = rows.bundle, rows.block, known(rows.read), rows.missing_parties
    recipe, inputs, ood = bundle.recipe, bundle.inputs, bundle.out_of_distribution
    every = np.arange(block.rows)
    with np.errstate(over="ignore", invalid="ignore"):  # rows with too large numbers are marked
        columns = recipe.apply(cells.table, every)
        x = inputs.prepared(columns, block.images, missing, bundle.dtype)
        looks = inputs.looks(recipe, columns, block.images, missing, ood.mean)
    outside = bundle.outside(cells.table, every)
    if ood.kind == "distance":
        [marked] = in_tiles(lambda tile: (ood.marks(tile),), TILE, looks)
    else:
        marked = ood.marks(looks, outside)
    gaps = _gaps(bundle, cells, missing)
    # without indicators a layout does not tell which columns had gaps
    indicated = recipe.settings.indicator and recipe.settings.missing != "drop"
    had_gaps = set(recipe.layout.indicators) if indicated else {column.name for column in recipe.columns}
    headers = {column.name: column.own_name for column in recipe.columns}
    unexposed = bundle.task.unusable(cells.further)
    prepared = Prepared(
        x,
        marked,
        {headers[name]: marks for name, marks in outside.items() if name not in recipe.layout.levels},
        cells.unseen,
        {headers[name]: marks for name, marks in gaps.items()},
        {headers[name]: marks for name, marks in gaps.items() if name not in had_gaps},
        np.isin(every, list(block.unreadable)),
        bundle.beside(np.where(unexposed[:, None], 1.0, cells.further)),
        unexposed,
    )
    return replace(rows, prepared=prepared)


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


def score(rows: Predicting) -> Predicting:
    bundle, prepared = rows.bundle, known(rows.prepared)
    [model] = in_tiles(lambda x, y: (bundle.scores(x, y),), _tile(bundle), prepared.x, prepared.y)
    # of several findings one score that is no number is enough: the row has no prediction
    too_large = (~np.isfinite(model.reshape(len(model), len(bundle.answer.columns(""))))).any(axis=1)
    unscored = too_large | prepared.unreadable | prepared.unexposed
    if bundle.recipe.settings.missing == "drop":  # how well incomplete rows are predicted is not known
        unscored |= any_of(prepared.gaps.values(), len(model))
    scored = Scored(model, without(model, unscored), too_large, unscored)
    return replace(rows, scored=scored).adding(numbers(bundle.answer.scores, scored.score))


def score_columns(bundle: Bundle, options: PredictOptions) -> Types:
    return dict.fromkeys(bundle.answer.scores, pa.float64())


def calibrate(rows: Predicting) -> Predicting:
    """Probabilities of the events that have a calibration."""
    probability = rows.bundle.probabilities(known(rows.scored).score)
    if probability is None:
        return rows
    fitted = [event.calibration is not None for event in rows.bundle.events]
    by_event = probability.reshape(len(rows), len(fitted))[:, fitted]
    return rows.adding(numbers(tuple(probability_columns(rows.bundle, rows.options)), by_event))


def probability_columns(bundle: Bundle, options: PredictOptions) -> Types:
    names = zip(bundle.answer.columns("probability"), bundle.events, strict=False)
    return {name: pa.float64() for name, event in names if event.calibration is not None}


def interval(rows: Predicting) -> Predicting:
    """Low and high, and each row's doubt, where the bundle has them."""
    bundle, settings, scored = rows.bundle, rows.settings, known(rows.scored)
    if settings is None:
        return rows

    def measure_tile(x: np.ndarray, own: np.ndarray) -> tuple[np.ndarray, ...]:
        prepared = torch.from_numpy(x).to(bundle.dtype)
        m = measure(settings, bundle.model, bundle.params, bundle.buffers, prepared, own, bundle.thresholds)
        return m.mean, m.low, m.high, m.uncertainty

    measured = Measured(*in_tiles(measure_tile, _tile(bundle), known(rows.prepared).x, scored.model))
    columns = interval_columns(bundle, rows.options)
    ends = np.stack([without(end, scored.unscored) for end in (measured.low, measured.high)], axis=1)
    return replace(rows, measured=measured).adding(numbers(tuple(columns), ends) if columns else {})


def interval_columns(bundle: Bundle, options: PredictOptions) -> Types:
    settings = options.uncertainty_of(bundle)
    if settings is None or settings.method == "none":
        return {}
    return dict.fromkeys((*bundle.answer.columns("low"), *bundle.answer.columns("high")), pa.float64())


def decide(rows: Predicting) -> Predicting:
    """The predicted value, and the prediction sets that hold it."""
    answer, settings, scored = rows.bundle.answer, rows.settings, known(rows.scored)
    predicted = rows.bundle.predicted(scored.score)
    predicted[scored.unscored] = answer.nothing()
    conformal = None if settings is None else conformal_sets(settings, rows.bundle.task, known(rows.measured).mean)
    sets = None if conformal is None else decision.answers(conformal, predicted)
    columns = {} if sets is None else _set_columns(rows.bundle, sets.sets, scored.unscored)
    names, as_cells = answer.predicted_columns, CELLS[answer.cells]
    by_column = predicted.reshape(len(rows), len(names)).T if names else ()
    columns |= {name: as_cells(own, scored.unscored, answer.names) for name, own in zip(names, by_column, strict=True)}
    return replace(rows, decided=Decided(predicted, sets)).adding(columns)


def decision_columns(bundle: Bundle, options: PredictOptions) -> Types:
    settings, answer = options.uncertainty_of(bundle), bundle.answer
    sets = () if settings is None or settings.cuts is None else answer.choices
    kinds = {"text": pa.string(), "flag": pa.bool_()}
    return {
        **{f"prediction_set{choice.suffix}": pa.string() for choice in sets},
        **dict.fromkeys(answer.predicted_columns, kinds[answer.cells]),
    }


def _set_columns(bundle: Bundle, sets: np.ndarray, gaps: np.ndarray) -> dict[str, pa.Array]:
    choices = bundle.answer.choices
    by_choice = np.moveaxis(sets.reshape(len(sets), len(choices), -1), 1, 0)
    texts = {choice.suffix: set_texts(own, choice.labels) for choice, own in zip(choices, by_choice, strict=True)}
    return {f"prediction_set{suffix}": decoded(places, gaps, distinct) for suffix, (places, distinct) in texts.items()}


def refer(rows: Predicting) -> Predicting:
    """Everything that is unusual about a row, and whether a clinician should look at it."""
    prepared, scored, decided, settings = known(rows.prepared), known(rows.scored), known(rows.decided), rows.settings
    marks, referred = _marks_of_rows(rows.bundle, prepared, scored), None
    if settings is not None:
        marks += _doubts(rows, settings)
        referred = any_of((mark for _, _, mark in marks), len(rows))
    reasons = join_texts([(reason.text, name, mark) for reason, name, mark in marks], len(rows))
    absent = join_texts([(party, "", missing) for party, missing in rows.missing_parties.items()], len(rows))
    columns = {
        "out_of_distribution": pa.array(prepared.out_of_distribution),
        **({"absent": absent.dictionary_decode()} if rows.bundle.inputs.parts else {}),
        **({} if referred is None else {"refer": pa.array(referred)}),
        "why": reasons.dictionary_decode(),
    }
    counts = _count(rows, prepared, decided.predicted, scored.unscored, marks, referred)
    return replace(rows, refer=referred, counts=counts).adding(columns)


def referral_columns(bundle: Bundle, options: PredictOptions) -> Types:
    return {
        "out_of_distribution": pa.bool_(),
        **({"absent": pa.string()} if bundle.inputs.parts else {}),
        **({} if options.uncertainty_of(bundle) is None else {"refer": pa.bool_()}),
        "why": pa.string(),
    }


def _marks_of_rows(bundle: Bundle, rows: Prepared, scored: Scored) -> list[Mark]:
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
        (decision.UNEXPOSED, ", ".join(bundle.task.columns), rows.unexposed),
    ]


def _doubts(rows: Predicting, settings: Uncertainty) -> list[Mark]:
    """Reasons that follow from the prediction."""
    scored, sets = known(rows.scored), known(rows.decided).sets
    doubt = np.where(scored.unscored, -np.inf, known(rows.measured).uncertainty)
    by_row = decision.referral_reasons(doubt, settings.cut(rows.options.refer_share), None)
    marks: list[Mark] = [(reason, "", marked) for reason, marked in by_row.items()]
    if sets is not None:
        choices = rows.bundle.answer.choices
        for reason, each in ((decision.PREDICTION_ADDED, sets.added), (decision.NO_ANSWER_FITS, sets.empty)):
            by_choice = each.reshape(len(rows), len(choices)).T
            marks += [(reason, choice.about, own) for choice, own in zip(choices, by_choice, strict=True)]
    return marks


def _count(
    rows: Predicting,
    prepared: Prepared,
    predicted: np.ndarray,
    unscored: np.ndarray,
    marks: Sequence[Mark],
    referred: np.ndarray | None,
) -> Counter[str]:
    size = len(rows)
    new_gaps = any_of(prepared.new_gaps.values(), size)
    kinds = {
        "out_of_distribution": prepared.out_of_distribution,
        "gaps": any_of(prepared.gaps.values(), size) & ~new_gaps & ~unscored,
        "new_gaps": new_gaps,
        "unscored": unscored,
        "unseen": any_of(prepared.unseen.values(), size),
        "outside": any_of(prepared.outside.values(), size),
        "referred": np.zeros(size, dtype=bool) if referred is None else referred,
        **{f"empty {name}": gaps for name, gaps in prepared.gaps.items()},
        **{f"absent {party}": missing for party, missing in rows.missing_parties.items()},
    }
    for reason in {reason for reason, _, _ in marks}:
        kinds[f"why {reason.code}"] = any_of((mark for own, _, mark in marks if own == reason), size)
    labels = {f"predicted {name}": count for name, count in rows.bundle.answer.counts(predicted).items()}
    return Counter({kind: int(marked.sum()) for kind, marked in kinds.items()} | labels)


STEPS = (
    Step("read", read),
    Step("prepare", prepare),
    Step("score", score, score_columns),
    Step("calibrate", calibrate, probability_columns),
    Step("interval", interval, interval_columns),
    Step("decide", decide, decision_columns),
    Step("refer", refer, referral_columns),
)


def numbers(names: Sequence[str], values: np.ndarray) -> dict[str, pa.Array]:
    """Columns of numbers; NaN becomes a gap."""
    by_column = values.reshape(len(values), len(names)).T if names else ()
    return {name: number_cells(column) for name, column in zip(names, by_column, strict=True)}


def number_cells(values: np.ndarray) -> pa.Array:
    return pa.array(values.astype(np.float64), pa.float64(), from_pandas=True)


def decoded(places: np.ndarray, gaps: np.ndarray, texts: Sequence[str]) -> pa.Array:
    dictionary = pa.DictionaryArray.from_arrays(pa.array(places, mask=gaps), pa.array(texts, pa.string()))
    return dictionary.dictionary_decode()


# how a column of predicted values is written: of the values, the rows without one, and the names of labels
CELLS: dict[str, Callable[[np.ndarray, np.ndarray, Sequence[str]], pa.Array]] = {
    "text": decoded,
    "flag": lambda values, gaps, names: pa.array(values == 1, mask=gaps),
}


def without(values: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The same values, and NaN in these rows."""
    values = values.copy()
    values[rows] = np.nan
    return values


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


def in_tiles(work: Callable[..., tuple[np.ndarray, ...]], tile: int, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """What `work` gives for rows in tiles of one size; the last is filled up with rows that are then dropped."""
    rows = len(arrays[0])
    lacking = -rows % tile or (0 if rows else tile)
    filled = [
        np.concatenate([array, np.zeros((lacking, *array.shape[1:]), dtype=array.dtype)]) if lacking else array
        for array in arrays
    ]
    starts = range(0, rows + lacking, tile)
    parts = [work(*(array[start : start + tile] for array in filled)) for start in starts]
    return tuple(np.concatenate(results)[:rows] for results in zip(*parts, strict=True))


def _tile(bundle: Bundle) -> int:
    return TILE if bundle.inputs.arrays is None else IMAGES
