"""A folder that appears as a whole or not at all, also where several processes want the same one."""

import os
import subprocess
import sys
from pathlib import Path
from threading import Barrier, Thread

import pytest

from wardround.core.atomic_files import new_folder, own_partial_path
from wardround.core.errors import BundleError

FILLING = """
import sys
from pathlib import Path
from wardround.core.atomic_files import new_folder
from wardround.core.errors import BundleError
try:
    with new_folder(Path(sys.argv[1])) as folder:
        (folder / "first").write_text(sys.argv[2])
        print("begun", flush=True)
        input()
        (folder / "second").write_text(sys.argv[2])
except BundleError as error:
    print(error.problem, flush=True)
    sys.exit(10)
"""


def filling(out: Path, word: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", FILLING, str(out), word]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    return process


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.slow
def test_of_two_processes_the_first_to_end_has_it_whole_and_the_other_is_told(tmp_path: Path) -> None:
    out = tmp_path / "out"
    north, south = filling(out, "north"), filling(out, "south")
    try:
        assert len(names(tmp_path)) == 2  # each writes into a folder of its own
        output = south.communicate("\n", timeout=60)[0]
        assert (south.returncode, output) == (0, "")
        output = north.communicate("\n", timeout=60)[0]
    finally:
        for process in (north, south):
            process.kill()
    assert north.returncode == 10
    assert output.startswith("was written by somebody else meanwhile")
    assert names(tmp_path) == ["out"]
    assert [(out / name).read_text() for name in names(out)] == ["south", "south"]


def test_what_a_dead_process_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path: Path) -> None:
    gone, living = filling(tmp_path / "out", "gone"), filling(tmp_path / "out", "living")
    try:
        gone.kill()
        gone.communicate()
        left = [tmp_path / f".out.{process.pid}.partial" for process in (gone, living)]
        assert [path.is_dir() for path in left] == [True, True]
        own = own_partial_path(tmp_path / "other")  # of a process that died with our number
        own.mkdir()
        (own / "old").touch()
        with new_folder(tmp_path / "other") as folder:
            assert names(folder) == []
        with pytest.raises(ZeroDivisionError), new_folder(tmp_path / "out"):
            raise ZeroDivisionError
        assert [path.is_dir() for path in left] == [False, True]
    finally:
        living.kill()
        living.communicate()


def test_two_threads_do_not_share_a_folder(tmp_path: Path) -> None:
    both, problems = Barrier(2, timeout=60), []

    def fill() -> None:
        try:
            with new_folder(tmp_path / "out") as folder:
                both.wait()
                (folder / "file").touch()
        except BundleError as error:
            problems.append(error.problem)
            both.wait()

    threads = [Thread(target=fill) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == ["is being written by this very process"]
    assert names(tmp_path / "out") == ["file"]
    with pytest.raises(BundleError, match="is there already"), new_folder(tmp_path / "out"):
        pass


@pytest.mark.parametrize("kind", ["file", "folder", "link"])
def test_what_came_meanwhile_is_not_touched(tmp_path: Path, kind: str) -> None:
    out = tmp_path / "out"

    def fill() -> None:
        with new_folder(out) as folder:
            (folder / "ours").touch()
            if kind == "file":
                out.write_text("theirs")
            elif kind == "link":
                out.symlink_to(tmp_path / "elsewhere")
            else:
                out.mkdir()
                (out / "theirs").touch()

    with pytest.raises(BundleError, match="was written by somebody else meanwhile"):
        fill()
    assert names(tmp_path) == ["out"]
    assert os.path.islink(out) is (kind == "link")
    assert kind != "folder" or names(out) == ["theirs"]
