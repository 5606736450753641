"""Hundreds of coordinators and hospitals are started here; what would make each of them slow is left out."""

import os
from collections.abc import Iterator
from functools import lru_cache

import pytest

from wardround.runs import environment


@pytest.fixture(autouse=True, scope="session")
def _quick() -> Iterator[None]:
    """What is installed is looked up once; nothing waits for a disk, because no power cut is tried here."""
    with pytest.MonkeyPatch.context() as patched:
        for name in ("installed", "source_revision"):
            patched.setattr(environment, name, lru_cache(getattr(environment, name)))
        patched.setattr(os, "fsync", lambda descriptor: None)
        yield
