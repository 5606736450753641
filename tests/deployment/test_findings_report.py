"""The page and the screen of a run across hospitals whose images have any number of findings."""

import re
from html import unescape
from pathlib import Path

import pytest

from tests.deployment import radiology_sites as radiology
from tests.deployment.parity import Both, deploy
from tests.deployment.radiology_sites import FINDINGS, study
from wardround.cli.studies.render_run import show_run
from wardround.report import build_report
from wardround.runs.execute import StudyRun

SMALLEST = 6


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    """Few images of each hospital show a mass."""
    document = study(deployment={"smallest_cell": SMALLEST}, training={"rounds": 2, "local_epochs": 1})
    return deploy(document, tmp_path_factory.mktemp("deployed"), radiology.at_sites(0.02, 300))


def text_of(page: str) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub(r"<(style|script|svg).*?</\1>|<[^>]*>", " ", page, flags=re.S)))


def test_the_page_says_whose_thresholds_and_what_is_withheld(both: Both) -> None:
    folder = both.deployed.folder.path
    build_report(folder)
    text = text_of((folder / "report.html").read_text(encoding="utf-8"))
    for words in (
        "Each hospital calls a finding from the score on that gives the best F1 on its own validation rows",
        f"Where fewer than {SMALLEST} of these patients have the finding, it is called from 0.5 on",
        "curves are drawn from histograms of the hospitals' scores",
        "Every figure is the mean over findings.",
        f"no test row has it, or fewer than {SMALLEST} patients of each hospital, which then does not tell: mass.",
    ):
        assert words in text, words
    table = (folder / "tables" / "findings.csv").read_text(encoding="utf-8").splitlines()
    assert table[1].startswith("mass,withheld,")
    assert [line.split(",")[0] for line in table[1:]] == list(FINDINGS)


def test_the_screen_shows_means_over_findings(both: Both, capsys: pytest.CaptureFixture[str]) -> None:
    folder: Path = both.deployed.folder.path
    results = both.deployed.folder.read_json("results.json")
    show_run(StudyRun(folder, results, fresh=True), None)
    shown = " ".join(capsys.readouterr().out.split())
    assert f"Every figure is the mean over {len(FINDINGS)} findings." in shown
    assert "Left out of every average over findings" in shown
