"""Differential privacy for patients at a site: charged once, repeated bit by bit, secret, and stopped in time."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.deployment.forging import changed as with_change
from tests.deployment.in_process_federation import Federation, body_of, kind_of, reason_in
from tests.deployment.private_studies import EXAMPLE, KNOWN, begin, gate, ledger, private
from tests.noticed import noticed
from wardround.core.errors import DeployError, StudyError
from wardround.core.notices import text_of
from wardround.core.tree import Tree
from wardround.deployment import refuse_undeployable
from wardround.deployment.flat.run_secret import RunSecret
from wardround.privacy.dp.accountant import Charge, epsilon
from wardround.protocol.messages import Sealed
from wardround.runs.catalog import load_study
from wardround.runs.ledger import Entry

ROUNDS = 3
Look = Callable[[str, Sealed, Sealed], None]


def looked_at(network: Federation, look: Look, kind: str = "train") -> None:
    """Run, with a look at each answer of a kind."""

    def after(site: str, sealed: Sealed, answer: Sealed) -> Sealed:
        if kind_of(sealed) == kind:
            look(site, sealed, answer)
        return answer

    network.transport.after = after
    network.run()


def run_folder(folder: Path, site: str) -> Path:
    (own_folder,) = [path for path in (folder / "sites" / site).iterdir() if path.is_dir()]
    return own_folder


def forget_answer(folder: Path, site: str, number: int) -> None:
    """As if the process had died after the charge, before it kept its answer."""
    for path in run_folder(folder, site).glob(f"wave-*/*-{number:06}.*"):
        path.unlink()


def changed(sealed: Sealed, change: Callable[[dict[str, Any], Tree], None]) -> Sealed:
    """A message of the coordinator's own, with something else in it."""
    return with_change(sealed, "coordinator", change)


def another_model(body: dict[str, Any], tensors: Tree) -> None:
    name = next(name for name in tensors if "params" in name)
    tensors[name] = tensors[name] + 1e-6


@pytest.mark.slow
def test_a_site_charges_the_noise_that_each_round_has(tmp_path: Path) -> None:
    network = begin(tmp_path, private(privacy={"example": {**EXAMPLE, "noise_schedule": {"last": 0.5}}}))
    network.run()
    for site in ("alder", "birch"):
        entries = ledger(tmp_path, site)
        noise = [entry.noise for entry in entries]
        assert noise == pytest.approx([noise[0], 0.75 * noise[0], 0.5 * noise[0]], rel=1e-5)
        assert 1.9 < epsilon([Charge(charge.rate, charge.noise, charge.steps) for charge in entries], 1e-5) <= 2


def test_a_site_stops_where_falling_noise_would_exceed_epsilon(tmp_path: Path) -> None:
    """What two rounds and no third cost alder is allowed."""
    falling = {**EXAMPLE, "noise": 4.0, "noise_schedule": {"last": 0.5}}
    entries: list[Entry] = []
    for folder, most in ((tmp_path / "first", 1e3), (tmp_path / "second", 0.0)):
        if entries:
            two, three = (
                epsilon([Charge(charge.rate, charge.noise, charge.steps) for charge in entries[:n]], 1e-5)
                for n in (2, 3)
            )
            most = (two + three) / 2
        begin(folder, private(privacy={"example": {**falling, "epsilon": most}})).run()
        entries = ledger(folder, "alder")
    assert [(entry.round, entry.noise) for entry in entries] == [(1, 4.0), (2, 3.0)]


def test_a_study_without_a_clip_is_not_deployed() -> None:
    asked, _ = load_study(private(privacy={"example": {**EXAMPLE, "clip": "none"}}), sources=KNOWN)
    with pytest.raises(StudyError, match="privacy: example: clip: without a clip"):
        refuse_undeployable(asked, ("alder", "birch"))


