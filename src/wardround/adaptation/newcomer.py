"""The new hospital's rows: read, checked, split for each repeat, and cut into nested fractions."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from wardround.bundles.build.shared_part import SharedPart
from wardround.core import seeds
from wardround.core.errors import CheckError, DataError, StudyError, shown, suggest
from wardround.core.notices import CHECKS, Notice, identity
from wardround.data.agreement import LEAST
from wardround.data.checks.before_training import accepted, check_splits, refuse_errors
from wardround.data.cohort import Cohort, load_cohort, split_sites
from wardround.data.partition import PARTITIONERS
from wardround.data.sources import Source
from wardround.data.sources.csv.columns import normalized_levels
from wardround.data.split import Split
from wardround.data.text_table import checked_names
from wardround.data.text_table import read_table as read_csv
from wardround.deployment.provisioning.kit_files import read_table
from wardround.privacy.disclosure.small_cells import suppress_small_count
from wardround.study.schema import Evaluation, Seeds
from wardround.tasks import Task

FRACTIONS = (0.1, 0.2, 0.5, 1.0)  # of the training patients
LEAST_ROWS = 10  # training rows of a fraction
LEAST_EACH = 2  # patients of a class in a fraction, where there are so many

HOW_TO_ACCEPT = "If this is meant, accept it knowingly: --accept {}."


@dataclass(frozen=True, eq=False)
class Newcomer:
    name: str
    cohort: Cohort
    evaluation: Evaluation
    splits: Mapping[int, Split]  # by seed
    fractions: Mapping[float, Mapping[int, np.ndarray]]  # training rows, by fraction and seed
    left_out: Mapping[float, str]  # fractions that are too small, and why
    notices: tuple[Notice, ...]


def read_newcomer(name: str, source: Source, part: SharedPart, repeats: int, accept: Collection[str] = ()) -> Newcomer:
    """Refused if its rows do not fit the shared part, or if results on them would be meaningless.

    `repeats` splits are drawn, with consecutive seeds from the study's first.
    """
    for check in accept:
        if check not in CHECKS:
            raise StudyError("--accept", f"there is no check {shown(check)}", suggest(check, CHECKS, "Checks"))
    if name in part.about["sites"]:
        problem = "the shared part was trained at a hospital of this name, so results on its rows would be too good"
        remedy = "For that hospital, use `wardround bundle`. If this is a different one, give it another `name`."
        raise CheckError(name, problem, remedy)
    cohort = load_cohort(source, part.preparation)
    refuse_other_task(name, cohort, part)
    evaluation = Evaluation(
        part.about["evaluation"]["test_share"],
        part.about["evaluation"]["validation_share"],
        Seeds(part.about["first_seed"], repeats),
    )
    by_hospital = PARTITIONERS["by-hospital"]()
    splits = {seed: split_sites(cohort, by_hospital, evaluation, seed)[0] for seed in evaluation.seeds}
    distinct: dict[tuple[object, ...], Notice] = {}
    for split in splits.values():
        notices = accepted(check_splits(cohort, [split], overlapping=False), accept)
        refuse_errors(notices, HOW_TO_ACCEPT)
        distinct |= {identity(notice): notice for notice in notices}
    strata, _ = cohort.records.task.coarse(cohort.records.target)
    patient = cohort.patient
    candidates = {
        share: {seed: fraction(s.train, strata, patient, share, seed, s.site) for seed, s in splits.items()}
        for share in FRACTIONS
    }
    fractions, left_out = usable(candidates, cohort)
    remarks = (*cohort.notices, *distinct.values())
    return Newcomer(name, cohort, evaluation, splits, fractions, left_out, remarks)


def refuse_other_task(name: str, cohort: Cohort, part: SharedPart) -> None:
    records = cohort.records
    if not records.is_table or records.has_findings:
        raise DataError(name, "has images or findings, but adapters need a table with one outcome", "Provide a table.")
    if records.task == part.task:
        return
    if records.task.kind != part.task.kind and not (records.classes and part.classes):
        problem = f"its outcome is read as {records.task.kind}, and the shared part was trained for {part.task.kind}"
        remedy = (
            f"Write `task = {part.task.kind!r}` in [data] of the hospital's file, if that is what its target holds."
        )
        raise DataError(name, problem, remedy)
    if not part.classes:
        _refuse_other_number(name, records.task, part.task)
        return
    own, expected = (", ".join(map(repr, names)) for names in (records.classes, part.classes))
    problem = f"its classes are {own}, but the shared part was trained for {expected}"
    if set(records.classes) == set(part.classes):
        problem += ": the same in another order, which would invert every score"
    remedy = (
        f"State which word of the file means which class: `classes = [{', '.join(map(repr, part.classes))}]` and a "
        "table `[data.labels]` in the hospital's file. If the outcome is a different one, this part does not fit."
    )
    raise DataError(name, problem, remedy)


def _refuse_other_number(name: str, own: Task, expected: Task) -> None:
    """A hospital may call its column otherwise; what is measured, and how, must be the same."""
    differing = {
        key: (own.to_json()[key], value)
        for key, value in expected.to_json().items()
        if key not in ("names", "range") and own.to_json()[key] != value
    }
    for key, (here, there) in differing.items():
        problem = f"its task has {key} = {here!r}, and the shared part was trained with {there!r}"
        remedy = f"Write `{key} = {there!r}` in [data.task] of the hospital's file, and give the target accordingly."
        raise DataError(name, problem, remedy)


def fraction(
    rows: np.ndarray, strata: np.ndarray, patient: np.ndarray, share: float, seed: int, site: str
) -> np.ndarray:
    """This share of the patients of each class, or of each fifth of a number, sorted. A smaller share is always a
    subset of a larger one.

    `strata` and `patient` are for all rows of the source; a patient's class is the highest of their rows.
    """
    member, groups = pd.factorize(patient[rows])
    label = np.full(len(groups), -1)
    np.maximum.at(label, member, strata[rows])
    rng = seeds.generator(seed, "fractions", site=site)
    chosen = np.zeros(len(groups), dtype=bool)
    for value in np.unique(label):
        members = rng.permutation(np.flatnonzero(label == value))  # the same order for every share
        count = int(np.floor(share * len(members) + 0.5))
        chosen[members[: max(count, min(LEAST_EACH, len(members)))]] = True
    return rows[chosen[member]]


def usable(
    candidates: Mapping[float, Mapping[int, np.ndarray]], cohort: Cohort
) -> tuple[dict[float, Mapping[int, np.ndarray]], dict[float, str]]:
    """Fractions that are large enough with every seed, and why the others are left out."""
    large_enough: dict[float, Mapping[int, np.ndarray]] = {}
    left_out: dict[float, str] = {}
    task = cohort.records.task
    for share, by_seed in candidates.items():
        rows = min(map(len, by_seed.values()))
        values = task.values(cohort.records.target)
        kinds = min(len(np.unique(values[chosen])) for chosen in by_seed.values())
        if rows < LEAST_ROWS:
            left_out[share] = f"{rows} training rows, fewer than {LEAST_ROWS}"
        elif kinds < 2:
            left_out[share] = f"training rows of one {task.answer.label} only"
        else:
            large_enough[share] = by_seed
    if not large_enough:
        problem = f"it has too few training rows ({next(reversed(left_out.values()))})"
        raise CheckError(next(iter(cohort.records.hospitals)), problem, "Provide more rows.")
    return large_enough, left_out


def target_vocabulary(hospital: str | Path, name: str, cohort: Cohort) -> list[dict[str, Any]]:
    """How the outcome was read: each `word` of the file, the `class` it stands for, and how many `rows` have it.

    A person must confirm it: in a study an inverted label shows by comparison with other hospitals, but not here. The
    word is None where the source has classes without words. Rows are None below five, which could identify somebody.
    """
    vocabulary = cohort.records.vocabulary.get(name)
    if not vocabulary:
        counts = cohort.records.task.label_counts(cohort.records.target)
        return [
            {"word": None, "class": name, "rows": suppress_small_count(rows, LEAST)} for name, rows in counts.items()
        ]
    rows = _rows_of_words(Path(hospital))
    return [
        {"word": word, "class": meaning, "rows": suppress_small_count(rows.get(word, 0), LEAST)}
        for word, meaning in vocabulary.items()
    ]


def _rows_of_words(hospital: Path) -> Mapping[str, int]:
    """Counted in the file itself, because the rows in memory have only classes."""
    path = (hospital / "site.toml" if hospital.is_dir() else hospital).absolute()
    data = read_table(path, "a hospital's file")["data"]
    cells = read_csv(path.parent / data["file"], data.get("separator", "auto"), checked_names)[data["target"]]
    counts = np.bincount(cells.codes[cells.codes >= 0], minlength=cells.distinct)
    rows: dict[str, int] = {}
    for word, count in zip(normalized_levels(cells), counts.tolist(), strict=True):
        rows[word.casefold()] = rows.get(word.casefold(), 0) + count
    return rows
