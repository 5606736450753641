"""Every section of the report: what a module of `sections` must offer, and that it runs only where it applies."""

import subprocess
import sys
from pathlib import Path

import pytest
from jinja2 import Environment

import wardround
from tests.report.special_sections import SPECIAL
from tests.report.test_report import page_of, small
from wardround.report import Evidence, make_tables, read_evidence, sections_of
from wardround.report.section import Section
from wardround.report.sections import SECTIONS, load_section, remarks
from wardround.runs.folder import RunFolder

PACKAGE = "wardround.report.sections"
FOLDER = Path(wardround.__file__).parent / "report" / "sections"
HELPERS = {
    "analyses.patients",
    "analyses.regression",
    "design.exchange",
    "front.forest",
    "privacy.private_arms",
}  # facts that several sections use


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of a study without regions, parties, privacy, uncertainty, images or claims."""
    return wardround.run_study(small("plain"), tmp_path_factory.mktemp("runs")).folder


@pytest.fixture(scope="module")
def evidence(plain: Path) -> Evidence:
    return read_evidence(RunFolder(plain))


def test_every_module_is_a_section_in_the_list() -> None:
    paths = [path.relative_to(FOLDER).with_suffix("") for path in FOLDER.rglob("*.py") if path.name != "__init__.py"]
    assert {".".join(path.parts) for path in paths} - HELPERS == set(SECTIONS)


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_is_complete(name: str, evidence: Evidence) -> None:
    section = load_section(name)
    assert isinstance(section, Section)
    assert isinstance(SECTIONS[name](evidence), bool)
    assert section.page or section.figures, "it shows something"
    if section.anchor:
        assert f'<section id="{section.anchor}">' in section.page
        assert section.link or name == "answer", "the contents of the page have a link to it"
    Environment().parse(section.page)
    assert all(drawing.title for drawing in section.figures.values())


def test_names_of_figures_and_anchors_are_unique() -> None:
    sections = [load_section(name) for name in SECTIONS]
    figures = [name for section in sections for name in section.figures]
    anchors = [section.anchor for section in sections if section.anchor]
    assert len(figures) == len(set(figures))
    assert len(anchors) == len(set(anchors))


def test_sections_that_do_not_apply_have_no_part_in_a_plain_report(plain: Path, evidence: Evidence) -> None:
    assert set(sections_of(evidence)) == set(SECTIONS) - SPECIAL
    wardround.build_report(plain)
    ids = page_of(plain).ids
    shown = {section.anchor for section in sections_of(evidence).values() if section.anchor}
    assert shown <= set(ids)
    assert not {load_section(name).anchor for name in SPECIAL & set(SECTIONS)} & set(ids)
    assert {f"table-{name}" for name in make_tables(evidence)} <= set(ids)
    assert remarks(evidence, "alarms") == remarks(evidence, "answer") == []


@pytest.mark.slow
def test_a_plain_report_does_not_import_other_sections(plain: Path) -> None:
    code = (
        "import sys\n"
        "from wardround.report import build_report\n"
        "from wardround.report.render import figures\n"
        "figures.as_svg, figures.save_png = lambda *_: '<svg></svg>', lambda _, path: path.write_bytes(b'')\n"
        "build_report(sys.argv[1])\n"
        "print(*sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(plain)], capture_output=True, text=True, check=True)
    loaded = {name.removeprefix(f"{PACKAGE}.") for name in done.stdout.split() if name.startswith(f"{PACKAGE}.")}
    assert {"answer", "sites", "results", "hospitals"} <= loaded
    assert not loaded & SPECIAL


def test_a_section_of_ones_own_is_a_module_and_a_line(plain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = '<section id="own"><h2>Own</h2><p>{{ sentence }}</p></section>'

    def sentence(evidence: Evidence) -> str:
        return f"There are {len(evidence.sites)} sites & more."

    module = type(sys)(f"{PACKAGE}.own")
    module.__dict__["SECTION"] = Section(page, "own", "Own part", {"sentence": sentence})
    monkeypatch.setitem(sys.modules, f"{PACKAGE}.own", module)
    monkeypatch.setitem(SECTIONS, "own", lambda evidence: len(evidence.sites) > 1)
    html = wardround.build_report(plain).read_text(encoding="utf-8")
    assert '<a href="#own">Own part</a>' in html
    assert "There are 2 sites &amp; more." in html
