"""Numbers and counts across hospitals: the models of a simulation, bit for bit, and its figures from sums alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.deployment import vertical_federation as parties
from tests.deployment.hospital_files import NAMES
from tests.deployment.in_process_federation import body_of, kind_of
from tests.deployment.number_hospitals import TASKS, at_sites, study
from tests.deployment.parity import KNOWN, assert_parity, deploy
from tests.deployment.regional_federation import hierarchy
from tests.deployment.test_regions_parity import APART, assert_regional_parity
from tests.deployment.test_vertical_parity import assert_same_predictions, assert_same_weights, deployed
from tests.noticed import noticed
from wardround.evaluation.missing_party import predict_missing_party
from wardround.evaluation.prediction import predict
from wardround.runs.execute import run_study
from wardround.runs.folder import RunFolder
from wardround.tasks import read_task

SEEDS = {"seeds": {"first": 3, "count": 2}, "validation_share": 0.2}
CIRCUMSTANCES: dict[str, tuple[str, dict[str, Any]]] = {
    "columns of their own": (
        "regression",
        {"data": {"schema": "own"}, "model": {"kind": "adapter", "latent": 5, "hidden": [6]}},
    ),
    "a network, two seeds": ("count", {"model": {"kind": "mlp", "hidden": [5]}, "evaluation": SEEDS}),
    "some train": (
        "regression",
        {"arms": ["fedavg", {"name": "two", "algorithm": "fedprox", "mu": 0.1, "train_at": ["alder", "cedar"]}]},
    ),
    "selected by a site": (
        "count",
        {
            "arms": [{"name": "fedprox", "algorithm": "fedprox", "mu": [0.01, 2.0]}],
            "selection": {"arms": ["fedprox"], "metric": "mae", "on": "site", "site": "birch"},
        },
    ),
    "a secure sum": ("regression", {"arms": ["fedavg", "scaffold"], "privacy": {"secure_sum": {}}}),
    "a secure sum of counts": ("fitted", {"arms": ["fedavg"], "privacy": {"secure_sum": {}}}),
}


@pytest.mark.parametrize("kind", TASKS)
def test_every_number_gives_the_same_bits(kind: str, tmp_path: Path) -> None:
    assert_parity(study(kind), tmp_path, at_sites(kind))


@pytest.mark.parametrize("circumstance", CIRCUMSTANCES)
def test_the_same_bits_whatever_the_arithmetic(circumstance: str, tmp_path: Path) -> None:
    kind, changes = CIRCUMSTANCES[circumstance]
    assert_parity(study(kind, **changes), tmp_path, at_sites(kind))


def regional(kind: str, **changes: Any) -> dict[str, Any]:
    topology = {"kind": "hierarchical", "regional_rounds": 2, "regions": APART}
    arms = [{"algorithm": "fedavg"}, {"algorithm": "fedprox", "mu": 0.1, "train_at": ["alder", "cedar"]}, "local"]
    return study(kind, arms, topology=topology, training={"rounds": 4}, **changes)


@pytest.mark.parametrize("kind", ["regression", "count", "range"])
def test_regions_give_the_same_bits(kind: str, tmp_path: Path) -> None:
    """The scale too: a region adds up its hospitals' sums without rounding."""
    document = regional(kind)
    network = assert_regional_parity(
        document, tmp_path, hierarchy(document, tmp_path, at_sites(kind), known_sources=KNOWN)
    )
    facts = [body_of(answer) for _, sealed, answer in network.transport.carried if kind_of(sealed) == "facts"]
    assert all("target" not in sizes for body in facts for sets in body["sets"].values() for sizes in sets)
    assert all(bool(body["kinds"][0]["target"]) == (kind != "range") for body in facts)


def write_parties(folder: Path, kind: str) -> dict[str, Path]:
    """The clinic's outcome is a number, which depends on what either party knows."""
    files = parties.write(folder)
    head, *lines = files["clinic"].read_text(encoding="utf-8").splitlines()
    rng = np.random.default_rng(4)
    changed = [head.replace("sick", "stay,months" if kind == "count" else "stay")]
    for line in lines:
        *columns, sick = line.split(",")
        days = max(0.0, (float(columns[1]) - 60) / 6 + 4 * (sick == "yes") + rng.normal(6, 1))
        changed.append(",".join([*columns, str(round(days)), "12"] if kind == "count" else [*columns, f"{days:.2f}"]))
    files["clinic"].write_text("\n".join(changed) + "\n", encoding="utf-8")
    return files


