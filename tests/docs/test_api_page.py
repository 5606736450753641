"""The API page is made of signatures and docstrings, and an editor knows the types of public names."""

import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

import wardround

ROOT = Path(__file__).parents[2]
EXAMPLE = """
import pandas as pd

from wardround import compare

run = compare({"north": pd.DataFrame(), "south": pd.DataFrame()}, target="died", patient="id")
reveal_type(run)
reveal_type(run.table())
reveal_type(run.plot("benefit"))
reveal_type(run.model("fedprox", site="north").predict(pd.DataFrame()))
compare({}, target=3)
"""


def writer() -> ModuleType:
    spec = spec_from_file_location("write_api_page", ROOT / "scripts" / "write_api_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current() -> None:
    module = writer()
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), "run: python scripts/write_api_page.py"


def test_every_public_name_is_on_it() -> None:
    page = writer().PAGE.read_text(encoding="utf-8")
    assert [name for name in wardround.__all__ if f"### `{name}`\n" not in page] == []


@pytest.mark.slow
def test_an_editor_knows_the_types(tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(EXAMPLE)
    strict = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "example.py"]
    checked = subprocess.run(strict, cwd=tmp_path, capture_output=True, text=True, timeout=600)
    told = [line.partition(" ")[2] for line in checked.stdout.splitlines()]
    types = [line.split('"')[1] for line in told if "Revealed type" in line]
    assert types[0] == "wardround.runs.interface.study_run.StudyRun", checked.stdout
    assert types[1:3] == ["pandas.core.frame.DataFrame", "matplotlib.figure.Figure"] or types[1].endswith("DataFrame")
    assert types[3].startswith("numpy.ndarray")
    assert [line for line in told if "error" in line and "arg-type" in line]  # target=3
    assert "Found 1 error" in checked.stdout
