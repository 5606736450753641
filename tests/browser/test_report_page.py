"""The report in a real browser: no console message, no request, every figure drawn, nothing wider than its page."""

from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any

import pytest

import wardround
from tests.report.image_studies import SOURCES, findings_study
from tests.report.test_report import HEART
from tests.representatives import represented

SMALLEST_LETTERS = 8.0  # pixels, of a figure; most have 12 on a telephone and 14 elsewhere
CHROMIUM = which("chromium") or which("chromium-browser")
pytestmark = [
    pytest.mark.rendered,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian package chromium)"),
]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return wardround.build_report(wardround.run_study(HEART, tmp_path_factory.mktemp("runs")).folder)


@pytest.fixture(scope="module")
def of_findings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    finished = wardround.run_study(findings_study(), tmp_path_factory.mktemp("runs"), sources=SOURCES)
    return wardround.build_report(finished.folder)


@pytest.fixture(scope="module")
def of_analyses(tmp_path_factory: pytest.TempPathFactory) -> Path:
    study = {
        "name": "patients",
        "question": "Who are they?",
        "data": {"source": "heart"},
        "analyses": [
            {"name": "patients", "kind": "table-one", "by": "disease"},
            {
                "name": "effect",
                "kind": "glm",
                "family": "logistic",
                "formula": "disease ~ age",
                "site_effects": "random",
            },
        ],
    }
    return wardround.build_report(wardround.run_study(study, tmp_path_factory.mktemp("runs")).folder)


# in every run that of the images, which has every kind of figure; both reports have the same page around them
@pytest.fixture(
    scope="module", params=represented(["report", "of_findings"], by=["of_findings"]), ids=["columns", "findings"]
)
def any_report(request: pytest.FixtureRequest) -> Path:
    path: Path = request.getfixturevalue(request.param)
    return path


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.mark.parametrize("width", [1280, 390], ids=["screen", "telephone"])
def test_the_page_is_whole_and_silent(browser: Any, any_report: Path, width: int) -> None:
    report = any_report
    page = browser.new_page(viewport={"width": width, "height": 900})
    messages: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(report.as_uri())
    assert messages == []
    assert [url for url in asked if not url.startswith("data:")] == [report.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")  # some are a click away
    figures = page.locator("figure.drawing svg")
    drawn = len(list((report.parent / "figures").glob("*.svg")))
    assert figures.count() == drawn >= 15
    for number in range(drawn):
        box = figures.nth(number).bounding_box()
        assert box["width"] > 150, number
        assert box["height"] > 50, number
        around = page.locator("figure.drawing").nth(number).bounding_box()  # wider ones scroll in it on a telephone
        assert around["x"] + around["width"] <= width + 1, number
        assert width < 700 or box["x"] + box["width"] <= width + 1, number
    letters = page.evaluate(
        "[...document.querySelectorAll('figure.drawing svg text')].filter(e => e.textContent.trim()).map(e =>"
        "parseFloat(getComputedStyle(e).fontSize) * Math.hypot(e.getScreenCTM().a, e.getScreenCTM().b))"
    )
    assert min(letters) >= SMALLEST_LETTERS
    page.close()


@pytest.mark.parametrize("width", [1280, 390], ids=["screen", "telephone"])
def test_a_table_one_is_there_whole(browser: Any, of_analyses: Path, width: int) -> None:
    """It is what a reader came for, and what goes into a word processor: no box in which it scrolls up and down."""
    page = browser.new_page(viewport={"width": width, "height": 900})
    messages: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.goto(of_analyses.as_uri())
    assert messages == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    table = page.locator("#table-analysis-patients")
    assert table.locator("tbody tr").count() > 30
    assert table.evaluate("t => t.querySelector('.scroll').scrollHeight <= t.querySelector('.scroll').clientHeight + 1")
    assert page.locator("#figure-analysis-hospitals svg").is_visible()
    assert "STROBE statement" in page.locator("#methods").inner_text()
    page.close()


@pytest.mark.slow
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


def test_images_and_findings_are_there_to_see(browser: Any, of_findings: Path) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.goto(of_findings.as_uri())
    images = page.locator("#figure-samples image")
    assert images.count() == 6
    for number in range(6):
        box = images.nth(number).bounding_box()
        assert min(box["width"], box["height"]) > 60, number
    assert page.locator(".synthetic").count() == 1
    assert page.locator("header .synthetic").is_visible()
    for link in page.locator("nav a").all():
        assert page.locator(link.get_attribute("href")).count() == 1
    every = page.locator("#table-findings-of-all-arms")
    assert not every.is_visible()
    page.get_by_text("Each finding under every arm", exact=True).click()
    assert every.is_visible()
    # no letter of a figure reaches over its edge
    outside = page.evaluate(
        "[...document.querySelectorAll('figure.drawing svg text')].filter(e => {"
        "const box = e.getBoundingClientRect(), svg = e.ownerSVGElement.getBoundingClientRect();"
        "return box.left < svg.left - 2 || box.right > svg.right + 2 || box.bottom > svg.bottom + 2})"
        ".map(e => e.closest('figure').id + ': ' + e.textContent)"
    )
    assert outside == []
    page.close()


def test_on_paper_nothing_is_cut_off(browser: Any, any_report: Path, tmp_path: Path) -> None:
    report = any_report
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
