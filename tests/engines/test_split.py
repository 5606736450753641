"""Split learning: in blocks of one batch it is the whole network's training; in longer ones it is what is written."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.representatives import represented
from tests.small_federations import after, assert_same, ragged_sites, site, trial
from wardround.algorithms.pooled import pooled
from wardround.algorithms.split import split
from wardround.data.site import Block, Rows
from wardround.engines.serial import order_of
from wardround.engines.split.exchange import (
    LabelHolder,
    Labelled,
    Own,
    Party,
    cut_of,
    noise_of_rows,
    parts_of,
    protection,
    through_channel,
    whole_of,
)
from wardround.engines.split.split import SPLIT, blocks
from wardround.models import Model, Shape
from wardround.models.joined import joined
from wardround.privacy.dp.noise import SeededStream
from wardround.study.schema import EmbeddingNoise, Topology, Training
from wardround.tasks import class_task
from wardround.training.optimisers import optimiser_for
from wardround.training.trial import Run, Trial

# numbers 0 and 1 are the clinic's, 2 to 4 the laboratory's, 5 and 6 the registry's; 7 and 8: whether those have them
CLINIC, LABORATORY, REGISTRY = (
    Block("clinic", 0, 2, (2,), None),
    Block("laboratory", 2, 5, (3,), 7),
    Block("registry", 5, 7, (2,), 8),
)
TRAININGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "momentum and decay": {"momentum": 0.9, "weight_decay": 0.01},
    "adam": {"optimiser": "adam", "lr": 0.01},
    "balanced": {"class_weights": "balanced"},
}


def lines(classes: int = 2, absent: float = 0.0, precision: str = "float64") -> Any:
    """A site of 40 patients; of some the laboratory or the registry knows nothing."""
    rows = ragged_sites(classes, sizes=(40,), inputs=(9,), dtype=getattr(torch, precision))[0].train
    there = torch.tensor(np.random.default_rng(1).random((40, 2)) >= absent, dtype=rows.x.dtype)
    return site("all", torch.cat([rows.x[:, :7], there], dim=1), rows.y)


def network(parts: Sequence[Block] = (CLINIC, LABORATORY, REGISTRY), classes: int = 2, **settings: Any) -> Model:
    wanted = {"embedding": 3, "hidden": 5, "dropout": 0.2, "absent": 0.3, **settings}
    bottoms = {part.party: {"kind": "mlp", "hidden": [4], "dropout": 0.2} for part in parts}
    return joined(bottoms=bottoms, **wanted)(Shape((9,), class_task(classes), parts=tuple(parts)))


def both(model: Model, absent: float = 0.0, classes: int = 2, block: int = 1, **training: Any) -> tuple[Trial, Trial]:
    rows = [lines(classes, absent, training.get("precision", "float64"))]
    whole = trial(pooled(), rows, model, classes, rounds=3, lr=0.1, **training)
    return whole, replace(
        trial(split(), rows, model, classes, rounds=3, lr=0.1, **training), topology=Topology(block=block)
    )


def trained(arm: Trial, run: Run | None = None) -> tuple[Run, list[Any]]:
    reached, records = SPLIT.start([arm]) if run is None else run, []
    for reached, round_records in SPLIT.rounds([arm], reached):  # noqa: B007, B020
        records += round_records
    return reached, records


@pytest.mark.parametrize(
    ("classes", "name"),
    represented(itertools.product([2, 3], TRAININGS), by=[(2, "adam"), (3, "momentum and decay")]),
)
def test_with_blocks_of_one_batch_it_is_the_whole_network(classes: int, name: str) -> None:
    training = TRAININGS[name]
    """Same batches, same masks, same steps; what is left is rounding."""
    lr = {"lr": 0.1, **training}
    whole, parted = both(network(classes=classes), 0.2, classes)
    whole = replace(whole, training=replace(whole.training, **lr))
    parted = replace(parted, training=replace(parted.training, **lr))
    assert_same(after(whole, 3), trained(parted)[0], atol=1e-12)


def test_in_single_precision_too() -> None:
    whole, parted = both(network(), precision="float32")
    assert_same(after(whole, 3), trained(parted)[0], atol=1e-5)


def test_two_parties_and_one_with_labels_alone() -> None:
    """The clinic has no features: nobody's embedding is always there."""
    for parts in [(CLINIC, LABORATORY), (LABORATORY, REGISTRY)]:
        whole, parted = both(network(parts))
        assert_same(after(whole, 3), trained(parted)[0], atol=1e-12)


