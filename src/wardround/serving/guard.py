"""Which requests are accepted, how large they may be, and what is logged of them.

A page in a browser on this machine could send requests too, under a host name of its own that resolves to this machine
(DNS rebinding). So only requests to the names of this machine are answered, only JSON is accepted, which a page may
not send to another origin without asking first, and no other origin may read an answer.
"""

import logging
import time
from collections.abc import Collection, Sequence

from wardround.core.errors import WardroundError
from wardround.core.extras import needs

with needs("serve", "predictions over HTTP"):
    from starlette.responses import JSONResponse
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

OWN_NAMES = ("127.0.0.1", "localhost", "[::1]")
LARGEST = 16 << 20  # bytes of a request
LARGEST_IMAGES = 64 << 20  # where rows have images
HEAD_SECONDS = 10.0  # until a request's head has arrived
STALLED_SECONDS, BODY_SECONDS = 10.0, 120.0  # without a byte of its body, and until all of it has arrived
LOG = logging.getLogger("wardround.serving")


class Refused(Exception):
    def __init__(self, status: int, error: WardroundError) -> None:
        self.status, self.error = status, error
        super().__init__(status)


class Guard:
    """`names` are the host names that are answered, the one to recommend first; None: all. `paths` are those that the
    log may show."""

    def __init__(self, app: ASGIApp, names: Sequence[str] | None, paths: Collection[str]) -> None:
        self.app, self.names, self.paths = app, names, paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def noting(message: Message) -> None:
            nonlocal status
            status = message["status"] if message["type"] == "http.response.start" else status
            await send(message)

        if self.names is None or _host(scope) in self.names:
            await self.app(scope, receive, noting)
        else:
            body = {"where": "Host", "problem": "not a name of this server", "remedy": f"Use {self.names[0]}."}
            await JSONResponse({"error": body}, 421)(scope, receive, noting)
        # neither a body nor a query, and no unknown path: they could hold a patient's values
        path = scope["path"] if scope["path"] in self.paths else "another path"
        LOG.info("%s %s %s %.1f ms", _method(scope), path, status, 1000 * (time.perf_counter() - began))


def _host(scope: Scope) -> str:
    """Without the port. No honest client sends no host, or two."""
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    if len(hosts) != 1:
        return ""
    text = str(hosts[0], "latin-1").lower()
    name, colon, port = text.rpartition(":")
    return name if colon and port.isdigit() else text


def _method(scope: Scope) -> str:
    return str(scope["method"]) if scope["method"] in ("GET", "HEAD", "POST", "OPTIONS") else "another method"
