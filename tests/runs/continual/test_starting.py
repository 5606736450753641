"""A study goes on from the model of a run or a bundle: with its bits, in every engine, and with its own identity."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.runs.continual.chained_studies import NEW, OLD, after, plan_of, refusal, run, study
from tests.small_federations import assert_same_tree
from wardround.bundles import make_bundle
from wardround.core.errors import RunError, StudyError
from wardround.core.tree import Tree
from wardround.runs import checkpoint
from wardround.runs.catalog import load_study
from wardround.runs.execute import StudyRun, execute, resume_study
from wardround.runs.folder import RunFolder
from wardround.training.rounds import first_weights, start

FULL = {"batch_size": 10_000, "precision": "float64"}


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> StudyRun:
    arms = [{"algorithm": "fedavg"}, {"algorithm": "local"}, {"algorithm": "fedprox", "mu": [0.0, 1.0]}]
    changes: dict[str, Any] = {"selection": {"arms": ["fedprox"]}, "evaluation": {"validation_share": 0.1}}
    changes["evaluation"] |= {"seeds": {"first": 1, "count": 2}}
    return run(study("old", arms=arms, **changes), tmp_path_factory.mktemp("old"))


def weights(folder: Path, seed: int = 1, arm: str = "fedavg") -> Tree:
    leaves = load_file(folder / "models" / arm / f"seed-{seed}.safetensors")
    return {n.removeprefix("server/params/"): leaf for n, leaf in leaves.items() if n.startswith("server/params/")}


@pytest.mark.parametrize("engine", ["serial", "stacked"])
@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox"])
def test_ten_rounds_and_ten_more_are_twenty(engine: str, algorithm: str, tmp_path: Path) -> None:
    """Full batches and plain descent: where a round starts is all that it knows of those before it."""
    arms = [{"name": "fedavg", "algorithm": algorithm}]
    first = run(study("first", arms=arms, training={"rounds": 10, **FULL}), tmp_path, engine=engine)
    second = run(after(first, arms=arms, training={"rounds": 10, **FULL}), tmp_path, engine=engine)
    whole = run(study("whole", arms=arms, training={"rounds": 20, **FULL}), tmp_path, engine=engine)
    for seed in (1, 2):
        ours, theirs = weights(second.folder, seed), weights(whole.folder, seed)
        for name, leaf in theirs.items():  # rows are summed in another order in the second ten rounds
            torch.testing.assert_close(ours[name], leaf, rtol=0, atol=1e-13)


def test_every_seed_starts_with_the_bits_of_its_own(old: StudyRun) -> None:
    plan = plan_of(after(old))
    for seed in (1, 2):
        assert_same_tree(first_weights(plan.trial(plan.study.arms[0], seed))[0], weights(old.folder, seed))
    assert not torch.equal(weights(old.folder, 1)["weight"], weights(old.folder, 2)["weight"])


def test_which_seed_of_the_run_is_taken(old: StudyRun) -> None:
    seeds = {"evaluation": {"seeds": {"first": 2, "count": 2}}}
    plan = plan_of(after(old, **seeds))
    predecessor = plan.predecessor_of(plan.study.arms[0])
    assert predecessor is not None
    assert {seed: model.seed for seed, model in predecessor.models.items()} == {2: 2, 3: 1}
    plan = plan_of(after(old, start={"seed": 2}, **seeds))
    for seed in (2, 3):
        assert_same_tree(first_weights(plan.trial(plan.study.arms[0], seed))[0], weights(old.folder, 2))
    assert "has no seed 9" in refusal(lambda: plan_of(after(old, start={"seed": 9})))


def test_a_selected_arm_is_the_value_that_each_seed_chose(old: StudyRun) -> None:
    plan = plan_of(after(old, arm="fedprox[selected]"))
    (choice,) = old.results["selection"]
    for seed in (1, 2):
        chosen = weights(old.folder, seed, choice["chosen"][str(seed)])
        assert_same_tree(first_weights(plan.trial(plan.study.arms[0], seed))[0], chosen)


@pytest.mark.parametrize(
    "algorithm", ["fedavg", "fedprox", "scaffold", "fednova", "fedadam", "clustered", "local", "pooled"]
)
def test_every_algorithm_starts_there(old: StudyRun, algorithm: str) -> None:
    plan = plan_of(after(old, arms=[{"algorithm": algorithm}]))
    trial = plan.trial(plan.study.arms[0], 1)
    state = start(trial)
    for number, site in enumerate(trial.sites):
        shared = trial.algorithm.broadcast(state.server, number)
        begun = trial.algorithm.begin(shared, state.memories[site.name].algorithm)
        assert_same_tree(begun, weights(old.folder, 1), part=site.name)


def test_the_stack_does_not_mix_starts(old: StudyRun, tmp_path: Path) -> None:
    """Arms and seeds of one stack, of which some start anew."""
    arms = [{"algorithm": "fedavg"}, {"name": "anew", "algorithm": "fedavg", "model.start_from": "off"}]
    changes: dict[str, Any] = {
        "arms": arms,
        "evaluation": {"seeds": {"first": 1, "count": 2}, "vary": ["batches"], "accept": ["start-leak"]},
    }
    for engine in ("serial", "stacked"):
        run(after(old, **changes), tmp_path / engine, engine=engine)
    (one,), (other,) = ((tmp_path / engine).glob("later-*") for engine in ("serial", "stacked"))
    for arm in ("fedavg", "anew"):
        for seed in (1, 2):
            ours, theirs = weights(one, seed, arm), weights(other, seed, arm)
            assert all(torch.allclose(ours[name], leaf, atol=1e-6) for name, leaf in theirs.items())
    assert not torch.allclose(weights(one, 1)["weight"], weights(one, 1, "anew")["weight"], atol=1e-3)


@pytest.mark.parametrize(
    "changes",
    [
        {"topology": {"kind": "hierarchical", "regions": {"one": ["cleveland"], "two": ["hungarian"]}}},
        {"privacy": {"secure_sum": {}}, "data": {"hospitals": [*OLD, "va"]}},
    ],
    ids=["regions", "secure sums"],
)
def test_regions_and_secure_sums(old: StudyRun, changes: dict[str, Any], tmp_path: Path) -> None:
    document = after(old, **changes)
    plan = plan_of(document)
    assert_same_tree(first_weights(plan.trial(plan.study.arms[0], 1))[0], weights(old.folder, 1))
    assert run(document, tmp_path).results["start_from"]["fedavg"]["forgetting"] is not None


def test_the_study_is_another_with_other_weights_and_the_same_wherever_they_are(old: StudyRun, tmp_path: Path) -> None:
    moved = shutil.copytree(old.folder, tmp_path / "moved")
    known = load_study(after(old))[0]
    assert load_study(after(moved))[0].hash == known.hash
    assert load_study(after(old, start={"seed": 1}))[0].hash != known.hash
    file = moved / "models" / "fedavg" / "seed-2.safetensors"
    changed = {name: leaf + 1 for name, leaf in load_file(file).items()}
    save_file(changed, file)
    assert load_study(after(moved))[0].hash != known.hash


def test_weights_that_changed_since_the_study_was_loaded_are_refused(old: StudyRun, tmp_path: Path) -> None:
    moved = shutil.copytree(old.folder, tmp_path / "moved")
    plan = plan_of(after(moved))
    description = moved / "models" / "fedavg" / "seed-1.json"
    content = json.loads(description.read_text())
    description.write_text(json.dumps({**content, "scale": "none"}))
    problem = refusal(lambda: plan.trial(plan.study.arms[0], 1))
    assert "holds other weights than this study started from" in problem


def test_a_run_is_shown_again_and_not_run_again(old: StudyRun, tmp_path: Path) -> None:
    assert run(after(old), tmp_path).fresh
    assert not run(after(old), tmp_path).fresh


def test_an_interrupted_run_goes_on_to_the_same_bits(
    old: StudyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "SHORTEST_PAUSE", 0.0)
    monkeypatch.setattr(checkpoint, "SHARE_OF_TIME", 1e9)
    document = after(old, training={"rounds": 6})
    whole = run(document, tmp_path / "whole")
    plan = plan_of(document)
    folder = RunFolder.of(plan.study, tmp_path / "stopped")
    steps = execute(plan, folder)
    for _ in range(3):
        next(steps)
    steps.close()
    resumed = resume_study(folder.path)
    assert_same_tree(weights(resumed.folder, 2), weights(whole.folder, 2))
    assert resumed.results["start_from"] == whole.results["start_from"]
    assert resumed.results["study"]["hash"] == whole.results["study"]["hash"]


def test_a_resumed_run_needs_the_same_weights(old: StudyRun, tmp_path: Path) -> None:
    moved = shutil.copytree(old.folder, tmp_path / "moved")
    plan = plan_of(after(moved))
    folder = RunFolder.of(plan.study, tmp_path / "stopped")
    steps = execute(plan, folder)
    next(steps)
    steps.close()
    shutil.rmtree(moved)
    assert "does not exist" in refusal(lambda: resume_study(folder.path))


def test_a_finished_run_does_not_need_the_model_that_it_started_from(old: StudyRun, tmp_path: Path) -> None:
    moved = shutil.copytree(old.folder, tmp_path / "moved")
    second = run(after(moved), tmp_path)
    shutil.rmtree(moved)
    bundle = make_bundle(second.folder, arm="fedavg", site="cleveland", out=tmp_path / "bundle")
    assert "went on from a model that was trained before, at cleveland, hungarian" in (bundle / "card.md").read_text()
    third = run(after(second, "third"), tmp_path)
    content = third.results["start_from"]
    trained = content["fedavg"]["trained"]
    assert [training["study"] for training in trained] == ["later", "old"]


def test_a_bundle_is_a_start_for_every_seed(old: StudyRun, tmp_path: Path) -> None:
    bundle = make_bundle(old.folder, arm="local", site="hungarian", seed=2, out=tmp_path / "bundle")
    document = {**study("later"), "model": {"kind": "logistic", "start_from": {"bundle": str(bundle)}}}
    plan = plan_of(document)
    leaves = load_file(old.folder / "models" / "local" / "seed-2.safetensors")
    own = {name.removeprefix("memory/hungarian/params/"): leaf for name, leaf in leaves.items() if "hungarian" in name}
    for seed in (1, 2):
        assert_same_tree(first_weights(plan.trial(plan.study.arms[0], seed))[0], own)
    content = run(document, tmp_path).results["start_from"]["fedavg"]
    assert content["kind"] == "bundle"
    assert content["both"] == ["hungarian"]  # the only one that the bundle's model has learnt from
    assert content["not_measured"] == "a bundle has no rows of the hospitals that it was trained at"
    file = bundle / "weights.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\1")
    assert "was changed since the bundle was made" in refusal(lambda: plan_of(document))


def test_private_parts_are_those_of_the_sites_of_the_same_names(tmp_path: Path) -> None:
    model = {"kind": "logistic", "intercept": "private"}
    first = run(study("first", model=model), tmp_path)
    plan = plan_of(after(first, hospitals=("hungarian", "va"), model=model))
    state = start(plan.trial(plan.study.arms[0], 1))
    leaves = load_file(first.folder / "models" / "fedavg" / "seed-1.safetensors")
    assert torch.equal(state.memories["hungarian"].private["bias"], leaves["memory/hungarian/private/bias"])
    assert float(leaves["memory/hungarian/private/bias"].abs().sum()) > 0
    assert float(state.memories["va"].private["bias"].abs().sum()) == 0  # as the seed makes it
    bundle = make_bundle(first.folder, arm="fedavg", site="cleveland", out=tmp_path / "bundle")
    document = {**study("b"), "model": {**model, "start_from": {"bundle": str(bundle)}}}
    plan = plan_of(document)
    state = start(plan.trial(plan.study.arms[0], 1))
    assert torch.equal(state.memories["cleveland"].private["bias"], leaves["memory/cleveland/private/bias"])
    assert float(state.memories["hungarian"].private["bias"].abs().sum()) == 0


def test_an_adapter_begins_anew_where_a_site_has_other_columns(tmp_path: Path) -> None:
    """With columns of each site's own only the shared part must fit."""
    model = {"kind": "adapter", "latent": 4, "hidden": [5]}
    data = {"schema": "own", "public": False, "scale": "per-site", "missing": "median", "indicator": False}
    first = run(study("first", hospitals=("cleveland", "va"), model=model, data=data), tmp_path)
    less = {**data, "not_recorded": {"va": ["chol"]}}
    known = {"accept": ["start-leak"]}  # equal rows, once `chol` is left out
    document = after(first, hospitals=("cleveland", "va"), model=model, data=less, evaluation=known)
    second = run(document, tmp_path)
    content = second.results["start_from"]["fedavg"]
    assert content["begin_anew"] == ["va"]
    assert list(content["forgetting"]["sites"]) == ["cleveland"]  # the new adapter cannot read the old rows of va
    plan = plan_of(document)
    state = start(plan.trial(plan.study.arms[0], 1))
    leaves = load_file(first.folder / "models" / "fedavg" / "seed-1.safetensors")
    old_first = leaves["memory/cleveland/private/adapter.first.weight"]
    assert torch.equal(state.memories["cleveland"].private["adapter.first.weight"], old_first)
    assert state.memories["va"].private["adapter.first.weight"].shape[1] < old_first.shape[1]


