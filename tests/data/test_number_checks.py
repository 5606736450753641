"""Checks of rows whose outcome is a number: leaks of it, its direction and unit at each hospital, outliers; and what
else depends on it before training: partitions, differences between sites, files."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.data.number_hospitals import COUNT, Tables, everywhere, hospitals, notices_of, study_of
from wardround.core import seeds
from wardround.core.errors import CheckError
from wardround.core.notices import Notice, line_of
from wardround.data.checks.target_units import other_units
from wardround.data.cohort import load_cohort, split_sites
from wardround.data.describe import describe_data, describe_file
from wardround.data.partition import PARTITIONERS
from wardround.data.partition.by_hospital import by_hospital
from wardround.data.profile import profile
from wardround.data.sources import SOURCES
from wardround.data.sources.csv.hospital_files import csv
from wardround.data.split_files.export import export_split
from wardround.study.schema import Evaluation, Preparation
from wardround.tasks import Count, Regression

RNG = np.random.default_rng(5)


def told(folder: Path, tables: Tables, data: dict[str, Any] | None = None, **sections: Any) -> dict[str, list[Notice]]:
    found: dict[str, list[Notice]] = {}
    for notice in notices_of(study_of(folder, tables, data, **sections)):
        found.setdefault(notice.code, []).append(notice)
    return found


def values(table: pd.DataFrame, column: str = "stay") -> np.ndarray:
    return table[column].to_numpy(dtype=float)


LEAKS = {
    "a copy": lambda t: values(t),
    "in hours": lambda t: (24 * values(t)).round(),
    "turned round": lambda t: 100 - values(t),
    "its logarithm": lambda t: np.log(values(t)),
    "nearly": lambda t: values(t) + RNG.normal(0, 0.05, len(t)),
}


@pytest.mark.parametrize("name", LEAKS)
def test_a_column_that_tells_the_number_is_refused(name: str, tmp_path: Path) -> None:
    tables = hospitals(200)
    everywhere("days", LEAKS[name])(tables)
    with pytest.raises(CheckError, match=r"target-leak: column 'days' alone tells 'stay'") as refused:
        notices_of(study_of(tmp_path, tables))
    assert 'types = { "days" = "ignore" }' in refused.value.remedy
    accepted = told(tmp_path, tables, evaluation={"seeds": {"count": 1}, "accept": ["target-leak"]})
    assert [notice.columns for notice in accepted["target-leak"]] == [("days",)]


def test_what_tells_a_part_of_the_number_is_warned_of_and_a_good_predictor_is_not(tmp_path: Path) -> None:
    tables = hospitals(200)
    everywhere("long", lambda t: (values(t) > np.quantile(values(t), 0.75)).astype(int))(tables)
    everywhere("good", lambda t: values(t) + RNG.normal(0, values(t).std() / 3, len(t)))(tables)
    leaks = told(tmp_path, tables)["target-leak"]
    assert {(notice.columns, notice.severity) for notice in leaks} == {(("long",), "warning")}
    assert "is it known before the outcome?" in line_of(leaks[0])


def test_a_column_that_tells_a_count_is_refused(tmp_path: Path) -> None:
    tables = hospitals(200)
    everywhere("bills", lambda t: 12 * values(t, "admissions"))(tables)
    with pytest.raises(CheckError, match="'bills' alone tells 'admissions'"):
        notices_of(study_of(tmp_path, tables, COUNT))


def test_a_hospital_whose_number_is_turned_round_is_warned_of(tmp_path: Path) -> None:
    tables = hospitals(200)
    assert "label-direction" not in told(tmp_path, tables)
    everywhere("stay", lambda t: 40 - values(t), ("south",))(tables)
    (notice,) = told(tmp_path, tables)["label-direction"]
    assert (notice.site, notice.severity, notice.classes) == ("south", "warning", ("stay",))
    assert "its 'stay' may be turned round: 'stay' goes with lower age here" in line_of(notice)


def test_the_real_hospitals_show_which_one_differs_and_are_not_refused() -> None:
    """At Long Beach the highest heart rate goes with angina and ST depression, elsewhere with their absence."""
    data = {"source": "heart", "target": "thalach"}
    found = notices_of({"name": "rate", "data": data, "arms": [{"algorithm": "fedavg"}]})
    assert {(notice.site, notice.severity) for notice in found if notice.code == "label-direction"} == {
        ("va", "warning")
    }
    assert not [notice for notice in found if notice.code in ("target-units", "target-leak")]


UNITS = {"hours": 24.0, "weeks": 1 / 7, "mmol/l of glucose": 18.0, "pounds": 2.2}


@pytest.mark.parametrize("unit", UNITS)
def test_a_hospital_in_another_unit_is_warned_of(unit: str, tmp_path: Path) -> None:
    tables = hospitals(150)
    for table in tables.values():
        table["stay"] = 10 + values(table)  # far enough from 0 to have a factor
    assert "target-units" not in told(tmp_path, tables)
    everywhere("stay", lambda t: values(t) * UNITS[unit], ("east",))(tables)
    (notice,) = told(tmp_path, tables)["target-units"]
    assert (notice.site, notice.severity, notice.other_sites) == ("east", "warning", ("north", "south"))
    assert float(notice.counts["factor"]) == pytest.approx(UNITS[unit], rel=0.1)
    assert "may be in another unit" in line_of(notice)


def test_an_exposure_in_years_is_another_unit_of_a_rate(tmp_path: Path) -> None:
    tables = hospitals(200)
    assert "target-units" not in told(tmp_path, tables, COUNT)
    everywhere("months", lambda t: values(t, "months") / 12, ("north",))(tables)
    (notice,) = told(tmp_path, tables, COUNT)["target-units"]
    assert notice.site == "north"
    assert float(notice.counts["factor"]) == pytest.approx(12, rel=0.3)


def test_hospitals_that_merely_differ_are_in_no_other_unit() -> None:
    a, b, c, d = (RNG.gamma(4, 1, 200) for _ in range(4))
    assert not other_units({"a": a, "b": b, "c": 1.9 * c})
    assert not other_units({"a": a, "b": 3 * b, "c": 9 * c})  # no two agree, so that none is odd
    assert not other_units({"a": a, "b": b, "c": c + 20})  # moved, and not stretched
    assert not other_units({"a": a, "b": 4 * b})  # of two neither is most
    assert not other_units({"a": a, "b": b, "c": 24 * c[:10]})  # too few rows
    assert not other_units({"a": a - 4, "b": b - 4, "c": 24 * (c - 4)})  # numbers on both sides of 0 have no factor
    assert [odd.site for odd in other_units({"a": a, "b": 24 * b})] == ["b"]
    assert [odd.site for odd in other_units({"a": a, "b": b, "c": c, "d": d / 24})] == ["d"]
    assert [odd.site for odd in other_units({"a": a, "b": b, "c": c, "d": 24 * d, "e": 7 * d[::-1]})] == ["d", "e"]


def test_numbers_far_from_all_others_are_counted(tmp_path: Path) -> None:
    tables = hospitals()
    tables["south"]["stay"] = [9999.0, *values(tables["south"])[1:]]
    (notice,) = told(tmp_path, tables)["odd-values"]
    assert (notice.site, dict(notice.per_column)) == ("south", {"stay": 1})
    assert "9999" not in line_of(notice)


@pytest.mark.parametrize("name", ["dirichlet", "specialty"])
def test_partitions_by_the_outcome_use_fifths_of_a_number(name: str) -> None:
    records = SOURCES["heart"](target="thalach").load()
    sites = PARTITIONERS[name](count=5, **({"alpha": 0.3} if name == "dirichlet" else {"richness": 0.9})).assign(
        records, seeds.generator(3, "partition")
    )
    assert sorted(np.concatenate(list(sites.values())).tolist()) == list(range(len(records)))
    medians = [np.median(records.target[rows]) for rows in sites.values()]
    assert max(medians) - min(medians) > 20  # beats per minute: they are unlike, as was asked for


def test_differences_between_sites_are_measured_in_fifths_of_all_rows() -> None:
    task = Regression(("stay",))
    fifth, kinds = task.coarse(np.arange(100.0))
    assert kinds == 5
    assert np.bincount(fifth).tolist() == [20] * 5


def test_correlations_are_with_the_number_itself() -> None:
    records = SOURCES["heart"](target="thalach").load()
    cohort = load_cohort(SOURCES["heart"](target="thalach"), Preparation())
    correlation = profile(records, cohort.table, {"all": np.arange(len(records))})["correlation"]
    assert correlation["columns"][-1] == "thalach"
    age = correlation["columns"].index("age")
    assert correlation["values"][age][-1] == pytest.approx(
        np.corrcoef(cohort.table.numbers[:, 0], records.target)[0, 1], abs=1e-9
    )


def test_a_number_is_written_to_files_and_read_again(tmp_path: Path) -> None:
    study = study_of(tmp_path, hospitals(), COUNT)
    files = {site: Path(path) for site, path in study["data"]["files"].items()}
    source = csv(files, "admissions", task=COUNT["task"])  # type: ignore[arg-type]
    cohort = load_cohort(source, Preparation())
    splits = split_sites(cohort, by_hospital(), Evaluation(), 1)
    assert export_split(cohort, splits, tmp_path / "out") == {f"{site}.csv": 80 for site in files}
    again = csv(
        {site: tmp_path / "out" / f"{site}.csv" for site in files},
        "label",
        types={"split": "ignore"},
        task={"kind": "count", "exposure": "months"},
    ).load()
    assert sorted(map(tuple, again.target)) == sorted(map(tuple, cohort.records.target))


def test_a_source_of_a_number_is_described_by_its_quartiles() -> None:
    described = describe_data("visits")
    assert described["summary"] == ["rand: 20190 rows, visits: median 1 (0 to 4)"]
    assert described["hospitals"]["rand"]["numbers"]["visits"]["median"] == 1.0


def test_a_number_in_a_file_is_not_taken_for_classes(tmp_path: Path) -> None:
    study_of(tmp_path, hospitals())
    notices = describe_file(tmp_path / "north.csv").attrs["notices"]
    assert not [notice for notice in notices if notice.code == "may-be-target"]


def test_few_rows_have_no_questions_and_no_middle() -> None:
    for task in (Regression(("stay",)), Count(("n",))):
        empty = task.of_numbers(np.zeros((0, 1)))
        assert not list(task.yes_or_no(empty))
        upper = task.is_upper(empty)
        assert upper is not None
        assert not len(upper)
