"""The source `csv`: what loads, what is refused with which words, and that no message ever shows a patient's value."""

from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wardround.core.errors import DataError, StudyError, WardroundError
from wardround.core.notices import Notice, lines_of
from wardround.core.settings import parse_settings, settings_of
from wardround.data.describe import describe_file
from wardround.data.records import SEX_WORDS, Column, Records
from wardround.data.sources.csv.hospital_files import csv
from wardround.data.text_table import MISSING_WORDS

SECRET = "PATIENT-SECRET-7731"


def write(folder: Path, **texts: str | bytes) -> dict[str, Path]:
    """One file per hospital."""
    files = {site: folder / f"{site}.csv" for site in texts}
    for site, text in texts.items():
        files[site].write_bytes(text if isinstance(text, bytes) else text.encode())
    return files


def load(folder: Path, /, *, texts: dict[str, str | bytes] | None = None, **choices: Any) -> Records:
    """Loads hospitals a, b, ... given as texts; the target is `y` unless told."""
    return csv(write(folder, **(texts or {})), **{"target": "y", **choices}).load()


def one(folder: Path, text: str | bytes, **choices: Any) -> Records:
    return load(folder, texts={"a": text}, **choices)


def two(folder: Path, a: str, b: str, **choices: Any) -> Records:
    return load(folder, texts={"a": a, "b": b}, **choices)


def refused(folder: Path, *texts: str | bytes, **choices: Any) -> WardroundError:
    with pytest.raises(WardroundError) as caught:
        load(folder, texts=dict(zip("abc", texts, strict=False)), **choices)
    return caught.value


def column(name: str, values: list[str], target: tuple[str, ...] = ("yes", "no"), separator: str = ",") -> str:
    """A file with one column and a target that alternates."""
    rows = [f"{value}{separator}{target[i % len(target)]}" for i, value in enumerate(values)]
    return "\n".join([f"{name}{separator}y", *rows]) + "\n"


def table(records: Records) -> pd.DataFrame:
    assert isinstance(records.features, pd.DataFrame)
    return records.features


def kinds(records: Records) -> dict[str, str]:
    return {column.name: column.kind for column in records.columns}


# --- a newcomer's three hospitals ---

NORTH = """mrn,age,sex,smoker,crp,admitted,died
N1,64,m,never,12.5,2021-03-01,no
N2,71,f,former,,2021-03-04,yes
N3,58,F,current,3,2021-04-11,no
N3,58,F,unknown,4.5,2021-05-11,no
"""
SOUTH = """mrn;age;sex;smoker;crp;admitted;died
S1;49;male;never;8,25;01.02.2020;No
S2;NA;female;"former";1,0;15.02.2020;Yes
S3;80;male;never;?;;
"""
EAST = """mrn\tage\tsex\tsmoker\tcrp\tadmitted\tdied
E1\t33\tw\tnever\t7\t31/12/2019\tNO
N1\t90\tm\tcurrent\t110\t01/06/2020\tyes
"""


def test_three_hospitals_made_by_hand(tmp_path: Path) -> None:
    files = write(tmp_path, north=NORTH, south=SOUTH, east=EAST)
    choices: Any = {"shared_ids": True, "ranges": {"crp": (0, 500)}, "types": {"admitted": "date"}}
    records = csv(files, target="died", patient="mrn", **choices).load()
    assert len(records) == 8
    assert records.classes == ("no", "yes")
    assert records.target.tolist() == [0, 1, 0, 0, 0, 1, 0, 1]
    assert records.target.dtype == np.int64
    assert records.hospital.tolist() == ["north"] * 4 + ["south"] * 2 + ["east"] * 2
    assert records.columns == (
        Column("age"),
        Column("sex", "categorical", words=tuple(SEX_WORDS.items())),
        Column("smoker", "categorical"),
        Column("crp", limits=(0, 500)),
        Column("admitted", dates=True),
    )
    features = table(records)
    assert features["crp"].dtype == np.float64
    np.testing.assert_array_equal(features["crp"], [12.5, np.nan, 3, 4.5, 8.25, 1, 7, 110])
    assert features["sex"].tolist() == records.groups["sex"].tolist()  # not six levels: m, male, f, F, female, w
    assert features["smoker"].dtype == object
    assert features["smoker"].tolist() == ["never", "former", "current", None, "never", "former", "never", "current"]
    # From 2000-01-01 it is 20 years with 5 leap days to 2020-01-01, 7305 days, and 31 more to 2020-02-01.
    assert features["admitted"][4] == pytest.approx(7336 / 365.25)
    assert features["admitted"][6] == pytest.approx(7304 / 365.25)
    np.testing.assert_array_equal(records.groups["age"], [64, 71, 58, 58, 49, np.nan, 33, 90])
    assert records.groups["sex"].tolist() == ["male", "female", "female", "female", "male", "female", "female", "male"]
    assert records.patient is not None
    assert records.patient[0] == sha256(b"N1").hexdigest()[:16] == records.patient[7]  # one patient at two hospitals
    assert records.patient[2] == records.patient[3]
    assert len(set(records.patient.tolist())) == 6
    assert records.notices == (
        Notice("rows-without-target", "info", "south", ("died",), {"rows": 1, "of": 3}),
        Notice("spellings-joined", "info", columns=("sex",), counts={"spellings": 6, "levels": 2}),
        Notice("decimal-commas", "info", "south", ("crp",)),
        Notice("dates-as-years", "info", columns=("admitted",)),
    )
    assert not records.synthetic
    assert table(records.take([7, 0]))["smoker"].tolist() == ["current", "never"]