def images(name: str, **changes: Any) -> dict[str, Any]:
    return {
        "name": name,
        "data": {"source": "phantom", "rows": 120, "size": 32, "scale": "image"},
        "sites": {"partition": "iid", "count": 2},
        "model": {"kind": "residual", "widths": [4, 8], "norm": "batch", **changes.pop("model", {})},
        "training": {"rounds": 1, "lr": 0.01, "batch_size": 16},
        "evaluation": {"seeds": {"first": 1, "count": 1}},
        "arms": [{"algorithm": "fedavg"}, {"algorithm": "pooled"}],
        **changes,
    }


def test_statistics_of_batchnorm(tmp_path: Path) -> None:
    first = run(images("first"), tmp_path)
    for arm, kept in (("fedavg", "site-1"), ("pooled", "pooled")):
        start_from = {"run": str(first.folder), "arm": arm}
        plan = plan_of(images("later", model={"start_from": start_from}))
        trial = plan.trial(plan.study.arms[0], 1)
        names = [site.name for site in trial.sites]
        own = kept if kept == "pooled" else names[0]
        leaves = load_file(first.folder / "models" / arm / "seed-1.safetensors")
        prefix = f"memory/{own}/buffers/"
        expected = {name.removeprefix(prefix): leaf for name, leaf in leaves.items() if name.startswith(prefix)}
        assert expected
        assert_same_tree(start(trial).memories[names[0]].buffers, expected)
    second = run(images("later", model={"start_from": {"run": str(first.folder), "arm": "fedavg"}}), tmp_path)
    assert second.results["start_from"]["fedavg"]["forgetting"]["sites"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"model": {"kind": "mlp"}}, "its model is 'logistic', and that of this study 'mlp'"),
        ({"model": {"l2": 0.5}}, "its model has other settings: l2 is 0.0 there and 0.5 here"),
        ({"data": {"scale": "none"}}, 'its rows were scaled as "ranges", and those of this study are as "none"'),
        ({"data": {"indicator": False}}, "Missing here: age missing, sex missing"),
        ({"data": {"categories": "codes"}}, "Missing here: cp=1, cp=2, cp=3, cp=4, restecg=0"),
    ],
)
def test_a_model_that_means_something_else_is_refused(old: StudyRun, changes: dict[str, Any], problem: str) -> None:
    document = after(old, **changes)
    plan = plan_of(document)
    assert problem in refusal(lambda: plan.trial(plan.study.arms[0], 1))


