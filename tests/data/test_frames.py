"""A DataFrame is read as its CSV file would be, or refused with one clear error that holds no value."""

from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import wardround
from tests.hospital_frames import SMALL, hospital, hospitals, study_of
from wardround.core.errors import DataError, StudyError, WardroundError
from wardround.core.toml_files import parse_toml
from wardround.data.frames import frame_of, with_frames
from wardround.data.text_table import Table, checked_names, read_table

SECRET = "Zebediah"
ROWS = 40


def every_type() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    days = pd.date_range("2020-01-30", periods=ROWS)
    return pd.DataFrame(
        {
            "float": np.where(rng.random(ROWS) < 0.2, np.nan, rng.normal(size=ROWS)),
            "float32": rng.normal(size=ROWS).astype("float32"),
            "float16": rng.normal(size=ROWS).astype("float16"),
            "extreme": [1e300, 1e-7, np.inf, -0.0] * (ROWS // 4),
            "whole": rng.integers(-9, 9, ROWS),
            "large": [2**62 + 1, 2**63 + 5] * (ROWS // 2),
            "nullable": pd.array([1, None] * (ROWS // 2), dtype="Int64"),
            "nullable float": pd.array([0.1, None] * (ROWS // 2), dtype="Float64"),
            "flag": rng.random(ROWS) < 0.5,
            "nullable flag": pd.array([True, None] * (ROWS // 2), dtype="boolean"),
            "words": [" a ", "NA", 'say "b"', "x,y"] * (ROWS // 4),
            "category": pd.Categorical(rng.choice(["low", "high"], ROWS), ["low", "high", "unused"], ordered=True),
            "coded": pd.Categorical(rng.choice([1, 2], ROWS)),
            "mixed": [1, "two", None, 2.5] * (ROWS // 4),
            "objects": pd.Series([1.5, None] * (ROWS // 2), dtype=object),
            "day": days,
            "moment": days + pd.Timedelta("10h"),
            "date": [day.date() for day in days],
            "empty": [None] * ROWS,
            7: range(ROWS),
        }
    )


def of_file(table: pd.DataFrame, path: Path) -> Table:
    table.to_csv(path, index=False)
    return read_table(path, "auto", checked_names)


def columns_of(table: Any) -> Table:
    read = frame_of("north", table).columns
    assert read is not None
    return dict(read)


def test_every_column_is_that_of_the_csv_file(tmp_path: Path) -> None:
    table = every_type()
    read, expected = columns_of(table), of_file(table, tmp_path / "north.csv")
    assert list(read) == list(expected)
    for name, cells in expected.items():
        assert read[name].levels == cells.levels, name
        assert read[name].codes.tolist() == cells.codes.tolist(), name
        assert read[name].lines.tolist() == cells.lines.tolist(), name


def test_the_clock_of_a_time_zone_counts_as_in_a_file(tmp_path: Path) -> None:
    table = pd.DataFrame({"seen": pd.date_range("2020-03-28 23:30", periods=4, freq="h", tz="Europe/Berlin")})
    read, expected = columns_of(table)["seen"], of_file(table, tmp_path / "north.csv")["seen"]
    assert read.years.tolist() == expected.years.tolist()
    assert not np.isnan(read.years).any()


class OnlyArrow:
    """As polars and others: nothing but the interface."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self.table.__arrow_c_stream__(requested_schema)


def test_tables_of_other_packages_are_read_through_arrow() -> None:
    table = hospital(30, 1)
    assert frame_of("north", OnlyArrow(pa.Table.from_pandas(table))).digest == frame_of("north", table).digest


def test_categories_of_polars_are_texts_like_any_other() -> None:
    """Its categories are string views, which Arrow cannot take by number."""
    table = hospital(30, 1)
    arrow = pa.Table.from_pandas(table)
    place = arrow.column_names.index("sex")
    coded = arrow.column("sex").combine_chunks().cast(pa.string()).dictionary_encode()
    views = pa.DictionaryArray.from_arrays(coded.indices, coded.dictionary.cast(pa.string_view()))
    assert frame_of("north", OnlyArrow(arrow.set_column(place, "sex", views))).digest == frame_of("north", table).digest


def test_what_is_no_table_is_refused_and_says_what_to_give() -> None:
    study = {"data": {"files": {"north": np.zeros((3, 2)), "south": hospital(30, 1)}}}
    with pytest.raises(StudyError, match=r"data: files: north: expected a table, found .*\n.*collect\(\)"):
        with_frames(study)
    with_frames({"data": {"files": {"north": Path("north.csv"), "south": "south.csv"}}})


def test_the_digest_is_of_the_content() -> None:
    table = hospital(30, 1)
    digest = frame_of("north", table).digest
    assert frame_of("elsewhere", table.copy()).digest == digest
    assert frame_of("north", table.astype({"sex": "str", "visits": "object"})).digest == digest
    changed = table.assign(age=table["age"] + 1e-12 * (table.index == 3))
    others = {
        "a cell": changed,
        "an order": table.iloc[::-1].reset_index(drop=True),
        "a name": table.rename(columns={"age": "years"}),
        "columns": table[["age", "patient", "sex", "visits", "smokes", "died"]],
        "rows": table.head(29),
        "a gap": table.assign(age=table["age"].mask(table.index == 4)),
    }
    digests = {what: frame_of("north", other).digest for what, other in others.items()}
    assert len({digest, *digests.values()}) == 1 + len(others), digests


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "two columns of one name": (lambda: pd.DataFrame([[1, 2]], columns=["a", "a"]), "2 columns are called 'a'"),
    "names that are equal as texts": (lambda: pd.DataFrame([[1, 2]], columns=["1", 1]), "looks like a row of data"),
    "a MultiIndex of columns": (
        lambda: pd.DataFrame([[1, 2]], columns=pd.MultiIndex.from_tuples([("a", "b"), ("a", "c")])),
        "names on 2 levels",
    ),
    "a MultiIndex of rows": (
        lambda: pd.DataFrame({"a": [1]}, index=pd.MultiIndex.from_tuples([(SECRET, 1)])),
        "its index has a name",
    ),
    "an index with a name": (lambda: pd.DataFrame({"a": [1]}, index=pd.Index([SECRET], name="id")), "its index"),
    "lists": (lambda: pd.DataFrame({"a": [[SECRET], [SECRET]]}), "column 'a': is of a nested type"),
    "lists among texts": (
        lambda: pd.DataFrame({"a": ["x", [SECRET]]}),
        "row 1 (counted from 0): 'a' holds an object of",
    ),
    "bytes": (lambda: pd.DataFrame({"a": [SECRET.encode()]}), "is of type binary"),
    "objects": (lambda: pd.DataFrame({"a": [StringIO(SECRET)]}), "holds an object of type StringIO"),
    "complex numbers": (lambda: pd.DataFrame({"a": [1 + 2j]}), "holds an object of type complex"),
    "durations": (lambda: pd.DataFrame({"a": pd.to_timedelta([1, 2], unit="D")}), "is of type duration"),
    "periods": (lambda: pd.DataFrame({"a": pd.period_range("2020", periods=2)}), "is of type extension"),
    "intervals": (lambda: pd.DataFrame({"a": pd.cut([1, 2, 3], 2)}), "column 'a': is of"),
    "records in Arrow": (lambda: pa.table({"a": [{"name": SECRET}]}), "column 'a': is of a nested type"),
    "no rows": (lambda: pd.DataFrame({"a": []}), "has no rows"),
    "no columns": (lambda: pd.DataFrame(), "has no columns"),
    "a column without a name": (lambda: pd.DataFrame({"": [1]}), "column 1 has no name"),
    "a column with nothing for a name": (lambda: pd.DataFrame({None: [1]}), "column 1 has no name"),
    "a column with a gap for a name": (lambda: pd.DataFrame({"a": [1], float("nan"): [1]}), "column 2 has no name"),
    "a column and no table": (lambda: pd.Series([1]), "expected a table"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_no_file_could_hold_is_one_clear_error(kind: str) -> None:
    make, problem = REFUSED[kind]
    with pytest.raises(DataError) as refused:
        frame_of("north", make())
    assert "DataFrame 'north'" in refused.value.where
    assert problem in f"{refused.value.where}: {refused.value.problem}"
    assert SECRET not in str(refused.value)
    assert refused.value.remedy


def test_errors_name_rows_by_their_position() -> None:
    """In a file the same cell stands in line 5."""
    tables = hospitals()
    tables["north"]["age"] = tables["north"]["age"].astype(object)
    tables["north"].loc[3, "age"] = SECRET
    study, families = wardround.load_study(study_of(tables))
    with pytest.raises(
        DataError, match=r"1 of 160 values are not numbers, the first in row 3 \(counted from 0\)"
    ) as bad:
        wardround.load_plan(study, families)
    assert SECRET not in str(bad.value)


def test_a_study_of_frames_gives_the_bits_of_its_files(tmp_path: Path) -> None:
    tables = hospitals()
    files = {name: tmp_path / f"{name}.csv" for name in tables}
    for name, path in files.items():
        tables[name].to_csv(path, index=False)
    runs = [wardround.run_study(study_of(given), tmp_path / "runs", workers=1) for given in (tables, files)]
    in_memory, of_files = (run.predictions() for run in runs)
    pd.testing.assert_frame_equal(in_memory, of_files, check_exact=True)
    assert runs[0].folder != runs[1].folder


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> wardround.StudyRun:
    return wardround.run_study(study_of(hospitals()), tmp_path_factory.mktemp("frames"), changes=SMALL, workers=1)


def test_the_run_folder_says_that_rows_were_in_memory(run: wardround.StudyRun) -> None:
    files = parse_toml((run.folder / "study.toml").read_text())["data"]["files"]
    assert files["north"] == f"DataFrame, sha256 {frame_of('north', hospitals()['north']).digest}"


def test_nothing_is_written_beside_the_run_folder(run: wardround.StudyRun) -> None:
    assert [path.name for path in run.folder.parent.iterdir()] == [run.folder.name]


def test_other_rows_make_another_run(run: wardround.StudyRun) -> None:
    changed = hospitals()
    changed["south"]["age"] += changed["south"].index == 0
    other, _ = wardround.load_study(study_of(changed), changes=SMALL)
    same, _ = wardround.load_study(study_of(hospitals()), changes=SMALL)
    assert run.folder.name == f"frames-{same.hash[:8]}" != f"frames-{other.hash[:8]}"
    assert same == wardround.load_study(study_of(hospitals()), changes=SMALL)[0] != other
    assert not wardround.run_study(study_of(hospitals()), run.folder.parent, changes=SMALL).fresh


def test_a_run_goes_on_with_the_same_rows_alone(run: wardround.StudyRun) -> None:
    assert not wardround.resume_study(run.folder, tables=hospitals()).fresh
    assert not wardround.resume_study(run).fresh  # which brings them
    swapped = dict(zip(("north", "south"), reversed(hospitals().values()), strict=True))
    for given, problem in (
        ({}, "was in memory when the study ran"),
        ({"tables": swapped}, "its rows are not those of the run"),
        ({"tables": {"nrth": hospital(9, 1)}}, "no DataFrame of the study is called 'nrth'"),
        ({"tables": [hospital(9, 1)]}, "expected a dict"),
    ):
        with pytest.raises(WardroundError, match=problem) as refused:
            wardround.resume_study(run.folder, **given)
        assert "tables={" in refused.value.remedy or "north, south" in refused.value.remedy


def test_frames_of_a_folder_make_its_bundle(run: wardround.StudyRun, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="was in memory"):
        wardround.make_bundle(run.folder, arm="fedavg", site="north", out=tmp_path / "refused")
    given = wardround.make_bundle(run.folder, arm="fedavg", site="north", out=tmp_path / "a", tables=hospitals())
    brought = wardround.make_bundle(run, arm="fedavg", site="north", out=tmp_path / "b")
    assert wardround.load_bundle(given).about["features"] == wardround.load_bundle(brought).about["features"]


def test_frames_stand_only_where_files_do() -> None:
    with pytest.raises(StudyError, match="found an object of type DataFrame"):
        wardround.load_study({**study_of(hospitals()), "question": hospital(5, 1)})
    with pytest.raises(StudyError, match="no DataFrame of the study"):
        wardround.load_study("heart-fedprox", tables=hospitals())


def test_parties_may_be_frames() -> None:
    rng = np.random.default_rng(3)
    clinic = pd.DataFrame({"id": range(60), "age": rng.normal(60, 9, 60), "died": rng.integers(0, 2, 60)})
    lab = pd.DataFrame({"id": range(59, -1, -1), "crp": rng.normal(20, 4, 60)})
    study, families = wardround.load_study(
        {
            "name": "parties",
            "data": {
                "source": "csv-parties",
                "files": {"clinic": clinic, "lab": lab},
                "target": "died",
                "patient": "id",
            },
            "sites": {"partition": "iid", "count": 2},
            "arms": [{"algorithm": "pooled"}],
        }
    )
    features = wardround.load_plan(study, families).cohort_of(study.arms[0]).records.features
    assert isinstance(features, pd.DataFrame)
    assert features["crp"].tolist() == lab["crp"].tolist()[::-1]
