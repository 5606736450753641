"""A column that tells the outcome by itself is refused by its name, and an honest one is not, however strong it is."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import binom

from tests.data.planted_mistakes import PLANTS, by_hospital, cohort_of, honest_data
from wardround.core.errors import CheckError
from wardround.data.checks.before_training import check_splits, refuse_errors
from wardround.data.checks.target_leak import EVERYWHERE, MARKER, UNLIKELY, TargetLeak, _chance
from wardround.data.cohort import Cohort


def errors(data: Cohort) -> dict[str, TargetLeak]:
    return {leak.column: leak for leak in data.target_leaks if leak.severity == "error"}


def plain(rows: int, positives: int, hospitals: int = 1) -> tuple[pd.DataFrame, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(rows + positives)
    target = (np.arange(rows) < positives).astype(np.int64)
    order = rng.permutation(rows)
    hospital = np.array([f"h{i % hospitals}" for i in range(rows)], dtype=object)
    return pd.DataFrame({"age": rng.normal(60, 10, rows)}), target[order], hospital


def false_alarms(seeds: range) -> list[tuple[int, str]]:
    alarms = [(seed, leak.column) for seed in seeds for leak in cohort_of(*honest_data(seed)).target_leaks]
    return [alarm for alarm in alarms if alarm]


def missed(seeds: range) -> list[tuple[int, str]]:
    """Of each kind of leak, planted into honest data with enough rows of both classes to say so."""
    lost = []
    for seed in seeds:
        table, target, hospital = honest_data(seed)
        rarer = pd.Series(target).groupby(hospital).apply(lambda label: min(label.sum(), (1 - label).sum())).sum()
        for name, plant in PLANTS.items():
            if rarer >= (150 if name == "nearly" else 44):
                planted = plant(table, target, np.random.default_rng(seed))
                if "planted" not in errors(cohort_of(planted, target, hospital)):
                    lost.append((seed, name))
    return lost


def test_no_honest_data_are_refused_and_every_plant_is_found() -> None:
    assert false_alarms(range(12)) == []
    assert missed(range(5)) == []


@pytest.mark.slow
def test_no_honest_data_of_200_are_refused_and_every_plant_is_found() -> None:
    assert false_alarms(range(200)) == []
    assert missed(range(200)) == []


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_column_is_refused_by_its_name(name: str) -> None:
    table, target, hospital = plain(600, 200)
    data = cohort_of(PLANTS[name](table, target, np.random.default_rng(0)), target, hospital)
    (notice,) = [entry for entry in check_splits(data, by_hospital(data), False) if entry.code == "target-leak"]
    assert (notice.severity, notice.site, notice.columns, notice.classes) == ("error", "h0", ("planted",), ("yes",))
    assert notice.details == ({"by_gap": True} if name == "gap" else {})
    assert (notice.counts["of"], notice.counts["rows"]) == (600, 200)
    assert notice.counts["auc"] > 0.99
    with pytest.raises(CheckError, match=r'accept = \["target-leak"\]') as refused:
        refuse_errors([notice])
    assert refused.value.notice == notice


def test_accepting_a_leak_of_rows_waives_no_leak_of_the_target_nor_the_reverse() -> None:
    table, target, hospital = plain(400, 200, hospitals=2)
    table = table.assign(planted=target.astype(float), crp=np.random.default_rng(3).normal(size=400))
    table.iloc[1:101:2] = table.iloc[98::-2].to_numpy()  # rows of the first hospital once more at the second
    target[1:101:2] = target[98::-2].copy()
    data = cohort_of(table, target, hospital)
    splits = by_hospital(data)
    for accepted, left in (("leak", "target-leak"), ("target-leak", "leak")):
        notices = check_splits(data, splits, False, [accepted])
        assert left in {notice.code for notice in notices if notice.severity == "error"}
        assert accepted not in {notice.code for notice in notices if notice.severity == "error"}


def test_how_many_rows_are_enough() -> None:
    """The figures of the documentation: 44 rows of the rarer class if all are separated, 21 for a warning."""
    assert _chance(0.0, 44, MARKER) < UNLIKELY <= _chance(0.0, 43, MARKER)
    assert _chance(1.0, 64, MARKER) < UNLIKELY <= _chance(1.0, 63, MARKER)
    assert _chance(3.0, 80, MARKER) == pytest.approx(binom.cdf(3, 80, MARKER))
    for positives, level in ((20, None), (21, "warning"), (43, "warning"), (44, "error")):
        table, target, hospital = plain(400, positives)
        leaks = cohort_of(table.assign(planted=target.astype(float)), target, hospital).target_leaks
        assert [leak.severity for leak in leaks] == ([] if level is None else [level])


def test_small_hospitals_are_taken_together_and_one_hospital_is_looked_at_alone() -> None:
    table, target, hospital = plain(200, 60, hospitals=10)
    (leak,) = cohort_of(table.assign(planted=target.astype(float)), target, hospital).target_leaks
    assert (leak.hospital, leak.column, leak.severity, leak.best.rows) == (EVERYWHERE, "planted", "error", 200)
    table, target, hospital = plain(800, 400, hospitals=4)
    noise = np.random.default_rng(0).normal(size=800)
    only_here = table.assign(planted=np.where(hospital == "h2", target, noise))
    (leak,) = cohort_of(only_here, target, hospital).target_leaks
    assert (leak.hospital, leak.column, leak.severity) == ("h2", "planted", "error")


def test_hospitals_with_other_units_and_other_patients_are_no_leak() -> None:
    """All of one hospital's patients are ill and none of the other's, whose unit is another: the column tells the
    hospital, and within a hospital nothing."""
    rng = np.random.default_rng(0)
    hospital = np.repeat(np.array(["a", "b"], dtype=object), 200)
    target = (hospital == "a").astype(np.int64)
    target[[0, 399]] ^= 1
    table = pd.DataFrame({"glucose": rng.normal(100, 20, 400) * np.where(hospital == "a", 18, 1)})
    table["only_at_a"] = np.where(hospital == "a", rng.normal(size=400), np.nan)
    assert cohort_of(table, target, hospital).target_leaks == []


def test_identifiers_tell_nothing_even_where_patients_come_twice() -> None:
    """Each word stands for one patient, who has two rows of one class."""
    people = np.repeat(np.arange(150), 2)
    target = (people % 2).astype(np.int64)
    table = pd.DataFrame({"bed": people.astype(str).astype(object), "number": people.astype(float) * 7 % 151})
    hospital = np.full(300, "a", dtype=object)
    assert cohort_of(table, target, hospital, patient=people.astype(str)).target_leaks == []


def test_several_classes_one_may_stand_apart_by_nature_but_none_by_a_gap() -> None:
    from sklearn.datasets import load_iris

    data = load_iris()
    table = pd.DataFrame(data["data"], columns=["a", "b", "c", "d"])
    target, hospital = data["target"].astype(np.int64), np.full(150, "meadow", dtype=object)
    names = ("setosa", "versicolor", "virginica")
    honest = cohort_of(table, target, hospital, classes=names).target_leaks
    assert {(leak.severity, leak.classes) for leak in honest} == {("warning", ("setosa",))}
    copied = cohort_of(table.assign(planted=target.astype(float)), target, hospital, classes=names)
    assert errors(copied)["planted"].classes == names
    gap = np.where(target == 2, 1.0, np.nan)
    by_gap = errors(cohort_of(table.assign(planted=gap), target, hospital, classes=names))
    assert (by_gap["planted"].classes, by_gap["planted"].best.gap) == (("virginica",), True)


def test_each_finding_is_a_question_of_its_own_and_unknown_labels_count_for_nothing() -> None:
    rng = np.random.default_rng(0)
    target = rng.integers(0, 2, (300, 2))
    target[:50, 1] = -1
    table = pd.DataFrame({"age": rng.normal(size=300), "planted": target[:, 1].astype(float)})
    data = cohort_of(table, target, np.full(300, "a", dtype=object), classes=("nodule", "oedema"))
    assert errors(data)["planted"].classes == ("oedema",)
    assert errors(data)["planted"].best.rows == 250