def test_a_repeated_request_has_the_same_bytes_and_is_charged_once(tmp_path: Path) -> None:
    network = begin(tmp_path, private(["fedavg", "scaffold"]))
    repeated = []

    def look(site: str, sealed: Sealed, answer: Sealed) -> None:
        if site == "birch":
            forget_answer(tmp_path, site, body_of(sealed)["round"])
            network.restart_site(site)
            again = network.transport.sites[site].answer(sealed)
            assert again.tensors == answer.tensors
            assert len(answer.tensors) > 100
            repeated.append(again)

    looked_at(network, look)
    assert len(repeated) == ROUNDS
    for site in ("alder", "birch"):
        assert [(entry.arm, entry.round) for entry in ledger(tmp_path, site)] == [
            (arm, number) for number in (1, 2, 3) for arm in ("fedavg", "scaffold")
        ]


@pytest.mark.parametrize("forgotten", [False, True])
def test_the_same_round_with_another_model_is_refused(forgotten: bool, tmp_path: Path) -> None:
    network = begin(tmp_path, private())
    refused = []

    def look(site: str, sealed: Sealed, answer: Sealed) -> None:
        if site != "cedar":
            return
        before = ledger(tmp_path, site)
        if forgotten:
            forget_answer(tmp_path, site, body_of(sealed)["round"])
        reply = network.transport.sites[site].answer(changed(sealed, another_model))
        assert kind_of(reply) == "failed"
        assert reason_in(body_of(reply)) == "asks again for a round that was answered, with another model"
        assert not reply.tensors
        assert ledger(tmp_path, site) == before
        assert (
            network.transport.sites[site].answer(sealed).tensors == answer.tensors
        )  # the first question still has its answer
        refused.append(reply)

    looked_at(network, look)
    assert len(refused) == ROUNDS


def test_what_is_scored_does_not_make_it_another_question(tmp_path: Path) -> None:
    network = begin(tmp_path, private())

    def look(site: str, sealed: Sealed, answer: Sealed) -> None:
        def score(body: dict[str, Any], tensors: Tree) -> None:
            body["score"] = [0] if not body["score"] else []

        assert network.transport.sites[site].answer(changed(sealed, score)).tensors == answer.tensors

    looked_at(network, look)
    assert len(ledger(tmp_path, "alder")) == ROUNDS


def test_the_seed_is_public_and_tells_nothing(tmp_path: Path) -> None:
    """Two runs of one study, with the same seed, differ from the first answer on."""
    first: list[bytes] = []
    for name in ("one", "two"):
        network = begin(tmp_path / name, private())

        def look(site: str, sealed: Sealed, answer: Sealed) -> None:
            if site == "alder" and body_of(sealed)["round"] == 0:
                first.append(bytes(answer.tensors))

        looked_at(network, look)
    assert len(first) == 2
    assert len(first[0]) == len(first[1])
    assert first[0] != first[1]


def test_the_secret_is_owner_only_and_destroyed_when_the_run_is_over(tmp_path: Path) -> None:
    network = begin(tmp_path, private())
    seen: list[bytes] = []

    def look(site: str, sealed: Sealed, answer: Sealed) -> None:
        path = run_folder(tmp_path, site) / "secret"
        assert path.stat().st_mode & 0o777 == 0o600
        seen.append(path.read_bytes())

    looked_at(network, look)
    assert {len(secret) for secret in seen} == {32}
    assert len(set(seen)) == 4  # one for each site, the same in all rounds
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or not any(secret in path.read_bytes() for secret in seen)
    messages = [
        sealed for site, sealed, _ in network.transport.carried if site == "alder" and kind_of(sealed) == "train"
    ]
    forget_answer(tmp_path, "alder", 0)
    reply = network.transport.sites["alder"].answer(messages[0])
    assert "destroyed" in reason_in(body_of(reply))
    assert len(ledger(tmp_path, "alder")) == ROUNDS


