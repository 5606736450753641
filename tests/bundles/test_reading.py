"""Rows are found and understood as training finds and understands them, however a file is cut into pieces."""

import csv
import gzip
import io
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from wardround.bundles.predict.blocks import Block, RequiredColumns, open_rows
from wardround.bundles.predict.reading import Notation, ReadBlock, merge_notations, read_block, refuse_ambiguous
from wardround.core.errors import DataError
from wardround.data.prepare import Fit, Layout, Recipe
from wardround.data.records import Column
from wardround.data.text_table import checked_names, read_table
from wardround.study.schema import Preparation

NAMES = ("a", "b", "c")
quick = settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])


def by_training(path: Path) -> list[tuple[str | None, ...]] | str:
    """Cells without what counts as missing; or the error."""
    try:
        table = read_table(path, "auto", checked_names)
    except DataError as error:
        return str(error)
    columns = [cells.spread(cells.levels, None) for cells in table.values()]
    return list(zip(*(column.tolist() for column in columns), strict=True))


def in_pieces(path: Path, size: int, names: tuple[str, ...] = NAMES) -> list[tuple[str | None, ...]] | str:
    from wardround.bundles.predict.reading import cells_of

    rows: list[tuple[str | None, ...]] = []
    try:
        with open_rows(path, RequiredColumns(names), size) as opened:
            for unread in opened.blocks:
                block = unread()
                cells = [cells_of(block.columns[name], block.commas) for name in names]
                rows += zip(*(column.spread(column.levels, None).tolist() for column in cells), strict=True)
                assert all("line" in block.place(row) for row in range(block.rows))
    except DataError as error:
        return str(error)
    return rows


def write(path: Path, body: bytes, header: bytes = b"a,b,c\n") -> Path:
    path.write_bytes(header + body)
    return path


def line_of(error: str) -> int:
    return int(error.partition(", line ")[2].partition(":")[0])


HARD = st.text(alphabet='a1",;\n\r \té', max_size=60)


@quick
@given(HARD, st.integers(10, 40))
@example('1,"2\n3",4\n5,6,7\n', 10)
@example('1, "2,2",3\n4,5,6\n', 12)
@example('1,6\' 2",3\n4,5,6\n"7",8,9\n', 11)
@example('1,2,"3\n4,5,6\n7,8,9\n', 10)
@example("1,2,3\r4,5,6\r\n7,8,9\r", 11)
@example("1,2,3\n   \n\n4,5,6", 10)
@example('"a""b","","c"\n' * 4, 13)
def test_any_text_is_read_as_training_reads_it(tmp_path: Path, body: str, size: int) -> None:
    """The same cells; or an error, of which there may be two: then the one that comes first in the file."""
    path = write(tmp_path / "rows.csv", body.encode())
    wanted = by_training(path)
    cells = in_pieces(path, size)
    if isinstance(wanted, str) and "no row below" in wanted:
        assert cells == []  # told where predictions are made
    elif isinstance(wanted, str) and cells != wanted:
        assert isinstance(cells, str)
        assert "fields, but the header" in cells
        assert "quotation marks" in wanted
        assert line_of(cells) < line_of(wanted)
    else:
        assert cells == wanted


cells = st.text(alphabet='ab1",;\n é', max_size=6)


@pytest.mark.slow
@quick
@given(
    st.lists(st.tuples(cells, cells, cells), min_size=1, max_size=12),
    st.booleans(),
    st.sampled_from([",", ";"]),
    st.integers(12, 50),
)
def test_what_a_spreadsheet_writes_is_read_back(
    tmp_path: Path, rows: list[tuple[str, str, str]], marks: bool, separator: str, size: int
) -> None:
    text = io.StringIO()
    csv.writer(
        text, quoting=csv.QUOTE_ALL if marks else csv.QUOTE_MINIMAL, delimiter=separator, lineterminator="\n"
    ).writerows(rows)
    path = write(tmp_path / "rows.csv", text.getvalue().encode(), separator.join(NAMES).encode() + b"\n")
    assert in_pieces(path, size) == [tuple(cell.strip() or None for cell in row) for row in rows]


