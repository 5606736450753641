"""One connection to a door, between the network and uvicorn."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wardround.deployment.flower.gateway import Gateway

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


class Connection(asyncio.Protocol):
    """Between the network and uvicorn's own protocol, to which it passes a head, then its body, then the next head."""

    def __init__(self, door: "Gateway", address: str) -> None:
        self.door, self.address = door, address
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
        config = self.door.config
        self.http = config.http_protocol_class(  # type: ignore[call-arg]
            config=config,
            server_state=self.door.server_state,
            app_state={**self.door.lifespan.state, "connection": self},
        )
        self.http.connection_made(transport)
        self._end_after(HEAD_WITHIN)

    def connection_lost(self, error: Exception | None) -> None:
        self._end_after(None)
        self.door.leave(self)
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
        """If it is complete, and nothing beyond: uvicorn would begin with every request that it is given."""
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
        """The body may follow, by default within `BODY_WITHIN`."""
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
        """Read no more than a small body, and that only so that an honest caller hears why."""
        self.dropping = not 0 < size <= SMALL
        if not self.dropping:
            self.accept_body(size, SMALL_WITHIN)
            await whole_body(receive)
            self.dropping = True
        self.held.clear()

    def cut(self) -> None:
        """Soon, whether the caller has taken the answer or not."""
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
        self.door.leave(self)  # now, and not when the loop comes to it: its place is needed

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


async def whole_body(receive: Receive) -> Receive:
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
