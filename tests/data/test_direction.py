"""Labels that run against the others': exact evidence, no false alarm at real hospitals, inverted ones found."""

from dataclasses import replace
from math import log, sqrt

import numpy as np
import pandas as pd
import pytest

from tests.real_data import shared_data
from wardround.core import seeds
from wardround.core.notices import Notice, identity
from wardround.data.checks.before_training import check_splits, direction_notices
from wardround.data.checks.clinical_names import common_name
from wardround.data.checks.label_direction import (
    BETWEEN,
    MOST_SITES,
    USUAL,
    Association,
    associations,
    opposites,
    standard_errors,
    total,
    uncompared,
)
from wardround.data.cohort import Cohort, split_sites
from wardround.data.partition.by_hospital import by_hospital
from wardround.data.records import Column, Records
from wardround.data.sources.csv.hospital_files import csv
from wardround.data.sources.heart import heart
from wardround.data.split import fingerprints
from wardround.study.schema import Evaluation
from wardround.tasks import class_task


def cohort_of(records: Records) -> Cohort:
    return Cohort(records, np.arange(len(records)), fingerprints(records), ())


def cohort(target: np.ndarray, columns: tuple[Column, ...] | None = None, **values: object) -> Cohort:
    table = pd.DataFrame(values)
    hospital = np.array(["a"] * len(target), dtype=object)
    used_columns = columns or tuple(Column(name) for name in table.columns)
    return cohort_of(Records(table, target, ("no", "yes"), hospital, used_columns))


def told(effect: float, error: float = 0.04) -> Association:
    return Association(effect, error, 50, 50)


HALF = np.repeat([1, 0], 10)


def test_an_association_counts_the_pairs_in_which_the_positive_row_is_the_higher() -> None:
    """Positive rows have 1, 3, 5, ... 19 and negative ones 0, 2, ... 18: 55 of 100 pairs. Hanley and McNeil by hand."""
    age = np.concatenate([np.arange(1, 20, 2), np.arange(0, 20, 2)]).astype(float)
    association = associations(cohort(HALF, age=age), np.arange(20))["age"]
    first, second = 0.55 / 1.45, 2 * 0.55**2 / 1.55
    error = sqrt((0.55 * 0.45 + 9 * (first - 0.55**2) + 9 * (second - 0.55**2)) / 100)
    assert association.effect == pytest.approx(0.05)
    assert association.error == pytest.approx(error)
    assert (association.positives, association.negatives) == (10, 10)


def test_the_standard_error_is_that_of_the_rank_test_where_there_is_no_association_and_0_where_all_is_apart() -> None:
    """Mann and Whitney: the variance of the area is (p + n + 1) / (12 p n) at one half."""
    errors = standard_errors(np.array([0.5, 1.0, 0.0]), np.array([10, 10, 10]), np.array([20, 20, 20]))
    assert errors == pytest.approx([sqrt(31 / (12 * 10 * 20)), 0, 0])


def test_the_standard_error_is_what_rows_drawn_again_show() -> None:
    """2,000 draws of 40 positive and 60 negative rows one standard deviation apart: their spread is known to 3 %."""
    rng = seeds.generator(1, "areas")
    positive, negative = rng.normal(1, 1, (2000, 40)), rng.normal(0, 1, (2000, 60))
    areas = (positive[:, :, None] > negative[:, None, :]).mean(axis=(1, 2))
    expected = standard_errors(areas.mean(keepdims=True), np.array([40]), np.array([60]))[0]
    assert areas.std() == pytest.approx(expected, rel=0.06)


def test_ties_count_half_and_copies_count_once() -> None:
    rng = np.random.default_rng(1)
    target, age = rng.permutation(np.repeat([1, 0], 30)), rng.integers(40, 60, 60).astype(float)
    data = cohort(target, age=age, other=rng.normal(size=60))
    pairs = age[target == 1][:, None] - age[target == 0][None]
    once = associations(data, np.arange(60))
    assert once["age"].effect == pytest.approx(((pairs > 0) + 0.5 * (pairs == 0)).mean() - 0.5)
    assert associations(data, np.concatenate([np.arange(60), np.arange(30)])) == once


def test_an_inverted_label_turns_every_sign_and_keeps_every_error() -> None:
    records = heart(("cleveland",)).load()
    rows = np.arange(len(records))
    plain = associations(cohort_of(records), rows)
    turned = associations(cohort_of(replace(records, target=1 - records.target)), rows)
    assert (
        plain.keys()
        == turned.keys()
        == {
            "age",
            "systolic blood pressure",
            "cholesterol",
            "fasting glucose",
            "highest heart rate",
            "angina on exercise",
            "ST depression",
            "ca",
        }
    )
    for name, association in plain.items():
        assert turned[name].effect == pytest.approx(-association.effect)
        assert turned[name].error == pytest.approx(association.error)


