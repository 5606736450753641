"""The command line as a person or a script meets it: exit codes, JSON, no tracebacks."""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from wardround.cli.main import main
from wardround.privacy.disclosure import RULES

COMMAND = [sys.executable, "-m", "wardround.cli.main"]


@dataclass(frozen=True)
class Done:
    returncode: int
    stdout: str
    stderr: str


def wardround(*arguments: str | Path, cwd: Path | None = None) -> Done:
    """The command in this process, which has torch imported already; `test_..._process` below uses real ones."""
    out, errors = io.StringIO(), io.StringIO()
    before = sys.argv
    sys.argv = ["wardround", *map(str, arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors), contextlib.chdir(cwd or Path.cwd()):
            main()
        code = 0
    except SystemExit as stopped:
        code = stopped.code if isinstance(stopped.code, int) else 0
    finally:
        sys.argv = before
    return Done(code, out.getvalue(), errors.getvalue())


def as_json(*arguments: str | Path, cwd: Path | None = None) -> Any:
    done = wardround(*arguments, "--json", cwd=cwd)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def write_hospitals(folder: Path, study: str = "") -> Path:
    """Three hospitals made by hand: gaps, text categories, a date and a yes/no target, and a study of ten lines."""
    header = "age,sex,ward,crp,admitted,died\n"
    wards = ["icu", "surgery", "medicine", ""]
    for shift, name in enumerate(("north", "south", "east")):
        rows = []
        for i in range(60):
            age = "" if i % 17 == 3 else str(40 + (i * 7 + shift * 5) % 45)
            crp = "" if i % 11 == 5 else f"{(i * 13 + shift) % 90 / 2:.1f}"
            died = "yes" if ((i * 7 + shift * 5) % 45 > 25) != (i % 9 == 0) else "no"
            rows.append(
                f"{age},{'mf'[i % 2]},{wards[(i + shift) % 4]},{crp},2023-{1 + i % 12:02d}-{1 + i % 28:02d},{died}\n"
            )
        (folder / f"{name}.csv").write_text(header + "".join(rows))
    path = folder / "study.toml"
    path.write_text(
        study
        or """name = "newcomer"
[data]
source = "csv"
files = { north = "north.csv", south = "south.csv", east = "east.csv" }
target = "died"
[[arms]]
algorithm = "fedprox"
[[arms]]
algorithm = "local"
"""
    )
    return path


def test_a_newcomers_three_hospitals_run_with_a_study_of_ten_lines(tmp_path: Path) -> None:
    path = write_hospitals(tmp_path)
    assert len(path.read_text().splitlines()) == 9
    checked = as_json("check", path)
    assert not checked["refused"]
    assert any(notice.get("columns") == ["admitted"] for notice in checked["notices"])
    done = wardround("run", path, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "fedprox" in done.stdout
    assert "Run folder: runs/newcomer-" in done.stdout
    results = json.loads(next(tmp_path.glob("runs/newcomer-*/results.json")).read_text())
    assert results["arms"]["fedprox"]["metrics"]["auc"]["mean"] > 0.6
    assert set(results["arms"]["local"]["sites"]) == {"north", "south", "east"}


def test_help_is_quick_and_imports_neither_torch_nor_pandas() -> None:
    code = """
import sys
from wardround.cli.main import app
heavy = {"torch", "pandas", "numpy", "scipy", "sklearn", "pyarrow", "flwr"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    done = subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    for verb in ("run", "check", "studies", "data", "doctor"):
        assert verb in done.stdout


def test_a_run_trains_before_it_imports_statistics_and_figures() -> None:
    """They take a second, which a study that is refused need not wait for, and which passes while others train."""
    code = """
import sys
import wardround.runs.execute
late = {"scipy.stats", "statsmodels", "matplotlib", "sklearn", "monai", "opacus", "jinja2"} & set(sys.modules)
assert not late, late
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_studies_and_data_list_what_there_is() -> None:
    assert "heart-fedprox" in {study["name"] for study in as_json("studies")["studies"]}
    listed = as_json("data", "list")
    assert set(listed["sources"]) >= {"heart", "csv", "synthetic", "fashion-mnist"}
    assert listed["partitions"]["dirichlet"]["alpha"] == {
        "type": "a number, above 0",
        "default": 0.5,
        "required": False,
    }


def test_describe_shows_a_source_and_a_file(tmp_path: Path) -> None:
    heart = as_json("data", "describe", "heart")
    assert heart["hospitals"]["va"] == {"rows": 200, "classes": {"no disease": 51, "disease": 149}}
    write_hospitals(tmp_path)
    described = as_json("data", "describe", tmp_path / "north.csv")
    assert {column["name"]: column["type"] for column in described["columns"]}["admitted"] == "date"
    assert wardround("data", "describe", tmp_path / "north.csv").returncode == 0
    assert wardround("data", "describe", "nothing.csv").returncode == 4


def test_split_writes_each_site_once_and_refuses_a_folder_in_use(tmp_path: Path) -> None:
    out = tmp_path / "split"
    written = as_json("data", "split", "heart-fedprox", "--set", "sites.disjoint=true", "--out", out)
    assert set(written["files"]) == {f"site-0{i}.csv" for i in range(1, 5)}
    lines = (out / "site-03.csv").read_text().splitlines()
    assert lines[0].endswith(",label,split,group sex,group age")
    assert len(lines) == written["files"]["site-03.csv"] + 1
    again = wardround("data", "split", "heart-fedprox", "--out", out)
    assert again.returncode == 6
    assert "not an empty folder" in again.stderr


def test_doctor_lists_the_rules_of_disclosure() -> None:
    assert as_json("doctor")["disclosure_rules"] == {name: rule.forbids for name, rule in RULES.items()}


def test_doctor_finds_this_machine_fit() -> None:
    conditions = {condition["name"]: condition for condition in as_json("doctor")["conditions"]}
    assert conditions["heart data"]["ok"]
    assert conditions["torch"]["ok"]


def test_run_again_shows_the_complete_run(tmp_path: Path) -> None:
    small = ("--set", "training.rounds=1", "--no-report")
    arguments = ("run", write_hospitals(tmp_path), *small, "--out", tmp_path / "runs")
    first, second = as_json(*arguments), as_json(*arguments)
    assert (first["fresh"], second["fresh"]) == (True, False)
    assert first["results"] == second["results"]
    assert as_json(*arguments, "--again")["fresh"]


CSV = "age,sex,died\n" + "".join(f"{40 + i},{'mf'[i % 2]},{'yes' if i % 3 else 'no'}\n" for i in range(60))


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (("study.toml", b'target = "died"', b'traget = "died"'), 3, "study.toml: data: traget: no such setting"),
        (("study.toml", b'target = "died"', b'target = "ward"'), 4, "looks like free text"),
        (("south.csv", None, b""), 4, "south.csv: the file is empty"),
        (("south.csv", None, CSV.splitlines()[0].encode() + b"\n"), 4, "south.csv"),
        (("south.csv", None, CSV.replace("yes", "no").encode()), 0, "no training row of class 'yes'"),
        (("south.csv", None, CSV.replace("41,", "J\xfcrgen,").encode("latin-1")), 4, "line 3"),
        (("south.csv", None, b"age,age,died\n1,2,yes\n"), 4, "'age'"),
        (("south.csv", None, CSV.replace("41,", "inf,").encode()), 0, "infinite"),
        (("south.csv", None, None), 4, "south.csv"),
        (("south.csv", None, CSV.replace("\n55,", "\n55,x,y,").encode()), 4, "line 17"),
    ],
    ids=[
        "key",
        "text-target",
        "empty",
        "header-only",
        "one-class",
        "latin-1",
        "header-twice",
        "infinite",
        "absent",
        "fields",
    ],
)
def test_bad_input_is_one_clear_error_or_a_stated_recovery(
    tmp_path: Path, change: tuple[str, bytes | None, bytes | None], code: int, message: str
) -> None:
    text = """name = "bad"
[data]
source = "csv"
files = { north = "north.csv", south = "south.csv" }
target = "died"
[training]
rounds = 2
[evaluation]
accept = ["shared-rows", "leak"]
[[arms]]
algorithm = "fedavg"
"""
    north = CSV.replace("age,", "age,ward,").replace("\n4", "\n4") if b"ward" in (change[2] or b"") else CSV
    if north is not CSV:
        north = "age,ward,sex,died\n" + "".join(f"{40 + i},note {i},m,yes\n" for i in range(60))
    (tmp_path / "north.csv").write_text(north)
    (tmp_path / "south.csv").write_text(north)
    (tmp_path / "study.toml").write_text(text)
    name, old, new = change
    if new is None:
        (tmp_path / name).unlink()
    else:
        content = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(new if old is None else content.replace(old, new))
    done = wardround("run", "study.toml", "--out", "runs", cwd=tmp_path)
    assert done.returncode == code, done.stdout + done.stderr
    assert message in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    if code:
        assert not (tmp_path / "runs").exists()
        error = json.loads(wardround("run", "study.toml", "--json", cwd=tmp_path).stdout)["error"]
        assert error["exit_code"] == code
        assert error["remedy"]


