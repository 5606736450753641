"""Tests of the tests: mistakes made on purpose are all noticed."""

import ast
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.mutants.rooms import ROOMS

TESTS = Path(__file__).parents[1]


def test_every_mutant_names_a_function_and_tests_that_exist() -> None:
    from tests.mutants.mutant import Mutant, function_of

    mutants: list[Mutant] = [mutant for room in ROOMS for mutant in import_module(f"tests.mutants.{room}").MUTANTS]
    assert len({mutant.name for mutant in mutants}) == len(mutants)
    known: dict[str, set[str]] = {}
    missing = []
    for mutant in mutants:
        assert function_of(mutant.target).__module__.startswith("wardround."), mutant.name
        for test in mutant.tests:
            file, _, name = test.partition("::")
            if file not in known:
                tree = (
                    ast.parse((TESTS / file).read_text(encoding="utf-8")) if (TESTS / file).exists() else ast.parse("")
                )
                known[file] = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
            if name not in known[file]:
                missing.append(f"{mutant.name}: {test}")
    assert not missing, "\n".join(missing)


@pytest.mark.slow
@pytest.mark.parametrize("room", ROOMS)
def test_every_mutant_is_noticed(room: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.mutants", room],
        cwd=TESTS.parent,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )
    assert done.returncode == 0, done.stdout + done.stderr
