"""Transfer learning: what is taken from a file of weights, and what is refused."""

from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from tests.models.small_networks import DIGITS, FINDINGS, TINY, TWO, at, plain, scores_of, some_images
from tests.small_federations import after, assert_same_tree, ragged_sites, trial
from wardround.algorithms.fedavg import fedavg
from wardround.core import tree
from wardround.core.errors import StudyError
from wardround.core.tree import Tree
from wardround.models import MODELS, Shape, weights_digest
from wardround.models.cnn import cnn
from wardround.models.image_network import Norm
from wardround.models.monai import own_name
from wardround.models.residual import residual
from wardround.runs.prediction_tables import saved_leaves
from wardround.tasks import class_task, findings_task


def written(folder: Path, leaves: Tree, name: str = "weights.safetensors") -> Path:
    save_file({key: leaf.contiguous() for key, leaf in leaves.items()}, folder / name)
    return folder / name


def test_the_body_comes_from_the_file_and_the_head_from_the_seed(tmp_path: Path) -> None:
    path = written(tmp_path, plain(residual(**TINY)(DIGITS), seed=9))
    fresh, started = residual(**TINY)(FINDINGS), residual(**TINY, weights=path)(FINDINGS)
    body = plain(residual(**TINY)(DIGITS), seed=9)
    for seed in (1, 2):
        params, _ = started.init(seed)
        expected = fresh.init(seed)[0]
        assert params.keys() == expected.keys()
        for name, leaf in params.items():
            assert torch.equal(leaf, (expected if name.startswith("head.") else body)[name]), name
    assert not torch.equal(started.init(1)[0]["head.weight"], started.init(2)[0]["head.weight"])


def test_the_head_is_fresh_even_where_it_would_fit_unless_it_is_to_be_kept(tmp_path: Path) -> None:
    weights = plain(residual(**TINY)(DIGITS), seed=9)
    path = written(tmp_path, weights)
    assert not torch.equal(residual(**TINY, weights=path)(DIGITS).init(1)[0]["head.weight"], weights["head.weight"])
    assert_same_tree(residual(**TINY, weights=path, keep_head=True)(DIGITS).init(1)[0], weights)
    other = r"2 of 18 leaves .* have another shape: head.weight \(10, 8\), not \(14, 8\)"
    with pytest.raises(StudyError, match=other):
        residual(**TINY, weights=path, keep_head=True)(FINDINGS)


@pytest.mark.parametrize("settings", [{}, {"norm": "group"}, {"dropout": 0.5}, {"norm": "batch", "dropout": 0.5}])
def test_the_head_of_a_cnn_is_its_last_layer(settings: dict[str, Any], tmp_path: Path) -> None:
    weights = plain(cnn((4, 8), 8, **settings)(DIGITS), seed=9)
    path = written(tmp_path, weights)
    params, _ = cnn((4, 8), 8, **settings, weights=path)(FINDINGS).init(1)
    differs = {name for name, leaf in params.items() if leaf.shape != weights[name].shape}
    assert differs == {f"{len_of(settings)}.weight", f"{len_of(settings)}.bias"}
    assert all(torch.equal(leaf, weights[name]) for name, leaf in params.items() if name not in differs)


def len_of(settings: dict[str, Any]) -> int:
    return 9 + 2 * ("norm" in settings) + ("dropout" in settings)


def test_weights_that_were_started_are_fresh_copies(tmp_path: Path) -> None:
    model = residual(**TINY, weights=written(tmp_path, plain(residual(**TINY)(TWO), seed=9)))(TWO)
    params, _ = model.init(1)
    expected = tree.clone(params)
    for leaf in params.values():
        leaf += 1
    assert_same_tree(model.init(1)[0], expected)


def test_the_file_is_read_once_when_the_model_is_built(tmp_path: Path) -> None:
    path = written(tmp_path, plain(residual(**TINY)(TWO), seed=9))
    model = residual(**TINY, weights=path)(TWO)
    expected = model.init(1)[0]
    path.unlink()
    assert_same_tree(model.init(1)[0], expected)


def test_statistics_and_private_weights_come_along(tmp_path: Path) -> None:
    source = residual(**TINY, norm="batch")(TWO)
    weights = {name: leaf + 2 for name, leaf in plain(source, seed=9).items()}
    path = written(tmp_path, weights)
    params, buffers = residual(**TINY, norm="fedbn", weights=path)(TWO).init(1)
    assert buffers
    assert_same_tree(buffers, {name: weights[name] for name in buffers})
    assert torch.equal(params["stem.1.weight"], weights["stem.1.weight"])