def test_batch_norm_at_a_party_keeps_its_statistics_there() -> None:
    parts = (CLINIC, Block("radiology", 2, 66, (1, 8, 8), 66))
    bottoms = {"radiology": {"kind": "cnn", "channels": [2, 3], "hidden": 4, "kernel": 3, "norm": "batch"}}
    model = joined(embedding=3, hidden=4, bottoms=bottoms)(Shape((67,), class_task(2), parts=parts))
    x = torch.tensor(np.random.default_rng(0).normal(size=(24, 67)))
    x[:, 66] = 1.0
    rows = [site("all", x, torch.arange(24) % 2)]
    whole, parted = (trial(make(), rows, model, rounds=2, batch_size=6) for make in (pooled, split))
    first, second = after(whole, 2), trained(parted)[0]
    assert_same(first, second, atol=1e-12)
    assert any(name.startswith("radiology.") for name in second.memories["pooled"].buffers)


def test_what_travels_is_an_embedding_a_row_and_epoch_and_its_gradient() -> None:
    """40 rows x 2 epochs x 3 numbers x 8 bytes for each of two parties; 20 batches of 4 in blocks of 8: 3 exchanges."""
    _, parted = both(network(), block=8)
    _, records = trained(parted)
    assert [(record.bytes_up, record.bytes_down, record.exchanges) for record in records] == [(3840, 3840, 3)] * 3


def test_a_run_goes_on_to_the_same_bits() -> None:
    _, parted = both(network(), block=3, momentum=0.9)
    short = replace(parted, training=replace(parted.training, rounds=1))
    reached = trained(short)[0]
    number, leaves = SPLIT.leaves(reached)
    again = SPLIT.restore([parted], number, {name: leaf.clone() for name, leaf in leaves.items()})
    assert_same(trained(parted)[0], trained(parted, again)[0])


def test_a_longer_block_steps_with_what_was_sent_before_it() -> None:
    """Against the same thing written down plainly: embeddings of a block are made first, the label holder steps on
    them one after another, then the party steps with the gradients that came back, on its own present weights."""
    model = network((CLINIC, LABORATORY), dropout=0.0, absent=0.0)
    _, parted = both(model, block=4)
    parted = replace(parted, training=replace(parted.training, rounds=1))
    cut, rows = cut_of(model), parted.sites[0].train
    params = {name: leaf.clone() for name, leaf in SPLIT.start([parted]).server["params"].items()}
    order = order_of(parted, parted.sites[0], 0, parted.training.local_epochs)
    for start in range(0, len(order), 4):
        batches = [rows.take(batch, torch.float64) for batch in order[start : start + 4]]
        masks = [_masks(parted, start + number, len(x)) for number, (x, _) in enumerate(batches)]
        sent = [_bottom(model, params, "laboratory", x[:, 2:5], m) for (x, _), m in zip(batches, masks, strict=True)]
        back = []
        for (x, y), given, mask in zip(batches, sent, masks, strict=True):
            leaves = {name: leaf.clone().requires_grad_() for name, leaf in params.items()}
            given = given.detach().requires_grad_()
            own = _bottom(model, leaves, "clinic", x[:, :2], mask)
            scores = cut.top(leaves, {"clinic": own, "laboratory": given}, {"laboratory": x[:, 7]}, {})
            model.task.row_losses(scores, y).mean().backward()  # type: ignore[no-untyped-call]
            assert given.grad is not None
            back.append(given.grad)
            held = [name for name in leaves if not name.startswith("laboratory.")]
            params |= {name: params[name] - 0.1 * _gradient(leaves[name]) for name in held}
        for (x, _), gradient, mask in zip(batches, back, masks, strict=True):
            leaves = {name: leaf.clone().requires_grad_() for name, leaf in params.items()}
            embedding = _bottom(model, leaves, "laboratory", x[:, 2:5], mask)
            (embedding * gradient).sum().backward()  # type: ignore[no-untyped-call]
            own_names = [name for name in leaves if name.startswith("laboratory.")]
            params |= {name: params[name] - 0.1 * _gradient(leaves[name]) for name in own_names}
    final_params = trained(parted)[0].server["params"]
    for name, leaf in params.items():
        torch.testing.assert_close(final_params[name], leaf, rtol=0, atol=1e-12)


