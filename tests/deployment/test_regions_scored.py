"""Regions' own models are scored by their hospitals in a deployment, and the figures are those of a simulation."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.deployment.hospital_files import at_sites, study
from tests.deployment.in_process_federation import federation, kind_of, public
from tests.deployment.parity import KNOWN
from tests.deployment.regional_federation import assert_same_regions, hierarchy
from tests.deployment.test_regions_recovery import Clock, clock, place_of  # noqa: F401
from tests.noticed import noticed
from tests.small_federations import assert_same_tree
from wardround.core.errors import DeployError
from wardround.deployment.common.waves import seal_with_models
from wardround.deployment.coordinating import final_scores
from wardround.protocol.messages import Sealed, open_sealed
from wardround.report import build_report, read_evidence
from wardround.report.sections.topology import region_sentences, region_table
from wardround.runs.execute import run_study

REGIONS = {"north": ["alder", "c*"], "south": ["birch", "dogwood"]}


def regional(arms: list[Any] | None = None, **changes: Any) -> dict[str, Any]:
    topology = {"kind": "hierarchical", "regional_rounds": 2, "regions": REGIONS}
    training = {"rounds": 4, **changes.pop("training", {})}
    return study(arms or ["fedavg", "local"], topology=topology, training=training, **changes)


def regions_in(results: Mapping[str, Any], arm: str) -> dict[str, Any]:
    regions: dict[str, Any] = results["arms"][arm]["topology"]["regions"]
    return regions


@pytest.mark.slow
def test_figures_of_regions_are_the_simulations(tmp_path: Path) -> None:
    """Also of an arm in which half of a region trains, and of one that a selection puts together."""
    arms: list[Any] = [
        {"name": "some", "algorithm": "fedavg", "train_at": ["alder", "birch", "dogwood"]},
        {"name": "fedprox", "algorithm": "fedprox", "mu": [0.01, 2.0]},
        "local",
    ]
    document = regional(
        arms,
        evaluation={"seeds": {"first": 3, "count": 3}, "validation_share": 0.2, "threshold": 0.5},
        selection={"arms": ["fedprox"], "metric": "loss", "on": "validation"},
    )
    network = hierarchy(document, tmp_path / "deployed", at_sites(), known_sources=KNOWN)
    theirs = network.run().read_json("results.json")
    ours = run_study(document, tmp_path / "simulated", engine="serial", sources=KNOWN, workers=1).results
    chosen = theirs["selection"][0]["arm"]
    assert chosen == ours["selection"][0]["arm"]
    for arm in ("some", "fedprox[mu=0.01]", chosen):
        assert_same_regions(regions_in(theirs, arm), regions_in(ours, arm))
    assert regions_in(theirs, "some")["north"]["sites"] == ["alder"]
    assert theirs["arms"]["local"]["topology"] is None
    page = build_report(network.run_folder.path).read_text(encoding="utf-8")
    assert "Each hospital scored both models and told counts" in page
    with_it = {name for name, entry in theirs["arms"].items() if entry["topology"]}
    assert {arm for arm in with_it if regions_in(theirs, arm)["south"]["metrics"] is None} == set()


def test_what_is_scored_is_the_model_that_is_kept(tmp_path: Path, clock: Clock) -> None:  # noqa: F811
    """South misses the last average: what is kept, and scored, as its own is the model of all before that, as in a
    simulation in which nothing came from it."""
    closing = {"quorum": 1, "deadline": 1000.0, "smallest_cell": 1}
    network = hierarchy(regional(deployment=closing), tmp_path, at_sites(), known_sources=KNOWN)

    def before(region: str, sealed: Sealed) -> bool:
        away = place_of(region, sealed) == ("train", 2, "south")
        clock.ahead += 1e4 * away
        return not away

    network.transport.before = before
    folder = network.run()
    model = folder.load_model("fedavg", 3)
    for region, transport in network.transports.items():
        messages = {site: sealed for site, sealed, _ in transport.carried if kind_of(sealed) == "evaluate"}
        assert set(messages) == set(network.regions[region])
        for sealed in messages.values():
            tensors = open_sealed(sealed, public(f"{region} as coordinator"), region).tensors
            own = {name.removeprefix("0/own/"): leaf for name, leaf in tensors.items() if name.startswith("0/own/")}
            assert own
            assert_same_tree(own, {name: model[f"server/region {region}/{name}"] for name in own})
    assert regions_in(folder.read_json("results.json"), "fedavg")["south"]["metrics"] is not None


def test_small_hospitals_withhold_and_the_report_says_so(tmp_path: Path) -> None:
    """Test rows are 30 % of 41, 36, 52 and 47 rows: 12, 11, 16 and 14. From 13 on a hospital tells figures. Dogwood
    does not train, and so has no say about its region's own model."""
    arms = [{"name": "some", "algorithm": "fedavg", "train_at": ["alder", "birch", "cedar"]}]
    network = hierarchy(regional(arms, deployment={"smallest_cell": 13}), tmp_path, at_sites(), known_sources=KNOWN)
    folder = network.run()
    by_region = regions_in(folder.read_json("results.json"), "some")
    lines = {line["site"]: line for line in folder.summaries() if line["subset"] == "regional"}
    assert set(lines) == {"alder", "birch", "cedar"}
    assert {site for site, line in lines.items() if line.get("suppressed")} == {"alder", "birch"}
    assert {region: region_figures["withheld"] for region, region_figures in by_region.items()} == {
        "north": ["alder"],
        "south": ["birch"],
    }
    assert "groups" not in lines["cedar"] or not lines["cedar"]["groups"]  # nobody shows them
    assert (by_region["north"]["test"], by_region["south"]["test"]) == (lines["cedar"]["rows"], None)
    assert by_region["south"]["metrics"] is None
    # one seed, and no patient is known here: there is a difference, and no interval
    figures, entry = by_region["north"]["metrics"], by_region["north"]["difference"]["accuracy"]
    assert entry["difference"] == figures["regional"]["accuracy"]["mean"] - figures["global"]["accuracy"]["mean"]
    assert (entry["interval"], entry["verdict"]) == (None, "cannot be told")
    evidence = read_evidence(folder)
    note = region_table(evidence).note
    assert "fewer than 13 patients tested): of alder and birch" in note
    assert "A region without figures" in note
    assert region_sentences(evidence)
    assert len(noticed(evidence.results, "figures-withheld", site="alder")) == 1  # whatever number of models


def test_a_site_scores_no_model_that_its_study_does_not_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A coordinator of a flat study that sends a second model would learn figures that nobody approved."""
    network = federation(study(["fedavg"]), tmp_path, at_sites(), known_sources=KNOWN)

    def with_another(messenger: Any, trials: Any, state: Any, requests: Any, extra: Any, **more: Any) -> Any:
        own = {f"0/own/{name}": leaf.clone() for name, leaf in state.runs[0].server["params"].items()}
        return seal_with_models(messenger, trials, state, requests, dict.fromkeys(requests, own))

    monkeypatch.setattr(final_scores, "seal_with_models", with_another)
    with pytest.raises(DeployError, match="asks for figures of a model that the study that was approved here"):
        network.run()
