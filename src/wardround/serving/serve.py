"""A server for one bundle, on this machine alone unless told otherwise."""

import asyncio
import errno
import ipaddress
import logging
import socket
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pandas as pd

from wardround.bundles import Bundle, predict_images, predict_rows, predict_signals
from wardround.bundles.predict.predict import required_columns
from wardround.core.errors import MachineError, StudyError
from wardround.core.extras import needs
from wardround.core.threads import torch_threads
from wardround.serving import guard
from wardround.serving.app import make_app
from wardround.serving.guard import LOG, OWN_NAMES

with needs("serve", "predictions over HTTP"):
    import uvicorn
    from starlette.types import ASGIApp
    from uvicorn.protocols.http.auto import AutoHTTPProtocol

BUSY = 32  # requests at a time; more are answered with 503


def serve(bundle: Bundle, host: str, port: int, anyone: bool, ready: Callable[[str], None]) -> None:
    """Answer until Ctrl-C. `ready` is called with the address as soon as requests can come."""
    with _listening(host, port, anyone) as listening:
        app = make_app(bundle, names_of(host, listening, anyone))
        _log_to_stderr()
        warm_up(bundle)
        ready(_address(listening))
        # one thread: many would wait for each other over a row; and Ctrl-C is how it is meant to end
        with torch_threads(1), suppress(KeyboardInterrupt):
            uvicorn.Server(settings_of(app)).run(sockets=[listening])


def settings_of(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=TimedHead,
        access_log=False,  # the guard writes one that shows no query
        log_level="warning",
        limit_concurrency=BUSY,
        server_header=False,
        lifespan="off",
        ws="none",
    )


class TimedHead(AutoHTTPProtocol):  # type: ignore[misc, valid-type]
    """Closes a connection on which no request comes: it takes the place of another."""

    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._is_idle():
            self._stop_waiting()
        elif self._patience is None:  # the first bytes of the next request on this connection
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def _is_idle(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _wait(self) -> None:
        self._patience = self.loop.call_later(guard.HEAD_SECONDS, self._give_up)

    def _stop_waiting(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
        self._patience = None

    def _give_up(self) -> None:
        if self._is_idle() and not self.transport.is_closing():
            self.transport.close()


def warm_up(bundle: Bundle) -> None:
    """The first prediction takes longer; no client waits for it."""
    gaps = dict.fromkeys(required_columns(bundle).needed)
    if (signals := bundle.inputs.signals) is not None:
        predict_signals(bundle, np.zeros((1, *signals.shape), dtype=np.float32), signals.rate)
    elif bundle.inputs.images is None:
        predict_rows(bundle, [gaps])
    else:
        black = np.zeros((1, *bundle.inputs.images.shape[1:]), dtype=np.uint8)
        predict_images(bundle, black, pd.DataFrame(gaps, index=[0]))


def is_own(host: str) -> bool:
    """Whether only programs on this machine can reach it."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def names_of(host: str, listening: socket.socket, anyone: bool) -> tuple[str, ...] | None:
    """The host names that are answered; None: any. Where other machines cannot connect, a page in a browser here still
    can, so that host names are checked even with --anyone-may-connect."""
    if anyone and not is_own(host):
        return None
    return tuple(dict.fromkeys((_bound_to(listening), *OWN_NAMES)))


def _listening(host: str, port: int, anyone: bool) -> socket.socket:
    if not is_own(host) and not anyone:
        problem = f"{host} can be reached from other machines, and anyone there gets predictions without a password"
        remedy = "Leave --host out, or add --anyone-may-connect if the network is guarded in another way."
        raise StudyError("--host", problem, remedy)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    server = socket.socket(family, socket.SOCK_STREAM)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        server.bind((host, port))
        server.listen()  # now, so that a second server is refused before it is announced as ready
    except OSError as error:
        server.close()
        problem = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be opened ({error.strerror})"
        raise MachineError(f"{host}, port {port}", problem, "Choose another with --port.") from None
    return server


def _address(listening: socket.socket) -> str:
    return f"http://{_bound_to(listening)}:{listening.getsockname()[1]}"


def _bound_to(listening: socket.socket) -> str:
    host = str(listening.getsockname()[0])
    return f"[{host}]" if ":" in host else host


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    LOG.handlers[:] = [handler]
    LOG.setLevel(logging.INFO)
    LOG.propagate = False
