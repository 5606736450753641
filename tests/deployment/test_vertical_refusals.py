"""Studies and files of parties that cannot run, told before anything is sent, or at both ends when it shows."""

from pathlib import Path
from typing import Any

import pytest

from tests.deployment.in_process_federation import OpenGate
from tests.deployment.vertical_federation import Parties, document, federation, write
from wardround.core.errors import DataError, DeployError, StudyError
from wardround.deployment import (
    Policy,
    Refusal,
    Refused,
    SiteFile,
    approve,
    in_plain_words,
    objections,
    open_source,
    preflight,
    provision,
    refuse_undeployable,
)
from wardround.runs.catalog import families, load_study

PARTS = ("clinic", "lab")
SPLIT = {"algorithm": "split"}


def study_of(folder: Path, **changes: Any) -> Any:
    files = write(folder / "data")
    topology = {**document(files)["topology"], **changes.pop("topology", {})}
    return load_study(document(files, **{**changes, "topology": topology}))[0]


def test_the_outcome_in_another_partys_file_is_refused_there(tmp_path: Path) -> None:
    network, notices = both_ends(
        tmp_path, {"lab": "number,crp,sick\n" + "".join(f"P{n:04},1.5,no\n" for n in range(60))}
    )
    with pytest.raises(DeployError, match="lab failed: its file has 'sick', which is the outcome at clinic"):
        network.run()
    assert "Delete it there" in notices["lab"][-1]


@pytest.mark.parametrize("name", ["top", "absent", "lab.one"])
def test_a_name_that_parts_of_the_network_have_is_no_partys(tmp_path: Path, name: str) -> None:
    """At provisioning, before anybody has rows."""
    files = write(tmp_path / "data")
    parties = {"clinic": files["clinic"], name: files["lab"]}
    study = load_study(document(parties))[0]
    with pytest.raises(StudyError, match="cannot be a party's name"):
        provision(study, tuple(parties), tmp_path / "kits", ["127.0.0.1"], 4000)
    assert not (tmp_path / "kits").exists()


@pytest.mark.parametrize(
    ("changes", "where", "words"),
    [
        (
            {"arms": [{"algorithm": "split"}, {"algorithm": "local", "topology.kind": "flat"}]},
            "arms: local",
            "both kinds",
        ),
        ({"data": {"missing": "drop"}}, "data: missing", "learn what is missing"),
        ({"topology": {"known": {"lab": 0.5}}}, "topology: known", "for simulations"),
        ({"deployment": {"quorum": 1}}, "deployment: quorum", "every party is needed"),
        (
            {"arms": [SPLIT, {**SPLIT, "name": "other", "topology.parties.heart": ["ef"]}]},
            "arms: other: topology",
            "has other parties than split",
        ),
        (
            {"arms": [SPLIT, {**SPLIT, "name": "turned", "topology.labels": "lab"}]},
            "arms: turned: topology",
            "the labels are elsewhere",
        ),
    ],
)
def test_what_cannot_be_deployed(tmp_path: Path, changes: dict[str, Any], where: str, words: str) -> None:
    with pytest.raises(StudyError) as caught:
        refuse_undeployable(study_of(tmp_path, **changes), PARTS)
    assert where in caught.value.where
    assert words in caught.value.problem
    assert caught.value.remedy


@pytest.mark.parametrize("sites", [("clinic",), ("clinic", "lab", "heart"), ("clinic", "laboratory")])
def test_sites_are_the_parties(tmp_path: Path, sites: tuple[str, ...]) -> None:
    with pytest.raises(StudyError, match="the parties of the study are clinic, lab"):
        provision(study_of(tmp_path), sites, tmp_path / "kits")
    assert not (tmp_path / "kits").exists()


def test_a_kit_says_what_is_left_to_fill_in(tmp_path: Path) -> None:
    study = study_of(tmp_path)
    kits = provision(study, PARTS, tmp_path / "kits")
    clinic, lab = (SiteFile.load(kits / "sites" / party).data for party in PARTS)
    assert clinic["source"] == lab["source"] == "csv-parties"
    assert clinic["file"].startswith("FILL IN")
    assert (clinic["patient"], clinic["target"]) == ("pid", "sick")
    assert lab["patient"] == "number"  # as the study says for this party
    assert not {"target", "labels", "classes", "positive", "patients", "files", "holder"} & set(lab)
    with pytest.raises(DeployError, match="is not filled in yet"):
        open_source(SiteFile.load(kits / "sites" / "lab"), families())


