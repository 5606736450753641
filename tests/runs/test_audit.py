"""The audit log: whatever is done to it shows."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import wardround
from tests.cli.test_commands import wardround as command
from tests.runs.test_resume import STUDY, stopped_after_two_rounds
from wardround.core.errors import RunError
from wardround.runs import checkpoint
from wardround.runs.audit import BEGINNING, AuditLog, changed_files, verify


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "audit.jsonl"
    audit_log = AuditLog(path)
    for number in range(4):
        audit_log.add("joined", site=f"hospital-{number}", rows=100 + number, note="äöü")
    return path


def test_an_untouched_log_is_in_order_and_its_head_is_that_of_its_last_line(log: Path) -> None:
    verification = verify(log)
    assert (verification.entries, verification.broken) == (4, None)
    assert verification.head == json.loads(log.read_bytes().splitlines()[-1])["hash"] == AuditLog(log).head
    assert AuditLog(log.with_name("none.jsonl")).head == BEGINNING


def test_any_changed_byte_shows(log: Path) -> None:
    whole = log.read_bytes()
    for place in range(len(whole)):
        other = b"7" if whole[place : place + 1] != b"7" else b"8"
        log.write_bytes(whole[:place] + other + whole[place + 1 :])
        assert verify(log).broken, place


def test_a_line_that_is_deleted_inserted_repeated_or_moved_shows(log: Path) -> None:
    lines = log.read_bytes().splitlines(keepends=True)
    for number in range(3):
        log.write_bytes(b"".join(lines[:number] + lines[number + 1 :]))
        assert (verify(log).broken or "").startswith(f"line {number + 1}: has number")
    for changed in ([lines[0], lines[0], *lines[1:]], [lines[1], lines[0], *lines[2:]], [*lines, lines[2]]):
        log.write_bytes(b"".join(changed))
        assert verify(log).broken


def test_a_line_that_is_forged_with_a_right_hash_of_its_own_shows_at_the_next(log: Path) -> None:
    from wardround.runs.audit import _hash, _serialize

    lines = log.read_bytes().splitlines()
    entry = json.loads(lines[1])
    entry["detail"]["rows"] = 9999
    forged = {key: value for key, value in entry.items() if key != "hash"}
    lines[1] = _serialize({**forged, "hash": _hash(forged)})
    log.write_bytes(b"\n".join(lines) + b"\n")
    assert verify(log).broken == "line 3: does not follow from the line before it"


def test_a_cut_tail_shows_against_a_head_that_was_kept(log: Path) -> None:
    head = AuditLog(log).head
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:2]))
    assert verify(log).broken is None  # the chain itself is whole
    assert "was cut off or written anew" in (verify(log, head).broken or "")
    log.write_bytes(b"".join(lines))
    AuditLog(log).add("left", site="hospital-0")
    assert verify(log, head).broken is None  # it has grown since: an earlier head is still there


def test_a_half_written_last_line_is_named_then_removed_and_its_removal_logged(log: Path) -> None:
    with log.open("ab") as file:
        file.write(b'{"number":4,"time":"20')
    assert verify(log).broken == "line 5: is not finished"
    AuditLog(log).add("joined", site="late")
    assert verify(log).broken is None
    events = [json.loads(line)["event"] for line in log.read_bytes().splitlines()]
    assert events[-2:] == ["unfinished line removed", "joined"]


def test_processes_that_write_at_the_same_time_keep_the_chain(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    code = f"""
from pathlib import Path
from wardround.runs.audit import AuditLog
for number in range(25):
    AuditLog(Path({str(path)!r})).add("round", number=number)
"""
    writers = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(4)]
    assert [writer.wait() for writer in writers] == [0] * 4
    verification = verify(path)
    assert (verification.entries, verification.broken) == (100, None)


def test_what_is_no_log_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="cannot be read"):
        verify(tmp_path / "none.jsonl")
    (tmp_path / "empty.jsonl").write_text("")
    assert "is empty" in (verify(tmp_path / "empty.jsonl").broken or "")
    (tmp_path / "other.txt").write_text("hello\n")
    assert verify(tmp_path / "other.txt").broken == "line 1: is not JSON"
    with pytest.raises(RunError, match="is not an audit log"):
        AuditLog(tmp_path / "other.txt").add("joined")


@pytest.mark.slow
def test_a_run_is_logged_from_its_beginning_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "SHORTEST_PAUSE", 0.0)
    monkeypatch.setattr(checkpoint, "SHARE_OF_TIME", 1e9)
    folder = stopped_after_two_rounds(tmp_path)
    run = wardround.resume_study(folder.path)
    wardround.run_study(STUDY, tmp_path, again=True)
    entries: list[dict[str, Any]] = [json.loads(line) for line in (run.folder / "audit.jsonl").read_text().splitlines()]
    assert [entry["event"] for entry in entries] == [
        "run begun",
        "run resumed",
        "run finished",
        "run begun",
        "run finished",
    ]
    assert {entry["detail"]["study"] for entry in entries} == {run.results["study"]["hash"]}
    assert changed_files(run.folder / "audit.jsonl") == []


def test_the_command_finds_changed_lines_and_changed_files(tmp_path: Path) -> None:
    run = wardround.run_study(STUDY, tmp_path)
    log = run.folder / "audit.jsonl"
    assert command("log", "verify", run.folder).returncode == 0
    fine = command("log", "verify", log)
    assert fine.returncode == 0
    head = verify(log).head
    assert head in fine.stdout
    results = run.folder / "results.json"
    results.write_text(results.read_text().replace("0.8", "0.9"))
    (run.folder / "records.parquet").unlink()
    changed = command("log", "verify", log, "--json")
    assert changed.returncode == 6
    assert json.loads(changed.stdout)["changed_files"] == [
        "results.json is not the file that the run made",
        "records.parquet is missing",
    ]
    log.write_text(log.read_text().replace('"engine":"auto"', '"engine":"best"'))
    broken = command("log", "verify", log, "--head", head)
    assert broken.returncode == 6
    assert "line 1: was changed" in broken.stdout
