"""Families of long tests: some members stand for all in every run, the others are run by `make test-all`."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def represented(family: Iterable[Any], by: Collection[Any]) -> list[Any]:
    """The family for `parametrize`, its members slow except for those that represent it."""
    return [one if one in by else pytest.param(*_values(one), marks=pytest.mark.slow) for one in family]


def _values(one: Any) -> tuple[Any, ...]:
    return one if isinstance(one, tuple) else (one,)