def test_the_factory_reads_nothing_and_is_filled_from_a_study(tmp_path: Path) -> None:
    raw = {
        "files": {"a": "a.csv"},
        "target": "y",
        "ranges": {"x": [0, 9.5]},
        "types": {"x": "numeric"},
        "separator": ";",
    }
    source = csv(**parse_settings(settings_of(csv), raw, "study.toml: data", tmp_path))
    with pytest.raises(DataError, match="there is no such file"):
        source.load()
    write(tmp_path, a="x;y\n1;yes\n2;no\n")
    assert source.load().columns == (Column("x", limits=(0, 9.5)),)


# --- reading a file ---


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_byte_order_marks_line_ends_and_blank_lines(tmp_path: Path, start: bytes, end: str) -> None:
    text = end.join(["", " x , y ", "1,yes", "", "  ", "2, no ", ""])
    records = one(tmp_path, start + text.encode())
    assert table(records)["x"].tolist() == [1, 2]
    assert records.target.tolist() == [1, 0]


def test_quoted_cells_may_hold_separators_quotes_and_line_ends(tmp_path: Path) -> None:
    text = 'x,note,y\n1,"a, ""b""\nc",yes\n2,plain,no\nthree,plain,no\n'
    records = one(tmp_path, text.replace("three", "3"))
    assert table(records)["note"].tolist() == ['a, "b"\nc', "plain", "plain"]
    error = refused(tmp_path, text)
    assert "1 of 3 values are not numbers, the first in line 5" in str(error)  # a record may take two lines


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_the_separator_is_the_sign_that_is_most_frequent_in_the_header(tmp_path: Path, separator: str) -> None:
    header = separator.join(["x", '"one,two;three,;,;"', "y"])
    records = one(tmp_path, f"{header}\n{separator.join('12')}{separator}yes\n{separator.join('34')}{separator}no\n")
    assert kinds(records) == {"x": "numeric", "one,two;three,;,;": "numeric"}


def test_a_separator_can_be_declared(tmp_path: Path) -> None:
    text = "x,1,2;y\n5;yes\n6;no\n"
    assert kinds(one(tmp_path, text, separator=";")) == {"x,1,2": "numeric"}
    assert "2 fields, but" not in str(refused(tmp_path, text))  # "auto" takes commas here
    assert "1 fields, but the header names 3 columns" in str(refused(tmp_path, text))


@pytest.mark.parametrize("word", [*MISSING_WORDS, "NaN", " N/A ", "NULL", "Unknown"])
def test_missing_words(tmp_path: Path, word: str) -> None:
    records = one(tmp_path, f"x,c,y\n1,u,yes\n{word},{word},no\n2,v,{word}\n")
    np.testing.assert_array_equal(table(records)["x"], [1, np.nan])
    assert table(records)["c"].tolist() == ["u", None]
    assert records.notices == (Notice("rows-without-target", "info", "a", ("y",), {"rows": 1, "of": 3}),)


BROKEN = [
    (b"", "a.csv: the file is empty"),
    (b"\n \n\n", "a.csv: the file is empty"),
    (b"\xef\xbb\xbf", "a.csv: the file is empty"),
    (b"x,y\n", "a.csv: there is a header, but no row below it"),
    (b"PK\x03\x04\x00\x00junk", "a.csv: not a text file"),
    ("x,y\n1,yes\n".encode("utf-16"), "a.csv: not a text file"),
    (
        b"x,y\n1,yes\nM\xfcller,no\n",
        "a.csv, line 3: not UTF-8\n  Save it as UTF-8 (in a spreadsheet: 'CSV UTF-8').",
    ),
    (b"\xef\xbb\xbfx,y\r\n1,yes\r\nM\xfcller,no\r\n", "a.csv, line 3: not UTF-8"),
    (b"x,y\n1,yes\n2,no,5\n", "a.csv, line 3: 3 fields, but the header names 2 columns"),
    (b'x,y\n"1\n",yes\n2\n', "a.csv, line 4: 1 fields, but the header names 2 columns"),
    (b"x,age,y,age\n1,2,yes,3\n", "a.csv, line 1: 2 columns are called 'age'"),
    (b"\nx,,y\n1,2,yes\n", "a.csv, line 2: column 2 has no name"),
    (b'x,y\n1,yes\n"2,no\n3,no\n', "a.csv, line 3: quotation marks do not match"),
    (b'x,y\n"1"2,yes\n', "a.csv, line 2: quotation marks do not match"),
    (b"x,y\n" + b"1" * 200_000 + b",yes\n", "or a cell is longer than 131,072 characters"),
]


@pytest.mark.parametrize(("data", "message"), BROKEN)
def test_broken_files(tmp_path: Path, data: bytes, message: str) -> None:
    error = refused(tmp_path, data)
    assert isinstance(error, DataError)
    assert message in str(error)
    assert str(tmp_path) in error.where