def test_a_column_alone_is_read_too(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", b'1\n\n   \n"2"\n3', b"a\n")
    assert in_pieces(path, 10, ("a",)) == by_training(path) == [("1",), ("2",), ("3",)]


@pytest.mark.parametrize("size", [10, 1000])
def test_errors_of_later_pieces_name_the_line_of_the_file(tmp_path: Path, size: int) -> None:
    good = b'1,"2\n2",3\n' * 20  # two lines each
    ragged = write(tmp_path / "ragged.csv", good + b"1,2\n")
    assert str(in_pieces(ragged, size)).startswith(f"{ragged}, line 42: 2 fields, but the header names 3 columns")
    latin = write(tmp_path / "latin.csv", good + "1,2,ä\n".encode("latin-1"))
    assert str(in_pieces(latin, size)).startswith(f"{latin}, line 42: not UTF-8")
    zero = write(tmp_path / "zero.csv", good + b"1,\0,3\n")
    assert str(in_pieces(zero, size)).startswith(f"{zero}: not a text file")


def test_a_line_without_end_is_refused_before_it_fills_the_memory(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", b"1,2,3\n" + b"7," * 4000)
    assert "line 3: a line of more than" in str(in_pieces(path, 16))


def test_columns_are_found_by_name_in_any_order_and_others_are_not_looked_at(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", b"x,1,2,3\ny,4,5,6\n", b"note, c ,a,b\n")
    assert in_pieces(path, 100) == [("2", "3", "1"), ("5", "6", "4")]


def test_a_byte_order_mark_and_compression_change_nothing(tmp_path: Path) -> None:
    text = b"a,b,c\n1,2,3\n4,5,6\n"
    path = tmp_path / "rows.data"
    for content in (
        text,
        b"\xef\xbb\xbf" + text,
        gzip.compress(text),
        gzip.compress(text[:9]) + gzip.compress(text[9:]),
    ):
        path.write_bytes(content)
        assert in_pieces(path, 20) == [("1", "2", "3"), ("4", "5", "6")]
    path.write_bytes(gzip.compress(text)[:-9])
    assert "the compressed file is damaged or cut off" in str(in_pieces(path, 20))


def read(columns: tuple[Column, ...], values: dict[str, pa.Array], commas: bool = False, **known: object) -> ReadBlock:
    layout = Layout(tuple(c for c in columns if c.kind == "numeric"), known.get("levels", {}), ())  # type: ignore[arg-type]
    fill = dict.fromkeys((c.name for c in layout.numeric), 0.0)
    fitted = Fit(fill, known.get("fill_level", {}), np.zeros(len(fill)), np.ones(len(fill)))  # type: ignore[arg-type]
    rows = len(next(iter(values.values())))
    settings = Preparation(categories="codes" if known.get("codes") else "one-hot")
    block = Block(rows, values, lambda row: f"file, line {row + 2}", commas)
    return read_block(Recipe(columns, layout, fitted, settings), block)


def test_numbers_are_read_as_in_training() -> None:
    texts = pa.array([" 1.5 ", "1e3", "+2", "NA", "", "inf", "-inf", "?", None])
    block = read((Column("x"),), {"x": texts})
    np.testing.assert_array_equal(block.table.numbers[:, 0], [1.5, 1000, 2, *[np.nan] * 6])
    np.testing.assert_array_equal(block.table.missing[:, 0], [False] * 3 + [True] * 6)


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.none(), min_size=1, max_size=30))
def test_text_and_number_give_the_same_bits(numbers: list[float | None]) -> None:
    texts = pa.array([None if number is None else repr(number) for number in numbers], pa.string())
    as_text = read((Column("x"),), {"x": texts}).table.numbers
    as_number = read((Column("x"),), {"x": pa.array(numbers, pa.float64())}).table.numbers
    np.testing.assert_array_equal(as_text, as_number)


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, None, 3], pa.int8()),
        pa.array([1, None, 3], pa.uint64()),
        pa.array([1, float("nan"), 3], pa.float32()),
        pa.array([Decimal("1.00"), None, Decimal("3.00")]),
        pa.array(["1", None, "3.0"]),
        pa.array(["1", "", "3"]).dictionary_encode(),
        pa.array(["1", "na", "3"], pa.large_string()),
    ],
    ids=lambda values: str(values.type),
)
def test_every_type_of_number_will_do(values: pa.Array) -> None:
    np.testing.assert_array_equal(read((Column("x"),), {"x": values}).table.numbers[:, 0], [1, np.nan, 3])