def _masks(arm: Trial, number: int, rows: int) -> dict[str, Tensor]:
    """Of the batch with this number."""
    order = order_of(arm, arm.sites[0], 0, arm.training.local_epochs)
    whole = replace(arm, topology=Topology(block=len(order)))
    own, labelled = next(iter(blocks(whole, arm.sites[0].train, 0, order)))[number]
    held = {} if labelled.own is None else {f"clinic.{name}": mask for name, mask in labelled.own.masks.items()}
    return {**held, **{f"laboratory.{name}": mask for name, mask in own["laboratory"].masks.items()}}


def _bottom(model: Model, leaves: Mapping[str, Tensor], party: str, x: Tensor, masks: Mapping[str, Tensor]) -> Tensor:
    own = [{n.removeprefix(f"{party}."): t for n, t in d.items() if n.startswith(f"{party}.")} for d in (leaves, masks)]
    return cut_of(model).bottoms[party].logits(own[0], {}, x, own[1])[0]


def _gradient(leaf: Tensor) -> Tensor:
    return torch.zeros_like(leaf) if leaf.grad is None else leaf.grad.detach()


def test_a_party_learns_nothing_from_rows_that_it_has_not() -> None:
    """The gradient of an embedding that was not used is zero, and what stands in its place does not matter."""
    model = network((CLINIC, LABORATORY), dropout=0.0, absent=0.0)
    cut, params = cut_of(model), {name: leaf.double() for name, leaf in model.init(3)[0].items()}
    apart, held = parts_of(cut, params)
    there = torch.tensor([1.0, 0.0, 1.0])
    own = Own(torch.randn(3, 2, dtype=torch.float64), {})
    batch = Labelled(torch.tensor([0, 1, 1]), own, {"laboratory": there}, {})
    optimiser = optimiser_for(Training(lr=0.1))
    given = torch.randn(3, 3, dtype=torch.float64)
    back = LabelHolder(model, cut, optimiser, held, {}, 0.1).learn([batch], {"laboratory": [given]})["laboratory"][0]
    assert not back[1].any()
    assert back[0].any()
    assert back[2].any()
    other = given.clone()
    other[1] = 1e6
    again = LabelHolder(model, cut, optimiser, held, {}, 0.1).learn([batch], {"laboratory": [other]})["laboratory"][0]
    assert torch.equal(back, again)
    assert whole_of(apart, held).keys() == params.keys()


def test_an_embedding_leaves_clipped_and_with_noise() -> None:
    rng = np.random.default_rng(0)
    embedding = torch.tensor(rng.normal(size=(4000, 5)) * 3)
    clipped = protection(EmbeddingNoise(clip=2.0), SeededStream(1, "noise", 0, "laboratory"))(embedding)
    assert float(clipped.norm(dim=1).max()) <= 2.0 + 1e-12
    short = embedding.norm(dim=1) <= 2.0
    assert short.any()
    assert torch.equal(clipped[short], embedding[short])
    noisy = protection(EmbeddingNoise(clip=2.0, noise=0.5), SeededStream(1, "noise", 0, "laboratory"))(embedding)
    added = (noisy - clipped).numpy()
    # 20,000 draws of SD 0.5 x 2.0: the SD of their SD is 1 / sqrt(40,000)
    assert abs(added.std() - 1.0) < 5 * 0.005
    assert abs(added.mean()) < 5 / np.sqrt(added.size)


def test_noise_is_another_in_every_round_and_the_same_in_every_run() -> None:
    _, parted = both(network())
    noisy = replace(parted, topology=Topology(embeddings=EmbeddingNoise(1.0, 1.0)))
    first, second = trained(noisy)[0], trained(noisy)[0]
    assert_same(first, second)
    plain = trained(parted)[0]
    assert any(not torch.equal(plain.server["params"][name], leaf) for name, leaf in first.server["params"].items())


