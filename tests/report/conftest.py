"""Runs that several reports are made of, trained once for all tests of this folder. Nobody may change them."""

from pathlib import Path

import pytest

from wardround.runs.execute import run_study


@pytest.fixture(scope="session")
def ways_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.report.sections.test_approaches import STUDY

    return run_study(STUDY, out=tmp_path_factory.mktemp("ways")).folder