def edited(run_folder: Path, out: Path, **changes: Any) -> Path:
    """The run with another description of its models."""
    folder = shutil.copytree(run_folder, out)
    for file in (folder / "models" / "fedavg").glob("*.json"):
        content = json.loads(file.read_text())
        file.write_text(json.dumps({**content, **{key: change(content[key]) for key, change in changes.items()}}))
    return folder


def swapped(values: list[Any]) -> list[Any]:
    return [values[1], values[0], *values[2:]]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"columns": swapped}, "the same in another order: number 1 is sex there, age here"),
        ({"columns": lambda names: [*names[1:], "weight"]}, "Missing here: weight; new here: age"),
        ({"ranges": lambda ranges: {**ranges, "age": [0, 1]}}, "scaled by other public ranges than there: age"),
        ({"task": lambda task: {**task, "names": ["a", "b"]}}, "it predicts something else: a, b there"),
        (
            {"task": lambda task: {**task, "kind": "multiclass"}},
            "its task is multiclass, and that of this study binary",
        ),
        ({"format": lambda number: 2}, "was written by another version of wardround"),
        ({"shared": lambda shared: False}, "every site has a model of its own"),
        ({"inputs": lambda inputs: "many"}, "is damaged, or cannot be read"),
    ],
)
def test_descriptions_are_compared_whole(old: StudyRun, changes: dict[str, Any], problem: str, tmp_path: Path) -> None:
    folder = edited(old.folder, tmp_path / "edited", **changes)
    assert problem in refusal(lambda: plan_of(after(folder)).trial(load_study(after(folder))[0].arms[0], 1))


