"""`wardround review score`: readers' decisions against the outcome, the model and each other.

Intervals are percentiles of a bootstrap. Cases are drawn with all their readings, because readings of one case resemble
each other; from `READERS_DRAWN` readers on, readers are drawn as well, by themselves (Owen's pigeonhole bootstrap, a
little wide), so that the interval is about readers and cases like these. With fewer readers it is about cases like
these, read by these readers.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import combinations
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from wardround.core import seeds
from wardround.core.atomic_files import write_atomically
from wardround.core.errors import as_path
from wardround.evaluation.intervals import CONFIDENCE
from wardround.privacy.disclosure.small_cells import suppress_small_count
from wardround.review.agreement import cohen_kappa, fleiss_kappa
from wardround.review.decisions import Decision, Key, Reading, load_key, read_all
from wardround.review.make import LOG
from wardround.runs.audit import AuditLog
from wardround.runs.folder import without_nan

RESAMPLES = 1000
READERS_DRAWN = 3
FEWEST_DEFINED = 0.5  # of the resamples; a figure that is defined in fewer has no interval
SMALLEST_CELL = 5
RESULTS, COUNTS = "review.json", "counts.json"
UNKNOWN = -1
COLUMNS: dict[str, type] = {"condition": int, "answer": int, "refer": bool, "seconds": float, "confidence": int}


@dataclass(frozen=True, eq=False)
class Readings:
    """A line for each decision."""

    reader: np.ndarray
    case: np.ndarray
    condition: np.ndarray
    answer: np.ndarray
    refer: np.ndarray
    seconds: np.ndarray
    confidence: np.ndarray
    truth: np.ndarray  # UNKNOWN where it is not known
    predicted: np.ndarray
    readers: tuple[str, ...]
    cases: int
    classes: int


Figure = Callable[[Readings, np.ndarray], float]  # of readings with weights
OfDrawn = Callable[[np.ndarray, np.ndarray], float]  # how often each reader, and each case, was drawn


def score_list(
    folder: str | PathLike[str], decisions: Sequence[str | Path], *, out: str | Path | None = None
) -> dict[str, Any]:
    """Check the files, score them, and write review.json and counts.json; into the list's folder, unless `out` names
    another. Every file is logged in the list's audit log."""
    place = as_path(folder, "LIST")
    key = load_key(place)
    read = read_all(key, [Path(file) for file in decisions])
    results = scored(key, read)
    target = place if out is None else as_path(out, "--out")
    target.mkdir(parents=True, exist_ok=True)
    write_atomically(target / RESULTS, _as_json(results))
    write_atomically(target / COUNTS, _as_json(counts_of(key, readings_of(key, read))))
    log = AuditLog(place / LOG)
    for reading in read:
        log.add("decisions taken", reader=reading.reader, decided=len(reading.decisions), head=reading.head)
    log.add("list scored", readers=len(read), readings=results["readings"])
    return results


def _as_json(content: dict[str, Any]) -> bytes:
    return (json.dumps(without_nan(content), indent=1, ensure_ascii=False) + "\n").encode()


def readings_of(key: Key, read: Sequence[Reading]) -> Readings:
    place_of = {code: place for place, code in enumerate(key.cases)}
    lines = [(place, decision) for place, reading in enumerate(read) for decision in reading.decisions]
    table = pd.DataFrame([vars(decision) for _, decision in lines], columns=[field.name for field in fields(Decision)])
    of_case = [key.cases[code] for code in table["case"]]
    of_lines = {name: table[name].to_numpy(kind) for name, kind in COLUMNS.items()}
    return Readings(
        reader=np.array([place for place, _ in lines], dtype=np.int64),
        case=np.array([place_of[code] for code in table["case"]], dtype=np.int64),
        truth=np.array([UNKNOWN if case["truth"] is None else case["truth"] for case in of_case], dtype=np.int64),
        predicted=np.array([case["predicted"] for case in of_case], dtype=np.int64),
        readers=tuple(reading.reader for reading in read),
        cases=len(key.cases),
        classes=len(key.answers),
        **of_lines,
    )


