"""Files that replace others: whole, by several writers at once, whatever killed processes left."""

import fcntl
import os
from multiprocessing import get_context
from pathlib import Path
from threading import Thread

import pytest
import torch

from wardround.core import atomic_files
from wardround.core.atomic_files import replacing, write_atomically
from wardround.core.errors import MachineError
from wardround.runs.checkpoint import read_leaves, write_leaves

TIMES = 150


def content_of(writer: int) -> bytes:
    return bytes([65 + writer]) * 20_000


def write_again_and_again(path: Path, writer: int, problems: list[str]) -> None:
    try:
        for _ in range(TIMES):
            write_atomically(path, content_of(writer))
    except OSError as error:
        problems.append(repr(error))


def in_a_process(path: Path, writer: int) -> None:
    problems: list[str] = []
    write_again_and_again(path, writer, problems)
    os._exit(len(problems))


def test_of_many_who_write_one_file_each_writes_all_of_it(tmp_path: Path) -> None:
    path, problems = tmp_path / "a.json", list[str]()
    write_atomically(path, content_of(0))
    threads = [Thread(target=write_again_and_again, args=(path, n, problems)) for n in range(3)]
    processes = [get_context("fork").Process(target=in_a_process, args=(path, n)) for n in range(3, 5)]
    for process in processes:
        process.start()
    for thread in threads:
        thread.start()
    whole = {content_of(n) for n in range(5)}
    while any(thread.is_alive() for thread in threads):
        assert path.read_bytes() in whole
    for process in processes:
        process.join()
    assert not problems
    assert [process.exitcode for process in processes] == [0, 0]
    assert os.listdir(tmp_path) == ["a.json"]


def test_one_writer_within_another_leaves_both_their_files(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with replacing(path) as outer:
        outer.write(b"first to begin")
        with replacing(path) as inner:
            inner.write(b"first to end")
        assert path.read_bytes() == b"first to end"
        write_leaves(tmp_path / "a.safetensors", {"x": torch.arange(3)}, {"round": 1})
    assert path.read_bytes() == b"first to begin"
    assert read_leaves(tmp_path / "a.safetensors")[1] == {"round": 1}
    assert sorted(os.listdir(tmp_path)) == ["a.json", "a.safetensors"]


def test_what_a_killed_process_left_is_removed_and_a_file_in_use_is_not(tmp_path: Path) -> None:
    left = tmp_path / ".a.json.partial"
    left.write_bytes(b"half of a longer conte")
    write_atomically(tmp_path / "a.json", b"ours")
    assert not left.exists()
    left.write_bytes(b"of somebody who writes")
    with left.open("r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        write_atomically(tmp_path / "a.json", b"ours too")
    assert left.read_bytes() == b"of somebody who writes"
    assert (tmp_path / "a.json").read_bytes() == b"ours too"


def test_more_writers_than_can_be_meant_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(atomic_files, "MOST_WRITERS", 2)
    path = tmp_path / "a.json"
    with replacing(path), replacing(path), pytest.raises(MachineError, match="written by 2 at once"):
        write_atomically(path, b"")
