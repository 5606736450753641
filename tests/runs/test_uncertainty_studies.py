"""[uncertainty] in whole studies: what is refused, what a run keeps and tells, and what the report says of it."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import wardround
from tests.cli.test_commands import wardround as command
from tests.real_data import shared_data
from tests.report.image_studies import SOURCES, findings_study
from wardround.core.errors import StudyError
from wardround.deployment import refuse_undeployable
from wardround.evaluation.thresholds import class_threshold
from wardround.report import build, read_evidence, sections_of
from wardround.report.sections.appendix.citations import citations
from wardround.report.sections.uncertainty import (
    referral_table,
    uncertainty_at_sites_table,
    uncertainty_sentences,
    uncertainty_table,
    unfamiliar_image_table,
    unfamiliar_images,
)
from wardround.runs.catalog import load_study
from wardround.runs.execute import StudyRun
from wardround.runs.folder import RunFolder
from wardround.runs.plan import load_plan, rehearse

HEART: dict[str, Any] = {
    "name": "sure",
    "data": {"source": "heart"},
    "model": {"kind": "mlp", "hidden": [8], "dropout": 0.2},
    "training": {"rounds": 3, "lr": 0.1},
    "uncertainty": {"method": "dropout", "passes": 6},
    "evaluation": {"seeds": {"count": 1}, "validation_share": 0.2, "every": 0, "reference": "fedavg"},
    "arms": [
        {"algorithm": "fedavg"},
        {"name": "laplace", "algorithm": "fedavg", "uncertainty.method": "laplace"},
        {"algorithm": "local", "uncertainty.method": "none"},
    ],
}
DRAWN = ("reliability", "coverage", "referral", "doubt", "strange-images")
PARTIES = {"clinic": ["age", "sex", "cp"], "cardiology": ["thalach", "oldpeak"]}


def changed(**tables: Any) -> dict[str, Any]:
    """HEART with keys of tables, such as `evaluation__seeds`, or whole tables changed, and no reference."""
    raw_study = {**HEART, "evaluation": {"seeds": {"count": 1}, "validation_share": 0.2, "every": 0}}
    for path, value in tables.items():
        section, _, key = path.partition("__")
        raw_study[section] = {**raw_study.get(section, {}), key: value} if key else value
    return raw_study


def planned(study: dict[str, Any]) -> None:
    rehearse(load_plan(*load_study(study)))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> StudyRun:
    return wardround.run_study(HEART, tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def chests(tmp_path_factory: pytest.TempPathFactory) -> StudyRun:
    study = findings_study(
        model={"kind": "mlp", "hidden": [8], "dropout": 0.2},
        uncertainty={"method": "dropout", "passes": 5},
        evaluation={"seeds": {"count": 1}, "split": "given", "reference": "fedavg"},
        arms=[{"algorithm": "fedavg"}, {"algorithm": "local"}],
    )
    return wardround.run_study(study, tmp_path_factory.mktemp("runs"), sources=SOURCES)


@pytest.mark.parametrize(
    ("change", "problem", "remedy"),
    [
        ({"evaluation__validation_share": 0.0}, "no validation rows", "validation_share"),
        ({"uncertainty__method": "ensemble"}, "there is one", "count = 3"),
        (
            {"uncertainty__method": "ensemble", "evaluation__seeds": {"first": 1, "count": 3}},
            "vary partition and split",
            'vary = ["batches", "init"]',
        ),
        (
            {
                "uncertainty__method": "ensemble",
                "evaluation__seeds": {"first": 1, "count": 3},
                "evaluation__vary": ["split", "init"],
            },
            "vary split",
            'vary = ["batches", "init"]',
        ),
    ],
)
def test_what_the_file_alone_shows_is_refused(change: dict[str, Any], problem: str, remedy: str) -> None:
    with pytest.raises(StudyError, match=problem) as refused:
        load_study(changed(**change))
    assert remedy in refused.value.remedy


def test_methods_that_do_not_fit_the_model_are_refused() -> None:
    with pytest.raises(StudyError, match="has no dropout") as refused:
        planned(changed(model={"kind": "mlp", "hidden": [8]}))
    assert refused.value.where == "arms: fedavg: uncertainty: method"
    assert "`dropout` above 0" in refused.value.remedy
    private = {"example": {"epsilon": 8.0, "delta": 1e-5, "clip": 1.0}}
    data = {"source": "heart", "scale": "ranges", "missing": "range", "public": True}
    with pytest.raises(StudyError, match="without noise"):
        planned(changed(uncertainty={"method": "laplace"}, data=data, privacy=private))
    planned(changed(model={"kind": "logistic"}, uncertainty={"method": "laplace"}, arms=[{"algorithm": "fedavg"}]))


def test_a_party_that_is_left_out_at_times_is_no_dropout() -> None:
    study = changed(
        model={"kind": "joined", "embedding": 4, "hidden": 8, "absent": 0.2},
        topology={"kind": "vertical", "parties": PARTIES},
        arms=[{"algorithm": "split"}],
    )
    with pytest.raises(StudyError, match="joined has no dropout"):
        planned(study)


def test_a_given_split_without_validation_rows_is_refused_before_training() -> None:
    """That it has none is known with the data. With `validation_share` some would be drawn."""
    records = SOURCES["findings"]().load()
    side = np.where(records.split == "validation", "train", records.split)
    bare = type(records)(**{**vars(records), "split": side})
    study = findings_study(uncertainty={"method": "none"}, arms=[{"algorithm": "fedavg"}])
    source = type(SOURCES["findings"]())(lambda: bare)
    with pytest.raises(StudyError, match="no site has validation rows"):
        rehearse(load_plan(*load_study(study, sources={"findings": lambda: source})))


def test_across_hospitals_what_no_bundle_could_say_is_refused() -> None:
    seeds = {"evaluation__seeds": {"first": 1, "count": 2}, "evaluation__vary": ["batches", "init"]}
    study, _ = load_study(changed(uncertainty={"method": "ensemble"}, arms=[{"algorithm": "fedavg"}], **seeds))
    with pytest.raises(StudyError, match="one model") as refused:
        refuse_undeployable(study, ["cleveland", "hungarian"])
    assert "dropout" in refused.value.remedy
    vertical = {"kind": "vertical", "parties": PARTIES}
    study, _ = load_study(
        changed(model={"kind": "joined", "dropout": 0.2}, topology=vertical, arms=[{"algorithm": "split"}])
    )
    with pytest.raises(StudyError, match="none of them has a bundle"):
        refuse_undeployable(study, list(PARTIES))
    study, _ = load_study(changed(arms=[{"algorithm": "fedavg"}]))
    refuse_undeployable(study, ["cleveland", "hungarian"])


def test_scores_in_the_main_tables_stay_the_plain_ones(run: StudyRun, tmp_path: Path) -> None:
    without = {name: value for name, value in HEART.items() if name != "uncertainty"}
    without["arms"] = [{"algorithm": "fedavg"}, {"name": "laplace", "algorithm": "fedavg"}, {"algorithm": "local"}]
    plain = wardround.run_study(without, tmp_path)
    assert plain.results["arms"]["fedavg"]["uncertainty"] is None
    for arm, arm_results in plain.results["arms"].items():
        assert arm_results["metrics"] == run.results["arms"][arm]["metrics"]
    assert not (plain.folder / "uncertainty.parquet").exists()
    assert "uncertainty" not in sections_of(read_evidence(RunFolder(plain.folder)))


def test_a_run_keeps_every_validation_and_test_row(run: StudyRun) -> None:
    rows = pd.read_parquet(run.folder / "uncertainty.parquet")
    plain = pd.read_parquet(run.folder / "predictions.parquet")
    for arm in ("fedavg", "laplace", "local"):
        mine = rows[rows["arm"] == arm]
        test = mine[mine["subset"] == "test"]
        assert test["row"].tolist() == plain.loc[plain["arm"] == arm, "row"].tolist()
        assert set(mine["subset"]) == {"validation", "test"}
    none = rows[(rows["arm"] == "local") & (rows["subset"] == "test")]
    assert none["score"].to_numpy() == pytest.approx(plain.loc[plain["arm"] == "local", "score"].to_numpy())
    assert none["epistemic"].isna().all()
    sampled_rows = rows[rows["arm"] != "local"]
    assert sampled_rows["total"].to_numpy() == pytest.approx(
        (sampled_rows["aleatoric"] + sampled_rows["epistemic"]).to_numpy()
    )
    assert (sampled_rows["epistemic"] > 0).all()


def test_results_tell_of_every_site(run: StudyRun) -> None:
    uncertainty = run.results["arms"]["fedavg"]["uncertainty"]
    assert (uncertainty["method"], uncertainty["passes"], uncertainty["seeds"], uncertainty["shifted"]) == (
        "dropout",
        6,
        1,
        None,
    )
    sites = list(run.results["arms"]["fedavg"]["sites"])
    for part in (uncertainty["calibration"], uncertainty["sets"], uncertainty["referral"]["at"]):
        assert list(part["sites"]) == sites
    difference = uncertainty["referral"]["at"]["figures"]["accuracy"]["difference"]
    assert difference["interval"][0] <= difference["difference"] <= difference["interval"][1]
    assert run.results["arms"]["local"]["uncertainty"]["passes"] == 1
    local = run.results["arms"]["local"]["uncertainty"]["referral"]["at"]["figures"]
    assert local["accuracy"]["all"]["mean"] == run.results["arms"]["local"]["metrics"]["accuracy"]["mean"]
    assert local["auc"]["all"]["mean"] == pytest.approx(run.results["arms"]["local"]["within_sites"]["auc"]["mean"])


def test_the_report_tells_it_in_words_and_tables(run: StudyRun) -> None:
    evidence = read_evidence(RunFolder(run.folder))
    words = " ".join(uncertainty_sentences(evidence))
    assert "fedavg: 6 passes with dropout; laplace: 6 passes by Laplace" in words
    uncertainty = run.results["arms"]["fedavg"]["uncertainty"]
    assert f"off by {100 * uncertainty['calibration']['ece']:.1f} points" in words
    assert f"In fedavg, {100 * uncertainty['sets']['coverage']:.1f} % do" in words
    assert "switzerland had too few validation patients" in words
    cited = " ".join(citations(evidence))
    assert "Gal, Ghahramani" in cited
    assert "Laplace redux" in cited
    assert "deep ensembles" not in cited
    assert [row[0] for row in uncertainty_table(evidence).rows] == ["fedavg", "laplace", "local"]
    assert len(uncertainty_at_sites_table(evidence).rows) == 3 * 4
    assert not unfamiliar_image_table(evidence).rows  # there are no images
    assert unfamiliar_images(evidence) is None


@pytest.mark.slow
def test_images_with_findings_are_told_of_one_by_one(chests: StudyRun, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = pd.read_parquet(chests.folder / "uncertainty.parquet")
    counts = rows[rows["arm"] == "fedavg"]["subset"].value_counts().to_dict()
    assert counts == {"validation": 40, "test": 40, "inverted": 40, "noise": 40, "upside down": 40, "limb": 40}
    uncertainty = chests.results["arms"]["fedavg"]["uncertainty"]
    assert list(uncertainty["shifted"]) == ["inverted", "noise", "upside down", "limb"]
    for shift in uncertainty["shifted"].values():
        assert shift["images"] == 40
        assert all(0 <= shift[name] <= 1 for name in ("total", "epistemic", "spread"))
    findings = chests.results["findings"]
    assert list(uncertainty["errors"]["findings"]) == list(uncertainty["sets"]["findings"]) == findings
    assert uncertainty["referral"]["at"]["figures"]["auc"]["all"]["mean"] is not None
    evidence = read_evidence(RunFolder(chests.folder))
    assert "inverted images are" in " ".join(uncertainty_sentences(evidence))
    table = evidence.results["arms"]["fedavg"]["uncertainty"]["sets"]["findings"]["Few"]
    assert table["positives"] == 3
    figures = sections_of(evidence)["uncertainty"].figures
    drawn = {name: draw(evidence) for name in DRAWN if (draw := figures[name].draw)}
    assert None not in drawn.values()
    # the other figures would take most of the time
    monkeypatch.setattr(build, "draw_all", lambda *_: dict.fromkeys(drawn, "<svg></svg>"))
    wardround.build_report(chests.folder)
    lines = pd.read_csv(chests.folder / "tables" / "uncertainty-of-findings.csv").set_index("finding")
    assert lines.loc["Few", ["when wrong", "of those with it, %"]].isna().all()  # three are too few to tell of
    assert lines.loc["Edema"].notna().all()
    assert len(referral_table(evidence).rows) == 2
    page = (chests.folder / "report.html").read_text(encoding="utf-8")
    assert "How sure is it?" in page
    for name in DRAWN:
        assert f'id="figure-{name}"' in page


def test_an_ensemble_is_told_of_as_one_model(tmp_path: Path) -> None:
    study = changed(
        uncertainty={"method": "ensemble"},
        evaluation__seeds={"first": 1, "count": 3},
        evaluation__vary=["batches", "init"],
        arms=[{"algorithm": "fedavg"}],
    )
    study_run = wardround.run_study(study, tmp_path)
    uncertainty = study_run.results["arms"]["fedavg"]["uncertainty"]
    assert (uncertainty["passes"], uncertainty["seeds"]) == (3, 1)
    rows = pd.read_parquet(study_run.folder / "uncertainty.parquet")
    test = rows[rows["subset"] == "test"]
    mean = test.groupby(["site", "row"])["score"].mean()
    label = test.groupby(["site", "row"])["label"].first()
    other = rows[rows["subset"] == "validation"].groupby(["site", "row"])
    cut = class_threshold(other["label"].first().to_numpy(), other["score"].mean().to_numpy())
    accuracy = ((mean >= cut) == (label == 1)).mean()
    assert uncertainty["referral"]["at"]["figures"]["accuracy"]["all"]["mean"] == pytest.approx(accuracy)
    assert uncertainty["parts"]["epistemic"] > 0


@pytest.mark.slow
def test_regions_and_parties_tell_of_it_too(tmp_path: Path) -> None:
    regions = {"europe": ["hungarian", "switzerland"], "america": ["cleveland", "va"]}
    study = changed(
        topology={"kind": "hierarchical", "regions": regions}, training={"rounds": 2}, arms=[{"algorithm": "fedavg"}]
    )
    uncertainty = wardround.run_study(study, tmp_path).results["arms"]["fedavg"]["uncertainty"]
    assert len(uncertainty["calibration"]["sites"]) == 4
    study = changed(
        model={"kind": "joined", "embedding": 4, "hidden": 8, "absent": 0.2, "dropout": 0.2},
        topology={"kind": "vertical", "parties": PARTIES},
        training={"rounds": 1},
        arms=[{"algorithm": "split"}, {"name": "laplace", "algorithm": "split", "uncertainty.method": "laplace"}],
    )
    for arm in wardround.run_study(study, tmp_path).results["arms"].values():
        assert arm["uncertainty"]["parts"]["epistemic"] > 0
        assert 0 < arm["uncertainty"]["sets"]["coverage"] <= 1


@pytest.mark.slow
def test_a_swept_value_that_was_chosen_tells_what_it_told(tmp_path: Path) -> None:
    study = changed(
        model={"kind": "logistic"},
        uncertainty={"method": "none"},
        selection={"arms": ["fedprox"]},
        arms=[{"algorithm": "fedavg"}, {"algorithm": "fedprox", "mu": [0.0, 1.0]}],
    )
    results = wardround.run_study(study, tmp_path).results
    [choice] = results["selection"]
    chosen = choice["chosen"]["42"]
    assert results["arms"]["fedprox[selected]"]["uncertainty"] == results["arms"][chosen]["uncertainty"]


RADIOGRAPHS = """
name = "radiographs"

