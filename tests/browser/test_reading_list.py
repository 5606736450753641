"""A reading list in a real browser: read by keyboard, closed and gone on with, and its file scored."""

import json
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any

import pytest

from tests.browser.test_front_pages import CUT, OVERLAPS, SEVERAL_WIDTHS
from tests.bundles.untrained_bundles import made
from wardround.review.decisions import load_key, read_decisions
from wardround.review.make import KEY, PAGE, make_list
from wardround.review.score import score_list
from wardround.runs.audit import verify

CHROMIUM = which("chromium") or which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian package chromium)")
READER = "Dr Ærø-Łódź 𝔸"  # letters beyond ASCII and beyond 16 bits: both ends hash the same bytes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("list")
    lines = ["age,crp,sodium,outcome", *(f"{40 + row},{row % 7 / 2},{130 + row % 9},{row % 2}" for row in range(9))]
    (place / "rows.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    bundle = made(place / "bundle")
    return make_list(bundle, place / "rows.csv", out=place / "list", truth="outcome", readers=[READER, "other"])


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def complaints() -> list[str]:
    return []


@pytest.fixture
def context(browser: Any) -> Iterator[Any]:
    """A browser that has seen nothing yet."""
    opened = browser.new_context(accept_downloads=True)
    yield opened
    opened.close()


def open_page(context: Any, folder: Path, complaints: list[str], width: int = 1280) -> Any:
    page = context.new_page()
    page.set_viewport_size({"width": width, "height": 844})
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    own = (folder / PAGE).as_uri()
    page.on(
        "request", lambda request: None if request.url.startswith((own, "data:")) else complaints.append(request.url)
    )
    page.goto(own)
    return page


def begin(page: Any, reader: str = READER) -> None:
    page.get_by_label(reader, exact=True).check()
    page.get_by_role("button", name="Begin, or go on").click()


def decide(page: Any, answer: int, confidence: int = 3, refer: bool = False) -> str:
    """By keys alone. The condition under which the case was shown."""
    condition = str(page.locator(".condition").inner_text())
    page.keyboard.press(str(answer + 1))
    page.keyboard.press("Tab")
    page.keyboard.press("Space")
    for _ in range(confidence - 1):
        page.keyboard.press("ArrowRight")
    if refer:
        page.keyboard.press("Tab")
        page.keyboard.press("Space")
    page.keyboard.press("Enter")
    return condition


def saved(page: Any, file: Path, button: str = "Save my decisions") -> Path:
    with page.expect_download() as download:
        page.get_by_role("button", name=button).click()
    download.value.save_as(file)
    return file


def test_a_list_is_read_closed_gone_on_with_and_scored(
    context: Any, folder: Path, complaints: list[str], tmp_path: Path
) -> None:
    page, key = open_page(context, folder, complaints), json.loads((folder / KEY).read_text(encoding="utf-8"))
    begin(page)
    given = [(n % 2, 1 + n % 5, n % 3 == 0) for n in range(9)]
    seen = [decide(page, *answer) for answer in given[:4]]
    page.close()
    page = open_page(context, folder, complaints)
    begin(page)
    assert page.locator("#progress").inner_text() == "Case 5 of 9"
    page.get_by_role("button", name="Pause").click()
    assert page.locator("[name=answer]").count() == 0  # the case is hidden
    page.get_by_role("button", name="Go on").click()
    seen += [decide(page, *answer) for answer in given[4:]]
    file = saved(page, tmp_path / "decisions.jsonl")
    log = verify(file)
    assert log.broken is None
    assert page.locator("#head").inner_text() == log.head
    reading = read_decisions(load_key(folder), file)
    assert reading.finished
    assert [(d.answer, d.confidence, d.refer) for d in reading.decisions] == given
    words = {"alone": "Without the model", "score": "With the model's score"}
    shown = [words.get(key["conditions"][d.condition], "With the model's score and reasons") for d in reading.decisions]
    assert seen == shown
    assert all(0 <= decision.seconds < 60 for decision in reading.decisions)
    assert score_list(folder, [file], out=tmp_path / "scored")["readings"] == 9
    begun = open_page(context, folder, complaints)
    begin(begun)  # who is done cannot decide again
    assert begun.locator("[name=answer]").count() == 0
    assert complaints == []


def test_each_condition_shows_what_it_says(context: Any, folder: Path, complaints: list[str]) -> None:
    page, seen = open_page(context, folder, complaints), set()
    begin(page, "other")
    for _ in range(9):
        condition = page.locator(".condition").inner_text()
        parts = page.locator(".model").count(), page.locator(".reasons li").count()
        expected = {"Without the model": (0, 0), "With the model's score": (1, 0)}
        assert parts == expected.get(condition, (1, 3))
        seen.add(condition)
        decide(page, 0)
    assert len(seen) == 3
    assert complaints == []


def test_nothing_is_saved_without_an_answer_and_a_confidence(context: Any, folder: Path, complaints: list[str]) -> None:
    page = open_page(context, folder, complaints)
    begin(page)
    page.get_by_role("button", name="Save and go on").click()
    page.keyboard.press("1")
    page.get_by_role("button", name="Save and go on").click()
    assert page.locator("#progress").inner_text() == "Case 1 of 9"


def test_what_was_changed_in_the_browser_is_noticed(context: Any, folder: Path, complaints: list[str]) -> None:
    page = open_page(context, folder, complaints)
    begin(page)
    decide(page, 0)
    page.evaluate(
        "() => { const name = Object.keys(localStorage)[0];"
        " localStorage.setItem(name, localStorage.getItem(name).replace('answer\\\\\":0', 'answer\\\\\":1')); }"
    )
    page.reload()
    begin(page)
    assert "was changed" in page.locator(".caution").inner_text()


@SEVERAL_WIDTHS
def test_nothing_overlaps_or_is_cut_off(context: Any, folder: Path, complaints: list[str], width: int) -> None:
    page = open_page(context, folder, complaints, width)
    for step in range(4):
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        assert page.evaluate(OVERLAPS, ".choices label, button, h1, h2, legend, td, th") == []
        assert page.evaluate(CUT, "td, th, label, button, p") == []
        small = "() => [...document.querySelectorAll('button, .choices label')].filter(e => e.offsetHeight < 44).length"
        assert page.evaluate(small) == 0  # what a finger hits
        if step == 0:
            begin(page)
        else:
            decide(page, 1)


def test_no_list_is_lost_where_a_browser_keeps_nothing(
    context: Any, folder: Path, complaints: list[str], tmp_path: Path
) -> None:
    context.add_init_script("Storage.prototype.setItem = () => { throw new Error('full'); };")
    page = open_page(context, folder, complaints)
    begin(page)
    decide(page, 0)
    assert "keeps nothing" in page.locator(".caution").inner_text()
    page.get_by_role("button", name="Pause").click()
    reading = read_decisions(load_key(folder), saved(page, tmp_path / "d.jsonl", "Save what there is"))
    assert len(reading.decisions) == 1
