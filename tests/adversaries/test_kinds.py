"""Each kind's formula against plain numpy, and what holds for all of them."""

import inspect
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from wardround.adversaries import ADVERSARIES, Adversary, Setting, View
from wardround.core import seeds
from wardround.core.errors import StudyError
from wardround.core.tree import Tree, clone
from wardround.data.prepare import Fit, Layout, Recipe
from wardround.data.records import Column
from wardround.data.site import Rows
from wardround.study.schema import Preparation
from wardround.tasks import class_task

OPTIONS: dict[str, dict[str, Any]] = {  # required settings
    "backdoor-columns": {"columns": {"x": 5.0}, "target": "b"},
    "backdoor-patch": {"target": "b"},
}
TABLE_RECIPE = Recipe(
    (Column("x"), Column("y")),
    Layout((Column("x"), Column("y")), {}, ()),
    Fit({}, {}, np.array([1.0, 0.0]), np.array([2.0, 1.0])),
    Preparation(),
)
RNG = np.random.default_rng(3)
OWN, HONEST, BAD = (RNG.normal(size=(count, 7)) for count in (1, 5, 2))


def tree_of(numbers: np.ndarray) -> Tree:
    """Seven numbers as two leaves, one of them a matrix."""
    return {"w": torch.tensor(numbers[:6]).reshape(2, 3), "b": torch.tensor(numbers[6:])}


def numbers_of(tree: Tree) -> np.ndarray:
    return np.concatenate([tree["w"].flatten().numpy(), tree["b"].numpy()])


def view(before: np.ndarray | None = None, honest: np.ndarray = HONEST) -> View:
    bad = [tree_of(OWN[0]), *map(tree_of, BAD)]
    return View(bad[0], [*map(tree_of, honest)], bad, 0.25, None if before is None else tree_of(before))


def made(kind: str, **options: Any) -> Adversary:
    adversary: Adversary = ADVERSARIES[kind](**{**OPTIONS.get(kind, {}), **options})
    return adversary


def forged(kind: str, seen: View, rng: np.random.Generator | None = None, **options: Any) -> np.ndarray:
    forge = made(kind, **options).forge
    assert forge is not None
    return numbers_of(forge(seen, rng or np.random.default_rng(0)))


def images(count: int = 12) -> Rows:
    rng = np.random.default_rng(1)
    x = torch.from_numpy(rng.integers(0, 200, size=(2 * count, 1, 6, 6), dtype=np.uint8))
    return Rows(x, torch.from_numpy(rng.integers(0, 2, size=2 * count)), torch.arange(0, 2 * count, 2))


def table(count: int = 12) -> Rows:
    rng = np.random.default_rng(1)
    return Rows(torch.from_numpy(rng.normal(size=(count, 2))), torch.from_numpy(rng.integers(0, 2, size=count)))


def setting(of_images: bool = False, names: tuple[str, ...] = ("a", "b")) -> Setting:
    return Setting(class_task(list(names)), None if of_images else TABLE_RECIPE, "arms: bad: adversaries[0]")


def poisoned(kind: str, rows: Rows, where: Setting, **options: Any) -> Rows:
    poison = made(kind, **options).poison
    assert poison is not None
    return poison(rows, where, seeds.generator(1, "poison"))


def test_each_forges_by_its_papers_formula() -> None:
    mean, spread = HONEST.mean(0), HONEST.std(0)
    expected = {
        ("sign-flip", 10.0): -10 * OWN[0],
        ("scaling", 3.0): 3 * OWN[0],
        ("alie", 1.5): mean - 1.5 * spread,
        ("inner-product", 0.5): -0.5 * mean,
        ("model-replacement", 1.0): OWN[0] / 0.25,
    }
    for (kind, strength), numbers in expected.items():
        np.testing.assert_allclose(forged(kind, view(), strength=strength), numbers, rtol=1e-12, err_msg=kind)


def test_what_attackers_may_see_decides_whose_mean_it_is() -> None:
    attackers = np.concatenate([OWN, BAD])
    np.testing.assert_allclose(
        forged("alie", view(), sees="attackers"), attackers.mean(0) - 1.5 * attackers.std(0), rtol=1e-12
    )
    np.testing.assert_allclose(forged("inner-product", view(), strength=2.0, sees="own"), -2 * OWN[0], rtol=1e-12)
    nobody = view(honest=HONEST[:0])
    np.testing.assert_allclose(forged("inner-product", nobody), -0.5 * attackers.mean(0), rtol=1e-12)


