"""Networks for images: what they give, how many weights they have, what of them leaves a site, and where they start."""

import math
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from tests.models.small_networks import DIGITS, FINDINGS, TINY, TWO, at, plain, scores_of, some_images
from tests.small_federations import after, assert_same, assert_same_tree, each_round, parts_of, ragged_sites, trial
from wardround.algorithms.fedavg import fedavg
from wardround.core.errors import MachineError, StudyError
from wardround.core.threads import torch_threads
from wardround.core.tree import Tree
from wardround.engines.serial import SERIAL
from wardround.engines.stacked.stacked import STACKED
from wardround.models import MODELS, Model, Shape
from wardround.models.cnn import cnn
from wardround.models.image_network import Norm, groups_for, normalised_by
from wardround.models.monai import densenet, resnet
from wardround.models.residual import ResidualNetwork, residual
from wardround.tasks import class_task
from wardround.training.rounds import start

HEAVY = ("resnet", "densenet")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    with torch_threads(1):
        yield


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
    assert model.task == shape.task


@pytest.mark.parametrize("reduce", [1, 2, 4])
@pytest.mark.parametrize("inputs", [(1, 8, 8), (3, 9, 13), (1, 31, 28), (1, 128, 128)])
def test_odd_sizes_and_colours_pass_through_a_residual_network(inputs: tuple[int, ...], reduce: Any) -> None:
    """Shortcut and convolutions round in the same way, or they could not be added."""
    shape = Shape(inputs, class_task(3))
    assert scores_of(residual((4, 8, 8), reduce=reduce)(shape), some_images(shape)).shape == (3, 3)