def test_a_missing_file_a_folder_and_one_without_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match=r"gone\.csv: there is no such file\n  Correct the path"):
        csv({"a": tmp_path / "gone.csv"}, "y").load()
    with pytest.raises(DataError, match="this is a folder"):
        csv({"a": tmp_path}, "y").load()
    with pytest.raises(DataError, match="the file cannot be read"):
        csv({"a": tmp_path / ("long" * 100)}, "y").load()

    def forbid(path: Path) -> NoReturn:
        raise PermissionError(13, "Permission denied", str(path))

    files = write(tmp_path, a="x,y\n1,yes\n")
    monkeypatch.setattr(Path, "read_bytes", forbid)
    with pytest.raises(DataError, match=r"a\.csv: the file cannot be read \(Permission denied\)"):
        csv(files, "y").load()


def test_a_file_without_a_header_is_not_quoted(tmp_path: Path) -> None:
    missing = refused(tmp_path, "64,Smith,yes\n71,Jones,no\n", target="died")
    assert "there is no column 'died', which the study names as its target" in str(missing)
    assert "add a line above it that names the columns" in missing.remedy
    repeated = refused(tmp_path, "64,Smith,Smith\n71,Jones,no\n", target="died")
    assert "line 1: this looks like a row of data" in str(repeated)
    assert "Smith" not in str(missing) + str(repeated)


# --- types ---


def infer(folder: Path, values: list[str], name: str = "x") -> tuple[str, tuple[Notice, ...]]:
    """The column's type among a file's, and the notices; a second column keeps the file usable."""
    rows = [f"{value};{i};{'yes' if i % 2 else 'no'}" for i, value in enumerate(values)]
    records = one(folder, "\n".join([f"{name};other;y", *rows]))
    return kinds(records).get(name, "left out"), records.notices


def test_numbers(tmp_path: Path) -> None:
    for values in (["1", "2.5", "-3e2", "+4"], ["0", "1", "0"], ["7", "", "7"]):
        assert infer(tmp_path, values) == ("numeric", ())
    assert infer(tmp_path, ["1,5", "2", "-3,25"]) == ("numeric", (Notice("decimal-commas", "info", "a", ("x",)),))
    assert infer(tmp_path, ["1_000", "a_b"])[0] == "categorical"


def test_decimal_commas_need_the_whole_column_and_another_separator(tmp_path: Path) -> None:
    mixed = "1 of 3 values are not numbers"
    assert mixed in str(refused(tmp_path, column("x", ["1,5", "2,5", "1.234"], separator=";")))
    assert mixed in str(refused(tmp_path, column("x", ['"1,5"', "2.5", "3"])))


def test_infinite_values_are_missing_and_counted(tmp_path: Path) -> None:
    a, b = column("x", ["1", "inf", "-Infinity", "1e999", "5"]), column("x", ["1", "2"])
    records = two(tmp_path, a, b)
    np.testing.assert_array_equal(table(records)["x"], [1, np.nan, np.nan, np.nan, 5, 1, 2])
    assert records.notices == (Notice("infinite-values", "info", "a", ("x",), {"values": 3}),)


@pytest.mark.parametrize(
    ("values", "first_day"),
    [
        (["2000-01-02", "2021-12-31 23:59", "2021-12-31T23:59:59.5+01:00"], 1),
        (["02.01.2000", "31.12.1999 08:00"], 1),
        (["2/1/2000", "13/1/2000"], 1),
        (["1999-12-31", "02.01.2000"], -1),
    ],
)
def test_dates_become_years(tmp_path: Path, values: list[str], first_day: int) -> None:
    records = one(tmp_path, column("x", values), types={"x": "date"})
    assert records.notices == (Notice("dates-as-years", "info", columns=("x",)),)
    assert table(records)["x"][0] == pytest.approx(first_day / 365.25)


def test_dates_are_no_features_unless_the_study_names_them(tmp_path: Path) -> None:
    """A model would learn when a patient was there, which no later patient has in common with him."""
    cells = "age,seen,y\n50,2020-01-01,yes\n60,2021-01-01,no\n70,2022-01-01,no\n"
    left_out = one(tmp_path, cells)
    assert [column.name for column in left_out.columns] == ["age"]
    details = {"reason": "undeclared date"}
    assert left_out.notices == (Notice("column-left-out", "info", columns=("seen",), details=details),)
    for choices in ({"types": {"seen": "date"}}, {"ranges": {"seen": (20.0, 30.0)}}):
        named = one(tmp_path, cells, **choices)
        assert [(column.name, column.dates) for column in named.columns] == [("age", False), ("seen", True)]


@pytest.mark.parametrize(
    "values", [["01/02/2020", "12/04/2021"], ["12/31/2020", "01/15/2020"], ["31/12/2020", "12/31/2020"]]
)
def test_day_and_month_must_be_clear(tmp_path: Path, values: list[str]) -> None:
    for choices in ({}, {"types": {"x": "date"}}):
        error = refused(tmp_path, column("x", values), **choices)
        assert "day and month cannot be told apart" in str(error)
        assert "yyyy-mm-dd" in error.remedy


