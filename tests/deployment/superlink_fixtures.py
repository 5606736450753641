"""A SuperLink of its own, and sites in threads that answer over it: without a study."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.deployment import federation_fixtures
from tests.deployment.federation_processes import free_port
from wardround.deployment import CoordinatorKit, provision
from wardround.protocol.messages import Sealed, Transport
from wardround.protocol.signing import read_key, read_public_key


def made_linked(folder: Path) -> Any:
    from wardround.deployment.flower.superlink import SuperLink

    kit = CoordinatorKit.load(
        provision(federation_fixtures.study(), federation_fixtures.SITES, folder / "kits", port=free_port("127.0.0.1"))
    )
    keys = {site: read_public_key(pem, site) for site, pem in kit.public_keys.items()}
    return SuperLink(kit, "127.0.0.1", keys)


@contextmanager
def joined(linked: Any, folder: Path, site: str, answer: Callable[[Sealed], Sealed]) -> Iterator[None]:
    """A site in a thread, as `wardround join` runs it."""
    from wardround.deployment.flower.site_loop import SiteLoop

    stopped, messages = threading.Event(), list[str]()
    key = read_key(folder / "kits" / "sites" / site / "site.key").private
    address = f"{linked.host}:{linked.kit.port}"
    loop = SiteLoop(address, linked.kit.ca, key, answer, folder / f"{site}-connection", messages.append, stopped.is_set)
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(60)
    assert not thread.is_alive(), messages


def echo(sealed: Sealed) -> Sealed:
    return sealed


def ask(transport: Transport, messages: Mapping[str, Sealed]) -> dict[str, Sealed]:
    until = time.monotonic() + 120
    answers: dict[str, Sealed] = {}
    for got in transport.ask(dict(messages)):
        answers |= dict([got]) if got else {}
        assert time.monotonic() < until, "no answer came"
    return answers
