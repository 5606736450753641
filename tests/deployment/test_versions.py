"""A site and a coordinator of two versions of the protocol part with one clear sentence each, and so do two of which
one knows a field that the other does not."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.deployment.federation_processes import HEART, heart_study, hospitals
from tests.deployment.forging import changed
from tests.deployment.in_process_federation import body_of, kind_of, reason_in
from tests.deployment.private_studies import begin
from tests.deployment.test_refusals import events
from tests.deployment.test_secure_wire import summed
from wardround.core.errors import DeployError
from wardround.protocol import messages
from wardround.protocol.catalogue import PROTOCOL
from wardround.protocol.messages import Sealed


@pytest.mark.parametrize("ahead", [1, -1])
def test_two_versions_part_with_one_sentence_at_each_end(
    ahead: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = begin(tmp_path, summed(training={"rounds": 1}))
    shown: list[str] = []
    for site in network.transport.sites.values():
        site.notice = shown.append
        monkeypatch.setattr(site, "answer", in_version(PROTOCOL + ahead, site.answer, monkeypatch))
    with pytest.raises(DeployError) as stopped:
        network.run()
    ours, theirs = PROTOCOL, PROTOCOL + ahead
    same = "install the same version of wardround at both"
    # the first site that answers is the last by name; the study needs all of them
    line = f"speaks version {theirs} of the protocol and this machine {ours}; {same}"
    assert f"dogwood {line}" in stopped.value.problem
    assert network.lines[-1] == f"dogwood: {line}"
    assert shown == [
        f"refused: the coordinator speaks version {ours} of the protocol and this machine {theirs}; {same}"
    ]
    log = network.transport.sites["dogwood"].state / "audit.jsonl"
    assert len(events(log, "other version")) == 1
    assert not events(log, "forged message")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda body: body.update(colour="blue"), "nobody here knows its field `colour`"),
        (lambda body: body["sum"].update(colour="blue"), "nobody here knows its field `colour` - at `$.sum`"),
        (lambda body: body.pop("score"), "it lacks the field `score`"),
        (lambda body: body.update(round=-1), "Expected `int` >= 0 - at `$.round`"),
    ],
)
def test_a_field_too_many_or_too_few_is_named_by_the_site(
    change: Callable[[dict[str, Any]], object], problem: str, tmp_path: Path
) -> None:
    network = begin(tmp_path, summed(training={"rounds": 1}))
    shown: list[str] = []
    refused: list[str] = []

    def before(site: str, sealed: Sealed) -> bool:
        if kind_of(sealed) != "train":
            return True
        network.transport.sites[site].notice = shown.append
        other = changed(sealed, "coordinator", lambda body, tensors: change(body))
        refused.append(reason_in(body_of(network.transport.sites[site].answer(other))))
        raise KeyboardInterrupt

    network.transport.before = before
    with pytest.raises(KeyboardInterrupt):
        network.run()
    assert refused == [f"asks what cannot be read: {problem}; both need the same version"]
    assert shown[0].startswith(f"failed: coordinator: {refused[0]}")
    assert "blue" not in "".join(shown)


def test_a_field_too_many_in_an_answer_is_named_by_the_coordinator(tmp_path: Path) -> None:
    network = begin(tmp_path, summed(training={"rounds": 1}))

    def after(site: str, sealed: Sealed, answer: Sealed) -> Sealed:
        return changed(answer, site, lambda body, tensors: body.update(colour="blue")) if site == "cedar" else answer

    network.transport.after = after
    with pytest.raises(DeployError, match="nobody here knows its field `colour`"):
        network.run()
    assert "blue" not in "".join(network.lines)


LATER = "from wardround.protocol import messages; messages.PROTOCOL += 1; from wardround.cli.main import main; main()"


@pytest.mark.slow
def test_both_terminals_say_it(tmp_path: Path) -> None:
    same = "install the same version of wardround at both"
    with hospitals(heart_study(["fedavg"]), tmp_path) as here:
        site_file = here.folder / "sites" / "va" / "site.toml"
        later = here.start("join va", "join", site_file, program=("-c", LATER))
        for site in HEART[:-1]:
            here.join(site)
        coordinator = here.coordinate()
        coordinator.wait_for(f"va speaks version {PROTOCOL + 1} of the protocol and this machine {PROTOCOL}; {same}")
        later.wait_for(
            f"the coordinator speaks version {PROTOCOL} of the protocol and this machine {PROTOCOL + 1}; {same}"
        )
        assert coordinator.ended() != 0


def in_version(
    version: int, answer: Callable[[Sealed], Sealed], monkeypatch: pytest.MonkeyPatch
) -> Callable[[Sealed], Sealed]:
    def answered(sealed: Sealed) -> Sealed:
        with monkeypatch.context() as within:
            within.setattr(messages, "PROTOCOL", version)
            return answer(sealed)

    return answered
