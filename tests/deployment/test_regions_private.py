"""Protections within regions: patients pay once, sums are a region's, and one that fails is a region's matter."""

from pathlib import Path
from typing import Any

import pytest

from tests.deployment.in_process_federation import OpenGate
from tests.deployment.private_studies import KNOWN, ledger, private, sources
from tests.deployment.regional_federation import hierarchy
from tests.deployment.test_regions_parity import SIX, six_wards
from tests.deployment.test_regions_recovery import Clock, Reborn, before_or_after, clock, dying, place_of
from wardround.core.errors import DeployError
from wardround.protocol.messages import Sealed
from wardround.runs.catalog import load_study

__all__ = ["clock"]  # a fixture
REGIONS = {"north": ["alder", "cedar"], "south": ["birch", "dogwood"]}


def content(regions: dict[str, list[str]] | None = None, **changes: Any) -> dict[str, Any]:
    topology = {"kind": "hierarchical", "regional_rounds": 2, "regions": regions or REGIONS}
    return private(topology=topology, training={"rounds": 4}, **changes)


@pytest.mark.slow
def test_patients_pay_once_for_each_round_whatever_dies(tmp_path: Path) -> None:
    """Every region dies at each of its messages; the ledger of each hospital is what the coordinator of all knows."""
    network = hierarchy(content(), tmp_path, sources(), known_sources=KNOWN)
    network.transport.sites |= {region: Reborn(network, region) for region in REGIONS}  # type: ignore[misc]
    for transport in network.transports.values():
        before_or_after(transport, "after", dying(set()))
    folder = network.run()
    records = folder.records().sort_values("round")
    assert records["loss"].isna().all()
    for site in sources():
        own = ledger(tmp_path, site)
        assert [entry.round for entry in own] == [1, 2, 3, 4]
        charged = [tuple(charges[site]) for charges in records["charges"]]
        assert charged == [(entry.rate, entry.noise, entry.steps) for entry in own]
    results = folder.read_json("results.json")
    assert set(results["privacy"]["arms"]["fedprox"]["sites"]) == set(sources())


def test_a_hospital_whose_budget_is_spent_leaves_its_region(tmp_path: Path) -> None:
    document = content()
    gates = {"birch": OpenGate(load_study(document, sources=KNOWN)[0], most_total_epsilon=0.5)}
    network = hierarchy(document, tmp_path, sources(), gates, known_sources=KNOWN)
    with pytest.raises(DeployError, match=r"south failed: 1 of 2 sites are left .*privacy budget is spent"):
        network.run()


@pytest.mark.slow
def test_both_protections_in_one_region(tmp_path: Path) -> None:
    document = content(
        {"all": ["*"]}, privacy={"example": {"epsilon": 2.0, "delta": 1e-5, "clip": 1.0}, "secure_sum": {}}
    )
    network = hierarchy(document, tmp_path, sources(), known_sources=KNOWN)
    records = network.run().records()
    assert [len(sites) for sites in records["sites"]] == [4] * 4
    assert not records["failed"].any()
    assert all(len(ledger(tmp_path, site)) == 4 for site in sources())


def test_a_sum_that_fails_in_one_region_leaves_the_others_as_they_are(tmp_path: Path, clock: Clock) -> None:
    document = {**SIX, "deployment": {"quorum": 2, "deadline": 1000.0, "smallest_cell": 1}}
    network = hierarchy(document, tmp_path, six_wards())
    lost = network.regions["odd"][0]

    def before(site: str, sealed: Sealed) -> bool:
        away = place_of(site, sealed) == ("train", 1, lost)
        clock.ahead += 1100 * away
        return not away

    network.transports["odd"].before = before
    records = network.run().records().sort_values("round")
    assert [entry.startswith("odd: ") for entry in records["failed"]] == [False, True, False, False]
    assert sorted(records["sites"].iloc[1]) == sorted(network.regions["even"])
    assert [len(entry) for entry in records["sites"]] == [6, 3, 6, 6]
