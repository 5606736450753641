"""What holds in every test."""

from collections.abc import Iterator
from functools import wraps
from pathlib import Path

import pytest

from tests.report_consistency import contradictions


@pytest.fixture(scope="session", autouse=True)
def no_report_contradicts_its_intervals() -> Iterator[None]:
    """Whatever report a test makes, for whatever reason: no verdict stands beside an interval that contradicts it."""
    from wardround.report import build
    from wardround.runs.folder import RunFolder

    made = build._build

    @wraps(made)
    def checked(folder: RunFolder, workers: int) -> Path:
        page = made(folder, workers)
        found = contradictions(folder.read_json("results.json"), page.read_text(encoding="utf-8"))
        assert not found, "\n".join(found[:10])
        return page

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "_build", checked)
        yield