def test_a_column_of_nothing_is_all_gaps() -> None:
    block = read(
        (Column("x"), Column("ward", "categorical")),
        {"x": pa.nulls(2), "ward": pa.nulls(2)},
        levels={"ward": ("a", "b")},
    )
    assert block.table.missing.all()


@pytest.mark.parametrize(
    ("column", "values", "problem"),
    [
        (Column("x"), pa.array([date(2020, 1, 1)]), "column 'x' is of type date32[day], not numbers"),
        (Column("x"), pa.array([b"1"]), "column 'x' is of type binary, not numbers"),
        (Column("x"), pa.array([[1.0]]), "column 'x' is of a nested type, not numbers"),
        (Column("x", dates=True), pa.array([3.5]), "column 'x' is of type double, not dates"),
        (Column("x", "categorical"), pa.array([date(2020, 1, 1)]), "not texts or numbers"),
        (
            Column("x"),
            pa.array(["1", "Miller", "2", "Smith"]),
            "column 'x': this is no number (2 such in the 4 rows that are read together)",
        ),
        (Column("x"), pa.array(["1,5", "2"]), "column 'x': this is no number"),
        (Column("x", dates=True), pa.array(["2020-02-30"]), "column 'x': this is no date"),
    ],
)
def test_what_cannot_be_read_is_refused_without_showing_it(column: Column, values: pa.Array, problem: str) -> None:
    with pytest.raises(DataError) as error:
        read((column,), {"x": values}, levels={"x": ("a",)} if column.kind == "categorical" else {})
    assert problem in str(error.value)
    assert str(error.value).startswith("file, line ")
    assert not any(name in str(error.value) for name in ("Miller", "Smith", "1,5", "2020-02"))


def test_the_first_line_with_a_text_is_named() -> None:
    with pytest.raises(DataError, match=r"^file, line 4: "):
        read((Column("x"),), {"x": pa.array(["1", "2", "<5", "<5"])})


def test_decimal_commas_where_the_separator_is_none() -> None:
    block = read((Column("x"),), {"x": pa.array(["1,5", "2", "-3,25"])}, commas=True)
    np.testing.assert_array_equal(block.table.numbers[:, 0], [1.5, 2, -3.25])
    assert block.notations == {"x": Notation.COMMAS}


def test_points_in_one_block_and_commas_in_another_are_refused_as_in_one_file() -> None:
    """Each block alone could be read; but 1.234 may then be a thousand."""
    signs = [read((Column("x"),), {"x": pa.array([text])}, commas=True).notations for text in ("1.234", "7", "1,5")]
    refuse_ambiguous(merge_notations(signs[0], signs[1]), "file")
    refuse_ambiguous(merge_notations(signs[1], signs[2]), "file")
    with pytest.raises(DataError, match="column 'x': both points and commas stand as decimal signs"):
        refuse_ambiguous(merge_notations(signs[0], signs[2]), "file")


def years(moment: datetime) -> float:
    return (moment - datetime(2000, 1, 1)).total_seconds() / (365.25 * 86_400)


def test_dates_by_text_and_by_type_give_the_same_bits() -> None:
    when = datetime(2021, 3, 4, 5, 6, 7)
    column = (Column("x", dates=True),)
    texts = pa.array(
        ["2021-03-04 05:06:07", "4.3.2021 05:06:07", "2021-03-04T05:06:07.9Z", "2021-03-04T05:06:07+02:00"]
    )
    by_text = read(column, {"x": texts}).table.numbers[:, 0]
    assert set(by_text.tolist()) == {years(when)}
    stamps = [
        pa.array([when], pa.timestamp("s")),
        pa.array([when.replace(microsecond=999_999)], pa.timestamp("us")),
        pa.array([when.replace(tzinfo=ZoneInfo("Europe/Berlin"))], pa.timestamp("ms", "Europe/Berlin")),
    ]
    for stamp in stamps:
        assert read(column, {"x": stamp}).table.numbers[0, 0] == years(when)
    days = read(column, {"x": pa.array([date(1960, 2, 29), None])}).table.numbers[:, 0]
    np.testing.assert_array_equal(days, [years(datetime(1960, 2, 29)), np.nan])
    assert read(column, {"x": pa.array(["1960-02-29"])}).table.numbers[0, 0] == days[0]


