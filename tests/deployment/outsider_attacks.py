"""What somebody might try who has no business in a study. Each function tries it, in vain or it fails."""

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec

from tests.deployment.federation_processes import Hospitals, Process, listening
from wardround.deployment.provisioning import certificates
from wardround.protocol.messages import Message, Sealed, open_sealed, seal
from wardround.protocol.signing import Key, read_key, read_public_key

STRANGER, IMPOSTOR = "127.0.0.9", "127.0.0.66"  # where they are
PROTOBUF = {"content-type": "application/protobuf"}
NOT_FOR_SITES = (
    "/docs",
    "/redoc",
    "/openapi.json",
    "/health",
    "/",
    "/v1/fleet/register-node",
    "/v1/fleet/unregister-node",
    "/v1/fleet/%72egister-node",
    "//v1/fleet/register-node",
    "/v1/fleet",
    "/V1/FLEET/activate-node",
)


def endpoints(interface: str) -> dict[str, type[Any]]:
    """All that Flower answers there, with the kind of message that each wants."""
    from flwr.supercore.protobuf.translation import PROTOBUF_REQUEST_TYPES

    by_path = {path: kind for (_, path), kind in PROTOBUF_REQUEST_TYPES.items() if path.startswith(f"/v1/{interface}/")}
    assert len(by_path) >= 10
    return by_path


class Caller:
    """An anonymous client on an address of its own. Without `ca` it speaks without TLS."""

    def __init__(self, host: str, port: int, ca: Path | None) -> None:
        self.host, self.port, self.ca = host, port, ca

    def connect(self) -> http.client.HTTPConnection:
        place = (self.host, self.port)
        if self.ca is None:
            return http.client.HTTPConnection(*place, timeout=20, source_address=(STRANGER, 0))
        context = ssl.create_default_context(cafile=str(self.ca))
        return http.client.HTTPSConnection(*place, timeout=20, source_address=(STRANGER, 0), context=context)

    def status(self, path: str, body: bytes = b"", method: str = "POST", secret: str | None = None) -> int:
        connection = self.connect()
        try:
            shown = {} if secret is None else {"x-wardround-secret": secret}
            connection.request(method, path, body, {**PROTOBUF, **shown})
            return connection.getresponse().status
        finally:
            connection.close()


def outside(here: Hospitals) -> Caller:
    return Caller(here.host, here.port, here.kit / "ca.pem")


def nobody_calls_the_fleet_without_a_key(here: Hospitals) -> None:
    for path, kind in endpoints("fleet").items():
        wanted = 403 if path in NOT_FOR_SITES else 401
        assert outside(here).status(path) == wanted, path
        assert outside(here).status(path, _filled(kind, here)) == wanted, path
        assert outside(here).status(path, method="GET") in (403, 404, 405), path


def nobody_calls_the_fleet_in_anothers_name(here: Hospitals, key: ec.EllipticCurvePrivateKey) -> None:
    """`key` may be that of another site: it opens nothing of Cleveland's. 403 is for keys that nobody registered."""
    import httpx
    from flwr.proto.fleet_pb2 import ActivateNodeRequest, DeactivateNodeRequest, PullMessagesRequest
    from flwr.proto.node_pb2 import Node
    from flwr.supernode.fleet_http_client import FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    address, ca = f"{here.host}:{here.port}", (here.kit / "ca.pem").read_bytes()
    signed = [NodeAuthHttpInterceptor(key, key.public_key())]
    client = FleetHttpClient.from_server_address(address, False, ca, signed)
    number = connection_of(here, "cleveland")
    theirs = _public_bytes(here, "cleveland")
    calls = (
        lambda: client.PullMessages(PullMessagesRequest(node=Node(node_id=number))),
        lambda: client.DeactivateNode(DeactivateNodeRequest(node_id=number)),
        lambda: client.ActivateNode(ActivateNodeRequest(public_key=theirs, heartbeat_interval=10.0)),
    )
    for call in calls:
        with pytest.raises(httpx.HTTPStatusError, match=r"401|403"):
            call()
    client.close()


def only_sites_calls_pass_the_outer_door(here: Hospitals) -> None:
    for path in (*NOT_FOR_SITES, *endpoints("control"), *endpoints("runtime")):
        for method in ("POST", "GET"):
            assert outside(here).status(path, method=method) == 403, path


def nobody_passes_the_inner_door_without_the_secret(coordinator: Process) -> None:
    inner = Caller(*inner_door(coordinator), None)
    for path in ("/health", "/docs", "/v1/control/start-run", "/v1/runtime/acquire-task", "/v1/fleet/activate-node"):
        assert inner.status(path) == 403, path
        assert inner.status(path, secret="0" * 64) == 403, path


def inner_door(coordinator: Process) -> tuple[str, int]:
    """The one that is not TLS, which must be on loopback only."""
    doors = listening(coordinator.superlink())
    assert all(host.startswith("127.") for host, _ in doors)
    [inner] = [door for door in doors if door[0] == "127.0.0.1"]
    return inner


def no_app_can_be_started_from_outside(here: Hospitals) -> None:
    from hashlib import sha256

    from flwr.cli.build import build_fab_from_files
    from flwr.proto.control_pb2 import StartRunRequest
    from flwr.proto.fab_pb2 import Fab

    from wardround.deployment.flower.adapter import APP

    fab, _ = build_fab_from_files({"pyproject.toml": APP, "evil.py": b"open('/tmp/evil', 'w')"})
    request = StartRunRequest(fab=Fab(hash_str=sha256(fab).hexdigest(), content=fab))
    assert outside(here).status("/v1/control/start-run", request.SerializeToString()) == 403


