"""The report: made from the run folder alone, complete, and honest about what cannot be computed."""

import base64
import csv
import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import wardround
from tests.report.special_sections import SPECIAL
from wardround.core.errors import RunError
from wardround.report import build
from wardround.report.render.figures import with_all_arms
from wardround.report.sections import SECTIONS as ALL_SECTIONS
from wardround.report.sections import load_section
from wardround.report.sections.design.settings import _settings

HEART: dict[str, Any] = {
    "name": "reported",
    "question": "Does <it> help & whom?",
    "data": {"source": "heart"},
    "training": {"rounds": 3, "local_epochs": 2},
    "evaluation": {"seeds": {"first": 1, "count": 3}, "reference": "fedavg", "vary": ["split", "batches"]},
    "arms": [
        {"algorithm": "fedavg"},
        {"algorithm": "fedprox", "mu": [0.0, 0.1, 1.0]},
        {"algorithm": "local"},
        {"algorithm": "pooled"},
        {"name": "some", "algorithm": "fedavg", "train_at": [["cleveland"], ["va"], ["cleveland", "hungarian", "va"]]},
    ],
    "variants": [{"name": "fixed", "text": "one split", "evaluation.vary": ["batches"], "arms": ["fedavg", "local"]}],
    "selection": {"arms": ["fedprox"], "on": "site", "site": "va"},
    "claims": [{"text": "It is 99 %", "source": "A paper", "published": 0.99, "tolerance": 0.001, "arms": ["fedavg"]}],
}
SECTIONS = {
    *("front", "hospital-pages", "answer", "design", "sites", "results", "hospitals", "claims", "statistics"),
    *("privacy", "cost", "limits", "methods", "checklist", "study"),
}
# images, findings, numbers, grids, privacy, regions and uncertainty have figures that these have not, and AUC in place
# of accuracy
OF_IMAGES = {
    *("attack_canary", "attack_pictures", "attack_inversion", "attack_membership"),
    *("reliability", "coverage", "referral", "doubt", "strange-images"),
    *("interval-coverage", "number-referral", "predicted-observed", "residuals", "observed-expected"),  # of numbers
    *("target", "test-mae"),
    *(figure for name in ALL_SECTIONS if name in SPECIAL - {"claims"} for figure in load_section(name).figures),
    *("regions", "regional-models"),
    *("epsilon-cost", "epsilon-spent", "gradient-lengths"),
    *("roc-of-all-arms", "precision-recall-of-all-arms"),
    *("predicted-observed-of-all-arms", "residuals-of-all-arms", "observed-expected-of-all-arms"),
    *("samples", "prevalence", "auc", "auc-by-finding", "roc", "precision-recall", "findings-at-sites", "wrong-calls"),
    *("grid", "grid-lines", "grid-sides", "curves", "losses", "movement"),
}


FIGURES = {name for section in ALL_SECTIONS for name in with_all_arms(load_section(section).figures)}


