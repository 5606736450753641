"""Regions as processes of their own, with Flower between them and TLS on every link; killed, and started again."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.deployment.federation_processes import HEART, Hospitals, Process, fill_in, free_port, heart_study
from wardround.deployment import approve, provision
from wardround.report import read_evidence
from wardround.runs.audit import verify
from wardround.runs.catalog import load_study

REGIONS = {"america": ["cleveland", "va"], "europe": ["hungarian", "switz*"]}
ROUNDS = 6
TRAINING = {"rounds": ROUNDS, "local_epochs": 4, "batch_size": 8}


def regional_heart(**changes: Any) -> dict[str, Any]:
    topology = {"kind": "hierarchical", "regional_rounds": 2, "regions": REGIONS}
    return heart_study(("fedprox", "local"), training=TRAINING, topology=topology, **changes)


@dataclass
class Regions(Hospitals):
    def region(self, name: str) -> Process:
        return self.start(f"region {name}", "region", self.folder / "regions" / name / "region.toml")

    def all_started(self) -> tuple[dict[str, Process], dict[str, Process], Process]:
        """Hospitals last: whoever finds nobody there waits the longer the more often it has tried."""
        top, between = self.coordinate(), {name: self.region(name) for name in REGIONS}
        for region in between.values():
            region.wait_for("connected", also=top)
        return self.join_all(), between, top


@contextmanager
def regions(document: dict[str, Any], folder: Path) -> Iterator[Regions]:
    study, families = load_study(document)
    network = Regions(study, families, folder / "kits", "127.0.0.1", free_port("127.0.0.1"), HEART)
    addresses = {name: f"127.0.0.1:{free_port('127.0.0.1')}" for name in REGIONS}
    provision(study, HEART, network.folder, ("127.0.0.1",), network.port, regions=addresses)
    for name in HEART:
        fill_in(network.folder / "sites" / name / "site.toml", name)
        approve(network.site(name), study, "Dr. Test")
    try:
        yield network
    finally:
        network.end_all()


@pytest.mark.slow
def test_two_regions_of_two_hospitals_give_the_simulated_model(tmp_path: Path) -> None:
    with regions(regional_heart(), tmp_path) as here:
        sites, between, top = here.all_started()
        assert top.ended() == 0, top.said
        assert here.parity().equal
        topology = read_evidence(here.run_folder()).results["arms"]["fedprox"]["topology"]
        assert {name: region["sites"] for name, region in topology["regions"].items()} == {
            "america": ["cleveland", "va"],
            "europe": ["hungarian", "switzerland"],
        }
        for process in (*sites.values(), *between.values()):
            process.wait_for("is finished")
        for name in REGIONS:
            assert verify(here.folder / "regions" / name / "state" / "audit.jsonl").broken is None


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["site", "region", "coordinator"])
def test_whoever_is_killed_and_started_again_gives_the_same_model(victim: str, tmp_path: Path) -> None:
    with regions(regional_heart(), tmp_path) as here:
        sites, between, top = here.all_started()
        sites["va"].wait_for("round 3: trained", also=top)  # the first of two rounds that a region has by itself
        if victim == "site":
            sites["va"].kill()
            here.join("va")
        elif victim == "region":
            between["america"].kill()
            here.region("america")
        else:
            top.kill()
            top = here.coordinate()
        assert top.ended() == 0, top.said
        assert here.parity().equal
