"""An HTTP server that reads nothing from strangers except the head of one request.

uvicorn reads and parses whatever it receives, from anyone and however slowly. This gateway stands before it. It counts
connections before TLS begins, passes uvicorn one head at a time and of limited size, and lets a body follow only when
`judge` has accepted the head. It also ends connections that keep it waiting.
"""

import asyncio
import logging
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import IPv6Address, ip_address, ip_network
from typing import Any

import uvicorn

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LARGEST_HEAD = 16 * 2**10
SMALL = 16 * 2**10  # bytes of a refused body that are read, and dropped, so that the caller sees the answer
SMALL_WITHIN = 2.0  # seconds for such a body
FLUSHED_WITHIN = 0.2  # seconds after which the answer to a refused caller is out, and its connection is cut
HELD = 2**20  # bytes that may come after reading was paused: event loops deliver up to 512 KB at once
HEAD_WITHIN = 10.0  # seconds for a head, from its first byte on; the first from the beginning of the connection
BODY_WITHIN = 1800.0  # seconds: two chunks of 16 MB at once over a line of 0.15 Mbit/s take that long
LONGEST_PAUSE = 60.0  # seconds without a byte of a body
LARGEST = 64 * 2**20  # bytes of one request: a chunk of a large model is far smaller
HANDSHAKE_WITHIN = 10.0  # seconds
REPORT_EVERY = 60.0  # seconds: strangers must not fill the disk through our log
TIDY_AFTER = 5.0  # seconds after a stranger was sent away: its connection is closed by then
AGAIN_AFTER = 0.1  # seconds after an accept that failed
CALLER = "wardround.caller"  # of a request that was accepted, in its scope
log = logging.getLogger("wardround.door")


@dataclass(frozen=True)
class Limits:
    """Of connections at one time. A known caller is one whose head was accepted."""

    connections: int = 512  # in all
    per_address: int = 32  # from one address, of callers that are not known yet
    strangers: int = 64  # of callers that are not known yet, from addresses from which no known one is connected
    per_caller: int = 32  # of one known caller: a site uses four
    bytes_per_caller: int = 2 * LARGEST  # of bodies that are being read


@dataclass(frozen=True)
class Verdict:
    """The result of `judge`: who calls, or the status with which the request is refused."""

    caller: str = ""
    status: int = 0


Judge = Callable[[Scope], Verdict]


