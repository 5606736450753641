"""A region without sites: refused where it is written down, a clear error or a recovery where it comes to be so."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from typer.testing import CliRunner

from tests.deployment.hospital_files import NAMES, at_sites, study
from tests.deployment.in_process_federation import OpenGate, body_of, kind_of
from tests.deployment.parity import KNOWN
from tests.deployment.regional_federation import Hierarchy, hierarchy
from tests.noticed import noticed
from wardround.cli.main import app
from wardround.core.errors import DeployError, StudyError
from wardround.deployment import replay
from wardround.protocol.messages import Sealed
from wardround.report import read_evidence
from wardround.report.sections.topology import region_sentences, region_table
from wardround.runs.catalog import load_study
from wardround.runs.plan import load_plan

REGIONS = {"north": ["alder", "cedar"], "south": ["birch", "dogwood"]}
CLOSING = {"quorum": 1, "deadline": 1000.0, "smallest_cell": 1}
EMPTY: dict[str, tuple[list[str], str]] = {
    "none is listed": ([], "has no sites"),
    "a pattern that fits none": (["x-*"], "the pattern 'x-\\*' fits no site"),
    "a name that nobody has": (["elder"], "no site is called 'elder'"),
}


def regional(regions: dict[str, list[str]], **changes: Any) -> dict[str, Any]:
    topology = {"kind": "hierarchical", "regional_rounds": 2, "regions": regions}
    return study(["fedavg"], topology=topology, training={"rounds": 4}, **changes)


# -- written down


@pytest.mark.parametrize("case", EMPTY)
def test_a_region_without_sites_is_refused_by_check_and_run(case: str, tmp_path: Path) -> None:
    members, pattern = EMPTY[case]
    document = regional({"all": ["site-*"], "none": members}) | {"data": {"source": "synthetic", "count": 3}}
    del document["deployment"]
    file = tmp_path / "study.toml"
    file.write_bytes(tomli_w.dumps(document).encode())
    for verb in (["check"], ["run", "--out", str(tmp_path / "runs")]):
        refused = CliRunner().invoke(app, [verb[0], str(file), *verb[1:]])
        assert isinstance(refused.exception, StudyError), refused.output
        with pytest.raises(StudyError, match=pattern):
            raise refused.exception
        assert "none" in refused.exception.where
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("case", EMPTY)
def test_a_region_without_sites_gets_no_kit(case: str, tmp_path: Path) -> None:
    members, pattern = EMPTY[case]
    document = {**regional({"north": list(NAMES), "south": members}), "data": {"source": "at-sites"}}
    file = tmp_path / "study.toml"
    file.write_bytes(tomli_w.dumps(document).encode())
    words = ["provision", "new", str(file), "--sites", ",".join(NAMES), "--out", str(tmp_path / "kits")]
    refused = CliRunner().invoke(app, [*words, "--region", "north=h:1", "--region", "south=h:2"])
    assert isinstance(refused.exception, StudyError), refused.output
    with pytest.raises(StudyError, match=pattern):
        raise refused.exception
    assert not (tmp_path / "kits").exists()


def test_a_region_file_without_hospitals_is_refused(tmp_path: Path) -> None:
    from wardround.deployment import RegionFile, provision

    document = load_study({**regional(REGIONS), "data": {"source": "at-sites"}})[0]
    kits_dir = provision(
        document, NAMES, tmp_path / "kits", regions={"north": "127.0.0.1:9091", "south": "127.0.0.1:9092"}
    )
    path = kits_dir / "regions" / "south" / "coordinator" / "coordinator.toml"
    path.write_bytes(tomli_w.dumps({**tomllib.loads(path.read_text()), "sites": []}).encode())
    with pytest.raises(DeployError, match="is empty, or has a duplicate"):
        RegionFile.load(kits_dir / "regions" / "south")


# -- lost in mid-run


def losing(network: Hierarchy, gates: dict[str, OpenGate], from_round: int) -> None:
    """South's hospitals withdraw their approval when that round begins."""

    def before(site: str, sealed: Sealed) -> bool:
        if kind_of(sealed) == "train" and body_of(sealed)["round"] >= from_round:
            gates[site].withdrawn = True
        return True

    network.transports["south"].before = before


def begin(folder: Path, **changes: Any) -> tuple[Hierarchy, dict[str, OpenGate]]:
    document = regional(REGIONS, **changes)
    approved = load_study(document, sources=KNOWN)[0]
    gates = {site: OpenGate(approved) for site in REGIONS["south"]}
    return hierarchy(document, folder, at_sites(), gates, known_sources=KNOWN), gates


def test_a_region_that_loses_all_its_sites_is_left_out_by_the_quorum(tmp_path: Path) -> None:
    """The first average has south, the second has not; the model is the one that a replay of these records gives."""
    network, gates = begin(tmp_path, deployment=CLOSING)
    losing(network, gates, 3)
    folder = network.run()
    records = folder.records()
    assert [sorted(entry) for entry in records["sites"]] == [sorted(NAMES)] * 2 + [["alder", "cedar"]] * 2
    assert [tuple(entry) for entry in records["region_messages"]] == [(2, 0), (0, 2), (2, 0), (0, 1)]
    replayed = replay(load_plan(*load_study(regional(REGIONS, deployment=CLOSING), sources=KNOWN)), folder)
    assert replayed.largest < 1e-6
    results = folder.read_json("results.json")
    lost = "0 of 2 sites are left and 1 are needed"
    (failed,) = noticed(results, "site-failed", site="south")
    assert lost in failed["details"]["reason"]
    for site in REGIONS["south"]:
        assert noticed(results, "site-away", site=site)
    figures = results["arms"]["fedavg"]["topology"]["regions"]
    assert (figures["south"]["metrics"], figures["south"]["test"]) == (None, None)
    assert figures["north"]["metrics"] is not None
    evidence = read_evidence(folder)
    assert "A region without figures has no hospital that told any." in region_table(evidence).note
    assert region_sentences(evidence)


def test_without_a_quorum_it_is_a_clear_error_and_the_run_goes_on_when_it_is_settled(tmp_path: Path) -> None:
    network, gates = begin(tmp_path / "disturbed")
    losing(network, gates, 3)
    with pytest.raises(DeployError) as stopped:
        network.run()
    problem = stopped.value.problem
    assert problem.startswith(
        "1 of 2 sites are left and 2 are needed (south failed: 1 of 2 sites are left and 2 are needed"
    )
    assert "refused: the approval was withdrawn" in problem
    for gate in gates.values():
        gate.withdrawn = False
    network.transports["south"].before = lambda site, sealed: True
    network.restart_top()
    theirs = network.run().load_model("fedavg", 3)
    quiet, _ = begin(tmp_path / "quiet")
    ours = quiet.run().load_model("fedavg", 3)
    assert set(theirs) == set(ours)
    assert all((theirs[name] == ours[name]).all() for name in ours)
