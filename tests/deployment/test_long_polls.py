"""Calls of sites that wait at the SuperLink: held while there is nothing, and never past a message."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from wardround.deployment.flower import long_polls
from wardround.deployment.flower.long_polls import PULL, SENT, WAITS, LongPolls

Check = Callable[["World"], Awaitable[None]]


class World:
    """Flower's application is a list of the calls that reached it."""

    def __init__(self) -> None:
        self.reached: list[str] = []
        self.polls = LongPolls(self._app)

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        self.reached.append(scope["site"])

    def look(self, site: str, waits: bool = True) -> "asyncio.Task[None]":
        headers = [(b"flwr-public-key", site.encode()), *([(WAITS.encode(), b"1")] if waits else [])]
        scope = {"type": "http", "path": PULL, "headers": headers, "site": site}
        return asyncio.ensure_future(self.polls.for_sites(scope, _nothing, _taken))

    async def sent(self) -> None:
        await self.polls.for_coordinator({"type": "http", "path": SENT, "headers": []}, _nothing, _taken)


async def _nothing() -> Any:
    raise AssertionError("nothing is read")


async def _taken(message: Any) -> None:
    assert message["type"].startswith("http.response")


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def held_until_something_is_sent(world: World) -> None:
    await world.look("a")  # the first look of a site passes: it may have been away
    looks = [world.look("a"), world.look("a")]
    await settled()
    assert world.reached == ["a"]
    await world.sent()
    await asyncio.gather(*looks)
    assert world.reached == ["a"] * 3


async def passes_if_it_does_not_wait(world: World) -> None:
    await world.look("a")
    await world.look("a", waits=False)
    assert world.reached == ["a", "a"]


async def passes_if_something_was_sent_since_its_last_look(world: World) -> None:
    await asyncio.gather(world.look("a"), world.look("b"))
    await world.sent()
    await world.look("a")
    assert world.reached == ["a", "b", "a"]
    again, other = world.look("a"), world.look("b")
    await settled()
    assert not again.done()
    assert other.done()
    await world.sent()
    await again


async def held_no_longer_than_stated(world: World) -> None:
    await world.look("a")
    await asyncio.wait_for(world.look("a"), 5)
    assert world.reached == ["a", "a"]


async def nobody_is_held_when_the_server_ends(world: World) -> None:
    await world.look("a")
    held = world.look("a")
    await settled()
    world.polls.end()
    await held
    await world.look("a")
    assert world.reached == ["a"] * 3


@pytest.mark.parametrize(
    ("check", "longest"),
    [
        (held_until_something_is_sent, 60.0),
        (passes_if_it_does_not_wait, 60.0),
        (passes_if_something_was_sent_since_its_last_look, 60.0),
        (held_no_longer_than_stated, 0.01),
        (nobody_is_held_when_the_server_ends, 60.0),
    ],
)
def test_a_waiting_call(check: Check, longest: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_polls, "LONGEST", longest)
    asyncio.run(asyncio.wait_for(_with_a_world(check), 20))


async def _with_a_world(check: Check) -> None:
    await check(World())
