"""A bundle does what the report of its study measures: it refers the same rows, by the method that was asked for."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.bundles.conftest import hearts
from tests.bundles.image_runs import radiographs, run_of
from tests.representatives import represented
from wardround.bundles import (
    Bundle,
    FinishedRun,
    bundle_from,
    load_bundle,
    open_finished_run,
    predict_images,
    predict_table,
)
from wardround.core.threads import torch_threads
from wardround.data.site import Site
from wardround.evaluation.uncertainty.referral_results import reasons_of
from wardround.evaluation.uncertainty.uncertainty_rows import SeedRows, seeds_of
from wardround.runs.execute import run_study
from wardround.uncertainty.decision import referred

FEDAVG = [{"name": "fedavg", "algorithm": "fedavg"}]
NETWORK = {"kind": "mlp", "hidden": [8], "dropout": 0.2}


def heart_run(folder: Path, **changes: Any) -> FinishedRun:
    with torch_threads(1):
        return open_finished_run(run_study(hearts(arms=FEDAVG, **changes), folder, workers=1).folder)


def measured(run: FinishedRun) -> SeedRows:
    """What the report is made from, with the first seed."""
    table, cohort = run.folder.other_predictions("uncertainty"), run.plan.cohort_of(run.plan.study.arms[0])
    assert table is not None
    patients = pd.DataFrame({"row": cohort.row_numbers, "patient": cohort.patient})
    return next(iter(seeds_of(table, patients, ensemble=False)))


def referred_by_the_report(seed: SeedRows, site: Site, share: float) -> np.ndarray:
    """Of the site's test rows, in the site's order."""
    chosen = referred(reasons_of(seed, share, 0.1))
    by_row = pd.Series(chosen[seed.test.site == site.name], seed.test.at(site.name).row)
    return by_row.loc[site.test_rows].to_numpy()


def test_of_two_classes_the_same_rows_are_referred(tmp_path: Path) -> None:
    run = heart_run(tmp_path / "runs", uncertainty={"method": "none", "refer": 0.3})
    trial = run.plan.trial(run.plan.study.arms[0], 1)
    site = next(scored_site for scored_site in trial.scored if scored_site.name == "hungarian")
    bundle = load_bundle(bundle_from(run, arm="fedavg", site=site.name, out=tmp_path / "b"))
    table = run.plan.cohort_of(run.plan.study.arms[0]).records.features
    assert isinstance(table, pd.DataFrame)
    predictions = predict_table(bundle, table.iloc[site.test_rows].reset_index(drop=True))
    seed = replace(measured(run), cut=bundle.events[0].threshold)  # calls lie on the sides of the bundle's own
    expected, near = referred_by_the_report(seed, site, 0.3), ~predictions["out_of_distribution"].to_numpy()
    assert 0 < expected[near].sum() < near.sum()
    assert (predictions["refer"].to_numpy() == expected)[near].all()


@pytest.mark.slow
def test_of_findings_the_same_rows_are_referred_about_the_same_thresholds(tmp_path: Path) -> None:
    """A bundle's thresholds are its site's own; with these, the report's rule refers the rows that the bundle refers.
    By plain entropy it would be others."""
    records = radiographs()
    run = run_of(records, tmp_path / "runs", arms=FEDAVG, uncertainty={"method": "none", "refer": 0.3})
    trial = run.plan.trial(run.plan.study.arms[0], run.plan.study.evaluation.seeds.first)
    site = next(scored_site for scored_site in trial.scored if scored_site.name == "hospital-1")
    bundle = load_bundle(bundle_from(run, arm="fedavg", site=site.name, out=tmp_path / "b"))
    predictions = predict_images(bundle, np.asarray(records.features)[site.test_rows])
    seed, near = (
        replace(measured(run), cut=np.asarray(bundle.thresholds)),
        ~predictions["out_of_distribution"].to_numpy(),
    )
    expected = referred_by_the_report(seed, site, 0.3)
    assert 0 < expected[near].sum() < near.sum()
    assert (predictions["refer"].to_numpy() == expected)[near].all()
    middle = replace(seed, cut=np.full(len(bundle.classes), 0.5))
    assert (referred_by_the_report(middle, site, 0.3) != expected)[near].any()


def bundle_of(folder: Path, method: str | None) -> Bundle:
    asked = {} if method is None else {"uncertainty": {"method": method}}
    seeds = {"seeds": {"first": 1, "count": 2}, "vary": ["batches", "init"], "validation_share": 0.2, "every": 0}
    run = heart_run(folder / "runs", model=NETWORK, evaluation=seeds, **asked)
    return load_bundle(bundle_from(run, arm="fedavg", site="hungarian", out=folder / "b"))


@pytest.mark.parametrize(
    ("method", "expected_method"),
    represented(
        [(None, "dropout"), ("none", "none"), ("laplace", "laplace"), ("ensemble", "dropout")],
        by=[("none", "none"), ("laplace", "laplace")],
    ),
)
def test_the_method_of_the_study_is_that_of_the_bundle(
    tmp_path: Path, method: str | None, expected_method: str
) -> None:
    bundle = bundle_of(tmp_path, method)
    assert bundle.uncertainty is not None
    assert bundle.uncertainty.method == expected_method
    assert bundle.uncertainty.referral is not None  # referral and sets need one score alone
    card = (bundle.path / "card.md").read_text()
    assert ("There is no interval: the study asks for one score" in card) == (method == "none")
    assert ("the report says of uncertainty is the ensemble's" in card) == (method == "ensemble")
