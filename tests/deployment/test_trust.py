"""Whom both ends believe: keys, times and certificates that are not, or no longer, good; files that are cut off."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shutil import copytree
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature

from tests.deployment.federation_processes import heart_study, hospitals
from tests.deployment.forging import forge
from tests.deployment.hospital_files import at_sites, study
from tests.deployment.in_process_federation import Federation, body_of, federation, kind_of, public, reason_in
from tests.deployment.outsider_attacks import IMPOSTOR, OtherAuthority, attempt_to_join
from tests.deployment.parity import KNOWN
from wardround.core.errors import DeployError, WardroundError
from wardround.core.tree import Tree
from wardround.deployment import CoordinatorKit, SiteFile, coordinate_study
from wardround.deployment import join as joining
from wardround.deployment.flower.gateway import Scope
from wardround.deployment.provisioning import certificates
from wardround.protocol.messages import Sealed, open_sealed
from wardround.runs import audit
from wardround.runs.audit import verify

if TYPE_CHECKING:  # it imports Flower, which takes a second
    from wardround.deployment.flower.superlink_process import SignedHeads

pytestmark = pytest.mark.filterwarnings("ignore:GitWildMatchPattern")  # Flower's matter
NORTH, SOUTH = certificates.new_key(), certificates.new_key()
NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)
ORDER = int("ffffffffffffffffffffffffffffffffffffffffffffffffc7634d81f4372ddf581a0db248b0a77aecec196accc52973", 16)
SITES = ("alder", "birch", "cedar")


# -- certificates


@pytest.mark.parametrize(
    ("earlier", "why"),
    [
        (timedelta(days=5), "the coordinator's certificate has expired, or this clock is ahead"),
        (timedelta(days=-1), "the coordinator's certificate is not valid yet, or this clock is behind"),
    ],
)
def test_a_certificate_at_another_time_is_refused_before_anything_is_sent(
    earlier: timedelta, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An hour is no matter: certificates are good from an hour or more before they are made."""
    assert timedelta(hours=1) <= certificates.EARLIER
    monkeypatch.setattr(certificates, "EARLIER", earlier)
    authority = OtherAuthority(tmp_path)
    with authority.coordinates() as (address, heard):
        assert attempt_to_join(address, authority.ca, certificates.new_key(), tmp_path) == why
    assert heard == []


def test_a_certificate_of_another_authority_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    _, own = certificates.new_authority("study", 2)
    (tmp_path / "ca.pem").write_bytes(certificates.certificate_pem(own))
    with OtherAuthority(tmp_path).coordinates() as (address, heard):
        message = attempt_to_join(address, tmp_path / "ca.pem", certificates.new_key(), tmp_path)
    assert message == "the coordinator's certificate is not of this study's authority, or not for this address"
    assert heard == []
    assert IMPOSTOR in address


# -- heads of requests


class Clock:
    def __init__(self, now: datetime) -> None:
        self.now = now

    def __call__(self) -> datetime:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The coordinator's."""
    clock = Clock(NOON)
    monkeypatch.setattr("wardround.deployment.flower.superlink_process.now", clock)
    return clock


@pytest.fixture
def registered() -> set[bytes]:
    return {pem(NORTH)}


@pytest.fixture
def heads(registered: set[bytes], clock: Clock) -> SignedHeads:
    from wardround.deployment.flower.superlink_process import SignedHeads

    return SignedHeads(registered.__contains__)


def pem(private: ec.EllipticCurvePrivateKey) -> bytes:
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    return public_key_to_bytes(private.public_key())


def request(signed: datetime, by: ec.EllipticCurvePrivateKey = NORTH, path: str = "/v1/fleet/pull-messages") -> Scope:
    """As Flower's own client makes it."""
    import httpx
    from flwr.supernode import node_auth_http_interceptor as flowers

    request = httpx.Request("POST", f"https://127.0.0.1{path}")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flowers, "now", lambda: signed)
        flowers.NodeAuthHttpInterceptor(by, by.public_key()).intercept(
            SimpleNamespace(request=request),  # type: ignore[arg-type]
            lambda context: httpx.Response(200),
        )
    headers = [(name.lower(), value) for name, value in request.headers.raw]
    return {"type": "http", "method": "POST", "path": path, "headers": headers}


