"""Parties with different features of the same patients: predictions while one of them is missing, the cost of the
exchange, and the privacy that clipping and noise on embeddings give."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from wardround.data.site import Block, Rows, Site
from wardround.evaluation.comparisons.paired import compare_predictions, topologies_of
from wardround.evaluation.prediction import SitePrediction, predict
from wardround.evaluation.scores import Scores
from wardround.privacy.dp.accountant import Charge, epsilon
from wardround.study.schema import Arm, EmbeddingNoise, Study
from wardround.tasks import Task
from wardround.training.trial import Run, Trial

DELTA = 1e-5  # of the epsilon of embeddings


def predict_missing_party(trial: Trial, run: Run) -> dict[str, list[SitePrediction]]:
    """Predictions for test rows while a party is missing, for each party that may be."""
    parts = () if trial.model.cut is None else trial.model.cut.parts
    return {
        part.party: predict(replace(trial, scored=tuple(without(site, part) for site in trial.scored)), run)
        for part in parts
        if part.present is not None
    }


def without(site: Site, part: Block) -> Site:
    """The site's test rows as if the party knew none of their patients and had sent nothing."""
    return replace(site, test=rows_without(site.test, part))


def rows_without(rows: Rows, part: Block) -> Rows:
    lines = rows.x if rows.tabular is None else rows.tabular
    skipped = 0 if rows.tabular is None else rows.x[0].numel()
    emptied = lines.clone()
    if part.start >= skipped:
        emptied[:, part.start - skipped : part.stop - skipped] = 0
    if part.present is not None:
        emptied[:, part.present - skipped] = 0
    return replace(rows, x=emptied) if rows.tabular is None else replace(rows, tabular=emptied)


def describe_exchange(arm: Arm, records: pd.DataFrame) -> dict[str, Any]:
    """An arm's parties and what they exchanged, for one seed on average."""
    seeds, topology = records["seed"].nunique(), arm.topology
    labels = topology.labels or next(iter(topology.parties))
    return {
        "kind": "vertical",
        "labels": labels,
        "block": topology.block,
        "parties": {name: {"columns": list(columns)} for name, columns in topology.parties.items()},
        "cost": {
            "exchanges": float(records["exchanges"].sum()) / seeds,
            "bytes_up": float(records["bytes_up"].sum()) / seeds,  # embeddings, to the party with the labels
            "bytes_down": float(records["bytes_down"].sum()) / seeds,  # their gradients
        },
        "embeddings": describe_noise(topology.embeddings, releases_of(arm)),
        "missing_party": {},
        "matched": None,
    }


def releases_of(arm: Arm) -> int:
    """How often each training row's embedding leaves its party with one seed: once an epoch."""
    return arm.training.rounds * arm.training.local_epochs


def describe_noise(settings: EmbeddingNoise | None, releases: int) -> dict[str, Any] | None:
    """What clipping and noise give: local differential privacy of a row's released embeddings, given the party's model.

    Replacing a row's embedding by any other moves it by at most two clips, as where a patient is replaced. The
    guarantee covers what is released of this row's values. It does not cover their influence on the party's weights,
    and so on the embeddings of other rows, nor the gradients that come back, which depend on labels.
    """
    return None if settings is None else _noise_entry(settings, [(settings.noise, releases)], "one seed")


def describe_deployed_noise(study: Study, arm: Arm) -> dict[str, Any] | None:
    """As `describe_noise`, for embeddings that really left: all arms and seeds release the same rows, and the party
    with the labels has them all. A row that is a test row with one seed trains with another. As a test row it is
    released less often: once, at the end. So the guarantee holds for every row."""
    settings, seeds = arm.topology.embeddings, len(list(study.evaluation.seeds))
    if settings is None:
        return None
    releases = [(other.topology.embeddings, seeds * releases_of(other)) for other in study.trained_arms]
    return _noise_entry(
        settings, [(0.0 if noise is None else noise.noise, count) for noise, count in releases], "all arms and seeds"
    )


def _noise_entry(settings: EmbeddingNoise, releases: Sequence[tuple[float, int]], covers: str) -> dict[str, Any]:
    """`releases`: noise and number of releases. A single release without noise removes the guarantee."""
    charges = [Charge(1.0, noise, count) for noise, count in releases]
    spent = epsilon(charges, DELTA, "replace") if all(noise for noise, _ in releases) else math.inf
    return {
        "clip": settings.clip,
        "noise": settings.noise,
        "releases": sum(count for _, count in releases),
        "covers": covers,
        "delta": DELTA,
        "epsilon": spent if math.isfinite(spent) else None,
    }


def score_missing_party(
    content: dict[str, Any],
    study: Study,
    predictions: pd.DataFrame,
    incomplete: pd.DataFrame,
    groups: pd.DataFrame | None,
    thresholds: pd.DataFrame | None,
    task: Task | None = None,
) -> dict[str, Any]:
    """`content` with the figures while each party is missing, and their paired difference from those of all parties.

    `incomplete` are predictions made without the party in its column `party`.
    """
    topologies = topologies_of(content, "vertical")
    incomplete = incomplete[incomplete["arm"].isin(list(topologies))]
    if not len(incomplete):
        return content
    complete = [
        predictions[predictions["arm"] == arm].assign(site=party)
        for arm, party in incomplete[["arm", "party"]].drop_duplicates().itertuples(index=False)
    ]
    of_party = incomplete.assign(site=incomplete["party"]).drop(columns="party")
    lone = Scores.of(of_party, groups, thresholds, task=task)
    full = Scores.of(pd.concat(complete, ignore_index=True), groups, thresholds, task=task)
    parties = {name: list(lone.by_site.get(name, {})) for name in topologies}
    for name, party, comparison in compare_predictions(study, parties, lone, full):
        entry = {"metrics": comparison.first, "difference": comparison.difference}
        topologies[name]["missing_party"][party] = entry
    return content