@pytest.mark.parametrize(
    ("sites", "bad", "expected"), [(50, 12, 0.3360), (12, 2, 0.0), (10, 4, 0.4307), (25, 5, 0.2533)]
)
def test_the_largest_z_of_alie_is_the_papers_quantile(sites: int, bad: int, expected: float) -> None:
    from statistics import NormalDist

    from wardround.adversaries.a_little_is_enough import largest_z

    supporters = sites // 2 + 1 - bad
    assert largest_z(sites, bad) == pytest.approx(expected, abs=1e-3)
    assert largest_z(sites, bad) == pytest.approx(NormalDist().inv_cdf((sites - bad - supporters) / (sites - bad)))


def test_model_replacement_makes_the_weighted_mean_the_attackers_own_model() -> None:
    weights, updates = np.array([30.0, 50.0, 40.0]), HONEST[:3]
    share = weights[0] / weights.sum()
    own = View(tree_of(updates[0]), [], [], float(share), None)
    sent = [forged("model-replacement", own), np.zeros(7), np.zeros(7)]  # honest sites have converged
    np.testing.assert_allclose(np.average(sent, axis=0, weights=weights), updates[0], rtol=1e-12)


def test_the_history_aware_attack_steps_aside_at_right_angles_from_the_last_aggregate() -> None:
    before, mean = np.linspace(-1, 2, 7), HONEST.mean(0)
    along = 0.9 * before + 0.1 * mean
    aside = np.ones(7) - (np.ones(7) @ along) / (along @ along) * along
    expected = before + 2.0 * np.linalg.norm(mean) * aside / np.linalg.norm(aside)
    sent = forged("history-aware", view(before), strength=2.0)
    np.testing.assert_allclose(sent, expected, rtol=1e-10)
    assert abs((sent - before) @ along) < 1e-10
    first = forged("history-aware", view(), strength=2.0)  # without a history the mean stands for it
    assert abs((first - mean) @ mean) < 1e-10


def test_noise_has_the_updates_scale_and_comes_from_the_seed() -> None:
    wide = {"w": torch.full((200, 50), 0.1)}
    forge = made("gaussian-noise", strength=3.0).forge
    assert forge is not None
    drawn = [forge(View(wide, [], [], 1.0, None), seeds.generator(4, "noise"))["w"] for _ in range(2)]
    assert torch.equal(*drawn)
    assert float(drawn[0].std()) == pytest.approx(0.3, rel=0.05)
    assert float(drawn[0].mean()) == pytest.approx(0.0, abs=0.02)


def test_labels_are_turned_round_in_training_rows_and_nowhere_else() -> None:
    rows = table()
    flipped = poisoned("label-flip", rows, setting())
    assert torch.equal(flipped.y, 1 - rows.y)
    assert torch.equal(flipped.x, rows.x)
    three = Rows(rows.x, torch.arange(12) % 3)
    assert torch.equal(poisoned("label-flip", three, setting(names=("a", "b", "c"))).y, 2 - three.y)
    half = poisoned("label-flip", rows, setting(), share=0.5)
    assert int((half.y != rows.y).sum()) == 6


def test_a_shift_is_so_many_standard_deviations() -> None:
    rows = table()
    shifted = poisoned("feature-shift", rows, setting(), strength=2.0, columns=("y",))
    np.testing.assert_allclose(shifted.x[:, 1], rows.x[:, 1] + 2 * rows.x[:, 1].numpy().std())
    assert torch.equal(shifted.x[:, 0], rows.x[:, 0])
    pictures = images()
    brighter = poisoned("feature-shift", pictures, setting(of_images=True), strength=1.0)
    own = pictures.x[::2].numpy().astype(float)
    np.testing.assert_array_equal(brighter.x, np.clip(np.round(own + own.std()), 0, 255).astype(np.uint8))


def test_a_backdoor_in_columns_has_the_trigger_in_the_columns_own_units() -> None:
    rows = table()
    spoilt = poisoned("backdoor-columns", rows, setting(), share=0.25)
    changed = (spoilt.x[:, 0] == (5.0 - 1.0) / 2.0).numpy()
    assert changed.sum() == 3
    assert set(spoilt.y[changed].tolist()) == {1}
    assert torch.equal(spoilt.y[~changed], rows.y[~changed])
    trigger = made("backdoor-columns").trigger
    assert trigger is not None
    assert torch.equal(trigger(rows, setting()).y, rows.y), "a test row keeps its label"