def filled_in(folder: Path, study: Any, **policy: Any) -> dict[str, SiteFile]:
    kits = provision(study, PARTS, folder / "kits")
    sites = {}
    for party in PARTS:
        path = kits / "sites" / party / "site.toml"
        text = path.read_text(encoding="utf-8")
        file = folder / "data" / f"{party}.csv"
        path.write_text(text.replace("FILL IN: the path of your CSV file", str(file)), encoding="utf-8")
        sites[party] = SiteFile.load(path)
        approve(sites[party], study, "Dr. Test")
    return sites


def test_the_check_before_joining_speaks_of_patients_and_keys(tmp_path: Path) -> None:
    sites = filled_in(tmp_path, study_of(tmp_path, deployment={"smallest_cell": 5}))
    for party, site in sites.items():
        by_name = {condition.name: condition for condition in preflight(site)}
        assert by_name["patients"].ok
        assert by_name["patients"].state == f"{90 if party == 'clinic' else 91} patients, whose numbers are text"
        assert by_name["keys"].ok
        assert by_name["policy"].ok
        assert by_name["approval"].ok
        assert ("no labels" in by_name["data"].state) == (party == "lab")
        assert "P0001" not in " ".join(condition.state for condition in by_name.values())
    (sites["lab"].peers / "clinic.pub").unlink()
    by_name = {condition.name: condition for condition in preflight(sites["lab"])}
    assert not by_name["keys"].ok


def test_the_check_finds_a_file_of_the_wrong_kind(tmp_path: Path) -> None:
    sites = filled_in(tmp_path, study_of(tmp_path))
    path = sites["clinic"].path
    path.write_text(path.read_text(encoding="utf-8").replace('target = "sick"\n', ""), encoding="utf-8")
    (bad,) = [condition for condition in preflight(SiteFile.load(path)) if condition.name == "study"]
    assert "has the labels of this study, and its rows have none" in bad.state
    text = path.read_text(encoding="utf-8").replace('source = "csv-parties"', 'source = "csv"\ntarget = "sick"')
    path.write_text(text, encoding="utf-8")
    (bad,) = [condition for condition in preflight(SiteFile.load(path)) if condition.name == "study"]
    assert "its rows have no patient ids that others would know" in bad.state


def test_plain_words_say_what_leaves_and_who_can_read_it(tmp_path: Path) -> None:
    noisy = {"embeddings": {"clip": 1.0, "noise": 0.5}}
    words = " ".join(in_plain_words(study_of(tmp_path, topology=noisy)))
    for sentence in (
        "Parties: clinic, lab hold different data about the same patients. clinic has the labels.",
        "Leaves lab, in each step of training",
        "sealed for clinic; the coordinator carries them and cannot read them",
        "gradients tell the parties something of the labels",
        "cut to a length of 1 and gets noise of 0.5 times that",
        "No differential privacy for patients and no secure aggregation",
        "Predictions stay at clinic",
    ):
        assert sentence in words
    assert "averag" not in words.replace("nothing is averaged here", "")


def test_a_policy_that_wants_more_than_this_gives_refuses(tmp_path: Path) -> None:
    study = study_of(tmp_path)

    def against(**wanted: Any) -> str:
        return "; ".join(objections(Policy(smallest_cell=1, **wanted), study, "lab", PARTS))

    assert against() == ""
    assert "requires secure aggregation" in against(secure_aggregation=True)
    assert "requires differential privacy" in against(most_epsilon=1.0)
    assert "fewer than the 3" in against(least_sites=3)


def both_ends(folder: Path, texts: dict[str, str], **changes: Any) -> tuple[Parties, dict[str, list[str]]]:
    files = write(folder / "data")
    for party, text in texts.items():
        files[party].write_text(text, encoding="utf-8")
    notices: dict[str, list[str]] = {}
    return federation(document(files, **changes), folder, files, notices=notices), notices


