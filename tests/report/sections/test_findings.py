"""The report of a study with findings: about AUC, every table as results.json has it, small counts withheld."""

import csv
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wardround
from tests.report.image_studies import FINDINGS, SITES, SOURCES, findings_study
from tests.report.test_report import SECTIONS, Page, page_of
from wardround.report import Evidence, read_evidence
from wardround.report.headline import headline_of
from wardround.report.sections.findings import finding_sentences
from wardround.runs.folder import RunFolder

pytestmark = pytest.mark.rendered

ARMS = ["fedavg", "fedprox[mu=0.0]", "fedprox[mu=1.0]", "local"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> wardround.StudyRun:
    study_run = wardround.run_study(findings_study(), tmp_path_factory.mktemp("runs"), sources=SOURCES)
    wardround.build_report(study_run.folder)
    return study_run


@pytest.fixture(scope="module")
def page(run: wardround.StudyRun) -> Page:
    return page_of(run.folder)


@pytest.fixture(scope="module")
def evidence(run: wardround.StudyRun) -> Evidence:
    return read_evidence(RunFolder(run.folder))


def table(run: wardround.StudyRun, name: str) -> list[dict[str, str]]:
    with (run.folder / "tables" / f"{name}.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_page_is_whole(run: wardround.StudyRun, page: Page) -> None:
    assert set(page.ids) >= (SECTIONS - {"claims"}) | {"findings"}
    assert len(page.ids) == len(set(page.ids))
    assert not page.outside
    assert not re.findall(r"\b(nan|None|NaN)\b", page.text)
    html = (run.folder / "report.html").read_text()
    assert "Does &lt;it&gt; see &amp; tell?" in html
    assert {path.stem for path in (run.folder / "tables").glob("*.csv")} == {
        path.stem for path in (run.folder / "tables").glob("*.tex")
    }


def test_figures_are_those_of_findings(run: wardround.StudyRun, page: Page) -> None:
    drawn = {path.stem for path in (run.folder / "figures").glob("*.svg")}
    assert drawn >= {
        "primary-metric",
        "auc-by-finding",
        "roc",
        "precision-recall",
        "findings-at-sites",
        "prevalence",
        "samples",
    }
    assert drawn >= {"curves", "losses", "movement", "hospitals", "benefit", "subgroups", "sweep", "differences"}
    # accuracy is not what it is about, rows with several findings have no place in one bar, and nothing is a grid
    assert not drawn & {"accuracy", "sites", "test-accuracy", "test-loss", "weight-change", "correlation", "grid"}
    assert {f"figure-{name}" for name in drawn} <= set(page.ids)


def test_words_speak_of_the_headline(page: Page) -> None:
    for words in (
        "in AUC within sites for the models of this one seed",
        "changed a hospital's AUC by",
        "AUC at each site",
        "AUC of every arm",
        "AUC within sites, on all sites' test rows, with 95 % CI",
        "points of AUC within sites more than fedavg, with corrected 95 % CI",
        "points of AUC more than alone, with corrected 95 % CI",
        "AUC by sex, age and view",
        "By sex, age and view",
    ):
        assert words in page.text, words
    assert "points of accuracy" not in page.text
    assert "Accuracy" not in page.text


def test_one_place_decides_which_figure_it_is() -> None:
    assert headline_of({"primary_metric": "auc"}).metric == "auc"
    accuracy, auc = (headline_of({"primary_metric": "brier"}, metric) for metric in ("accuracy", "auc"))
    assert (accuracy.text(0.7036), accuracy.above(), accuracy.above("north")) == ("70.4 %", "accuracy, %", "north, %")
    assert (auc.text(0.7036), auc.above(), auc.above("north"), auc.title) == ("0.704", "AUC", "north", "AUC")


def test_arms_and_sites_have_the_numbers_of_the_results(run: wardround.StudyRun) -> None:
    arms = run.results["arms"]
    for row in table(run, "arms"):
        figures = arms[row["arm"]]["metrics"]
        within = arms[row["arm"]]["within_sites"]["auc"]
        assert float(row["AUC within sites"]) == within["mean"]
        assert [float(row["95 % CI from"]), float(row["95 % CI to"])] == pytest.approx(within["interval"])
        assert float(row["AUC over all rows"]) == figures["auc"]["mean"]
        assert float(row["PR-AUC"]) == figures["pr_auc"]["mean"]
        assert "SD" not in row  # of one seed
    for row in table(run, "hospitals"):
        for site in SITES:
            assert float(row[site]) == arms[row["arm"]]["sites"][site]["auc"]["mean"]
    for row in table(run, "spread"):
        means = [arms[row["arm"]]["sites"][site]["auc"]["mean"] for site in SITES]
        assert float(row["highest - lowest"]) == pytest.approx(100 * (max(means) - min(means)))
    benefits = {(entry["arm"], entry["site"]): entry for entry in run.results["benefit"] if entry["metric"] == "auc"}
    rows = table(run, "benefit")
    assert len(rows) == len(benefits) == 6
    for row in rows:
        assert float(row["points"]) == pytest.approx(100 * benefits[row["arm"], row["site"]]["difference"])


def test_each_finding_has_the_numbers_of_the_results(run: wardround.StudyRun) -> None:
    described = run.results["arms"]["fedavg"]["findings"]
    names = {"AUC": "auc", "PR-AUC": "pr_auc", "F1": "f1", "Brier": "brier"}
    names |= {"sensitivity": "sensitivity", "specificity": "specificity"}
    rows = {row["finding"]: row for row in table(run, "findings")}
    assert list(rows) == list(FINDINGS)
    for finding in ("Edema", "Mass_left"):
        finding_results = described[finding]
        assert float(rows[finding]["positives"]) == finding_results["positives"]
        assert float(rows[finding]["threshold"]) == finding_results["threshold"]["mean"]
        for column, metric in names.items():
            assert float(rows[finding][column]) == finding_results["metrics"][metric]["mean"]
        assert float(rows[finding]["95 % CI from"]) == pytest.approx(finding_results["metrics"]["auc"]["interval"][0])
    every = {(row["arm"], row["finding"]): row for row in table(run, "findings-of-all-arms")}
    assert list(every) == [(arm, finding) for arm in ARMS for finding in FINDINGS]
    local = run.results["arms"]["local"]["findings"]["Edema"]["metrics"]["auc"]["mean"]
    assert float(every["local", "Edema"]["AUC"]) == local


def test_right_and_wrong_calls_add_up_to_the_test_rows(run: wardround.StudyRun) -> None:
    for row in table(run, "confusion"):
        finding_results = run.results["arms"]["fedavg"]["findings"][row["finding"]]
        if row["finding"] == "Few":
            continue
        cells = {name: row[name] for name in ("TP", "FP", "FN", "TN")}
        for name, shown in cells.items():
            count = finding_results["confusion"][name.lower()]
            assert shown == ("below 5" if 0 < count < 5 else str(int(count)))
        assert sum(finding_results["confusion"].values()) == 40  # 20 of each site
    assert [(row["arm"], row["finding"]) for row in table(run, "confusion-of-all-arms")] == [
        (arm, finding) for arm in ARMS for finding in FINDINGS
    ]


def test_so_few_positives_are_withheld_everywhere(run: wardround.StudyRun, page: Page) -> None:
    """Three test rows have `Few`: neither they nor what counts them may be told."""
    assert run.results["arms"]["fedavg"]["findings"]["Few"]["positives"] == 3
    rows = {row["finding"]: row for row in table(run, "findings")}
    assert rows["Few"]["positives"] == "below 5"
    assert [rows["Few"][name] for name in ("F1", "sensitivity", "specificity")] == [""] * 3
    calls = {row["finding"]: row for row in table(run, "confusion")}
    assert [calls["Few"][name] for name in ("TP", "FP", "FN", "TN")] == [""] * 4
    for name in ("roc", "precision-recall"):
        svg = (run.folder / "figures" / f"{name}.svg").read_text()
        assert "fewer than 5" in svg
        assert "no positive" in svg  # Rare
    at_sites = {row["finding"]: row for row in table(run, "findings-at-sites")}
    assert [at_sites["Few"][site] for site in SITES] == ["", ""]
    assert float(at_sites["Edema"]["north"]) == pytest.approx(
        run.results["arms"]["fedavg"]["findings"]["Edema"]["sites"]["north"]["metrics"]["auc"]["mean"]
    )


def test_it_says_what_averages_are_without_and_who_chose_the_thresholds(page: Page) -> None:
    assert "Left out of every average over findings, because no test row has it: Rare." in page.text
    assert "cannot be compared with each other: south 2 of 3." in page.text
    assert "from 0.5 on where no validation row has it: Few and Rare." in page.text


def test_synthetic_data_cannot_be_overlooked(run: wardround.StudyRun, page: Page) -> None:
    words = "Synthetic data: made by a program."
    assert page.text.count(words) == 1  # in the header, right above the answer
    assert page.text.index(words) < page.text.index("What to do next")
    assert "Images of each site. SYNTHETIC" in page.text
    assert "SYNTHETIC: no patient" in (run.folder / "figures" / "samples.svg").read_text()
    assert "12 images, because the study asks for them" in page.text  # three of each site, and six wrong calls


def test_images_are_in_the_page_itself(run: wardround.StudyRun) -> None:
    svg = (run.folder / "figures" / "samples.svg").read_text()
    assert svg.count("data:image/png;base64,") == 6
    html = (run.folder / "report.html").read_text()
    assert html.count("data:image/png;base64,") >= 6


def test_how_common_findings_are(run: wardround.StudyRun) -> None:
    described = run.results["sites"][0]["sites"]
    rows = {row["finding"]: row for row in table(run, "prevalence")}
    assert list(rows) == [*FINDINGS, "no finding"]
    for site in SITES:
        assert float(rows["Edema"][f"{site}, %"]) == pytest.approx(100 * described[site]["classes"]["Edema"] / 120)
    pair = run.results["sites"][0]["heterogeneity"]["pairs"][0]
    (shown,) = table(run, "heterogeneity")
    assert shown["pair"] == "north, south"
    assert [float(shown["JS of labels"]), float(shown["KL of labels"])] == [pair["js"], pair["kl"]]


def test_curves_have_a_line_for_each_arm(evidence: Evidence) -> None:
    from wardround.report.sections import images

    figure = images._panels(evidence, images.LOSSES)
    assert figure is not None
    assert [axes.get_title() for axes in figure.axes] == ["training loss", "validation loss", "test loss"]
    for axes, column in zip(figure.axes, images.LOSSES, strict=True):
        drawn = [np.asarray(line.get_ydata()).tolist() for line in axes.lines]
        assert drawn == [evidence.results["curves"][arm][column] for arm in ARMS]


def test_the_curve_of_a_finding_is_that_of_the_results(evidence: Evidence) -> None:
    from wardround.report.sections.probabilities import ranking

    figure = ranking.roc(evidence)
    assert figure is not None
    assert [axes.get_title() for axes in figure.axes] == ["Edema", "Mass left", "Few", "Rare"]
    first = figure.axes[0].lines[0]
    roc = evidence.arms["fedavg"]["findings"]["Edema"]["roc"]
    assert np.asarray(first.get_xydata()).T.tolist() == [roc["fpr"], roc["tpr"]]
    assert [len(axes.lines) for axes in figure.axes] == [4, 4, 0, 0]  # an arm of each family, and a coin


def test_the_terminal_speaks_of_it_too(run: wardround.StudyRun, capsys: pytest.CaptureFixture[str]) -> None:
    from wardround.cli.studies.render_run import show_run

    show_run(run, None)
    out = capsys.readouterr().out
    assert "AUC at each site" in out
    assert "Every figure is the mean over 4 findings." in out
    assert "until 95 % of the final AUC" in out
    assert "because no test row has it: Rare." in out
    assert "- Synthetic data: made by a program." in out
    assert "ccuracy" not in out


def test_a_threshold_that_the_study_gives_is_not_said_to_be_chosen(run: wardround.StudyRun) -> None:
    evidence = read_evidence(RunFolder(run.folder))
    study = {**evidence.study, "evaluation": {**evidence.study["evaluation"], "threshold": 0.3}}
    assert "Every finding is called from a score of 0.3 on, as the study says." in finding_sentences(
        replace(evidence, study=study)
    )


@pytest.mark.slow
def test_without_validation_rows_and_with_two_seeds(tmp_path: Path) -> None:
    evaluation = {"seeds": {"count": 2}, "reference": "fedavg"}
    variants = [{"name": "fixed", "text": "one split", "evaluation.vary": ["batches"], "arms": ["fedavg"]}]
    study = findings_study(name="two", evaluation=evaluation, variants=variants)
    study_run = wardround.run_study(study, tmp_path, sources=SOURCES)
    wardround.build_report(study_run.folder)
    page = page_of(study_run.folder)
    assert "Thresholds were not chosen, for want of validation rows: every finding is called from a score of 0.5." in (
        page.text
    )
    assert "AUC in the variants of the study" in page.text
    assert (
        "Means over 2 seeds on all sites' test rows; the 95 % CI is that of the AUC within sites, by itself."
        in page.text
    )
    assert "figure-samples" not in page.ids  # the study does not ask for any


@pytest.mark.slow
@pytest.mark.rendered(False)
def test_runs_with_findings_are_paired_by_their_auc(run: wardround.StudyRun, tmp_path: Path) -> None:
    longer = wardround.run_study(findings_study(), tmp_path, sources=SOURCES, changes={"training.rounds": 5})
    comparison = wardround.compare_runs([run.folder, longer.folder])
    paired = {row[0]: row for row in comparison.tables[-1].rows}
    assert list(paired) == ARMS
    for arm, row in paired.items():
        means = [study_run.results["arms"][arm]["within_sites"]["auc"]["mean"] for study_run in (run, longer)]
        assert row[2] == pytest.approx(means[1] - means[0])
    assert comparison.tables[-1].note.startswith("AUC within sites less that in A")


@pytest.mark.slow
@pytest.mark.rendered(False)
def test_an_arm_that_diverged_has_no_say(tmp_path: Path) -> None:
    arms: list[dict[str, Any]] = [
        {"algorithm": "fedavg"},
        {"name": "wild", "algorithm": "fedavg", "training.lr": 1e30},
    ]
    study_run = wardround.run_study(findings_study(name="wild", arms=arms), tmp_path, sources=SOURCES)
    wardround.build_report(study_run.folder)
    page = page_of(study_run.folder)
    assert "wild: training diverged" in page.text
    assert "gives the best F1 on validation rows" in page.text
    assert not re.findall(r"\b(nan|None|NaN)\b", page.text)