class Connection(asyncio.Protocol):
    """Between the network and uvicorn's own protocol, to which it passes a head, then its body, then the next head."""

    def __init__(self, gateway: "Gateway", address: str) -> None:
        self.gateway, self.address = gateway, address
        self.caller = ""  # once it is known
        self.welcome: asyncio.Task[None] | None = None
        self.transport: asyncio.Transport | None = None
        self.http: Any = None
        self.timer: asyncio.TimerHandle | None = None
        self.held = bytearray()  # what has come and was not passed on: the beginning of a head, or what follows one
        self.in_head = True
        self.dropping = False
        self.missing = 0  # bytes of the present body
        self.until = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        config = self.gateway.config
        self.http = config.http_protocol_class(  # type: ignore[call-arg]
            config=config,
            server_state=self.gateway.server_state,
            app_state={**self.gateway.lifespan.state, "connection": self},
        )
        self.http.connection_made(transport)
        self._end_after(HEAD_WITHIN)

    def connection_lost(self, error: Exception | None) -> None:
        self._end_after(None)
        self.gateway.leave(self)
        self.held.clear()
        self.http.connection_lost(error)
        self.http = self.transport = None  # a circle that would keep the buffers of TLS until Python looks for circles

    def data_received(self, data: bytes) -> None:
        if self.dropping:
            return
        if self.missing:
            self._pass_body(data)
            return
        if self.in_head and not self.held and self.timer is None:
            self._end_after(HEAD_WITHIN)
        self.held += data
        if self.in_head:
            self._pass_head()
        else:
            self._pause()  # we have not decided yet, or have not quite ended with the request before
        if len(self.held) > HELD:
            self.abort()

    def _pass_head(self) -> None:
        """Only if it is complete, and nothing beyond it: uvicorn would start every request that it receives."""
        end = self.held.find(b"\r\n\r\n", 0, LARGEST_HEAD) + 4
        if end >= 4:
            head = bytes(self.held[:end])
            del self.held[:end]
            self.in_head = False
            self._pause()
            self.http.data_received(head)
        elif len(self.held) >= LARGEST_HEAD:
            self.abort()

    def _pass_body(self, data: bytes | bytearray) -> None:
        body, rest = data[: self.missing], data[self.missing :]
        self.missing -= len(body)
        self.held += rest
        left = self.until - asyncio.get_running_loop().time()
        self._end_after(min(LONGEST_PAUSE, left) if self.missing else None)
        if body:
            self.http.data_received(bytes(body))

    def accept_body(self, size: int, within: float | None = None) -> None:
        self.until = asyncio.get_running_loop().time() + (BODY_WITHIN if within is None else within)
        self.missing = size
        data, self.held = self.held, bytearray()
        self._pass_body(data)
        self._resume()

    def accept_head(self) -> None:
        """The request was answered: another may follow."""
        self.in_head = True
        self._resume()
        if self.held and not self.dropping:
            self._end_after(HEAD_WITHIN)
            self._pass_head()

    async def refuse(self, size: int, receive: Receive) -> None:
        """Read at most a small body, so that an honest caller receives the reason."""
        self.dropping = not 0 < size <= SMALL
        if not self.dropping:
            self.accept_body(size, SMALL_WITHIN)
            await whole_body(receive)
            self.dropping = True
        self.held.clear()

    def cut(self) -> None:
        """End the connection soon, whether or not the caller has read the answer."""
        self._pause()
        self._end_after(FLUSHED_WITHIN)

    def eof_received(self) -> bool | None:
        return bool(self.http.eof_received())

    def pause_writing(self) -> None:
        self.http.pause_writing()

    def resume_writing(self) -> None:
        self.http.resume_writing()

    def abort(self) -> None:
        if self.transport is not None:
            self.transport.abort()
        elif self.welcome is not None:
            self.welcome.cancel()
        self.gateway.leave(self)  # now, and not when the loop comes to it: its place is needed

    def _pause(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def _resume(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def _end_after(self, seconds: float | None) -> None:
        if self.timer is not None:
            self.timer.cancel()
        self.timer = None if seconds is None else asyncio.get_running_loop().call_later(max(seconds, 0.0), self.abort)


class Gateway(uvicorn.Server):
    """A uvicorn server that accepts its connections itself."""

    def __init__(
        self,
        app: App,
        listeners: Sequence[socket.socket],
        judge: Judge,
        limits: Limits,
        tidy: Callable[[], object],
        **config: Any,
    ) -> None:
        """`config` is uvicorn's; `tidy` is called after strangers have gone."""
        quiet: dict[str, Any] = {"log_level": "error", "access_log": False, "ws": "none", "proxy_headers": False}
        super().__init__(uvicorn.Config(self._guarded, interface="asgi3", timeout_keep_alive=60, **quiet, **config))
        self.app, self.listeners, self.judge, self.limits, self.tidy = app, listeners, judge, limits, tidy
        self.tidying: asyncio.TimerHandle | None = None
        self.unknown: dict[str, dict[Connection, None]] = {}  # by address, in order of arrival
        self.known: Counter[str] = Counter()  # connections by caller
        self.homes: Counter[str] = Counter()  # connections of known callers, by address
        self.reading: Counter[str] = Counter()  # bytes of bodies by caller
        self.refused: Counter[str] = Counter()  # by address, since the last report
        self.tasks: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=[])
        for listener in self.listeners if self.started else ():
            self._spawn(self._accept(listener))

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for task in self.tasks:
            task.cancel()
        for listener in self.listeners:
            listener.close()
        for connections in list(self.unknown.values()):
            for connection in list(connections):
                connection.abort()
        await super().shutdown(sockets=[])

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)  # the loop alone would not keep it
        task.add_done_callback(self.tasks.discard)
        return task

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        listener.setblocking(False)
        while True:
            try:
                caller, address = await loop.sock_accept(listener)
            except OSError:  # no descriptor is free, or the caller has gone
                await asyncio.sleep(AGAIN_AFTER)
                continue
            connection = Connection(self, network_of(address[0]))
            if self._make_room(connection.address):
                self.unknown.setdefault(connection.address, {})[connection] = None
                connection.welcome = self._spawn(self._welcome(caller, connection))
            else:
                caller.close()
            await asyncio.sleep(0)  # a welcome must have begun before it can be cancelled; and others want to work

    async def _welcome(self, caller: socket.socket, connection: Connection) -> None:
        tls = self.config.ssl
        within = None if tls is None else HANDSHAKE_WITHIN
        loop = asyncio.get_running_loop()
        try:
            await loop.connect_accepted_socket(lambda: connection, caller, ssl=tls, ssl_handshake_timeout=within)
        except (OSError, TimeoutError):  # among them errors of TLS: not our certificate, not TLS, too slow
            self._report(connection.address)
        finally:
            if connection.transport is None:
                caller.close()
                self.leave(connection)

    def _make_room(self, address: str) -> bool:
        """If full, the address with most unknown callers loses its oldest: one flood shuts out nobody else."""
        strange = {place: callers for place, callers in self.unknown.items() if place not in self.homes}
        waiting, strangers = (sum(map(len, group.values())) for group in (self.unknown, strange))
        if len(self.unknown.get(address, ())) >= self.limits.per_address:
            crowded = address
        elif waiting + self.known.total() >= self.limits.connections and not waiting:
            self._report(address)
            return False
        elif waiting + self.known.total() >= self.limits.connections:
            crowded = _most_crowded(strange or self.unknown)
        elif strangers >= self.limits.strangers and address not in self.homes:
            crowded = _most_crowded(strange)
        else:
            return True
        self._report(crowded)
        next(iter(self.unknown[crowded])).abort()
        return True

    def leave(self, connection: Connection) -> None:
        self._no_longer_unknown(connection)
        if connection.caller:
            for counted, name in ((self.known, connection.caller), (self.homes, connection.address)):
                counted[name] -= 1
                if not counted[name]:
                    del counted[name]
        connection.caller = ""

    def _no_longer_unknown(self, connection: Connection) -> None:
        here = self.unknown.get(connection.address, {})
        here.pop(connection, None)
        if not here:
            self.unknown.pop(connection.address, None)

    def _report(self, address: str) -> None:
        loop = asyncio.get_running_loop()
        if not self.refused:
            loop.call_later(REPORT_EVERY, self._write_report)
        if self.tidying is None:
            self.tidying = loop.call_later(TIDY_AFTER, self._tidy)
        self.refused[address] += 1

    def _write_report(self) -> None:
        [(worst, most)] = self.refused.most_common(1)
        log.warning("%d connections of strangers ended, %d of them from %s", self.refused.total(), most, worst)
        self.refused.clear()

    def _tidy(self) -> None:
        self.tidying = None
        self.tidy()

    async def _guarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application that uvicorn calls when a head is complete."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        connection: Connection = scope["state"].pop("connection")
        size = length(scope)
        verdict = self._admit(connection, scope, size)
        if verdict.status:
            self._report(connection.address)
            await connection.refuse(size, receive)
            await answer(send, verdict.status, farewell=0 <= size <= SMALL)
            connection.cut()
            return
        self.reading[verdict.caller] += size
        try:
            connection.accept_body(size)
            whole = await whole_body(receive, size)
        finally:
            self.reading[verdict.caller] -= size
        try:
            await self.app({**scope, CALLER: verdict.caller}, whole, send)
        finally:
            connection.accept_head()

    def _admit(self, connection: Connection, scope: Scope, size: int) -> Verdict:
        if not 0 <= size <= LARGEST:
            return Verdict(status=403)
        verdict = self.judge(scope)
        if verdict.status:
            return verdict
        if connection.caller not in ("", verdict.caller):
            return Verdict(status=403)
        if not connection.caller:
            if self.known[verdict.caller] >= self.limits.per_caller:
                return Verdict(status=503)  # which a site takes for a passing fault, and calls again
            self._no_longer_unknown(connection)
            connection.caller = verdict.caller
            self.known[verdict.caller] += 1
            self.homes[connection.address] += 1
        if self.reading[verdict.caller] + size > self.limits.bytes_per_caller:
            return Verdict(status=503)
        return verdict


