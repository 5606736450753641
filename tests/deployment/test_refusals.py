"""A site that says no or cannot: its name and its reason in one line, at both ends, and the run goes on or stops."""

import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson
import pandas as pd
import pytest

from tests.deployment.forging import forge
from tests.deployment.hospital_files import at_sites, dots_at_sites, own, study
from tests.deployment.in_process_federation import Federation, OpenGate, body_of, federation, key, kind_of, reason_in
from tests.deployment.parity import KNOWN
from tests.noticed import noticed
from tests.representatives import represented
from wardround.core.errors import DataError, DeployError
from wardround.data.records import Column, Records
from wardround.data.sources import Source
from wardround.deployment import Refusal
from wardround.deployment.common.schema_agreement import Disagreement, refuse_outlier
from wardround.protocol.catalogue import PROTOCOL
from wardround.protocol.messages import Sealed
from wardround.runs.catalog import load_study

SITES = ("alder", "birch", "cedar")


def document(quorum: int | None = None) -> dict[str, Any]:
    deployment = {"smallest_cell": 1} if quorum is None else {"smallest_cell": 1, "quorum": quorum}
    return study(["fedavg", "scaffold"], data={"hospitals": list(SITES)}, deployment=deployment)


def begin(
    folder: Path,
    quorum: int | None = None,
    gates: dict[str, OpenGate] | None = None,
    changed: dict[str, Callable[[], Source]] | None = None,
) -> Federation:
    return federation(document(quorum), folder, {**at_sites(SITES), **(changed or {})}, gates, known_sources=KNOWN)


def gate(quorum: int | None = None) -> OpenGate:
    return OpenGate(load_study(document(quorum), sources=KNOWN)[0])


def events(path: Path, event: str) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return [entry["detail"] for entry in entries if entry["event"] == event]


def assert_said(network: Federation, folder: Path, why: str) -> None:
    """cedar left, and both ends know why."""
    lines = [line for line in network.lines if line.startswith("cedar: ")]
    assert lines
    assert why in lines[0]
    assert "\n" not in lines[0]
    (left,) = events(folder / "run" / "audit.jsonl", "site left")
    assert left["site"] == "cedar"
    assert why in left["why"]
    log = folder / "sites" / "cedar" / "audit.jsonl"
    assert any(why in str(event) for kind in ("refused", "failed") for event in events(log, kind))


def assert_stopped(network: Federation, folder: Path, why: str) -> None:
    with pytest.raises(DeployError) as stopped:
        network.run()
    assert "2 of 3 sites are left and 3 are needed" in stopped.value.problem
    assert "cedar" in stopped.value.problem
    assert why in stopped.value.problem
    assert_said(network, folder, why)
    assert not network.folder.complete


def assert_gone_on(network: Federation, folder: Path, why: str) -> None:
    network.run()
    assert_said(network, folder, why)
    assert network.folder.complete
    assert any(why in notice["text"] for notice in network.folder.read_json("results.json")["notices"])


def unreadable() -> Source:
    def load() -> Records:
        raise DataError("cedar.csv, line 7", "3 fields, but the header names 5 columns", "Correct this line.")

    return Source(load)


def withdraw_in_round(network: Federation, gates: dict[str, OpenGate], number: int) -> None:
    def before(site: str, sealed: Sealed) -> bool:
        gates["cedar"].withdrawn = body_of(sealed).get("round", 0) >= number
        return True

    network.transport.before = before


@pytest.mark.parametrize(
    ("what", "quorum"),
    represented(
        itertools.product(["not approved", "withdrawn", "closed", "unreadable"], [None, 2]),
        by=[("not approved", None), ("withdrawn", 2), ("closed", None), ("unreadable", 2)],
    ),
)
def test_a_site_that_does_not_take_part(what: str, quorum: int | None, tmp_path: Path) -> None:
    why = {
        "not approved": "refused: not approved here",
        "withdrawn": "refused: the approval was withdrawn",
        "closed": "refused: no machine is free",
        "unreadable": "failed: its rows cannot be used as they are",
    }[what]
    gates = {"cedar": gate(quorum)}
    changed: dict[str, Callable[[], Source]] = {}
    if what == "not approved":
        gates["cedar"] = OpenGate(None)
    elif what == "closed":
        gates["cedar"].refusal = Refusal("no machine is free")
    elif what == "unreadable":
        changed["cedar"] = unreadable
    network = begin(tmp_path, quorum, gates, changed)
    if what == "withdrawn":
        withdraw_in_round(network, gates, 1)
    check = assert_stopped if quorum is None else assert_gone_on
    check(network, tmp_path, why.split(": ", 1)[1])
    assert any(why in line for line in network.lines)
    rounds = [
        body_of(sealed)["round"] for site, sealed, answer in network.transport.carried if kind_of(answer) == "update"
    ]
    worked = {site for site, _, answer in network.transport.carried if kind_of(answer) == "update"}
    if quorum is None:
        assert set(rounds) <= ({0, 1} if what == "withdrawn" else set())
    else:
        assert worked == (set(SITES) if what == "withdrawn" else {"alder", "birch"})


