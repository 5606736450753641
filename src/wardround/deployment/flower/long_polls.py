"""Sites wait at the SuperLink for messages, instead of asking for them again and again (long polling).

Each look for messages costs the SuperLink 5 ms. Fifty hospitals that look twice a second while nothing happens would
need half of a processor, and those that wait would slow down those that work. So a site that has nothing to do says in
its call that it waits. The call is held here, before Flower sees it, until the coordinator has sent something, which it
says by a call of its own, or until LONGEST has passed.
"""

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER

if TYPE_CHECKING:  # a site, which needs the names of the calls, runs no server
    from wardround.deployment.flower.gateway import App, Receive, Scope, Send

WAITS = "x-wardround-waits"  # the header of a call that may be held
SENT = "/v1/wardround/sent"  # the coordinator's call after it has sent messages
PULL = "/v1/fleet/pull-messages"
LONGEST = 5.0  # seconds: a site that stops, or a SuperLink that ends, waits for no more than this


class LongPolls:
    """Between the gateways and Flower's application. No call is held that might find a message: `sent` counts the
    coordinator's calls, and a site's call passes unless it has looked since the latest of them."""

    def __init__(self, app: "App") -> None:
        self.app = app
        self.sent = 0
        self.looked: dict[bytes, int] = {}  # by a site's key: `sent` when its last look passed
        self.news = asyncio.Event()
        self.ended = False

    async def for_sites(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] == "http" and scope["path"] == PULL:
            headers = dict(scope["headers"])
            caller = bytes(headers[FLEET_HTTP_PUBLIC_KEY_HEADER.encode()])
            if WAITS.encode() in headers:
                await self._until_news(caller)
            self.looked[caller] = self.sent
        await self.app(scope, receive, send)

    async def for_coordinator(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] == "http" and scope["path"] == SENT:
            self._wake()
            await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})
            return
        await self.app(scope, receive, send)

    async def _until_news(self, caller: bytes) -> None:
        if self.ended or self.looked.get(caller) != self.sent:
            return
        with suppress(TimeoutError):
            await asyncio.wait_for(self.news.wait(), LONGEST)

    def _wake(self) -> None:
        self.sent += 1
        self.news.set()
        self.news = asyncio.Event()

    def end(self) -> None:
        """Nobody is held any more: the server ends when all calls are answered."""
        self.ended = True
        self._wake()