def test_impossible_dates_are_pointed_at(tmp_path: Path) -> None:
    error = refused(tmp_path, column("x", ["2020-02-28", "2020-03-01", "2020-02-30"]))
    assert "dates and text at 'a' (1 of 3 values are not dates, the first in line 4)" in str(error)


def left_out(reason: str, name: str = "x") -> tuple[Notice, ...]:
    return (Notice("column-left-out", "info", columns=(name,), details={"reason": reason}),)


def test_categories_identifiers_and_free_text(tmp_path: Path) -> None:
    few = [f"level {i % 20}" for i in range(60)]
    many = [f"remark {i % 30}" for i in range(60)]
    different = [f"person {i}" for i in range(12)]
    one_in_twenty = [f"code {i % 30}" for i in range(600)]
    assert infer(tmp_path, few) == ("categorical", ())
    assert infer(tmp_path, one_in_twenty) == ("categorical", ())
    assert infer(tmp_path, many) == ("left out", left_out("free text"))
    assert infer(tmp_path, different) == ("left out", left_out("id"))
    assert infer(tmp_path, different[:9])[0] == "categorical"  # too few to tell
    assert infer(tmp_path, ["", "NA"]) == ("left out", left_out("empty"))


@pytest.mark.parametrize(
    "name", ["id", "ID", "patient_id", "PatientID", "MRN", "patient", "hadm_id", "visit no", "surname"]
)
def test_names_of_identifiers(tmp_path: Path, name: str) -> None:
    assert infer(tmp_path, ["1", "2", "1"], name) == ("left out", left_out("id", name))


@pytest.mark.parametrize("name", ["covid", "patient_age", "fluid", "admission", "idle", "case_mix", "steroid"])
def test_names_that_are_not_identifiers(tmp_path: Path, name: str) -> None:
    assert infer(tmp_path, ["1", "2", "1"], name)[0] == "numeric"


def test_a_column_means_one_thing_at_all_hospitals(tmp_path: Path) -> None:
    error = refused(tmp_path, column("x", ["1", "2"]), column("x", ["low", "", "high"]))
    assert isinstance(error, DataError)
    assert error.where == "column 'x'"
    assert error.problem == "numbers at 'a'; text at 'b' (2 of 2 values are not numbers, the first in line 2)"
    assert '`types = { "x" = "categorical" }`' in error.remedy
    records = two(tmp_path, column("x", ["1", "2"]), column("x", ["low", "2"]), types={"x": "categorical"})
    assert table(records)["x"].tolist() == ["1", "2", "low", "2"]
    assert "dates at 'a'; text at 'b'" in str(refused(tmp_path, column("x", ["2020-01-01"]), column("x", ["early"])))
    assert kinds(two(tmp_path, column("x", ["1", "2"]), column("x", ["", ""]))) == {"x": "numeric"}


def test_levels_that_differ_in_case_are_kept_apart_and_noted(tmp_path: Path) -> None:
    records = two(tmp_path, column("antigen", ["C", "c"]), column("antigen", ["C", "e"]))
    assert table(records)["antigen"].tolist() == ["C", "c", "C", "e"]
    assert records.notices == (Notice("case-of-levels", "info", columns=("antigen",)),)


def test_numbers_mixed_with_marks_are_refused_not_guessed(tmp_path: Path) -> None:
    error = refused(tmp_path, column("crp", ["1.5", "2", "<5", "7", "<5"]))
    assert error.problem == "numbers and text at 'a' (2 of 5 values are not numbers, the first in line 4)"


def test_declared_types(tmp_path: Path) -> None:
    text = "code,name,when,skip,x,y\n1,ann,2000-01-01,u,1,yes\n2.0,bob,2001-01-01,v,2,no\n2,cat,2001-01-01,v,2,no\n"
    types = {"code": "categorical", "name": "categorical", "when": "date", "skip": "ignore", "x": "id"}
    records = one(tmp_path, text, types=types, ranges={"code": (1, 4)})
    code = Column("code", "categorical", limits=(1, 4), coded=True)
    assert records.columns == (code, Column("name", "categorical"), Column("when", dates=True))
    assert table(records)["code"].tolist() == ["1", "2", "2"]
    assert records.notices == (
        Notice("spellings-joined", "info", columns=("code",), counts={"spellings": 3, "levels": 2}),
        Notice("dates-as-years", "info", columns=("when",)),
        Notice("column-left-out", "info", columns=("skip",), details={"reason": "ignore"}),
        Notice("column-left-out", "info", columns=("x",), details={"reason": "id"}),
    )


def test_a_declared_type_that_the_cells_do_not_bear_out(tmp_path: Path) -> None:
    cells = column("x", ["1", "", "two", "3", "four"])
    error = refused(tmp_path, column("x", ["1"]), cells, types={"x": "numeric"})
    assert isinstance(error, DataError)
    assert error.where == "column 'x' at 'b'"
    assert error.problem == "2 of 4 values are not numbers, the first in line 4"
    assert "4 of 4 values are not dates, the first in line 2" in str(refused(tmp_path, cells, types={"x": "date"}))


