"""A site's connection to the coordinator: connect, answer, and reconnect after any failure. Runs for days."""

import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from wardround.core.errors import DeployError
from wardround.deployment.flower.adapter import LOST, SiteConnection
from wardround.deployment.flower.server_app import LinkLost, received, to_record
from wardround.protocol.messages import Sealed

FIRST_WAIT, LONGEST_WAIT = 0.5, 60.0  # seconds until the next attempt; doubled each time
SOONEST, LATEST, SLOWER = 0.05, 0.5, 1.2  # seconds between two looks for messages that the SuperLink does not hold
CERTIFICATE = {  # by OpenSSL's code
    9: "the coordinator's certificate is not valid yet, or this clock is behind",
    10: "the coordinator's certificate has expired, or this clock is ahead",
}
NO_MESSAGE = Sealed(b"", b"", b"")  # carries no signature, so that it is refused and logged like a forged one
MANY = 8  # chunks from which on progress is worth a line


@dataclass
class SiteLoop:
    address: str
    ca: Path
    key: ec.EllipticCurvePrivateKey
    answer: Callable[[Sealed], Sealed]
    number_file: Path  # the number of our connection, so that after a crash it can be given back at once
    notice: Callable[[str], None]
    stop: Callable[[], bool] = lambda: False

    def run(self) -> None:
        """Until `stop` returns true, or a KeyboardInterrupt."""
        wait = FIRST_WAIT
        while not self.stop():
            try:
                connection = SiteConnection(self.address, self.ca.read_bytes(), self.key, self._number())
            except LOST as error:
                self.notice(f"{why(error)}; next attempt in {wait:.0f} s" if wait >= 1 else why(error))
                self._sleep(wait)
                wait = min(2 * wait, LONGEST_WAIT)
                continue
            self.number_file.write_text(str(connection.number), encoding="utf-8")
            self.notice("connected")
            try:
                wait = FIRST_WAIT
                self._serve(connection)
            except LinkLost as error:
                self.notice(f"connection lost ({why(error.__cause__)})")
                self._sleep(wait)
            finally:
                connection.close()

    def _serve(self, connection: SiteConnection) -> None:
        app = client_app(self.answer)
        context = Context(0, connection.number, {}, RecordDict(), {})
        pause = SOONEST
        while not self.stop():
            began = time.monotonic()
            message = connection.receive()
            if message is None:
                was_held = time.monotonic() - began > LATEST
                time.sleep(pause)
                pause = SOONEST if was_held else min(SLOWER * pause, LATEST)
                continue
            pause = SOONEST
            try:
                reply: Message = app(message, context)
            except ValueError:  # of a type that no coordinator of ours sends
                self.notice("refused: a message of an unknown type")
                continue
            connection.send(reply, self._progress)

    def _progress(self, gone: int, total: int) -> None:
        if total >= MANY and (gone == total or gone % max(1, total // 10) == 0):
            self.notice(f"sent {gone} of {total} parts")

    def _number(self) -> int | None:
        try:
            return int(self.number_file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None

    def _sleep(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.stop():
            time.sleep(min(0.1, max(0.0, until - time.monotonic())))


def client_app(answer: Callable[[Sealed], Sealed]) -> ClientApp:
    """The site's Flower app: every Flower message carries one sealed message."""
    app = ClientApp()

    def reply(message: Message, context: Context) -> Message:
        try:
            sealed = received(message.content)
        except (DeployError, ValueError):  # ValueError: it holds an error and no content
            sealed = NO_MESSAGE
        return Message(to_record(answer(sealed)), reply_to=message)

    for kind in (app.train, app.evaluate, app.query):
        kind()(reply)
    return app


def why(error: BaseException | None) -> str:
    """The reason for a failed connection, in plain language."""
    if isinstance(error, httpx.HTTPStatusError):
        if error.response.status_code == httpx.codes.UNAUTHORIZED:
            return "the coordinator does not accept this site's key, or this clock is wrong (5 s ahead, 5 min behind)"
        if error.response.status_code in (httpx.codes.PRECONDITION_FAILED, httpx.codes.FORBIDDEN):
            return "the coordinator does not know this site's key yet, or it was revoked"
        return f"the coordinator answered {error.response.status_code}"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return CERTIFICATE.get(
                cause.verify_code,
                "the coordinator's certificate is not of this study's authority, or not for this address",
            )
        cause = cause.__cause__ or cause.__context__
    return "the coordinator cannot be reached"