def scored(key: Key, read: Sequence[Reading]) -> dict[str, Any]:
    rows = readings_of(key, read)
    drawn = _Drawn(rows)
    conditions = {name: rows.condition == number for number, name in enumerate(key.conditions)}
    everywhere = np.ones(len(rows.case), dtype=bool)
    results: dict[str, Any] = {
        "list": key.list,
        "readings": len(rows.case),
        "cases": len(key.cases),
        "readers": {
            reading.reader: {
                "decided": len(reading.decisions),
                "of": len(key.readers[reading.reader]),
                "finished": reading.finished,
            }
            for reading in read
        },
        "interval": {"confidence": CONFIDENCE, "method": "percentile bootstrap", "resamples": RESAMPLES} | drawn.about,
        "conditions": {
            name: {"readings": int(here.sum())}
            | {figure: drawn.told(_of_readings(rows, here, how)) for figure, how in FIGURES.items()}
            for name, here in conditions.items()
        },
        "differences": {
            f"{later} - {earlier}": {
                figure: drawn.told(_difference(rows, conditions[later], conditions[earlier], FIGURES[figure]))
                for figure in COMPARED
            }
            for earlier, later in combinations(key.conditions, 2)
        },
        "agreement": {
            "between_readers": drawn.told(partial(_between_readers, rows)) if len(read) > 1 else None,
            "with_model": drawn.told(_of_readings(rows, everywhere, with_model)),
            "with_truth": drawn.told(_of_readings(rows, everywhere, with_truth)),
        },
        "model": {"accuracy": drawn.told(_of_readings(rows, everywhere, model_accuracy))},
    }
    return results


def counts_of(key: Key, rows: Readings) -> dict[str, Any]:
    """What may leave the hospital: counts by condition, without those of fewer than `SMALLEST_CELL` readings. Where one
    of a table is small, the table is withheld, because the others add up to a known whole."""
    tables: dict[str, Any] = {}
    for number, name in enumerate(key.conditions):
        here = rows.condition == number
        judged = here & (rows.truth >= 0)
        right = judged & (rows.answer == rows.truth)
        table = {
            "right": int(right.sum()),
            "wrong": int(judged.sum() - right.sum()),
        }
        referred = {"referred": int((here & rows.refer).sum()), "not_referred": int((here & ~rows.refer).sum())}
        tables[name] = {"readings": int(here.sum())}
        for part in (table, referred):
            small = any(suppress_small_count(count, SMALLEST_CELL) is None for count in part.values())
            tables[name] |= dict.fromkeys(part, None) if small else part
    return {"list": key.list, "readers": len(rows.readers), "smallest_cell": SMALLEST_CELL, "conditions": tables}


# Figures of weighted readings


def accuracy(rows: Readings, weights: np.ndarray) -> float:
    return _mean(rows.answer == rows.truth, np.where(rows.truth >= 0, weights, 0.0))


def sensitivity(rows: Readings, weights: np.ndarray) -> float:
    """Of two answers: among cases that have the last one."""
    return _mean(rows.answer == 1, np.where(rows.truth == 1, weights, 0.0)) if rows.classes == 2 else math.nan


def specificity(rows: Readings, weights: np.ndarray) -> float:
    return _mean(rows.answer == 0, np.where(rows.truth == 0, weights, 0.0)) if rows.classes == 2 else math.nan


def referrals(rows: Readings, weights: np.ndarray) -> float:
    return _mean(rows.refer, weights)


def seconds(rows: Readings, weights: np.ndarray) -> float:
    """The median: a reading that was interrupted counts as one."""
    if not weights.sum():
        return math.nan
    order = np.argsort(rows.seconds, kind="stable")
    reached = np.cumsum(weights[order])
    return float(rows.seconds[order][np.searchsorted(reached, reached[-1] / 2)])


