"""A study gives the same models deployed and simulated, bit for bit, whatever changes the arithmetic."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from tests.deployment import hospital_files as hospitals
from tests.deployment.hospital_files import NAMES, study
from tests.deployment.in_process_federation import kind_of, session_of
from tests.deployment.parity import KNOWN, Both, assert_parity, deploy
from tests.noticed import noticed
from tests.representatives import represented
from wardround.algorithms import ALGORITHMS
from wardround.core.errors import StudyError
from wardround.deployment import Policy, objections, refuse_undeployable, replay
from wardround.deployment.common import deployed_plan as deployedplan
from wardround.models import Dropout, Model, ModelBuilder, Shape, from_module
from wardround.runs.catalog import load_study
from wardround.runs.execute import run_study
from wardround.runs.folder import RunFolder

# an algorithm for parties is deployed between parties: test_vertical_parity.py
POOLING = [name for name, make in ALGORITHMS.items() if make().pools and not make().vertical]
DEPLOYABLE = [name for name, make in ALGORITHMS.items() if not make().pools]
EAGER: dict[str, dict[str, Any]] = {"clustered": {"warm_up": 1, "ratio": 0.99, "smallest_update": 0.0, "gamma": 0.0}}


def normed() -> ModelBuilder:
    """BatchNorm, whose statistics stay at their site, and dropout, whose masks are drawn there."""

    def build(shape: Shape) -> Model:
        def module() -> nn.Module:
            first, last = nn.Linear(shape.inputs[0], 5), nn.Linear(5, 1)
            return nn.Sequential(first, nn.BatchNorm1d(5), nn.ReLU(), Dropout(0.2, (5,)), last)

        return from_module(module, shape)

    return build


LONG = (
    "common columns",
    "intercepts of their own",
    "aligned, with heads of their own",
    "seeds that only shuffle",
    "two seeds",
    "decays",
    "adam",
    "a common scale",
    "some, late",
    "public ranges, no indicators",
    "some, dropped",
    "float64",
    "dropout",
    "three classes",
    "aligned, coral",
    "aligned, mmd",
)
CIRCUMSTANCES: dict[str, dict[str, Any]] = {
    "two seeds": {"evaluation": {"seeds": {"first": 3, "count": 2}, "validation_share": 0.2}},
    "seeds that only shuffle": {"evaluation": {"seeds": {"first": 3, "count": 2}, "vary": ["batches"]}},
    "some, late": {"training": {"share": 0.5, "stragglers": {"share": 0.5, "policy": "keep"}, "local_epochs": 3}},
    "some, dropped": {"training": {"share": 0.75, "stragglers": {"share": 0.4, "policy": "drop"}, "rounds": 5}},
    "momentum": {"training": {"momentum": 0.9, "lr": 0.02}},
    "adam": {"training": {"optimiser": "adam", "lr": 0.01}},
    "decays": {"training": {"weight_decay": 0.01, "lr_decay": {"factor": 0.5, "every": 1}}},
    "float64": {"training": {"precision": "float64", "share": 0.75}},
    "dropout": {"model": {"kind": "mlp", "hidden": [6], "dropout": 0.3}},
    "BatchNorm": {"model": {"kind": "normed"}, "training": {"share": 0.75, "batch_size": 9}},
    "intercepts of their own": {"model": {"kind": "logistic", "intercept": "private"}, "training": {"share": 0.75}},
    "a common scale": {"data": {"scale": "federated", "missing": "mean"}},
    "public ranges, no indicators": {"data": {"scale": "ranges", "indicator": False}},
    "three classes": {"data": {"classes": 3}},
    "common columns": {"data": {"schema": "common"}},
    "columns of their own": {"data": {"schema": "own"}, "model": {"kind": "adapter", "latent": 5, "hidden": [6]}},
    "aligned, with heads of their own": {
        "data": {"schema": "own"},
        "model": {"kind": "adapter", "latent": 4, "hidden": [5], "align": "coral", "head": "private"},
        "training": {"share": 0.75},
    },
}


def arms(circumstance: str = "") -> list[dict[str, Any]]:
    """Every algorithm that can be deployed and is sound there."""
    needs = {circumstance} & {"momentum", "adam"}
    aligned = circumstance.startswith("aligned")  # whose running means need plain steps
    return [
        {"algorithm": name, **EAGER.get(name, {})}
        for name in DEPLOYABLE
        if needs <= ALGORITHMS[name]().sound_with and not (aligned and ALGORITHMS[name]().adaptive_server)
    ]


@pytest.mark.parametrize(
    "circumstance", [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in CIRCUMSTANCES]
)
def test_every_algorithm_gives_the_same_bits(circumstance: str, tmp_path: Path) -> None:
    changes = CIRCUMSTANCES[circumstance]
    sources = hospitals.at_sites(classes=changes.get("data", {}).get("classes", 2))
    assert_parity(study(arms(circumstance), **changes), tmp_path, sources, {"normed": normed})


@pytest.mark.slow
def test_arms_with_common_columns_and_with_columns_of_their_own_stand_in_one_study(tmp_path: Path) -> None:
    both = assert_parity(
        study(
            [
                {"name": "own", "algorithm": "fedprox", "data.schema": "own"},
                {"name": "all", "algorithm": "fedprox"},
                {"name": "common", "algorithm": "fedprox", "data.schema": "common"},
            ],
            model={"kind": "adapter", "latent": 5, "hidden": [6]},
        ),
        tmp_path,
    )
    assert {arm.name for arm in both.plan.study.arms} == {"own", "all", "common"}


def test_clusters_really_split_where_they_are_compared(tmp_path: Path) -> None:
    both = assert_parity(study([{"algorithm": "clustered", **EAGER["clustered"]}]), tmp_path)
    assert both.deployed.folder.load_model("clustered", 3)["server/cluster/used"] > 1


@pytest.mark.slow
def test_arms_that_differ_in_everything_travel_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds, sites that train, a variant with other training and other preparation; in one wave and in many."""
    document = study(
        [
            {"name": "short", "algorithm": "scaffold", "training": {"rounds": 1}},
            {"name": "long", "algorithm": "scaffold", "training": {"rounds": 4, "share": 0.5}},
            {"name": "two-sites", "algorithm": "fedavg", "train_at": ["alder", "cedar"]},
            {"name": "alone", "algorithm": "fedprox", "mu": 0.1, "train_at": ["birch"], "training": {"rounds": 2}},
            {"name": "local", "algorithm": "local"},
        ],
        evaluation={"validation_share": 0.2, "every": 2},
        variants=[{"name": "mean", "data": {"missing": "mean"}, "training": {"lr": 0.05}, "arms": ["long", "local"]}],
    )
    both = assert_parity(document, tmp_path / "one")
    assert [len(session_of(site).waves) for site in sessions(both)] == [1] * len(NAMES)
    rounds = both.deployed.folder.records().groupby("arm")["round"].max().to_dict()
    assert (rounds["short"], rounds["long"], rounds["alone"]) == (1, 4, 2)
    monkeypatch.setattr(deployedplan, "WAVE_BYTES", 100)
    both = assert_parity(document, tmp_path / "many")
    assert all(len(session_of(site).waves) > 3 for site in sessions(both))