def test_a_model_predicts_through_the_same_channel() -> None:
    """With a clip that cuts nothing and no noise nothing changes; the label holder's own part never travels."""
    model = network((CLINIC, LABORATORY))
    params, buffers = model.init(0)
    params = {name: leaf.double() for name, leaf in params.items()}
    x = lines().train.x
    plain = model.logits(params, buffers, x, None)[0]
    wide, narrow = (
        through_channel(model, EmbeddingNoise(clip), 1).logits(params, buffers, x, None)[0] for clip in (1e6, 1e-9)
    )
    assert torch.equal(plain, wide)
    silent = {**params, **{name: torch.zeros_like(leaf) for name, leaf in params.items() if name.startswith("laborat")}}
    torch.testing.assert_close(narrow, model.logits(silent, buffers, x, None)[0], rtol=0, atol=1e-8)
    noisy = through_channel(model, EmbeddingNoise(1.0, 1.0), 1)
    first, second = (noisy.logits(params, buffers, x, None)[0] for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, plain)


def noisy_scores(seed: int, weights: int, x: Tensor) -> Tensor:
    model = network((CLINIC, LABORATORY, REGISTRY))
    params = {name: leaf.double() for name, leaf in model.init(weights)[0].items()}
    return through_channel(model, EmbeddingNoise(1.0, 1.0), seed).logits(params, {}, x, None)[0]


def test_noise_on_a_prediction_is_of_the_row_and_not_of_its_place() -> None:
    x = lines().train.x
    whole = noisy_scores(1, 0, x)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(noisy_scores(1, 0, x[order]), whole[order], rtol=0, atol=1e-12)
    pieces = torch.cat([noisy_scores(1, 0, piece) for piece in torch.split(x, 7)])
    torch.testing.assert_close(pieces, whole, rtol=0, atol=1e-12)
    for other in (noisy_scores(2, 0, x), noisy_scores(1, 0, x + 1e-9)):
        assert float((other - whole).abs().min(dim=1).values.min()) > 1e-6


def test_noise_on_predictions_is_normal_and_differs_by_row_party_key_and_weights() -> None:
    """20,000 draws: the SD of their mean is 1 / sqrt(20,000), that of their SD 1 / sqrt(40,000)."""
    x = torch.tensor(np.random.default_rng(0).normal(size=(4000, 9)))
    weights = {"a": torch.ones(2, 3), "b": torch.zeros(2)}
    drawn = noise_of_rows(7, weights, x, 5)
    assert abs(float(drawn.mean())) < 5 / np.sqrt(20_000)
    assert abs(float(drawn.std()) - 1) < 5 / np.sqrt(40_000)
    assert float(torch.corrcoef(drawn.T).fill_diagonal_(0).abs().max()) < 5 / np.sqrt(4000)
    changed = {**weights, "b": torch.tensor([0.0, 1e-6])}
    for other in (noise_of_rows(8, weights, x, 5), noise_of_rows(7, changed, x, 5), drawn.roll(1, 0)):
        assert abs(float(torch.corrcoef(torch.stack([drawn.flatten(), other.flatten()]))[0, 1])) < 5 / np.sqrt(20_000)
    swapped = noise_of_rows(7, weights, x[:, [1, 0, *range(2, 9)]], 5)
    assert not torch.isclose(swapped, drawn).any(dim=1).all()


def test_noise_on_predictions_passes_through_vmap() -> None:
    """As for Monte Carlo dropout: the weights may have an axis of their own, the rows have none."""
    x, two = lines().train.x, {"a": torch.tensor([[1.0, 2.0], [3.0, 4.0]])}
    both_at_once = torch.func.vmap(lambda own: noise_of_rows(7, own, x, 3))(two)
    for number in range(2):
        assert torch.equal(both_at_once[number], noise_of_rows(7, {"a": two["a"][number]}, x, 3))


