"""A shared part holds what all hospitals share and nothing that one of them keeps; whatever is done to it shows."""

import json
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save

from tests.adaptation.conftest import OTHERS, PRIVATE, SHARED, hearts
from tests.deployment.hospital_files import at_sites, study
from tests.deployment.in_process_federation import federation
from tests.deployment.parity import KNOWN
from wardround.bundles import load_shared, make_shared
from wardround.bundles.build.shared_part import ABOUT, WEIGHTS, part_of_run
from wardround.bundles.sealed_files import seal
from wardround.core import seeds
from wardround.core.errors import BundleError, RunError, StudyError
from wardround.runs.execute import run_study


def saved(run: Path, arm: str, seed: int = 5) -> dict[str, torch.Tensor]:
    return load_file(run / "models" / arm / f"seed-{seed}.safetensors")


@pytest.mark.parametrize(
    ("arm", "leaves"),
    [
        ("fedavg", SHARED),
        ("head", SHARED - {"head.weight", "head.bias"}),
        ("aligned", SHARED | {"alignment.all"}),
    ],
)
def test_it_holds_the_shared_leaves_and_no_other(run: Path, tmp_path: Path, arm: str, leaves: set[str]) -> None:
    shared_part = make_shared(run, arm=arm, seed=6, out=tmp_path / "part")
    leaves_in_file = load_file(shared_part / WEIGHTS)
    assert set(leaves_in_file) == leaves
    trained = saved(run, arm, 6)
    assert all(torch.equal(leaf, trained[f"server/params/{name}"]) for name, leaf in leaves_in_file.items())
    assert load_shared(shared_part).about["seed"] == 6


def test_nothing_of_a_hospital_is_in_it(run: Path, shared: Path) -> None:
    content = b"".join((shared / name).read_bytes() for name in (ABOUT, WEIGHTS))
    private = {name: leaf for name, leaf in saved(run, "fedavg").items() if name.startswith("memory/")}
    assert {name.rsplit("/", 1)[1] for name in private} == PRIVATE
    for leaf in private.values():
        for row in leaf.reshape(-1, leaf.shape[-1]):
            assert row.numpy().tobytes() not in content
    for column in ("age", "trestbps", "thalach", "oldpeak"):  # which columns a hospital has is its own business
        assert f'"{column}'.encode() not in content


def test_it_says_what_training_must_be_like(run: Path, shared: Path) -> None:
    about = load_shared(shared).about
    results = json.loads((run / "results.json").read_bytes())
    assert about["study"]["hash"] == results["study"]["hash"]
    assert about["classes"] == ["no disease", "disease"]
    assert about["sites"] == {name: results["sites"][0]["sites"][name]["train"] for name in OTHERS}
    assert (about["seed"], about["init_seed"], about["first_seed"]) == (5, 5, 5)
    assert (about["training"]["rounds"], about["training"]["local_epochs"]) == (3, 2)
    assert about["evaluation"] == {"test_share": 0.2, "validation_share": 0.2}
    assert about["preparation"]["schema"] == "own"
    assert about["figures"]["metrics"]["accuracy"] == results["arms"]["fedavg"]["metrics"]["accuracy"]
    assert about["figures"]["metrics"]["brier"] == results["arms"]["fedavg"]["metrics"]["brier"]
    assert about["privacy"] is None


def test_the_same_part_has_the_same_id(run: Path, shared: Path, tmp_path: Path) -> None:
    again = load_shared(make_shared(run, arm="fedavg", out=tmp_path / "again"))
    assert again.id == load_shared(shared).id == part_of_run(run, "fedavg").id
    assert again.id != part_of_run(run, "fedavg", 6).id


def test_weights_of_a_seed_that_varies_nothing_begin_where_the_first_began(tmp_path: Path) -> None:
    evaluation = {"seeds": {"first": 5, "count": 2}, "vary": ["split"], "every": 0}
    arms = [{"name": "fedavg", "algorithm": "fedavg"}]
    run_folder = run_study(hearts(OTHERS[:2], arms=arms, evaluation=evaluation), tmp_path).folder
    assert part_of_run(run_folder, "fedavg", 6).about["init_seed"] == 5


def test_a_coordinators_folder_will_do(tmp_path: Path) -> None:
    """Where no hospital's leaves are at hand in the first place."""
    model = {"kind": "adapter", "latent": 5, "hidden": [7]}
    content = study([{"algorithm": "fedprox"}], data={"schema": "own"}, model=model)
    network = federation(content, tmp_path, at_sites(), known_sources=KNOWN)
    folder = network.run().path
    shared = load_shared(make_shared(folder, arm="fedprox", out=tmp_path / "part", sources=KNOWN))
    assert set(shared.leaves) == SHARED
    model_leaves = saved(folder, "fedprox", shared.about["seed"])
    assert all(torch.equal(leaf, model_leaves[f"server/params/{name}"]) for name, leaf in shared.leaves.items())
    assert set(shared.about["sites"]) == set(at_sites())
    assert not shared.about["simulated"]


