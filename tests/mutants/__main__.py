"""`python -m tests.mutants [ROOM] [WORD]`: which mutants do their tests notice? Each runs in a process of its own."""

import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from tests.mutants.mutant import Mutant, apply
from tests.mutants.rooms import ROOMS

ROOT = Path(__file__).parents[2]
PASSED, FAILED = 0, 1  # exit codes of pytest
OPTIONS = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--tb=line", "--no-header"]
OPTIONS += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]  # modules are imported before pytest starts


def run(tests: Sequence[str], mutant: Mutant | None) -> tuple[int, str]:
    """pytest's exit code and output. A forked process starts with everything imported that the mutants name."""
    with TemporaryFile() as output:
        child = os.fork()
        if child == 0:
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            if mutant is not None:
                apply(mutant)
            code = pytest.main([*OPTIONS, *(f"tests/{test}" for test in tests)])
            sys.stdout.flush()
            os._exit(int(code))
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        output.seek(0)
        return status, output.read().decode(errors="replace")


def main(rooms: Sequence[str], word: str) -> int:
    os.chdir(ROOT)
    wrong = 0
    for room in rooms:
        mutants: tuple[Mutant, ...] = import_module(f"tests.mutants.{room}").MUTANTS
        chosen = [mutant for mutant in mutants if word in mutant.name]
        code, output = run(sorted({test for mutant in chosen for test in mutant.tests}), None)
        if code != PASSED:
            sys.stdout.write(f"{room}: the tests fail without any mutant\n{output}\n")
            wrong += 1
        for mutant in chosen:
            code, output = run(mutant.tests, mutant)
            noticed = re.search(r"^(?:FAILED|ERROR) tests/(\S+)", output, re.MULTILINE)
            caught = code == FAILED and noticed is not None
            wrong += not caught
            why = re.search(r"^\S+\.py:\d+: (.*)", output, re.MULTILINE)
            outcome = "SURVIVED" if code == PASSED else output
            if caught and noticed is not None:
                outcome = f"{noticed[1]} ({why[1] if why else 'no reason is shown'})"
            sys.stdout.write(f"{room}: {mutant.name}: {outcome}\n")
            sys.stdout.flush()
    return 1 if wrong else 0


if __name__ == "__main__":
    named = [argument for argument in sys.argv[1:] if argument in ROOMS]
    words = [argument for argument in sys.argv[1:] if argument not in ROOMS]
    sys.exit(main(named or ROOMS, words[0] if words else ""))
