"""Networks for images: what they give, how many weights they have, what of them leaves a site, and where they start."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from tests.support import after, assert_same, assert_same_tree, each_round, parts_of, ragged_sites, trial
from wardround import tree
from wardround.algorithms.fedavg import fedavg
from wardround.artifacts.tables import saved_leaves
from wardround.engines.serial import SERIAL
from wardround.engines.stacked import STACKED
from wardround.engines.threads import torch_threads
from wardround.errors import MachineError, StudyError
from wardround.models import MODELS, Model, Shape, weights_digest
from wardround.models.cnn import cnn
from wardround.models.densenet import densenet, own_name
from wardround.models.norms import Norm, groups_for, normalised_by
from wardround.models.residual import ResidualNetwork, residual
from wardround.models.resnet import resnet
from wardround.rounds import start
from wardround.tree import Tree

FINDINGS, DIGITS, TWO = Shape((1, 28, 28), 14, findings=True), Shape((1, 28, 28), 10), Shape((1, 28, 28), 2)
TINY: dict[str, Any] = {"widths": (4, 8), "reduce": 2}
HEAVY = ("resnet", "densenet")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


def at(pixels: int, shape: Shape, colours: int = 1) -> Shape:
    return replace(shape, inputs=(colours, pixels, pixels))


def some_images(shape: Shape, rows: int = 3) -> Tensor:
    return torch.tensor(np.random.default_rng(5).random((rows, *shape.inputs)), dtype=torch.float32)


def scores_of(model: Model, x: Tensor, seed: int = 1) -> Tensor:
    params, buffers = model.init(seed)
    with torch.no_grad():
        return model.logits(params, buffers, x, None)[0]


def plain(model: Model, seed: int = 1) -> Tree:
    """All leaves, buffers as well, as a module's own file has them."""
    params, buffers = model.init(seed)
    return {**params, **buffers}


# What they give


@pytest.mark.parametrize("pixels", [28, 64])
@pytest.mark.parametrize(("shape", "outputs"), [(FINDINGS, 14), (DIGITS, 10), (TWO, 1)])
@pytest.mark.parametrize("settings", [{"kind": "cnn", "channels": (4, 8), "hidden": 8}, {"kind": "residual", **TINY}])
def test_a_row_gets_one_score_for_each_finding_or_class(
    settings: dict[str, Any], shape: Shape, outputs: int, pixels: int
) -> None:
    kind, shape = settings["kind"], at(pixels, shape)
    model = MODELS[kind](**{key: value for key, value in settings.items() if key != "kind"})(shape)
    assert scores_of(model, some_images(shape)).shape == (3, outputs)
    assert model.findings == shape.findings


@pytest.mark.parametrize("reduce", [1, 2, 4])
@pytest.mark.parametrize("inputs", [(1, 8, 8), (3, 9, 13), (1, 31, 28), (1, 128, 128)])
def test_odd_sizes_and_colours_pass_through_a_residual_network(inputs: tuple[int, ...], reduce: Any) -> None:
    """Shortcut and convolutions round in the same way, or they could not be added."""
    shape = Shape(inputs, 3)
    assert scores_of(residual((4, 8, 8), reduce=reduce)(shape), some_images(shape)).shape == (3, 3)


