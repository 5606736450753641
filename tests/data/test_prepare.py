"""Preparation: exact numbers on tables small enough to work out by hand."""

import numpy as np
import pandas as pd
import pytest

from wardround.core.errors import DataError
from wardround.data.agreement import agree, fit
from wardround.data.prepare import encode, transform
from wardround.data.records import Column, Records
from wardround.study.schema import Preparation

NAN = float("nan")


def records() -> Records:
    """Two hospitals of three rows: b has never measured `crp`; `ward` has three levels, `smoker` two."""
    table = pd.DataFrame(
        {
            "age": [40.0, 50.0, 60.0, 70.0, NAN, 90.0],
            "crp": [1.0, NAN, 3.0, NAN, NAN, NAN],
            "ward": ["icu", "icu", "surgery", "medicine", None, "medicine"],
            "smoker": ["yes", "no", "yes", "no", "no", "yes"],
        }
    ).astype({"ward": object, "smoker": object})
    columns = (
        Column("age", limits=(0, 100)),
        Column("crp"),
        Column("ward", "categorical"),
        Column("smoker", "categorical"),
    )
    hospital = np.array(["a"] * 3 + ["b"] * 3, dtype=object)
    return Records(table, np.array([0, 1, 0, 1, 0, 1]), ("no", "yes"), hospital, columns)


def table_of(data: Records) -> pd.DataFrame:
    assert isinstance(data.features, pd.DataFrame)
    return data.features


TRAIN = {"a": np.array([0, 1, 2]), "b": np.array([3, 4, 5])}


def prepared(settings: Preparation, site: str, rows: list[int]) -> tuple[tuple[str, ...], np.ndarray]:
    data = records()
    layout = agree(encode(data), TRAIN, settings)
    return layout.names, transform(
        encode(data), np.array(rows, dtype=np.int64), layout, fit(encode(data), TRAIN, layout, settings)[site], settings
    )


def test_the_layout_is_agreed_across_sites() -> None:
    names, _ = prepared(Preparation(scale="none"), "a", [0])
    # three levels give three columns, two levels give one; a gap anywhere gives an indicator everywhere
    assert names == (
        "age",
        "crp",
        "ward=icu",
        "ward=medicine",
        "ward=surgery",
        "smoker=yes",
        "age missing",
        "crp missing",
        "ward missing",
    )


def test_gaps_take_the_sites_own_median_or_the_other_sites_where_it_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wardround.data.agreement.LEAST", 1)
    _, x = prepared(Preparation(scale="none"), "b", [4])
    # age: median of 70 and 90; crp: never measured at b, so a's median of 1 and 3; ward: b's commonest level
    assert x[0].tolist() == [80.0, 2.0, 0, 1, 0, 0, 1, 1, 1]


def test_mean_and_median_differ_as_they_should() -> None:
    data = records()
    table_of(data).loc[0, "crp"] = 7.0  # a's crp: 7, gap, 3
    table_of(data).loc[5, "crp"] = 100.0
    for missing, expected in (("mean", 5.0), ("median", 5.0)):
        settings = Preparation(missing=missing, scale="none")  # type: ignore[arg-type]
        layout = agree(encode(data), TRAIN, settings)
        assert fit(encode(data), TRAIN, layout, settings)["a"].fill["crp"] == expected
    three = {"a": np.array([0, 1, 2, 5]), "b": np.array([3, 4])}  # 7, 3, 100: mean 36.67, median 7
    for missing, expected in (("mean", 110 / 3), ("median", 7.0)):
        settings = Preparation(missing=missing, scale="none")  # type: ignore[arg-type]
        layout = agree(encode(data), three, settings)
        assert fit(encode(data), three, layout, settings)["a"].fill["crp"] == pytest.approx(expected)


def test_per_site_scaling_uses_the_sites_training_rows_alone() -> None:
    _, x = prepared(Preparation(scale="per-site", indicator=False), "a", [0, 1, 2])
    # ages 40, 50, 60: mean 50, SD (divided by n) sqrt(200/3)
    assert x[:, 0] == pytest.approx([-10 / np.sqrt(200 / 3), 0, 10 / np.sqrt(200 / 3)])


def test_federated_scaling_equals_scaling_of_the_pooled_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wardround.data.agreement.LEAST", 1)
    data = records()
    settings = Preparation(scale="federated", indicator=False)
    layout = agree(encode(data), TRAIN, settings)
    fits = fit(encode(data), TRAIN, layout, settings)
    ages = np.array([40, 50, 60, 70, 80, 90])  # the gap is filled with b's median before scaling
    assert fits["a"].centre[0] == pytest.approx(ages.mean())
    assert fits["b"].spread[0] == pytest.approx(ages.std())
    assert np.array_equal(fits["a"].spread, fits["b"].spread)


def test_ranges_need_no_data_and_clip_what_lies_outside() -> None:
    data = records()
    keep = Records(data.features[["age"]], data.target, data.classes, data.hospital, data.columns[:1])
    table_of(keep).loc[0, "age"] = 120.0
    settings = Preparation(scale="ranges", indicator=False)
    layout = agree(encode(keep), TRAIN, settings)
    x = transform(encode(keep), np.array([0, 1]), layout, fit(encode(keep), TRAIN, layout, settings)["a"], settings)
    assert x[:, 0].tolist() == [1.0, 0.5]


def test_ranges_refuse_a_column_without_a_public_range() -> None:
    with pytest.raises(DataError, match=r"none is known for crp"):
        prepared(Preparation(scale="ranges"), "a", [0])


def test_codes_refuse_text_categories() -> None:
    with pytest.raises(DataError, match=r"not so: ward, smoker"):
        prepared(Preparation(categories="codes"), "a", [0])


def test_a_level_that_no_training_row_had_becomes_zeros() -> None:
    data = records()
    table_of(data).loc[5, "ward"] = "garden"
    settings = Preparation(scale="none", indicator=False)
    train = {"a": np.array([0, 1, 2]), "b": np.array([3, 4])}
    layout = agree(encode(data), train, settings)
    x = transform(encode(data), np.array([5]), layout, fit(encode(data), train, layout, settings)["b"], settings)
    assert layout.levels["ward"] == ("icu", "medicine", "surgery")
    assert x[0, 2:5].tolist() == [0, 0, 0]


def test_nothing_is_fitted_on_rows_outside_the_training_rows() -> None:
    settings = Preparation()
    data = records()
    train = {"a": np.array([0, 1]), "b": np.array([3, 5])}
    layout = agree(encode(data), train, settings)
    before = fit(encode(data), train, layout, settings)
    table_of(data).loc[[2, 4], "age"] = 1e6
    after = fit(encode(data), train, layout, settings)
    assert np.array_equal(before["a"].centre, after["a"].centre)
    assert before["b"].fill == after["b"].fill


def test_a_constant_column_is_not_divided_by_zero() -> None:
    data = records()
    data.features["age"] = 50.0
    settings = Preparation(indicator=False)
    layout = agree(encode(data), TRAIN, settings)
    x = transform(encode(data), np.array([0, 1]), layout, fit(encode(data), TRAIN, layout, settings)["a"], settings)
    assert x[:, 0].tolist() == [0.0, 0.0]


def test_no_rows_give_an_empty_array_of_the_right_width() -> None:
    names, x = prepared(Preparation(), "a", [])
    assert x.shape == (0, len(names))