@pytest.mark.parametrize(
    ("choices", "where", "guess"),
    [
        ({"types": {"chl": "numeric"}}, "data: types", "'chol'"),
        ({"ranges": {"choll": (0, 1)}}, "data: ranges", "'chol'"),
        ({"types": {"y": "numeric"}}, "data: types", "Features: chol"),
        ({"types": {"chol": "numerc"}}, "data: types: chol", "'numeric'"),
        ({"age": "cholx"}, "data: age", "'chol'"),
        ({"sex": "cho"}, "data: sex", "'chol'"),
        ({"patient": "y"}, "data: patient", "Name the column"),
        ({"ranges": {"chol": (5, 5)}}, "data: ranges: chol", "[lowest, highest]"),
    ],
)
def test_settings_that_name_nothing(tmp_path: Path, choices: dict[str, Any], where: str, guess: str) -> None:
    error = refused(tmp_path, column("chol", ["1", "2"]), **choices)
    assert isinstance(error, StudyError)
    assert error.where == where
    assert guess in error.remedy


def test_more_settings_that_name_nothing(tmp_path: Path) -> None:
    for choices, setting in (({"target": "yy"}, "target"), ({"patient": "xx"}, "patient")):
        error = refused(tmp_path, column("x", ["1", "2"]), **choices)
        assert f"which the study names as its {setting}" in error.problem
        assert "Did you mean" in error.remedy
    assert "which has no range" in str(refused(tmp_path, column("x", ["u", "v"]), ranges={"x": (0, 1)}))
    assert "no feature is left" in str(refused(tmp_path, "id,y\n1,yes\n2,no\n"))
    with pytest.raises(StudyError, match="no hospital is named"):
        csv({}, "y")


# --- columns that differ ---

LONG, SHORT = "x,extra,y\n1,5,yes\n2,6,no\n", "y,x,own\nno,3,7\n"


def test_differing_columns_are_refused(tmp_path: Path) -> None:
    error = refused(tmp_path, LONG, SHORT)
    assert error.problem == "the columns differ between the hospitals: 'a' has no 'own'; 'b' has no 'extra'"
    assert '"common"' in error.remedy
    assert '"all"' in error.remedy
    assert '`schema = "own"` and the model "adapter"' in error.remedy
    assert kinds(two(tmp_path, LONG, SHORT, types={"own": "ignore", "extra": "ignore"})) == {"x": "numeric"}


def test_common_columns(tmp_path: Path) -> None:
    records = two(tmp_path, LONG, SHORT, columns="common")
    assert table(records).to_dict("list") == {"x": [1, 2, 3]}
    assert records.notices == (Notice("column-not-shared", "info", columns=("extra", "own")),)


def test_all_columns(tmp_path: Path) -> None:
    records = two(tmp_path, LONG, SHORT, columns="all")
    np.testing.assert_array_equal(
        table(records)[["x", "extra", "own"]], [[1, 5, np.nan], [2, 6, np.nan], [3, np.nan, 7]]
    )
    assert records.notices == (
        Notice("column-not-recorded", "info", "a", ("own",), details={"use": "missing"}),
        Notice("column-not-recorded", "info", "b", ("extra",), details={"use": "missing"}),
    )


# --- the target ---


def labels(folder: Path, *words: str, **choices: Any) -> tuple[tuple[str, ...], list[int], tuple[Notice, ...]]:
    """Classes, labels and notices when each hospital has the given words, separated by spaces."""
    texts: list[str] = ["\n".join(["x,y", *(f"1,{word}" for word in site.split())]) for site in words]
    records = load(folder, texts=dict(zip("abc", texts, strict=False)), **choices)
    return records.classes, records.target.tolist(), records.notices


def label_error(folder: Path, *words: str, **choices: Any) -> DataError:
    with pytest.raises(DataError) as caught:
        labels(folder, *words, **choices)
    return caught.value


@pytest.mark.parametrize(
    ("words", "classes"),
    [
        ("Yes NO no", ("NO", "Yes")),
        ("Y n N", ("n", "Y")),
        ("TRUE false False", ("false", "TRUE")),
        ("1 0 0.0", ("0", "1")),
        ("positive negative negative", ("negative", "positive")),
        ("pos neg neg", ("neg", "pos")),
        ("present absent absent", ("absent", "present")),
        ("dead alive alive", ("alive", "dead")),
        ("died alive alive", ("alive", "died")),
    ],
)
def test_known_words(tmp_path: Path, words: str, classes: tuple[str, str]) -> None:
    assert labels(tmp_path, words)[:2] == (classes, [1, 0, 0])


def test_one_class_at_a_hospital_is_for_a_later_check(tmp_path: Path) -> None:
    assert labels(tmp_path, "no no", "yes no") == (("no", "yes"), [0, 0, 1, 0], ())
    assert labels(tmp_path, "no no", "no") == (("no", "yes"), [0, 0, 0], ())
    assert labels(tmp_path, "ill ill", positive="ill") == (("not ill", "ill"), [1, 1], ())