@pytest.mark.parametrize(("reduce", "side"), [(1, 64), (2, 32), (4, 16)])
def test_the_first_stage_sees_a_smaller_image(reduce: int, side: int) -> None:
    network = ResidualNetwork(1, 14, (4, 8, 8), 1, "group", 0.0, reduce)
    seen = network.stem(torch.zeros(1, 1, 64, 64))
    assert seen.shape == (1, 4, side, side)
    assert network.stages(seen).shape == (1, 8, side // 4, side // 4)


@pytest.mark.parametrize("kind", ["cnn", "residual", *HEAVY])
def test_tables_and_tiny_images_are_refused(kind: str) -> None:
    with pytest.raises(StudyError, match=f'"{kind}" needs images, but the data are a table'):
        MODELS[kind]()(Shape((13,), 2))
    with pytest.raises(StudyError, match="images of 3 x 40 are too small"):
        MODELS[kind]()(Shape((1, 3, 40), 2))


@pytest.mark.parametrize("build", [resnet, densenet])
def test_the_stem_of_imagenet_asks_for_larger_images(build: Any) -> None:
    with pytest.raises(StudyError, match="images of 28 x 28 are too small .* needs 32 x 32"):
        build(stem="imagenet")(DIGITS)


def test_monai_is_imported_only_for_its_own_networks_and_missed_in_plain_words() -> None:
    code = """
import sys
sys.modules["monai"] = None  # as if it were not installed
from wardround.errors import MachineError
from wardround.models import MODELS, Shape
for kind in ("cnn", "residual"):
    MODELS[kind]()(Shape((1, 28, 28), 10))
for kind in ("resnet", "densenet"):
    try:
        MODELS[kind]()(Shape((1, 28, 28), 10))
    except MachineError as error:
        assert error.where == f"model: {kind}" and "needs the package monai" in error.problem, error
        assert "wardround[imaging]" in error.remedy
    else:
        raise SystemExit(f"{kind} was built without monai")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert MachineError.exit_code == 7


# How many weights they have


def test_the_default_cnn_is_mcmahans() -> None:
    """Convolutions 25 x 1 x 32 + 32 and 25 x 32 x 64 + 64, then 7 x 7 x 64 x 512 + 512 and 512 x 10 + 10: the paper's
    1,663,370."""
    model = cnn()(DIGITS)
    assert model.size == 832 + 51_264 + 1_606_144 + 5_130 == 1_663_370
    assert list(model.init(0)[0]) == [f"{place}.{part}" for place in (0, 3, 7, 9) for part in ("weight", "bias")]


def test_a_cnn_with_three_by_three_kernels() -> None:
    """9 x 64 + 64 and 9 x 64 x 128 + 128, then 16 x 16 x 128 x 256 + 256 and 256 x 14 + 14."""
    model = cnn((64, 128), hidden=256, dropout=0.5, kernel=3)(at(64, FINDINGS))
    assert model.size == 640 + 73_856 + 8_388_864 + 3_598
    assert model.mask_shapes == {"9.mask": (0.5, (256,))}


def test_new_settings_leave_the_old_network_as_it_was() -> None:
    """The same draws in the same order as layers that are written out."""
    torch_state = torch.get_rng_state()
    try:
        torch.manual_seed(3)
        layers = [
            nn.Conv2d(1, 4, 5, padding=2),
            nn.Conv2d(4, 8, 5, padding=2),
            nn.Linear(8 * 49, 16),
            nn.Linear(16, 10),
        ]
    finally:
        torch.set_rng_state(torch_state)
    params, _ = cnn((4, 8), hidden=16)(DIGITS).init(3)
    for place, layer in zip((0, 3, 7, 9), layers, strict=True):
        assert torch.equal(params[f"{place}.weight"], layer.weight)
        assert torch.equal(params[f"{place}.bias"], layer.bias)


@pytest.mark.parametrize("norm", ["group", "batch", "fedbn"])
def test_a_residual_network_has_the_weights_that_one_counts(norm: Norm) -> None:
    """Stem 25 x 4 and a norm of 8. Four to four: 2 x 9 x 16 and two norms of 8. Four to eight: 9 x 32 + 9 x 64, two
    norms of 16, shortcut 32. Eight to eight: 2 x 9 x 64 and two norms of 16. Head 8 x 14 + 14."""
    stem, narrow, wider, wide, head = 100 + 8, 288 + 16, 288 + 576 + 32 + 32, 1_152 + 32, 126
    assert residual((4, 8), norm=norm)(FINDINGS).size == stem + narrow + wider + head == 1_466
    assert residual((4, 8), blocks=2, norm=norm)(FINDINGS).size == stem + 2 * narrow + wider + wide + head


def test_the_default_residual_network_has_1_2_million_weights() -> None:
    """For w = 32, 64, 128, 256: 18 w^2 and 4 w for the first stage, then 9 x w/2 x w + 9 w^2, 4 w and w/2 x w each."""
    stages = [18 * 32**2 + 4 * 32] + [9 * w * w // 2 + 9 * w * w + 4 * w + w * w // 2 for w in (64, 128, 256)]
    assert residual()(FINDINGS).size == 25 * 32 + 64 + sum(stages) + 256 * 14 + 14 == 1_229_038


# MONAI's networks


@pytest.fixture(scope="module")
def resnets() -> dict[str, Model]:
    kinds: tuple[Norm, ...] = ("group", "batch", "fedbn")
    return {norm: resnet(18, norm)(FINDINGS) for norm in kinds}


@pytest.fixture(scope="module")
def densenets() -> dict[str, Model]:
    kinds: tuple[Norm, ...] = ("group", "batch", "fedbn")
    return {norm: densenet(norm)(FINDINGS) for norm in kinds}


@pytest.mark.slow
def test_resnet_18_is_the_published_one_but_for_its_two_ends(resnets: dict[str, Model]) -> None:
    """11,689,512 weights with three colours and 1,000 classes: less two colours of 7 x 7 x 64, less one head, plus
    another. It has 20 normalisations: the stem's, two in each of eight blocks, one in each of three shortcuts."""
    expected = 11_689_512 - 2 * 49 * 64 - (512 * 1000 + 1000) + (512 * 14 + 14)
    assert {model.size for model in resnets.values()} == {expected}
    check_norms(resnets, 20)


@pytest.mark.slow
def test_resnet_50_is_the_published_one_but_for_its_two_ends() -> None:
    model = resnet(50)(DIGITS)
    assert model.size == 25_557_032 - 2 * 49 * 64 - (2048 * 1000 + 1000) + (2048 * 10 + 10)
    assert not model.init(0)[1]
    assert scores_of(model, some_images(DIGITS)).shape == (3, 10)


@pytest.mark.slow
def test_densenet_121_is_the_published_one_but_for_its_two_ends(densenets: dict[str, Model]) -> None:
    """7,978,856 weights as published. 121 normalisations: two in each of 58 dense layers, three transitions, two ends."""
    expected = 7_978_856 - 2 * 49 * 64 - (1024 * 1000 + 1000) + (1024 * 14 + 14)
    assert {model.size for model in densenets.values()} == {expected}
    check_norms(densenets, 121)


def check_norms(models: dict[str, Model], count: int) -> None:
    for norm, model in models.items():
        params, buffers = model.init(0)
        assert len([name for name in buffers if name.endswith("running_var")]) == (0 if norm == "group" else count)
        assert len([name for name in params if model.is_private(name)]) == (2 * count if norm == "fedbn" else 0)
        assert not any(model.is_private(name) for name, leaf in params.items() if leaf.dim() > 1)


@pytest.mark.slow
@pytest.mark.parametrize(("stem", "side"), [("small", 8), ("imagenet", 2)])
@pytest.mark.parametrize("build", [resnet, densenet])
def test_the_small_stem_keeps_the_size_of_an_image(build: Any, stem: str, side: int) -> None:
    """Blocks halve 64 pixels three times; the other stem halves them twice before. Weights are the same."""
    shape = at(64, TWO)
    model = build(stem=stem)(shape)
    averaged: list[tuple[int, ...]] = []

    def watch(module: nn.Module, given: Any) -> None:
        if isinstance(module, nn.AdaptiveAvgPool2d):
            averaged.append(tuple(given[0].shape[2:]))

    hook = register_module_forward_pre_hook(watch)
    try:
        assert scores_of(model, some_images(shape)).shape == (3, 1)
    finally:
        hook.remove()
    assert averaged == [(side, side)]
    assert_same_tree(plain(model), plain(build()(shape)))


# Normalisation


@pytest.mark.parametrize(
    ("channels", "groups"), [(1, 1), (3, 1), (4, 1), (8, 2), (10, 2), (16, 4), (20, 5), (64, 16), (96, 16), (13, 1)]
)
def test_groups_are_equal_have_four_channels_and_are_sixteen_at_most(channels: int, groups: int) -> None:
    assert groups_for(channels) == groups


def test_every_batch_norm_is_replaced_however_deep_it_is() -> None:
    module = nn.Sequential(nn.BatchNorm2d(8), nn.Sequential(nn.Conv2d(8, 64, 1), nn.Sequential(nn.BatchNorm2d(64))))
    assert normalised_by("batch", module) is module
    assert isinstance(module[0], nn.BatchNorm2d)
    normalised_by("group", module)
    norms = [part for part in module.modules() if isinstance(part, nn.GroupNorm)]
    assert [(part.num_groups, part.num_channels) for part in norms] == [(2, 8), (16, 64)]
    assert not any(isinstance(part, nn.BatchNorm2d) for part in module.modules())


def small_model(kind: str, norm: Any, shape: Shape = TWO) -> Model:
    return cnn((4, 8), 8, norm=norm)(shape) if kind == "cnn" else residual((4, 8), reduce=2, norm=norm)(shape)


def norm_leaves(kind: str) -> set[str]:
    places = ["1", "5"] if kind == "cnn" else ["stem.1", *(f"stages.{i}.norm{n}" for i in (0, 1) for n in (1, 2))]
    return {f"{place}.{part}" for place in places for part in ("weight", "bias")}


@pytest.mark.parametrize("kind", ["cnn", "residual"])
def test_what_is_private_of_each_kind_of_normalisation(kind: str) -> None:
    for norm, statistics, private in (("group", 0, False), ("batch", 3, False), ("fedbn", 3, True)):
        model = small_model(kind, norm)
        params, buffers = model.init(0)
        assert len(buffers) == statistics * len(norm_leaves(kind)) / 2
        assert norm_leaves(kind) < params.keys()
        assert {name for name in params if model.is_private(name)} == (norm_leaves(kind) if private else set())


@pytest.mark.parametrize("kind", ["cnn", "residual"])
@pytest.mark.parametrize("norm", ["group", "batch", "fedbn"])
def test_what_two_hospitals_send_and_keep_in_a_round(kind: str, norm: str) -> None:
    """Statistics are never sent; with FedBN no leaf of a normalisation is, and each hospital trains its own."""
    sites = ragged_sites(inputs=(1, 8, 8), sizes=(8, 12), dtype=torch.float32)
    model = small_model(kind, norm, Shape((1, 8, 8), 2))
    sent: list[Tree] = []
    algorithm = fedavg()

    def finish(*arguments: Any) -> Any:
        update, kept = algorithm.finish(*arguments)
        sent.extend(update.values())
        return update, kept

    arm = trial(replace(algorithm, finish=finish), sites, model, precision="float32")
    run, record = next(each_round(arm, 1))
    params, buffers = model.init(0)
    private = norm_leaves(kind) if norm == "fedbn" else set()
    assert sent
    for leaves in (*sent, run.server["params"], *arm.algorithm.broadcast(run.server, 0).values()):
        assert leaves.keys() == params.keys() - private
    numbers = sum(leaf.numel() for name, leaf in params.items() if name not in private)
    assert record.bytes_up == 2 * 4 * numbers
    first, second = (run.memories[one.name] for one in arm.sites)
    for memory in (first, second):
        assert memory.private.keys() == private
        assert memory.buffers.keys() == buffers.keys()
    for one, other in ((first.private, second.private), (first.buffers, second.buffers)):
        assert not any(torch.equal(one[name], other[name]) for name in one if one[name].dtype == torch.float32)
    if norm == "fedbn":
        begun = start(arm).memories[arm.sites[0].name].private
        assert not any(torch.equal(first.private[name], begun[name]) for name in begun)
        kept_apart = [part for part in parts_of(run) if not part.endswith("private")]
        assert not any(private & parts_of(run)[part].keys() for part in kept_apart)


def test_a_small_residual_network_is_the_same_on_both_engines() -> None:
    """Below 100,000 weights the stacked engine runs it: GroupNorm, in-place ReLU and pooling under vmap."""
    sites = ragged_sites(inputs=(1, 9, 9), sizes=(5, 8, 11))
    model = residual((4, 8), dropout=0.3, reduce=4)(Shape((1, 9, 9), 2))
    arm = trial(fedavg(), sites, model, rounds=2)

    def last(engine: Any) -> Any:
        state = engine.start([arm])
        for made, _ in engine.rounds([arm], state):
            state = made
        return engine.runs([arm], state)[0]

    assert_same(last(STACKED), last(SERIAL), atol=1e-12)
    assert not torch.equal(after(arm, 1).server["params"]["head.weight"], start(arm).server["params"]["head.weight"])


# Starting from a file


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
    made = plain(residual(**TINY)(DIGITS), seed=9)
    path = written(tmp_path, made)
    assert not torch.equal(residual(**TINY, weights=path)(DIGITS).init(1)[0]["head.weight"], made["head.weight"])
    assert_same_tree(residual(**TINY, weights=path, keep_head=True)(DIGITS).init(1)[0], made)
    other = r"2 of 18 leaves .* have another shape: head.weight \(10, 8\), not \(14, 8\)"
    with pytest.raises(StudyError, match=other):
        residual(**TINY, weights=path, keep_head=True)(FINDINGS)


@pytest.mark.parametrize("settings", [{}, {"norm": "group"}, {"dropout": 0.5}, {"norm": "batch", "dropout": 0.5}])
def test_the_head_of_a_cnn_is_its_last_layer(settings: dict[str, Any], tmp_path: Path) -> None:
    made = plain(cnn((4, 8), 8, **settings)(DIGITS), seed=9)
    path = written(tmp_path, made)
    params, _ = cnn((4, 8), 8, **settings, weights=path)(FINDINGS).init(1)
    differs = {name for name, leaf in params.items() if leaf.shape != made[name].shape}
    assert differs == {f"{len_of(settings)}.weight", f"{len_of(settings)}.bias"}
    assert all(torch.equal(leaf, made[name]) for name, leaf in params.items() if name not in differs)


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
    made = {name: leaf + 2 for name, leaf in plain(source, seed=9).items()}
    path = written(tmp_path, made)
    params, buffers = residual(**TINY, norm="fedbn", weights=path)(TWO).init(1)
    assert buffers
    assert_same_tree(buffers, {name: made[name] for name in buffers})
    assert torch.equal(params["stem.1.weight"], made["stem.1.weight"])


@pytest.mark.parametrize("norm", ["group", "fedbn"])
def test_a_run_folders_own_file_is_taken(norm: Norm, tmp_path: Path) -> None:
    """Its shared weights; what hospitals keep is theirs and stays unread, so that FedBN starts afresh there."""
    sites = ragged_sites(inputs=(1, 8, 8), sizes=(8, 12), dtype=torch.float32)
    shape = Shape((1, 8, 8), 2)
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
    made = plain(residual(**TINY)(TWO), seed=9)
    path = written(tmp_path, {name: leaf.half() for name, leaf in made.items()})
    params, _ = residual(**TINY, weights=path)(TWO).init(1)
    assert {leaf.dtype for leaf in params.values()} == {torch.float32}
    assert torch.equal(params["stem.0.weight"], made["stem.0.weight"].half().float())


def test_a_file_of_another_network_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, plain(cnn((4, 8), 8)(TWO)))
    with pytest.raises(StudyError, match="has none of the model's 16 leaves, such as stem.0.weight; stem.1.weight"):
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
    with pytest.raises(StudyError, match="lacks 6 of the model's 22 leaves: stages.2.conv1.weight; stages.2.norm1"):
        residual((4, 8, 8), reduce=2, weights=path)(TWO)