def test_days_and_months_must_be_told_apart_somewhere_in_the_file() -> None:
    column = (Column("x", dates=True),)
    unclear, clear = (read(column, {"x": pa.array([text])}).notations for text in ("03/04/2021", "31/12/2021"))
    refuse_ambiguous(merge_notations(unclear, clear), "file")
    with pytest.raises(DataError, match="column 'x': day and month cannot be told apart"):
        refuse_ambiguous(merge_notations(unclear, unclear), "file")


WARD = Column("ward", "categorical")
CODE = Column("code", "categorical", None, True)


def test_levels_that_training_never_saw_are_marked_and_become_zeros() -> None:
    block = read(
        (WARD,), {"ward": pa.array(["icu", "ICU", "Zürich", "", None, " er "])}, levels={"ward": ("er", "icu", "or")}
    )
    assert block.table.codes[:, 0].tolist() == [1, 3, 3, -1, -1, 0]
    assert block.unseen["ward"].tolist() == [False, True, True, False, False, False]
    assert block.table.missing[:, 0].tolist() == [False, False, False, True, True, False]


def test_the_level_that_fills_gaps_may_have_no_number_of_its_own() -> None:
    """With `least_level` a site's commonest level may be too rare to be told."""
    block = read(
        (WARD,),
        {"ward": pa.array(["rare", "er", None])},
        levels={"ward": ("er", "icu", "or")},
        fill_level={"ward": "rare"},
    )
    assert block.table.levels == (("er", "icu", "or", "rare"),)
    assert block.table.codes[:, 0].tolist() == [3, 0, -1]
    assert block.unseen["ward"].tolist() == [True, False, False]


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["1", "2.0", "7", None, "x"]),
        pa.array([" 1.0", "+2", "7.00", "?", "x"]),
    ],
)
def test_codes_have_one_spelling(values: pa.Array) -> None:
    block = read((CODE,), {"code": values}, levels={"code": ("1", "2", "3")})
    assert block.table.codes[:, 0].tolist() == [0, 1, 3, -1, 3]
    np.testing.assert_array_equal(block.table.numbers[:, 0], [1, 2, 7, np.nan, np.nan])


def test_levels_may_come_as_numbers_or_as_true_and_false() -> None:
    numbers = read((CODE,), {"code": pa.array([1.0, 2.0, np.nan, 2.5])}, levels={"code": ("1", "2", "2.5")})
    assert numbers.table.codes[:, 0].tolist() == [0, 1, -1, 2]
    flags = pa.array([True, False, None])
    assert read((CODE,), {"code": flags}, levels={"code": ("0", "1")}).table.codes[:, 0].tolist() == [1, 0, -1]
    assert read((WARD,), {"ward": flags}, levels={"ward": ("False", "True")}).table.codes[:, 0].tolist() == [1, 0, -1]


def test_words_are_joined_as_in_training() -> None:
    sex = Column("sex", "categorical", words=(("m", "male"), ("male", "male"), ("f", "female"), ("w", "female")))
    block = read((sex,), {"sex": pa.array(["M", "male", "w", "F", "x"])}, levels={"sex": ("female", "male")})
    assert block.table.codes[:, 0].tolist() == [1, 1, 0, 0, 2]


def test_codes_used_as_numbers_must_be_numbers() -> None:
    column = Column("code", "categorical", None, True, ("1", "2"))
    block = read((column,), {"code": pa.array(["1", "2.0", "9"])}, codes=True)
    np.testing.assert_array_equal(block.table.numbers[:, 0], [1, 2, 9])
    assert block.unseen["code"].tolist() == [False, False, True]
    with pytest.raises(DataError, match="column 'code': this is no number"):
        read((column,), {"code": pa.array(["1", "x"])}, codes=True)


def test_a_column_of_another_hospital_is_a_gap_even_where_its_name_is_used_here() -> None:
    """ "crp" means numbers here and words there; in a file of this hospital it is the one with numbers."""
    columns = (Column("crp at north", header="crp"), Column("crp at south", header="crp"), Column("ph"))
    layout = Layout(columns, {}, ())
    fitted = Fit(dict.fromkeys((c.name for c in columns), 0.0), {}, np.zeros(3), np.ones(3))
    recipe = Recipe(columns, layout, fitted, Preparation())
    block = Block(1, {"crp": pa.array(["5"])}, str)
    prepared_rows = read_block(recipe, block, unrecorded=("crp at south", "ph"))
    np.testing.assert_array_equal(prepared_rows.table.numbers, [[5, np.nan, np.nan]])