def with_header(scope: Scope, name: str, value: bytes | None) -> Scope:
    headers = [(header, old) for header, old in scope["headers"] if header != name.encode()]
    return {**scope, "headers": headers + ([] if value is None else [(name.encode(), value)])}


def test_a_head_is_good_once(heads: SignedHeads, clock: Clock) -> None:
    first, second = request(NOON), request(NOON)  # two threads of a site may sign in the same microsecond
    assert heads.judge(first).caller == heads.judge(second).caller == pem(NORTH).decode()
    assert heads.judge(first).status == 401
    clock.now += timedelta(minutes=4)
    assert heads.judge(first).status == 401


def test_another_writing_of_a_signature_makes_no_new_head(heads: SignedHeads) -> None:
    """Of every ECDSA signature there is a second one that anybody can compute."""
    first = request(NOON)
    assert not heads.judge(first).status
    r, s = decode_dss_signature(signature_of(first))
    other = with_header(first, "flwr-signature", b64encode(encode_dss_signature(r, ORDER - s)))
    assert type(heads)(lambda key: True).judge(other).caller  # it is a good one
    assert heads.judge(other).status == 401


def signature_of(scope: Scope) -> bytes:
    from base64 import b64decode

    return b64decode(dict(scope["headers"])[b"flwr-signature"])


@pytest.mark.parametrize(
    ("hours", "status"), [(-1.0, 401), (1.0, 401), (-0.09, 401), (0.01, 401), (-0.08, 0), (0.001, 0)]
)
def test_a_site_whose_clock_is_wrong_is_refused(hours: float, status: int, heads: SignedHeads) -> None:
    assert heads.judge(request(NOON + timedelta(hours=hours))).status == status


def test_a_coordinators_clock_that_is_set_back_makes_no_old_head_new(heads: SignedHeads, clock: Clock) -> None:
    """Somebody has kept every head of the last hour, of which some never arrived."""
    used, unused = [], []
    for minutes in range(-60, 1, 5):
        clock.now = NOON + timedelta(minutes=minutes)
        used.append(request(clock.now))
        unused.append(request(clock.now))
        assert not heads.judge(used[-1]).status
    late = unused.pop()
    for minutes in range(-60, 1, 5):
        clock.now = NOON + timedelta(minutes=minutes)
        assert {heads.judge(head).status for head in used} == {401}
        assert {heads.judge(head).status for head in unused[:-1]} == {401}
    assert not heads.judge(late).status  # its time is good, and it was not used


def test_what_is_remembered_of_a_site_is_minutes_and_not_months(heads: SignedHeads, clock: Clock) -> None:
    for _ in range(40):
        clock.now += timedelta(minutes=1)
        assert not heads.judge(request(clock.now)).status
    assert [len(used) for used in heads.used.values()] == [6]


def test_a_key_that_was_revoked_or_never_registered_is_refused(heads: SignedHeads, registered: set[bytes]) -> None:
    assert heads.judge(request(NOON, by=SOUTH)).status == 403
    assert not heads.judge(request(NOON)).status
    registered.clear()
    assert heads.judge(request(NOON)).status == 403
    assert heads.used.keys() == {pem(NORTH)}  # strangers leave nothing behind


@pytest.mark.parametrize("name", ["flwr-public-key", "flwr-signature", "flwr-timestamp"])
def test_a_head_that_is_not_as_it_should_be_is_refused(name: str, heads: SignedHeads) -> None:
    for value in (None, b"", b"!", b"\xff\xfe", b"A" * 5000, b64encode(pem(SOUTH)), b"2026-11-18T12:00"):
        assert heads.judge(with_header(request(NOON), name, value)).status in (401, 403), value