def test_two_vocabularies_are_joined_for_a_person_to_confirm(tmp_path: Path) -> None:
    words = {"a": "yes/no", "b": "1/0"}
    notice = Notice("target-words", "warning", columns=("y",), other_sites=("a", "b"), details=words)
    assert labels(tmp_path, "yes no", "1 0 0") == (("no", "yes"), [1, 0, 1, 0, 0], (notice,))
    # In the second hospital of our seed data, 1 means healthy: then `positive` turns the meaning round.
    assert labels(tmp_path, "1 0", positive="0")[:2] == (("1", "0"), [0, 1])
    assert labels(tmp_path, "yes no", "1 0", positive="1")[:2] == (("0", "1"), [1, 0, 1, 0])


def test_other_words_need_positive(tmp_path: Path) -> None:
    error = label_error(tmp_path, "ill well ill")
    assert error.where == "target 'y'"
    hidden = "2 that the study does not declare (the first at 'a' in line 2)"  # they may be names of patients
    assert error.problem == f"it is not known which class is the positive one: {hidden}"
    assert '`positive = "..."`' in error.remedy
    assert labels(tmp_path, "ill well Ill", positive="ILL") == (("well", "ill"), [1, 0, 1], ())
    assert labels(tmp_path, "1 2 2", positive="2") == (("1", "2"), [0, 1, 1], ())


def test_positive_that_does_not_fit(tmp_path: Path) -> None:
    assert "`positive` is not one of the classes" in str(label_error(tmp_path, "ill well", positive="sick"))
    assert "The classes are: 'no', 'yes'" in str(label_error(tmp_path, "yes no", positive="1"))
    error = label_error(tmp_path, "ill well ill", "ill fine well", positive="ill")
    assert "`positive` is given, but there are 2 other classes: 2 that the study does not declare" in error.problem


def test_several_classes_are_sorted_numbers_by_value(tmp_path: Path) -> None:
    assert labels(tmp_path, "10 9 2 10 9 2")[:2] == (("2", "9", "10"), [2, 1, 0, 2, 1, 0])
    assert labels(tmp_path, "b c a a b c", "c")[:2] == (("a", "b", "c"), [1, 2, 0, 0, 1, 2, 2])


def test_labels_that_may_differ_in_meaning(tmp_path: Path) -> None:
    error = label_error(tmp_path, "0 1 0 1", "1 2 1 2")
    assert "the labels differ between the hospitals" in error.problem
    assert "'a' has '0', '1'; 'b' has '1', 1 that the study does not declare" in error.problem
    assert "may differ in meaning" in label_error(tmp_path, "yes no yes no", "ill well ill well").problem
    assert labels(tmp_path, "0 1 0 1", "0 1 2 2 1")[0] == ("0", "1", "2")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (" ".join(map(str, range(21))) * 3, "looks like a measurement, not a class"),
        ("0.5 1.5 0.5 1.5", "looks like a measurement, not a class (2 different values)"),
        ("0 1 inf", "looks like a measurement"),
        (" ".join(f"w{i} w{i}" for i in range(21)), "looks like free text, not a class (21 different values)"),
        ("smith jones miller", "looks like free text, not a class (3 different values)"),
        (f"{'long' * 11} short", "looks like free text"),
    ],
)
def test_targets_that_are_no_classes(tmp_path: Path, words: str, message: str) -> None:
    assert message in label_error(tmp_path, words).problem


def test_a_hospital_without_any_target(tmp_path: Path) -> None:
    error = refused(tmp_path, column("x", ["1", "2"]), "x,y\n1,\n2,NA\n")
    assert error.where == "hospital 'b'"
    assert error.problem == "none of its 2 rows has a value in 'y'"


def test_rows_without_a_target_do_not_shape_the_columns(tmp_path: Path) -> None:
    records = one(tmp_path, "x,c,y\nfoo,u,\n1,v,yes\n2,w,no\n")
    assert table(records).to_dict("list") == {"x": [1, 2], "c": ["v", "w"]}


# --- patients and groups ---


def test_rows_of_unknown_patients_are_not_one_patient(tmp_path: Path) -> None:
    records = one(tmp_path, "who,x,y\nP1,1,yes\n,2,no\n?,3,no\nP1,4,no\n", patient="who")
    assert records.patient is not None
    assert len(set(records.patient.tolist())) == 3
    assert records.notices == (Notice("unknown-patients", "info", "a", ("who",), {"rows": 2}),)
    assert "who" not in table(records)


def test_age_and_sex(tmp_path: Path) -> None:
    text = "AGE_years,Gender,y\n50,M,yes\n61.5,w,no\ninf,divers,no\n,,no\n"
    records = one(tmp_path, text)
    np.testing.assert_array_equal(records.groups["age"], [50, 61.5, np.nan, np.nan])
    assert records.groups["sex"].tolist() == ["male", "female", "divers", None]
    assert kinds(records) == {"AGE_years": "numeric", "Gender": "categorical"}
    coded = one(tmp_path, "years,g,y\n50,1,yes\n60,0.0,no\n", age="years", sex="g")
    assert coded.groups.to_dict("list") == {"age": [50, 60], "sex": ["1", "0"]}
    hidden = one(tmp_path, "age,x,y\n50,1,yes\n60,0,no\n", types={"age": "ignore"})
    assert kinds(hidden) == {"x": "numeric"}
    assert hidden.groups["age"].tolist() == [50, 60]


