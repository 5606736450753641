"""What a finished run is to Python: one screen, tables, figures, and a run that stands for its folder."""

import subprocess
import sys
from collections.abc import Mapping
from copy import deepcopy
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from matplotlib.figure import Figure

import wardround
from tests.hospital_frames import SMALL, hospitals, study_of
from wardround.core.errors import RunError, StudyError
from wardround.core.notices import Notice

QUESTION = "Does <training> together help & whom?"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> wardround.StudyRun:
    study = {**study_of(hospitals()), "question": QUESTION}
    return wardround.run_study(study, tmp_path_factory.mktemp("runs"), changes=SMALL, workers=1)


def of_size(run: wardround.StudyRun, arms: int, notices: int, sentences: int) -> wardround.StudyRun:
    """The same run with more of everything."""
    results: dict[str, Any] = deepcopy(dict(run.results))
    arm = results["arms"]["fedavg"]
    results["arms"] = {f"a way of training with a long name, number {number}": arm for number in range(arms)}
    notice = Notice("no-patient-column", "info", "north").to_json() | {"text": "A long remark. " * 20}
    results["notices"] = [notice] * notices
    results["answer"] = [{"about": "alone", "text": "A long sentence. " * 20, "numbers": []}] * sentences
    results["study"]["question"] = "Why? " * 400
    return wardround.StudyRun(run.folder, results, fresh=False)