def test_bad_folders_and_files_are_one_clear_error_each(old: StudyRun, tmp_path: Path) -> None:
    def problem(folder: Path, **start: Any) -> str:
        return refusal(lambda: plan_of(after(folder, start=start)))

    assert "does not exist" in problem(tmp_path / "nowhere")
    assert "is not a run folder" in problem(tmp_path)
    assert "has no arm 'fedavgg'" in problem(old.folder, arm="fedavgg")
    assert "Did you mean 'fedavg'?" in problem(old.folder, arm="fedavgg")
    assert "in local every site has a model of its own" in problem(old.folder, arm="local")
    assert "--arm local --site SITE" in problem(old.folder, arm="local")
    for number, (name, content, expected) in enumerate(
        [
            ("results.json", None, "is not complete"),
            ("results.json", b"{", "is damaged"),
            ("results.json", b"{}", "does not hold what a run of this version writes"),
            ("models/fedavg/seed-1.safetensors", None, "has no weights of fedavg with seed 1"),
            ("models/fedavg/seed-1.safetensors", b"not tensors", "is damaged, or cannot be read"),
            ("models/fedavg/seed-1.json", None, "an earlier version of wardround made the run"),
            ("models/fedavg/seed-1.json", b"[]", "was written by another version"),
            ("models/fedavg/seed-1.json", b"{", "is damaged, or cannot be read"),
        ]
    ):
        folder = shutil.copytree(old.folder, tmp_path / str(number))
        if content is None:
            (folder / name).unlink()
        else:
            (folder / name).write_bytes(content)
        assert expected in problem(folder), name


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda leaf: leaf * float("nan"), "are not finite numbers: weight"),
        (lambda leaf: leaf[:, :-1].contiguous(), "have another shape: weight"),
        (None, "has other weights than the model of this study: weight"),
    ],
)
def test_weights_that_do_not_fit_are_refused(old: StudyRun, change: Any, problem: str, tmp_path: Path) -> None:
    folder = shutil.copytree(old.folder, tmp_path / "changed")
    file = folder / "models" / "fedavg" / "seed-1.safetensors"
    leaves = load_file(file)
    weight = leaves.pop("server/params/weight")
    save_file(leaves if change is None else {**leaves, "server/params/weight": change(weight)}, file)
    plan = plan_of(after(folder))
    assert problem in refusal(lambda: plan.trial(plan.study.arms[0], 1))


