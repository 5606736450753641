"""A deployed study that starts from a trained model: the coordinator has it, and hospitals know its digest alone."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.deployment import number_hospitals as numbers
from tests.deployment.hospital_files import NAMES, at_sites, study
from tests.deployment.in_process_federation import OpenGate, federation
from tests.deployment.parity import KNOWN, assert_parity, deploy
from tests.deployment.test_regions_parity import assert_regional_parity, regional
from wardround.core.errors import StudyError
from wardround.deployment import in_plain_words, refuse_undeployable
from wardround.deployment.provisioning.provision import _study_file
from wardround.runs.catalog import load_study
from wardround.runs.execute import StudyRun, run_study
from wardround.study.parser import parse_study
from wardround.study.starting import without_sources


def again(run: StudyRun | Path, arm: str = "fedavg", **changes: Any) -> dict[str, Any]:
    folder = run.folder if isinstance(run, StudyRun) else run
    model = {"kind": "logistic", "l2": 0.01, **changes.pop("model", {}), "start_from": {"run": str(folder), "arm": arm}}
    return study(changes.pop("arms", ["fedavg"]), **{"model": model, "name": "later", **changes})


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> StudyRun:
    return run_study(study(["fedavg", "local"]), tmp_path_factory.mktemp("first"), sources=KNOWN)


def test_deployed_and_simulated_start_with_the_same_bits(first: StudyRun, tmp_path: Path) -> None:
    both = assert_parity(again(first), tmp_path)
    content = both.deployed.folder.read_json("results.json")["start_from"]["fedavg"]
    assert content["both"] == list(NAMES)
    assert content["forgetting"] is None
    assert content["not_measured"] == "the rows of the old hospitals are not at the coordinator"
    simulated = run_study(again(first), tmp_path / "simulated", sources=KNOWN).results["start_from"]["fedavg"]
    assert simulated["digest"] == content["digest"]


def test_regions_start_with_the_same_bits(first: StudyRun, tmp_path: Path) -> None:
    document = regional([{"algorithm": "fedavg"}], name="later", model=again(first)["model"])
    assert_regional_parity(document, tmp_path)


@pytest.mark.parametrize("kind", ["regression", "fitted"])
def test_numbers_go_on_in_the_units_of_the_old_training(kind: str, tmp_path: Path) -> None:
    """The coordinator sends the scale of the model from which training starts, not that of these hospitals."""
    other_split = {"seeds": {"first": 5, "count": 1}}
    old = run_study(numbers.study(kind, ["fedavg"], evaluation=other_split), tmp_path, sources=KNOWN)
    document = numbers.study(kind, ["fedavg", {"name": "anew", "algorithm": "fedavg", "model.start_from": "off"}])
    document["model"] = {**document.get("model", {}), "start_from": {"run": str(old.folder), "arm": "fedavg"}}
    both = assert_parity(document, tmp_path / "later", numbers.at_sites(kind))
    carried, own = (
        json.loads((both.deployed.folder.path / "models" / arm / "seed-3.json").read_text())["target_scale"]
        for arm in ("fedavg", "anew")
    )
    before = json.loads((old.folder / "models" / "fedavg" / "seed-5.json").read_text())["target_scale"]
    assert carried == before != own
    assert both.plan.target_scale_of(both.plan.study.arm("fedavg"), 3) == tuple(carried)


def test_hospitals_need_only_the_digest(first: StudyRun, tmp_path: Path) -> None:
    known, families = load_study(again(first), sources=KNOWN)
    at_hospital = parse_study(without_sources(known.resolved), families)
    assert at_hospital.hash == known.hash
    assert str(first.folder) not in str(at_hospital.resolved)
    kit = _study_file(known, families).decode()
    assert str(first.folder) not in kit
    digest = known.arms[0].start.start_from
    assert digest is not None
    assert f'digest = "{digest.digest}"' in kit
    gates = {name: OpenGate(at_hospital) for name in NAMES}
    network = federation(known, tmp_path, at_sites(), gates, known_sources=KNOWN)
    first_leaves = assert_parity(again(first), tmp_path / "other").deployed.folder.load_model("fedavg", 3)
    leaves = network.run().load_model("fedavg", 3)
    assert all(leaves[name].equal(leaf) for name, leaf in first_leaves.items())


def test_hospitals_are_told_that_the_model_was_trained_before(first: StudyRun) -> None:
    known, _ = load_study(
        again(first, arms=["fedavg", {"name": "anew", "algorithm": "fedavg", "model.start_from": "off"}]), sources=KNOWN
    )
    lines = [line for line in in_plain_words(known, NAMES) if line.startswith("Start:")]
    source = known.arms[0].start.start_from
    assert source is not None
    assert len(lines) == 1
    assert "the model of fedavg does not begin with random weights" in lines[0]
    assert str(source.digest) in lines[0]
    assert not [line for line in in_plain_words(load_study(study(["fedavg"]), sources=KNOWN)[0]) if "Start:" in line]


def test_a_deployed_run_is_gone_on_with_at_the_coordinator_and_in_a_simulation(tmp_path: Path) -> None:
    """Of a model with private parts the shared part is there; what hospitals keep stays with them."""
    model = {"kind": "logistic", "l2": 0.01, "intercept": "private"}
    deployed = deploy(study(["fedavg"], model=model), tmp_path / "first").deployed.folder
    both = assert_parity(again(deployed.path, model=model), tmp_path / "second")
    trial = both.plan.trial(both.plan.study.arms[0], 3)
    assert trial.starting is not None
    assert not trial.starting.private
    content = run_study(again(deployed.path, model=model), tmp_path / "third", sources=KNOWN).results
    assert content["start_from"]["fedavg"]["deployed"]
    assert (
        content["start_from"]["fedavg"]["not_measured"]
        == "the old run was made across hospitals, and its rows stay there"
    )


def test_the_coordinator_needs_the_weights(first: StudyRun, tmp_path: Path) -> None:
    known, families = load_study(again(first), sources=KNOWN)
    at_hospital = parse_study(without_sources(known.resolved), families)
    with pytest.raises(StudyError, match="names no run or bundle"):
        federation(at_hospital, tmp_path, at_sites(), known_sources=KNOWN).run()


def test_arms_without_a_shared_model_of_the_first_round_are_refused(first: StudyRun) -> None:
    document = again(first, arms=["fedavg", "local"])
    with pytest.raises(StudyError, match=r"arms: local: model: start_from: hospitals that train alone"):
        refuse_undeployable(load_study(document, sources=KNOWN)[0], NAMES)
    document["arms"][1]["model.start_from"] = "off"
    refuse_undeployable(load_study(document, sources=KNOWN)[0], NAMES)


def test_an_epsilon_that_would_not_hold_is_refused_by_the_names_of_hospitals(first: StudyRun, tmp_path: Path) -> None:
    run = run_study(study(["fedavg"], data={"hospitals": ["alder", "birch"]}), tmp_path, sources=KNOWN)
    private = {"example": {"epsilon": 2.0, "delta": 1e-3, "clip": 1.0}}
    document = again(run, privacy=private)
    known = load_study(document, sources=KNOWN)[0]
    with pytest.raises(
        StudyError, match=r"alder may have patients on whom .* was trained without differential privacy"
    ):
        refuse_undeployable(known, ["alder", "cedar", "dogwood"])
    refuse_undeployable(known, ["cedar", "dogwood"])
