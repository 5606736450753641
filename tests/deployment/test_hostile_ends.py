"""A site that sends nonsense, a coordinator that asks for more than was approved, a key that is revoked in mid-run."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.deployment.forging import changed, forge
from tests.deployment.hospital_files import at_sites, study
from tests.deployment.in_process_federation import Federation, body_of, federation, kind_of, reason_in
from tests.deployment.parity import KNOWN
from tests.noticed import noticed
from tests.representatives import represented
from wardround.core.tree import Tree
from wardround.deployment.site.answering import failure
from wardround.protocol.messages import Sealed
from wardround.runs.audit import verify

SITES = ("alder", "birch", "cedar")


def begin(folder: Path, quorum: int | None = 2, **changes: Any) -> Federation:
    content = study(
        [{"algorithm": "fedavg"}, "scaffold"],
        data={"hospitals": list(SITES)},
        deployment={"quorum": quorum, "deadline": 1.0, "smallest_cell": 1} if quorum else {"smallest_cell": 1},
        **changes,
    )
    return federation(content, folder, at_sites(SITES), known_sources=KNOWN)


class Anyone:
    def verify(self, signature: bytes, content: bytes) -> bool:
        return True


def forged(answer: Sealed, site: str, change: Callable[[dict[str, Any], Tree], None]) -> Sealed:
    """What a hostile site could send: its own signature under something else."""
    return changed(answer, site, change)


def without_trials(body: dict[str, Any], tensors: Tree) -> None:
    del body["trials"]


def one_trial_less(body: dict[str, Any], tensors: Tree) -> None:
    del body["trials"]["0"]


def words_for_numbers(body: dict[str, Any], tensors: Tree) -> None:
    body["trials"]["0"]["loss"] = "much"


def more_epochs(body: dict[str, Any], tensors: Tree) -> None:
    body["trials"]["0"]["epochs"] = 10**6


def a_figure_that_is_none(body: dict[str, Any], tensors: Tree) -> None:
    body["figures"] = []


def broadcast_over_all(body: dict[str, Any], tensors: Tree) -> None:
    for name in tensors:
        tensors[name] = torch.full((1,) * tensors[name].dim(), 7.0)


def too_long(body: dict[str, Any], tensors: Tree) -> None:
    name = next(iter(tensors))
    tensors[name] = torch.zeros(99)


def another_type(body: dict[str, Any], tensors: Tree) -> None:
    for name in tensors:
        tensors[name] = tensors[name].double()


NONSENSE = (
    without_trials,
    one_trial_less,
    words_for_numbers,
    more_epochs,
    a_figure_that_is_none,
    broadcast_over_all,
    too_long,
    another_type,
)


@pytest.mark.parametrize("change", represented(NONSENSE, by=[one_trial_less, broadcast_over_all, another_type]))
def test_an_update_that_is_none_counts_for_nothing_and_stops_nobody(
    change: Callable[[dict[str, Any], Tree], None], tmp_path: Path
) -> None:
    network = begin(tmp_path)

    def after(site: str, sealed: Sealed, answer: Sealed) -> Sealed:
        second = kind_of(sealed) == "train" and body_of(sealed)["round"] == 1
        return forged(answer, site, change) if second and site == "cedar" else answer

    network.transport.after = after
    network.run()
    assert any(line.startswith("cedar: sent ") for line in network.lines)
    records = network.folder.records()
    assert all("cedar" not in sites for sites in records[records["round"] >= 2]["sites"])
    assert noticed(network.folder.read_json("results.json"), "site-answer-unusable", site="cedar")


def test_a_message_to_another_site_is_not_obeyed(tmp_path: Path) -> None:
    network = begin(tmp_path)
    network.run()
    message = next(s for site, s, _ in network.transport.carried if site == "cedar" and kind_of(s) == "train")
    before = sorted((tmp_path / "sites" / "birch").rglob("*"))
    answer = network.transport.sites["birch"].answer(message)
    assert kind_of(answer) == "refused"
    assert "another site" in body_of(answer)["reason"]
    assert sorted((tmp_path / "sites" / "birch").rglob("*")) == before
    assert verify(tmp_path / "sites" / "birch" / "audit.jsonl").broken is None


@pytest.mark.parametrize(
    "change",
    represented(
        [{"round": 5000}, {"round": -1}, {"work": {"0": 50}}, {"work": {"7": 1}}, {"wave": 3}, {"wave": -1}],
        by=[{"round": 5000}, {"work": {"0": 50}}, {"wave": 3}],
    ),
)
def test_a_site_does_no_more_than_the_study_that_it_approved(change: dict[str, Any], tmp_path: Path) -> None:
    network = begin(tmp_path)
    asked: list[Sealed] = []

    def before(site: str, sealed: Sealed) -> bool:
        if kind_of(sealed) == "train" and site == "birch" and not asked:
            more = changed(sealed, "coordinator", lambda body, tensors: body.update(change))
            asked.append(network.transport.sites["birch"].answer(more))
        return True

    network.transport.before = before
    network.run()
    assert kind_of(asked[0]) == "failed"
    assert reason_in(body_of(asked[0])).startswith(("asks for", "asks what cannot be read"))


def test_a_revoked_key_counts_for_nothing_from_then_on(tmp_path: Path) -> None:
    """It is revoked while its answer is on the way."""
    network = begin(tmp_path)
    revoked: dict[str, str] = {}
    network.messenger.revoked = lambda: revoked

    def after(site: str, sealed: Sealed, answer: Sealed) -> Sealed:
        if kind_of(sealed) == "train" and body_of(sealed)["round"] == 1:
            revoked["cedar"] = "today: stolen"
        return answer

    network.transport.after = after
    network.run()
    assert "cedar: its key was revoked" in network.lines
    records = network.folder.records()
    assert all("cedar" in sites for sites in records[records["round"] == 1]["sites"])
    assert all("cedar" not in sites for sites in records[records["round"] >= 2]["sites"])


@pytest.mark.slow
def test_a_site_that_was_away_when_all_were_told_is_told_with_its_first_message(tmp_path: Path) -> None:
    network = begin(tmp_path)
    network.transport.before = lambda site, sealed: not (site == "birch" and kind_of(sealed) == "prepare")
    network.run()
    first = next(s for site, s, _ in network.transport.carried if site == "birch" and kind_of(s) == "train")
    assert "prepare" in body_of(first)
    assert all("birch" in sites for sites in network.folder.records()["sites"])


def test_a_site_that_misses_an_evaluation_is_named(tmp_path: Path) -> None:
    network = begin(tmp_path)
    network.transport.before = lambda site, sealed: not (site == "birch" and kind_of(sealed) == "evaluate")
    network.run()
    results = network.folder.read_json("results.json")
    assert noticed(results, "site-away", site="birch")
    assert all("birch" not in arm["sites"] for arm in results["arms"].values())


def test_a_site_that_leaves_while_all_agree_stops_nobody(tmp_path: Path) -> None:
    network = begin(tmp_path)

    def after(site: str, sealed: Sealed, answer: Sealed) -> Sealed:
        if kind_of(sealed) == "facts" and site == "birch":
            notice = failure(site, "on fire").to_json()
            return forge("failed", {"notice": notice, "run": body_of(sealed)["run"]}, site)
        return answer

    network.transport.after = after
    network.run()
    assert "birch: failed: on fire" in network.lines
    assert all(list(sites) == ["alder", "cedar"] for sites in network.folder.records()["sites"])