def declared(kind: str) -> Any:
    return {"kind": "count", "exposure": "months"} if kind == "count" else "regression"


@pytest.mark.parametrize("kind", ["regression", "count"])
def test_parties_give_the_same_bits(kind: str, tmp_path: Path) -> None:
    """The holder has all numbers, so that no sum of them leaves it; the other learns the task without its name."""
    files = write_parties(tmp_path / "data", kind)
    outcome = {"target": "stay", "task": declared(kind)}
    content = parties.document(files, data=outcome)
    sources = {"clinic": lambda: parties.own_file("clinic", files["clinic"], **outcome)}
    network = deployed(tmp_path, content, files, sources=sources)
    _, trained = parties.simulated(content)
    assert_same_weights(network, trained)
    assert_same_predictions(network, trained)
    (agreed,) = [
        body_of(sealed)["task"]
        for site, sealed, _ in network.transport.carried
        if site == "lab" and kind_of(sealed) == "agree"
    ]
    assert (agreed["kind"], agreed["names"]) == (kind, ["class 0"])
    results = network.folder.read_json("results.json")
    trial, run = trained["split", 1]
    (whole,), (lone,) = predict(trial, run), predict_missing_party(trial, run)["lab"]
    arm = results["arms"]["split"]
    assert arm["metrics"]["mae"]["mean"] == pytest.approx(np.abs(whole.score - whole.label).mean())
    without = arm["topology"]["missing_party"]["lab"]["metrics"]["mae"]["mean"]
    assert without == pytest.approx(np.abs(lone.score - lone.label).mean())


@pytest.mark.parametrize("kind", ["regression", "fitted"])
def test_figures_and_curves_are_the_simulations(kind: str, tmp_path: Path) -> None:
    """At every site and over all: every metric of a number follows from sums. A simulation scores all rows in one
    batch, which may change the last bit of a score in single precision."""
    document = study(kind, evaluation=SEEDS)
    both = deploy(document, tmp_path / "deployed", at_sites(kind))
    alone = run_study(document, tmp_path / "simulated", engine="serial", sources=KNOWN, workers=1)
    theirs, ours = both.deployed.folder.read_json("results.json"), alone.results
    assert read_task(theirs["task"]) == TASKS[kind]
    assert theirs["primary_metric"] == ours["primary_metric"]
    for arm in ours["arms"]:
        assert set(theirs["arms"][arm]) == set(ours["arms"][arm])
        assert_close(theirs["arms"][arm]["metrics"], ours["arms"][arm]["metrics"])
        assert_close(theirs["arms"][arm]["within_sites"], ours["arms"][arm]["within_sites"])
        for site in NAMES:
            assert_close(theirs["arms"][arm]["sites"][site], ours["arms"][arm]["sites"][site])
        for part in ("measured_by", "measured_on", "rounds_to_95_percent"):
            assert theirs["arms"][arm]["convergence"][part] == ours["arms"][arm]["convergence"][part]
        assert theirs["arms"][arm]["auc_error_bound"] is None
    for test, other in zip(theirs["tests"], ours["tests"], strict=True):
        assert (test["arm"], test["metric"]) == (other["arm"], other["metric"])
        assert test["difference"] == pytest.approx(other["difference"], abs=1e-6)
    curves, records = theirs["curves"]["fedavg"], RunFolder(alone.folder).records()
    assert {"test_mae", "test_loss", "validation_mae"} <= set(curves)
    own = both.deployed.folder.records()
    for name in ("test_mae", "test_loss", "validation_mae", "loss"):
        order = ["arm", "seed", "round"]
        np.testing.assert_allclose(
            own.sort_values(order)[name].astype(float), records.sort_values(order)[name].astype(float), rtol=1e-6
        )
    assert not noticed(theirs, "figures-withheld")


def assert_close(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> None:
    assert set(theirs) == set(ours)
    for metric, figure in ours.items():
        for part in ("mean", "sd"):
            assert theirs[metric][part] == pytest.approx(figure[part], rel=1e-6, abs=1e-6, nan_ok=True), metric
