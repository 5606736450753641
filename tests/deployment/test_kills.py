"""kill -9 at random moments: whatever dies is started again, and the run ends with the very same models.

WARDROUND_KILLS says how many, over hospitals side by side, in regions, and as parties that share patients; each kill
has a run of its own. Who stays alive stays joined from run to run, as in earnest.
"""

import os
import signal
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from fnmatch import fnmatch
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from tests.deployment.federation_processes import EAGER, Hospitals, Process, heart_study, hospitals, wait_until
from tests.deployment.outsider_attacks import entries
from tests.deployment.test_regions_processes import REGIONS, Regions, regional_heart, regions
from tests.deployment.test_vertical_flower import parties
from tests.deployment.vertical_federation import document, simulated, write
from wardround.core.tree import Tree
from wardround.deployment.common.parity import fingerprint
from wardround.runs.audit import BEGUN, verify

KILLS = int(os.environ.get("WARDROUND_KILLS", "8"))
ROUNDS = 6


class Topology(ABC):
    """A federation of processes that takes run after run; one of its processes is killed in each."""

    victims: tuple[str, ...]
    here: Hospitals
    sites: dict[str, Process]

    @abstractmethod
    def open(self, folder: Path) -> AbstractContextManager[Hospitals]: ...

    def start(self) -> None:
        self.sites = self.here.join_all()

    def hash(self, out: str) -> str:
        """Of the models of a run, which must be those of a simulation."""
        comparison = self.here.parity(out)
        assert comparison.equal
        return comparison.deployed

    def kill(self, victim: str, name: str, coordinator: Process, out: str) -> Process:
        """The coordinator that goes on."""
        if victim == "site":
            self.sites[name].kill()
            self.sites[name] = self.here.join(name)
        elif victim == "coordinator":
            coordinator.kill()
            return self.here.coordinate(out)
        else:
            os.kill(coordinator.superlink(), signal.SIGKILL)
        return coordinator

    def logs(self) -> list[Path]:
        return [self.here.site(name).state / "audit.jsonl" for name in self.here.sites]


class Flat(Topology):
    victims = ("site", "coordinator", "superlink")

    def open(self, folder: Path) -> AbstractContextManager[Hospitals]:
        # a round takes some tenths of a second, so that most kills hit sites while they train
        training = {"rounds": ROUNDS, "local_epochs": 20, "batch_size": 8}
        return hospitals(heart_study(("fedprox", "scaffold"), training=training), folder)


class Regional(Topology):
    victims = ("site", "region", "coordinator", "superlink")
    between: dict[str, Process]

    def open(self, folder: Path) -> AbstractContextManager[Hospitals]:
        return regions(regional_heart(), folder)

    def start(self) -> None:
        assert isinstance(self.here, Regions)
        self.between = {name: self.here.region(name) for name in REGIONS}
        super().start()

    def kill(self, victim: str, name: str, coordinator: Process, out: str) -> Process:
        if victim != "region":
            return super().kill(victim, name, coordinator, out)
        assert isinstance(self.here, Regions)
        region = next(region for region, sites in REGIONS.items() if any(fnmatch(name, site) for site in sites))
        self.between[region].kill()
        self.between[region] = self.here.region(region)
        return coordinator

    def logs(self) -> list[Path]:
        return [*super().logs(), *(self.here.folder / "regions" / name / "state" / "audit.jsonl" for name in REGIONS)]


class Vertical(Topology):
    victims = ("site", "coordinator", "superlink")

    def open(self, folder: Path) -> AbstractContextManager[Hospitals]:
        files = write(folder / "data", ("clinic", "lab", "heart"), 0.9)
        content = document(files, training={"rounds": ROUNDS, "batch_size": 8})
        _, trained = simulated(content)
        self.simulated = _hash(trained["split", 1][1].server["params"])
        return parties(folder, content, files)

    def hash(self, out: str) -> str:
        log = entries(self.here.run_folder(out).path / "audit.jsonl")
        run = next(entry["detail"]["run"] for entry in log if entry["event"] == BEGUN)
        whole: Tree = {}
        for party in self.here.sites:
            whole |= load_file(self.here.site(party).state / run / "models" / "split" / "seed-1.safetensors")
        deployed = _hash(whole)
        assert deployed == self.simulated
        return deployed


TOPOLOGIES: dict[str, Callable[[], Topology]] = {"flat": Flat, "regional": Regional, "vertical": Vertical}


def _hash(leaves: Tree) -> str:
    return sha256(fingerprint(leaves)).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize("kind", TOPOLOGIES)
def test_random_kills(kind: str, tmp_path: Path) -> None:
    network = TOPOLOGIES[kind]()
    numbers = [number for number in range(KILLS) if number % len(TOPOLOGIES) == list(TOPOLOGIES).index(kind)]
    with network.open(tmp_path) as network.here:
        network.here.program = EAGER
        network.start()
        undisturbed = network.here.coordinate("undisturbed")
        assert undisturbed.ended() == 0, undisturbed.said
        expected = network.hash("undisturbed")
        for place, number in enumerate(numbers):
            out, victim = f"run-{number}", network.victims[place % len(network.victims)]
            when = kill_once(network, victim, out, number)
            assert network.hash(out) == expected, when
            assert verify(network.here.run_folder(out).path / "audit.jsonl").broken is None, when
            for name, site in network.sites.items():
                assert site.running.poll() is None, f"{when}: {name}: {site.said}"
            for log in network.logs():
                assert verify(log).broken is None, f"{when}: {log}"


def kill_once(network: Topology, victim: str, out: str, number: int) -> str:
    """A whole run with one kill in it. When that was, in words."""
    rng = np.random.default_rng((20261116, number))
    name, after, more = str(rng.choice(network.here.sites)), int(rng.integers(ROUNDS - 1)), float(rng.uniform(0, 0.5))
    when = f"kill {number}: {victim} ({name}), {more:.2f} s after round {after}"
    moment = f"round {after}: trained" if after else "takes part in"
    times = network.sites[name].said.count(moment) + 1  # it has said so of runs before
    coordinator = network.here.coordinate(out)
    network.sites[name].wait_for(moment, times, coordinator)
    time.sleep(more)
    assert not network.here.run_folder(out).complete, f"{when}: the run was over"
    coordinator = network.kill(victim, name, coordinator, out)
    assert coordinator.ended() == 0, f"{when}: {coordinator.said}"
    if victim == "superlink":
        assert "the SuperLink is gone; starting it again" in coordinator.said
    wait_until(lambda: network.here.run_folder(out).complete, f"{when}: the run is complete", lambda: coordinator.said)
    return when
