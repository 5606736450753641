"""What holds in every test."""

import gc
import os
from collections.abc import Generator, Iterator
from functools import cache, wraps
from pathlib import Path
from typing import Any

import pytest

from tests.time_limit import time_limit

gc.disable()  # until all tests are collected: their many objects stay, and looking through them is a fifth of the time
for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ.setdefault(threads, "1")  # before anything imports torch, also in processes that tests start
LONGEST, LONGEST_SLOW = 600.0, 3600.0  # seconds; a test that hangs would hold up all others until somebody looks
SVG = '<svg xmlns="http://www.w3.org/2000/svg"><text>not rendered in this test</text></svg>'


@pytest.fixture(scope="session", autouse=True)
def no_report_contradicts_its_intervals() -> Iterator[None]:
    """Whatever report a test makes, for whatever reason: no verdict stands beside an interval that contradicts it."""
    from tests.report_consistency import contradictions
    from wardround.report import build
    from wardround.runs.folder import RunFolder

    original = build._build

    @wraps(original)
    def checked(folder: RunFolder, *options: Any) -> Path:
        page = original(folder, *options)
        problems = contradictions(folder.read_json("results.json"), page.read_text(encoding="utf-8"))
        assert not problems, "\n".join(problems[:10])
        return page

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "_build", checked)
        yield


@pytest.fixture(scope="session", autouse=True)
def nothing_waits_for_the_disk() -> Iterator[None]:
    """Only a power failure shows whether a file was synced, and waiting for it takes a third of some tests' time.
    Tests that look whether and when files are synced have an `os.fsync` of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # a descriptor that is none remains an error
        yield


@pytest.fixture(scope="session", autouse=True)
def what_is_installed_is_looked_up_once() -> Iterator[None]:
    """Every run writes it down, and asking git for the revision takes longer than most runs of a test."""
    from wardround.runs import environment

    with pytest.MonkeyPatch.context() as patch:
        for name in ("installed", "source_revision"):
            patch.setattr(environment, name, cache(getattr(environment, name)))
        yield


@pytest.fixture(scope="session", autouse=True)
def figures_are_rendered_where_somebody_looks() -> Iterator[None]:
    """Every figure is made, but rendering takes most of a report's time: only tests marked `rendered` pay for it."""
    from wardround.report.render import figures
    from wardround.report.render.style import as_svg, save_png

    def svg_or_stand_in(drawn: object, name: str) -> str:
        return as_svg(drawn, name) if _RENDERED else SVG  # type: ignore[arg-type]

    def png_or_stand_in(drawn: object, path: Path) -> None:
        if _RENDERED:
            save_png(drawn, path)  # type: ignore[arg-type]
        else:
            path.write_bytes(b"not rendered in this test")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "as_svg", svg_or_stand_in)
        patch.setattr(figures, "save_png", png_or_stand_in)
        yield


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


_RENDERED: list[str] = []  # not empty while a test runs that is marked `rendered`


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    marker = item.get_closest_marker("rendered")
    _RENDERED[:] = [item.name] if marker is not None and marker.args != (False,) else []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    with time_limit(LONGEST_SLOW if item.get_closest_marker("slow") else LONGEST):
        return (yield)