@pytest.mark.parametrize("norm", ["group", "fedbn"])
def test_a_run_folders_own_file_is_taken(norm: Norm, tmp_path: Path) -> None:
    """Its shared weights; what hospitals keep is theirs and stays unread, so that FedBN starts afresh there."""
    sites = ragged_sites(inputs=(1, 8, 8), sizes=(8, 12), dtype=torch.float32)
    shape = Shape((1, 8, 8), class_task(2))
    run = after(trial(fedavg(), sites, residual(**TINY, norm=norm)(shape), precision="float32"), 1)
    leaves = saved_leaves(run)
    assert any(name.startswith("server/params/stem.0") for name in leaves)
    started = residual(**TINY, norm=norm, weights=written(tmp_path, leaves), keep_head=True)(shape)
    shared = run.server["params"]
    for name, leaf in started.init(1)[0].items():
        assert torch.equal(
            leaf, shared[name] if name in shared else residual(**TINY, norm=norm)(shape).init(1)[0][name]
        )


def test_three_colours_become_grey_by_their_sum(tmp_path: Path) -> None:
    """A grey image given as three equal colours has the same scores as in one."""
    coloured, grey = at(28, TWO, colours=3), TWO
    source = residual(**TINY)(coloured)
    path = written(tmp_path, plain(source, seed=9))
    started = residual(**TINY, weights=path, keep_head=True)(grey)
    x = some_images(grey)
    expected = scores_of(source, x.expand(-1, 3, -1, -1), seed=9)
    torch.testing.assert_close(scores_of(started, x), expected, rtol=0, atol=1e-5)


def test_half_precision_becomes_single(tmp_path: Path) -> None:
    weights = plain(residual(**TINY)(TWO), seed=9)
    path = written(tmp_path, {name: leaf.half() for name, leaf in weights.items()})
    params, _ = residual(**TINY, weights=path)(TWO).init(1)
    assert {leaf.dtype for leaf in params.values()} == {torch.float32}
    assert torch.equal(params["stem.0.weight"], weights["stem.0.weight"].half().float())


def test_a_file_of_another_network_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, plain(cnn((4, 8), 8)(TWO)))
    with pytest.raises(StudyError, match=r"has none of the model's 16 leaves, such as stem\.0\.weight; stem\.1"):
        residual(**TINY, weights=path)(TWO)


def test_a_leaf_of_another_shape_is_refused_with_counts_and_names(tmp_path: Path) -> None:
    """Of 16 leaves outside the head (stem 3, blocks 6 and 7) all of the second block's."""
    path = written(tmp_path, plain(residual((4, 12), reduce=2)(TWO)))
    with pytest.raises(StudyError) as refused:
        residual(**TINY, weights=path)(TWO)
    assert "7 of 16 leaves in weights.safetensors have another shape" in refused.value.problem
    assert "stages.1.conv1.weight (12, 4, 3, 3), not (8, 4, 3, 3)" in refused.value.problem
    assert "and 4 more" in refused.value.problem
    path = written(tmp_path, plain(cnn((4, 8), 8)(at(64, TWO))))  # the hidden layer depends on the image's size
    with pytest.raises(StudyError, match=r"1 of 6 leaves .* 7.weight \(8, 2048\), not \(8, 392\)"):
        cnn((4, 8), 8, weights=path)(TWO)


def test_a_file_that_lacks_a_part_of_the_network_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, plain(residual(**TINY)(TWO)))
    with pytest.raises(StudyError, match=r"lacks 6 of the model's 22 leaves: stages\.2\.conv1\.weight; "):
        residual((4, 8, 8), reduce=2, weights=path)(TWO)


def test_leaves_that_nobody_asks_for_do_no_harm(tmp_path: Path) -> None:
    weights = plain(residual(**TINY)(TWO), seed=9)
    path = written(tmp_path, {**weights, "epoch": torch.tensor(3)})
    params, _ = residual(**TINY, weights=path)(TWO).init(1)
    assert torch.equal(params["stem.0.weight"], weights["stem.0.weight"])
    assert "epoch" not in params


