"""A bundle predicts what its run predicted: for every site, algorithm and model, from recorded columns to scores."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.bundles.conftest import ARMS, SITES, hearts
from tests.representatives import represented
from wardround.bundles import Bundle, FinishedRun, bundle_from, load_bundle, open_finished_run
from wardround.bundles.build import assemble as origin
from wardround.core.errors import BundleError
from wardround.runs.execute import run_study
from wardround.runs.folder import RunFolder


def saved(run: Path, arm: str, seed: int, site: str) -> pd.DataFrame:
    table = RunFolder(run).predictions()
    return table[(table["arm"] == arm) & (table["seed"] == seed) & (table["site"] == site)].set_index("row")


def again(finished: FinishedRun, bundle: Bundle, rows: np.ndarray) -> np.ndarray:
    """Scores of recorded rows through the bundle alone. `rows` are places in the whole source."""
    table = next(iter(finished.plan.cohorts.values())).table
    return bundle.scores(bundle.recipe.apply(table, rows))


@pytest.mark.parametrize("arm", represented(ARMS, by=["fedavg", "intercepts", "network"]))
def test_every_site_of_every_arm_is_predicted_as_in_the_run(
    run: Path, finished: FinishedRun, tmp_path: Path, arm: str
) -> None:
    for site in SITES:
        bundle = load_bundle(bundle_from(finished, arm=arm, site=site, seed=2, out=tmp_path / site))
        expected = saved(run, arm, 2, site)
        scores = again(finished, bundle, expected.index.to_numpy())
        assert np.abs(scores - expected["score"].to_numpy()).max() <= 1e-6
        assert scores.dtype == (np.float64 if arm == "exact" else np.float32)
        assert bundle.about["seed"] == 2


def test_models_of_their_own_differ_from_site_to_site_and_a_shared_one_does_not(
    finished: FinishedRun, tmp_path: Path
) -> None:
    def weights(arm: str, site: str) -> np.ndarray:
        bundle = load_bundle(bundle_from(finished, arm=arm, site=site, out=tmp_path / f"{arm}-{site}"))
        return np.concatenate([leaf.numpy().ravel() for leaf in bundle.params.values()])

    assert np.array_equal(weights("fedavg", "cleveland"), weights("fedavg", "va"))
    assert not np.allclose(weights("local", "cleveland"), weights("local", "va"))
    intercept = [weights("intercepts", site)[-1] for site in ("cleveland", "va")]
    assert abs(intercept[0] - intercept[1]) > 1e-3
    assert np.array_equal(weights("intercepts", "hungarian")[:-1], weights("intercepts", "switzerland")[:-1])


@pytest.fixture(scope="module")
def csv_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two hospitals with gaps, words, dates and three classes; one records a column that the other does not."""
    folder = tmp_path_factory.mktemp("csv")
    rng = np.random.default_rng(5)
    files = {}
    for number, name in enumerate(("north", "south")):
        rows = 160
        age = rng.normal(60, 12, rows).round(1)
        ward = rng.choice(["surgery", "medicine", "burns"], rows)
        seen = pd.Timestamp("2015-01-01") + pd.to_timedelta(rng.integers(0, 2000, rows), unit="D")
        score = (age - 60) / 12 + (ward == "burns") + rng.normal(size=rows)
        table = pd.DataFrame(
            {
                "age": age,
                "ward": ward,
                "seen": seen.strftime("%Y-%m-%d"),
                "stage": np.where(score > 1, "severe", np.where(score > 0, "mild", "none")),
            }
        )
        table.loc[rng.choice(rows, 20, replace=False), "age"] = np.nan
        table.loc[rng.choice(rows, 15, replace=False), "ward"] = None
        if number == 0:
            table["sodium"] = rng.normal(140, 4, rows).round(1)
        files[name] = folder / f"{name}.csv"
        table.to_csv(files[name], index=False)
    study: dict[str, Any] = {
        "name": "wards",
        "data": {
            "source": "csv",
            "files": {name: str(path) for name, path in files.items()},
            "target": "stage",
            "columns": "all",
            "types": {"seen": "date"},
        },
        "sites": {"partition": "by-hospital"},
        "model": {"kind": "mlp", "hidden": [6]},
        "training": {"rounds": 3, "batch_size": 16, "lr": 0.1},
        "evaluation": {"seeds": {"first": 3, "count": 1}, "every": 0, "validation_share": 0.25},
        "arms": [{"name": "fedprox", "algorithm": "fedprox"}],
    }
    return run_study(study, folder / "runs").folder


