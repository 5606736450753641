"""The example notebooks run from their first cell to their last, and show what they are stored with."""

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = {path.stem: path for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))}


@cache
def cells(path: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]


def shown(cell: dict[str, Any], kind: str = "text/plain") -> str:
    """What a cell ended in."""
    outputs = [output["data"] for output in cell["outputs"] if output["output_type"] == "execute_result"]
    return "".join(outputs[-1].get(kind, [])) if outputs else ""


def test_there_are_the_two() -> None:
    assert list(NOTEBOOKS) == ["private-study", "three-hospitals"]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_stored_with_all_outputs_and_no_place_of_a_machine(name: str) -> None:
    own = cells(NOTEBOOKS[name])
    assert [cell["execution_count"] for cell in own] == list(range(1, len(own) + 1))
    assert "".join(own[-1]["source"]) == "run"  # the last line
    assert len(shown(own[-1]).splitlines()) < 60
    assert "<table>" in shown(own[-1], "text/html")
    text = NOTEBOOKS[name].read_text(encoding="utf-8")
    assert not re.search(r"/(home|root|tmp|work|Users|usr)/|Traceback", text)
    assert len(text) < 300_000


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_runs(name: str, tmp_path: Path) -> None:
    """Numbers may differ in their last digits from machine to machine; everything else is as it is stored."""
    script = [sys.executable, str(ROOT / "scripts" / "run_notebooks.py")]
    subprocess.run([*script, "--out", str(tmp_path), "--only", name], check=True, timeout=600, capture_output=True)
    stored, fresh = cells(NOTEBOOKS[name]), cells(tmp_path / f"{name}.ipynb")
    for before, now in zip(stored, fresh, strict=True):
        assert before["source"] == now["source"]
        assert [set(output.get("data", ())) for output in before["outputs"]] == [
            set(output.get("data", ())) for output in now["outputs"]
        ]
        assert _words(shown(before)) == _words(shown(now))


def _words(text: str) -> list[str]:
    return re.findall(r"[A-Za-z_]+", re.sub(r"[0-9a-f]{8}", "", text))
