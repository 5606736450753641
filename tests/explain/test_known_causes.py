"""Data with known causes: two main effects, an interaction, a copied column and a decoy. The ranking finds them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from wardround.core import seeds
from wardround.explain import Columns, Scorer, accumulated_effects, permutation
from wardround.explain.explanation import Background, explain_rows
from wardround.models import MODELS, Shape, built
from wardround.tasks import class_task

NAMES = ("strong", "weak", "one", "other", "copied", "copy", "decoy", "noise")
CAUSES = ("strong", "weak", "one", "other")
ROWS, SITES = 3000, 3
EDGES = np.linspace(-2, 2, 9).tolist()


def patients() -> tuple[torch.Tensor, torch.Tensor]:
    rng = seeds.generator(8, "known causes")
    x = rng.normal(size=(ROWS, len(NAMES)))
    of = dict(zip(NAMES, x.T, strict=True))
    x[:, NAMES.index("copy")] = of["copied"]
    x[:, NAMES.index("decoy")] = (
        0.7 * of["strong"] + np.sqrt(1 - 0.49) * of["decoy"]
    )  # goes with a cause, causes nothing
    risk = 1.6 * of["strong"] + 0.7 * of["weak"] + 1.5 * of["one"] * of["other"] + 1.2 * of["copied"]
    y = (rng.random(ROWS) < 1 / (1 + np.exp(-risk))).astype(np.int64)
    return torch.from_numpy(x), torch.from_numpy(y)


@pytest.fixture(scope="module")
def trained() -> tuple[Scorer, torch.Tensor, torch.Tensor]:
    """A network, fitted on two thirds of the rows; the last third is explained."""
    x, y = patients()
    model = built(MODELS["mlp"](hidden=[24]), Shape((len(NAMES),), class_task(2)))
    params = {name: leaf.double().requires_grad_() for name, leaf in model.init(1)[0].items()}
    optimiser = torch.optim.Adam(list(params.values()), lr=0.02, weight_decay=1e-3)
    for _ in range(150):
        optimiser.zero_grad()
        model.task.row_losses(model.logits(params, {}, x[:2000], None)[0], y[:2000]).mean().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    fitted = {name: leaf.detach() for name, leaf in params.items()}
    return Scorer(model, fitted, {}, Columns.of(NAMES)), x[2000:], y[2000:]


def importance_of(trained: tuple[Scorer, torch.Tensor, torch.Tensor]) -> permutation.Importance:
    scorer, x, y = trained
    parts = zip(torch.chunk(x, SITES), torch.chunk(y, SITES), strict=True)
    of_sites = [
        permutation.sums(scorer, *part, seeds.generator(1, "site", site=str(n))) for n, part in enumerate(parts)
    ]
    return permutation.result(permutation.merge(of_sites), NAMES)


def test_importance_ranks_causes_above_decoy_and_noise(trained: tuple[Scorer, torch.Tensor, torch.Tensor]) -> None:
    importance = importance_of(trained)
    by_name = dict(zip(NAMES, importance.increase, strict=True))
    low = dict(zip(NAMES, importance.low, strict=True))
    assert by_name["strong"] > by_name["weak"]
    for cause in (*CAUSES, "copied", "copy"):
        assert low[cause] > 0
        assert by_name[cause] > 3 * max(abs(by_name["decoy"]), abs(by_name["noise"]))


def test_a_copied_column_shares_its_importance_with_its_copy(
    trained: tuple[Scorer, torch.Tensor, torch.Tensor],
) -> None:
    """Both shuffled together raise the loss by more than either, and by more than the sum of the two alone."""
    scorer, x, y = trained
    own = dict(zip(NAMES, importance_of(trained).increase, strict=True))
    pair = tuple(NAMES.index(name) for name in ("copied", "copy"))
    together = replace(scorer, columns=Columns(("both",), (pair,)))
    sums = permutation.sums(together, x, y, seeds.generator(1, "both"))
    both = permutation.result(sums, ("both",)).increase[0]
    assert both > own["copied"] + own["copy"]


def test_shapley_values_and_effects_find_the_same(trained: tuple[Scorer, torch.Tensor, torch.Tensor]) -> None:
    scorer, x, _ = trained
    explanation = explain_rows(scorer, x[:60], Background(x[100:130], "rows"), "sampled-shapley")
    size = dict(zip(NAMES, np.abs(explanation.values[:, 0]).mean(axis=0), strict=True))
    assert min(size[name] for name in CAUSES) > 2 * max(size["decoy"], size["noise"])
    spans = {}
    for name in ("strong", "weak", "noise"):
        grid = accumulated_effects.number_grid(scorer.columns, name, EDGES)
        effect = accumulated_effects.result(accumulated_effects.sums(scorer, x, grid), name, True, grid.values)
        spans[name] = float(np.ptp(effect.effect))
    assert spans["strong"] > 1.5 * spans["weak"] > 3 * spans["noise"]


def test_an_interaction_is_in_both_of_its_columns_and_in_no_mean_effect(
    trained: tuple[Scorer, torch.Tensor, torch.Tensor],
) -> None:
    """A product of two columns changes the score by as much upwards as downwards: importance sees it, its effect is
    nearly flat."""
    scorer, x, _ = trained
    grid = accumulated_effects.number_grid(scorer.columns, "one", EDGES)
    flat = accumulated_effects.result(accumulated_effects.sums(scorer, x, grid), "one", True, grid.values)
    grid = accumulated_effects.number_grid(scorer.columns, "strong", EDGES)
    main = accumulated_effects.result(accumulated_effects.sums(scorer, x, grid), "strong", True, grid.values)
    assert np.ptp(flat.effect) < 0.25 * np.ptp(main.effect)