[data]
source = "chest-xray"
path = "{path}"
size = 28
scale = "image"

[sites]
partition = "specialty"
count = 4
richness = 0.7

[model]
kind = "cnn"
channels = [32, 64]
hidden = 256
kernel = 3
norm = "group"
dropout = 0.4

[training]
rounds = 4
lr = 0.05
momentum = 0.9
weight_decay = 1e-4
lr_decay = {{ factor = 0.4, every = 1 }}

[uncertainty]
method = "dropout"

[evaluation]
split = "given"
validation_share = 0.1
every = 0

[[arms]]
name = "dropout"
algorithm = "fedavg"

[[arms]]
name = "laplace"
algorithm = "fedavg"
"uncertainty.method" = "laplace"
"""


@pytest.fixture(scope="module")
def radiographs(tmp_path_factory: pytest.TempPathFactory) -> Any:
    path = shared_data("nih-cxr14/nih_cxr14_subset_28.npz")
    folder = tmp_path_factory.mktemp("radiographs")
    (folder / "study.toml").write_text(RADIOGRAPHS.format(path=path), encoding="utf-8")
    done = command("run", folder / "study.toml", "--out", folder / "runs")
    assert done.returncode == 0, done.stderr
    [run] = (folder / "runs").iterdir()
    return RunFolder(run).read_json("results.json")["arms"]


@pytest.mark.slow
@pytest.mark.parametrize("arm", ["dropout", "laplace"])
def test_on_real_radiographs_referral_helps_and_doubt_points_at_errors(radiographs: Any, arm: str) -> None:
    """Without the least clear fifth accuracy rises by more than chance explains: the interval over patients is above
    none. So it is of telling errors from hits (one half is a coin)."""
    uncertainty = radiographs[arm]["uncertainty"]
    curve = uncertainty["referral"]["curve"]
    at = curve["share"].index(0.2)
    assert curve["accuracy"][at] > curve["accuracy"][0]
    assert curve["auc"][at] > curve["auc"][0]
    difference = uncertainty["referral"]["at"]["figures"]["accuracy"]["difference"]
    assert difference["interval"][0] > 0
    assert uncertainty["errors"]["errors"] > uncertainty["errors"]["hits"]
    assert uncertainty["errors"]["auc"]["interval"][0] > 0.5


@pytest.mark.slow
def test_on_real_radiographs_the_spread_of_laplace_is_higher_on_changed_images(radiographs: Any) -> None:
    shifted = radiographs["laplace"]["uncertainty"]["shifted"]
    assert {kind: shift["images"] for kind, shift in shifted.items()} == dict.fromkeys(shifted, 498)
    assert min(shift["spread"] for shift in shifted.values()) > 0.8, shifted