def large_requests_are_refused(here: Hospitals) -> None:
    """By what they announce, and not after they were read."""
    from wardround.deployment.flower.gateway import LARGEST

    for header, value in (("content-length", str(LARGEST + 1)), ("transfer-encoding", "chunked")):
        connection = outside(here).connect()
        connection.putrequest("POST", "/v1/fleet/activate-node")
        connection.putheader("content-type", PROTOBUF["content-type"])
        connection.putheader(header, value)
        connection.endheaders()
        assert connection.getresponse().status == 403, header
        connection.close()


def attempt_to_join(address: str, ca: Path, key: ec.EllipticCurvePrivateKey, folder: Path) -> str:
    """The first thing that a site with this authority and key would say."""
    from wardround.deployment.flower.site_loop import SiteLoop

    messages: list[str] = []

    def answer(sealed: Sealed) -> Sealed:
        raise AssertionError("a message came")

    SiteLoop(address, ca, key, answer, folder / "no-connection", messages.append, lambda: bool(messages)).run()
    return messages[0]


class OtherAuthority:
    """Somebody else's certificates."""

    def __init__(self, folder: Path) -> None:
        key, authority = certificates.new_authority("other", 2)
        mine, certificate = certificates.new_certificate("other", [IMPOSTOR], 2, key, authority)
        self.ca, self.certificate, self.key = (folder / name for name in ("other-ca.pem", "other.pem", "other.key"))
        self.ca.write_bytes(certificates.certificate_pem(authority))
        self.certificate.write_bytes(certificates.certificate_pem(certificate))
        self.key.write_bytes(certificates.private_pem(mine))

    @contextmanager
    def coordinates(self) -> Iterator[tuple[str, list[bytes]]]:
        """A server in the coordinator's place: its address, and what it hears."""
        heard: list[bytes] = []
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.certificate, self.key)
        with socket.create_server((IMPOSTOR, 0)) as door:

            def listen() -> None:
                while True:
                    try:
                        connection, _ = door.accept()
                    except OSError:
                        return  # closed
                    with connection, suppress(OSError), context.wrap_socket(connection, server_side=True) as secured:
                        heard.append(secured.recv(1))

            thread = threading.Thread(target=listen, daemon=True)
            thread.start()
            yield f"{IMPOSTOR}:{door.getsockname()[1]}", heard
            door.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def forged_messages_are_refused(here: Hospitals, coordinator: Process, site: str) -> None:
    """From somebody who has stolen the secret of the inner door, but not the key that signs messages."""
    from flwr.app import Message as FlowerMessage
    from flwr.app import RecordDict

    from wardround.deployment.flower.adapter import CoordinatorConnection, ReconnectingGrid
    from wardround.deployment.flower.server_app import GridTransport, Standing, from_record

    host, port = inner_door(coordinator)
    connection = CoordinatorConnection(f"{host}:{port}", (here.kit / "link" / "secret").read_bytes(), {})
    node = connection_of(here, site)
    grid = ReconnectingGrid(lambda: connection)

    def look() -> Mapping[str, Standing]:
        return {site: Standing(node, True, "now")}

    run = next(
        entry["detail"]["run"] for entry in entries(here.site(site).state / "audit.jsonl") if entry["event"] == "joined"
    )
    train = {"run": run, "wave": 0, "round": 0, "counted": -1, "work": {"0": 1}, "score": [], "seconds": None}
    forged = [
        seal(Message(kind, {**train, "study": here.study.hash}, site=site), Key(certificates.new_key()))
        for kind in ("hello", "train", "evaluate", "goodbye")
    ]
    answers = [_first(GridTransport(grid, look).ask({site: sealed})) for sealed in (*forged, Sealed(b"", b"", b""))]
    [number] = grid.push_messages([FlowerMessage(RecordDict({}), node, "query", ttl=600.0)])  # is no message at all
    while not (replies := list(grid.pull_messages([number]))):
        pass
    answers.append(from_record(replies[0].content))
    grid.push_messages([FlowerMessage(RecordDict({}), node, "query.other", ttl=600.0)])  # never answered
    key = read_public_key((here.kit / "sites" / f"{site}.pub").read_bytes(), site)
    for answer in answers:
        message = open_sealed(answer, key, site)
        assert message.kind == "refused"
        assert message.body["reason"] == "a message does not carry its signature"
        assert not message.tensors
    connection.close()
    assert events(here.site(site).state / "audit.jsonl").count("forged message") == len(answers)


def _first(answers: Iterator[tuple[str, Sealed] | None]) -> Sealed:
    return next(answer[1] for answer in answers if answer is not None)


def connection_of(here: Hospitals, site: str) -> int:
    return int((here.site(site).state / "connection").read_text())


def entries(log: Path) -> list[Any]:
    """Of a log that is being written perhaps."""
    return [json.loads(line) for line in log.read_bytes().split(b"\n")[:-1]]


def events(log: Path) -> list[str]:
    return [entry["event"] for entry in entries(log)]


def site_key(here: Hospitals, site: str) -> ec.EllipticCurvePrivateKey:
    return read_key(here.site(site).key).private


def _public_bytes(here: Hospitals, site: str) -> bytes:
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes

    return public_key_to_bytes(site_key(here, site).public_key())


def _filled(kind: type[Any], here: Hospitals) -> bytes:
    """A request that would be right if it were signed."""
    from flwr.proto.node_pb2 import Node

    number = connection_of(here, "cleveland")
    known = {"node": Node(node_id=number), "node_id": number, "public_key": _public_bytes(here, "cleveland")}
    fields = {field.name for field in kind.DESCRIPTOR.fields}
    message: bytes = kind(**{name: value for name, value in known.items() if name in fields}).SerializeToString()
    return message
