"""`wardround runs`, `--open`, completion in a shell, and a report that is interrupted."""

import fcntl
import json
import os
import shutil
import subprocess
import sys
import webbrowser
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tests.cli.test_commands import as_json, wardround
from wardround.cli.studies.runs import age, size
from wardround.report.build import build_report
from wardround.runs.execute import run_study

STUDY = {
    "name": "small",
    "question": "Does it help?",
    "data": {"source": "heart"},
    "training": {"rounds": 2, "local_epochs": 1},
    "evaluation": {"seeds": {"first": 1, "count": 2}},
    "arms": [{"algorithm": "local"}, {"algorithm": "fedavg"}],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run_study(STUDY, tmp_path_factory.mktemp("some") / "runs").folder


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "runs" / folder.name))


def test_runs_are_listed_with_question_answer_state_and_size(copy: Path) -> None:
    runs = copy.parent
    results = json.loads((copy / "results.json").read_text())
    expected = results["decision"]["sentences"]["answer"] if "decision" in results else results["answer"][0]["text"]
    stopped, damaged = runs / "small-stopped", runs / "small-damaged"
    for other in (stopped, damaged):
        shutil.copytree(copy, other)
    (stopped / "results.json").unlink()
    (damaged / "results.json").write_text('{"answer": 3}')
    (runs / "something-else").mkdir()
    os.utime(copy / "results.json", (2e9, 2e9))
    listed = as_json("runs", runs)["runs"]
    assert {Path(run["folder"]).name: run["state"] for run in listed} == {
        copy.name: "complete",
        "small-stopped": "interrupted",
        "small-damaged": "damaged",
    }
    first = listed[0]  # the latest
    assert (first["name"], first["question"], first["answer"]) == ("small", "Does it help?", expected)
    assert first["changed"] == "2033-05-18T03:33:20+00:00"
    assert first["bytes"] == sum(file.stat().st_size for file in copy.rglob("*") if file.is_file())
    with (stopped / ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        states = {run["folder"]: run["state"] for run in as_json("runs", runs)["runs"]}
    assert states[str(stopped)] == "running"
    assert "Does it help?" in wardround("runs", runs).stdout
    assert "No run is in" in wardround("runs", runs / "something-else").stdout
    assert wardround("runs", runs / "nowhere").returncode == 6


def test_ages_and_sizes_are_in_words() -> None:
    now = datetime(2026, 1, 31, tzinfo=UTC)
    ages = {age((now - timedelta(seconds=s)).isoformat(), now) for s in (5, 600, 10_000, 400_000, 86400 * 90)}
    assert ages == {"just now", "10 minutes ago", "3 hours ago", "5 days ago", "3 months ago"}
    assert [size(n) for n in (12, 4_200, 3e6, 2.5e9)] == ["12 B", "4 KB", "3 MB", "2.5 GB"]


def test_the_report_is_opened_or_its_path_is_said(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def open_address(address: str) -> bool:
        opened.append(address)
        return True

    monkeypatch.setattr(webbrowser, "open", open_address)
    monkeypatch.setenv("BROWSER", "some")
    done = wardround("report", copy, "--open")
    assert opened == [(copy / "report.html").absolute().as_uri()]
    assert "No browser" not in done.stderr
    for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    done = wardround("report", copy, "--open")
    assert (done.returncode, len(opened)) == (0, 1)
    assert str(copy / "report.html") in done.stderr


@pytest.mark.parametrize("workers", [1, 2])
def test_whoever_interrupts_a_report_finds_whole_files_only(copy: Path, workers: int) -> None:
    def interrupt(done: int, total: int) -> None:
        if done >= 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_report(copy, workers, progress=interrupt)
    files = [path for path in copy.rglob("*") if path.is_file()]
    assert not [path for path in files if path.name.endswith(".partial")]
    assert not (copy / "report.html").exists()
    drawn = [path for path in files if path.suffix == ".svg"]
    assert len(drawn) >= 3
    assert all(path.read_text().rstrip().endswith("</svg>") for path in drawn)


def test_figures_are_counted_up_to_their_number(copy: Path) -> None:
    counted: list[tuple[int, int]] = []
    build_report(copy, 2, progress=lambda done, total: counted.append((done, total)))
    assert [done for done, _ in counted] == sorted(done for done, _ in counted)
    assert counted[-1][0] == counted[-1][1]
    assert len({total for _, total in counted}) == 1


def test_an_interrupted_report_says_how_to_make_it(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("wardround.report.build_report", interrupted)
    done = wardround("report", copy)
    assert done.returncode == 130
    assert f"wardround report {copy}" in done.stderr.replace("\n", " ").replace("  ", " ")


def complete(*words: str, cwd: Path) -> list[str]:
    """What bash would offer for the last word. The process fails if torch is imported."""
    code = "import sys; sys.modules['torch'] = None; from wardround.cli.main import main; main()"
    environment = {**os.environ, "_WARDROUND_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(["wardround", *words])}
    environment["COMP_CWORD"] = str(len(words))
    code = f"import sys; sys.argv[0] = 'wardround'; {code}"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=cwd, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_a_shell_completes_studies_and_runs_without_torch(copy: Path) -> None:
    here = copy.parents[1]
    (here / "heart-of-ours.toml").write_text("")
    (here / "heart.csv").write_text("")
    assert {"heart-hospitals", "heart-of-ours.toml"} <= set(complete("run", "heart-", cwd=here))
    assert "heart.csv" not in complete("check", "heart", cwd=here)
    assert complete("report", "ru", cwd=here) == [f"runs/{copy.name}", "runs/"]
    assert complete("compare", "runs/", cwd=here) == [f"runs/{copy.name}"]
    assert {"report", "results", "resume"} <= set(complete("re", cwd=here))