def sessions(both: Both) -> list[Any]:
    return list(both.deployed.transport.sites.values())


@pytest.mark.parametrize("on", represented(["validation", "site"], by=["site"]))
def test_values_are_selected_alike(on: str, tmp_path: Path) -> None:
    where = {"on": "validation"} if on == "validation" else {"on": "site", "site": "birch"}
    document = study(
        [{"name": "fedprox", "algorithm": "fedprox", "mu": [0.01, 2.0]}, "fedavg"],
        evaluation={"validation_share": 0.2, "seeds": {"first": 1, "count": 2}},
        selection={"arms": ["fedprox"], "metric": "loss", **where},
    )
    both = assert_parity(document, tmp_path)
    alone = run_study(document, tmp_path / "simulated", engine="serial", sources=KNOWN, workers=1)
    theirs, ours = both.deployed.folder.read_json("results.json")["selection"], alone.results["selection"]
    for choice, other in zip(theirs, ours, strict=True):
        assert choice["chosen"] == other["chosen"]
        assert choice["scores"] == pytest.approx(other["scores"], abs=1e-7)


@pytest.mark.slow
def test_images_need_no_agreement_on_columns(tmp_path: Path) -> None:
    document = study(arms(), data={"source": "dots"}, model={"kind": "mlp", "hidden": [5]})
    both = assert_parity(document, tmp_path, hospitals.dots_at_sites())
    assert {"facts", "prepare"} <= {kind_of(sealed) for _, sealed, _ in both.deployed.transport.carried}


