"""Page one and a hospital's page in a real browser: answer, plot and numbers are those of results.json, nothing
overlaps or is cut off, nothing is asked for and nothing is complained about."""

import json
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any

import pytest

import wardround
from tests.report.front_studies import RUNS, front_study
from tests.representatives import represented
from wardround.evaluation.comparisons.measures import measure_of
from wardround.evaluation.decision.words import signed_amounts
from wardround.report import build
from wardround.report.sections.front.board import MEAN

CHROMIUM = which("chromium") or which("chromium-browser")
pytestmark = [
    pytest.mark.rendered,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian package chromium)"),
]
A4 = {"width": 688, "height": 1007}  # between the margins
SEVERAL_WIDTHS = pytest.mark.parametrize("width", [1280, 390], ids=["screen", "telephone"])
OVERLAPS = """selector => {
  const boxes = [...document.querySelectorAll(selector)].filter(e => e.getClientRects().length)
    .map(e => [e.textContent.trim(), e.getBoundingClientRect()]);
  const wrong = [];
  for (let i = 0; i < boxes.length; i++) for (let j = i + 1; j < boxes.length; j++) {
    const [a, b] = [boxes[i][1], boxes[j][1]];
    if (a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1)
      wrong.push(boxes[i][0] + ' | ' + boxes[j][0]);
  }
  return wrong;
}"""
# letters that reach out of their cell, and tables wider than what holds them
CUT = """selector => [...document.querySelectorAll(selector)].filter(e => e.getClientRects().length
  && e.scrollWidth > e.clientWidth + 1).map(e => e.tagName + ': ' + e.textContent.trim().slice(0, 60))"""


@pytest.fixture(scope="module", params=represented(list(RUNS), by=["gain", "numbers"]))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("front")
    finished = wardround.run_study(front_study(place / "data", request.param), place / "runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "draw_all", lambda *_: {})  # the figures of the evidence take most of the time
        wardround.build_report(finished.folder)
    return finished.folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


def results_of(folder: Path) -> Any:
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


@SEVERAL_WIDTHS
def test_page_one_says_what_the_results_hold(browser: Any, folder: Path, width: int) -> None:
    results = results_of(folder)
    page = browser.new_page(viewport={"width": width, "height": 800})
    messages: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: messages.append(message.text))
    page.on("pageerror", lambda error: messages.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto((folder / "report.html").as_uri())
    assert messages == []
    assert [url for url in asked if not url.startswith("data:")] == [(folder / "report.html").as_uri()]
    sentences = results["decision"]["sentences"]
    assert page.locator("h1").inner_text() == results["study"]["question"]
    assert page.locator("#front .board").inner_text() == sentences["answer"]
    assert page.locator("#front .next").inner_text() == f"What to do next. {sentences['next']}"
    text = page.locator("#front").inner_text()
    assert all(sentences[name] in text for name in ("size", "hospitals", "power", "others"))
    assert_plot_is_that_of(page, results)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(OVERLAPS, "#front p, #front .forest th, #front .forest td, #front dt, #front dd") == []
    assert page.evaluate(CUT, "#front p, #front th, #front td, #front dd, #front figure, #front table") == []
    page.close()


def assert_plot_is_that_of(page: Any, results: Any) -> None:
    """Every hospital and the mean: the numbers, and where the marks stand on the scale that the ticks give."""
    decision, measure = results["decision"], measure_of(results, results["primary_metric"])
    if decision["why_not"] is not None:
        assert page.locator("#front .forest .mean").count() == 0
        return
    expected = {site: own["comparison"] for site, own in decision["sites"].items()} | {MEAN: decision["mean"]}
    rows = page.locator("#front .forest tbody tr")
    assert [row.locator("th").inner_text() for row in rows.all()] == list(expected)
    right = page.locator("#front .ticks span").nth(2)
    tick = float(right.inner_text())
    plots = page.locator("#front .forest td.plot svg")
    zero = page.locator("#front .ticks span").nth(1).bounding_box()
    middle, end = (box["x"] + box["width"] / 2 for box in (zero, right.bounding_box()))
    scale = 1000 if measure.metric.counted else 1
    for number, entry in enumerate(expected.values()):
        values = [entry["difference"], *(entry["interval"] or ())]
        shown = rows.nth(number).locator(".ci").inner_text()
        numbers = signed_amounts(measure, values, entry["verdict"] in ("gains", "loses"))
        assert shown == f"{numbers[0]} ({numbers[1]} to {numbers[2]})"
        mark = plots.nth(number).locator(".dot, .diamond").bounding_box()
        place = mark["x"] + mark["width"] / 2
        assert place == pytest.approx(middle + (end - middle) * scale * entry["difference"] / tick, abs=3)


def test_page_one_is_one_page_of_paper(browser: Any, folder: Path) -> None:
    page = browser.new_page(viewport=A4)
    page.goto((folder / "report.html").as_uri())
    page.emulate_media(media="print")
    box = page.locator("#front").bounding_box()
    assert box["y"] + box["height"] <= A4["height"]
    wide = "e => e.getBoundingClientRect().right > 690"
    assert page.evaluate(f"[...document.querySelectorAll('#front *, #hospital-pages *')].filter({wide}).length") == 0
    page.close()


@SEVERAL_WIDTHS
def test_the_page_of_a_hospital_stands_by_itself(browser: Any, folder: Path, width: int) -> None:
    results = results_of(folder)
    site = next(iter(results["arms"]["fedavg"]["sites"]))
    path = wardround.build_report(folder, site=site)
    messages: list[str] = []
    page = browser.new_page(viewport={"width": width, "height": 800})
    page.on("console", lambda message: messages.append(message.text))
    page.goto(path.as_uri())
    assert messages == []
    assert page.locator("h3").all_inner_texts() == [site]
    others = [name for name in results["arms"]["fedavg"]["sites"] if name != site]
    assert not any(name in page.locator("body").inner_text() for name in others)
    entry = results["decision"]["sites"][site]["comparison"]
    if entry is not None:
        measure = measure_of(results, results["primary_metric"])
        numbers = signed_amounts(measure, [entry["difference"], *entry["interval"]])
        shown = page.locator(".forest tbody tr").first.locator(".ci").inner_text()
        assert shown == f"{numbers[0]} ({numbers[1]} to {numbers[2]})"
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(OVERLAPS, "main p, main th, main td, h4") == []
    assert page.evaluate(CUT, "main p, main .scroll, main th, main td, main figure") == []
    page.emulate_media(media="print")
    page.set_viewport_size(A4)
    assert page.evaluate("document.body.getBoundingClientRect().height") <= A4["height"]
    page.close()
