"""Coordinators that die at every message and are started again, for any federation in one process."""

from collections.abc import Callable
from typing import Any

from tests.deployment.in_process_federation import Federation, body_of, kind_of
from wardround.protocol.messages import Sealed

Place = tuple[str, Any, str]  # a kind of message, its round, a site


class Died(Exception):
    """In place of a power cut."""


def place_of(site: str, sealed: Sealed) -> Place:
    return kind_of(sealed), body_of(sealed).get("round"), site


def until_finished(
    network: Federation, prepare: Callable[[Federation], None], most: int = 200
) -> tuple[int, Federation]:
    """Started again as often as it dies; how often that was, and the one that came to an end."""
    for deaths in range(most):
        prepare(network)
        try:
            network.run()
            return deaths, network
        except Died:
            network = network.restart_coordinator()
    raise AssertionError("it does not come to an end")


def dies_once(seen: set[Place], when: str) -> Callable[[Federation], None]:
    """The coordinator dies at every place that is not in `seen` yet, `before` or `after` the site has answered."""

    def at(site: str, sealed: Sealed) -> None:
        place = place_of(site, sealed)
        if place not in seen:
            seen.add(place)
            raise Died

    def before(site: str, sealed: Sealed) -> bool:
        at(site, sealed)
        return True

    def after(site: str, sealed: Sealed, answer: Sealed) -> Sealed:
        at(site, sealed)
        return answer

    def prepare(network: Federation) -> None:
        if when == "before":
            network.transport.before = before
        else:
            network.transport.after = after

    return prepare
