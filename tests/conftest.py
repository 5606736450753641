"""What holds in every test."""

from collections.abc import Iterator
from functools import wraps
from pathlib import Path

import pytest

from tests.report_consistency import contradictions

SVG = '<svg xmlns="http://www.w3.org/2000/svg"><text>not rendered in this test</text></svg>'


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


_RENDERED: list[str] = []  # not empty while a test runs that is marked `rendered`


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    _RENDERED[:] = [item.name] if item.get_closest_marker("rendered") else []
