"""A secure sum hides a hospital among those that really add something: zeros of a hospital that has spent its epsilon
hide nobody. Held by the coordinator, and by every site for itself."""

from pathlib import Path
from typing import Any

import pytest

from tests.deployment.in_process_federation import Federation, body_of, kind_of, reason_in
from tests.deployment.private_studies import KNOWN, begin, ledger
from tests.deployment.test_private_sites import changed
from tests.deployment.test_secure_wire import SITES, summed
from wardround import run_study
from wardround.core.errors import DeployError
from wardround.core.tree import Tree
from wardround.deployment.common import secure_sum_coordinator as summing
from wardround.protocol.messages import Sealed
from wardround.runs.folder import RunFolder

# With noise that is given, hospitals of different sizes stop after different rounds: of four, two after the second.
EXAMPLE = {"epsilon": 2.0, "delta": 1e-5, "clip": 1.0, "noise": 4.2}


def spending(folder: Path, example: dict[str, Any] = EXAMPLE, **secure: Any) -> Federation:
    return begin(folder, summed(["fedavg"], privacy={"example": example, "secure_sum": secure}))


def test_a_sum_of_two_hospitals_and_zeros_comes_to_nothing(tmp_path: Path) -> None:
    network = spending(tmp_path)
    network.run()
    records = network.folder.records()
    assert records["stopped"].map(sorted).tolist() == [[], [], ["birch", "dogwood"]]
    assert records["sites"].map(sorted).tolist() == [list(SITES), list(SITES), []]
    assert records["failed"].tolist()[:2] == ["", ""]
    assert "2 sites add something to arm fedavg, and its sum takes 3" in records["failed"].tolist()[2]
    assert records["change"].tolist()[2] == 0
    # known from signed keys, before anybody trains: nobody pays for a round that cannot be shown
    assert [len(ledger(tmp_path, site)) for site in SITES] == [2, 2, 2, 2]
    asked = [kind_of(sealed) for _, sealed, _ in network.transport.carried if body_of(sealed).get("round") == 2]
    assert set(asked) == {"keys"}


def test_it_comes_to_nothing_in_a_simulation_too(tmp_path: Path) -> None:
    content = summed(["fedavg"], privacy={"example": EXAMPLE, "secure_sum": {}})
    run = run_study(content, out=tmp_path, sources=KNOWN)
    failed = RunFolder(run.folder).records()["failed"].tolist()
    assert [bool(why) for why in failed] == [False, False, True]


def test_three_hospitals_go_on_where_a_fourth_has_spent_its_epsilon(tmp_path: Path) -> None:
    network = spending(tmp_path, {**EXAMPLE, "noise": 4.5})
    network.run()
    records = network.folder.records()
    assert [len(sites) for sites in records["stopped"]] == [0, 0, 1]
    assert [len(sites) for sites in records["sites"]] == [4, 4, 3]
    assert (records["failed"] == "").all()


def test_a_site_refuses_by_itself_what_a_coordinator_lets_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summing, "shortfall", lambda *given: "")
    network = spending(tmp_path)
    with pytest.raises(DeployError, match="2 sites add something to arm fedavg"):
        network.run()
    third = [
        (kind_of(sealed), kind_of(answer)) for _, sealed, answer in network.transport.carried if _round(sealed) == 2
    ]
    assert ("shares", "failed") in third
    assert not {"confirm", "unmask", "train"} & {kind for kind, _ in third}


def test_a_coordinator_cannot_say_that_a_site_adds_something(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summing, "shortfall", lambda *given: "")
    network = spending(tmp_path)
    reasons: list[str] = []

    def forge(body: dict[str, Any], tensors: Tree) -> None:
        for advert in body["sum"]["adverts"]:
            if advert["site"] == "birch":
                advert["adds"] = ["0"]

    def before(site: str, sealed: Sealed) -> bool:
        if (site, kind_of(sealed), _round(sealed)) == ("dogwood", "shares", 2):
            reasons.append(reason_in(body_of(network.transport.sites[site].answer(changed(sealed, forge)))))
        return True

    network.transport.before = before
    with pytest.raises(DeployError):
        network.run()
    assert "are not signed by it for this sum" in reasons[0]


def test_the_policy_of_a_site_counts_those_that_add_something(tmp_path: Path) -> None:
    network = spending(tmp_path, {**EXAMPLE, "noise": 4.5})
    network.transport.sites["alder"].topology.gate.least_sites = lambda: 4  # type: ignore[method-assign]
    with pytest.raises(DeployError, match="would add up 3 sites, fewer than the 4 that alder demands"):
        network.run()


def _round(sealed: Sealed) -> int | None:
    number: int | None = body_of(sealed).get("round")
    return number
