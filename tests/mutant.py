"""A mistake on purpose, and the tests that must notice it."""

from dataclasses import dataclass

TESTS = ("tests/algorithms", "tests/contract")


@dataclass(frozen=True)
class Mutant:
    name: str
    file: str  # below src/wardround
    old: str  # stands there exactly once
    new: str
    tests: str = ""  # what pytest's -k selects
    where: tuple[str, ...] = TESTS