def test_an_age_that_is_no_number(tmp_path: Path) -> None:
    text = "age,y\n50-59,yes\n60-69,no\n"
    records = one(tmp_path, text)
    assert records.groups.shape == (2, 0)
    assert records.notices == (Notice("age-not-in-years", "info", "a", ("age",)),)
    assert "2 of 2 values are not numbers" in str(refused(tmp_path, text, age="age"))
    assert len(records.take([1])) == 1


# --- describing a file ---


def test_describe_file(tmp_path: Path) -> None:
    header = "n,few,age,age,,mixed,when,unclear,inf,const,none,mrn,note,cat"
    rows = [
        f"{i},{i if i < 9 else ''},1,2,{i},{'<5' if i == 3 else i},2020-01-{i + 1:02},01/0{i % 9 + 1}/2020,"
        f"{'inf' if i == 2 else i},k,,{i},remark {i % 25},{'uv'[i % 2]}"
        for i in range(30)
    ]
    path = write(tmp_path, a="\n".join([header, *rows, rows[4]]))["a"]
    described = describe_file(path).set_index("name")
    assert (described.attrs["rows"], described.attrs["duplicated_rows"]) == (31, 1)
    assert described["type"].to_dict() == {
        "n": "numeric",
        "few": "numeric",
        "age": "numeric",
        "age [column 4]": "numeric",
        "(no name) [column 5]": "numeric",
        "mixed": "numbers and text",
        "when": "date",
        "unclear": "unclear dates",
        "inf": "numeric",
        "const": "categorical",
        "none": "empty",
        "mrn": "id",
        "note": "free text",
        "cat": "binary (words)",
    }
    assert list(described.loc["n", ["missing", "distinct", "min", "median", "max"]]) == [0, 30, 0, 14, 29]
    assert described.loc["few", "missing"] == 21
    assert described.loc[["when", "cat"], ["min", "median", "max"]].isna().to_numpy().all()
    problems = described["problems"]
    assert problems[["n", "cat"]].tolist() == [""] * 2
    assert problems["when"] == "a date: a feature only if `types` names it"
    assert problems["few"].startswith("mostly missing (21 of 31)")
    assert "repeats this name" in problems["age [column 4]"]
    assert "no name here" in problems["(no name) [column 5]"]
    assert problems["mixed"] == "numbers mixed with text: 1 of 31 values are not numbers, the first in line 5"
    assert "day and month" in problems["unclear"]
    assert problems["inf"] == "1 infinite values"
    assert problems[["const", "none"]].tolist() == ["constant", "all values are missing"]
    assert "identifier" in problems["mrn"]
    assert "free text" in problems["note"]


def test_describe_file_gives_no_statistics_of_few_values(tmp_path: Path) -> None:
    described = describe_file(write(tmp_path, a="x,y\n" + "1,2\n" * 9 + ",2\n")["a"]).set_index("name")
    assert described.loc["x", ["min", "median", "max"]].isna().all()
    assert described.loc["y", "median"] == 2


# --- whatever the bytes, and whatever the patients' values ---

WORDS = [*"xy01.,;\t\n\r\"' -<>/é²٣\u2028\x00_", "yes", "no", "inf", "nan", "2020-01-02", "1/2/2020"]
LINES = st.lists(st.lists(st.sampled_from(WORDS), max_size=6).map("".join), max_size=12)


def survives(folder: Path, data: bytes) -> None:
    path = folder / "a.csv"
    path.write_bytes(data)
    own = csv({"a": path, "b": path}, "y", columns="own", labels={"b": {"yes": "no", "no": "yes"}})
    for load_it in (csv({"a": path}, "y", patient="p", columns="all").load, csv({"a": path}, "y").load, own.load):
        try:
            records = load_it()
        except WardroundError:
            continue
        assert len(table(records)) == len(records) == len(records.groups) == len(records.hospital)
        assert set(records.target.tolist()) <= set(range(len(records.classes)))
        assert not any(np.isinf(table(records)[c.name]).any() for c in records.columns if c.kind == "numeric")
    with suppress(WardroundError):
        describe_file(path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=200), st.booleans())
def test_any_bytes_load_or_are_refused(tmp_path: Path, data: bytes, headed: bool) -> None:
    survives(tmp_path, b"x,y\n" + data if headed else data)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(["x,y\n", "y\n", "p;x;y\n", "x\ty\n", ""]), LINES, st.sampled_from([",yes\n", ";no\n", "\n"]))
def test_any_text_loads_or_is_refused(tmp_path: Path, header: str, lines: list[str], end: str) -> None:
    survives(tmp_path, (header + "".join(line + end for line in lines)).encode())