def test_a_block_of_one_batch_is_computed_once() -> None:
    """The graph is kept between the two messages, which is where half of a party's forward passes would go."""
    calls = []
    model = network((CLINIC, LABORATORY))
    bottom = cut_of(model).bottoms["laboratory"]

    def counted(*inputs: Any) -> Any:
        calls.append(1)
        return bottom.logits(*inputs)

    party = Party(replace(bottom, logits=counted), optimiser_for(Training()), *bottom.init(0), 0.1)
    own = Own(torch.randn(4, 3), {"3.mask": torch.ones(4, 4)})
    for block in ([own], [own, own]):
        embeddings = party.embed(block)
        party.learn([torch.ones_like(embedding) for embedding in embeddings])
    assert len(calls) == 1 + 4


def test_rows_with_columns_beside_an_image_are_one_line() -> None:
    images = torch.arange(2 * 4, dtype=torch.uint8).reshape(2, 1, 2, 2)
    rows = Rows(images, torch.tensor([0, 1]), torch.tensor([1, 0]), tabular=torch.tensor([[7.0, 1.0], [8.0, 0.0]]))
    assert rows.inputs == (6,)
    x, y = rows.take(torch.tensor([1]), torch.float64)
    assert x.tolist() == [[0.0, 1 / 255, 2 / 255, 3 / 255, 8.0, 0.0]]
    assert y.tolist() == [0]


def test_every_party_has_other_noise_in_every_round_and_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two embeddings with the same noise the difference would have none."""
    drawn: list[float] = []

    def watched(settings: EmbeddingNoise, stream: SeededStream) -> Any:
        protect = protection(settings, stream)
        drawn.extend(float(protect(torch.zeros(1, 1, dtype=torch.float64))) for _ in range(2))
        return protect

    monkeypatch.setattr("wardround.engines.split.split.protection", watched)
    _, parted = both(network())
    trained(replace(parted, topology=Topology(embeddings=EmbeddingNoise(1.0, 1.0))))
    assert len(set(drawn)) == len(drawn) == 2 * 2 * 3  # draws, parties, rounds


def test_noise_on_predictions_is_as_large_as_the_clip_says_and_each_partys_own() -> None:
    """Parts with weights of zero, and as many numbers each: what the top sees is noise of SD 0.5 x 3, and nothing but
    the party's name makes two of them differ. 16,000 draws: the SD of their SD is 1.5 / sqrt(32,000)."""
    parts = (CLINIC, Block("left", 2, 4, (2,), 6), Block("right", 4, 6, (2,), 7))
    model = joined(embedding=4, hidden=5)(Shape((8,), class_task(2), parts=parts))
    params = {name: torch.zeros_like(leaf, dtype=torch.float64) for name, leaf in model.init(0)[0].items()}
    seen: dict[str, Tensor] = {}

    def top(leaves: Any, given: Mapping[str, Tensor], *rest: Any) -> Tensor:
        seen.update(given)
        return cut_of(model).top(leaves, given, *rest)

    watched = replace(model, cut=replace(cut_of(model), top=top))
    x = torch.tensor(np.random.default_rng(0).normal(size=(4000, 8)))
    through_channel(watched, EmbeddingNoise(3.0, 0.5), 1).logits(params, {}, x, None)
    assert not seen["clinic"].any()  # it has the labels: its own part never travels
    for party in ("left", "right"):
        assert abs(float(seen[party].std()) - 1.5) < 5 * 1.5 / np.sqrt(32_000)
    both_ways = torch.stack([seen["left"].flatten(), seen["right"].flatten()])
    assert abs(float(torch.corrcoef(both_ways)[0, 1])) < 5 / np.sqrt(16_000)


def test_parts_of_two_parties_begin_with_weights_of_their_own() -> None:
    parts = (Block("left", 0, 2, (2,), None), Block("right", 2, 4, (2,), 4))
    params = joined(embedding=4, hidden=5)(Shape((5,), class_task(2), parts=parts)).init(0)[0]
    ours = {name.removeprefix("left."): leaf for name, leaf in params.items() if name.startswith("left.")}
    assert ours
    assert not any(torch.equal(leaf, params[f"right.{name}"]) for name, leaf in ours.items() if leaf.any())