@pytest.mark.slow
def test_a_large_model_agrees_within_what_threads_may_change(tmp_path: Path) -> None:
    document = study(["scaffold"], model={"kind": "mlp", "hidden": [400, 300]}, training={"rounds": 2})
    both = deploy(document, tmp_path)
    replayed = replay(both.plan, both.deployed.folder)
    assert replayed.close
    assert replayed.models == 1


def test_the_figures_are_the_simulations_where_nothing_is_withheld(tmp_path: Path) -> None:
    """Which need no rows: AUC and calibration come from histograms there."""
    document = study(["fedavg", "scaffold", "local"], evaluation={"seeds": {"first": 3, "count": 3}})
    both = deploy(document, tmp_path)
    alone = run_study(document, tmp_path / "simulated", engine="serial", sources=KNOWN, workers=1)
    theirs, ours = both.deployed.folder.read_json("results.json"), alone.results
    for arm in ("fedavg", "scaffold", "local"):
        for metric in ("accuracy", "f1", "sensitivity", "specificity", "ppv", "npv", "brier", "loss"):
            for part in ("mean", "sd"):
                expected = pytest.approx(ours["arms"][arm]["metrics"][metric][part], abs=1e-7)
                assert theirs["arms"][arm]["metrics"][metric][part] == expected, (arm, metric, part)
        assert theirs["arms"][arm]["metrics"]["auc"]["mean"] == pytest.approx(
            ours["arms"][arm]["metrics"]["auc"]["mean"], abs=0.02
        )
        assert theirs["arms"][arm]["cost"]["bytes"] == ours["arms"][arm]["cost"]["bytes"]
        for site in NAMES:
            assert theirs["arms"][arm]["sites"][site]["accuracy"] == ours["arms"][arm]["sites"][site]["accuracy"]
    assert not noticed(theirs, "figures-withheld")


def test_records_of_rounds_are_the_simulations(tmp_path: Path) -> None:
    document = study(arms(), training={"share": 0.75, "stragglers": {"share": 0.4, "policy": "drop"}})
    both = deploy(document, tmp_path)
    alone = run_study(document, tmp_path / "simulated", engine="serial", sources=KNOWN, workers=1)
    theirs = both.deployed.folder.records().sort_values(["arm", "round"])
    ours = RunFolder(alone.folder).records().sort_values(["arm", "round"])
    unknown = theirs["divergence"].isna().to_numpy()  # how far such a site moved is not sent
    assert set(theirs["arm"][unknown]) == {"fednova", "local", "qfedavg"}
    ours.loc[unknown, "divergence"] = np.nan
    for name in ("loss", "update_norm", "divergence", "change", "bytes_down", "bytes_up", "test_accuracy"):
        np.testing.assert_allclose(theirs[name].astype(float), ours[name].astype(float), rtol=1e-6, err_msg=name)
    for name in ("sites", "dropped"):
        assert [list(entry) for entry in theirs[name]] == [list(entry) for entry in ours[name]]


@pytest.mark.parametrize("algorithm", POOLING)
def test_what_brings_rows_together_is_refused(algorithm: str) -> None:
    document, _ = load_study(study(["fedavg", algorithm]), sources=KNOWN)
    with pytest.raises(StudyError, match="all rows at one place is what a deployment avoids"):
        refuse_undeployable(document, NAMES)
    assert any("no row leaves alder" in reason for reason in objections(Policy(), document, "alder", NAMES))
