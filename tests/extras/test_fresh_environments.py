"""Environments as a user makes them: `python -m venv`, then `pip install`, with no extra and with each alone."""

import json
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.extras.environments import EXTRAS, ROOT, is_here
from tests.extras.scenario import WITH_SERVER, done_in, every_check, every_help, every_verb, prepare, step, wrong
from tests.extras.test_imports import modules_with, plainly

BUILT_FROM = ("src", "pyproject.toml", "constraints.txt", "README.md", "LICENSE")


@pytest.fixture(params=[None, *EXTRAS], ids=["none", *EXTRAS])
def installed(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str | None, Path]]:
    """An extra and the Python of its environment, which is removed in the end: it takes 1.6 GB or more."""
    extra: str | None = request.param
    source, folder = tmp_path / "source", tmp_path / "environment"
    source.mkdir()
    for name in BUILT_FROM:  # a copy: to build a package leaves files beside its source
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, source / name)
    subprocess.run([sys.executable, "-m", "venv", folder], check=True, timeout=300)
    wanted = f"{source}[{extra}]" if extra else str(source)
    constraints = ("--constraint", str(source / "constraints.txt"))
    command = [str(folder / "bin" / "pip"), "install", "--quiet", *constraints, wanted]
    process = subprocess.run(command, capture_output=True, text=True, timeout=1800)
    assert process.returncode == 0, process.stderr
    shutil.rmtree(source)
    yield extra, folder / "bin" / "python"
    shutil.rmtree(folder)


@pytest.mark.slow
def test_a_fresh_environment_does_what_it_can_and_says_what_it_lacks(
    installed: tuple[str | None, Path], tmp_path: Path
) -> None:
    extra, python = installed
    work = tmp_path / "work"
    work.mkdir()
    prepare(work)
    steps = [*every_help(), *every_check(), *every_verb(extra), step("doctor --json")]
    report = done_in(python, work, steps, imports=True)
    assert not wrong(extra, steps, report["done"])
    plainly(report, extra)
    listed = {entry["name"]: entry["installed"] for entry in json.loads(report["done"][-1]["shown"])["extras"]}
    assert listed == {name: is_here(name) and modules_with(name) <= modules_with(extra) for name in EXTRAS}
    assert_command_itself(python)
    if extra in WITH_SERVER:
        assert_served(python, work)


def assert_command_itself(python: Path) -> None:
    """Not only its module: the script `wardround` that pip has put beside Python."""
    done = subprocess.run([python.with_name("wardround"), "doctor"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def assert_served(python: Path, work: Path) -> None:
    command = [str(python.with_name("wardround")), "serve", "model", "--port", "0"]
    with subprocess.Popen(command, cwd=work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as server:
        try:
            assert server.stdout is not None
            address = next(
                address_match[0] for line in server.stdout if (address_match := re.search(r"http://[\d.]+:\d+", line))
            )
            with urllib.request.urlopen(f"{address}/health", timeout=60) as answer:
                assert json.load(answer)["status"] == "ok"
        finally:
            server.send_signal(signal.SIGINT)