@pytest.mark.parametrize("site", ["north", "south"])
def test_three_classes_with_gaps_categories_and_dates_from_files(csv_run: Path, tmp_path: Path, site: str) -> None:
    finished = open_finished_run(csv_run)
    bundle = load_bundle(bundle_from(finished, arm="fedprox", site=site, out=tmp_path / site))
    expected = saved(csv_run, "fedprox", 3, site)
    scores = again(finished, bundle, expected.index.to_numpy())
    columns = [f"score_{name}" for name in bundle.classes]
    assert sorted(bundle.classes) == ["mild", "none", "severe"]
    assert np.abs(scores - expected[columns].to_numpy()).max() <= 1e-6
    assert scores.shape == (len(expected), 3)
    assert np.array_equal(bundle.predicted(scores), scores.argmax(axis=1))
    assert (bundle.events, bundle.probabilities(scores)) == ((), None)
    kinds = {column.name: (column.kind, column.dates) for column in bundle.recipe.columns}
    assert kinds["seen"] == ("numeric", True)
    assert kinds["ward"] == ("categorical", False)
    assert bundle.unrecorded == (() if site == "north" else ("sodium",))


def test_sites_with_columns_of_their_own_have_adapters_of_their_own(tmp_path: Path) -> None:
    """Switzerland's bundle does not ask for what Switzerland does not record."""
    absent = {"switzerland": ["chol", "fbs", "ca"], "va": ["slope", "ca", "thal"], "hungarian": ["slope", "ca", "thal"]}
    study = hearts(
        data={"source": "heart", "schema": "own", "not_recorded": absent},
        model={"kind": "adapter", "latent": 5, "hidden": [6], "align": "coral"},
        arms=[
            {"name": "fedprox", "algorithm": "fedprox"},
            {"name": "heads", "algorithm": "fedavg", "model.head": "private"},
        ],
    )
    folder = run_study(study, tmp_path / "runs").folder
    finished = open_finished_run(folder)
    for arm, site in [*(("fedprox", site) for site in SITES), ("heads", "va"), ("heads", "switzerland")]:
        bundle = load_bundle(bundle_from(finished, arm=arm, site=site, out=tmp_path / f"{arm}-{site}"))
        expected = saved(folder, arm, 1, site)
        scores = again(finished, bundle, expected.index.to_numpy())
        assert np.abs(scores - expected["score"].to_numpy()).max() <= 1e-6
        needed = {column.name for column in bundle.recipe.columns}
        assert not needed & set(absent.get(site, []))
        assert len(needed) == 13 - len(absent.get(site, []))
        assert bundle.unrecorded == ()


def test_scores_that_differ_from_the_run_are_not_given_out(
    finished: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(origin, "TOLERANCE", -1.0)
    with pytest.raises(BundleError, match=r"differ from those in the run by up to \S+, more than -1") as caught:
        bundle_from(finished, arm="fedavg", site="va", out=tmp_path / "va")
    assert caught.value.exit_code == 10
    assert list(tmp_path.iterdir()) == []


def test_rows_are_scored_alike_alone_and_together(run: Path, finished: FinishedRun, bundle: Bundle) -> None:
    rows = saved(run, "fedavg", 1, "cleveland").index.to_numpy()
    together = again(finished, bundle, rows)
    alone = np.concatenate([again(finished, bundle, rows[[place]]) for place in range(5)])
    assert np.allclose(alone, together[:5], rtol=0, atol=1e-6)
    assert bundle.scores(np.zeros((0, len(bundle.recipe.names)))).shape == (0,)
