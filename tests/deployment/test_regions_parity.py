"""Regions across hospitals give the models of a simulation, bit for bit, and its records, figures and costs."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from tests.deployment.hospital_files import NAMES, at_sites, study
from tests.deployment.in_process_federation import body_of, federation, kind_of
from tests.deployment.parity import KNOWN, simulated
from tests.deployment.regional_federation import Hierarchy, assert_same_regions, hierarchy
from tests.small_federations import assert_same_tree
from wardround.data.sources import Source
from wardround.deployment import replay
from wardround.report import read_evidence
from wardround.report.sections.topology import region_sentences
from wardround.runs.catalog import load_study
from wardround.runs.execute import run_study
from wardround.runs.folder import RunFolder
from wardround.runs.plan import load_plan
from wardround.runs.prediction_tables import saved_leaves
from wardround.training.rounds import site_model

APART = {"north": ["alder", "c*"], "south": ["birch", "dogwood"]}  # not in the order of the sites
ARMS: list[Any] = [{"algorithm": "fedavg"}, {"algorithm": "fedprox", "mu": 0.1, "server_lr": 0.7}, "local"]


def regional(arms: list[Any] | None = None, **changes: Any) -> dict[str, Any]:
    topology = {"kind": "hierarchical", "regional_rounds": 2, "regions": APART, **changes.pop("topology", {})}
    training = {"rounds": 4, **changes.pop("training", {})}
    return study(ARMS if arms is None else arms, topology=topology, training=training, **changes)


def assert_regional_parity(document: Mapping[str, Any], folder: Path, network: Hierarchy | None = None) -> Hierarchy:
    network = network or hierarchy(document, folder, at_sites(), known_sources=KNOWN)
    network.run()
    plan = load_plan(*load_study(document, sources=KNOWN))
    for arm in plan.study.trained_arms:
        for seed in plan.study.evaluation.seeds:
            trial = plan.trial(arm, seed)
            run = simulated(trial)
            ours = saved_leaves(replace(run, memories={}))
            if ours and arm.held_out is None:
                assert_same_tree(network.run_folder.load_model(arm.name, seed), ours, part=arm.name)
            trainers = [site.name for site in trial.sites]
            for name in (site.name for site in trial.scored):
                own_folder = folder / "sites" / name / network.top.messenger.run_name
                stored = own_folder / "models" / arm.name / f"seed-{seed}.safetensors"
                params, buffers = site_model(trial, run, trainers.index(name) if name in trainers else 0)
                assert_same_tree(load_file(stored), {**params, **buffers}, part=f"{arm.name} at {name}")
    return network


CIRCUMSTANCES: dict[str, dict[str, Any]] = {
    "two regional rounds, two seeds": {"evaluation": {"seeds": {"first": 3, "count": 2}, "validation_share": 0.2}},
    "a share works, late work is dropped": {
        "training": {"rounds": 6, "share": 0.75, "stragglers": {"share": 0.4, "policy": "drop"}},
        "topology": {"regional_rounds": 3},
    },
    "float64, one regional round": {"training": {"precision": "float64"}, "topology": {"regional_rounds": 1}},
    "dropout": {"model": {"kind": "mlp", "hidden": [6], "dropout": 0.3}},
    "common columns": {"data": {"schema": "common"}},
    "columns of their own": {"data": {"schema": "own"}, "model": {"kind": "adapter", "latent": 5, "hidden": [6]}},
}


SHORT = "a share works, late work is dropped"


@pytest.mark.parametrize(
    "circumstance", [pytest.param(name, marks=[] if name == SHORT else pytest.mark.slow) for name in CIRCUMSTANCES]
)
def test_the_same_bits_as_simulated(circumstance: str, tmp_path: Path) -> None:
    assert_regional_parity(regional(**CIRCUMSTANCES[circumstance]), tmp_path)


@pytest.mark.slow
def test_arms_that_differ_travel_apart_where_their_regional_rounds_do(tmp_path: Path) -> None:
    """An arm that ends early, one that trains in one region only, one with other regional rounds, and one alone."""
    arms: list[Any] = [
        {"name": "short", "algorithm": "fedavg", "training": {"rounds": 2}},
        {"name": "one-region", "algorithm": "fedprox", "train_at": ["alder", "cedar"]},
        {"name": "often", "algorithm": "fedavg", "topology.regional_rounds": 1},
        {"name": "alone", "algorithm": "local", "training": {"rounds": 3}, "topology.kind": "flat"},
    ]
    network = assert_regional_parity(regional(arms), tmp_path)
    asked = [
        body_of(sealed)
        for region, sealed, _ in network.transport.carried
        if kind_of(sealed) == "train" and region == "north"
    ]
    assert [(body["wave"], body["round"]) for body in asked] == [*((0, n) for n in range(4)), (1, 0), (1, 2)]


def test_a_scale_of_all_sites_agrees_to_rounding(tmp_path: Path) -> None:
    """Sums of sums are in another order: 1e-6 of single precision."""
    document = regional(["fedavg"], data={"scale": "federated", "missing": "mean"})
    network = hierarchy(document, tmp_path, at_sites(), known_sources=KNOWN)
    network.run()
    plan = load_plan(*load_study(document, sources=KNOWN))
    ours = saved_leaves(replace(simulated(plan.trial(plan.study.arm("fedavg"), 3)), memories={}))
    theirs = network.run_folder.load_model("fedavg", 3)
    for name, leaf in ours.items():
        np.testing.assert_allclose(theirs[name].numpy(), leaf.numpy(), atol=1e-6, err_msg=name)
    assert {"fill_values", "moments"} <= {kind_of(sealed) for _, sealed, _ in network.transport.carried}


@pytest.mark.slow
def test_one_region_is_the_flat_federation(tmp_path: Path) -> None:
    document = regional(["fedavg"], topology={"regions": {"all": ["*"]}})
    network = assert_regional_parity(document, tmp_path / "regions")
    flat = federation(study(["fedavg"], training={"rounds": 4}), tmp_path / "flat", at_sites(), known_sources=KNOWN)
    flat.run()
    regional_model, other = network.run_folder.load_model("fedavg", 3), flat.folder.load_model("fedavg", 3)
    params = [name for name in other if name.startswith("server/params/")]
    assert_same_tree({name: regional_model[name] for name in params}, {name: other[name] for name in params})


@pytest.mark.slow
def test_values_are_selected_across_regions(tmp_path: Path) -> None:
    document = regional(
        [{"name": "fedprox", "algorithm": "fedprox", "mu": [0.01, 2.0]}],
        selection={"arms": ["fedprox"], "metric": "loss", "on": "site", "site": "birch"},
    )
    network = assert_regional_parity(document, tmp_path / "deployed")
    alone = run_study(document, tmp_path / "simulated", engine="serial", sources=KNOWN, workers=1)
    theirs, ours = network.run_folder.read_json("results.json")["selection"], alone.results["selection"]
    assert [choice["chosen"] for choice in theirs] == [choice["chosen"] for choice in ours]


def test_records_costs_and_figures_are_the_simulations(tmp_path: Path) -> None:
    training = {"share": 0.75, "stragglers": {"share": 0.4, "policy": "drop"}}
    document = regional(training=training, evaluation={"seeds": {"first": 3, "count": 2}})
    network = hierarchy(document, tmp_path / "deployed", at_sites(), known_sources=KNOWN)
    folder = network.run()
    alone = run_study(document, tmp_path / "simulated", engine="serial", sources=KNOWN, workers=1)
    order = ["arm", "seed", "round"]
    theirs = folder.records().sort_values(order).reset_index()
    ours = RunFolder(alone.folder).records().sort_values(order).reset_index()
    for name in ("loss", "update_norm", "change", "bytes_down", "bytes_up"):
        np.testing.assert_allclose(theirs[name].astype(float), ours[name].astype(float), rtol=1e-6, err_msg=name)
    for name in ("sites", "dropped", "region_messages", "region_bytes"):
        assert [list(content) for content in theirs[name]] == [list(content) for content in ours[name]], name
    averaged = (theirs["round"] % 2 == 0).to_numpy()  # only then there is a model of all that could be scored
    assert theirs["test_loss"].notna().tolist() == averaged.tolist()
    np.testing.assert_allclose(theirs["test_loss"][averaged], ours["test_loss"][averaged], rtol=1e-6)
    content, other = folder.read_json("results.json")["arms"], alone.results["arms"]
    assert content["fedavg"]["topology"]["cost"] == other["fedavg"]["topology"]["cost"]
    for arm in ("fedavg", "fedprox"):
        assert_same_regions(content[arm]["topology"]["regions"], other[arm]["topology"]["regions"])
    for arm in ("fedavg", "fedprox", "local"):
        for site in NAMES:
            assert content[arm]["sites"][site]["accuracy"] == other[arm]["sites"][site]["accuracy"], (arm, site)
    evidence = read_evidence(folder)
    assert "north" in " ".join(region_sentences(evidence))


def six_wards() -> dict[str, Callable[[], Source]]:
    """Six sites, each with rows of its own, whose columns are all alike."""
    _, families = load_study(SIX)
    rows = families.sources["synthetic"](**SIX_ROWS).load()

    def own(name: str) -> Source:
        return Source(lambda: rows.take(np.flatnonzero(rows.hospital == name)))

    return {name: partial(own, name) for name in rows.hospitals}


SIX_ROWS: dict[str, Any] = {"count": 6, "largest": 60, "features": 4, "classes": 2}
SIX: dict[str, Any] = {
    **study([{"algorithm": "fedavg"}]),
    "data": {"source": "synthetic", **SIX_ROWS},
    "training": {"rounds": 4, "local_epochs": 1, "batch_size": 16, "lr": 0.1},
    "topology": {
        "kind": "hierarchical",
        "regional_rounds": 2,
        "regions": {"odd": ["site-*[135]"], "even": ["site-*[0246]"]},
    },
    "privacy": {"secure_sum": {}},
}


def test_each_region_has_a_secure_sum_of_its_own(tmp_path: Path) -> None:
    network = hierarchy(SIX, tmp_path, six_wards())
    folder = network.run()
    replayed = replay(load_plan(*load_study(SIX)), folder)
    assert (replayed.models, replayed.equal) == (1, True)
    for region, sites in network.regions.items():
        sums = [
            (site, body_of(sealed)["sum"])
            for site, sealed, _ in network.transports[region].carried
            if kind_of(sealed) == "unmask"
        ]
        assert {site for site, _ in sums} == set(sites)
        assert all(set(content["survivors"]) == set(sites) for _, content in sums)
        # the coordinator of all gets models, and nobody's update
        answers = [
            answer for name, sealed, answer in network.transport.carried if (name, kind_of(sealed)) == (region, "train")
        ]
        assert len(answers) == 2