def test_columns_that_say_too_little_are_left_out() -> None:
    rng = np.random.default_rng(0)
    target = np.repeat([1, 0], 20)
    few = rng.normal(size=40)
    few[9:20] = np.nan  # nine positive rows have a value
    data = cohort(
        target,
        (*map(Column, ("age", "crp", "ward", "empty")), Column("seen", dates=True), *map(Column, ("HR", "pulse"))),
        age=rng.normal(size=40),
        crp=few,
        ward=np.full(40, 3.0),
        empty=np.full(40, np.nan),
        seen=rng.normal(size=40),
        HR=rng.normal(size=40),
        pulse=rng.normal(size=40),  # which of the two is the heart rate of the other sites?
    )
    assert associations(data, np.arange(40)).keys() == {"age"}
    assert associations(data, np.array([], dtype=np.int64)) == {}


def test_of_two_names_for_one_thing_the_one_with_values_is_taken() -> None:
    """Rows of hospitals with columns of their own stand in one table, in which each lacks the others' columns."""
    rng = np.random.default_rng(0)
    data = cohort(np.repeat([1, 0], 20), Age=rng.normal(size=40), age_years=np.full(40, np.nan))
    assert associations(data, np.arange(40)).keys() == {"age"}


def test_words_say_which_value_is_the_higher_and_a_sex_in_numbers_does_not() -> None:
    target = np.repeat([1, 0], 20)
    often = np.where(np.arange(40) % 20 < np.where(target, 15, 5), 1, 0)  # 15 of 20 positive rows, 5 of 20 negative
    number = np.arange(40.0)  # so that no two rows are equal

    def associations_of(name: str, words: tuple[str, str], kind: str = "categorical") -> dict[str, Association]:
        values: object = often.astype(float) if kind == "numeric" else np.array(words, dtype=object)[often]
        columns = (Column(name, kind), Column("line", dates=True))  # type: ignore[arg-type]
        return associations(cohort(target, columns, **{name: values, "line": number}), np.arange(40))

    assert associations_of("smoker", ("No", "yes"))["smoker"].effect == pytest.approx(0.25)
    assert associations_of("smoker", ("yes", "No"))["smoker"].effect == pytest.approx(-0.25)
    assert associations_of("Gender", ("F", "Male"))["sex"].effect == pytest.approx(0.25)
    assert associations_of("sex", ("male", "female"))["sex"].effect == pytest.approx(-0.25)
    assert associations_of("exang", ("0", "1"))["angina on exercise"].effect == pytest.approx(0.25)
    assert associations_of("exang", ("", ""), "numeric")["angina on exercise"].effect == pytest.approx(0.25)
    assert associations_of("sex", ("0", "1")) == {}
    assert associations_of("sex", ("", ""), "numeric") == {}
    assert associations_of("ward", ("north", "south")) == {}


def test_only_tables_with_two_classes_have_associations() -> None:
    table, hospital = pd.DataFrame({"age": np.arange(60.0)}), np.array(["a"] * 60, dtype=object)
    three = Records(table, np.arange(60) % 3, ("a", "b", "c"), hospital, (Column("age"),))
    assert associations(cohort_of(three), np.arange(60)) == {}
    images = Records(np.zeros((60, 2, 2), dtype=np.uint8), np.arange(60) % 2, ("no", "yes"), hospital)
    assert associations(cohort_of(images), np.arange(60)) == {}


@pytest.mark.parametrize(
    ("column", "name"),
    [
        ("AGE", "age"),
        ("Age (years)", "age"),
        ("age_years", "age"),
        ("Gender", "sex"),
        ("trestbps", "systolic blood pressure"),
        ("Systolic blood pressure", "systolic blood pressure"),
        ("SBP [mmHg]", "systolic blood pressure"),
        ("dbp_mmhg", "diastolic blood pressure"),
        ("thalach", "highest heart rate"),
        ("Heart rate", "heart rate"),
        ("Blood sugar", "glucose"),
        ("fbs", "fasting glucose"),
        ("CK-MB", "ckmb"),
        ("(crp)", "C-reactive protein"),
    ],
)
def test_common_names(column: str, name: str) -> None:
    assert common_name(column) == name


def test_the_evidence_is_the_ratio_of_two_normal_densities() -> None:
    """The effects of two sites around a mean drawn with spread USUAL: covariance plus, or minus, USUAL squared."""
    own, theirs = told(0.2, 0.04), told(-0.15, 0.05)
    differences = opposites({"a": {"age": own}, "b": {"age": theirs}})
    noise = np.array([own.error, theirs.error]) ** 2 + BETWEEN**2
    values = np.array([own.effect, theirs.effect])

    def log_density(covariance: float) -> float:
        matrix = np.diag(noise + USUAL**2) + covariance * (1 - np.eye(2))
        return float(-0.5 * (np.linalg.slogdet(matrix)[1] + values @ np.linalg.solve(matrix, values)))

    assert len(differences) == 1
    assert differences[0].evidence == pytest.approx(log_density(-(USUAL**2)) - log_density(USUAL**2))


