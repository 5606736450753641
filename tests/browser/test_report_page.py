"""The report in a real browser: no console message, no request, every figure drawn, nothing wider than its page."""

from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any

import pytest

import wardround
from tests.report.test_report import HEART

CHROMIUM = which("chromium") or which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian package chromium)")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wardround.build_report(wardround.run_study(HEART, tmp_path_factory.mktemp("runs")).folder)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.mark.parametrize("width", [1280, 390], ids=["screen", "telephone"])
def test_the_page_is_whole_and_silent(browser: Any, report: Path, width: int) -> None:
    page = browser.new_page(viewport={"width": width, "height": 900})
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(report.as_uri())
    assert said == []
    assert [url for url in asked if not url.startswith("data:")] == [report.as_uri()]
    figures = page.locator("figure.drawing svg")
    drawn = len(list((report.parent / "figures").glob("*.svg")))
    assert figures.count() == drawn >= 15
    for number in range(drawn):
        box = figures.nth(number).bounding_box()
        assert box["width"] > 150, number
        assert box["height"] > 50, number
        assert box["x"] + box["width"] <= width + 1, number
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.close()


def test_links_lead_somewhere_and_folded_parts_open(browser: Any, report: Path) -> None:
    page = browser.new_page()
    page.goto(report.as_uri())
    for link in page.locator("nav a").all():
        assert page.locator(link.get_attribute("href")).count() == 1
    hidden = page.locator("#table-benefit")
    assert not hidden.is_visible()
    page.get_by_text("Every arm at every site against training alone").click()
    assert hidden.is_visible()
    page.close()


def test_on_paper_nothing_is_cut_off(browser: Any, report: Path, tmp_path: Path) -> None:
    page = browser.new_page(viewport={"width": 688, "height": 1000})  # the width of A4 between its margins
    page.goto(report.as_uri())
    page.emulate_media(media="print")
    wide = page.evaluate(
        "[...document.querySelectorAll('figure.drawing svg, table')].filter(e => e.getBoundingClientRect().right > 690)"
        ".map(e => e.closest('[id]').id)"
    )
    assert wide == []
    assert page.locator("#table-benefit").is_visible()  # folded on the screen, there on paper
    page.pdf(path=tmp_path / "report.pdf", prefer_css_page_size=True)
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    page.close()
