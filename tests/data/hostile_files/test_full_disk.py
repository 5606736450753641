"""A disk that is full: one clear error with exit code 7, nothing half-written, and then an exact resume."""

import errno
import os
import stat
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

import pytest

from tests.cli.test_commands import wardround, write_hospitals
from tests.deployment.in_process_federation import kind_of
from tests.deployment.test_crashes_in_process import begin, digest
from wardround.core.atomic_files import as_os_error, reporting_full_disk, write_atomically
from wardround.core.errors import MachineError, RunError
from wardround.protocol.messages import Sealed
from wardround.runs.audit import verify
from wardround.runs.checkpoint import write_leaves
from wardround.runs.execute import resume_study, run_study

SMALL = {"training.rounds": 3, "evaluation.seeds": {"first": 1, "count": 2}}


class Disk:
    """A file system of its own, in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def resize(self, size: str) -> None:
        subprocess.run(["mount", "-o", f"remount,size={size}", str(self.path)], check=True, timeout=30)

    def fill(self) -> None:
        with suppress(OSError), (self.path / "ballast").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def make_room(self) -> None:
        (self.path / "ballast").unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    path = tmp_path / "run"
    path.mkdir()
    completed = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(path)], capture_output=True, timeout=30
    )
    if completed.returncode:
        pytest.skip("a small file system can only be mounted by root")
    yield Disk(path)
    subprocess.run(["umount", "--lazy", str(path)], check=True, timeout=30)


def hashes(folder: Path) -> dict[str, str]:
    """Of everything but times, and the log, which says that the run was resumed."""
    names = ["predictions.parquet", "groups.parquet", *(str(p.relative_to(folder)) for p in folder.rglob("seed-*"))]
    return {name: sha256((folder / name).read_bytes()).hexdigest() for name in names}


def test_a_run_tells_of_a_full_disk_and_goes_on_to_the_same_numbers(disk: Disk, tmp_path: Path) -> None:
    study = write_hospitals(tmp_path)
    expected = run_study(study, tmp_path / "quiet", changes=SMALL, workers=1)
    for size in ("16k", "40k", "56k", "72k", "88k", "104k", "120k", "136k"):
        disk.resize(size)
        with suppress(MachineError):
            run_study(study, disk.path, changes=SMALL, workers=1)
        assert not list(disk.path.rglob("*.partial"))
    folder = next(disk.path.iterdir())
    assert not (folder / "results.json").exists(), "the largest of these sizes is enough"
    disk.resize("32m")
    assert hashes(resume_study(folder, workers=1).folder) == hashes(expected.folder)
    assert verify(folder / "audit.jsonl").broken is None
    assert not (folder / "state").exists()


def test_the_command_says_it_in_two_lines(disk: Disk, tmp_path: Path) -> None:
    study = write_hospitals(tmp_path)
    disk.resize("40k")
    done = wardround("run", study, "--out", disk.path, "--workers", "1")
    assert done.returncode == MachineError.exit_code == 7
    assert "no space is left on this disk" in done.stderr
    assert "wardround resume" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_report_that_has_no_room_says_how_to_make_it(disk: Disk, tmp_path: Path) -> None:
    study = write_hospitals(tmp_path)
    folder = run_study(study, disk.path, changes=SMALL, workers=1).folder
    disk.fill()
    done = wardround("report", folder)
    assert (done.returncode, "wardround report" in done.stderr) == (7, True)


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("quiet")
    begin(folder).run()
    return digest(folder)


@pytest.mark.parametrize(
    "letter",
    [*(pytest.param(kind, marks=pytest.mark.slow) for kind in ("hello", "facts", "prepare")), "train", "evaluate"],
)
def test_a_coordinator_whose_disk_is_full_goes_on_to_the_same_models(
    letter: str, disk: Disk, quiet: str, tmp_path: Path
) -> None:
    network = begin(tmp_path)

    def full(site: str, sealed: Sealed) -> bool:
        if kind_of(sealed) == letter and not (disk.path / "ballast").exists():
            disk.fill()
        return True

    network.transport.before = full
    with pytest.raises(MachineError, match="no space is left"), reporting_full_disk(network.folder.path, "Make room."):
        network.run()
    assert not list(disk.path.rglob("*.partial"))
    disk.make_room()
    again = network.restart_coordinator()
    again.run()
    assert digest(tmp_path) == quiet
    assert verify(again.folder.path / "audit.jsonl").broken is None


def test_other_errors_of_the_operating_system_are_not_taken_for_a_full_disk(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError), reporting_full_disk(tmp_path, "Make room."):
        raise IsADirectoryError(errno.EISDIR, "Is a directory")
    with pytest.raises(MachineError, match="quota"), reporting_full_disk(tmp_path, "Make room."):
        raise OSError(errno.EDQUOT, "Disk quota exceeded")
    assert as_os_error(ValueError("no space")) is None


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.json"
    write_atomically(path, b"old")

    def fails(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", fails)
    with pytest.raises(OSError, match="No space"):
        write_atomically(path, b"new")
    with pytest.raises(OSError, match="No space"):
        write_leaves(path, {}, {})
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a.json"]


def test_a_link_is_replaced_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(b"theirs")
    (tmp_path / ".a.json.partial").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "a.json").symlink_to(tmp_path / "elsewhere")
    write_atomically(tmp_path / "a.json", b"ours")
    assert (tmp_path / "elsewhere").read_bytes() == b"theirs"
    assert (tmp_path / "a.json").read_bytes() == b"ours"


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077])
def test_a_run_folder_is_for_its_owner_alone_whatever_the_umask(mask: int, tmp_path: Path) -> None:
    study = write_hospitals(tmp_path)
    before = os.umask(mask)
    try:
        folder = run_study(study, tmp_path / "runs", changes=SMALL, workers=1).folder
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    rows = [*folder.glob("*.parquet"), *folder.glob("*.jsonl"), *folder.rglob("*.safetensors"), folder / "results.json"]
    open_to_others = [path.name for path in rows if stat.S_IMODE(path.stat().st_mode) & 0o077]
    assert {"predictions.parquet", "groups.parquet", "records.parquet"} <= {path.name for path in rows}
    assert set(open_to_others) <= {"audit.jsonl"}  # which holds no value of a patient


def test_what_a_stopped_run_keeps_is_for_its_owner_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        write_leaves(tmp_path / "state.safetensors", {}, {})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "state.safetensors").stat().st_mode) == 0o600


def test_a_folder_that_was_open_to_others_is_closed_when_a_run_is_repeated(tmp_path: Path) -> None:
    study = write_hospitals(tmp_path)
    folder = run_study(study, tmp_path / "runs", changes=SMALL, workers=1).folder
    folder.chmod(0o755)
    run_study(study, tmp_path / "runs", changes=SMALL, workers=1, again=True)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_records_that_were_cut_off_are_not_filled_with_zeros(tmp_path: Path) -> None:
    from wardround.runs.records import cut_records

    (tmp_path / "a.jsonl").write_bytes(b'{"arm":"fedavg","seed":1,"round":1}\n')
    with pytest.raises(RunError, match="is shorter than it was"):
        cut_records(tmp_path / "a.jsonl", [([("fedavg", 1)], 2)])
