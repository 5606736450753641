"""Tests of the tests: scripted mistakes in algorithms, rounds, the local loop and optimisers are all noticed."""

from pathlib import Path

import pytest

from tests.mutant import Mutant
from tests.mutants import MUTANTS, PACKAGE, apply, caught_by, copy_of_package, run_tests

EVERY_MUTANT = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)


@EVERY_MUTANT
def test_a_mutant_applies_to_the_code_as_it_is(mutant: Mutant) -> None:
    """Otherwise a changed line would quietly go untested: change the mutant with it."""
    assert (PACKAGE / mutant.file).read_text(encoding="utf-8").count(mutant.old) == 1


def test_names_are_different() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)


@pytest.mark.slow
def test_the_code_as_it_is_passes(tmp_path: Path) -> None:
    code, output = run_tests(copy_of_package(tmp_path))
    assert code == 0, output


@pytest.mark.slow
def test_it_is_the_copy_that_is_tested(tmp_path: Path) -> None:
    package = copy_of_package(tmp_path)
    apply(Mutant("broken", "algorithms/fedavg.py", "def fedavg(", "raise RuntimeError\n\n\ndef fedavg(", ""), package)
    code, output = run_tests(package)
    assert code != 0
    assert "RuntimeError" in output


@pytest.mark.slow
@EVERY_MUTANT
def test_a_mutant_is_caught(mutant: Mutant, tmp_path: Path) -> None:
    assert caught_by(mutant, tmp_path) is not None
