"""Tables of a page of 50 hospitals in a real browser: they sort, filter and hide, and are whole without the script."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any

import pytest
from typer.testing import CliRunner

import wardround
from tests.report.front_studies import study_of
from wardround.cli.main import app
from wardround.report import build, write_pdf

CHROMIUM = which("chromium") or which("chromium-browser")
pytestmark = [
    pytest.mark.rendered,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian package chromium)"),
]
OPEN = "document.querySelectorAll('details').forEach(part => part.open = true)"
HOSPITALS = 50


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("fifty")
    study = study_of(place / "data", "fifty", hospitals=HOSPITALS, patients=40, seeds=2)
    finished = wardround.run_study(study, place / "runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "draw_all", lambda *_: {})  # the tables are what is looked at
        wardround.build_report(finished.folder)
    return finished.folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any, folder: Path) -> Iterator[Any]:
    opened = browser.new_page(viewport={"width": 1280, "height": 900})
    said: list[str] = []
    asked: list[str] = []
    opened.on("console", lambda message: said.append(message.text))
    opened.on("pageerror", lambda error: said.append(str(error)))
    opened.on("request", lambda request: asked.append(request.url))
    opened.add_init_script(
        "window.refused = []; document.addEventListener('securitypolicyviolation', e => refused.push(e.blockedURI))"
    )
    opened.goto((folder / "report.html").as_uri())
    opened.evaluate(OPEN)
    yield opened
    assert said == []
    assert opened.evaluate("refused") == []
    assert [url for url in asked if not url.startswith("data:")] == [(folder / "report.html").as_uri()]
    opened.close()


def column(page: Any, table: str, place: int) -> list[str]:
    cells = page.locator(f"#table-{table} .scroll tbody tr:visible > *:nth-child({place + 1})")
    return [str(text) for text in cells.all_inner_texts()]


def test_a_heading_sorts_numbers_up_down_and_back(page: Any) -> None:
    before = column(page, "benefit", 2)
    heading = page.locator("#table-benefit thead th").nth(2)
    heading.locator(".sort").click()
    assert heading.get_attribute("aria-sort") == "ascending"
    numbers = [float(text) for text in column(page, "benefit", 2) if text != "–"]
    assert numbers == sorted(numbers) == sorted(float(text) for text in before if text != "–")
    heading.locator(".sort").press("Enter")  # the keyboard does the same
    assert heading.get_attribute("aria-sort") == "descending"
    numbers = [float(text) for text in column(page, "benefit", 2) if text != "–"]
    assert numbers == sorted(numbers, reverse=True)
    heading.locator(".sort").press("Space")
    assert heading.get_attribute("aria-sort") is None
    assert column(page, "benefit", 2) == before


def test_a_filter_keeps_the_rows_that_have_its_words(page: Any) -> None:
    page.locator("#table-benefit input[type=search]").fill("hospital-07 fedavg")
    assert column(page, "benefit", 1) == ["hospital-07"]
    assert page.locator("#table-benefit .filter .told").inner_text() == "1 of 100 rows"
    page.locator("#table-benefit input[type=search]").fill("")
    assert len(column(page, "benefit", 1)) == 2 * HOSPITALS


def test_arms_and_hospitals_are_hidden_everywhere_said_and_never_on_paper(page: Any) -> None:
    page.locator("#choice").get_by_label("fedprox", exact=True).uncheck()
    page.locator("#choice").get_by_label("hospital-03", exact=True).uncheck()
    assert set(column(page, "benefit", 0)) == {"fedavg"}
    assert "hospital-03" not in column(page, "benefit", 1)
    assert column(page, "arms", 0) == ["local", "fedavg"]
    heads = [text for text in page.locator("#table-hospitals .scroll thead th:visible").all_inner_texts() if text]
    assert heads == ["local", "SD, local", "fedavg", "SD, fedavg"]  # a line for each hospital, two columns for each arm
    assert not [name for name in column(page, "hospitals", 0) if "hospital-03" in name]
    assert "hospital-03" not in page.locator("#table-forest tbody tr:visible th").all_inner_texts()
    assert page.locator("details.hospital:visible").count() == HOSPITALS - 1
    told = page.locator("#choice > .told").inner_text()
    assert "1 arm (fedprox); 1 hospital (hospital-03)" in told
    page.emulate_media(media="print")
    assert page.locator("#table-benefit .scroll tbody tr:visible").count() == 2 * HOSPITALS
    assert page.locator("details.hospital:visible").count() == HOSPITALS
    page.emulate_media(media="screen")
    for name in ("arms", "hospitals"):
        page.locator("#choice fieldset", has_text=f"Show {name}").get_by_role("button", name="All").click()
    assert len(column(page, "benefit", 0)) == 2 * HOSPITALS
    assert page.locator("#choice > .told").inner_text() == ""


def test_heads_and_names_stay_while_a_table_scrolls(page: Any) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    scroll = page.locator("#table-arms .scroll")
    scroll.evaluate("element => { element.scrollLeft = 150 }")
    assert scroll.evaluate("element => element.scrollLeft") == 150
    left = scroll.bounding_box()["x"]
    assert scroll.locator("tbody th").first.bounding_box()["x"] == pytest.approx(left, abs=1)
    long = page.locator("#table-benefit .scroll")
    long.evaluate("element => { element.scrollTop = 400 }")
    assert long.locator("thead th").first.bounding_box()["y"] == pytest.approx(long.bounding_box()["y"], abs=1)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_without_scripts_everything_is_there(browser: Any, folder: Path) -> None:
    context = browser.new_context(java_script_enabled=False, viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.goto((folder / "report.html").as_uri())
    assert not page.locator("#choice").is_visible()
    assert page.locator(".sort, .filter").count() == 0
    assert page.locator("#table-benefit tbody tr").count() == 2 * HOSPITALS
    assert page.locator("#table-hospitals .scroll tbody tr").count() == HOSPITALS
    context.close()


def test_no_other_script_may_run(browser: Any, folder: Path, tmp_path: Path) -> None:
    html = (folder / "report.html").read_text(encoding="utf-8")
    (tmp_path / "changed.html").write_text(html.replace('"use strict";', '"use strict"; window.more = 1;'), "utf-8")
    page = browser.new_page()
    page.goto((tmp_path / "changed.html").as_uri())
    assert page.evaluate("window.more") is None
    assert page.locator(".sort").count() == 0
    page.close()


def test_the_pdf_has_numbered_pages_and_repeats_the_heads_of_tables(folder: Path) -> None:
    made = write_pdf(folder / "report.html")
    assert made == folder / "report.pdf"
    if which("pdftotext") is None:
        pytest.skip("no pdftotext here (Debian package poppler-utils)")
    text = subprocess.run(["pdftotext", "-layout", made, "-"], capture_output=True, text=True, check=True).stdout
    pages = text.split("\f")[:-1]
    assert all(re.search(rf"\b{number} / {len(pages)}\b", page) for number, page in enumerate(pages, 1))
    rows = re.compile(r"^fed(avg|prox) +hospital-\d\d .*(no evidence|cannot be told)", re.MULTILINE)
    of_benefit = [page for page in pages if rows.search(page)]
    assert len(of_benefit) > 1
    assert all(re.search(r"^arm +site .*verdict", page, re.MULTILINE) for page in of_benefit)
    assert sum(len(rows.findall(page)) for page in of_benefit) == 2 * HOSPITALS


def test_the_command_prints_a_hospital_s_page(folder: Path) -> None:
    made = CliRunner().invoke(app, ["report", str(folder), "--site", "hospital-03", "--pdf", "--json"])
    page = folder / "report-site-hospital-03.html"
    assert json.loads(made.output) == {"report": str(page), "pdf": str(page.with_suffix(".pdf"))}
    assert page.with_suffix(".pdf").read_bytes().startswith(b"%PDF-")
