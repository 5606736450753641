"""Parties with different features of the same patients: how a model predicts while one of them is missing, what the
exchange cost, and what clipping and noise on embeddings give."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pandas as pd

from wardround.data.site import Block, Rows, Site
from wardround.evaluation.comparisons.benefit import origin_of
from wardround.evaluation.comparisons.paired import compare_pairs
from wardround.evaluation.comparisons.patients import Resamples, is_over_patients
from wardround.evaluation.intervals import Resampling
from wardround.evaluation.prediction import SitePrediction, predict
from wardround.evaluation.scores import Scores
from wardround.privacy.dp.accountant import Charge, epsilon
from wardround.study.schema import Arm, EmbeddingNoise, Study
from wardround.training.trial import Run, Trial

DELTA = 1e-5  # at which epsilon of embeddings is told


def predict_absent(trial: Trial, run: Run) -> dict[str, list[SitePrediction]]:
    """Test rows as they are predicted while a party is missing, for each party that may be."""
    parts = () if trial.model.cut is None else trial.model.cut.parts
    return {
        part.party: predict(replace(trial, scored=tuple(without(site, part) for site in trial.scored)), run)
        for part in parts
        if part.present is not None
    }


def without(site: Site, part: Block) -> Site:
    """The site's test rows as if the party knew none of their patients, and nothing of theirs had come."""
    return replace(site, test=rows_without(site.test, part))


def rows_without(rows: Rows, part: Block) -> Rows:
    lines = rows.x if rows.beside is None else rows.beside
    skipped = 0 if rows.beside is None else rows.x[0].numel()
    emptied = lines.clone()
    if part.start >= skipped:
        emptied[:, part.start - skipped : part.stop - skipped] = 0
    if part.present is not None:
        emptied[:, part.present - skipped] = 0
    return replace(rows, x=emptied) if rows.beside is None else replace(rows, beside=emptied)


def describe_exchange(arm: Arm, records: pd.DataFrame) -> dict[str, Any]:
    """An arm's parties and what went between them, of one seed on average."""
    seeds, topology = records["seed"].nunique(), arm.topology
    labels = topology.labels or next(iter(topology.parties))
    exchanges = records["exchanges"] if "exchanges" in records else pd.Series([0])
    return {
        "kind": "vertical",
        "labels": labels,
        "block": topology.block,
        "parties": {name: {"columns": list(columns)} for name, columns in topology.parties.items()},
        "cost": {
            "exchanges": float(exchanges.sum()) / seeds,
            "bytes_up": float(records["bytes_up"].sum()) / seeds,  # embeddings, to the party with the labels
            "bytes_down": float(records["bytes_down"].sum()) / seeds,  # their gradients
        },
        "embeddings": describe_noise(topology.embeddings, releases_of(arm)),
        "absent": {},
        "matched": None,
    }


def releases_of(arm: Arm) -> int:
    """How often each training row's embedding leaves its party with one seed: once an epoch."""
    return arm.training.rounds * arm.training.local_epochs


def describe_noise(settings: EmbeddingNoise | None, releases: int) -> dict[str, Any] | None:
    """What clipping and noise give: local differential privacy of a row's released embeddings, given the party's model.

    A row's embedding exchanged for any other moves by at most two clips, as where a patient is replaced. It holds for
    what leaves of this row's numbers; that they also shaped the party's weights, and so the embeddings of others, is
    not covered, and neither are the gradients that come back, which tell of labels.
    """
    return None if settings is None else _told(settings, [(settings.noise, releases)], "one seed")


def describe_deployed_noise(study: Study, arm: Arm) -> dict[str, Any] | None:
    """As `describe_noise`, where embeddings really left: all arms and seeds release the same party's rows, and whoever
    holds the labels has them all. A row that is tested on with one seed trains with another, and leaves less often for
    it: once, at the end. So what is told holds for every row."""
    settings, seeds = arm.topology.embeddings, len(list(study.evaluation.seeds))
    if settings is None:
        return None
    left = [(other.topology.embeddings, seeds * releases_of(other)) for other in study.trained_arms]
    return _told(settings, [(0.0 if one is None else one.noise, count) for one, count in left], "all arms and seeds")


def _told(settings: EmbeddingNoise, left: Sequence[tuple[float, int]], covers: str) -> dict[str, Any]:
    """`left`: how often embeddings left with which noise. One of them without any leaves nothing to tell."""
    charges = [Charge(1.0, noise, count) for noise, count in left]
    told = epsilon(charges, DELTA, "replace") if all(noise for noise, _ in left) else math.inf
    return {
        "clip": settings.clip,
        "noise": settings.noise,
        "releases": sum(count for _, count in left),
        "covers": covers,
        "delta": DELTA,
        "epsilon": told if math.isfinite(told) else None,
    }


def score_absent(
    content: dict[str, Any],
    study: Study,
    predictions: pd.DataFrame,
    absent: pd.DataFrame,
    groups: pd.DataFrame | None,
    thresholds: pd.DataFrame | None,
) -> dict[str, Any]:
    """`content` with each party's absence: the figures without it, and their paired difference from those with it."""
    arms = {
        name: found["topology"]
        for name, found in content["arms"].items()
        if found["topology"] is not None and found["topology"]["kind"] == "vertical"
    }
    missing = absent[absent["arm"].isin(list(arms))]
    if not len(missing):
        return content
    whole = [
        predictions[predictions["arm"] == arm].assign(site=party)
        for arm, party in missing[["arm", "party"]].drop_duplicates().itertuples(index=False)
    ]
    lone = Scores.of(missing.assign(site=missing["party"]).drop(columns="party"), groups, thresholds)
    full = Scores.of(pd.concat(whole, ignore_index=True), groups, thresholds)
    drawn: tuple[Resamples, Resamples] | None = None
    for name, topology in arms.items():
        evaluation = study.evaluation_of(origin_of(study, name))
        fixed = is_over_patients(evaluation, lone.seeds)
        if fixed and drawn is None:
            drawn = Resamples(lone), Resamples(full)
        pairs = {party: (figures, full.by_site[name][party]) for party, figures in lone.by_site.get(name, {}).items()}
        over = {p: (drawn[0].drawn(name, p), drawn[1].drawn(name, p)) for p in pairs} if drawn and fixed else None
        for party, found in compare_pairs(pairs, Resampling.of(evaluation), evaluation.metric, over).items():
            topology["absent"][party] = {"metrics": found.one, "difference": found.difference}
    return content
