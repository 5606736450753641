"""The coordinator's Flower app: a transport that carries sealed messages over Flower's Grid, as Flower's records."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from wardround.core.errors import DeployError
from wardround.protocol.messages import Sealed, Transport

SOONEST, LATEST, SLOWER = 0.03, 0.3, 1.25  # seconds between two looks for answers: each costs the SuperLink 10 ms
SMALL = 2**20  # bytes of tensors that travel with the head, more go in chunks; larger answers are fetched one by one
FORM = "wardround.safetensors"
TICK = 0.25  # seconds between two signs of life while nothing arrives
TIME_TO_LIVE = 30 * 24 * 3600.0  # seconds: a site may be away for long


def to_record(sealed: Sealed, arrays: dict[int, ArrayRecord] | None = None) -> RecordDict:
    """`arrays` are those of other messages, by the identity of their tensors: the same are cut and hashed once."""
    message = {"head": sealed.head, "signature": sealed.signature}
    if len(sealed.tensors) <= SMALL:
        return RecordDict({"message": ConfigRecord({**message, "tensors": bytes(sealed.tensors)})})
    arrays = {} if arrays is None else arrays
    if id(sealed.tensors) not in arrays:
        record = ArrayRecord({"tensors": Array("uint8", (len(sealed.tensors),), FORM, b"")})
        record["tensors"].data = sealed.tensors  # type: ignore[assignment]  # a view is enough for those who send it
        arrays[id(sealed.tensors)] = record
    return RecordDict({"message": ConfigRecord({**message}), "tensors": arrays[id(sealed.tensors)]})


def from_record(record: RecordDict) -> Sealed:
    """Refuses anything that is not a message."""
    message = record.config_records.get("message", ConfigRecord())
    head, signature, tensors = (message.get(name) for name in ("head", "signature", "tensors"))
    if tensors is None and "tensors" in record.array_records:
        array = record.array_records["tensors"].get("tensors")
        tensors = None if array is None else array.data
    if not (isinstance(head, bytes) and isinstance(tensors, bytes | memoryview) and isinstance(signature, bytes)):
        raise DeployError("a message", "is not a message", "Install the same version of wardround everywhere.")
    return Sealed(head, tensors, signature)


def received(record: RecordDict) -> Sealed:
    """As `from_record`, of a message that has come; the record is of no use afterwards. Flower's records are circles:
    those of a large model would lie in memory until Python looks for circles, one answer of each site."""
    sealed = from_record(record)
    for arrays in record.array_records.values():
        for array in arrays.values():
            array.data = b""
    return sealed


class LinkLost(Exception):
    """The SuperLink is gone or has forgotten us; what was sent must be sent again."""


@dataclass(frozen=True)
class Standing:
    """A site as the SuperLink sees it. `since` changes when the site reconnects."""

    node: int
    online: bool
    since: str


@dataclass(frozen=True)
class Abandoned:
    """A request whose answer is no longer awaited."""

    site: str
    signature: bytes
    standing: Standing


Look = Callable[[], Mapping[str, Standing]]  # the standing of every site; restarts a lost SuperLink


class GridTransport:
    """Repeats a message when its site or the SuperLink comes back: sites tolerate duplicates."""

    def __init__(self, grid: Grid, look: Look) -> None:
        self.grid, self.look = grid, look
        self.standing: Mapping[str, Standing] = {}
        self.abandoned: dict[str, Abandoned] = {}  # by the number of the request
        self.fetched: dict[str, Sealed] = {}  # answers that have come, by the number of the request

    def ask(self, messages: dict[str, Sealed]) -> Iterator[tuple[str, Sealed] | None]:
        pending = self._taken_up(messages)
        try:
            yield from self._ask(messages, pending)
        finally:
            for site, (number, standing) in pending.items():
                self.abandoned[number] = Abandoned(site, messages[site].signature, standing)

    def _taken_up(self, messages: Mapping[str, Sealed]) -> dict[str, tuple[str, Standing]]:
        """What is on its way already: a site that works through several rounds is asked once."""
        known = {
            number: one
            for number, one in self.abandoned.items()
            if one.site in messages and messages[one.site].signature == one.signature
        }
        for number in known:
            del self.abandoned[number]
        return {one.site: (number, one.standing) for number, one in known.items()}

    def _ask(
        self, waiting: dict[str, Sealed], pending: dict[str, tuple[str, Standing]]
    ) -> Iterator[tuple[str, Sealed] | None]:
        ticked, pause = time.monotonic(), SOONEST
        together = all(len(sealed.tensors) < SMALL for sealed in waiting.values())
        while waiting:
            try:
                self.standing = self.look()
                new = {site: sealed for site, sealed in waiting.items() if self._is_new(site, pending)}
                for site, number in self._push(new).items():
                    pending[site] = (number, self.standing[site])
                answer = self._pull(pending, together)
            except LinkLost:
                pending.clear()
                self.abandoned, answer = {}, None  # it has forgotten them too
            if answer is not None:
                waiting.pop(answer[0])
                pending.pop(answer[0])
                pause = SOONEST
                yield answer
                continue
            time.sleep(pause)
            pause = min(SLOWER * pause, LATEST)
            if pause == LATEST:
                self._fetch_abandoned()
            if time.monotonic() - ticked > TICK:
                ticked = time.monotonic()
                yield None

    def _fetch_abandoned(self) -> None:
        """A late answer is fetched and dropped, or the SuperLink would keep it in memory."""
        if self.abandoned:
            number, one = next(iter(self.abandoned.items()))
            del self.abandoned[number]
            try:
                if not list(self.grid.pull_messages([number])):
                    self.abandoned[number] = one
            except LinkLost:
                self.abandoned = {}

    def connected(self) -> Mapping[str, bool]:
        return {site: standing.online for site, standing in self.standing.items()}

    def _is_new(self, site: str, pending: Mapping[str, tuple[str, Standing]]) -> bool:
        """Never sent, or sent to a connection that no longer exists."""
        standing = self.standing.get(site)
        if standing is None or not standing.online:
            return False
        return site not in pending or pending[site][1].since != standing.since

    def _push(self, new: Mapping[str, Sealed]) -> dict[str, str]:
        """The numbers of these messages. They go together, because each push cuts and hashes what it carries."""
        if not new:
            return {}
        arrays: dict[int, ArrayRecord] = {}
        messages = [
            Message(to_record(sealed, arrays), self.standing[site].node, "query", ttl=TIME_TO_LIVE)
            for site, sealed in new.items()
        ]
        return dict(zip(new, self.grid.push_messages(messages), strict=True))

    def _pull(self, pending: dict[str, tuple[str, Standing]], together: bool) -> tuple[str, Sealed] | None:
        """The next answer. Large ones are fetched one at a time, in turn."""
        site_of = {number: site for site, (number, _) in pending.items()}
        for number in list(self.fetched):
            if number in site_of:
                return site_of[number], self.fetched.pop(number)
        self.fetched.clear()  # answers to requests that are no longer open
        numbers = list(site_of) if together else list(site_of)[:1]
        for site in [site_of[number] for number in numbers]:
            pending[site] = pending.pop(site)  # to the end of the line
        for message in self.grid.pull_messages(numbers) if numbers else ():
            number = message.metadata.reply_to_message_id
            if number not in site_of:
                continue
            if message.has_error():  # the site went away with it, or an answer was cut off
                del pending[site_of[number]]
                continue
            try:
                self.fetched[number] = received(message.content)
            except DeployError:
                self.fetched[number] = Sealed(b"", b"", b"")  # which carries no signature
        first = next(iter(self.fetched), None)
        return None if first is None else (site_of[first], self.fetched.pop(first))


def server_app(coordinate: Callable[[Transport], None], look: Look) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        coordinate(GridTransport(grid, look))

    return app
