"""Families of long tests: some members stand for all in every run, the others are run by `make test-all`."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def represented(family: Iterable[Any], by: Collection[Any]) -> list[Any]:
    """The family for `parametrize`, its members slow except for those that represent it."""
    return [member if member in by else pytest.param(*_values(member), marks=pytest.mark.slow) for member in family]


def _values(member: Any) -> tuple[Any, ...]:
    return member if isinstance(member, tuple) else (member,)