def test_the_secret_is_gone_with_the_last_evaluation_even_without_a_goodbye(tmp_path: Path) -> None:
    network = begin(tmp_path, private(training={"rounds": 1}))
    network.transport.before = lambda site, sealed: kind_of(sealed) != "goodbye"
    steps = network.coordinator.run()
    while not network.folder.complete:
        next(steps)
    steps.close()
    assert not list(tmp_path.rglob("secret"))
    assert len(list(tmp_path.rglob("secret-destroyed"))) == 4


def test_another_run_destroys_the_secret_of_one_that_never_ended(tmp_path: Path) -> None:
    network = begin(tmp_path, private())
    network.transport.before = lambda site, sealed: kind_of(sealed) != "goodbye"
    steps = network.coordinator.run()
    while not all(ledger(tmp_path, site) for site in ("alder", "birch", "cedar", "dogwood")):
        next(steps)
    steps.close()
    first = run_folder(tmp_path, "alder")
    assert (first / "secret").exists()
    other = begin(tmp_path, private(training={"rounds": 1}))
    other.messenger.again = True
    other.run()
    assert not (first / "secret").exists()


def test_a_secret_is_never_drawn_twice(tmp_path: Path) -> None:
    secret = RunSecret(tmp_path / "run")
    drawn = secret.draw(used=False)
    assert RunSecret(tmp_path / "run").draw(used=True) == drawn
    (tmp_path / "run" / "secret").write_bytes(drawn[:5])
    with pytest.raises(DeployError, match="was changed"):
        secret.draw(used=False)
    os.unlink(tmp_path / "run" / "secret")
    with pytest.raises(DeployError, match="is gone"):
        secret.draw(used=True)
    assert secret.draw(used=False) != drawn
    secret.destroy()
    with pytest.raises(DeployError, match="destroyed"):
        secret.draw(used=False)


def test_a_site_whose_secret_was_lost_gives_no_second_answer(tmp_path: Path) -> None:
    network = begin(tmp_path, private(deployment={"quorum": 3, "smallest_cell": 1}))

    def look(site: str, sealed: Sealed, answer: Sealed) -> None:
        if site == "birch" and body_of(sealed)["round"] == 0:
            (run_folder(tmp_path, site) / "secret").unlink()

    looked_at(network, look)
    assert "is gone" in text_of(network.messenger.left["birch"])
    assert len(ledger(tmp_path, "birch")) == 1


def test_the_ledger_outlives_runs_and_stops_at_the_total(tmp_path: Path) -> None:
    """A run costs epsilon 2. With a total of 2.2 the second run has no round at alder: 16 steps would cost more."""
    content = private(deployment={"quorum": 3, "smallest_cell": 1})
    first = begin(tmp_path, content)
    first.run()
    spent = ledger(tmp_path, "alder")
    assert epsilon([Charge(charge.rate, charge.noise, charge.steps) for charge in spent], 1e-5) == pytest.approx(
        2.0, abs=0.001
    )
    assert epsilon([Charge(spent[0].rate, spent[0].noise, 16)], 1e-5) > 2.2
    second = begin(tmp_path, content, gates={"alder": gate(content, most_total_epsilon=2.2)})
    second.messenger.again = True
    second.run()
    assert ledger(tmp_path, "alder") == spent
    assert len(ledger(tmp_path, "birch")) == 2 * ROUNDS
    assert second.folder.records()["sites"].map(len).tolist() == [3, 3, 3]
    (notice,) = noticed(second.folder.read_json("results.json"), "site-refused")
    assert notice["site"] == "alder"
    assert "budget is spent" in notice["text"]
    assert "most_total_epsilon" in notice["text"]