def test_columns_that_tell_the_same_are_not_counted_in_full() -> None:
    assert total(np.array([6.0])) == pytest.approx(6)
    assert total(np.array([6.0, 0.0, 0.0])) == pytest.approx(6)
    assert total(np.array([6.0, 6.0])) == pytest.approx(12 / 1.2)
    assert total(np.full(6, 1.0)) == pytest.approx(6 / 2)
    assert total(np.zeros(3)) == 0


def test_with_two_sites_both_are_named_and_with_more_the_one_that_differs() -> None:
    up, down = {"age": told(0.2), "hr": told(-0.15)}, {"age": told(-0.2), "hr": told(0.15)}
    pair = opposites({"north": up, "south": down})
    assert [(difference.site, difference.others, difference.certain) for difference in pair] == [
        ("north", ("south",), False)
    ]
    (notice,) = direction_notices(pair, class_task(("well", "sick")))
    assert (notice.code, notice.severity, notice.site, notice.classes) == (
        "label-direction",
        "error",
        "north",
        ("sick",),
    )
    assert (notice.other_sites, notice.per_column) == (("south",), {"age": 1, "hr": -1})
    four = opposites({"a": up, "b": down, "c": up, "d": up})
    assert [(difference.site, difference.others, difference.certain) for difference in four] == [
        ("b", ("a", "c", "d"), True)
    ]
    (notice,) = direction_notices(four, class_task(("well", "sick")))
    assert (notice.other_sites, notice.per_column, notice.details) == ((), {"hr": 1, "age": -1}, {"certain": True})
    torn = opposites({"a": up, "b": down, "c": up, "d": down})
    assert len(torn) == 2
    assert not any(difference.certain for difference in torn)
    assert direction_notices(torn, class_task(("well", "sick")))[0].other_sites == torn[0].others


def test_sites_without_a_column_in_common_are_not_compared() -> None:
    assert opposites({"a": {"age": told(0.3)}, "b": {"crp": told(-0.3)}}) == []
    differences = opposites({"a": {"age": told(0.3)}, "b": {"age": told(-0.3)}, "c": {"crp": told(0.3)}, "d": {}})
    assert [(difference.site, difference.others, difference.certain) for difference in differences] == [
        ("a", ("b",), False)
    ]
    assert opposites({}) == opposites({"a": {"age": told(0.3)}}) == []


def test_a_site_is_named_from_a_thousand_to_one() -> None:
    """Effects of e and -e with equal variance v: 2 e e / (2 v + v v / T), solved for the e that gives ln 1000."""
    noise = 0.04**2 + BETWEEN**2
    edge = sqrt(log(1000) * (2 * noise + noise**2 / USUAL**2) / 2)
    for effect, named in ((edge * 1.001, 1), (edge * 0.999, 0)):
        assert len(opposites({"a": {"age": told(effect)}, "b": {"age": told(-effect)}})) == named


def test_small_true_differences_are_no_evidence_however_many_rows_there_are() -> None:
    assert opposites({"a": {"age": told(0.05, 0.0)}, "b": {"age": told(-0.05, 0.0)}}) == []
    assert opposites({"a": {"age": told(0.1, 0.0)}, "b": {"age": told(-0.1, 0.0)}}) != []


def test_more_sites_than_anybody_could_ask_are_not_compared() -> None:
    many = {f"s{i:02}": {"age": told(-0.3 if i == 0 else 0.3)} for i in range(MOST_SITES + 1)}
    assert opposites(many) == []
    assert [difference.site for difference in opposites(dict(list(many.items())[:MOST_SITES]))] == ["s00"]


def directions(data: Cohort, seed: int) -> list[Notice]:
    """Errors: that a site cannot be compared is another matter."""
    splits = split_sites(data, by_hospital(), Evaluation(), seed)
    return [
        notice
        for notice in check_splits(data, splits, False)
        if (notice.code, notice.severity) == ("label-direction", "error")
    ]


def test_the_four_heart_hospitals_raise_no_false_alarm_with_50_seeds() -> None:
    data = cohort_of(heart().load())
    assert [directions(data, seed) for seed in range(50)] == [[]] * 50
    # Switzerland has 8 healthy patients: nothing could be seen there, and that is said
    notices = check_splits(data, split_sites(data, by_hospital(), Evaluation(), 1), False)
    assert [notice for notice in notices if notice.code.startswith("label")] == [
        Notice("label-not-compared", "warning", "switzerland")
    ]


