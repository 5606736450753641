"""Many claims in a report and in a terminal: counted by subject, each of them with its figures."""

import csv
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import wardround
from tests.report.test_report import Page
from wardround.cli.studies.render_run import _show_claims
from wardround.evaluation.answer import IN_SENTENCES, claim_words
from wardround.evaluation.claims.verdicts import OUTCOMES
from wardround.report import Evidence, read_evidence
from wardround.report.sections.claims import FEW, claim_count_table, subjects
from wardround.runs.folder import RunFolder


def claim(number: int, **more: Any) -> dict[str, Any]:
    return {"text": f"Claim number {number}", "source": "A paper", "published": 2.0, "arms": ["fedavg"], **more}


STUDY: dict[str, Any] = {
    "name": "claimed",
    "data": {"source": "heart", "hospitals": ["cleveland", "va"]},
    "training": {"rounds": 1},
    "evaluation": {"seeds": {"first": 1, "count": 2}, "vary": ["split", "batches"]},
    "arms": [{"algorithm": "fedavg"}, {"algorithm": "local"}],
    "variants": [{"name": "slow", "training.lr": 0.001}],
    "claims": [
        *(claim(number, group="Figures", tolerance=5 if number < 3 else 0) for number in range(10)),
        claim(10, group="Tests", source="An abstract", stated={"here": 1.0, "there": 2.0}),
        claim(11, group="Tests", metric="t", against=["local"], formula="t", given=[[3, 1, 50, 1, 1, 50]]),
        claim(12, group="Tests", no_verdict="other patients"),
        claim(13, metric="seconds"),
    ],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_folder = wardround.run_study(STUDY, tmp_path_factory.mktemp("runs")).folder
    wardround.build_report(run_folder)
    return run_folder


@pytest.fixture(scope="module")
def evidence(folder: Path) -> Evidence:
    return read_evidence(RunFolder(folder))


def test_they_are_counted_by_subject(evidence: Evidence) -> None:
    table = claim_count_table(evidence)
    assert table is not None
    assert table.columns == ("subject", "claims", *OUTCOMES)
    assert [list(row) for row in table.rows] == [
        ["Figures", 10, 3, 7, 0, 0, 0],
        ["Tests", 3, 0, 0, 2, 0, 1],
        ["Other claims", 1, 0, 0, 0, 1, 0],
        ["all", 14, 3, 7, 2, 1, 1],
    ]
    assert claim_words(evidence.results["claims"]) == (
        "Of 14 published claims, 3 are reproduced, 7 are not reproduced, 2 are contradicted by their own source, "
        "1 cannot be computed and 1 is set beside ours without a verdict."
    )
    assert set(IN_SENTENCES) == set(OUTCOMES)


def test_one_claim_is_spoken_of_as_one(evidence: Evidence) -> None:
    contradicted = [claim for claim in evidence.results["claims"] if claim["text"] == "Claim number 10"]
    assert claim_words(contradicted) == "Of 1 published claim, 1 is contradicted by its own source."


def test_the_page_has_each_claim_once_below_its_subject(folder: Path, evidence: Evidence) -> None:
    html = (folder / "report.html").read_text(encoding="utf-8")
    section = html[html.index('<section id="claims">') : html.index('<section id="statistics">')]
    assert re.findall(r"<summary>(.*?)</summary>", section) == ["Figures (10)", "Tests (3)", "Other claims (1)"]
    text = Page(section).text
    for number in range(14):
        assert section.count(f'<th scope="row">Claim number {number}</th>') == 1
    assert "Source: A paper." in text
    assert "An abstract" in text  # where a subject has several sources, each claim names its own
    assert section.count("ours, slow") == 3
    assert "off by" in text
    assert "cannot be computed: the time of one arm is not known" in text
    assert 'id="table-claims-by-subject"' in section
    (tests,) = (subject for subject in subjects(evidence) if subject["title"] == "Tests")
    assert tests["derived"]
    assert tests["claims"][1]["derived"] == "10.000"  # (3 - 1) / sqrt(2 / 50)
    figures = subjects(evidence)[0]
    assert not figures["derived"]
    assert figures["variants"] == ["as it stands", "slow"]


def test_the_tables_have_full_numbers(folder: Path, evidence: Evidence) -> None:
    with (folder / "tables" / "claims.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["outcome"] for row in rows] == [claim["outcome"] for claim in evidence.results["claims"]]
    assert float(rows[0]["ours"]) == evidence.results["claims"][0]["ours"]
    assert rows[0]["subject"] == "Figures"
    assert (folder / "tables" / "claims-by-subject.csv").is_file()


def shown(evidence: Evidence) -> str:
    console = Console(width=140)
    with console.capture() as captured:
        _show_claims(console, evidence)
    return captured.get()


def test_a_terminal_shows_few_claims_and_counts_many(evidence: Evidence) -> None:
    many = shown(evidence)
    assert "Claim number" not in many
    assert re.search(r"Figures\s*│\s*10 │", many)
    assert "Each claim with its figures: in the report" in many
    results = {**evidence.results, "claims": evidence.results["claims"][:FEW]}
    few = shown(replace(evidence, results=results))
    assert few.count("Claim number") == FEW
    assert shown(replace(evidence, results={**results, "claims": []})) == ""
    same = [{**claim, "group": ""} for claim in evidence.results["claims"]]
    assert shown(replace(evidence, results={**results, "claims": same})).count("Claim number") == len(same)