def test_diverged_weights_are_refused(tmp_path: Path) -> None:
    weights = plain(residual(**TINY)(TWO))
    weights["stem.0.weight"][0, 0, 0, 0] = float("nan")
    with pytest.raises(StudyError, match=r"1 of 16 leaves .* are not finite numbers: stem\.0\.weight"):
        residual(**TINY, weights=written(tmp_path, weights))(TWO)


@pytest.mark.parametrize("name", ["weights.pt", "weights.pth", "WEIGHTS.PTH", "model.bin"])
def test_a_pickle_is_never_opened(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"cos\nsystem\n(S'echo opened'\ntR.")
    for use in (lambda path: residual(weights=path)(TWO), lambda path: weights_digest({"weights": path})):
        with pytest.raises(StudyError, match="is a pickle, which can run any program") as refused:
            use(tmp_path / name)
        assert "safetensors.torch.save_file(torch.load(" in refused.value.remedy


def test_missing_damaged_and_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="there is no file"):
        residual(weights=tmp_path / "absent.safetensors")(TWO)
    (tmp_path / "cut.safetensors").write_bytes(written(tmp_path, plain(residual(**TINY)(TWO))).read_bytes()[:2000])
    with pytest.raises(StudyError, match=r"cut\.safetensors is no safetensors file, or damaged"):
        residual(**TINY, weights=tmp_path / "cut.safetensors")(TWO)
    (tmp_path / "weights.h5").write_bytes(b"")
    with pytest.raises(StudyError, match=r"weights\.h5 is not a \.safetensors file"):
        residual(weights=tmp_path / "weights.h5")(TWO)


def test_the_digest_is_that_of_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, plain(residual(**TINY)(TWO)))
    assert weights_digest({"weights": path, "blocks": 1}) == sha256(path.read_bytes()).hexdigest()
    assert weights_digest({"weights": None}) is None
    assert weights_digest({"hidden": (3,)}) is None


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("features.denseblock1.denselayer12.norm1.weight", "features.denseblock1.denselayer12.layers.norm1.weight"),
        ("features.denseblock4.denselayer1.conv.2.weight", "features.denseblock4.denselayer1.layers.conv2.weight"),
        (
            "features.denseblock1.denselayer1.layers.conv2.weight",
            "features.denseblock1.denselayer1.layers.conv2.weight",
        ),
        ("features.transition1.norm.weight", "features.transition1.norm.weight"),
        ("features.conv0.weight", "features.conv0.weight"),
    ],
)
def test_torchvisions_names_of_a_densenet_are_understood(theirs: str, ours: str) -> None:
    assert own_name(theirs) == ours


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "head"), [("resnet", "fc"), ("densenet", "class_layers.out")])
def test_monais_networks_start_from_torchvisions_files(kind: str, head: str, tmp_path: Path) -> None:
    """Three colours, a thousand classes, BatchNorm: what such a file has, under the names that it uses."""
    weights = plain(MODELS[kind](norm="batch")(replace(FINDINGS, inputs=(3, 28, 28), task=findings_task(1000))), seed=9)
    theirs = {
        name.replace(".layers.", ".").replace("class_layers.out", "classifier"): weights[name] for name in weights
    }
    path = written(tmp_path, theirs)
    for norm in ("group", "batch", "fedbn"):
        params, buffers = MODELS[kind](norm=norm, weights=path)(FINDINGS).init(1)
        fresh, _ = MODELS[kind](norm=norm)(FINDINGS).init(1)
        for name, leaf in params.items():
            expected = fresh[name] if name.startswith(head) else weights[name]
            expected = expected.sum(1, keepdim=True) if expected.shape[1:2] == (3,) else expected
            assert torch.equal(leaf, expected), name
        assert_same_tree(buffers, {name: weights[name] for name in buffers})


def test_grey_is_shared_out_over_three_colours(tmp_path: Path) -> None:
    """A grey image has the same scores in three equal channels as in the network that it was trained in."""
    coloured, grey = at(28, TWO, colours=3), TWO
    source = residual(**TINY)(grey)
    path = written(tmp_path, plain(source, seed=9))
    started = residual(**TINY, weights=path, keep_head=True)(coloured)
    x = some_images(grey)
    expected = scores_of(source, x, seed=9)
    torch.testing.assert_close(scores_of(started, x.expand(-1, 3, -1, -1)), expected, rtol=0, atol=1e-5)