def _most_crowded(groups: Mapping[str, Mapping[Connection, None]]) -> str:
    return max(groups, key=lambda address: len(groups[address]))


def network_of(address: str) -> str:
    """The address; for IPv6 its 64-bit network, all addresses of which belong to one caller."""
    with suppress(ValueError):
        parsed = ip_address(address.partition("%")[0])
        if isinstance(parsed, IPv6Address):
            mapped = parsed.ipv4_mapped
            return str(mapped or ip_network((int(parsed) >> 64 << 64, 64)))
    return address


def length(scope: Scope) -> int:
    """Of the body, in bytes; -1 if it is not stated, because such a body may be endless."""
    headers = dict(scope.get("headers", ()))
    size = headers.get(b"content-length", b"0")
    plain = b"transfer-encoding" not in headers and size.isdigit() and len(size) < 20
    return int(size) if plain else -1


async def answer(send: Send, status: int, farewell: bool) -> None:
    """With a farewell uvicorn closes the connection as TLS wants it, and reads on until the other end does so too."""
    headers = [(b"content-length", b"0"), *([(b"connection", b"close")] if farewell else [])]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


async def whole_body(receive: Receive, size: int = 0) -> Receive:
    """The request's body at once. Flower has ten layers, each of which starts tasks for every part of a body."""
    whole, end = bytearray(size), 0
    while True:
        message = await receive()
        part = message.get("body", b"")
        whole[end : end + len(part)] = part  # in place: a body that grew would be copied each time
        end += len(part)
        if message["type"] != "http.request" or not message.get("more_body", False):
            break
    del whole[end:]
    first: list[MutableMapping[str, Any]] = [{**message, "body": whole}]

    async def again() -> MutableMapping[str, Any]:
        return first.pop() if first else await receive()

    return again
