"""The new hospital's rows: read, checked, split anew for each repeat, and cut into nested fractions."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from wardround.bundles.build.shared_part import SharedPart
from wardround.core import seeds
from wardround.core.errors import CheckError, DataError, StudyError, shown, suggest
from wardround.data.checks.before_training import CHECKS, Finding, check_splits
from wardround.data.cohort import Cohort, load_cohort, split_sites
from wardround.data.partition import PARTITIONERS
from wardround.data.sources import Source
from wardround.data.split import Split
from wardround.study.schema import Evaluation, Seeds

FRACTIONS = (0.1, 0.2, 0.5, 1.0)  # of the training patients
LEAST_ROWS = 10  # for training: fewer are no fraction worth a figure
LEAST_EACH = 2  # patients of a class, where there are


@dataclass(frozen=True, eq=False)
class Newcomer:
    name: str
    cohort: Cohort
    evaluation: Evaluation
    splits: Mapping[int, Split]  # by seed
    fractions: Mapping[float, Mapping[int, np.ndarray]]  # training rows, by fraction and seed
    left_out: Mapping[float, str]  # fractions that are too small, and why
    warnings: tuple[str, ...]


def read_newcomer(name: str, source: Source, part: SharedPart, repeats: int, accept: Collection[str] = ()) -> Newcomer:
    """Refused where its rows cannot be used with the shared part, or where no figure on them would be worth anything.

    `repeats` splits are drawn, with the seeds of the study from its first.
    """
    for check in accept:
        if check not in CHECKS:
            raise StudyError("--accept", f"there is no check {shown(check)}", suggest(check, CHECKS, "Checks"))
    if name in part.about["sites"]:
        problem = "the shared part has learnt from a hospital of this name, so that figures on its rows would flatter"
        remedy = "For that hospital, use `wardround bundle`. If this is another one, give it another `name`."
        raise CheckError(name, problem, remedy)
    cohort = load_cohort(source, part.preparation)
    refuse_other_classes(name, cohort, part)
    evaluation = Evaluation(
        part.about["evaluation"]["test_share"],
        part.about["evaluation"]["validation_share"],
        Seeds(part.about["first_seed"], repeats),
    )
    by_hospital = PARTITIONERS["by-hospital"]()
    splits = {seed: split_sites(cohort, by_hospital, evaluation, seed)[0] for seed in evaluation.seeds}
    found: dict[tuple[str, str, str], Finding] = {}
    for split in splits.values():
        findings = check_splits(cohort, [split], overlapping=False)
        refuse(findings, accept)
        found |= {finding.kind: finding for finding in findings}
    fractions, left_out = usable({f: fractions_of(cohort, splits, f) for f in FRACTIONS}, cohort)
    warnings = (*cohort.notes, *map(str, found.values()))
    return Newcomer(name, cohort, evaluation, splits, fractions, left_out, warnings)


def refuse_other_classes(name: str, cohort: Cohort, part: SharedPart) -> None:
    records = cohort.records
    if not records.is_table or records.has_findings:
        raise DataError(name, "has images or findings, and adapters are for tables with one outcome", "Give a table.")
    if records.classes == part.classes:
        return
    here, there = (", ".join(map(repr, names)) for names in (records.classes, part.classes))
    problem = f"its classes are {here}, and the shared part was trained for {there}"
    if set(records.classes) == set(part.classes):
        problem += ": the same in another order, which would turn every score round"
    remedy = (
        f"Say which word of the file means which class: `classes = [{', '.join(map(repr, part.classes))}]` and a table "
        "`[data.labels]` in the hospital's file. If the outcome is another one, this shared part is not for it."
    )
    raise DataError(name, problem, remedy)


def refuse(findings: Sequence[Finding], accept: Collection[str]) -> None:
    """The first error that is not accepted, with the others."""
    errors = [finding for finding in findings if finding.level == "error" and finding.check not in accept]
    if errors:
        first = errors[0]
        more = "".join(f"\n  Also: {error}" for error in errors[1:])
        knowingly = (
            "" if first.check == "no-rows" else f" If this is meant, accept it knowingly: --accept {first.check}."
        )
        raise CheckError(f"{first.site}: {first.check}", first.message, f"{first.remedy}{knowingly}{more}")


def fractions_of(cohort: Cohort, splits: Mapping[int, Split], share: float) -> dict[int, np.ndarray]:
    return {
        seed: fraction(split.train, cohort.records.target, cohort.patient, share, seed, split.site)
        for seed, split in splits.items()
    }


def fraction(
    rows: np.ndarray, target: np.ndarray, patient: np.ndarray, share: float, seed: int, site: str
) -> np.ndarray:
    """This share of the patients of each class, sorted. A smaller share is always a part of a larger one.

    `target` and `patient` are for all rows of the source; a patient's class is the highest of his rows.
    """
    member, groups = pd.factorize(patient[rows])
    label = np.full(len(groups), -1)
    np.maximum.at(label, member, target[rows])
    rng = seeds.generator(seed, "fractions", site=site)
    chosen = np.zeros(len(groups), dtype=bool)
    for value in np.unique(label):
        members = rng.permutation(np.flatnonzero(label == value))  # whatever the share: the first ones of one order
        wanted = int(np.floor(share * len(members) + 0.5))
        chosen[members[: max(wanted, min(LEAST_EACH, len(members)))]] = True
    return rows[chosen[member]]


def usable(
    drawn: Mapping[float, Mapping[int, np.ndarray]], cohort: Cohort
) -> tuple[dict[float, Mapping[int, np.ndarray]], dict[float, str]]:
    """Fractions that are large enough with every seed, and why the others are not."""
    kept: dict[float, Mapping[int, np.ndarray]] = {}
    left_out: dict[float, str] = {}
    for share, by_seed in drawn.items():
        rows = min(map(len, by_seed.values()))
        classes = min(len(np.unique(cohort.records.target[chosen])) for chosen in by_seed.values())
        if rows < LEAST_ROWS:
            left_out[share] = f"{rows} training rows, fewer than {LEAST_ROWS}"
        elif classes < 2:
            left_out[share] = "training rows of one class only"
        else:
            kept[share] = by_seed
    if not kept:
        problem = f"no fraction of its training rows is enough to train on ({next(reversed(left_out.values()))})"
        raise CheckError(next(iter(cohort.records.hospitals)), problem, "Bring more rows.")
    return kept, left_out


def of_fraction(split: Split, rows: np.ndarray) -> Split:
    return replace(split, train=rows)
