"""What regions refuse, say and keep to themselves; and the kits that they are made of."""

import json
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.deployment.forging import changed, forge
from tests.deployment.hospital_files import NAMES, at_sites, study
from tests.deployment.in_process_federation import OpenGate, body_of, kind_of
from tests.deployment.parity import KNOWN
from tests.deployment.regional_federation import Hierarchy, hierarchy
from tests.noticed import noticed
from tests.representatives import represented
from wardround.cli.main import app
from wardround.core.errors import DeployError, StudyError
from wardround.deployment import (
    CoordinatorKit,
    Policy,
    RegionFile,
    SiteFile,
    coordinate_study,
    in_plain_words,
    objections,
    provision,
)
from wardround.deployment.regional.region_run import study_of
from wardround.protocol.messages import Sealed
from wardround.runs.catalog import load_study

REGIONS = {"north": ["alder", "cedar"], "south": ["birch", "dogwood"]}
TOPOLOGY: dict[str, Any] = {"kind": "hierarchical", "regional_rounds": 2, "regions": REGIONS}
OPEN = {"quorum": 1, "deadline": 1000.0, "smallest_cell": 1}


def regional(arms: list[Any] | None = None, **changes: Any) -> dict[str, Any]:
    topology = {**TOPOLOGY, **changes.pop("topology", {})}
    return study(arms or ["fedavg"], topology=topology, training={"rounds": 2}, **changes)


def begin(folder: Path, gates: dict[str, OpenGate] | None = None, **changes: Any) -> Hierarchy:
    return hierarchy(regional(**changes), folder, at_sites(), gates, known_sources=KNOWN)


# -- studies that regions cannot run across hospitals


@pytest.mark.parametrize(
    ("arms", "topology", "pattern"),
    [
        ([{"algorithm": "fedavg"}, {"name": "flat", "algorithm": "fedavg", "topology.kind": "flat"}], {}, "one coord"),
        (["fedavg"], {"regions": {"north": ["alder"], "south": ["birch", "cedar"]}}, "dogwood is in no region"),
        (["fedavg"], {"regions": {"alder": ["alder", "cedar"], "south": ["birch", "dogwood"]}}, "region and a site"),
    ],
)
def test_what_cannot_be_deployed_is_refused(arms: list[Any], topology: Any, pattern: str, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=pattern):
        hierarchy(regional(arms, topology=topology), tmp_path, at_sites(), known_sources=KNOWN)


def test_a_region_too_small_for_a_secure_sum_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="2 sites of north train, and its secure sum takes 3"):
        begin(tmp_path, privacy={"secure_sum": {}})


def test_a_quorum_counts_those_who_answer_one_coordinator(tmp_path: Path) -> None:
    network = begin(tmp_path, deployment={"quorum": 2})
    assert network.top.messenger.quorum == 2
    with pytest.raises(StudyError, match="3 sites are needed in a round, and 2 take part"):
        begin(tmp_path, deployment={"quorum": 3})


# -- hospitals decide


def test_least_sites_counts_those_of_the_region() -> None:
    document = load_study(regional(), sources=KNOWN)[0]
    assert not objections(Policy(least_sites=2, smallest_cell=1), document, "alder", NAMES)
    (objection,) = objections(Policy(least_sites=3, smallest_cell=1), document, "alder", NAMES)
    assert objection == "the number of sites that take part in its region is 2, fewer than the 3 that alder demands"
    few = load_study(regional(topology={"regions": {"all": ["*"]}}, deployment={"quorum": 2}), sources=KNOWN)[0]
    assert "quorum of 2" in objections(Policy(least_sites=3), few, "alder", NAMES)[0]


def test_of_a_region_only_those_count_who_are_drawn_for_certain() -> None:
    """Three of four work in a round: of a region of two it may be one."""
    document = study(["fedavg"], topology=TOPOLOGY, training={"rounds": 2, "share": 0.75})
    (objection,) = objections(Policy(smallest_cell=1), load_study(document, sources=KNOWN)[0], "alder", NAMES)
    assert objection.startswith("arm fedavg averages 1 in a round in which alder works")


def test_plain_words_say_who_coordinates_and_what_goes_on() -> None:
    words = " ".join(in_plain_words(load_study(regional(), sources=KNOWN)[0], NAMES))
    assert "north (alder, cedar); south (birch, dogwood)" in words
    assert "Every 2 rounds a coordinator of all averages the regions' models" in words
    assert "a region's round needs the work of all its hospitals" in words


def test_a_region_all_of_whose_sites_refuse_is_a_clear_error(tmp_path: Path) -> None:
    gates = {site: OpenGate(None) for site in REGIONS["south"]}
    network = begin(tmp_path, gates)
    with pytest.raises(DeployError) as stopped:
        network.run()
    assert "south failed: 1 of 2 sites are left and 2 are needed (dogwood refused: not approved here)" in (
        stopped.value.problem
    )


