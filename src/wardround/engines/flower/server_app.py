"""The coordinator's app: a post that carries letters over Flower's Grid, and whoever writes them."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from flwr.app import Context, Message
from flwr.serverapp import Grid, ServerApp

from wardround.engines.flower.wire import from_record, to_record
from wardround.engines.letters import Post, Sealed
from wardround.errors import DeployError

POLL = 0.02  # seconds between two looks for answers
TICK = 0.25  # seconds after which whoever waits is told that nothing has come
TIME_TO_LIVE = 30 * 24 * 3600.0  # seconds: a site may be away for long


class LinkLost(Exception):
    """The SuperLink is gone or has forgotten us; what was sent must be sent again."""


@dataclass(frozen=True)
class Standing:
    """A site as the SuperLink sees it. `since` changes when the site connects anew."""

    node: int
    online: bool
    since: str


class Presence(Protocol):
    def look(self) -> Mapping[str, Standing]:
        """Where every site stands. Brings a lost SuperLink back."""


class GridPost:
    """Asks again where a site came back, or the SuperLink did: letters may come twice, which sites do not mind."""

    def __init__(self, grid: Grid, presence: Presence) -> None:
        self.grid, self.presence = grid, presence
        self.standing: Mapping[str, Standing] = {}

    def ask(self, letters: Mapping[str, Sealed]) -> Iterator[tuple[str, Sealed] | None]:
        waiting = dict(letters)
        sent: dict[str, tuple[str, Standing]] = {}
        ticked = time.monotonic()
        while waiting:
            try:
                self.standing = self.presence.look()
                for site in [one for one in waiting if self._is_new(one, sent)]:
                    sent[site] = (self._push(site, waiting[site]), self.standing[site])
                got = self._pull(sent)
            except LinkLost:
                sent, got = {}, None
            if got is not None:
                waiting.pop(got[0])
                sent.pop(got[0])
                yield got
            elif time.monotonic() - ticked > TICK:
                ticked = time.monotonic()
                yield None
            else:
                time.sleep(POLL)

    def connected(self) -> Mapping[str, bool]:
        return {site: standing.online for site, standing in self.standing.items()}

    def _is_new(self, site: str, sent: Mapping[str, tuple[str, Standing]]) -> bool:
        """Never sent, or sent to a connection that is no more."""
        standing = self.standing.get(site)
        if standing is None or not standing.online:
            return False
        return site not in sent or sent[site][1].since != standing.since

    def _push(self, site: str, sealed: Sealed) -> str:
        message = Message(to_record(sealed), self.standing[site].node, "query", ttl=TIME_TO_LIVE)
        return next(iter(self.grid.push_messages([message])))

    def _pull(self, sent: dict[str, tuple[str, Standing]]) -> tuple[str, Sealed] | None:
        """At most one answer at a time: it may be large."""
        for site, (number, _) in list(sent.items()):
            for message in self.grid.pull_messages([number]):
                if message.has_error():  # the site went away with it, or an answer was cut off
                    del sent[site]
                    continue
                try:
                    return site, from_record(message.content)
                except DeployError:
                    return site, Sealed(b"", b"", b"")  # which carries no signature
        return None


def server_app(coordinate: Callable[[Post], None], presence: Presence) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        coordinate(GridPost(grid, presence))

    return app