def test_a_signature_is_for_one_time_and_one_key(heads: SignedHeads, registered: set[bytes]) -> None:
    registered.add(pem(SOUTH))
    first = request(NOON)
    later = (NOON + timedelta(seconds=1)).isoformat().encode()
    assert heads.judge(with_header(first, "flwr-timestamp", later)).status == 401
    assert heads.judge(with_header(first, "flwr-public-key", b64encode(pem(SOUTH)))).status == 401
    assert not heads.judge(first).status


@pytest.mark.parametrize(
    "path", ["/v1/fleet/register-node", "/v1/control/start-run", "/v1/runtime/get-nodes", "/docs", ""]
)
def test_a_sites_key_opens_the_fleet_and_nothing_else(path: str, heads: SignedHeads) -> None:
    assert heads.judge({**request(NOON), "path": path}).status == 403
    assert heads.judge({**request(NOON), "method": "GET"}).status == 403


# -- a clock that goes back in the middle of a run


def begin(folder: Path) -> Federation:
    document = study(["fedavg", "scaffold"], data={"hospitals": list(SITES)}, deployment={"smallest_cell": 1})
    return federation(document, folder, at_sites(SITES), known_sources=KNOWN)


def stopped_in_round(folder: Path, number: int) -> Federation:
    network = begin(folder)

    def before(site: str, sealed: Sealed) -> bool:
        if kind_of(sealed) == "train" and body_of(sealed)["round"] == number:
            raise KeyboardInterrupt
        return True

    network.transport.before = before
    with pytest.raises(KeyboardInterrupt):
        network.run()
    return network


def models(folder: Path) -> dict[str, bytes]:
    return {path.parent.name: path.read_bytes() for path in (folder / "run" / "models").rglob("*.safetensors")}


def test_a_run_goes_on_when_all_clocks_are_set_back_an_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin(tmp_path / "calm").run()
    network = stopped_in_round(tmp_path / "back", 1)

    class Earlier(datetime):
        @classmethod
        def now(cls, tz: object = None) -> datetime:  # type: ignore[override]
            return datetime.now(UTC) - timedelta(hours=1)

    monkeypatch.setattr(audit, "datetime", Earlier)
    for site in SITES:
        network.restart_site(site)
    network.restart_coordinator().run()
    assert models(tmp_path / "back") == models(tmp_path / "calm") != {}
    logs = [tmp_path / "back" / "run" / "audit.jsonl", *(tmp_path / "back" / "sites").glob("*/audit.jsonl")]
    assert len(logs) == 1 + len(SITES)
    for log in logs:
        assert verify(log).broken is None
        times = [json.loads(line)["time"] for line in log.read_text().splitlines()]
        assert times != sorted(times)  # the log says so, and is in order all the same


# -- a coordinator that sends another model


def wider(tensors: Tree) -> Tree:
    return {name: torch.cat([leaf, leaf]) for name, leaf in tensors.items()}


def of_one_number(tensors: Tree) -> Tree:
    return {name: torch.zeros((1,) * leaf.dim()) for name, leaf in tensors.items()}


def more_precise(tensors: Tree) -> Tree:
    return {name: leaf.double() for name, leaf in tensors.items()}


def with_another_leaf(tensors: Tree) -> Tree:
    return {**tensors, "0/params/hook": torch.zeros(3)}


def without_a_leaf(tensors: Tree) -> Tree:
    return dict(list(tensors.items())[1:])


def without_any(tensors: Tree) -> Tree:
    return {}


def of_another_arm(tensors: Tree) -> Tree:
    return {**tensors, "9/params/weight": tensors["0/params/weight"].clone()}