def test_a_hospital_that_refuses_is_left_out_of_the_run_everywhere(tmp_path: Path) -> None:
    network = begin(tmp_path, {"birch": OpenGate(None)}, deployment=OPEN)
    results = network.run().read_json("results.json")
    assert list(results["sites"][0]["sites"]) == ["alder", "cedar", "dogwood"]
    assert noticed(results, "site-refused", site="birch", details={"reason": "not approved here"})
    figures = results["arms"]["fedavg"]["topology"]["regions"]
    assert {region: entry["sites"] for region, entry in figures.items()} == {
        "north": ["alder", "cedar"],
        "south": ["dogwood"],
    }


def test_a_hospital_that_fails_while_all_agree_is_left_out_too(tmp_path: Path) -> None:
    gates = {"cedar": OpenGate(load_study(regional(deployment=OPEN), sources=KNOWN)[0])}
    network = begin(tmp_path, gates, deployment=OPEN)

    def before(site: str, sealed: Sealed) -> bool:
        gates[site].withdrawn = kind_of(sealed) == "facts"
        return True

    network.transports["north"].before = lambda site, sealed: site != "cedar" or before(site, sealed)
    results = network.run().read_json("results.json")
    assert list(results["sites"][0]["sites"]) == ["alder", "birch", "dogwood"]
    assert noticed(results, "site-refused", site="cedar", details={"reason": "the approval was withdrawn"})


# -- messages


def test_a_region_obeys_the_coordinator_of_all_alone_and_its_sites_the_region_alone(tmp_path: Path) -> None:
    network = begin(tmp_path)
    body = {"run": "a" * 12, "study": network.study.hash, "sites": list(NAMES)}
    north = network.transport.sites["north"]
    assert kind_of(north.answer(forge("hello", body, "stranger", "north"))) == "refused"
    assert kind_of(north.answer(forge("hello", body, "top", "south"))) == "refused"
    other = forge("hello", {**body, "study": "0" * 64}, "top", "north")
    assert "this region's kit is for study" in body_of(network.transport.sites["north"].answer(other))["reason"]
    to_site = forge("hello", body, "top", "alder")
    assert kind_of(network.transports["north"].sites["alder"].answer(to_site)) == "refused"
    keys = forge("keys", {**body, "wave": 0, "round": 0, "sum": {}}, "top", "north")
    assert kind_of(network.transport.sites["north"].answer(keys)) == "failed"


def forged(network: Hierarchy, change: Callable[[dict[str, Any]], None]) -> str:
    """What the coordinator of all says when south's answer to `train` was changed, and signed by south."""

    def after(region: str, sealed: Sealed, answer: Sealed) -> Sealed:
        if (region, kind_of(sealed)) != ("south", "train"):
            return answer
        return changed(answer, "south", lambda body, tensors: change(body))

    network.transport.after = after
    with pytest.raises(DeployError) as stopped:
        network.run()
    return stopped.value.problem


def of_another_region(body: dict[str, Any]) -> None:
    body["rounds"][0]["sites"] = ["alder"]


def no_weight(body: dict[str, Any]) -> None:
    body["trials"]["0"]["weight"] = None


def negative_weight(body: dict[str, Any]) -> None:
    body["trials"]["0"]["weight"] = -1.0


def another_round(body: dict[str, Any]) -> None:
    body["rounds"][0]["round"] = 3


def no_model(body: dict[str, Any]) -> None:
    body["trials"] = {}


@pytest.mark.parametrize(
    "change",
    represented(
        [of_another_region, no_weight, negative_weight, another_round, no_model],
        by=[of_another_region, negative_weight, no_model],
    ),
)
def test_what_a_region_cannot_have_done_does_not_count(change: Any, tmp_path: Path) -> None:
    error_text = forged(begin(tmp_path), change)
    assert "south sent" in error_text
    assert "1 of 2 sites are left and 2 are needed" in error_text


def test_the_coordinator_of_all_sees_no_columns_of_a_single_site(tmp_path: Path) -> None:
    """Only cedar knows the ward `burns`, and birch alone lacks `lab`: what goes up says so of the region."""
    network = begin(tmp_path, data={"scale": "federated"})
    network.run()
    answers = {(region, kind_of(sealed)): body_of(answer) for region, sealed, answer in network.transport.carried}
    by_site = {"sets", "described", "directions"}  # as in the report of any run
    assert {name for name, value in answers["north", "facts"].items() if "cedar" in str(value)} <= by_site
    assert "burns" in str(answers["north", "facts"]["kinds"])
    for kind in ("fill_values", "moments", "train"):
        content = {name: value for name, value in answers["south", kind].items() if name != "rounds"}
        assert "birch" not in str(content), kind
    tensors = [answer.tensors for region, sealed, answer in network.transport.carried if kind_of(sealed) == "train"]
    alone = [answer.tensors for _, sealed, answer in network.transports["north"].carried if kind_of(sealed) == "train"]
    assert not set(tensors) & set(alone)


# -- kits


def kits(folder: Path) -> Path:
    document = load_study({**regional(), "data": {"source": "at-sites"}})[0]
    addresses = {"north": "north.example.org:9091", "south": "[2001:db8::2]:9092"}
    return provision(document, NAMES, folder / "kits", ["all.example.org"], 9090, regions=addresses)


