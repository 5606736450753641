"""Honest data on which no check may be wrong, and mistakes planted in them, all of which must be found."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from wardround.data.cohort import Cohort
from wardround.data.records import Column, Records
from wardround.data.sources.heart import heart
from wardround.data.split import Split, fingerprints

Plant = Callable[[pd.DataFrame, np.ndarray, np.random.Generator], pd.DataFrame]


def cohort_of(
    table: pd.DataFrame,
    target: np.ndarray,
    hospital: np.ndarray,
    patient: np.ndarray | None = None,
    classes: tuple[str, ...] = ("no", "yes"),
) -> Cohort:
    columns = tuple(
        Column(str(name), "numeric" if table[name].dtype.kind == "f" else "categorical") for name in table.columns
    )
    records = Records(table, target, classes, hospital, columns, patient)
    return Cohort(records, np.arange(len(target)), fingerprints(records), ())


def by_hospital(data: Cohort) -> list[Split]:
    """Every fifth row of a hospital is a test row."""
    splits = []
    for name in data.records.hospitals:
        rows = np.flatnonzero(data.records.hospital == name)
        test = np.arange(len(rows)) % 5 == 0
        splits.append(Split(name, rows[~test], rows[:0], rows[test]))
    return splits


def honest_data(seed: int) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """A table, its target and hospitals. Every fifth is real, or drawn from real rows; the others are made up: sites of
    12 to 600 rows, outcomes of 1 to 50 %, columns with an AUC up to 0.95, codes with many levels, gaps that have to do
    with the outcome, and units and rates that differ between the hospitals."""
    rng = np.random.default_rng(seed)
    if seed % 5 == 0:
        return _real(seed // 5, rng)
    sizes = rng.integers(12, rng.choice([40, 200, 600]), rng.integers(1, 7))
    hospital = np.repeat(np.array([f"h{i}" for i in range(len(sizes))], dtype=object), sizes)
    count = len(hospital)
    rate = rng.uniform(0.01, 0.5)
    site = np.unique(hospital, return_inverse=True)[1]
    target = (rng.random(count) < np.clip(rate * rng.uniform(0.3, 2, len(sizes))[site], 0.005, 0.9)).astype(np.int64)
    target[rng.integers(count)] ^= 1  # never all of one class
    table = {}
    for number in range(rng.integers(3, 25)):
        strength = rng.choice([0.0, 0.5, 1.8, 2.33])  # AUC 0.5, 0.64, 0.9 and 0.95
        unit = rng.lognormal(0, rng.choice([0, 2]), len(sizes))[site]
        table[f"x{number}"] = (rng.normal(size=count) + strength * target) * unit
    table["marker"] = np.where((target == 1) & (rng.random(count) < 0.8), 1.0, 0.0)  # specific: AUC 0.9
    gaps = rng.random(count) < np.where(target == 1, 0.7, 0.1)
    table["lactate"] = np.where(gaps, np.nan, rng.lognormal(size=count))
    words = pd.DataFrame(table)
    words["code"] = rng.integers(0, max(2, count // 3), count).astype(str).astype(object)  # nearly an identifier
    words["ward"] = np.where(rng.random(count) < 0.7, np.where(target == 1, "icu", "ward"), "other").astype(object)
    return words, target, hospital


def _real(number: int, rng: np.random.Generator) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """The heart hospitals and three shipped with scikit-learn, each whole once and then as a draw of its rows."""
    loaders = (_heart, _breast, _diabetes, _wine)
    table, target, hospital = loaders[number % len(loaders)]()
    if number < len(loaders):
        return table, target, hospital
    rows = np.sort(rng.permutation(len(target))[: rng.integers(40, len(target) + 1)])
    return table.iloc[rows].reset_index(drop=True), target[rows], hospital[rows]


def _heart() -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    records = heart().load()
    assert isinstance(records.features, pd.DataFrame)
    return records.features, records.target, records.hospital


def _breast() -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    from sklearn.datasets import load_breast_cancer

    return _of_one_hospital(load_breast_cancer(), lambda target: target)


def _diabetes() -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    from sklearn.datasets import load_diabetes

    return _of_one_hospital(load_diabetes(), lambda target: target > np.median(target))


def _wine() -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    from sklearn.datasets import load_wine

    return _of_one_hospital(load_wine(), lambda target: target == 1)


def _of_one_hospital(
    data: dict[str, np.ndarray], label: Callable[[np.ndarray], np.ndarray]
) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    values = np.asarray(data["data"], dtype=float)
    table = pd.DataFrame(values, columns=[f"x{place}" for place in range(values.shape[1])])
    return table, label(np.asarray(data["target"])).astype(np.int64), np.full(len(values), "clinic", dtype=object)


def _copy(table: pd.DataFrame, target: np.ndarray, rng: np.random.Generator) -> pd.DataFrame:
    return table.assign(planted=target.astype(float))


def _inverse(table: pd.DataFrame, target: np.ndarray, rng: np.random.Generator) -> pd.DataFrame:
    """A score made of the outcome, upside down, on another scale."""
    return table.assign(planted=-3 * target + rng.normal(size=len(target)) * 0.2)


def _category(table: pd.DataFrame, target: np.ndarray, rng: np.random.Generator) -> pd.DataFrame:
    """Where a patient went: five words, of which three are of the survivors."""
    words = np.where(
        target == 1, rng.choice(["morgue", "hospice"], len(target)), rng.choice(["home", "clinic"], len(target))
    )
    return table.assign(planted=words.astype(object))


def _code(table: pd.DataFrame, target: np.ndarray, rng: np.random.Generator) -> pd.DataFrame:
    """Numbers that are codes, in no order: 1, 3 and 5 are of one class."""
    return table.assign(planted=(2.0 * rng.integers(0, 3, len(target)) + target))


def _date(table: pd.DataFrame, target: np.ndarray, rng: np.random.Generator) -> pd.DataFrame:
    """Years since 2000: cases were collected before the controls."""
    return table.assign(planted=np.where(target == 1, 18.0, 21.0) + rng.random(len(target)) * 2)


def _gap(table: pd.DataFrame, target: np.ndarray, rng: np.random.Generator) -> pd.DataFrame:
    """The day of death, which only the dead have."""
    return table.assign(planted=np.where(target == 1, rng.random(len(target)) * 30, np.nan))


def _nearly(table: pd.DataFrame, target: np.ndarray, rng: np.random.Generator) -> pd.DataFrame:
    """A copy of the outcome in which one row in 300 is wrong."""
    wrong = np.zeros(len(target), dtype=bool)
    wrong[rng.permutation(len(target))[: len(target) // 300]] = True
    return table.assign(planted=np.where(wrong, 1 - target, target).astype(float))


PLANTS: dict[str, Plant] = {
    "copy": _copy,
    "inverse": _inverse,
    "category": _category,
    "code": _code,
    "date": _date,
    "gap": _gap,
    "nearly": _nearly,
}


def coarse_federation(seed: int) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    """Two to seven hospitals with 3 to 8 columns of two to six levels that depend on each other through up to four
    kinds of patients, some with an age in years, some with a column that follows from another: many rows are equal."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(30, 500, rng.integers(2, 8))
    hospital = np.repeat(np.array([f"h{i}" for i in range(len(sizes))], dtype=object), sizes)
    count, kinds = len(hospital), int(rng.integers(1, 5))
    kind = rng.integers(0, kinds, count)
    table = {}
    for number in range(rng.integers(3, 9)):
        shares = rng.dirichlet(np.full(rng.integers(2, 7), rng.choice([0.3, 1.0, 5.0])), kinds)
        table[f"c{number}"] = (shares[kind].cumsum(axis=1) < rng.random(count)[:, None]).sum(axis=1).astype(float)
    if rng.random() < 0.5:
        table["age"] = np.round(rng.normal(60 + 5 * kind, 12, count))
    if rng.random() < 0.3:
        table["again"] = table["c1"] * 2
    if rng.random() < 0.3:
        table["c0"] = np.where(rng.random(count) < 0.5, np.nan, table["c0"])
    target = (rng.random(count) < 0.2 + 0.6 * (kind > 0)).astype(np.int64)
    return pd.DataFrame(table), target, hospital


def with_copies_elsewhere(seed: int) -> tuple[pd.DataFrame, np.ndarray, np.ndarray, int]:
    """The same with three finer columns (one decimal, years), and a tenth of the first hospital's rows once more at the
    second. Last: how many."""
    table, target, hospital = coarse_federation(seed)
    rng = np.random.default_rng(10_000 + seed)
    count = len(target)
    table = table.assign(
        crp=rng.lognormal(1, 1, count).round(1),
        haemoglobin=rng.normal(13, 2, count).round(1),
        years=np.round(rng.normal(60, 12, count)),
    )
    first = np.flatnonzero(hospital == "h0")
    chosen = rng.permutation(first)[: max(3, len(first) // 10)]
    again = pd.concat([table, table.iloc[chosen]], ignore_index=True)
    there = np.concatenate([hospital, np.full(len(chosen), "h1", dtype=object)])
    return again, np.concatenate([target, target[chosen]]), there, len(chosen)