@pytest.mark.slow
def test_an_error_ends_a_real_process_with_its_code_and_without_a_traceback(tmp_path: Path) -> None:
    done = subprocess.run([*COMMAND, "run", "none.toml"], capture_output=True, text=True, timeout=60, cwd=tmp_path)
    assert done.returncode == 3
    assert done.stderr.startswith("Error: none.toml: no such file")


def test_usage_errors_and_unknown_engines_have_their_codes() -> None:
    assert wardround("run").returncode == 2
    assert wardround("nonsense").returncode == 2
    unknown = wardround("run", "heart-fedprox", "--engine", "seriall")
    assert unknown.returncode == 3
    assert "Did you mean 'serial'?" in unknown.stderr


def test_a_study_that_must_not_be_trained_on_is_refused_by_check(tmp_path: Path) -> None:
    path = write_hospitals(tmp_path)
    (tmp_path / "south.csv").write_text((tmp_path / "north.csv").read_text())
    done = wardround("check", path)
    assert done.returncode == 5
    assert "60 of 60 rows are also at another site" in done.stdout
    assert "would be refused" in done.stdout


def test_check_names_a_column_that_tells_the_outcome_and_says_which_leaks_it_looks_for(tmp_path: Path) -> None:
    path = write_hospitals(tmp_path)
    sound = wardround("check", path)
    assert sound.returncode == 0
    assert "looked   for leaks of two kinds: " in sound.stdout
    for name in ("north", "south", "east"):
        file = tmp_path / f"{name}.csv"
        head, *rows = file.read_text().splitlines()
        copied = [f"{'home' if row.endswith('no') else 'ward 9'},{row}" for row in rows]
        file.write_text("\n".join([f"discharged_to,{head}", *copied]) + "\n")
    done = wardround("check", path)
    assert done.returncode == 5
    assert "error    all sites: column 'discharged_to' alone tells 'yes' from the rest" in done.stdout
    assert "[target-leak]" in done.stdout
    assert "ward 9" not in done.stdout
    refused = wardround("run", path, "--out", tmp_path / "runs")
    assert refused.returncode == 5
    assert 'accept = ["target-leak"]' in refused.stderr
    assert wardround("check", path, "--set", 'evaluation.accept=["target-leak"]').returncode == 0