def test_kits_let_sites_trust_their_region_and_regions_the_coordinator_of_all(tmp_path: Path) -> None:
    kits_dir = kits(tmp_path)
    top = CoordinatorKit.load(kits_dir / "coordinator")
    assert (tuple(top.sites), top.hospitals) == (("north", "south"), NAMES)
    for region, sites in REGIONS.items():
        loaded = RegionFile.load(kits_dir / "regions" / region)
        assert (loaded.coordinator, tuple(loaded.kit.sites)) == ("all.example.org:9090", tuple(sites))
        assert loaded.ca.read_bytes() == top.ca.read_bytes()
        assert top.public_keys[region] == (kits_dir / "regions" / region / "region.pub").read_bytes()
        for name in sites:
            site = SiteFile.load(_filled_in(kits_dir / "sites" / name))
            assert site.ca.read_bytes() == loaded.kit.ca.read_bytes() != top.ca.read_bytes()
            assert {path.stem for path in site.peers.iterdir()} == set(sites)
            assert site.sites == NAMES
    assert SiteFile.load(kits_dir / "sites" / "birch").coordinator == "[2001:db8::2]:9092"


def _filled_in(folder: Path) -> Path:
    return folder / "site.toml"


@pytest.mark.parametrize(
    ("regions", "pattern"),
    [
        ({}, "no address is given for north, south"),
        ({"north": "h:1", "south": "h:2", "east": "h:3"}, "no region is called 'east'"),
        ({"north": "h:1", "south": "h"}, "'h' is not an address"),
        ({"north": "h:1", "south": "h:99999"}, "99999 is out of range"),
    ],
)
def test_addresses_of_regions_are_checked_and_nothing_is_made(regions: Any, pattern: str, tmp_path: Path) -> None:
    document = load_study({**regional(), "data": {"source": "at-sites"}})[0]
    with pytest.raises((DeployError, StudyError), match=pattern):
        provision(document, NAMES, tmp_path / "kits", regions=regions)
    assert not list(tmp_path.iterdir())


def test_addresses_of_regions_are_for_studies_that_have_some(tmp_path: Path) -> None:
    document = load_study({**study(["fedavg"]), "data": {"source": "at-sites"}})[0]
    with pytest.raises(StudyError, match="no region is called 'north'"):
        provision(document, NAMES, tmp_path / "kits", regions={"north": "h:1"})


def test_a_region_whose_kit_is_not_its_own_is_refused(tmp_path: Path) -> None:
    kits_dir = kits(tmp_path)
    path = kits_dir / "regions" / "north" / "region.toml"
    text = path.read_text()
    path.write_text(text.replace('"cedar"', '"ceder"'))
    with pytest.raises(DeployError, match="does not name cedar"):
        RegionFile.load(path)
    path.write_text(text.replace("all.example.org:9090", "nowhere"))
    with pytest.raises(DeployError, match="'nowhere' is not an address"):
        RegionFile.load(path)
    path.write_text(text)
    loaded = RegionFile.load(path.parent)
    with loaded.kit.study.open("a") as file:
        file.write("\n[deployment2]\n")
    with pytest.raises(StudyError):
        study_of(loaded.kit, load_study({**regional(), "data": {"source": "at-sites"}})[1])


def test_a_kit_of_another_study_is_refused_by_the_coordinator_of_all(tmp_path: Path) -> None:
    kits_dir = kits(tmp_path)
    other, families = load_study({**regional(topology={"regional_rounds": 1}), "data": {"source": "at-sites"}})
    with pytest.raises(DeployError, match="the kit was made for a study with hash"):
        coordinate_study(other, families, CoordinatorKit.load(kits_dir), tmp_path)


def test_the_command_makes_kits_of_regions(tmp_path: Path) -> None:
    file = tmp_path / "study.toml"
    regions = "\n".join(f"{name} = {json.dumps(sites)}" for name, sites in REGIONS.items())
    file.write_text(
        'name = "wards"\n[data]\nsource = "at-sites"\n[training]\nrounds = 2\n[[arms]]\nalgorithm = "fedavg"\n'
        f'[topology]\nkind = "hierarchical"\nregional_rounds = 2\n[topology.regions]\n{regions}\n'
    )
    words = ["provision", "new", str(file), "--sites", ",".join(NAMES), "--out", str(tmp_path / "kits")]
    refused = CliRunner().invoke(app, [*words, "--region", "north"])
    assert isinstance(refused.exception, DeployError)
    given = ["--region", "north=127.0.0.1:9091", "--region", "south=127.0.0.1:9092"]
    network = CliRunner().invoke(app, [*words, *given, "--json"])
    assert network.exit_code == 0, network.output
    summary = json.loads(network.stdout)
    assert set(summary["regions"]) == {"north", "south"}
    assert set(summary["sites"]) == set(NAMES)
    settings = tomllib.loads((tmp_path / "kits" / "coordinator" / "coordinator.toml").read_text())
    assert settings["hospitals"] == list(NAMES)