class Balanced(HTMLParser):
    """Every element is closed, and nothing is executed or fetched."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        assert not any(name.startswith("on") or name in ("src", "href") for name, _ in attrs)
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_as_text_it_is_one_screen(run: wardround.StudyRun) -> None:
    text = repr(run)
    assert QUESTION in text
    told = run.results["decision"]["sentences"]
    for first in (told["answer"], f"What to do next: {told['next']}"):  # page one's, before the figures
        assert " ".join(text.split()).index(first) < " ".join(text.split()).index(run.results["answer"][0]["text"])
    for sentence in run.results["answer"]:
        assert " ".join(sentence["text"].split()) in " ".join(text.split())
    assert f"{run.results['arms']['fedavg']['metrics']['auc']['mean']:.3f}" in text
    assert str(run.folder) in text
    for arms, notices, sentences in ((2, 0, 1), (30, 40, 20), (200, 500, 100)):
        lines = repr(of_size(run, arms, notices, sentences)).splitlines()
        assert len(lines) < 60
        assert max(map(len, lines)) <= 130 + len(str(run.folder))


def test_the_first_figures_are_those_that_the_answer_compares(run: wardround.StudyRun) -> None:
    """Of all rows together another arm may be the best: those are scores of different models."""
    assert run.results["primary_within_sites"]
    table, decision = run.table(), run.results["decision"]
    gain = table["auc_within_sites"][decision["arm"]] - table["auc_within_sites"][decision["alone"]]
    assert table.columns[0] == "auc_within_sites"
    assert gain == pytest.approx(decision["mean"]["difference"])
    (heads,) = [line for line in repr(run).splitlines() if line.startswith("arm ")]
    assert "auc in sites" in heads
    (first,) = [line for line in repr(run).splitlines() if line.startswith("fedavg ")]
    assert first.split()[1] == f"{table['auc_within_sites']['fedavg']:.3f}"


def test_what_does_not_fit_is_said(run: wardround.StudyRun) -> None:
    text = repr(of_size(run, 30, 40, 2))
    assert "and 14 more: run.table()" in text
    assert "and 32 more: run.notices" in text


def test_as_html_it_says_the_same_and_executes_nothing(run: wardround.StudyRun) -> None:
    page = Balanced(run._repr_html_())
    assert not page.open
    assert not page.seen & {"script", "img", "iframe", "link", "object"}
    told = " ".join(page.texts)
    assert QUESTION in told
    for sentence in run.results["answer"]:
        assert sentence["text"] in told
    for arm in run.results["arms"].values():
        assert f"{arm['metrics']['auc']['mean']:.3f}" in told


def test_names_from_files_are_escaped(run: wardround.StudyRun) -> None:
    hostile = '<script>alert("x")</script>'
    results = deepcopy(dict(run.results))
    results["arms"] = {hostile: results["arms"]["fedavg"]}
    results["answer"][0]["text"] = results["study"]["question"] = results["study"]["name"] = hostile
    results["notices"] = [Notice("no-patient-column", "info", "north").to_json() | {"text": hostile}]
    shown = wardround.StudyRun(run.folder / hostile, results, fresh=True)._repr_html_()
    assert "<script" not in shown
    assert "script" not in Balanced(shown).seen
    assert hostile in " ".join(Balanced(shown).texts)


def test_its_tables_are_those_of_its_folder(run: wardround.StudyRun) -> None:
    pd.testing.assert_frame_equal(run.predictions(), pd.read_parquet(run.folder / "predictions.parquet"))
    assert set(run.records()["arm"]) == set(run.table().index) == {"local", "fedavg"}
    assert len(run.records()) == 2 * 2 * 2  # arms, seeds, rounds
    assert len(run.notices) == len(run.results["notices"])
    assert [notice.severity for notice in run.notices] == sorted(
        (notice.severity for notice in run.notices), key=lambda severity: severity == "info"
    )


def test_a_figure_is_that_of_the_report(run: wardround.StudyRun) -> None:
    figure = run.plot("benefit")
    assert isinstance(figure, Figure)
    labels = {label.get_text() for axes in figure.axes for label in axes.get_yticklabels()}
    assert {"north", "south"} <= labels
    with pytest.raises(RunError, match="no figure of this run has this name") as refused:
        run.plot("benefits")
    assert "'benefit'" in refused.value.remedy


def test_a_run_stands_for_its_folder(run: wardround.StudyRun, tmp_path: Path) -> None:
    """What one public function returns, the others take."""
    report = run.report()
    assert report == wardround.build_report(run) == run.folder / "report.html"
    bundle = wardround.make_bundle(run, arm="local", site="south", out=tmp_path / "bundle")
    loaded = wardround.load_bundle(bundle)
    rows = hospitals()["south"]
    answers = [wardround.predict_table(given, rows) for given in (bundle, str(bundle), loaded)]
    pd.testing.assert_frame_equal(answers[0], answers[1])
    pd.testing.assert_frame_equal(answers[0], answers[2])
    assert wardround.load_bundle(loaded).id == loaded.id
    made = wardround.make_bundles(run, sites=["north"], out=tmp_path / "all")
    assert set(made.folders) == {("local", "north"), ("fedavg", "north")}
    assert wardround.load_study(run)[0].name == "frames"
    assert [record.arm for record in wardround.read_records(run)][:1] == ["local"]
    again = wardround.resume_study(run)
    assert (again.folder, again.fresh) == (run.folder, False)
    other = wardround.run_study(study_of(hospitals(("alive", "dead")), positive="dead"), tmp_path, changes=SMALL)
    assert wardround.compare_runs([run, other]).tables
    assert wardround.attack_run(run, only=["membership"], quick=True, shadows=0)["passed"] in (True, None)


def test_the_package_lists_its_public_names() -> None:
    assert dir(wardround) == sorted(wardround.__all__)


def test_compare_asks_whether_training_together_is_better(tmp_path: Path) -> None:
    run = wardround.compare(hospitals(), "died", patient="patient", out=tmp_path, changes=SMALL, workers=1)
    assert list(run.results["arms"]) == ["local", "fedavg", "fedprox"]
    assert run.results["study"]["question"] == "Does training together predict 'died' better than each hospital alone?"
    assert {sentence["about"] for sentence in run.results["answer"]} == {"reference", "alone"}
    assert {test["reference"] for test in run.results["tests"]} == {"local"}
    assert {entry["site"] for entry in run.results["benefit"]} == {"north", "south"}


def test_compare_predicts_numbers_and_reads_files_too(tmp_path: Path) -> None:
    tables: Mapping[str, Any] = hospitals()
    tables["south"].to_csv(tmp_path / "south.csv", index=False)
    mixed = {"north": tables["north"], "south": tmp_path / "south.csv"}
    run = wardround.compare(mixed, "age", task="regression", out=tmp_path / "runs", changes=SMALL, workers=1)
    assert run.results["primary_metric"] == "mae"
    with pytest.raises(StudyError, match="sites"):
        wardround.compare([tables["north"]], "died")  # type: ignore[arg-type]


def test_a_table_in_memory_needs_no_package_but_pandas() -> None:
    """Others speak Arrow's interface; scikit-learn and IPython are looked for when they are used."""
    code = (
        "import sys, wardround; wardround.run_study; wardround.compare; "
        "print([name for name in ('polars', 'IPython', 'sklearn', 'matplotlib') if name in sys.modules])"
    )
    told = subprocess.run([sys.executable, "-c", code], check=True, timeout=120, capture_output=True, text=True)
    assert told.stdout.strip() == "[]"
