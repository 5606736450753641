"""Models explained across hospitals: the figures of a simulation, and nothing of a hospital but declared sums."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.deployment import number_hospitals, private_studies
from tests.deployment.hospital_files import SIZES, at_sites, study
from tests.deployment.in_process_federation import Federation, body_of, federation, kind_of
from tests.deployment.parity import KNOWN, Sources
from wardround.core.errors import StudyError
from wardround.deployment import Policy, refuse_undeployable
from wardround.deployment.governance.plain_words import in_plain_words
from wardround.deployment.governance.policy import objections
from wardround.explain.across_sites import IMPORTANCE, PARTS
from wardround.runs.catalog import load_study
from wardround.runs.execute import run_study

SECURE: dict[str, Any] = {"secure_sum": {}}


def explained(arms: list[Any] | None = None, **changes: Any) -> dict[str, Any]:
    chosen = arms or ["fedavg", {"name": "network", "algorithm": "fedavg", "model": {"kind": "mlp", "hidden": [4]}}]
    evaluation = {"seeds": {"first": 3, "count": 2}, "test_share": 0.4}
    return study(chosen, **{"evaluation": evaluation, "deployment": {"smallest_cell": 5}, **changes}) | {
        "explain": {"repeats": 2}
    }


def network(document: Mapping[str, Any], folder: Path, sources: Sources | None = None) -> Federation:
    return federation(document, folder, at_sites() if sources is None else sources, known_sources=KNOWN)


def across(document: Mapping[str, Any], folder: Path, sources: Sources | None = None) -> dict[str, Any]:
    return dict(network(document, folder, sources).run().read_json("results.json")["explanations"])


def assert_alike(one: Any, other: Any, where: str = "") -> None:
    if isinstance(one, Mapping):
        assert set(one) == set(other), where
        for key in one:
            assert_alike(one[key], other[key], f"{where}/{key}")
    elif isinstance(one, list):
        assert len(one) == len(other), where
        for number, (own, theirs) in enumerate(zip(one, other, strict=True)):
            assert_alike(own, theirs, f"{where}/{number}")
    elif isinstance(one, float):
        assert one == pytest.approx(other, rel=1e-7, abs=1e-9), where
    else:
        assert one == other, where


@pytest.mark.parametrize("privacy", [{}, SECURE], ids=["open", "secure"])
def test_deployed_is_simulated(privacy: dict[str, Any], tmp_path: Path) -> None:
    document = explained(privacy=privacy)
    here = run_study(document, tmp_path / "here", engine="serial", sources=KNOWN).results["explanations"]
    there = across(document, tmp_path / "there")
    assert set(here) == {"fedavg", "network"}
    for arm in here:
        assert here[arm]["withheld"] is None
        assert (here[arm]["hospitals"] is None) == bool(privacy)  # in a secure sum nobody sees a hospital's own
    assert_alike(json.loads(json.dumps(here)), there)


def test_numbers_too(tmp_path: Path) -> None:
    document = number_hospitals.study("count", ["fedavg"], evaluation={"test_share": 0.4}) | {"explain": {}}
    here = run_study(document, tmp_path / "here", engine="serial", sources=KNOWN).results["explanations"]
    there = across(document, tmp_path / "there", number_hospitals.at_sites("count"))
    assert there["fedavg"]["scale"] == "log rate"
    assert_alike(json.loads(json.dumps(here)), there)


@pytest.mark.parametrize("privacy", [{}, SECURE], ids=["open", "secure"])
def test_nothing_but_declared_sums_leaves(privacy: dict[str, Any], tmp_path: Path) -> None:
    """Every message of the run is read. What sites answer after their last model is scored is: that they take part, the
    rules that they asked, and sums whose names and shapes follow from the study; or masks of these."""
    world = network(explained(["fedavg"], privacy=privacy), tmp_path)
    world.run()
    last = max(n for n, (_, sealed, _) in enumerate(world.transport.carried) if kind_of(sealed) == "evaluate")
    after = [(site, ask, own) for site, ask, own in world.transport.carried[last + 1 :] if kind_of(ask) != "goodbye"]
    asked = {kind_of(ask) for _, ask, _ in after}
    secure = {"keys", "shares", "confirm", "unmask"} if privacy else set()
    assert asked == {"survey", "admission", "analyse"} | secure
    for site, ask, own in after:
        body, tensors = body_of(own), own.tensors
        if kind_of(ask) == "survey":
            assert (body["columns"], body["levels"], body["broken"]) == ([], {}, None)
        if kind_of(ask) == "admission":
            assert set(body["rules"]) == {"smallest-cell", "secondary-suppression"} | (
                {"least-sites"} if privacy else set()
            )
        if kind_of(ask) != "analyse":
            assert not tensors
            continue
        sums = read(tensors)
        if privacy:
            assert len(sums) == 1  # one masked vector
            continue
        names = {
            name.rsplit(" ", 1)[-1] if name.startswith("effect") else name.removeprefix("importance ") for name in sums
        }
        assert names == {*IMPORTANCE, *PARTS}
        assert max(values.size for values in sums.values()) <= 12  # columns, or bins: never a number for each row
        rows = sums["importance rows"].item()
        assert 10 < rows < SIZES[site]
        counts = [values for name, values in sums.items() if name.startswith("effect") and name.endswith("rows")]
        assert all(((own_rows == 0) | (own_rows >= 5)).all() for own_rows in counts)


def read(tensors: Any) -> dict[str, np.ndarray]:
    from safetensors.numpy import load

    return dict(load(tensors)) if tensors else {}


def test_patients_with_differential_privacy_are_withheld_and_nobody_is_asked(tmp_path: Path) -> None:
    document = private_studies.private() | {"explain": {}}
    world = private_studies.begin(tmp_path, document)
    [withheld] = world.run().read_json("results.json")["explanations"].values()
    assert "differential privacy" in str(withheld["withheld"])
    assert "whole" not in withheld
    assert withheld["coefficients"]["whole"]  # of a model that is private already
    assert not {"survey", "analyse"} & {kind_of(ask) for _, ask, _ in world.transport.carried}


def test_who_decides_is_told_and_may_refuse() -> None:
    document, _ = load_study(explained(["fedavg"]), sources=KNOWN)
    words = " ".join(in_plain_words(document, list(SIZES)))
    assert "Explanation of fedavg" in words
    assert "bins of fewer than 5 patients count as empty" in words
    reasons = objections(Policy(site_figures=False), document, "alder", list(SIZES))
    assert any("explanation of fedavg" in reason for reason in reasons)
    assert not any("explanation" in reason for reason in objections(Policy(), document, "alder", list(SIZES)))
    masked, _ = load_study(explained(["fedavg"], privacy=SECURE), sources=KNOWN)
    assert not any(
        "explanation" in reason for reason in objections(Policy(site_figures=False), masked, "alder", list(SIZES))
    )


def test_a_hospital_that_starts_again_answers_the_same(tmp_path: Path) -> None:
    document = explained(["fedavg"])
    expected = across(document, tmp_path / "a")
    world = network(document, tmp_path / "b")

    def before(site: str, sealed: Any) -> bool:
        if kind_of(sealed) == "analyse" and site == "birch":
            world.restart_site("birch")
        return True

    world.transport.before = before
    assert_alike(world.run().read_json("results.json")["explanations"], expected)


def test_regions_are_refused() -> None:
    document, _ = load_study(explained(["fedavg"]), sources=KNOWN)
    refuse_undeployable(document, list(SIZES))
    topology = {
        "kind": "hierarchical",
        "regional_rounds": 1,
        "regions": {"n": ["alder", "birch"], "s": ["cedar", "dogwood"]},
    }
    regional, _ = load_study(explained(["fedavg"], topology=topology), sources=KNOWN)
    with pytest.raises(StudyError, match="has others in between"):
        refuse_undeployable(regional, list(SIZES))