def test_everything_is_checked_before_anything_trains(old: StudyRun, tmp_path: Path) -> None:
    folder = shutil.copytree(old.folder, tmp_path / "changed")
    file = folder / "models" / "fedavg" / "seed-2.safetensors"
    save_file({name: leaf * float("nan") for name, leaf in load_file(file).items()}, file)
    with pytest.raises(StudyError, match="are not finite numbers"):
        run(after(folder), tmp_path / "runs")
    assert not list((tmp_path / "runs").glob("*"))


def test_a_pickle_is_never_opened(old: StudyRun, tmp_path: Path) -> None:
    folder = shutil.copytree(old.folder, tmp_path / "pickled")
    file = folder / "models" / "fedavg" / "seed-1.safetensors"
    torch.save({"server/params/weight": torch.zeros(1)}, file)
    with pytest.raises(RunError, match="is damaged, or cannot be read"):
        plan_of(after(folder))


def test_the_vertical_topology(tmp_path: Path) -> None:
    parties = {"clinic": ["age", "sex", "cp"], "laboratory": ["chol", "fbs", "thalach"]}
    changes: dict[str, Any] = {
        "hospitals": ("cleveland",),
        "model": {"kind": "joined", "embedding": 4, "hidden": 8},
        "topology": {"kind": "vertical", "parties": parties},
        "arms": [{"algorithm": "split"}],
    }
    first = run(study("first", **changes), tmp_path)
    second = run(after(first, arm="split", **changes), tmp_path)
    assert second.results["start_from"]["split"]["forgetting"]["sites"]["cleveland"]["rows"] > 0
    plan = plan_of(after(first, arm="split", **changes))
    assert_same_tree(first_weights(plan.trial(plan.study.arms[0], 1))[0], weights(first.folder, 1, "split"))
    other = {**changes, "topology": {"kind": "vertical", "parties": {**parties, "clinic": ["age", "sex", "exang"]}}}
    plan = plan_of(after(first, arm="split", **other))
    assert "columns" in refusal(lambda: plan.trial(plan.study.arms[0], 1))


def test_other_hospitals_may_go_on(old: StudyRun, tmp_path: Path) -> None:
    content = run(after(old, hospitals=NEW), tmp_path).results["start_from"]["fedavg"]
    assert content["both"] == []
    assert set(content["forgetting"]["sites"]) == set(OLD)
    assert np.isfinite(content["forgetting"]["mean"]["difference"]["auc"]["difference"])
