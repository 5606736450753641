"""What a site refuses in a secure sum, and what it stands by: a coordinator that asks for too much learns nothing."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.deployment.in_process_federation import Federation, body_of, kind_of, reason_in
from tests.deployment.private_studies import begin
from tests.deployment.test_private_sites import changed, run_folder
from tests.deployment.test_secure_wire import summed
from tests.representatives import represented
from wardround.core import tree
from wardround.core.errors import DeployError
from wardround.core.notices import text_of
from wardround.core.tree import Tree
from wardround.deployment.common.secure_sum_site import Commitments
from wardround.deployment.common.update_checks import leaves_hash
from wardround.deployment.flat.site_training import by_trial
from wardround.deployment.hospital import Hospital
from wardround.protocol.messages import Sealed

Change = Callable[[dict[str, Any], Tree], None]


class Enough(Exception):
    """What was to be seen was seen."""


def refusals(network: Federation, kind: str, change: Change) -> list[str]:
    """What alder says to a message of the first round that was changed after it had answered the honest one."""
    reasons: list[str] = []

    def after(site: str, sealed: Sealed, answer: Sealed) -> Sealed:
        if (site, kind_of(sealed), body_of(sealed).get("round")) == ("alder", kind, 0) and not reasons:
            network.restart_site(site)
            no = body_of(network.transport.sites[site].answer(changed(sealed, change)))
            reasons.append(str(no["reason"] if "reason" in no else reason_in(no)))
            raise Enough
        return answer

    network.transport.after = after
    with pytest.raises(Enough):
        network.run()
    return reasons


def _roster(*sites: str) -> Change:
    def change(body: dict[str, Any], tensors: Tree) -> None:
        body["sum"] = {**body["sum"], "roster": list(sites)}

    return change


def _survivors(*sites: str) -> Change:
    def change(body: dict[str, Any], tensors: Tree) -> None:
        body["sum"] = {**body["sum"], "survivors": list(sites)}

    return change


def _threshold(body: dict[str, Any], tensors: Tree) -> None:
    body["sum"] = {**body["sum"], "threshold": 2}


def _another_model(body: dict[str, Any], tensors: Tree) -> None:
    tensors |= {name: leaf + 0.5 for name, leaf in tensors.items()}


def _another_model_that_is_told(body: dict[str, Any], tensors: Tree) -> None:
    """As it could be told to one site alone; the others have other terms then, and nothing of theirs fits."""
    _another_model(body, tensors)
    shared = by_trial(tensors)
    hashes = {str(n): leaves_hash(tree.flatten(state)).hex() for n, state in shared.items()}
    body["sum"] = {**body["sum"], "models": hashes}


def _no_models(body: dict[str, Any], tensors: Tree) -> None:
    body["sum"] = {**body["sum"], "models": {}}


def _no_sum(body: dict[str, Any], tensors: Tree) -> None:
    del body["sum"]


def _less_work(body: dict[str, Any], tensors: Tree) -> None:
    body["work"] = {"0": body["work"]["0"]}


def _other_keys(body: dict[str, Any], tensors: Tree) -> None:
    body["sum"] = {**body["sum"], "adverts": [advert for advert in body["sum"]["adverts"] if advert["site"] != "birch"]}


def _no_confirmations(body: dict[str, Any], tensors: Tree) -> None:
    body["sum"] = {**body["sum"], "confirmations": {}}


REFUSED: list[tuple[str, Change, str]] = [
    (
        "keys",
        _roster("alder", "birch", "cedar"),
        "second time in this round, with another roster, threshold or question",
    ),
    ("keys", _roster("alder", "birch"), "a sum of 2 sites"),
    ("keys", _roster("birch", "cedar", "dogwood"), "without this one"),
    ("keys", _roster("alder", "birch", "cedar", "stranger"), "are left for a secure sum"),
    ("keys", _threshold, "a sum of 2 sites, where the study needs 3"),
    ("shares", _other_keys, "with other keys"),
    ("train", _another_model, "another model than it told all sites of"),
    ("train", _another_model_that_is_told, "second time in this round, with another roster, threshold or question"),
    ("keys", _no_models, "does not say which models"),
    ("train", _no_sum, "without masks"),
    ("train", _less_work, "leaves out work"),
    ("confirm", _survivors("alder", "birch", "cedar"), "with other survivors"),
    ("confirm", _survivors("alder", "birch"), "2 sites add something to arm fedprox"),
    ("unmask", _survivors("alder", "birch", "cedar"), "with other survivors"),
    ("unmask", _no_confirmations, "0 of 4 sites confirmed"),
]
# in every run: too few sites, other keys, another model, no masks, other survivors, no confirmations
OFTEN = [REFUSED[number] for number in (1, 5, 6, 9, 11, 14)]


@pytest.mark.parametrize(("kind", "change", "problem"), represented(REFUSED, by=OFTEN))
def test_a_site_refuses_what_would_show_its_update(kind: str, change: Change, problem: str, tmp_path: Path) -> None:
    (reason,) = refusals(begin(tmp_path, summed(deployment={"quorum": 3, "smallest_cell": 1})), kind, change)
    assert problem in reason


def test_a_site_that_demands_more_sites_confirms_no_smaller_sum(tmp_path: Path) -> None:
    network = begin(tmp_path, summed(deployment={"quorum": 3, "smallest_cell": 1}))
    for work in network.transport.sites.values():
        work.topology.gate.least_sites = lambda: 5  # type: ignore[method-assign]
    with pytest.raises(DeployError, match="fewer than the 5 that"):
        network.run()


def test_sites_that_are_told_of_different_models_have_no_sum_together(tmp_path: Path) -> None:
    """alder alone is told of another model from the first message on: its keys are signed for other terms."""
    network = begin(tmp_path, summed(["fedavg"], deployment={"quorum": 3, "smallest_cell": 1}, training={"rounds": 1}))
    answers: list[Sealed] = []

    def after(site: str, sealed: Sealed, answer: Sealed) -> Sealed:
        if (site, kind_of(sealed)) == ("alder", "keys"):
            network.restart_site(site)
            return answers[0]
        return answer

    def before(site: str, sealed: Sealed) -> bool:
        if (site, kind_of(sealed)) == ("alder", "keys") and not answers:

            def other(body: dict[str, Any], tensors: Tree) -> None:
                body["sum"] = {**body["sum"], "models": {"0": "ff" * 32}}

            answers.append(network.transport.sites[site].answer(changed(sealed, other)))
            assert kind_of(answers[0]) == "advert"
        return True

    network.transport.before, network.transport.after = before, after
    network.run()
    assert "not signed by it for this sum" in text_of(network.messenger.left["alder"])


def test_without_the_key_of_another_site_nothing_begins(tmp_path: Path) -> None:
    network = begin(tmp_path, summed())
    hospital = network.transport.sites["alder"].topology
    assert isinstance(hospital, Hospital)
    hospital.peers = {site: key for site, key in hospital.peers.items() if site != "cedar"}
    with pytest.raises(DeployError, match="no public key of cedar"):
        network.run()


@pytest.fixture(scope="module")
def quiet(tmp_path_factory: pytest.TempPathFactory) -> Federation:
    network = begin(tmp_path_factory.mktemp("quiet"), summed())
    network.run()
    return network


def test_after_the_run_no_other_sum_is_begun(quiet: Federation) -> None:
    """Another roster after the secret is gone would be another sum of the same round."""
    folder = quiet.folder.path.parent
    assert not list(folder.rglob("secret"))
    (sealed,) = [
        sealed
        for site, sealed, _ in quiet.transport.carried
        if (site, kind_of(sealed), body_of(sealed).get("round")) == ("birch", "keys", 1)
    ]
    body = body_of(quiet.transport.sites["birch"].answer(sealed))
    assert "destroyed" in reason_in(body)


def test_the_same_work_is_not_added_up_again_with_other_sites(tmp_path: Path) -> None:
    """A second run of a study begins with the same model. With one site fewer, the two sums would show that site."""
    content = summed(["fedavg"], deployment={"quorum": 3, "smallest_cell": 1}, training={"rounds": 1})
    begin(tmp_path, content).run()
    again = begin(tmp_path, content)
    again.messenger.again = True
    again.run()  # the same sites: the same sum, which tells nothing new
    other = begin(tmp_path, content)
    other.messenger.again = True
    other.messenger.revoked = lambda: {"cedar": "stolen"}
    with pytest.raises(DeployError, match="added up with other sites before"):
        other.run()


def test_noise_from_a_secret_makes_every_run_another(tmp_path: Path) -> None:
    privacy = {"example": {"epsilon": 2.0, "delta": 1e-5, "clip": 1.0}, "secure_sum": {}}
    content = summed(["fedavg"], deployment={"quorum": 3, "smallest_cell": 1}, training={"rounds": 1}, privacy=privacy)
    begin(tmp_path, content).run()
    other = begin(tmp_path, content)
    other.messenger.again = True
    other.messenger.revoked = lambda: {"cedar": "stolen"}
    other.run()
    assert other.folder.records()["sites"].map(len).tolist() == [3]


# -- what a site has said stands


def test_commitments_outlive_the_process_and_a_line_cut_in_half(tmp_path: Path) -> None:
    path = tmp_path / "commitments.jsonl"
    commitments = Commitments(path)
    assert commitments.commit("roster", b"round 1", b"one") == b"one"
    assert commitments.commit("roster", b"round 2", b"two") == b"two"
    path.write_bytes(path.read_bytes()[:-5])  # the second was never on disk as a whole
    again = Commitments(path)
    assert again.commit("roster", b"round 1", b"other") == b"one"
    assert again.commit("roster", b"round 2", b"other") == b"other"
    assert Commitments(path).commit("roster", b"round 2", b"third") == b"other"
    assert Commitments(path).commit("vector", b"round 2", b"third") == b"third"


def test_a_site_keeps_its_commitments_in_the_run(quiet: Federation) -> None:
    path = run_folder(quiet.folder.path.parent, "alder") / "commitments.jsonl"
    kinds = [json.loads(line)[0] for line in path.read_bytes().splitlines()]
    assert kinds == ["roster", "adverts", "shares", "work", "vector", "survivors"] * 3