def test_nobody_in_common_is_said_at_both_ends_and_names_nobody(tmp_path: Path) -> None:
    texts = {"lab": "number,crp,lactate,kind\n" + "".join(f"{n},1.5,2.5,x\n" for n in range(40))}
    network, notices = both_ends(tmp_path, texts)
    with pytest.raises(DataError) as caught:
        network.run()
    assert "no patients are common to all of clinic, lab" in caught.value.problem
    assert "clinic has text, lab has digits" in caught.value.problem
    for party in PARTS:
        assert notices[party][-1].endswith(caught.value.problem)
        assert "is given up" in notices[party][-1]
    assert "P00" not in str(caught.value) + "".join(line for lines in notices.values() for line in lines)
    assert not (network.folder.path / "state").exists()


def test_the_next_start_after_that_begins_anew(tmp_path: Path) -> None:
    files = write(tmp_path / "data")
    good = files["lab"].read_text(encoding="utf-8")
    network, _ = both_ends(tmp_path, {"lab": good.replace("P0", "Q0")})
    with pytest.raises(DataError):
        network.run()
    files["lab"].write_text(good, encoding="utf-8")
    network.restart_site("lab")
    network = network.restart_coordinator()
    network.run()
    assert network.folder.complete


def test_too_few_in_common_are_told_to_nobody(tmp_path: Path) -> None:
    lines = "".join(f"P{n:04},1.5,2.5,x\n" for n in range(6)) + "".join(f"R{n:04},1.5,2.5,x\n" for n in range(40))
    network, notices = both_ends(
        tmp_path, {"lab": "number,crp,lactate,kind\n" + lines}, deployment={"smallest_cell": 10}
    )
    with pytest.raises(DataError) as caught:
        network.run()
    words = "fewer than 10 patients are common to all of clinic, lab"
    assert words in caught.value.problem
    log = (network.folder.path / "audit.jsonl").read_text(encoding="utf-8")
    assert words in log
    assert all(notices[party][-1].endswith(caught.value.problem) for party in PARTS)
    assert not [text for text in (log, caught.value.problem) if "6 patients" in text]


class Strict(OpenGate):
    def enough(self, training_rows: int) -> None:
        if training_rows < 60:
            raise Refused(Refusal("this site has fewer than 60 training rows, the least that its policy allows"))


@pytest.mark.parametrize("party", PARTS)
def test_a_party_with_too_few_matched_rows_refuses(tmp_path: Path, party: str) -> None:
    files = write(tmp_path / "data", known=0.7)
    content = document(files)
    gates = {party: Strict(load_study(content)[0])}
    network = federation(content, tmp_path, files, gates=gates)
    with pytest.raises(DeployError, match=f"{party} refused: this site has fewer than 60 training rows"):
        network.run()


def test_a_party_that_never_approved_refuses(tmp_path: Path) -> None:
    files = write(tmp_path / "data")
    network = federation(document(files), tmp_path, files, gates={"lab": OpenGate(None)})
    with pytest.raises(DeployError, match="lab refused: not approved here"):
        network.run()


def test_an_approval_withdrawn_in_the_middle_stops_the_run(tmp_path: Path) -> None:
    files = write(tmp_path / "data")
    content = document(files)
    gate = OpenGate(load_study(content)[0])
    network = federation(content, tmp_path, files, gates={"lab": gate})

    def run() -> None:
        for step in network.coordinator.run():
            gate.withdrawn = step.done >= 1

    with pytest.raises(DeployError, match="lab refused: the approval was withdrawn"):
        run()
    gate.withdrawn = False
    network = network.restart_coordinator()
    network.run()
    assert network.folder.complete


def test_a_column_that_a_party_does_not_have_is_told_at_that_party(tmp_path: Path) -> None:
    files = write(tmp_path / "data")
    content = document(files, topology={"parties": {"clinic": ["age"], "lab": ["crb"]}})
    notices: dict[str, list[str]] = {}
    network = federation(content, tmp_path, files, notices=notices)
    with pytest.raises(DeployError, match="lab failed: its file has no column 'crb'"):
        network.run()
    assert "crp" in notices["lab"][-1]
