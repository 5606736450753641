"""What readers hand back is checked whole before anything is counted."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.review.simulated_readers import always, write_decisions
from wardround.core.errors import DataError, StudyError
from wardround.review.decisions import load_key, read_all, read_decisions
from wardround.review.make import KEY, PAGE
from wardround.runs.audit import AuditLog

READER = "reader 2"


def lines_of(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def written_anew(file: Path, entries: list[dict[str, Any]]) -> Path:
    """Chained again, as only somebody can who changes a file on purpose."""
    file.unlink()
    log = AuditLog(file)
    for entry in entries:
        log.add(entry["event"], **entry["detail"])
    return file


def test_a_whole_file_is_read_with_its_conditions(reading_list: Path, tmp_path: Path) -> None:
    key = load_key(reading_list)
    reading = read_decisions(key, write_decisions(reading_list, READER, tmp_path / "d.jsonl", always(1)))
    assert reading.finished
    assert [(d.case, d.condition) for d in reading.decisions] == [tuple(turn) for turn in key.readers[READER]]
    assert {d.answer for d in reading.decisions} == {1}
    assert {d.seconds for d in reading.decisions} == {5.0}


def test_a_reading_that_goes_on_is_taken_as_far_as_it_is(reading_list: Path, tmp_path: Path) -> None:
    file = write_decisions(reading_list, READER, tmp_path / "d.jsonl", always(0), most=7)
    reading = read_decisions(load_key(reading_list), file)
    assert len(reading.decisions) == 7
    assert not reading.finished


def cut(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return entries[:5] + entries[6:]


def doubled(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return entries[:5] + entries[4:]


def with_detail(**changes: Any) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    def change(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        entries[3]["detail"] |= changes
        return entries

    return change


def with_head(**changes: Any) -> Callable[[list[dict[str, Any]]], list[dict[str, Any]]]:
    def change(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        entries[0]["detail"] |= changes
        return entries

    return change


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (cut, "of another case than was due"),
        (doubled, "of another case than was due"),
        (with_detail(case="ZZZZZ"), "of a case that is not known"),
        (with_detail(answer=2), "cannot be"),
        (with_detail(answer=True), "cannot be"),
        (with_detail(answer=0.5), "cannot be"),
        (with_detail(confidence=6), "cannot be"),
        (with_detail(refer=1), "cannot be"),
        (with_detail(milliseconds=-1), "cannot be"),
        (with_detail(remark="hello"), "is no decision"),
        (with_head(list="0" * 64), "of another reading list"),
        (with_head(reader="reader 9"), "whom the list does not know"),
        (lambda entries: entries[1:], "does not begin"),
        (lambda entries: [*entries[:9], entries[-1]], "though cases are left"),
        (lambda entries: [*entries[:-1], entries[5], entries[-1]], "more than the reader has cases"),
    ],
)
def test_a_file_that_was_chained_anew_is_refused(
    reading_list: Path, tmp_path: Path, change: Callable[[Any], Any], problem: str
) -> None:
    file = write_decisions(reading_list, READER, tmp_path / "d.jsonl", always(0))
    written_anew(file, change(lines_of(file)))
    with pytest.raises(DataError, match=problem):
        read_decisions(load_key(reading_list), file)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace('"answer":0', '"answer":1', 1),
        lambda text: text.replace('"milliseconds":5000', '"milliseconds":500', 1),
        lambda text: "\n".join(text.split("\n")[1:]),
        lambda text: text[:-40],
        lambda text: "case,answer\n1,0\n",
        lambda text: "",
    ],
)
def test_a_changed_file_is_refused(reading_list: Path, tmp_path: Path, damage: Callable[[str], str]) -> None:
    file = write_decisions(reading_list, READER, tmp_path / "d.jsonl", always(0))
    file.write_text(damage(file.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(DataError, match="is not the log that the page has written"):
        read_decisions(load_key(reading_list), file)


def test_two_files_of_one_reader_and_none_are_refused(reading_list: Path, tmp_path: Path) -> None:
    key = load_key(reading_list)
    files = [write_decisions(reading_list, READER, tmp_path / f"{n}.jsonl", always(0)) for n in (1, 2)]
    with pytest.raises(DataError, match="second file of reader 2"):
        read_all(key, files)
    with pytest.raises(StudyError, match="no file is named"):
        read_all(key, [])
    with pytest.raises(DataError, match="there is no such file"):
        read_all(key, [tmp_path / "nothing.jsonl"])


@pytest.mark.parametrize("name", [KEY, PAGE, "audit.jsonl"])
def test_a_list_that_was_changed_is_refused(reading_list: Path, tmp_path: Path, name: str) -> None:
    folder = tmp_path / "list"
    shutil.copytree(reading_list, folder)
    text = (folder / name).read_text(encoding="utf-8")
    (folder / name).write_text(text.replace("0", "1", 3), encoding="utf-8")
    with pytest.raises(DataError, match=r"is not the file that was made|was changed"):
        load_key(folder)
    (folder / name).unlink()
    with pytest.raises(DataError, match=f"has no {name}"):
        load_key(folder)