def confidence(rows: Readings, weights: np.ndarray) -> float:
    return _mean(rows.confidence, weights)


def with_model(rows: Readings, weights: np.ndarray) -> float:
    return cohen_kappa(rows.answer, rows.predicted, weights, rows.classes)


def with_truth(rows: Readings, weights: np.ndarray) -> float:
    known = rows.truth >= 0
    return cohen_kappa(rows.answer[known], rows.truth[known], weights[known], rows.classes)


def followed_wrong(rows: Readings, weights: np.ndarray) -> float:
    """Among cases in which the model is wrong: answers that are the model's."""
    wrong = (rows.truth >= 0) & (rows.predicted != rows.truth)
    return _mean(rows.answer == rows.predicted, np.where(wrong, weights, 0.0))


def _mean(values: np.ndarray, weights: np.ndarray) -> float:
    total = weights.sum()
    return float(values @ weights / total) if total else math.nan


FIGURES: dict[str, Figure] = {
    "accuracy": accuracy,
    "sensitivity": sensitivity,
    "specificity": specificity,
    "referrals": referrals,
    "seconds": seconds,
    "confidence": confidence,
    "followed_wrong_model": followed_wrong,
    "kappa_with_model": with_model,
    "kappa_with_truth": with_truth,
}
COMPARED = ("accuracy", "sensitivity", "specificity", "referrals", "seconds", "kappa_with_model")


def model_accuracy(rows: Readings, weights: np.ndarray) -> float:
    """On the cases that were read, as often as they were."""
    return _mean(rows.predicted == rows.truth, np.where(rows.truth >= 0, weights, 0.0))


def _of_readings(rows: Readings, here: np.ndarray, figure: Figure) -> OfDrawn:
    """Of the readings that are here."""

    def value(of_reader: np.ndarray, of_case: np.ndarray) -> float:
        return figure(rows, here * of_reader[rows.reader] * of_case[rows.case])

    return value


def _difference(rows: Readings, here: np.ndarray, there: np.ndarray, figure: Figure) -> OfDrawn:
    one, other = _of_readings(rows, here, figure), _of_readings(rows, there, figure)
    return lambda of_reader, of_case: one(of_reader, of_case) - other(of_reader, of_case)


def _between_readers(rows: Readings, of_reader: np.ndarray, of_case: np.ndarray) -> float:
    """Over all conditions: two readers see a case under different ones more often than not."""
    return fleiss_kappa(rows.answer, rows.case, of_reader[rows.reader], of_case, rows.classes)


class _Drawn:
    """Weights of readings in each resample, the same for every figure, so that differences are paired."""

    def __init__(self, rows: Readings) -> None:
        self.rows = rows
        rng = seeds.generator(0, "readers and cases drawn")
        draws_readers = len(rows.readers) >= READERS_DRAWN
        one = np.ones(len(rows.readers))
        self.drawn = [
            (_times(len(rows.readers), rng) if draws_readers else one, _times(rows.cases, rng))
            for _ in range(RESAMPLES)
        ]
        self.about = {"clustered_by": ["case", "reader"] if draws_readers else ["case"]}

    def told(self, figure: OfDrawn) -> dict[str, Any]:
        value = figure(np.ones(len(self.rows.readers)), np.ones(self.rows.cases))
        values = np.array([figure(*pair) for pair in self.drawn])
        known = values[np.isfinite(values)]
        tails = [100 * (1 - CONFIDENCE) / 2, 100 * (1 + CONFIDENCE) / 2]
        # where all resamples are alike, as where nobody ever referred, they say nothing of what else may come
        enough = math.isfinite(value) and len(known) >= FEWEST_DEFINED * RESAMPLES and bool(np.ptp(known) > 0)
        return {"value": value, "interval": np.percentile(known, tails).tolist() if enough else None}


def _times(count: int, rng: np.random.Generator) -> np.ndarray:
    return np.bincount(rng.integers(count, size=count), minlength=count).astype(float)