def test_leaves_that_nobody_asks_for_do_no_harm(tmp_path: Path) -> None:
    made = plain(residual(**TINY)(TWO), seed=9)
    path = written(tmp_path, {**made, "epoch": torch.tensor(3)})
    params, _ = residual(**TINY, weights=path)(TWO).init(1)
    assert torch.equal(params["stem.0.weight"], made["stem.0.weight"])
    assert "epoch" not in params


def test_diverged_weights_are_refused(tmp_path: Path) -> None:
    made = plain(residual(**TINY)(TWO))
    made["stem.0.weight"][0, 0, 0, 0] = float("nan")
    with pytest.raises(StudyError, match="1 leaves in weights.safetensors are not finite numbers: stem.0.weight"):
        residual(**TINY, weights=written(tmp_path, made))(TWO)


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
    with pytest.raises(StudyError, match=r"cut\.safetensors is damaged"):
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
def test_monais_networks_start_from_torchvisions_files(
    resnets: dict[str, Model], densenets: dict[str, Model], tmp_path: Path
) -> None:
    """Three colours, a thousand classes, BatchNorm: what such a file has, under the names that it uses."""
    shape = replace(FINDINGS, inputs=(3, 28, 28), classes=1000)
    for kind, models, head in (("resnet", resnets, "fc"), ("densenet", densenets, "class_layers.out")):
        made = plain(MODELS[kind](norm="batch")(shape), seed=9)
        theirs = {name.replace(".layers.", ".").replace("class_layers.out", "classifier"): made[name] for name in made}
        path = written(tmp_path, theirs)
        for norm in models:
            params, buffers = MODELS[kind](norm=norm, weights=path)(FINDINGS).init(1)
            fresh, _ = models[norm].init(1)
            for name, leaf in params.items():
                expected = fresh[name] if name.startswith(head) else made[name]
                expected = expected.sum(1, keepdim=True) if expected.shape[1:2] == (3,) else expected
                assert torch.equal(leaf, expected), name
            assert_same_tree(buffers, {name: made[name] for name in buffers})
