"""The SuperLink in a process of its own, behind two gateways.

Sites connect to the outer one: TLS, and only the fleet interface, in which every call carries the signature of a
registered key. The signature is checked in the head of a request, before its body is read. The coordinator connects to
the inner one, on loopback, and shows a secret. All other requests are refused before Flower sees them. The SuperLink
keeps nothing: what must last is in our own files, so that a dead one is simply restarted.
"""

import asyncio
import binascii
import ctypes
import json
import logging
import os
import resource
import signal
import socket
import sys
from base64 import b64decode
from collections.abc import Callable, Coroutine, Iterator, MutableMapping, Sequence
from datetime import datetime, timedelta
from hmac import compare_digest
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from flwr.common.constant import (
    SUPERLINK_NODE_ID,
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
    Status,
)
from flwr.proto.message_pb2 import PullObjectResponse, PushObjectRequest, PushObjectResponse
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER
from flwr.supercore.date import now
from flwr.supercore.primitives.asymmetric import bytes_to_public_key, verify_signature
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from wardround.core.memory import return_memory
from wardround.deployment.flower.gateway import CALLER, App, Gateway, Limits, Receive, Scope, Send, Verdict
from wardround.deployment.flower.long_polls import LongPolls
from wardround.deployment.flower.wire import Buffer, bytes_head, cut_out

FLEET = "/v1/fleet/"
NOT_FOR_SITES = ("/v1/fleet/register-node", "/v1/fleet/unregister-node")  # the coordinator alone registers sites
AHEAD = timedelta(seconds=SYSTEM_TIME_TOLERANCE)
BEHIND = timedelta(seconds=TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE)
BACKLOG = 1024  # connections that wait to be accepted
OTHER_FILES = 256  # open files besides connections
UNAUTHORIZED, FORBIDDEN = 401, 403
PIECE = 2**18  # bytes of a part that are encrypted at once
PR_SET_PDEATHSIG = 1


class Parts:
    """Flower's application, past which the parts of large messages go: each of its ten layers copies them. A part is
    stored and given by Flower's own state, which checks its hash; whatever is unusual in a call is left to Flower.
    """

    def __init__(self, app: App, state: Any) -> None:
        self.app, self.state = app, state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        take = {"push-object": self._store, "pull-object": self._give}.get(str(scope.get("path")).rpartition("/")[2])
        if scope["type"] != "http" or take is None:
            await self.app(scope, receive, send)
            return
        message = await receive()
        body = message["body"]
        try:
            small, content = cut_out(body, PushObjectRequest.OBJECT_CONTENT_FIELD_NUMBER)
            request = PushObjectRequest.FromString(small)  # its first fields are those of a PullObjectRequest
        except (ValueError, DecodeError):
            request = None
        if request is None or not await asyncio.to_thread(self._may, scope, request):
            await self.app(scope, _once(message, receive), send)
            return
        del body[content.stop :], body[: content.start]  # neither of which moves the bytes
        for part in await asyncio.to_thread(take, request, body):
            await send(part)

    def _may(self, scope: Scope, request: PushObjectRequest) -> bool:
        """The gateway knows who calls; here, whether it calls for itself, and for a run that goes on."""
        caller = str(scope[CALLER])
        if str(scope["path"]).startswith(FLEET):
            node: int | None = self.state.get_node_id_by_public_key(caller.encode("ascii"))
        else:
            node = SUPERLINK_NODE_ID
        if node != request.node.node_id:
            return False
        run = self.state.get_run_status({request.run_id}).get(request.run_id)
        return run is not None and run.status == Status.RUNNING

    def _store(self, request: PushObjectRequest, content: bytearray) -> Iterator[MutableMapping[str, Any]]:
        stored = self.state.store_object(request.run_id, request.session_id, request.object_id, content)
        return _answer([PushObjectResponse(stored=stored).SerializeToString()])

    def _give(self, request: PushObjectRequest, content: bytearray) -> Iterator[MutableMapping[str, Any]]:
        known = self.state.get_object(request.run_id, request.object_id)
        head = PullObjectResponse(object_found=known is not None, object_available=bool(known)).SerializeToString()
        if not known:
            return _answer([head])
        field, whole = PullObjectResponse.OBJECT_CONTENT_FIELD_NUMBER, memoryview(known)
        pieces = (whole[start : start + PIECE] for start in range(0, len(whole), PIECE))
        return _answer([head + bytes_head(field, len(whole)), *pieces])


def _answer(pieces: Sequence[Buffer]) -> Iterator[MutableMapping[str, Any]]:
    size = str(sum(map(len, pieces))).encode()
    headers = [(b"content-type", PROTOBUF_MEDIA_TYPE.encode()), (b"content-length", size)]
    yield {"type": "http.response.start", "status": 200, "headers": headers}
    for place, piece in enumerate(pieces, 1):
        yield {"type": "http.response.body", "body": piece, "more_body": place < len(pieces)}


def _once(message: MutableMapping[str, Any], receive: Receive) -> Receive:
    """As `receive`, beginning with a message that has come already."""
    first = [message]

    async def again() -> MutableMapping[str, Any]:
        return first.pop() if first else await receive()

    return again


