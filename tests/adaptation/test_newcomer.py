"""A newcomer's rows: fractions are nested and stratified, and what cannot be used is refused before anything trains."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests.adaptation.synthetic_hospitals import records
from wardround.adaptation.newcomer import FRACTIONS, fraction, read_newcomer
from wardround.adaptation.train import prepare_fraction
from wardround.bundles import SharedPart
from wardround.core.errors import CheckError, DataError, StudyError
from wardround.data.records import Records
from wardround.data.sources import Source
from wardround.data.sources.heart import heart

VA = heart(("va",))


def va() -> Records:
    loaded = VA.load()
    return replace(loaded, hospital=np.full(len(loaded), "va", dtype=object))


def test_fractions_are_nested_and_stratified() -> None:
    """Of 40 and 20 patients: 4 and 2, 8 and 4, 20 and 10, all."""
    target = np.repeat([0, 1, 0], [30, 20, 10])
    rows = np.arange(60)[::-1].copy()
    drawn = [fraction(np.sort(rows), target, np.arange(60), share, 3, "va") for share in FRACTIONS]
    assert [np.bincount(target[rows]).tolist() for rows in drawn] == [[4, 2], [8, 4], [20, 10], [40, 20]]
    for small, large in pairwise(drawn):
        assert set(small) < set(large)
    assert drawn[-1].tolist() == list(range(60))
    again = fraction(np.arange(60), target, np.arange(60), 0.2, 3, "va")
    assert again.tolist() == drawn[1].tolist()
    assert again.tolist() != fraction(np.arange(60), target, np.arange(60), 0.2, 4, "va").tolist()


def test_a_rare_class_keeps_two_patients_where_there_are() -> None:
    """10 % of 5 would be one patient, of 1 none."""
    target = np.repeat([0, 1, 2], [50, 5, 1])
    chosen = fraction(np.arange(56), target, np.arange(56), 0.1, 0, "va")
    assert np.bincount(target[chosen]).tolist() == [5, 2, 1]


def test_a_patient_is_never_torn_apart() -> None:
    patient = np.arange(90) // 3
    target = np.where(np.arange(90) % 3 == 0, patient % 2, 0)  # the highest of a patient's rows is the patient's class
    for share in FRACTIONS:
        chosen = fraction(np.arange(90), target, patient, share, 0, "va")
        assert set(np.bincount(patient[chosen], minlength=30).tolist()) <= {0, 3}
    assert len(fraction(np.arange(90), target, patient, 0.2, 0, "va")) == 3 * 6


def test_training_rows_are_those_of_the_split_and_test_rows_are_in_no_fraction(part: SharedPart) -> None:
    newcomer = read_newcomer("va", Source(va), part, 3)
    assert list(newcomer.splits) == [5, 6, 7]
    for seed, split in newcomer.splits.items():
        assert newcomer.fractions[1.0][seed].tolist() == split.train.tolist()
        assert len(split.rows) == 200
        held_out = np.concatenate([split.test, split.validation])
        for by_seed in newcomer.fractions.values():
            assert not np.isin(by_seed[seed], held_out).any()


def test_the_recipe_of_a_fraction_knows_no_other_row(part: SharedPart) -> None:
    """A value outside the fraction is changed beyond all bounds; nothing that the fraction prepares moves."""
    before = read_newcomer("va", Source(va), part, 1)
    outside = np.setdiff1d(before.splits[5].train, before.fractions[0.2][5])[0]
    loaded = va()
    assert isinstance(loaded.features, pd.DataFrame)
    table = loaded.features.copy()
    table.loc[outside, ["age", "thalach"]] = 1e6
    table.loc[outside, "cp"] = "9"
    after = read_newcomer("va", Source(lambda: replace(loaded, features=table)), part, 1)
    for share, same in ((0.2, True), (1.0, False)):
        (site, first), (other, second) = (prepare_fraction(part, newcomer, share, 5) for newcomer in (before, after))
        equal = first.names == second.names and np.array_equal(site.test.x.numpy(), other.test.x.numpy())
        assert equal == same, share


def test_a_fraction_that_is_too_small_is_left_out_with_a_reason(part: SharedPart) -> None:
    """60 % of 60 rows are 36 for training: 10 % are 4, 20 % are 8 (2 classes), 50 % are 18."""
    loaded = replace(records(("north",), 60, 2), classes=part.classes)
    newcomer = read_newcomer("north", Source(lambda: loaded), part, 2)
    assert list(newcomer.fractions) == [0.5, 1.0]
    assert list(newcomer.left_out) == [0.1, 0.2]
    assert "fewer than 10" in newcomer.left_out[0.2]


def test_too_few_rows_for_any_fraction_are_refused(part: SharedPart) -> None:
    loaded = replace(records(("north",), 14, 2), classes=part.classes)
    with pytest.raises(CheckError, match="too few training rows"):
        read_newcomer("north", Source(lambda: loaded), part, 1)


def test_other_classes_are_refused_with_both_lists(part: SharedPart) -> None:
    with pytest.raises(DataError) as caught:
        read_newcomer("north", Source(lambda: records(("north",), 60, 3)), part, 1)
    for word in ("'kind 0', 'kind 1', 'kind 2'", "'no disease', 'disease'"):
        assert word in caught.value.problem
    assert "[data.labels]" in caught.value.remedy


def test_classes_in_another_order_are_refused(part: SharedPart) -> None:
    with pytest.raises(DataError, match="in another order"):
        read_newcomer("va", Source(lambda: replace(va(), classes=("disease", "no disease"))), part, 1)


def test_a_hospital_that_the_shared_part_knows_is_no_newcomer(part: SharedPart) -> None:
    with pytest.raises(CheckError, match="would be too good"):
        read_newcomer("cleveland", heart(("cleveland",)), part, 1)


def test_checks_stop_it_unless_they_are_accepted(part: SharedPart) -> None:
    loaded = va().take(np.repeat(np.arange(50), 4))
    with pytest.raises(CheckError, match="--accept copies") as caught:
        read_newcomer("va", Source(lambda: loaded), part, 1)
    assert "copies" in caught.value.where
    newcomer = read_newcomer("va", Source(lambda: loaded), part, 1, accept=["copies"])
    assert "copies" in {notice.code for notice in newcomer.notices}
    with pytest.raises(StudyError, match="Did you mean 'copies'"):
        read_newcomer("va", Source(lambda: loaded), part, 1, accept=["copy"])


def test_rows_of_one_class_are_refused(part: SharedPart) -> None:
    loaded = va()
    with pytest.raises(CheckError) as refused:
        read_newcomer("va", Source(lambda: loaded.take(np.flatnonzero(loaded.target == 1))), part, 1)
    assert refused.value.notice is not None
    assert refused.value.notice.code == "one-class"


def test_images_are_refused(part: SharedPart, tmp_path: Path) -> None:
    images = Records(np.zeros((40, 1, 4, 4), np.uint8), np.arange(40) % 2, part.classes, np.full(40, "n", object))
    with pytest.raises(DataError, match="need a table"):
        read_newcomer("n", Source(lambda: images), part, 1)
