"""Making bundles: what is refused, what is left behind, what is the same twice, and the command."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import wardround as package
from tests.attacks.studies import heart as private_hearts
from tests.bundles.conftest import hearts
from tests.cli.test_commands import wardround
from wardround.bundles import Bundle, FinishedRun, bundle_from, load_bundle, make_bundle, open_finished_run
from wardround.bundles.build import assemble as origin
from wardround.bundles.build import onnx as exporting
from wardround.bundles.build.assemble import plain_name
from wardround.bundles.bundle import Event
from wardround.core.errors import BundleError, RunError, StudyError
from wardround.models import Model, ModelBuilder, Shape, from_module
from wardround.runs.execute import run_study


def test_the_same_bundle_twice_but_for_the_moment(finished: FinishedRun, tmp_path: Path) -> None:
    first, two = (bundle_from(finished, arm="fedavg", site="va", out=tmp_path / name) for name in ("one", "two"))
    assert sorted(path.name for path in first.iterdir()) == sorted(path.name for path in two.iterdir())
    for path in first.iterdir():
        if path.name != "bundle.json":
            assert path.read_bytes() == (two / path.name).read_bytes(), path.name
    abouts = [json.loads((folder / "bundle.json").read_bytes()) for folder in (first, two)]
    for about in abouts:
        about.pop("made")
        about.pop("seal")
    assert abouts[0] == abouts[1]


@pytest.mark.slow
def test_a_fresh_process_loads_it_without_run_or_data(heart_bundle: Path, bundle: Bundle, tmp_path: Path) -> None:
    moved = tmp_path / "elsewhere"
    moved.mkdir()
    for path in heart_bundle.iterdir():
        (moved / path.name).write_bytes(path.read_bytes())
    x = np.random.default_rng(0).normal(size=(7, len(bundle.recipe.names)))
    np.save(tmp_path / "x.npy", x)
    code = (
        "import sys, numpy as np, wardround\n"
        f"bundle = wardround.load_bundle({str(moved)!r})\n"
        f"np.save({str(tmp_path / 'scores.npy')!r}, bundle.scores(np.load({str(tmp_path / 'x.npy')!r})))\n"
        "assert 'wardround.runs.execute' not in sys.modules and 'fastapi' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120, cwd=tmp_path)
    assert np.array_equal(np.load(tmp_path / "scores.npy"), bundle.scores(x))


def test_the_recipe_comes_back_to_the_last_bit(finished: FinishedRun, bundle: Bundle) -> None:
    trial = finished.plan.trial(finished.plan.study.arm("fedavg"), 1)
    recipe = trial.scored[0].recipe
    assert recipe is not None
    assert bundle.recipe.columns == recipe.columns
    assert bundle.recipe.layout == recipe.layout
    assert bundle.recipe.settings == recipe.settings
    assert (dict(bundle.recipe.fit.fill), dict(bundle.recipe.fit.fill_level)) == (
        dict(recipe.fit.fill),
        dict(recipe.fit.fill_level),
    )
    assert np.array_equal(bundle.recipe.fit.centre, recipe.fit.centre)
    assert np.array_equal(bundle.recipe.fit.spread, recipe.fit.spread)


def test_an_arm_a_site_and_a_seed_that_are_not_there(finished: FinishedRun, tmp_path: Path) -> None:
    for asked, where, problem, remedy in (
        ({"arm": "fedavgg", "site": "va"}, "--arm", "no arm 'fedavgg'", "Did you mean 'fedavg'?"),
        ({"arm": "fedavg", "site": "clevland"}, "--site", "no site 'clevland'", "Did you mean 'cleveland'?"),
        ({"arm": "fedavg"}, "--site", "several sites", "cleveland, hungarian, switzerland, va"),
        ({"arm": "fedavg", "site": "va", "seed": 3}, "--seed", "no seed 3", "It was run with 1 to 2."),
    ):
        with pytest.raises(StudyError, match=problem) as caught:
            bundle_from(finished, out=tmp_path / "x", **asked)
        assert caught.value.where == where
        assert remedy in caught.value.remedy
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_holds_something_is_not_touched_and_an_empty_one_is_used(
    finished: FinishedRun, tmp_path: Path
) -> None:
    occupied, empty, link = tmp_path / "taken", tmp_path / "empty", tmp_path / "link"
    occupied.mkdir()
    (occupied / "mine.txt").write_text("mine")
    empty.mkdir()
    link.symlink_to(empty)
    for place in (occupied, occupied / "mine.txt", link):
        with pytest.raises(BundleError, match="is there already"):
            bundle_from(finished, arm="fedavg", site="va", out=place)
    assert [path.name for path in occupied.iterdir()] == ["mine.txt"]
    load_bundle(bundle_from(finished, arm="fedavg", site="va", out=empty))
    with pytest.raises(BundleError, match="cannot be written"):
        bundle_from(finished, arm="fedavg", site="va", out=occupied / "mine.txt" / "below")


@pytest.mark.parametrize("place", ["card_of", "render", "load_bundle", "refuse_unequal", "seal"])
def test_an_error_on_the_way_leaves_nothing(
    finished: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    def fails(*arguments: Any, **named: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(origin, place, fails)
    with pytest.raises(KeyboardInterrupt):
        bundle_from(finished, arm="fedavg", site="va", out=tmp_path / "va")
    assert list(tmp_path.iterdir()) == []


def test_a_kill_leaves_no_bundle_and_the_next_one_cleans_up(finished: FinishedRun, tmp_path: Path) -> None:
    """Killed when every file is there under the other name, just before the rename."""
    out = tmp_path / "va"
    child = os.fork()
    if not child:
        try:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(origin, "refuse_unequal", lambda *known: os.kill(os.getpid(), signal.SIGKILL))
                bundle_from(finished, arm="fedavg", site="va", out=out)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    assert [path.name for path in tmp_path.iterdir()] == [f".va.{child}.partial"]
    assert len(list((tmp_path / f".va.{child}.partial").iterdir())) == 6
    load_bundle(bundle_from(finished, arm="fedavg", site="va", out=out))
    assert [path.name for path in tmp_path.iterdir()] == ["va"]


def test_without_out_it_has_a_name_of_its_own(
    finished: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = bundle_from(finished, arm="network", site="va")
    assert folder == Path("bundles/hearts-network-va")
    assert load_bundle(folder).name == "hearts-network-va"
    assert plain_name("fedprox[mu=0.1]@fixed") == "fedprox-mu-0.1-fixed"
    assert plain_name("../../etc") == "etc"


def test_onnx_goes_in_with_its_hash(finished: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def export_onnx(bundle: Bundle, out: Path) -> float:
        seen.append(bundle.id)
        out.write_bytes(b"a graph")
        return 0.0

    monkeypatch.setattr(exporting, "export_onnx", export_onnx)
    plain = load_bundle(bundle_from(finished, arm="fedavg", site="va", out=tmp_path / "plain"))
    both = load_bundle(bundle_from(finished, arm="fedavg", site="va", out=tmp_path / "both", onnx=True))
    assert seen == [plain.id]
    assert both.id != plain.id
    assert set(both.about["files"]) - set(plain.about["files"]) == {"model.onnx"}
    (both.path / "model.onnx").write_bytes(b"b graph")
    with pytest.raises(BundleError, match="was changed"):
        load_bundle(both.path)


def test_a_private_arm_says_nothing_of_its_patients(tmp_path: Path) -> None:
    changed = private_hearts(evaluation={"seeds": {"first": 1, "count": 1}, "validation_share": 0.25, "every": 0})
    finished = open_finished_run(run_study(changed, tmp_path / "runs").folder)
    private = load_bundle(bundle_from(finished, arm="private", site="cleveland", out=tmp_path / "private"))
    plain = load_bundle(bundle_from(finished, arm="plain", site="cleveland", out=tmp_path / "plain"))
    assert plain.about["threshold"]["chosen"]
    assert plain.out_of_distribution.kind == "distance"
    assert (private.events, private.out_of_distribution.kind) == ((Event(0.5, None),), "ranges")
    from safetensors.torch import load

    names = set(load((private.path / "weights.safetensors").read_bytes()))
    assert {name.split("/")[0] for name in names} == {"params"}
    card = private.about["card"]
    assert card["at_threshold"] is None
    assert (card["calibration"]["before"], card["calibration"]["after"]) == (None, None)
    spent = finished.results["privacy"]["arms"]["private"]["sites"]["cleveland"]
    assert card["privacy"]["spent"]["epsilon"] == spent["epsilon"]
    assert card["privacy"]["guarantee"] is False
    text = (private.path / "card.md").read_text()
    assert f"epsilon {spent['epsilon']:.3f} at delta 1e-05" in text
    assert "No guarantee" in text
    assert not {notice["text"] for notice in finished.results["notices"]} & set(card["limits"])
    table, rows = next(iter(finished.plan.cohorts.values())).table, np.arange(303)
    outside = private.outside(table, rows)
    assert (
        private.is_out_of_distribution(private.recipe.apply(table, rows), outside).sum()
        == np.any(list(outside.values()), axis=0).sum()
    )


def test_a_selected_arm_is_the_value_that_its_seed_chose(tmp_path: Path) -> None:
    study = hearts(
        arms=[{"name": "fedprox", "algorithm": "fedprox", "mu": [0.01, 10.0]}],
        selection={"arms": ["fedprox"], "on": "validation", "metric": "loss"},
    )
    folder = run_study(study, tmp_path / "runs").folder
    bundle = load_bundle(make_bundle(folder, arm="fedprox[selected]", site="va", seed=2, out=tmp_path / "va"))
    results = json.loads((folder / "results.json").read_text())
    assert bundle.about["arm"] == "fedprox[selected]"
    assert bundle.about["trained_as"] == results["selection"][0]["chosen"]["2"]
    assert (
        bundle.about["card"]["figures"]["this_site"]["auc"]
        == results["arms"]["fedprox[selected]"]["sites"]["va"]["auc"]
    )


def own_model(width: int = 3) -> ModelBuilder:
    def build(shape: Shape) -> Model:
        return from_module(
            lambda: nn.Sequential(nn.Linear(shape.inputs[0], width), nn.Tanh(), nn.Linear(width, shape.outputs)), shape
        )

    return build


def test_a_model_of_ones_own_must_be_given_again(tmp_path: Path) -> None:
    study = hearts(model={"kind": "mine", "width": 5}, arms=[{"name": "fedavg", "algorithm": "fedavg"}])
    folder = run_study(study, tmp_path / "runs", models={"mine": own_model}).folder
    bundle_folder = make_bundle(folder, arm="fedavg", site="va", out=tmp_path / "va", models={"mine": own_model})
    with pytest.raises(BundleError, match="needs a model 'mine'"):
        load_bundle(bundle_folder)
    bundle = load_bundle(bundle_folder, models={"mine": own_model})
    assert bundle.params["0.weight"].shape == torch.Size([5, len(bundle.recipe.names)])


def test_runs_that_will_not_do(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run folder"):
        make_bundle(tmp_path, arm="fedavg")
    folder = run_study(hearts(arms=[{"name": "fedavg", "algorithm": "fedavg"}]), tmp_path / "runs").folder
    whole = (folder / "predictions.parquet").read_bytes()
    results = (folder / "results.json").read_bytes()
    (folder / "results.json").unlink()
    with pytest.raises(RunError, match="is not complete"):
        make_bundle(folder, arm="fedavg", site="va", out=tmp_path / "x")
    (folder / "results.json").write_bytes(results)
    import pandas as pd

    table = pd.read_parquet(folder / "predictions.parquet")
    table[table["site"] != "va"].to_parquet(folder / "predictions.parquet")
    with pytest.raises(BundleError, match="does not hold the test rows of va in arm fedavg"):
        make_bundle(folder, arm="fedavg", site="va", out=tmp_path / "x")
    table.assign(score=np.nan).to_parquet(folder / "predictions.parquet")
    with pytest.raises(BundleError, match="arm fedavg diverged with seed 1"):
        make_bundle(folder, arm="fedavg", site="va", out=tmp_path / "x")
    table.assign(score=table["score"] + np.float32(2e-6)).to_parquet(folder / "predictions.parquet")
    with pytest.raises(BundleError, match="differ from those in the run by up to 2"):
        make_bundle(folder, arm="fedavg", site="va", out=tmp_path / "x")
    (folder / "predictions.parquet").write_bytes(whole)
    environment = json.loads((folder / "environment.json").read_text())
    (folder / "environment.json").write_text(json.dumps({**environment, "data_fingerprint": "other"}))
    with pytest.raises(RunError, match="was trained on other data"):
        make_bundle(folder, arm="fedavg", site="va", out=tmp_path / "x")
    (folder / "summaries.jsonl").write_text("")
    with pytest.raises(RunError, match="is a coordinator's run"):
        make_bundle(folder, arm="fedavg", site="va", out=tmp_path / "x")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs"]


def test_the_command(run: Path, tmp_path: Path) -> None:
    done = wardround("bundle", run, "--arm", "fedavg", "--site", "va", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "A bundle for va is in bundles/hearts-fedavg-va" in done.stdout
    assert "disease or no disease" in done.stdout
    again = wardround("bundle", run, "--arm", "fedavg", "--site", "va", "--json", cwd=tmp_path)
    assert again.returncode == 10
    assert json.loads(again.stdout)["error"]["problem"] == "is there already"
    result = wardround("bundle", run, "--arm", "local", "--site", "va", "--out", "x", "--json", cwd=tmp_path)
    assert json.loads(result.stdout)["bundle"] == "x"
    assert json.loads(result.stdout)["id"] == package.load_bundle(tmp_path / "x").id
    wrong = wardround("bundle", run, "--arm", "fedavg", "--site", "vaa", cwd=tmp_path)
    assert (wrong.returncode, "Did you mean 'va'?" in wrong.stderr) == (3, True)
    unnamed = wardround("bundle", run, "--site", "va")
    assert (unnamed.returncode, "Name an arm, or give --every-arm." in unnamed.stderr) == (3, True)
    misplaced = wardround("bundle", run, "--arm", "fedavg", "--site", "va", "--site-file", tmp_path / "x", cwd=tmp_path)
    assert misplaced.returncode == 3
    assert package.make_bundle is make_bundle
    assert os.listdir(tmp_path / "bundles") == ["hearts-fedavg-va"]