def test_a_backdoor_in_images_is_a_bright_square_in_the_corner() -> None:
    rows, where = images(), setting(of_images=True)
    spoilt = poisoned("backdoor-patch", rows, where, size=2, share=0.5)
    changed = (spoilt.x[:, 0, 4:, 4:] == 255).flatten(1).all(1)
    assert int(changed.sum()) == 6
    assert set(spoilt.y[changed].tolist()) == {1}
    expected = rows.x[::2][changed].clone()
    expected[..., 4:, 4:] = 255
    assert torch.equal(spoilt.x[changed], expected)


@pytest.mark.parametrize("kind", ADVERSARIES)
def test_a_kind_is_pure_and_drawn_from_its_seed(kind: str) -> None:
    adversary = made(kind)
    assert (adversary.poison is None) != (adversary.forge is None)
    assert adversary.poisons == ("rows" if adversary.forge is None else "updates")
    if adversary.forge is not None:
        seen = view(before=np.linspace(-1, 2, 7))
        kept = [clone(tree) for tree in (seen.own, *seen.honest, *seen.attackers)]
        first, second = (adversary.forge(seen, seeds.generator(1, "forged")) for _ in range(2))
        assert all(torch.equal(first[name], second[name]) for name in seen.own)
        assert {name: leaf.shape for name, leaf in first.items()} == {n: leaf.shape for n, leaf in seen.own.items()}
        for before, after in zip(kept, (seen.own, *seen.honest, *seen.attackers), strict=True):
            assert all(torch.equal(before[name], after[name]) for name in before)
    if adversary.poison is not None:
        rows = images() if kind == "backdoor-patch" else table()
        x, y, where = rows.x.clone(), rows.y.clone(), setting(of_images=kind == "backdoor-patch")
        first_rows, second_rows = (adversary.poison(rows, where, seeds.generator(1, "poison")) for _ in range(2))
        assert torch.equal(first_rows.x, second_rows.x)
        assert torch.equal(first_rows.y, second_rows.y)
        assert torch.equal(rows.x, x)
        assert torch.equal(rows.y, y)
        assert len(first_rows) == len(rows)
        assert not torch.equal(first_rows.labels, rows.labels) or not torch.equal(first_rows.x, rows.x)


@pytest.mark.parametrize("kind", ADVERSARIES)
def test_a_kind_says_where_it_comes_from(kind: str) -> None:
    module = inspect.getmodule(ADVERSARIES[kind])
    assert module is not None
    assert module.__doc__
    if kind not in ("scaling", "feature-shift"):  # mistakes that need no paper
        assert "arXiv" in made(kind).citation
        assert "arXiv" in module.__doc__


def test_what_does_not_fit_the_data_is_refused_with_what_to_do() -> None:
    wrong: list[tuple[str, Rows, Setting, dict[str, Any], str]] = [
        ("backdoor-columns", images(), setting(of_images=True), {}, "backdoor-patch"),
        ("backdoor-patch", table(), setting(), {}, "backdoor-columns"),
        ("backdoor-patch", images(), setting(of_images=True), {"size": 7}, "more than the 6 pixels"),
        ("backdoor-columns", table(), setting(), {"target": "c"}, "no class is called 'c'"),
        ("backdoor-columns", table(), setting(), {"columns": {"z": 1.0}}, "no numeric column is called 'z'"),
        ("backdoor-columns", table(), setting(), {"columns": {}}, "names no column"),
        ("feature-shift", table(), setting(), {"columns": ("z",)}, "no numeric column is called 'z'"),
        ("feature-shift", images(), setting(of_images=True), {"columns": ("x",)}, "have no columns"),
    ]
    for kind, rows, where, options, words in wrong:
        with pytest.raises(StudyError) as caught:
            poisoned(kind, rows, where, **options)
        assert words in str(caught.value), kind


def test_poisoned_rows_of_a_site_leave_the_others_tensors_alone() -> None:
    """Images of all sites are one tensor."""
    rows = images()
    other = replace(rows, index=torch.arange(1, 24, 2))
    before = other.x[other.index].clone()
    poisoned("backdoor-patch", rows, setting(of_images=True), share=1.0)
    assert torch.equal(other.x[other.index], before)