def test_no_loss_and_no_count_of_training_patients_leaves(tmp_path: Path) -> None:
    network = begin(tmp_path, private(["fedavg", "local"], deployment={"smallest_cell": 1}))
    network.run()
    updates = [body_of(answer) for _, sealed, answer in network.transport.carried if kind_of(sealed) == "train"]
    assert updates
    assert all(entry["loss"] is None for body in updates for entry in body["trials"].values())
    facts = [body_of(answer) for _, sealed, answer in network.transport.carried if kind_of(sealed) == "facts"]
    assert [body["described"]["classes"] for body in facts] == [{"well": None, "ill": None}] * 4
    records = network.folder.records()
    assert records["loss"].isna().all()
    charged = records[records["arm"] == "fedavg"]["charges"].tolist()
    assert [sorted(entry) for entry in charged] == [["alder", "birch", "cedar", "dogwood"]] * ROUNDS
    own = [(entry.rate, entry.noise, entry.steps) for entry in ledger(tmp_path, "dogwood") if entry.arm == "fedavg"]
    assert [tuple(map(float, entry["dogwood"])) for entry in charged] == [pytest.approx(entry) for entry in own]


def test_epochs_that_were_not_done_are_not_charged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Time is over after one of two epochs. Asked again, with all the time of the world, it is still one."""
    waits = {"quorum": 4, "deadline": 1000.0, "smallest_cell": 1}
    late = {"rounds": 1, "local_epochs": 2, "stragglers": {"share": 0.0, "policy": "keep"}}
    network = begin(tmp_path, private(deployment=waits, training=late))
    monkeypatch.setattr("wardround.deployment.flat.site_training._over", lambda trial, until: lambda: until is not None)

    def look(site: str, sealed: Sealed, answer: Sealed) -> None:
        (entry,) = ledger(tmp_path, site)
        (trial_answer,) = body_of(answer)["trials"].values()
        assert trial_answer["epochs"] == 1
        forget_answer(tmp_path, site, 0)
        network.restart_site(site)
        with monkeypatch.context() as calm:
            calm.setattr("wardround.deployment.flat.site_training._over", lambda trial, until: lambda: False)
            assert network.transport.sites[site].answer(sealed).tensors == answer.tensors
        assert ledger(tmp_path, site) == [entry]

    looked_at(network, look)
    (charges,) = network.folder.records()["charges"]
    assert [float(charge[2]) for charge in charges.values()] == [
        float(ledger(tmp_path, site)[0].steps) for site in charges
    ]


@pytest.mark.parametrize(
    ("content", "where", "problem"),
    [
        (
            private(["fedavg", {"algorithm": "fedprox", "mu": 0.1, "privacy.example": "off"}]),
            "fedprox",
            "what fedavg hides",
        ),
        (
            private(["fedavg", {"algorithm": "local", "privacy.example": "off", "data.scale": "none"}]),
            "local",
            "otherwise",
        ),
        (
            private(["fedavg"], privacy={"site": EXAMPLE}, training={"rounds": 1, "share": 0.5}),
            "share",
            "can work out who is drawn",
        ),
    ],
)
def test_studies_that_would_promise_too_much_are_refused_at_both_ends(
    content: dict[str, Any], where: str, problem: str, tmp_path: Path
) -> None:
    study, _ = load_study(content, sources=KNOWN)
    with pytest.raises(StudyError, match=problem) as refused:
        refuse_undeployable(study, ["alder", "birch", "cedar", "dogwood"])
    assert where in refused.value.where
    network = begin(tmp_path, content)
    with pytest.raises(DeployError, match=problem):
        network.run()
    assert {kind_of(sealed) for _, sealed, _ in network.transport.carried} == {"hello"}


def test_a_site_tells_nothing_for_a_preparation_that_is_not_public(tmp_path: Path) -> None:
    network = begin(tmp_path, private(data={"public": False}))
    with pytest.raises(DeployError, match="read off patients and not charged"):
        network.run()
    assert {kind_of(sealed) for _, sealed, _ in network.transport.carried} == {"hello"}


def test_local_arms_may_stay_without_privacy(tmp_path: Path) -> None:
    content = private(["fedavg", {"algorithm": "local", "privacy.example": "off"}], training={"rounds": 1})
    begin(tmp_path, content).run()
    assert [entry.arm for entry in ledger(tmp_path, "alder")] == ["fedavg"]
