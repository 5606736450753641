"""Real data that are not part of the project: where they are, if they are."""

import os
from pathlib import Path

import pytest

DEFAULT = Path(__file__).parents[2] / "shared" / "data"


def shared_data(name: str) -> Path:
    """A file or folder of it; the test is skipped where this machine has none."""
    folder = Path(os.environ.get("WARDROUND_TEST_DATA", DEFAULT))
    if not (folder / name).exists():
        pytest.skip(f"{name} is not on this machine (WARDROUND_TEST_DATA names its folder)")
    return folder / name
