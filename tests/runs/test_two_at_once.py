"""Two who go on with the same run at the same time: one does, the other is told."""

import subprocess
import sys
from pathlib import Path

import pytest

import wardround
from tests.runs.test_resume import STUDY, numbers, stopped_after_two_rounds
from wardround.core.errors import RunError
from wardround.runs.audit import verify
from wardround.runs.execute import execute


def resume(folder: Path) -> "subprocess.Popen[str]":
    words = [sys.executable, "-m", "wardround.cli.main", "resume", str(folder), "--no-report", "--json"]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_a_second_resume_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    expected = numbers(wardround.run_study(STUDY, tmp_path / "alone").folder)
    folder = stopped_after_two_rounds(tmp_path / "runs")
    first = execute(wardround.load_plan(*wardround.load_study(STUDY)), folder)
    next(first)  # it has begun, and holds the folder
    second = resume(folder.path)
    shown, _ = second.communicate(timeout=120)
    assert second.returncode == RunError.exit_code, shown
    assert "another process is running this study here" in shown
    assert "Traceback" not in shown
    for _ in first:
        pass
    assert numbers(folder.path) == expected
    assert verify(folder.path / "audit.jsonl").broken is None


@pytest.mark.slow
def test_two_resumes_at_once_give_one_result(tmp_path: Path) -> None:
    """Whichever is first. The other is refused, or comes when all is done and shows it."""
    expected = numbers(wardround.run_study(STUDY, tmp_path / "alone").folder)
    folder = stopped_after_two_rounds(tmp_path / "runs")
    both = [resume(folder.path), resume(folder.path)]
    shown = [process.communicate(timeout=120)[0] for process in both]
    codes = sorted(process.returncode for process in both)
    assert codes in ([0, 0], [0, RunError.exit_code]), shown
    assert "Traceback" not in "".join(shown)
    assert numbers(folder.path) == expected
    assert verify(folder.path / "audit.jsonl").broken is None