def test_a_site_that_left_is_asked_again_when_the_coordinator_is_started_again(tmp_path: Path) -> None:
    """As the error says. Until then the quorum holds: two sites are not silently enough where three are needed."""
    gates = {"cedar": gate()}
    network = begin(tmp_path, None, gates)
    withdraw_in_round(network, gates, 1)
    with pytest.raises(DeployError):
        network.run()
    still = network.restart_coordinator()
    with pytest.raises(DeployError, match="2 of 3 sites are left and 3 are needed"):
        still.run()
    gates["cedar"].withdrawn = False
    network.restart_coordinator().run()
    calm = begin(tmp_path / "calm")
    calm.run()
    for arm in ("fedavg", "scaffold"):
        model, other = (folder.load_model(arm, 3) for folder in (network.folder, calm.folder))
        assert all(model[name].equal(other[name]) for name in other)


def test_a_closed_site_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gates = {"cedar": gate()}
    network = begin(tmp_path, None, gates)
    opens = datetime.now(UTC) + timedelta(hours=9)
    gates["cedar"].refusal = Refusal("closed until the evening", opens)
    moment = iter(range(10**6))

    class Clock:
        @staticmethod
        def monotonic() -> float:
            return float(next(moment))

        @staticmethod
        def sleep(seconds: float) -> None:
            gates["cedar"].refusal = None

    monkeypatch.setattr("wardround.deployment.common.messaging.time", Clock)
    network.run()
    assert "closed until the evening" in {step.sites["cedar"] for step in network.steps}
    assert not network.messenger.left
    assert network.folder.complete


# -- sites that do not fit together


def with_classes() -> Source:
    return Source(lambda: replace(own("cedar"), classes=("healthy", "ill")))


def with_text() -> Source:
    def load() -> Records:
        records = own("cedar")
        assert isinstance(records.features, pd.DataFrame)
        table = records.features.assign(dose="much")
        columns = [
            replace(column, kind="categorical") if column.name == "dose" else column for column in records.columns
        ]
        return replace(records, features=table.astype({"dose": object}), columns=tuple(columns))

    return Source(load)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        (with_classes, "it predicts classes healthy, ill, and alder predicts classes well, ill"),
        (with_text, "'dose' is categorical here and numeric at alder"),
        (dots_at_sites()["cedar"], "classes|has images where alder has a table"),
    ],
    ids=["classes", "types", "images"],
)
def test_sites_that_do_not_fit_are_named(changed: Callable[[], Source], problem: str, tmp_path: Path) -> None:
    network = begin(tmp_path, changed={"cedar": changed})
    with pytest.raises(DeployError, match=problem) as stopped:
        network.run()
    assert stopped.value.where == "cedar"
    assert not [answer for _, _, answer in network.transport.carried if kind_of(answer) == "update"]


def test_images_of_the_same_classes_do_not_fit_a_table_either(tmp_path: Path) -> None:
    def images() -> Source:
        return Source(lambda: replace(dots_at_sites()["cedar"]().load(), classes=("well", "ill", "worse")))

    content = study(["fedavg"], data={"hospitals": list(SITES), "classes": 3})
    sources = {**at_sites(SITES, classes=3), "cedar": images}
    with pytest.raises(DeployError, match="has images where alder has a table") as stopped:
        federation(content, tmp_path, sources, known_sources=KNOWN).run()
    assert stopped.value.where == "cedar"


def told(site: str, other: str) -> str:
    return f"is not as {other}"


@pytest.mark.parametrize(
    ("values", "leaving"),
    [
        ([1, 1], {}),
        ([1, 2, 1], {"b": "is not as a"}),
        ([2, 1, 1], {"a": "is not as b"}),
        ([1, 2], {"b": "is not as a", "a": "is not as b"}),
        ([1, 2, 1, 2], {"b": "is not as a", "a": "is not as b", "c": "is not as b", "d": "is not as a"}),
        ([1, 2, 3], {"b": "is not as a", "a": "is not as b", "c": "is not as b"}),
    ],
)
def test_without_a_majority_nobody_is_believed(values: list[int], leaving: dict[str, str]) -> None:
    """Else whoever comes first could put the others out of the run."""
    reasons = {}
    try:
        refuse_outlier(dict(zip("abcd", values, strict=False)), told, "Settle it.")
    except Disagreement as error:
        reasons = {notice.site: notice.details["reason"] for notice in error.notices}
    assert reasons == leaving


def test_a_column_that_a_site_lacks_is_a_warning(tmp_path: Path) -> None:
    network = begin(tmp_path)
    network.run()
    (notice,) = noticed(network.folder.read_json("results.json"), "column-not-recorded")
    assert (notice["site"], notice["columns"]) == ("birch", ["lab"])
    assert Column("lab").kind == "numeric"


# -- messages that nobody wrote