def write_parquet(path: Path, **columns: pa.Array) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=3)
    return path


def test_parquet_comes_in_blocks_with_the_columns_that_are_asked_for(tmp_path: Path) -> None:
    path = write_parquet(
        tmp_path / "rows.parquet",
        **{" b": pa.array(range(7)), "x": pa.array([b"?"] * 7), "a": pa.array(list("abcdefg"))},
    )
    with open_rows(path, RequiredColumns(("a",), ("c",), ("b",))) as opened:
        blocks = [unread() for unread in opened.blocks]
    assert opened.keep == {"b": pa.int64()}
    assert all(set(block.columns) == {"a", "b"} for block in blocks)
    assert [text for block in blocks for text in block.columns["a"].to_pylist()] == list("abcdefg")
    assert blocks[0].place(0) == f"{path}, row 0 (counted from 0)"


@pytest.fixture
def bad_files(tmp_path: Path) -> Path:
    (tmp_path / "folder.csv").mkdir()
    (tmp_path / "empty.csv").write_bytes(b"")
    (tmp_path / "blank.csv").write_bytes(b"\n  \n\n")
    (tmp_path / "twice.csv").write_bytes(b"a,b,a\n1,2,3\n")
    (tmp_path / "unnamed.csv").write_bytes(b"a,,c\n1,2,3\n")
    (tmp_path / "latin.csv").write_bytes("ä,b,c\n1,2,3\n".encode("latin-1"))
    (tmp_path / "book.csv").write_bytes(b"PK\3\4\0\0")
    (tmp_path / "other.csv").write_bytes(b"B,see,a\n1,2,3\n")
    (tmp_path / "nameless.csv").write_bytes(b"63,1,145\n67,1,160\n")
    (tmp_path / "text.parquet").write_bytes(b"a,b,c\n1,2,3\n")
    (tmp_path / "cut.parquet").write_bytes(b"PAR1 and then nothing")
    (tmp_path / "quote.csv").write_bytes(b'a,"b,c\n1,2,3\n')
    return tmp_path


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("nowhere.csv", "there is no such file"),
        ("folder.csv", "this is a folder"),
        ("empty.csv", "the file is empty"),
        ("blank.csv", "the file is empty"),
        ("twice.csv", "line 1: 2 columns are called 'a'"),
        ("unnamed.csv", "line 1: column 2 has no name"),
        ("latin.csv", "line 1: not UTF-8"),
        ("book.csv", "not a text file, but perhaps an image, a spreadsheet or UTF-16"),
        ("text.parquet", "not a Parquet file"),
        ("cut.parquet", "the Parquet file is damaged"),
        ("quote.csv", "line 1: quotation marks do not match"),
        ("other.csv", "there are no columns 'b', 'c'"),
        ("nameless.csv", "there are no columns 'a', 'b', 'c'"),
    ],
)
def test_bad_files_give_one_clear_error(bad_files: Path, name: str, problem: str) -> None:
    with pytest.raises(DataError) as error, open_rows(bad_files / name, RequiredColumns(NAMES)):
        pass
    assert problem in str(error.value)
    assert str(error.value).startswith(str(bad_files / name))


def test_a_missing_column_is_suggested_unless_the_header_may_be_a_patient(bad_files: Path) -> None:
    with pytest.raises(DataError) as error, open_rows(bad_files / "other.csv", RequiredColumns(NAMES)):
        pass
    assert error.value.remedy.startswith("Here 'B' may be 'b'; if so, rename. Needed: a, b, c.")
    with pytest.raises(DataError) as error, open_rows(bad_files / "nameless.csv", RequiredColumns(NAMES)):
        pass
    assert "add a line above it that names the columns" in error.value.remedy
    error_text = str(error.value).replace(str(bad_files), "")  # the folder's own name may hold any digits
    assert not any(value in error_text for value in ("63", "145"))


def test_standard_input_that_is_a_terminal_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal:
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal())
    with (
        pytest.raises(DataError, match="standard input: nothing is sent to it"),
        open_rows("-", RequiredColumns(NAMES)),
    ):
        pass