CHANGES = (wider, of_one_number, more_precise, with_another_leaf, without_a_leaf, without_any, of_another_arm)


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_a_model_that_the_approved_study_does_not_have_is_refused(kind: str, tmp_path: Path) -> None:
    network = begin(tmp_path)
    answers: dict[str, Sealed] = {}

    def before(site: str, sealed: Sealed) -> bool:
        if kind_of(sealed) == kind and site == "birch" and not answers:
            message = open_sealed(sealed, public("coordinator"), "coordinator")
            for change in CHANGES:
                other = forge(kind, message.body, "coordinator", "birch", change(message.tensors))
                answers[change.__name__] = network.transport.sites["birch"].answer(other)
        return True

    network.transport.before = before
    network.run()
    assert len(answers) == len(CHANGES)
    for change, answer in answers.items():
        assert kind_of(answer) == "failed", change
        assert reason_in(body_of(answer)) == "sent another model than the study that was approved here has", change
        assert not answer.tensors, change
    assert network.folder.complete  # and the right question was answered after it


# -- two at once


def test_two_coordinators_cannot_use_one_kit(tmp_path: Path) -> None:
    with hospitals(heart_study(("fedavg",)), tmp_path) as here:
        kit = CoordinatorKit.load(here.kit)
        with (
            joining.alone(here.kit / "link"),
            pytest.raises(DeployError, match="another process coordinates with this"),
        ):
            coordinate_study(here.study, here.families, kit, tmp_path / "runs")
        assert not (tmp_path / "runs").exists()


# -- files that are cut off


def cuts(content: bytes) -> Iterator[bytes]:
    for length in {0, len(content) // 3, len(content) // 2, max(0, len(content) - 2)} - {len(content)}:
        yield content[:length]


def is_noticed(kit: Path, damaged: Path) -> bool:
    """By `join --check` or by `join` itself, in words; anything but a WardroundError would be a defect."""
    try:
        conditions = joining.preflight(SiteFile.load(kit))
        joining.join_studies(SiteFile.load(kit), lambda line: None, stop=lambda: True)
    except WardroundError as error:
        return bool(error.remedy)
    return any(not condition.ok and str(damaged) in condition.state for condition in conditions)


def test_a_kit_with_a_file_cut_off_is_refused_in_plain_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What no longer fits is named; what is not needed, or still whole, stands in nobody's way."""
    monkeypatch.setattr(joining, "CONNECT_WITHIN", 0.2)
    with hospitals(heart_study(("fedavg",)), tmp_path) as here:
        kit = here.folder / "sites" / "va"
        harmless = {"site.pub"}  # for others
        needed = {"ca.pem", "coordinator.pub", "site.key", "site.toml", "va.pub"}
        for path in sorted(file for file in kit.rglob("*") if file.is_file()):
            whole, noticed = path.read_bytes(), []
            for content in cuts(whole):
                path.write_bytes(content)
                noticed.append(is_noticed(kit, path))
            path.write_bytes(whole)
            assert any(noticed) or path.name in harmless, path.name
            assert all(noticed) or path.name not in needed - {"site.toml"}, path.name


@pytest.mark.slow
def test_a_sites_state_with_a_file_cut_off_gives_the_same_models_or_stops_the_run(tmp_path: Path) -> None:
    """Never another model: a site that cannot know what it must know says so."""
    begin(tmp_path / "calm").run()
    calm = models(tmp_path / "calm")
    stopped_in_round(tmp_path / "begun", 2)
    state = tmp_path / "begun" / "sites" / "birch"
    files = sorted(path.relative_to(state) for path in state.rglob("*") if path.is_file())
    assert {path.suffix for path in files} >= {".json", ".jsonl", ".head", ".tensors", ".safetensors"}
    stops = set()
    for number, path in enumerate(files):
        folder = tmp_path / str(number)
        copytree(tmp_path / "begun", folder)
        whole = (state / path).read_bytes()
        (folder / "sites" / "birch" / path).write_bytes(whole[: len(whole) // 2])
        with suppress(DeployError):
            begin(folder).run()
            assert models(folder) == calm, path
            continue
        stops.add(path.name)
        assert "birch" in (folder / "run" / "audit.jsonl").read_text(), path
    assert stops == {"memory-000001.safetensors"}  # SCAFFOLD's, of the last round that counted
