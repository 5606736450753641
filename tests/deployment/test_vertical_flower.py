"""Parties as processes of their own, over Flower: run, killed in the middle of an epoch, and gone on with."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.deployment.federation_processes import Hospitals, free_port
from tests.deployment.vertical_federation import document, simulated, write
from tests.small_federations import assert_same_tree
from wardround.deployment import approve, provision
from wardround.runs.audit import heads_in, verify
from wardround.runs.catalog import load_study

pytestmark = pytest.mark.slow


@contextmanager
def parties(folder: Path, content: dict[str, Any], files: dict[str, Path]) -> Iterator[Hospitals]:
    study, families = load_study(content)
    network = Hospitals(study, families, folder / "kits", "127.0.0.1", free_port("127.0.0.1"), tuple(files))
    provision(study, network.sites, network.folder, [network.host], network.port)
    for party, file in files.items():
        path = network.folder / "sites" / party / "site.toml"
        text = path.read_text(encoding="utf-8").replace("FILL IN: the path of your CSV file", str(file))
        text = text.replace("smallest_cell = 5", "smallest_cell = 1").replace("least_rows = 30", "least_rows = 10")
        path.write_text(text, encoding="utf-8")
        approve(network.site(party), study, "Dr. Test")
    try:
        yield network
    finally:
        network.end_all()


def part(here: Hospitals, party: str) -> Any:
    (path,) = here.site(party).state.glob("*/models/split/seed-1.safetensors")
    return load_file(path)


def test_three_parties_that_are_killed_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    files = write(tmp_path / "data", ("clinic", "lab", "heart"), 0.9)
    content = document(files, training={"rounds": 6, "batch_size": 8})
    with parties(tmp_path, content, files) as here:
        coordinator = here.coordinate()
        joined = here.join_all()
        for party in ("lab", "clinic"):
            joined[party].wait_for("round 1: trained", also=coordinator)
            joined[party].kill()
            joined[party] = here.join(party)
            joined[party].wait_for("trained", also=coordinator)
        coordinator.kill()
        coordinator = here.coordinate(report=True)
        assert coordinator.ended() == 0, coordinator.said
        for site in joined.values():
            site.wait_for("is finished")
            site.interrupt()
        assert [site.ended() for site in joined.values()] == [0, 0, 0]
        for process in here.processes:
            assert "Traceback" not in process.said
        _, trained = simulated(content)
        _, run = trained["split", 1]
        whole = {name: leaf for party in files for name, leaf in part(here, party).items()}
        assert_same_tree(whole, run.server["params"], part="apart and on one machine")
        folder = here.run_folder()
        assert folder.records()["round"].tolist() == list(range(1, 7))
        for party in files:
            log = here.site(party).state / "audit.jsonl"
            assert verify(log, heads_in(folder.path / "audit.jsonl", log)).broken is None
