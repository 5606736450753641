"""What is shared cannot move while a newcomer trains, whatever the optimiser does; what is private does."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import expit

from tests.adaptation.conftest import NEW, OTHERS, PRIVATE, hearts
from wardround.adaptation.newcomer import Newcomer, read_newcomer
from wardround.adaptation.train import train, with_constant_shared, within
from wardround.bundles import SharedPart
from wardround.bundles.build.shared_part import part_of_run
from wardround.data.sources.heart import heart
from wardround.models.adapter import FIRST, in_space
from wardround.runs.catalog import load_study
from wardround.runs.execute import run_study
from wardround.runs.plan import load_plan
from wardround.study.schema import Training
from wardround.training.rounds import first_weights, start


def newcomer(part: SharedPart, repeats: int = 1) -> Newcomer:
    return read_newcomer(NEW, heart(("va",)), part, repeats)


@pytest.mark.parametrize(
    ("arm", "private"),
    [
        ("fedavg", PRIVATE),
        ("head", PRIVATE | {"head.weight", "head.bias"}),
        ("aligned", PRIVATE | {"alignment.own"}),  # with momentum and weight decay, which would move any weight
    ],
)
def test_only_private_leaves_move(run: Path, arm: str, private: set[str]) -> None:
    part = part_of_run(run, arm)
    trained = train(part, newcomer(part), part.training, "adapted", 0.5, 5)
    first, _ = with_constant_shared(part.model(len(trained.recipe.names)), part.leaves, NEW, trained.recipe.names).init(
        0
    )
    assert set(first) == private
    assert set(trained.params) == private | set(part.leaves)
    for name, leaf in part.leaves.items():
        assert torch.equal(trained.params[name], leaf), name
    moved = within(part.training, 1)
    short = train(part, newcomer(part), moved, "adapted", 0.5, 5)
    for name in private:
        assert not torch.equal(trained.params[name], short.params[name]), name


def test_training_alone_moves_everything(part: SharedPart) -> None:
    trained = train(part, newcomer(part), part.training, "alone", 0.5, 5)
    for name, leaf in part.leaves.items():
        assert not torch.equal(trained.params[name], leaf), name


def test_the_adapter_begins_where_those_of_the_shared_part_began(part: SharedPart) -> None:
    """Columns of one name have one language: that of the seed that the shared part was trained with."""
    trained = train(part, newcomer(part), within(part.training, 1), "adapted", 1.0, 5)
    model = with_constant_shared(part.model(len(trained.recipe.names)), part.leaves, NEW, trained.recipe.names)
    study, families = load_study(hearts())
    trial = load_plan(study, families).trial(study.arm("fedavg"), 5)
    begun = start(trial).memories["cleveland"].private[f"{FIRST}.weight"]
    recipe = trial.sites[0].recipe
    assert recipe is not None
    ours = first_weights(replace(trial, model=model))[0][f"{FIRST}.weight"]
    common = [name for name in trained.recipe.names if name in recipe.names]
    assert "thalach" in common
    ratio = np.sqrt(len(recipe.names) / len(trained.recipe.names))  # each layer is scaled by its number of columns
    for name in common:
        here, there = ours[:, trained.recipe.names.index(name)], begun[:, recipe.names.index(name)]
        np.testing.assert_allclose(here, there.double() * ratio, rtol=1e-5)


def test_scores_are_those_of_adapter_encoder_and_head(part: SharedPart) -> None:
    """The network written out: linear, normalised, linear, LayerNorm, ReLU, linear."""
    trained = train(part, newcomer(part), part.training, "adapted", 1.0, 5)
    p = {name: leaf.double() for name, leaf in trained.params.items()}
    x = trained.site.test.x.double()
    latent = in_space(x @ p[f"{FIRST}.weight"].T + p[f"{FIRST}.bias"])
    hidden = torch.nn.functional.layer_norm(latent @ p["encoder.0.weight"].T + p["encoder.0.bias"], (7,))
    hidden = (hidden * p["encoder.1.weight"] + p["encoder.1.bias"]).clamp(min=0)
    logits = (hidden @ p["head.weight"].T + p["head.bias"]).squeeze(-1)
    np.testing.assert_allclose(trained.prediction.score, expit(logits.numpy()), atol=1e-6)


def test_alone_is_the_arm_local_of_a_study_with_this_hospital(part: SharedPart, tmp_path: Path) -> None:
    """The same split, preparation, first weights and batches: the same scores, bit for bit."""
    arms = [{"name": "local", "algorithm": "local"}]
    whole = run_study(hearts((*OTHERS, NEW), arms=arms), tmp_path)
    table = pd.read_parquet(whole.folder / "predictions.parquet")
    va = newcomer(part, 2)
    for seed in (5, 6):
        rows = table[(table["site"] == NEW) & (table["seed"] == seed)].sort_values("row")
        prediction = train(part, va, part.training, "alone", 1.0, seed).prediction
        order = np.argsort(prediction.rows)
        assert prediction.label[order].tolist() == rows["label"].tolist()
        assert prediction.score[order].tolist() == rows["score"].tolist()


@pytest.mark.parametrize(
    ("epochs", "expected"), [(None, (40, 3)), (120, (40, 3)), (119, (39, 3)), (7, (2, 3)), (3, (1, 3)), (2, (1, 2))]
)
def test_epochs_are_cut_to_whole_rounds(epochs: int | None, expected: tuple[int, int]) -> None:
    shortened = within(Training(rounds=40, local_epochs=3), epochs)
    assert (shortened.rounds, shortened.local_epochs) == expected