@pytest.mark.parametrize("inverted", ["cleveland", "hungarian", "va"])
def test_a_heart_hospital_with_an_inverted_label_is_named(inverted: str) -> None:
    records = heart().load()
    wrong = replace(records, target=np.where(records.hospital == inverted, 1 - records.target, records.target))
    data = cohort_of(wrong)
    for seed in range(10):
        notices = directions(data, seed)
        assert [(notice.severity, notice.site) for notice in notices] == [("error", inverted)]


def test_eight_healthy_patients_are_too_few_to_tell() -> None:
    """Switzerland has no association at all: better silent than wrong."""
    records = heart(("switzerland",)).load()
    assert associations(cohort_of(records), np.arange(len(records))) == {}


def test_halves_of_one_hospital_and_labels_without_meaning_raise_no_alarm() -> None:
    """Labels drawn at random have no direction: 10 of 12,000 pairs of 25 to 140 rows exceed 1 : 1000, none here."""
    data = cohort_of(heart(("cleveland",)).load())
    rng = seeds.generator(3, "halves")
    for number in range(300):
        shuffled = rng.permutation(len(data.records))
        rows = {"a": shuffled[:151], "b": shuffled[151:]}
        assert opposites({site: associations(data, part) for site, part in rows.items()}) == []
        if number % 3 == 0:
            noise = Cohort(
                replace(data.records, target=rng.permutation(data.records.target)), data.row_numbers, data.prints, ()
            )
            assert opposites({site: associations(noise, part) for site, part in rows.items()}) == []


def test_the_study_may_accept_and_seeds_are_one_finding() -> None:
    records = heart(("cleveland", "hungarian")).load()
    wrong = replace(records, target=np.where(records.hospital == "hungarian", 1 - records.target, records.target))
    data = cohort_of(wrong)
    splits = split_sites(data, by_hospital(), Evaluation(), 1)
    accepted = [
        notice for notice in check_splits(data, splits, False, ["label-direction"]) if notice.code == "label-direction"
    ]
    assert [(notice.severity, notice.site, notice.other_sites, notice.accepted) for notice in accepted] == [
        ("warning", "cleveland", ("hungarian",), True)
    ]
    assert {identity(notice) for seed in range(5) for notice in directions(data, seed)} == {identity(accepted[0])}
    assert directions(cohort_of(replace(wrong, synthetic=True)), 1) == []


def test_test_rows_are_not_looked_at() -> None:
    """Inverting the labels of test rows alone changes nothing."""
    data = cohort_of(heart(("cleveland", "hungarian")).load())
    splits = split_sites(data, by_hospital(), Evaluation(), 1)
    target = data.records.target.copy()
    tested = np.concatenate([split.test for split in splits])
    target[tested] = 1 - target[tested]
    other = Cohort(replace(data.records, target=target), data.row_numbers, data.prints, ())
    for split in splits:
        assert associations(data, split.train) == associations(other, split.train)
    assert not [notice for notice in check_splits(other, splits, False) if notice.code == "label-direction"]


def two_hospitals(meaning: dict[str, str]) -> Cohort:
    files = {
        "north": shared_data("seed-csv/Medicaldataset_heart_attack.csv"),
        "south": shared_data("seed-csv/cardiac_arrest_dataset_1025.csv"),
    }
    source = csv(files, "Result", {"south": "target"}, "positive", labels={"south": meaning}, columns="own")
    return cohort_of(source.load())


def test_the_two_hospitals_of_a_newcomer_are_refused_for_both_traps() -> None:
    """Three in four rows of one file are copies, and its 1 means that there is NO disease."""
    data = two_hospitals({"1": "positive", "0": "negative"})
    for seed in (1, 2, 3):
        splits = split_sites(data, by_hospital(), Evaluation(), seed)
        errors = {notice.code: notice for notice in check_splits(data, splits, False) if notice.severity == "error"}
        assert errors.keys() == {"copies", "label-direction"}
        assert (errors["copies"].site, errors["copies"].counts) == ("south", {"rows": 723, "of": 1025})
        direction = errors["label-direction"]
        assert (direction.site, direction.other_sites, direction.per_column) == ("north", ("south",), {"age": 1})


def test_with_its_words_mapped_rightly_the_label_runs_as_elsewhere() -> None:
    data = two_hospitals({"0": "positive", "1": "negative"})
    assert [directions(data, seed) for seed in range(20)] == [[]] * 20


def test_sites_without_a_column_in_common_are_named() -> None:
    """What cannot be compared must not look as if it had been."""
    association = Association(0.1, 0.03, 50, 50)
    assert uncompared(
        {"a": {"age": association}, "b": {"age": association, "crp": association}, "c": {"ward": association}, "d": {}}
    ) == ["c", "d"]
    assert uncompared({"a": {"age": association}, "b": {"age": association}}) == []
