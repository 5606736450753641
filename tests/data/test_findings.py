"""Rows with several findings on their way to sites: taken, split, dealt out, checked and compared."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.radiographs import NAMES, SHARES, a_study, cohort_of, some_radiographs, source_of
from wardround import load_plan, load_study
from wardround.core.errors import CheckError, DataError, StudyError
from wardround.core.notices import Notice
from wardround.core.seeds import generator
from wardround.data.checks.before_training import check_splits, refuse_errors
from wardround.data.cohort import split_sites
from wardround.data.heterogeneity import class_counts, measure
from wardround.data.partition import PARTITIONERS, Partitioner
from wardround.data.partition.by_column import by_column
from wardround.data.partition.dirichlet import dirichlet
from wardround.data.partition.iid import iid
from wardround.data.partition.specialty import specialty
from wardround.data.records import BOX_COLUMNS, Records
from wardround.data.split import Split, split_site
from wardround.study.schema import Evaluation
from wardround.tasks.multilabel import NO_FINDING, UNKNOWN

MASS, FLUID, AIR, NOTHING = range(4)


def targeted(*rows: tuple[int, ...], patient: list[Any] | None = None, **more: Any) -> Records:
    """A row of labels each, with one black pixel."""
    count = len(rows)
    return Records(
        np.zeros((count, 1, 1, 1), dtype=np.uint8),
        np.array(rows, dtype=np.int64),
        NAMES,
        np.full(count, "all", dtype=object),
        patient=None if patient is None else np.array(patient, dtype=object),
        **more,
    )


# ---- taking rows


def boxes_by_hand(records: Records, rows: np.ndarray) -> list[tuple[Any, ...]]:
    assert records.boxes is not None
    table = [tuple(line) for line in records.boxes.itertuples(index=False)]
    return sorted((place, *line[1:]) for place, row in enumerate(rows) for line in table if line[0] == row)


@given(st.lists(st.integers(0, 39), max_size=60))
@settings(max_examples=60, deadline=None)
def test_boxes_follow_their_rows_wherever_these_go_and_however_often(rows: list[int]) -> None:
    records = some_radiographs(20, most_images=2).take(np.arange(20))
    chosen = np.array(rows, dtype=np.int64) % 20
    subset = records.take(chosen)
    assert subset.boxes is not None
    assert list(subset.boxes.columns) == list(BOX_COLUMNS)
    assert subset.boxes["row"].dtype == np.int64
    lines = sorted(tuple(line) for line in subset.boxes.itertuples(index=False))
    assert lines == boxes_by_hand(records, chosen)


def test_every_part_of_the_records_is_taken() -> None:
    records = some_radiographs(30)
    side = np.resize(np.array(["train", "test"], dtype=object), len(records))
    records = replace(records, split=side, prints=np.arange(len(records), dtype=np.uint64))
    chosen = np.array([7, 3, 3, 12])
    subset = records.take(chosen)
    for name in ("features", "target", "hospital", "patient", "split", "prints"):
        np.testing.assert_array_equal(getattr(subset, name), getattr(records, name)[chosen])
    assert subset.groups.to_dict("list") == records.groups.iloc[chosen].to_dict("list")
    assert subset.groups.index.tolist() == [0, 1, 2, 3]
    assert subset.classes == records.classes
    assert len(subset) == 4


@pytest.mark.parametrize("empty", [pd.DataFrame(columns=list(BOX_COLUMNS)), None])
def test_records_without_a_box_can_be_taken(empty: pd.DataFrame | None) -> None:
    subset = replace(some_radiographs(10), boxes=empty).take([2, 0])
    assert subset.boxes is None if empty is None else subset.boxes is not None and len(subset.boxes) == 0


def test_counts_of_findings_say_how_many_rows_have_each_and_how_many_none() -> None:
    records = targeted((1, 1, 0), (0, UNKNOWN, 0), (0, 0, 1), (UNKNOWN, UNKNOWN, UNKNOWN), (1, 0, 0))
    assert records.task.label_counts(records.target) == {"mass": 2, "fluid": 1, "air": 1, NO_FINDING: 2}
    assert records.task.label_counts(records.target[[4, 2]]) == {"mass": 1, "fluid": 0, "air": 1, NO_FINDING: 0}


# ---- splitting


def test_a_row_is_shared_out_by_its_rarest_finding_among_these_rows() -> None:
    rows = ((1, 1, 0), (0, UNKNOWN, 0), (1, 0, 1), (UNKNOWN, UNKNOWN, UNKNOWN), (1, UNKNOWN, 0), (0, 1, 1), (0, 0, 1))
    records = targeted(*rows)
    # of all rows 3 have the first, 2 the second, 3 the third: from common to rare they are first, third, second
    assert records.task.strata(records.target, np.arange(7)).tolist() == [3, 0, 2, 0, 1, 3, 2]
    # of the last three one has the first, one the second, two the third: third, first, second; other rows do not count
    assert records.task.strata(records.target, np.array([4, 5, 6])).tolist() == [0, 0, 0, 0, 2, 3, 1]


def splits_of(records: Records, partitioner: Partitioner | None = None, **evaluation: Any) -> tuple[Split, ...]:
    return split_sites(cohort_of(records), partitioner or iid(3), Evaluation(**evaluation), 5)


def sides(split: Split) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return split.train, split.validation, split.test


def assert_no_patient_is_torn(records: Records, splits: tuple[Split, ...]) -> None:
    assert records.patient is not None
    seen = [set(records.patient[rows]) for split in splits for rows in sides(split)]
    assert sum(map(len, seen)) == len(set.union(*seen))


@pytest.mark.parametrize("seed", range(5))
def test_no_patient_is_on_two_sides_and_every_finding_is_tested_in_about_its_share(seed: int) -> None:
    records = some_radiographs(900, seed=seed)
    splits = splits_of(records, test_share=0.25, validation_share=0.15)
    assert_no_patient_is_torn(records, splits)
    assert sorted(np.concatenate([split.rows for split in splits]).tolist()) == list(range(len(records)))
    table = pd.DataFrame(records.target == 1).groupby(records.patient).any()
    rarest = int(np.argmin((records.target == 1).sum(axis=0)))  # at each of the sites, which differ by chance only
    for finding in range(len(NAMES)):
        there = table[finding]
        for side, share in (("test", 0.25), ("validation", 0.15)):
            assert records.patient is not None
            chosen = set(records.patient[np.concatenate([getattr(split, side) for split in splits])])
            count = there[there.index.isin(chosen)].sum()
            # patients with the rarest finding are shared out to within one at each site; others by chance, of which
            # four standard deviations are allowed
            chance = 4 * np.sqrt(share * (1 - share) * there.sum())
            assert count == pytest.approx(share * there.sum(), abs=3.01 if finding == rarest else chance)


def test_patients_of_each_stratum_are_shared_out_to_within_one() -> None:
    records = some_radiographs(400)
    by, patient = records.task.strata(records.target, np.arange(len(records))), records.units
    split = split_site("a", np.arange(len(records)), by, patient, 0.3, 0.2, np.random.default_rng(0))
    of_patient = pd.Series(by).groupby(patient).max().to_numpy()
    for side, share in ((split.test, 0.3), (split.validation, 0.2)):
        chosen = np.unique(patient[side])
        for stratum in range(4):
            wanted = share * (of_patient == stratum).sum()
            assert (of_patient[chosen] == stratum).sum() == pytest.approx(wanted, abs=1.01)


def with_sides(records: Records, names: tuple[str, ...]) -> Records:
    """Each patient on one side."""
    return replace(records, split=np.array(names, dtype=object)[records.units % len(names)])


def test_a_split_that_the_source_gives_is_kept() -> None:
    records = with_sides(some_radiographs(), ("train", "train", "validation", "test"))
    assert records.split is not None
    for validation_share in (0.0, 0.3):  # where there are validation rows, none are drawn
        splits = splits_of(records, split="given", validation_share=validation_share)
        for split in splits:
            for name, rows in zip(("train", "validation", "test"), sides(split), strict=True):
                assert set(records.split[rows]) == {name}
                assert (np.diff(rows) > 0).all()
        assert sum(len(split.rows) for split in splits) == len(records)


def test_validation_rows_are_drawn_from_training_rows_where_the_source_gives_none() -> None:
    records = with_sides(some_radiographs(600), ("train", "train", "test"))
    assert records.split is not None
    given_splits = splits_of(records, split="given")
    splits = splits_of(records, split="given", validation_share=0.25)
    assert_no_patient_is_torn(records, splits)
    for split, before in zip(splits, given_splits, strict=True):
        np.testing.assert_array_equal(split.test, before.test)
        assert len(before.validation) == 0
        both = np.sort(np.concatenate([split.train, split.validation]))
        np.testing.assert_array_equal(both, before.train)
        assert len(split.validation) == pytest.approx(0.25 * len(both), rel=0.2)
        assert set(records.split[split.validation]) == {"train"}


def test_a_source_without_a_split_cannot_give_one() -> None:
    with pytest.raises(StudyError, match="comes with no split of its own"):
        splits_of(some_radiographs(), split="given")


def test_a_data_set_with_other_sides_is_another_data_set() -> None:
    """A resumed run would otherwise go on with other training rows."""
    records = with_sides(some_radiographs(), ("train", "train", "test"))
    other = with_sides(records, ("train", "test", "train"))
    assert cohort_of(records).fingerprint == cohort_of(with_sides(records, ("train", "train", "test"))).fingerprint
    assert cohort_of(records).fingerprint != cohort_of(other).fingerprint
    assert cohort_of(records).fingerprint != cohort_of(replace(records, split=None)).fingerprint


# ---- dealing out


def test_a_patient_is_told_apart_by_the_rarest_finding_of_all_his_rows() -> None:
    """Rows with mass: 1, with fluid: 2, with air: 3."""
    records = targeted(
        (0, 0, 1),
        (0, 1, 0),
        (0, 0, 1),
        (1, 1, 1),
        (0, 0, 0),
        (UNKNOWN, 0, 0),
        patient=["b", "b", "c", "a", "d", "c"],
    )
    assert records.task.patient_kinds(records.target, records.units).tolist() == [
        MASS,
        FLUID,
        AIR,
        NOTHING,
    ]  # of a, b, c, d


PARTITIONS: dict[str, Callable[[], Partitioner]] = {
    "iid": lambda: iid(4),
    "dirichlet": lambda: dirichlet(4, 0.3),
    "specialty": lambda: specialty(4, 0.8),
    "quantity": lambda: PARTITIONERS["quantity"](count=4),
    "by-column": lambda: by_column("view", patients="majority"),
    "by-hospital": lambda: PARTITIONERS["by-hospital"](),
}


@pytest.mark.parametrize("name", PARTITIONS)
def test_all_rows_of_a_patient_go_to_one_site(name: str) -> None:
    records = some_radiographs(300, unknown=0.1)
    assert records.patient is not None
    sites = PARTITIONS[name]().assign(records, generator(1, "partition"))
    placed = np.concatenate(list(sites.values()))
    assert sorted(placed.tolist()) == list(range(len(records)))
    patients = [set(records.patient[rows]) for rows in sites.values()]
    assert sum(map(len, patients)) == len(set.union(*patients))


def independent(patients: int) -> Records:
    """One row a patient: a third have a mass, a third fluid, a third nothing."""
    target = np.zeros((patients, 3), dtype=np.int64)
    target[np.arange(patients) % 3 == 0, MASS] = 1
    target[np.arange(patients) % 3 == 1, FLUID] = 1
    return Records(np.zeros((patients, 1, 1, 1), dtype=np.uint8), target, NAMES, np.full(patients, "all", dtype=object))


def test_a_findings_home_is_richer_in_it_and_patients_without_any_are_everywhere_alike() -> None:
    """Two findings occur, so of 4 sites mass is at home at the first and third, fluid at the second and fourth.

    3,000 patients have each. Of those with mass 0.7 go home, half to each of 2 homes: 0.35 x 3,000 = 1,050 to each, and
    0.15 x 3,000 = 450 to each of the 2 others. Of the 3,000 without any, 750 go to each site. So mass is the share
    1050 / (1050 + 450 + 750) of its home, and 450 / 2250 elsewhere.
    """
    records = independent(9000)
    sites = specialty(4, 0.7).assign(records, generator(3, "partition"))
    for number, rows in enumerate(sites.values()):
        counts = records.task.label_counts(records.target[rows])
        home = number % 2
        expected = {"mass": (1050, 450)[home], "fluid": (450, 1050)[home], "air": 0, NO_FINDING: 750}
        for finding, count in expected.items():
            # four standard deviations of a binomial count of 3,000
            assert counts[finding] == pytest.approx(count, abs=4 * np.sqrt(count * (1 - count / 3000)))
        assert counts[("mass", "fluid")[home]] / len(rows) == pytest.approx(1050 / 2250, abs=0.04)


def test_specialty_with_full_richness_keeps_a_finding_at_its_homes() -> None:
    records = independent(900)
    sites = list(specialty(2, 1.0).assign(records, generator(3, "partition")).values())
    assert records.task.label_counts(records.target[sites[0]])["fluid"] == 0
    assert records.task.label_counts(records.target[sites[1]])["mass"] == 0
    assert (
        records.task.label_counts(records.target[sites[0]])["mass"]
        == records.task.label_counts(records.target[sites[1]])["fluid"]
        == 300
    )


def test_specialty_without_any_finding_spreads_everybody() -> None:
    records = replace(independent(400), target=np.zeros((400, 3), dtype=np.int64))
    sizes = [len(rows) for rows in specialty(4).assign(records, generator(3, "partition")).values()]
    assert sizes == pytest.approx([100] * 4, abs=4 * np.sqrt(75))


def test_a_small_alpha_gives_a_finding_to_few_sites_and_a_large_one_to_all() -> None:
    records = some_radiographs(1500)

    def largest_share(alpha: float) -> float:
        """Of the patients who count as one class, averaged over classes."""
        sites = dirichlet(5, alpha, 1).assign(records, generator(2, "partition"))
        classes = records.task.patient_kinds(records.target, records.units)[records.units]
        tables = np.array([np.bincount(classes[rows], minlength=4) for rows in sites.values()])
        return float((tables.max(axis=0) / tables.sum(axis=0)).mean())

    assert largest_share(1000.0) == pytest.approx(0.2, abs=0.05)
    assert largest_share(0.1) > 0.5


def test_the_majority_of_a_patients_rows_decides_and_the_first_site_where_there_is_none() -> None:
    views = ["PA", "AP", "PA", "PA", "AP", None, None, "AP"]
    patient = ["a", "a", "a", "b", "b", "c", "d", "d"]
    records = targeted(*[(0, 0, 1)] * 8, patient=patient, groups=pd.DataFrame({"view": views}))
    with pytest.raises(DataError, match="patients with rows at more than one site: 3"):
        by_column("view").assign(records, generator(0, "partition"))
    sites = by_column("view", patients="majority").assign(records, generator(0, "partition"))
    # sites in order: AP, PA, unknown. a: two of three are PA; b: one each, so AP; c: unknown; d: one each, so AP
    assert {name: rows.tolist() for name, rows in sites.items()} == {
        "view-ap": [3, 4, 6, 7],
        "view-pa": [0, 1, 2],
        "unknown": [5],
    }


def test_a_site_that_no_patient_has_most_rows_at_is_not_formed() -> None:
    views = ["PA", "AP", "PA", "PA"]
    records = targeted(*[(0, 0, 1)] * 4, patient=["a", "a", "a", "b"], groups=pd.DataFrame({"view": views}))
    sites = by_column("view", patients="majority").assign(records, generator(0, "partition"))
    assert {name: rows.tolist() for name, rows in sites.items()} == {"view-pa": [0, 1, 2, 3]}


# ---- checking


def checked(records: Records, *splits: Split) -> dict[tuple[str, str], Notice]:
    return {(notice.code, notice.site): notice for notice in check_splits(cohort_of(records), splits, False)}


def test_findings_that_are_rare_or_that_a_site_never_saw_are_named() -> None:
    rows = [(1, 0, 0)] * 20 + [(0, 1, 0)] * 5 + [(0, 0, 0)] * 55
    images = np.arange(80, dtype=np.uint8).reshape(80, 1, 1, 1)
    records = replace(targeted(*rows), features=images)
    none = np.array([], dtype=np.int64)
    even, odd = np.arange(0, 80, 2), np.arange(1, 80, 2)
    notices = checked(records, Split("a", even[:30], none, even[30:]), Split("b", odd[:30], none, odd[30:]))
    missing = notices["missing-class", "a"]
    assert (missing.severity, missing.classes, missing.counts) == ("warning", ("mass", "fluid", "air"), {"of": 3})
    assert missing.details == {"part": "test", "findings": True}
    assert notices["missing-class", "b"] == replace(missing, site="b")
    rare = notices["rare-class", ""]
    assert (rare.severity, rare.classes, rare.counts) == ("warning", ("air",), {"rows": 0})
    assert not [check for check, _ in notices if check in ("one-class", "leak", "shared-rows")]


@pytest.mark.parametrize("labels", [(1, 1, 1), (0, 0, 0), (UNKNOWN, 1, 0)])
def test_labels_from_which_nothing_can_be_learned_are_refused(labels: tuple[int, ...]) -> None:
    images = np.arange(80, dtype=np.uint8).reshape(80, 1, 1, 1)
    records = replace(targeted(*[labels] * 80), features=images)
    splits = [Split("a", np.arange(60), np.array([], dtype=np.int64), np.arange(60, 80))]
    with pytest.raises(CheckError) as refused:
        refuse_errors(check_splits(cohort_of(records), splits, False))
    assert refused.value.notice == Notice("one-class", "error")


def test_a_patient_on_both_sides_of_a_given_split_is_a_leak() -> None:
    records = some_radiographs(100)
    torn = replace(records, split=np.where(np.arange(len(records)) % 3, "train", "test").astype(object))
    plan = load_plan(*load_study(a_study(evaluation={"split": "given"}), sources=source_of(torn)))
    with pytest.raises(CheckError) as refused:
        plan.check(plan.study.arms[0], 42)
    assert refused.value.notice is not None
    assert refused.value.notice.code == "leak"


# ---- comparing


def test_divergences_of_findings_are_those_of_counts_by_hand() -> None:
    """Site a: mass 3, fluid 1, air 0, none 2 (of 5 rows; one has two). Site b: mass 0, fluid 2, air 2, none 1.

    Half a row is added to each for kl: (3.5, 1.5, 0.5, 2.5) / 8 and (0.5, 2.5, 2.5, 1.5) / 7.
    """
    a = np.array([(1, 1, 0), (1, 0, 0), (1, 0, UNKNOWN), (0, 0, 0), (UNKNOWN, 0, 0)])
    b = np.array([(0, 1, 0), (0, 1, 1), (0, 0, 1), (0, 0, UNKNOWN)])
    assert class_counts("a", a, 3).tolist() == [3, 1, 0, 2]
    assert class_counts("b", b, 3).tolist() == [0, 2, 2, 1]
    heterogeneity = measure({"a": a, "b": b}, None, 3, np.random.default_rng(0))
    p, q = np.array([3.5, 1.5, 0.5, 2.5]) / 8, np.array([0.5, 2.5, 2.5, 1.5]) / 7
    assert heterogeneity["kl"] == pytest.approx(((p - q) * np.log(p / q)).sum() / 2, rel=1e-12)
    p, q = np.array([3, 1, 0, 2]) / 6, np.array([0, 2, 2, 1]) / 5

    def bits(share: np.ndarray) -> float:
        known = share[share > 0]
        return float(-(known * np.log2(known)).sum())

    assert heterogeneity["js"] == pytest.approx(bits((p + q) / 2) - (bits(p) + bits(q)) / 2, rel=1e-12)
    assert heterogeneity["sizes"] == {"a": 5, "b": 4}
    assert heterogeneity["gini"] == pytest.approx((1 / 2) / (2 * 4.5), rel=1e-12)  # mean difference of two draws: 1/2


def test_specialised_sites_differ_more_than_sites_at_random() -> None:
    records = some_radiographs(1500)

    def kl(partitioner: Partitioner) -> float:
        sites = partitioner.assign(records, generator(2, "partition"))
        labels = {name: records.target[rows] for name, rows in sites.items()}
        return float(measure(labels, None, 3, np.random.default_rng(0))["kl"])

    assert kl(specialty(3, 0.9)) > 5 * kl(iid(3))


def test_the_made_up_findings_are_as_common_as_they_say() -> None:
    target = some_radiographs(4000, most_images=1).target
    assert target.mean(axis=0) == pytest.approx(0.9 * np.array(SHARES), abs=0.03)