class Page(HTMLParser):
    """Ids, links and text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.outside: list[str] = []
        self.text = ""
        self.scripts: list[str] = []
        self.in_script = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.ids.append(value)
            if name in ("src", "href", "xlink:href") and value and not value.startswith(("#", "data:")):
                self.outside.append(value)
        assert tag not in ("iframe", "object", "embed")
        if tag == "script":  # the page's own, which its policy allows by hash
            assert not attrs
            self.scripts.append("")
        self.in_script = tag == "script"

    def handle_endtag(self, tag: str) -> None:
        self.in_script = False

    def handle_data(self, data: str) -> None:
        if self.in_script:
            self.scripts[-1] += data
        else:
            self.text += data


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> wardround.StudyRun:
    study_run = wardround.run_study(HEART, tmp_path_factory.mktemp("runs"))
    wardround.build_report(study_run.folder)
    return study_run


def page_of(folder: Path) -> Page:
    return Page((folder / "report.html").read_text(encoding="utf-8"))


@pytest.mark.rendered
def test_every_section_figure_and_table_is_there_once_and_nothing_comes_from_outside(run: wardround.StudyRun) -> None:
    page = page_of(run.folder)
    assert set(page.ids) >= SECTIONS
    assert len(page.ids) == len(set(page.ids)), "an id occurs twice"
    assert not page.outside
    (script,) = page.scripts
    own = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; script-src 'sha256-{own}'; style-src 'unsafe-inline'; img-src data:;"
    assert policy in (run.folder / "report.html").read_text(encoding="utf-8")
    drawn = {path.stem for path in (run.folder / "figures").glob("*.svg")}
    assert drawn == {path.stem for path in (run.folder / "figures").glob("*.png")} == FIGURES - OF_IMAGES
    assert {f"figure-{name}" for name in drawn} <= set(page.ids)
    tables = {path.stem for path in (run.folder / "tables").glob("*.csv")}
    assert tables == {path.stem for path in (run.folder / "tables").glob("*.tex")}
    assert {f"table-{name}" for name in tables - {"claims"}} <= set(page.ids)
    assert tables >= {"arms", "tests", "benefit", "best-single", "external", "number-of-sites", "selection", "variants"}


@pytest.mark.rendered
def test_text_from_the_study_is_escaped(run: wardround.StudyRun) -> None:
    html = (run.folder / "report.html").read_text(encoding="utf-8")
    assert "Does &lt;it&gt; help &amp; whom?" in html
    assert "<it>" not in html


@pytest.mark.rendered
@pytest.mark.slow
def test_it_is_made_again_from_the_folder_alone(run: wardround.StudyRun, tmp_path: Path) -> None:
    assert_made_again(run.folder, tmp_path / "elsewhere")


def assert_made_again(folder: Path, moved: Path) -> None:
    shutil.copytree(folder, moved)
    for name in ("figures", "tables", "models"):
        shutil.rmtree(moved / name)
    (moved / "report.html").unlink()
    wardround.build_report(moved)
    assert (moved / "report.html").read_bytes() == (folder / "report.html").read_bytes()


def test_a_report_needs_nobodys_own_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A board's secretary has the folder, not the hospital's Python code."""
    monkeypatch.setattr(build, "draw_all", lambda *_: {})  # which takes most of the time
    from wardround.models import from_module

    def own() -> Any:
        def build(shape: Any) -> Any:
            return from_module(lambda: torch.nn.Linear(shape.inputs[0], shape.outputs), shape)

        return build

    study = {**small("own"), "model": {"kind": "ours"}}
    study_run = wardround.run_study(study, tmp_path, models={"ours": own})
    wardround.build_report(study_run.folder)
    assert "ours" in page_of(study_run.folder).text