@pytest.mark.parametrize(("reduce", "side"), [(1, 64), (2, 32), (4, 16)])
def test_the_first_stage_sees_a_smaller_image(reduce: int, side: int) -> None:
    network = ResidualNetwork(1, 14, (4, 8, 8), 1, "group", 0.0, reduce)
    seen = network.stem(torch.zeros(1, 1, 64, 64))
    assert seen.shape == (1, 4, side, side)
    assert network.stages(seen).shape == (1, 8, side // 4, side // 4)


@pytest.mark.parametrize("reduce", [1, 2, 4])
@pytest.mark.parametrize("inputs", [(1, 8, 8), (3, 9, 13), (1, 31, 28), (1, 64, 64)])
def test_a_head_without_pooling_has_a_weight_for_each_place(inputs: tuple[int, ...], reduce: Any) -> None:
    shape = Shape(inputs, class_task(3))
    model = residual((4, 8, 8), reduce=reduce, pool="none", dropout=0.5)(shape)
    assert scores_of(model, some_images(shape)).shape == (3, 3)
    sides = list(inputs[1:])
    for halving in (reduce, 2, 2):  # of the stem and of the later stages; halving twice rounds as quartering does
        sides = [math.ceil(side / halving) for side in sides]
    assert model.init(0)[0]["head.weight"].shape == (3, 8 * math.prod(sides))
    assert [mask for _, mask in model.mask_shapes.values()] == [(8 * math.prod(sides),)]


def test_only_without_pooling_does_it_matter_where_something_is() -> None:
    """The same values at other places have the same mean, and another sum under weights that differ by place."""
    maps = torch.randn(2, 8, 4, 4, generator=torch.Generator().manual_seed(0))
    for places, alike in ((1, True), (16, False)):
        network = ResidualNetwork(1, 14, (4, 8), 1, "group", 0.0, 4, places)
        network.stem = network.stages = torch.nn.Identity()  # type: ignore[assignment]
        with torch.no_grad():
            assert torch.allclose(network(maps), network(maps.flip(-1)), atol=1e-6) == alike


@pytest.mark.parametrize("kind", ["cnn", "residual", *HEAVY])
def test_tables_and_tiny_images_are_refused(kind: str) -> None:
    with pytest.raises(StudyError, match=f'"{kind}" needs images, but the data are a table'):
        MODELS[kind]()(Shape((13,), class_task(2)))
    with pytest.raises(StudyError, match="images of 3 x 40 are too small"):
        MODELS[kind]()(Shape((1, 3, 40), class_task(2)))


def test_a_network_without_stages_is_refused() -> None:
    with pytest.raises(StudyError, match="model: widths: is empty"):
        residual(())(DIGITS)


@pytest.mark.parametrize("build", [resnet, densenet])
def test_the_stem_of_imagenet_asks_for_larger_images(build: Any) -> None:
    with pytest.raises(StudyError, match=r"images of 28 x 28 are too small .* needs 32 x 32"):
        build(stem="imagenet")(DIGITS)


@pytest.mark.slow
def test_monai_is_imported_only_for_its_own_networks_and_missed_in_plain_words() -> None:
    code = """
import sys
sys.modules["monai"] = None  # as if it were not installed
from wardround.core.errors import MachineError
from wardround.tasks import class_task
from wardround.models import MODELS, Shape
for kind in ("cnn", "residual"):
    MODELS[kind]()(Shape((1, 28, 28), class_task(10)))
for kind in ("resnet", "densenet"):
    try:
        MODELS[kind]()(Shape((1, 28, 28), class_task(10)))
    except MachineError as error:
        assert error.where == f"model: {kind}" and "monai is not installed" in error.problem, error
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
        layers: list[nn.Conv2d | nn.Linear] = [
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
        assert layer.bias is not None
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
    """7,978,856 weights as published. 121 normalisations: two in each of 58 dense layers, three between, two ends."""
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
    model = small_model(kind, norm, Shape((1, 8, 8), class_task(2)))
    sent: list[Tree] = []
    algorithm = fedavg()

    def finish(*arguments: Any) -> Any:
        update, kept_state = algorithm.finish(*arguments)
        sent.extend(update.values())
        return update, kept_state

    arm = trial(replace(algorithm, finish=finish), sites, model, precision="float32")
    run, record = next(each_round(arm, 1))
    params, buffers = model.init(0)
    private = norm_leaves(kind) if norm == "fedbn" else set()
    assert sent
    for leaves in (*sent, run.server["params"], *arm.algorithm.broadcast(run.server, 0).values()):
        assert leaves.keys() == params.keys() - private
    numbers = sum(leaf.numel() for name, leaf in params.items() if name not in private)
    assert record.bytes_up == 2 * 4 * numbers
    first, second = (run.memories[item.name] for item in arm.sites)
    for memory in (first, second):
        assert memory.private.keys() == private
        assert memory.buffers.keys() == buffers.keys()
    for item, other in ((first.private, second.private), (first.buffers, second.buffers)):
        assert not any(torch.equal(item[name], other[name]) for name in item if item[name].dtype == torch.float32)
    if norm == "fedbn":
        begun = start(arm).memories[arm.sites[0].name].private
        assert not any(torch.equal(first.private[name], begun[name]) for name in begun)
        kept_apart = [part for part in parts_of(run) if not part.endswith("private")]
        assert not any(private & parts_of(run)[part].keys() for part in kept_apart)


def test_a_small_residual_network_is_the_same_on_both_engines() -> None:
    """Below 100,000 weights the stacked engine runs it: GroupNorm, in-place ReLU and pooling under vmap."""
    sites = ragged_sites(inputs=(1, 9, 9), sizes=(5, 8, 11))
    model = residual((4, 8), dropout=0.3, reduce=4)(Shape((1, 9, 9), class_task(2)))
    arm = trial(fedavg(), sites, model, rounds=2)

    def last(engine: Any) -> Any:
        state = engine.start([arm])
        for later_state, _ in engine.rounds([arm], state):
            state = later_state
        return engine.runs([arm], state)[0]

    assert_same(last(STACKED), last(SERIAL), atol=1e-12)
    assert not torch.equal(after(arm, 1).server["params"]["head.weight"], start(arm).server["params"]["head.weight"])
