"""A run of images explained: as a bundle of the same run, at every site, from its own held-out images."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from tests.bundles import signal_runs
from tests.bundles.image_runs import ARMS, as_files, garments, radiographs, run_of
from tests.cli.test_commands import wardround
from tests.radiographs import some_radiographs, source_of
from wardround.bundles import FinishedRun, bundle_from, explain_bundle, explain_run
from wardround.bundles.explain import run_images
from wardround.bundles.explain.explained_images import EVEN
from wardround.core.errors import StudyError
from wardround.data.records import Records
from wardround.data.site import Rows, Site
from wardround.runs.explaining.explain_arms import answers_arm
from wardround.runs.explaining.site_models import site_scorer

SITES = ["hospital-0", "hospital-1", "hospital-2"]
COMPARED = ("fedavg", "own-norms")
PARTS = ("vertical",)


@pytest.fixture(scope="module")
def records() -> Records:
    """With a box of each finding, which the model and its run do not see."""
    return replace(radiographs(), boxes=some_radiographs(patients=170, unknown=0.05).boxes)


@pytest.fixture(scope="module")
def finished(records: Records, tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    arms = [arm for arm in ARMS if arm["name"] in (*COMPARED, *PARTS)]
    return run_of(records, tmp_path_factory.mktemp("image-runs"), arms=arms, training={"rounds": 1, "lr": 0.1})


def explained(finished: FinishedRun, records: Records, out: Path, **changes: Any) -> dict[str, Any]:
    made = explain_run(finished.folder.path, out, sources=source_of(records), **changes)
    assert json.loads((out / "explanation.json").read_text()) == json.loads(json.dumps(made.about))
    return dict(made.about)


@pytest.mark.parametrize("arm", COMPARED)
def test_maps_are_those_of_a_bundle_of_the_same_run(
    finished: FinishedRun, records: Records, arm: str, tmp_path: Path
) -> None:
    """Which reads the site's test and training images from files. It has thresholds of the site where the run has those
    of all sites, so that a few images have other findings."""
    bundle = bundle_from(finished, arm=arm, site="hospital-1", out=tmp_path / "bundle")
    about = explained(finished, records, tmp_path / "run", arm=arm, site="hospital-1", rows=5)
    own = pd.read_parquet(tmp_path / "run" / "rows.parquet")
    rows = np.unique(own["row"])
    trial = finished.plan.trial(finished.plan.study.arm(arm), 42)
    [site] = [site for site in trial.scored if site.name == "hospital-1"]
    assert len(rows) == about["rows"] == 5
    assert set(rows) <= set(site.test_rows)
    assert site.train.index is not None
    tested = as_files(records, rows, tmp_path / "tested")
    trained = as_files(records, np.sort(site.train.index.numpy()), tmp_path / "trained")
    explain_bundle(bundle, tested, tmp_path / "of-bundle", background=trained)
    other = pd.read_parquet(tmp_path / "of-bundle" / "rows.parquet")
    assert own["site"].unique().tolist() == ["hospital-1"]
    own["row"] = np.searchsorted(rows, own["row"])
    with np.load(tmp_path / "run" / "maps.npz") as one, np.load(tmp_path / "of-bundle" / "maps.npz") as two:
        assert set(one) == {"maps", "row", "output", "site"}  # and no mean of training images
        own["map"], other["map"] = list(one["maps"]), list(two["maps"])
    both = own.merge(other, on=["row", "output"], suffixes=("", "_of_bundle"))
    assert len(both) >= 8
    for name in ("score", "highest", "highest_x", "completeness_error"):
        np.testing.assert_allclose(both[name], both[f"{name}_of_bundle"], atol=1e-5)
    maps = np.stack(both["map"].tolist())
    assert np.abs(maps).max() > 1e-3
    np.testing.assert_allclose(maps, np.stack(both["map_of_bundle"].tolist()), atol=1e-5)


def test_without_arm_and_site_the_answers_arm_is_explained_at_every_site(
    finished: FinishedRun, records: Records, tmp_path: Path
) -> None:
    about = explained(finished, records, tmp_path / "why", rows=2)
    assert about["arm"] == answers_arm(finished.results)
    assert sorted(about["sites"]) == SITES
    rows = pd.read_parquet(tmp_path / "why" / "rows.parquet")
    assert rows.groupby("site")["row"].nunique().to_dict() == dict.fromkeys(SITES, 2)
    scored = finished.folder.predictions()
    scored = scored[scored["arm"] == about["arm"]].set_index(["site", "row"])
    for line in rows.itertuples():
        expected = scored.loc[(line.site, line.row), f"score_{line.output}"]
        assert torch.sigmoid(torch.tensor(line.score)) == pytest.approx(expected, abs=1e-5)
        threshold = finished.results["arms"][about["arm"]]["findings"][line.output]["threshold"]["mean"]
        assert line.predicted == (expected >= threshold)
    assert len(list((tmp_path / "why" / "overlays").iterdir())) == len(rows)
    checks = pd.read_csv(tmp_path / "why" / "checks.csv")
    assert checks["site"].value_counts().to_dict() == dict.fromkeys(SITES, 5)
    page = (tmp_path / "why" / "explanation.html").read_text()
    for site in SITES:
        assert f"{site}, image" in page
        assert f"{site}: checked on" in page


def test_boxes_of_findings_are_drawn_where_the_source_has_them(
    finished: FinishedRun, records: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    from wardround.bundles.explain import explain as module

    monkeypatch.setattr(module, "write_image_folder", lambda parts, *rest: seen.extend(parts))
    explain_run(finished.folder.path, tmp_path / "why", sources=source_of(records), arm="fedavg", rows=8)
    drawn = 0
    for maps in seen:
        for line, (row, name) in enumerate(zip(maps.row, maps.names(), strict=True)):
            own = maps.boxes[maps.boxes[:, 0] == line][:, 1:]
            assert records.boxes is not None
            there = records.boxes[records.boxes["row"] == row]
            there = there[there["finding"] == records.classes.index(name)]
            np.testing.assert_allclose(own, there[["x", "y", "width", "height"]].to_numpy(dtype=float))
            drawn += len(own)
    assert drawn > 3


def test_classes_are_explained_as_well(tmp_path: Path) -> None:
    arms = [{"name": "fedavg", "algorithm": "fedavg"}]
    of_classes = run_of(garments(), tmp_path / "runs", arms=arms, training={"rounds": 1, "lr": 0.1})
    about = explained(of_classes, garments(), tmp_path / "why", rows=3)
    rows = pd.read_parquet(tmp_path / "why" / "rows.parquet")
    assert about["sites"] == ["shop-0", "shop-1"]
    assert rows["predicted"].all()
    assert len(rows) == 6


def test_what_is_compared_with_shows_no_single_image_and_no_protected_patient() -> None:
    x = torch.arange(25 * 4, dtype=torch.uint8).reshape(25, 1, 2, 2)
    y, nobody = torch.zeros(25, dtype=torch.int64), np.arange(0)

    def background(rows: int, protected: bool) -> tuple[torch.Tensor, str]:
        own = Rows(x, y, torch.arange(rows))
        return run_images.compared_with(Site("here", own, own, own, nobody, nobody), torch.float64, protected)

    mean, words = background(25, protected=False)
    np.testing.assert_allclose(mean[0, 0], x.double().mean(dim=0)[0] / 255)
    assert words == "the mean of 25 training images of here"
    for rows, protected in ((19, False), (25, True)):
        nothing, words = background(rows, protected)
        assert (nothing.shape, words) == ((0, 1, 2, 2), EVEN)


def test_what_cannot_be_explained_is_refused(finished: FinishedRun, records: Records, tmp_path: Path) -> None:
    for changes, problem in (
        ({"site": "rome"}, "no site 'rome'"),
        ({"arm": "fedprox"}, "fedprox"),
        ({"method": "lime"}, "explains tables"),
        ({"rows": 0}, "no number of rows"),
        ({"arm": "vertical"}, "held by several parties"),
    ):
        with pytest.raises(StudyError, match=problem):
            explained(finished, records, tmp_path / "why", **changes)
    assert not (tmp_path / "why").exists()


def test_a_model_without_scores_is_refused(
    finished: FinishedRun, records: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = site_scorer

    def spoilt(*given: Any) -> Any:
        own = scorer(*given)
        return type(own)(own.model, {k: v * torch.nan for k, v in own.params.items()}, own.buffers, scale=own.scale)

    monkeypatch.setattr(run_images, "site_scorer", spoilt)
    with pytest.raises(StudyError, match="its model diverged"):
        explained(finished, records, tmp_path / "why", arm="fedavg")


def test_recordings_are_refused_by_name(tmp_path: Path) -> None:
    run = signal_runs.run_of(tmp_path / "runs").folder.path
    refused = wardround("explain", run, "--out", tmp_path / "why")
    assert refused.returncode == 3
    assert "its rows are signals" in refused.stderr
    assert "bundle" not in refused.stderr


def test_the_command_takes_a_run_of_images(tmp_path: Path) -> None:
    study = tmp_path / "tiny.toml"
    study.write_text(
        'name = "tiny"\n[data]\nsource = "phantom"\nrows = 120\nsize = 32\nhospitals = 2\n'
        '[sites]\npartition = "by-hospital"\n[model]\nkind = "cnn"\nchannels = [2, 2]\nhidden = 4\n'
        "[training]\nrounds = 1\n[evaluation]\nvalidation_share = 0.2\nseeds = { count = 1 }\n"
        '[[arms]]\nalgorithm = "fedavg"\n'
    )
    assert wardround("run", study, "--out", tmp_path / "runs", "--no-report").returncode == 0
    [run] = (tmp_path / "runs").iterdir()
    done = wardround("explain", run, "--rows", "1", "--method", "grad-cam", "--out", tmp_path / "why", "--json")
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["method"], told["rows"]) == ("grad-cam", 2)
    said = wardround("explain", run, "--rows", "1", "--method", "grad-cam", "--out", tmp_path / "again").stdout
    assert "of 2 images" in said
    page = (tmp_path / "why" / "explanation.html").read_text()
    assert "Synthetic data" in page
    assert "holds images of patients" not in page