def forgeries(sealed: Sealed) -> dict[str, Sealed]:
    """Made of a message that a site would train on."""
    body = body_of(sealed)
    changed = {**body, "work": dict.fromkeys(body["work"], 9)}
    tensors = bytearray(sealed.tensors)
    tensors[-1] ^= 1
    head = orjson.dumps({**orjson.loads(sealed.head), "body": changed})
    return {
        "wrong key": forge("train", body, "somebody else", "cedar", bytes(sealed.tensors)),
        "a site's key": forge("train", body, "alder", "cedar", bytes(sealed.tensors)),
        "changed head": replace(sealed, head=head),
        "changed tensors": replace(sealed, tensors=bytes(tensors)),
        "no tensors": replace(sealed, tensors=b""),
        "no signature": replace(sealed, signature=b""),
        "garbage": Sealed(b"\x00\xff" * 9, b"garbage", b"garbage"),
        "signed garbage": signed(b"\x00\xff" * 9, b""),
        "signed, but no message": signed(b"[1, 2]", b""),
        "signed, with a body that is none": signed(
            f'{{"protocol":{PROTOCOL},"kind":"train","site":"cedar","log":"","body":[1],"order":[]}}'.encode(), b""
        ),
        "signed garbage for tensors": signed(sealed.head, b"garbage"),
        "another protocol": signed(with_protocol(sealed.head, PROTOCOL + 1), bytes(sealed.tensors)),
        "tensors that are not there": signed(sealed.head.replace(b'"order":[', b'"order":["9/params/x",'), b""),
    }


def with_protocol(head: bytes, version: int) -> bytes:
    own = f'"protocol":{PROTOCOL}'.encode()
    assert own in head  # otherwise nothing would be forged
    return head.replace(own, f'"protocol":{version}'.encode())


def signed(head: bytes, tensors: bytes) -> Sealed:
    unsigned = Sealed(head, tensors, b"")
    return replace(unsigned, signature=key("coordinator").sign(unsigned.digest))


def test_forged_messages_are_refused_logged_and_never_trained_on(tmp_path: Path) -> None:
    network = begin(tmp_path)
    real: list[Sealed] = []

    def before(site: str, sealed: Sealed) -> bool:
        if kind_of(sealed) == "train" and site == "cedar":
            real.append(sealed)
            raise KeyboardInterrupt
        return True

    network.transport.before = before
    with pytest.raises(KeyboardInterrupt):
        network.run()
    cedar, log = network.transport.sites["cedar"], tmp_path / "sites" / "cedar" / "audit.jsonl"
    for number, (name, forged) in enumerate(forgeries(real[0]).items()):
        answer = cedar.answer(forged)
        assert kind_of(answer) == "refused", name
        assert body_of(answer)["reason"], name
        assert not answer.tensors, name
        assert len(events(log, "forged message")) + len(events(log, "other version")) == number + 1, name
    assert len(events(log, "other version")) == 1  # nobody has forged what somebody with another version has signed
    assert (
        f"version {PROTOCOL + 1} of the protocol"
        in body_of(cedar.answer(forgeries(real[0])["another protocol"]))["reason"]
    )
    assert not list((tmp_path / "sites" / "cedar").glob("*/wave-*"))
    assert kind_of(cedar.answer(real[0])) == "update"


@pytest.mark.parametrize("what", ["wrong key", "another site's answer", "changed", "another name"])
def test_forged_answers_are_refused_and_the_site_is_named(what: str, tmp_path: Path) -> None:
    network = begin(tmp_path)

    def after(site: str, sealed: Sealed, answer: Sealed) -> Sealed:
        if kind_of(answer) != "update" or site != "cedar":
            return answer
        if what == "wrong key":
            return forge("update", body_of(answer), "alder", "cedar", bytes(answer.tensors))
        if what == "changed":
            return replace(answer, tensors=bytes(answer.tensors)[:-1] + b"!")
        if what == "another name":
            return forge("update", body_of(answer), "cedar", "alder", bytes(answer.tensors))
        return network.transport.sites["alder"].answer(sealed)

    network.transport.after = after
    with pytest.raises(DeployError) as stopped:
        network.run()
    assert "cedar" in stopped.value.problem
    expected = "answered under another name" if what == "another name" else "does not carry its signature"
    assert expected in stopped.value.problem
    assert expected in events(tmp_path / "run" / "audit.jsonl", "site left")[0]["why"]


def test_a_message_that_is_not_what_it_should_be_fails_in_one_line_without_a_value(tmp_path: Path) -> None:
    """Signed by the coordinator, and senseless: nothing but the kind of error is told."""
    network = begin(tmp_path)
    network.run()
    cedar = network.transport.sites["cedar"]
    run = next(body_of(sealed)["run"] for _, sealed, _ in network.transport.carried)
    for kind, body in (
        ("dance", {"run": run}),
        ("train", {"run": run}),
        ("train", {"run": "../../../etc"}),
        ("train", {"run": run, "wave": 99, "round": 0, "counted": -1, "work": {"0": 1}, "score": []}),
        ("evaluate", {"run": run, "wave": "x"}),
        ("hello", {}),
    ):
        answer = cedar.answer(forge(kind, body, "coordinator", "cedar"))
        assert kind_of(answer) == "failed", kind
        assert "\n" not in reason_in(body_of(answer)), kind