class SignedHeads:
    """Identifies the caller from the head of a request alone. Flower does the same, but only after reading the whole
    request.

    Flower signs the time of a call and nothing else, so a head could be replayed while its time is valid. Here each is
    valid once. The memory of used heads follows the times that sites signed, not our own clock, so that setting the
    clock back makes no old head valid.
    """

    def __init__(self, registered: Callable[[bytes], bool]) -> None:
        self.registered = registered
        self.newest: dict[bytes, datetime] = {}  # time signed, by key
        self.used: dict[bytes, dict[int, datetime]] = {}  # by key and signature

    def judge(self, scope: Scope) -> Verdict:
        path = str(scope.get("path", ""))
        if scope.get("method") != "POST" or not path.startswith(FLEET) or path in NOT_FOR_SITES:
            return Verdict(status=FORBIDDEN)
        headers = dict(scope["headers"])
        try:
            key, signature = (
                b64decode(headers[name.encode()], validate=True)
                for name in (FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER)
            )
            time = headers[TIMESTAMP_HEADER.encode()]
            signed = datetime.fromisoformat(time.decode("ascii"))
            if not -AHEAD < now() - signed < BEHIND:
                return Verdict(status=UNAUTHORIZED)
            if not self.registered(key):
                return Verdict(status=FORBIDDEN)
            if not verify_signature(bytes_to_public_key(key), time, signature) or not self._first(
                key, signed, decode_dss_signature(signature)[0]
            ):
                return Verdict(status=UNAUTHORIZED)
        except (KeyError, ValueError, TypeError, binascii.Error, UnsupportedAlgorithm):
            return Verdict(status=UNAUTHORIZED)
        return Verdict(caller=key.decode("ascii"))

    def _first(self, key: bytes, signed: datetime, number: int) -> bool:
        """`number` is the half of a signature that nobody else can vary."""
        newest, used = self.newest.get(key, signed), self.used.setdefault(key, {})
        if number in used or signed <= newest - BEHIND:
            return False
        used[number] = signed
        self.newest[key] = newest = max(newest, signed)
        while used[oldest := next(iter(used))] <= newest - BEHIND:
            del used[oldest]
        return True


def secret_shown(secret: str) -> Callable[[Scope], Verdict]:
    def judge(scope: Scope) -> Verdict:
        shown = dict(scope["headers"]).get(b"x-wardround-secret", b"")
        return Verdict("coordinator") if compare_digest(shown, secret.encode()) else Verdict(status=FORBIDDEN)

    return judge


def superlink(settings: dict[str, Any]) -> Any:
    """Flower's own application, as its command makes it, but served by our gateways."""
    from flwr.superlink.cli.flower_superlink import SuperLinkLifespan, _parse_superlink_lifespan_config
    from flwr.superlink.main import create_app

    sys.argv = [
        "flower-superlink",
        *("--ssl-certfile", settings["certificate"]),
        *("--ssl-keyfile", settings["key"]),
        *("--ssl-ca-certfile", settings["ca"]),
        *("--superexec-auth-secret-file", settings["secret_file"]),
        *("--isolation", "process"),
        "--enable-supernode-auth",
    ]
    logging.getLogger("flwr").setLevel(logging.WARNING)  # a line for each look would fill a disk in months
    return create_app(_parse_superlink_lifespan_config(), SuperLinkLifespan)


async def serve(settings: dict[str, Any]) -> None:
    app = superlink(settings)
    state = app.state.linkstate_factory.state()  # with Flower's own list of keys, from which a revoked one is removed
    heads = SignedHeads(lambda key: state.get_node_id_by_public_key(key) is not None)
    app = Parts(app, state)
    limits = Limits(connections=settings["connections"], per_address=settings["connections_per_address"])
    tls = {"ssl_keyfile": settings["key"], "ssl_certfile": settings["certificate"]}
    polls = LongPolls(app)
    doors = listeners(settings["host"], settings["port"])
    outer = Gateway(polls.for_sites, doors, heads.judge, limits, return_memory, lifespan="off", **tls)
    ours = Limits(per_caller=Limits.connections, bytes_per_caller=sys.maxsize)
    inner_socket = socket.socket(fileno=settings["inner_door"])
    judge = secret_shown(settings["secret"])
    inner = Gateway(polls.for_coordinator, [inner_socket], judge, ours, return_memory, lifespan="on")

    async def serve_until_other_ends(server: Gateway, other: Gateway) -> None:
        try:
            await server.serve()
        finally:
            other.should_exit = True
            polls.end()

    await asyncio.gather(serve_until_other_ends(inner, outer), serve_until_other_ends(outer, inner))


def listeners(host: str, port: int) -> list[socket.socket]:
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        sockets = dict.fromkeys((family, place) for family, _, _, _, place in addresses)
        return [socket.create_server(place, family=family, backlog=BACKLOG) for family, place in sockets]
    except OSError as error:
        sys.exit(str(error))  # the last line of the log, which the coordinator shows


def run(service: Coroutine[Any, Any, None]) -> None:
    """On the faster loop if it is installed: TLS is half of the work."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(service)
    else:
        uvloop.run(service)


def allow_open_files(number: int) -> None:
    """As many as the system permits: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < number:
        limit = number if hard == resource.RLIM_INFINITY else min(number, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def main() -> None:
    """Settings come on standard input, because they hold a secret and arguments are visible to all users."""
    settings = json.loads(sys.stdin.read())
    if sys.platform == "linux":  # it must not outlive a coordinator that is killed: the next one needs its port
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != settings["parent"]:
            sys.exit(1)
    allow_open_files(settings["connections"] + Limits.connections + OTHER_FILES)
    run(serve(settings))


if __name__ == "__main__":
    main()
