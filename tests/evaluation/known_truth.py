"""Studies whose truth is known: whole worlds of patients, models that are really fitted, and splits that are redrawn.

Every patient has a risk factor x and three columns of pure noise. Each arm's model sees x and a noise column of its
own, so that arms are exchangeable: over worlds, none is better than another, at any hospital. Within one world an arm's
noise may go with the outcome of these very patients by chance, which is what an interval has to allow for.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit

import wardround
from tests.evaluation.finding_predictions import records_of
from wardround.evaluation.results import results
from wardround.tasks import Regression

ARMS = ("local", "fedavg", "fedprox")
TEST_SHARE = 0.2


@dataclass(frozen=True)
class World:
    """How a study is laid out. With `fixed`, all seeds have the test patients of the first, and differ in training."""

    sites: int
    seeds: int
    fixed: bool = False
    patients: int = 150  # at each site
    effect: float = 0.0  # how much of x the local arm does not see: 0 none, 1 all of it
    prevalence: float = 0.3
    harm: bool = False  # the effect is turned round: all arms but the local one do not see it
    number: bool = False  # the outcome is a number


def study_of(world: World) -> Any:
    evaluation: dict[str, Any] = {"seeds": {"first": 0, "count": world.seeds}, "test_share": TEST_SHARE}
    if world.fixed:
        evaluation["vary"] = ["batches"]
    raw = {
        "name": "known",
        "data": {"source": "heart"},
        "evaluation": evaluation,
        "arms": [{"algorithm": name} for name in ARMS],
    }
    study = wardround.load_study(raw)[0]
    return replace(study, evaluation=replace(study.evaluation, metric="mae")) if world.number else study


def predictions_of(world: World, rng: np.random.Generator) -> pd.DataFrame:
    parts = [_site(world, number, rng) for number in range(world.sites)]
    return pd.concat(parts, ignore_index=True)


def _site(world: World, number: int, rng: np.random.Generator) -> pd.DataFrame:
    n, tested = world.patients, round(TEST_SHARE * world.patients)
    x = rng.normal(size=n)
    noise = rng.normal(size=(len(ARMS), n))
    chance = expit(1.2 * x + np.log(world.prevalence / (1 - world.prevalence)))
    event = (rng.random(n) < chance).astype(int)
    label = 2 * x + rng.normal(size=n) if world.number else event
    ill, well = rng.permutation(np.flatnonzero(event == 1)), rng.permutation(np.flatnonzero(event == 0))
    parts = []
    for seed in range(world.seeds):
        if not world.fixed and seed:
            ill, well = rng.permutation(ill), rng.permutation(well)
        share = max(1, round(tested * len(ill) / n))  # stratified, as studies split
        test = np.concatenate([ill[:share], well[: tested - share]])
        train = np.concatenate([ill[share:], well[tested - share :]])
        if world.fixed:  # training differs from seed to seed
            train = rng.choice(train, size=len(train))
        for place, arm in enumerate(ARMS):
            seen = x * (1 - world.effect) if (arm == "local") != world.harm else x
            design = np.stack([np.ones(n), seen, noise[place]], axis=1)
            gram = design[train].T @ design[train] + 1e-6 * np.eye(3)
            weights = np.linalg.solve(gram, design[train].T @ label[train])
            where = {"arm": arm, "seed": seed, "site": f"h{number:02}", "row": 10_000 * number + test}
            fitted = design[test] @ weights
            score = fitted if world.number else expit(4 * (fitted - 0.5))
            parts.append(pd.DataFrame({**where, "label": label[test], "score": score}))
    return pd.concat(parts, ignore_index=True)


def content_of(world: World, rng: np.random.Generator) -> dict[str, Any]:
    table = predictions_of(world, rng)
    task = Regression(("stay",), unit="days") if world.number else None
    return results(study_of(world), table, pd.DataFrame(), records_of(table), task=task)


def claims_in(content: dict[str, Any]) -> list[dict[str, Any]]:
    """Every gain or loss that the report of this study would claim in its primary metric."""
    shown = [*content["tests"], *content["benefit"], *content["site_differences"]]
    primary = [entry for entry in shown if entry["metric"] == content["primary_metric"]]
    return [entry for entry in primary if entry["verdict"] in ("gains", "loses")]
