"""The SuperLink in a process of its own, behind two doors.

Sites come through the outer door: TLS, and only the fleet interface, in which every call carries the signature of a
registered key. The coordinator comes through the inner door, on loopback, and shows a secret. Whoever knocks for
anything else is answered 403 before Flower sees it. It keeps nothing: what must last is in our own files, so that a
SuperLink that dies is simply started again.
"""

import asyncio
import ctypes
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from hmac import compare_digest
from typing import Any

import uvicorn

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

FLEET = "/v1/fleet/"
NOT_FOR_SITES = ("/v1/fleet/register-node", "/v1/fleet/unregister-node")  # the coordinator alone says who takes part
LARGEST = 64 * 2**20  # bytes of one request: a chunk is far smaller
PR_SET_PDEATHSIG = 1


def outer_door(app: App) -> App:
    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        path = str(scope.get("path", ""))
        allowed = scope["type"] == "http" and path.startswith(FLEET) and path not in NOT_FOR_SITES
        if allowed and _small(scope):
            await app(scope, await in_one_piece(receive), send)
        else:
            await forbidden(scope, receive, send)

    return guarded


def _small(scope: Scope) -> bool:
    """Flower reads a whole request before it asks whose it is: one that does not say how long it is may be endless."""
    headers = dict(scope.get("headers", ()))
    size = headers.get(b"content-length", b"0")
    return b"transfer-encoding" not in headers and size.isdigit() and int(size) <= LARGEST


def inner_door(app: App, secret: str) -> App:
    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        shown = next((value for name, value in scope.get("headers", ()) if name == b"x-wardround-secret"), b"")
        if scope["type"] == "lifespan":
            await app(scope, receive, send)
        elif compare_digest(shown, secret.encode()):
            await app(scope, await in_one_piece(receive), send)
        else:
            await forbidden(scope, receive, send)

    return guarded


async def in_one_piece(receive: Receive) -> Receive:
    """The request's body at once. Flower has ten layers, each of which starts tasks for every piece that comes."""
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if message["type"] != "http.request" or not message.get("more_body", False):
            break
    first: list[MutableMapping[str, Any]] = [{**message, "body": b"".join(parts)}]

    async def again() -> MutableMapping[str, Any]:
        return first.pop() if first else await receive()

    return again


async def forbidden(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 403, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


def superlink(settings: dict[str, Any]) -> App:
    """Flower's own application, made as its command would make it, but for who serves it."""
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
    app: App = create_app(_parse_superlink_lifespan_config(), SuperLinkLifespan)
    return app


async def serve(settings: dict[str, Any]) -> None:
    app = superlink(settings)
    quiet: dict[str, Any] = {"log_level": "warning", "access_log": False, "timeout_keep_alive": 60}
    inner = uvicorn.Server(uvicorn.Config(inner_door(app, settings["secret"]), lifespan="on", **quiet))
    door = socket.socket(fileno=settings["inner_door"])
    outer = uvicorn.Server(
        uvicorn.Config(
            outer_door(app),
            host=settings["host"],
            port=settings["port"],
            lifespan="off",
            ssl_keyfile=settings["key"],
            ssl_certfile=settings["certificate"],
            **quiet,
        )
    )

    async def one(server: uvicorn.Server, other: uvicorn.Server, sockets: list[socket.socket] | None = None) -> None:
        try:
            await server.serve(sockets)
        finally:
            other.should_exit = True

    await asyncio.gather(one(inner, outer, [door]), one(outer, inner))


def run(service: Coroutine[Any, Any, None]) -> None:
    """On the faster loop where there is one: TLS is half of the work."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(service)
    else:
        uvloop.run(service)


def main() -> None:
    """Settings come on standard input, because they hold a secret and an argument is visible to all users."""
    settings = json.loads(sys.stdin.read())
    if sys.platform == "linux":  # it must not outlive a coordinator that is killed: the next one needs its port
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != settings["parent"]:
            sys.exit(1)
    run(serve(settings))


if __name__ == "__main__":
    main()