def test_interrupting_a_run_stops_it_cleanly_and_says_how_to_go_on(tmp_path: Path) -> None:
    arguments = [*COMMAND, "run", "heart-fedprox", "--out", str(tmp_path)]
    process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob("*/records.jsonl")) and time.monotonic() < deadline:
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "wardround resume" in errors
    assert "Traceback" not in errors
    assert not list(tmp_path.glob("*/results.json"))
    assert os.listdir(tmp_path)


INTERRUPTED = """
import os, signal, typer
from wardround.cli import main

@main.app.command()
def stop() -> None:
    try:
        exec("os.kill(os.getpid(), signal.SIGINT)\\nfor _ in range(1000): pass")
    except KeyboardInterrupt:
        raise typer.Exit(130) from None

main.main()
"""


def test_the_exit_code_stays_where_text_that_is_executed_was_interrupted(tmp_path: Path) -> None:
    """As when a dataclass is made. Python started by `-m` would end by the signal, though it was handled."""
    (tmp_path / "interrupted.py").write_text(INTERRUPTED)
    done = subprocess.run([sys.executable, "-m", "interrupted", "stop"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 130, done.stderr


def test_a_shipped_study_is_copied_with_its_files_and_runs_there(tmp_path: Path) -> None:
    copied_study = as_json("studies", "--copy", "csv-hospitals", "--out", tmp_path / "mine")["study"]
    names = {
        path.relative_to(tmp_path / "mine").as_posix() for path in (tmp_path / "mine").rglob("*") if path.is_file()
    }
    assert {"csv-hospitals.toml", "files/csv-hospitals/north.csv", "files/csv-hospitals/south.csv"} <= names
    assert as_json("check", copied_study)["notices"] is not None
    again = wardround("studies", "--copy", "csv-hospitals", "--out", tmp_path / "mine")
    assert again.returncode != 0
    assert "is there already" in again.stderr
    unknown = wardround("studies", "--copy", "csv-hospital", "--out", tmp_path)
    assert "Did you mean 'csv-hospitals'" in unknown.stderr
    file = tmp_path / "file"
    file.write_text("")
    refused = wardround("studies", "--copy", "heart-fedprox", "--out", file / "x")
    assert "cannot be written" in refused.stderr