LEAKS: list[tuple[list[str | bytes], dict[str, Any]]] = [
    ([f"x,y\n1,yes\n{SECRET},no,extra\n"], {}),
    ([f"x,y\n1,yes\n{SECRET}\n"], {}),
    ([f'x,y\n1,yes\n"{SECRET},no\n'], {}),
    ([f"x,y\n1,yes\n{SECRET}\xfc,no\n".encode("latin-1")], {}),
    ([f"x,y\n1,yes\n{SECRET}\0,no\n"], {}),
    ([f"x,y\n1,yes\n2,no\n{SECRET},no\n"], {}),
    ([f"x,y\n1,yes\n2,no\n{SECRET},no\n"], {"types": {"x": "numeric"}}),
    ([f"x,y\n1,yes\n2,no\n{SECRET},no\n"], {"types": {"x": "date"}}),
    ([f"x,y\n1,yes\n2,no\n{SECRET},no\n"], {"types": {"x": "id"}}),
    ([f"x,y\n2020-01-01,yes\n2020-01-02,no\n{SECRET},no\n"], {}),
    ([f"x,y\n01/02/2020,yes\n03/04/2020,no\n{SECRET},no\n"], {}),
    (["x,y\n1,yes\n2,no\n", f"x,y\n{SECRET},no\n"], {}),
    (["x,y\n1,yes\n2,no\n", f"x,z,y\n{SECRET},{SECRET},no\n"], {}),
    (["x,y\n1,yes\n2,no\n", f"x,z,y\n3,{SECRET},no\n"], {"columns": "all"}),
    (["x,y\n1,yes\n2,no\n", f"x,z,y\n3,{SECRET},no\n"], {"columns": "common"}),
    (["x,y\n1,yes\n2,no\n", f"x,z,y\n{SECRET},{SECRET},no\n"], {"columns": "own"}),
    ([f"x,y\n1,yes\n2,no\n{SECRET},no\n", "x,y\nu,yes\n"], {"columns": "own"}),
    (["x,y\n" + "".join(f"1,{SECRET}{i}\n" for i in range(30))], {"labels": {"a": {"yes": "no"}}}),
    (["x,y\n" + "".join(f"1,{SECRET}{i}\n" for i in range(30))], {"classes": ("no", "yes")}),
    ([f"x,z,y\n1,{SECRET},yes\n2,{SECRET},\n3,b,no\n"], {"ranges": {"z": (0, 1)}}),
    ([f"x,z,y\n1,{SECRET},yes\n2,{SECRET},\n3,b,no\n"], {}),
    ([f"age,sex,p,y\n{SECRET},{SECRET},{SECRET},yes\n,{SECRET},,no\n"], {"patient": "p"}),
    ([f"age,y\n{SECRET},yes\n3,no\n"], {"age": "age"}),
    ([f"64,{SECRET},{SECRET},yes\n1,2,3,no\n"], {}),
    ([f"64,{SECRET},yes\n1,2,no\n"], {}),
    (["x,y\n" + "".join(f"1,{SECRET}{i}\n" for i in range(30))], {}),
    ([f"x,y\n1,{SECRET} was seen by a doctor in the evening\n2,yes\n"], {}),
    ([f"x,y\n1,{SECRET}\n2,other\n3,third\n"], {"positive": "other"}),
    (["x,y\n" + "".join(f"{i},{i}.5\n" for i in range(30)) + f"1,{SECRET}\n"], {}),
    (["x,z,y\n" + "".join(f"{i},{SECRET}{i},{i % 2}\n" for i in range(30))], {}),
    (["x,z,y\n" + "".join(f"{i},{SECRET}{i % 25},{i % 2}\n" for i in range(50))], {}),
]


@pytest.mark.parametrize(("texts", "choices"), LEAKS)
def test_no_patients_value_is_ever_shown(tmp_path: Path, texts: list[str | bytes], choices: dict[str, Any]) -> None:
    try:
        text = "\n".join(lines_of(load(tmp_path, texts=dict(zip("ab", texts, strict=False)), **choices).notices))
    except WardroundError as error:
        text = "\n".join(map(str, (error, *error.args, error.__cause__)))
    assert "SECRET" not in text


def test_hospitals_number_their_patients_for_themselves_unless_ids_are_shared(tmp_path: Path) -> None:
    files = {}
    for site in ("a", "b"):
        files[site] = tmp_path / f"{site}.csv"
        files[site].write_text("mrn,x,y\n1,1,yes\n1,2,no\n2,3,no\n")
    alone, shared = (csv(files, "y", patient="mrn", shared_ids=ids).load().patient for ids in (False, True))
    assert alone is not None
    assert shared is not None
    assert len(set(alone.tolist())) == 4
    assert len(set(shared.tolist())) == 2


def test_a_list_of_classes_lets_hospitals_that_have_none_of_them_all_take_part(tmp_path: Path) -> None:
    files = {}
    for site, words in (("a", "mild severe"), ("b", "severe none")):
        files[site] = tmp_path / f"{site}.csv"
        files[site].write_text("x,grade\n" + "".join(f"{i},{word}\n" for i, word in enumerate(words.split() * 10)))
    with pytest.raises(DataError, match=r"none has them all.*\n.*classes = "):
        csv(files, "grade").load()
    records = csv(files, "grade", classes=("none", "mild", "severe")).load()
    assert records.classes == ("none", "mild", "severe")
    assert np.bincount(records.target).tolist() == [10, 10, 20]
    with pytest.raises(DataError, match=r"list: 1 that the study does not declare \(the first at 'a' in line 3\)"):
        csv(files, "grade", classes=("none", "mild", "moderate")).load()
    for listed in (("none",), ("none", "None "), ("1", "1.0", "2")):
        with pytest.raises(StudyError, match="two or more different classes"):
            csv(files, "grade", classes=listed)