@pytest.mark.parametrize(("arm", "words"), [("plain", "no private adapter"), ("local", "no part that all share")])
def test_an_arm_that_nobody_can_join_is_refused(run: Path, tmp_path: Path, arm: str, words: str) -> None:
    with pytest.raises(BundleError, match=words):
        make_shared(run, arm=arm, out=tmp_path / "part")
    assert not list(tmp_path.iterdir())


def test_misspelt_names_are_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="Did you mean 'fedavg'"):
        make_shared(run, arm="fedavgg", out=tmp_path / "part")
    with pytest.raises(StudyError, match="no seed 9"):
        make_shared(run, arm="fedavg", seed=9, out=tmp_path / "part")
    with pytest.raises(RunError, match="not a run folder"):
        make_shared(tmp_path, arm="fedavg", out=tmp_path / "part")
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").touch()
    with pytest.raises(BundleError, match="there already"):
        make_shared(run, arm="fedavg", out=tmp_path / "there")


def test_an_unfinished_or_damaged_run_is_refused(run: Path, tmp_path: Path) -> None:
    copy = copytree(run, tmp_path / "run")
    weights = copy / "models" / "fedavg" / "seed-5.safetensors"
    leaves = load_file(weights)
    for damage in ({**leaves, "server/params/head.bias": torch.zeros(2)}, {"server/params/head.bias": torch.zeros(1)}):
        weights.write_bytes(save(damage))
        with pytest.raises(RunError, match="not that of its study"):
            make_shared(copy, arm="fedavg", out=tmp_path / "part")
    weights.write_bytes(b"no tensors")
    with pytest.raises(RunError, match="cannot be read"):
        make_shared(copy, arm="fedavg", out=tmp_path / "part")
    (copy / "results.json").unlink()
    with pytest.raises(RunError, match="not complete"):
        make_shared(copy, arm="fedavg", out=tmp_path / "part")


@pytest.fixture
def copy(shared: Path, tmp_path: Path) -> Path:
    return copytree(shared, tmp_path / "copy")


@pytest.mark.parametrize("name", [ABOUT, WEIGHTS])
def test_no_byte_can_change_unseen(copy: Path, name: str) -> None:
    content = (copy / name).read_bytes()
    drawn = seeds.generator(0, f"tampering with {name}")
    for place in sorted({0, len(content) - 1, *drawn.integers(0, len(content), 100).tolist()}):
        changed = bytearray(content)
        changed[place] ^= int(drawn.integers(1, 256))
        (copy / name).write_bytes(changed)
        with pytest.raises(BundleError):
            load_shared(copy)
    (copy / name).write_bytes(content)
    load_shared(copy)


def test_what_is_no_shared_part_is_refused(copy: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="does not exist"):
        load_shared(tmp_path / "nowhere")
    with pytest.raises(BundleError, match=r"it has no shared\.json"):
        load_shared(tmp_path)
    (copy / "notes.txt").touch()
    with pytest.raises(BundleError, match=r"'notes.txt' is not part"):
        load_shared(copy)
    (copy / "notes.txt").unlink()
    weights = (copy / WEIGHTS).read_bytes()
    (copy / WEIGHTS).unlink()
    with pytest.raises(BundleError, match="is missing"):
        load_shared(copy)
    (tmp_path / "elsewhere").write_bytes(weights)
    (copy / WEIGHTS).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BundleError, match="not a plain file"):
        load_shared(copy)


def test_a_newer_format_is_refused_as_such(copy: Path) -> None:
    about = json.loads((copy / ABOUT).read_bytes())
    (copy / ABOUT).write_bytes(seal({**about, "format": 2}, {WEIGHTS: (copy / WEIGHTS).read_bytes()}))
    with pytest.raises(BundleError, match="format 2") as caught:
        load_shared(copy)
    assert "newer version" in caught.value.remedy


@pytest.mark.parametrize(
    "change",
    [
        {"leaves": {"adapter.first.bias": torch.zeros(5)}},
        {"leaves": {"head.bias": torch.zeros(2)}},
        {"leaves": {"head.bias": torch.tensor([float("nan")])}},
        {"leaves": {"head.bias": torch.zeros(1, dtype=torch.float64)}},
        {"about": {"classes": ["one"]}},
        {"about": {"training": {"round": 3}}},
        {"about": {"model": {"kind": "logistic", "options": {}}}},
        {"about": {"init_seed": "5"}},
        {"about": {"evaluation": {}}},
    ],
)
def test_a_sealed_part_with_wrong_content_is_refused(copy: Path, change: dict[str, Any]) -> None:
    about = json.loads((copy / ABOUT).read_bytes()) | change.get("about", {})
    weights = save({**load_file(copy / WEIGHTS), **change.get("leaves", {})})
    rmtree(copy)
    copy.mkdir()
    (copy / WEIGHTS).write_bytes(weights)
    (copy / ABOUT).write_bytes(seal(about, {WEIGHTS: weights}))
    with pytest.raises(BundleError, match="does not hold what a shared part"):
        load_shared(copy)
