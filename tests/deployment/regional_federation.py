"""Regions in one process: each answers the coordinator of all as a site, and asks its own sites. Carried by hand."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.deployment.in_process_federation import ByHand, OpenGate, answering, key, own_records, public
from wardround.core.settings import Factory
from wardround.data.records import Records
from wardround.data.sources import Source
from wardround.deployment import Step, refuse_undeployable
from wardround.deployment.common.messaging import Messenger
from wardround.deployment.coordinating.coordinator import Coordinator
from wardround.deployment.regional.region_coordinator import RegionalCoordinator, region_coordinator
from wardround.deployment.regional.region_handler import Region
from wardround.deployment.regional.regional_topology import coordinator_of_regions
from wardround.deployment.regional.regions import regions_of
from wardround.deployment.site.answering import SiteWork
from wardround.runs.catalog import load_study
from wardround.runs.folder import RunFolder
from wardround.study.parser import Families
from wardround.study.schema import Study

FROM_COUNTS = ("accuracy", "brier", "loss", "f1", "sensitivity", "specificity", "ppv", "npv")
Sources = Mapping[str, Callable[[], Source]]


@dataclass
class Hierarchy:
    """All processes of a run: one coordinator of all, one of each region, one of each site."""

    folder: Path
    study: Study
    families: Families
    sources: Sources
    gates: Mapping[str, OpenGate]
    transports: dict[str, ByHand] = field(default_factory=dict)  # of each region, to its sites
    revoked: dict[str, str] = field(default_factory=dict)  # sites, at their regions
    steps: list[Step] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.regions = regions_of(self.study, list(self.sources))
        for region, sites in self.regions.items():
            self.transports[region] = ByHand({site: self.open_site(site) for site in sites})
        self.transport = ByHand({region: self.open_region(region) for region in self.regions})
        self.top = self.open_top()

    @property
    def run_folder(self) -> RunFolder:
        return RunFolder(self.folder / "run")

    def run(self) -> RunFolder:
        self.steps += list(self.top.run())
        return self.run_folder

    @property
    def lines(self) -> list[str]:
        return [step.line for step in self.steps if step.line] + self.top.messenger.lines

    def open_top(self) -> Coordinator:
        keys = {region: public(region) for region in self.regions}
        names = list(self.regions)
        ends = self.study, self.families, names, self.run_folder, self.transport, key("top"), keys
        return coordinator_of_regions(Messenger(*ends), list(self.sources))

    def open_region(self, region: str) -> SiteWork:
        """A process of its own: what it knows is what its folder holds."""
        sites = self.regions[region]
        keys = {site: public(site) for site in sites}
        signer = key(f"{region} as coordinator")

        def own(folder: RunFolder) -> RegionalCoordinator:
            ends = self.transports[region], signer, keys
            messenger = Messenger(self.study, self.families, sites, folder, *ends, revoked=lambda: self.revoked)
            return region_coordinator(messenger)

        state = self.folder / "regions" / region
        return SiteWork(region, state, Region(state, self.study, own), key(region), public("top"))

    def open_site(self, name: str) -> SiteWork:
        region = next(region for region, sites in self.regions.items() if name in sites)

        def load() -> Records:
            return own_records(self.sources[name](), name)

        gate = self.gates.get(name) or OpenGate(self.study)
        peers = {site: public(site) for site in self.regions[region]}
        trusted = public(f"{region} as coordinator")
        state = self.folder / "sites" / name
        return answering(name, state, gate, self.families, load, trusted, peers=peers)

    def restart_site(self, name: str) -> None:
        region = next(region for region, sites in self.regions.items() if name in sites)
        self.transports[region].sites[name] = self.open_site(name)

    def restart_region(self, region: str) -> None:
        self.transport.sites[region] = self.open_region(region)

    def restart_top(self) -> None:
        self.top = self.open_top()


def hierarchy(
    document: Mapping[str, Any],
    folder: Path,
    sources: Sources,
    gates: Mapping[str, OpenGate] | None = None,
    known_sources: Mapping[str, Factory] | None = None,
) -> Hierarchy:
    """What is in `folder` already is gone on with."""
    study, families = load_study(document, sources=known_sources)
    refuse_undeployable(study, list(sources))
    return Hierarchy(folder, study, families, sources, gates or {})


def assert_same_regions(theirs: dict[str, Any], ours: dict[str, Any]) -> None:
    """All but AUC to single precision, accuracy and rows to the last bit; AUC within what the deployment says."""
    assert list(theirs) == list(ours)
    for region, figures in theirs.items():
        assert set(figures) == set(ours[region])
        assert figures["sites"] == ours[region]["sites"]
        assert figures["test"] == ours[region]["test"]
        for kind in ("regional", "global"):
            here, there = figures["metrics"][kind], ours[region]["metrics"][kind]
            assert here["accuracy"] == there["accuracy"], (region, kind)
            for metric in FROM_COUNTS:
                assert here[metric]["mean"] == pytest.approx(there[metric]["mean"], rel=1e-6), (region, kind, metric)
                assert here[metric]["seeds"] == there[metric]["seeds"]
            off = abs(here["auc"]["mean"] - there["auc"]["mean"])
            assert off <= figures["auc_error_bound"][kind] + 1e-12, (region, kind)
        assert figures["difference"]["accuracy"] == ours[region]["difference"]["accuracy"]
        assert figures["difference"]["brier"]["interval"] == pytest.approx(
            ours[region]["difference"]["brier"]["interval"], abs=1e-6
        )