@pytest.mark.rendered
def test_tables_as_csv_have_the_full_numbers(run: wardround.StudyRun) -> None:
    with (run.folder / "tables" / "arms.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        figures = run.results["arms"][row["arm"]]["metrics"]
        within = run.results["arms"][row["arm"]]["within_sites"]["auc"]
        assert float(row["AUC within sites"]) == within["mean"]
        assert [float(row["95 % CI from"]), float(row["95 % CI to"])] == within["interval"]
        assert float(row["AUC over all rows"]) == figures["auc"]["mean"]
        assert float(row["accuracy"]) == figures["accuracy"]["mean"]
    tex = (run.folder / "tables" / "tests.tex").read_text()
    assert tex.count(r"\\") == 1 + len([t for t in run.results["tests"] if t["metric"] == "auc"])
    assert not re.search(r"(?<!\\)[%&_#]", tex.split("\n", 1)[1].replace(" & ", " ")), "a mark is not escaped"


@pytest.mark.rendered
def test_no_value_of_a_single_patient_is_in_the_page(run: wardround.StudyRun) -> None:
    """Outermost values belong to single patients: bins end at round numbers, and small cells are withheld."""
    sizes = {
        site: sum(site_counts["classes"].values()) for site, site_counts in run.results["sites"][0]["sites"].items()
    }
    for column in run.results["columns"]["distributions"].values():
        for site, part in column["sites"].items():
            if part["missing"] is None:
                assert set(part["shares"]) == {None}
                continue
            recorded = sizes[site] * (1 - part["missing"])
            assert all(round(share * recorded) >= 5 for share in part["shares"] if share)
            assert part["shares"].count(None) != 1, "one hidden cell is what the others leave"


@pytest.mark.rendered
@pytest.mark.parametrize("name", ["predictions.parquet", "results.json", "study.toml", "environment.json"])
def test_a_folder_without_a_part_is_refused_by_name(run: wardround.StudyRun, tmp_path: Path, name: str) -> None:
    shutil.copytree(run.folder, tmp_path / "broken")
    (tmp_path / "broken" / name).unlink()
    with pytest.raises(RunError, match=re.escape(name)):
        wardround.build_report(tmp_path / "broken")


@pytest.mark.rendered
def test_files_that_are_not_those_of_the_run_are_refused(run: wardround.StudyRun, tmp_path: Path) -> None:
    whole = pd.read_parquet(run.folder / "predictions.parquet")
    cases: dict[str, Any] = {
        "junk": b"junk",
        "one seed less": whole[whole["seed"] != 2],
        "other scores": whole.assign(score=0.7),
    }
    for name, content in cases.items():
        shutil.copytree(run.folder, tmp_path / name)
        target = tmp_path / name / "predictions.parquet"
        if isinstance(content, bytes):
            target.write_bytes(content)
        else:
            content.to_parquet(target, index=False)
        with pytest.raises(RunError, match="predictions"):
            wardround.build_report(tmp_path / name)
    shutil.copytree(run.folder, tmp_path / "empty")
    (tmp_path / "empty" / "environment.json").write_text("{}")
    with pytest.raises(RunError, match=r"environment\.json: lacks"):
        wardround.build_report(tmp_path / "empty")


@pytest.mark.rendered
def test_a_folder_that_is_none_and_a_damaged_file_are_refused(run: wardround.StudyRun, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="no such folder"):
        wardround.build_report(tmp_path / "nowhere")
    shutil.copytree(run.folder, tmp_path / "broken")
    (tmp_path / "broken" / "environment.json").write_text('{"time": ')
    with pytest.raises(RunError, match=r"environment\.json: is damaged"):
        wardround.build_report(tmp_path / "broken")
    content = json.loads((run.folder / "results.json").read_text())
    (tmp_path / "broken" / "results.json").write_text(json.dumps({**content, "schema_version": 99}))
    with pytest.raises(RunError, match="another version"):
        wardround.build_report(tmp_path / "broken")
    (tmp_path / "broken" / "results.json").write_text("{}")
    with pytest.raises(RunError, match="another version"):
        wardround.compare_runs([run.folder, tmp_path / "broken"])


def test_names_in_latex_are_escaped_once() -> None:
    from wardround.report.render.table import TEX

    assert r"a\b_{c}^2 50 % <x>".translate(TEX) == r"a\textbackslash{}b\_\{c\}\textasciicircum{}2 50 \% $<$x$>$"


def test_where_a_hospital_keeps_its_files_is_not_in_the_page(tmp_path: Path) -> None:
    folder = tmp_path / "secret-place"
    folder.mkdir()
    for number, name in enumerate(("north", "south")):
        rows = "".join(f"{20 + (7 * i + number) % 60},{(i + number) % 2}\n" for i in range(40))
        (folder / f"{name}.csv").write_text("age,died\n" + rows)
    study = {
        "name": "paths",
        "data": {"source": "csv", "files": {n: str(folder / f"{n}.csv") for n in ("north", "south")}, "target": "died"},
        "training": {"rounds": 1},
        "evaluation": {"seeds": {"count": 1}, "accept": ["shared-rows", "leak"]},
        "arms": [{"algorithm": "fedavg"}],
    }
    study_run = wardround.run_study(study, tmp_path / "runs")
    wardround.build_report(study_run.folder)
    html = (study_run.folder / "report.html").read_text()
    assert "secret-place" not in html
    assert "north.csv" in html


@pytest.mark.slow
def test_arms_that_all_leave_a_site_out_have_a_report(tmp_path: Path) -> None:
    study = small(
        "partial",
        arms=[{"algorithm": "fedavg", "train_at": [["va"], ["cleveland"]]}],
        evaluation={"seeds": {"count": 1}},
    )
    study_run = wardround.run_study(study, tmp_path)
    wardround.build_report(study_run.folder)
    assert "figure-elsewhere" in page_of(study_run.folder).ids


def test_a_single_small_cell_cannot_be_worked_out_from_the_others() -> None:
    from wardround.data.prepare import encode
    from wardround.data.profile import _distribution
    from wardround.data.records import Column, Records

    values = np.repeat([0.0, 1.0, 2.0], [20, 12, 3])
    hospital = np.full(35, "a", dtype=object)
    table = pd.DataFrame({"x": values})
    encoded = encode(Records(table, np.zeros(35, dtype=np.int64), ("no", "yes"), hospital, (Column("x"),)))
    distribution = _distribution(values, encoded, 0, {"a": np.arange(35)})
    assert distribution["all"]["shares"] == [20 / 35, None, None]


def small(name: str, **changed: Any) -> dict[str, Any]:
    study: dict[str, Any] = {
        "name": name,
        "data": {"source": "heart", "hospitals": ["cleveland", "va"]},
        "training": {"rounds": 2},
        "evaluation": {"seeds": {"count": 2}, "reference": "fedavg"},
        "arms": [{"algorithm": "fedavg"}, {"algorithm": "local"}],
    }
    return study | changed


def test_a_small_one_is_made_again_from_the_folder_alone(tmp_path: Path) -> None:
    study_run = wardround.run_study(small("again"), tmp_path)
    wardround.build_report(study_run.folder)
    assert_made_again(study_run.folder, tmp_path / "elsewhere")


def test_one_seed_gives_a_report_that_says_so(tmp_path: Path) -> None:
    study_run = wardround.run_study(
        small("one-seed", evaluation={"seeds": {"count": 1}, "reference": "fedavg"}), tmp_path
    )
    wardround.build_report(study_run.folder)
    text = page_of(study_run.folder).text
    assert "for the models of this one seed" in text
    assert "One seed: intervals speak of other patients, not of another training" in text
    assert "NaN" not in text
    assert "nan" not in re.findall(r"\bnan\b", text)


def test_one_site_gives_a_report_that_says_so(tmp_path: Path) -> None:
    study_run = wardround.run_study(small("one-site", data={"source": "heart", "hospitals": ["cleveland"]}), tmp_path)
    wardround.build_report(study_run.folder)
    assert "One site: there is nothing to federate" in page_of(study_run.folder).text


def test_one_class_at_a_site_gives_a_report_that_says_what_cannot_be_computed(tmp_path: Path) -> None:
    from wardround.data.records import Column, Records, Source

    def lopsided() -> Source:
        rng = np.random.default_rng(0)
        target = np.concatenate([np.arange(80) % 2, np.zeros(40, dtype=int)])
        table = pd.DataFrame({"x": rng.normal(size=120) + target})
        hospital = np.repeat(np.array(["mixed", "healthy"], dtype=object), [80, 40])
        return Source(lambda: Records(table, target, ("no", "yes"), hospital, (Column("x"),)))

    study_run = wardround.run_study(small("lopsided", data={"source": "ours"}), tmp_path, sources={"ours": lopsided})
    wardround.build_report(study_run.folder)
    text = page_of(study_run.folder).text
    assert "Cannot be computed, for want of test rows of one class: healthy (auc) and healthy (sensitivity)" in text


def test_no_reference_several_classes_and_an_arm_that_diverged(tmp_path: Path) -> None:
    study: Mapping[str, Any] = {
        "name": "strange",
        "data": {"source": "synthetic", "count": 4, "largest": 60, "features": 5, "classes": 3, "scale": "none"},
        "model": {"kind": "mlp", "hidden": [8]},
        "training": {"rounds": 9, "lr": 0.01},
        "evaluation": {"seeds": {"count": 1}, "accept": ["one-class"]},
        "arms": [{"algorithm": "fedavg"}, {"name": "wild", "algorithm": "fedavg", "training.lr": 1e30}],
    }
    study_run = wardround.run_study(study, tmp_path)
    wardround.build_report(study_run.folder)
    page = page_of(study_run.folder)
    assert "No arm was compared with a reference" in page.text
    assert "wild: training diverged" in page.text
    assert "table-calibration" not in page.ids
    assert "synthetic data" in page.text


@pytest.mark.slow
def test_images_have_a_report_too(tmp_path: Path) -> None:
    from wardround.data.records import Records, Source

    def pictures() -> Source:
        rng = np.random.default_rng(0)
        target = np.arange(80) % 2
        images = (rng.integers(0, 200, size=(80, 1, 8, 8)) + 50 * target[:, None, None, None]).astype(np.uint8)
        hospital = np.repeat(np.array(["a", "b"], dtype=object), 40)
        return Source(lambda: Records(images, target, ("no", "yes"), hospital))

    study = small("pictures", data={"source": "ours"}, model={"kind": "mlp", "hidden": [4]})
    study_run = wardround.run_study(study, tmp_path, sources={"ours": pictures})
    wardround.build_report(study_run.folder)
    assert "figure-correlation" not in page_of(study_run.folder).ids


def test_settings_are_told_in_words_and_not_as_python_writes_them() -> None:
    assert (
        _settings("adapter", {"latent": 32, "adapter_hidden": [], "hidden": [64]}) == "adapter (latent 32, hidden 64)"
    )
    text = _settings("heart", {"missing": "median", "not_recorded": {"va": ["slope", "ca"], "hungarian": ["ca"]}})
    assert text == "heart (missing median, not_recorded va: slope / ca; hungarian: ca)"
