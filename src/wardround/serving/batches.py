"""Requests that wait are predicted together: twenty rows cost little more than one, and threads beside each other only
take turns. A row's figures are the same to the last bit whatever rows it comes with (`bundles.predict.scoring`)."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wardround.core.errors import WardroundError
from wardround.core.extras import needs

with needs("serve", "predictions over HTTP"):
    from starlette.concurrency import run_in_threadpool

Rows = Sequence[Mapping[str, Any]]
Predict = Callable[[list[Mapping[str, Any]]], list[dict[str, Any]]]
Waiting = tuple[Rows, "asyncio.Future[list[dict[str, Any]]]"]


@dataclass(eq=False)
class Batches:
    """One call of `predict` at a time, with at most `most` rows of all requests that came during the one before."""

    predict: Predict
    most: int
    waiting: list[Waiting] = field(default_factory=list)
    worker: "asyncio.Task[None] | None" = None

    async def answer(self, rows: Rows) -> list[dict[str, Any]]:
        answered: asyncio.Future[list[dict[str, Any]]] = asyncio.get_running_loop().create_future()
        self.waiting.append((rows, answered))
        if self.worker is None:
            self.worker = asyncio.create_task(self._work())
        return await answered

    async def _work(self) -> None:
        try:
            while self.waiting:
                await self._together([own for own in self._next() if not own[1].done()])  # done: its client went away
        finally:
            self.worker = None

    def _next(self) -> list[Waiting]:
        """The longest that wait, as long as their columns have values of the same types: a column of numbers is read
        otherwise than one of numbers and texts."""
        taken, total, types = list[Waiting](), 0, dict[str, type]()
        while self.waiting:
            rows = self.waiting[0][0]
            own = {name: type(value) for row in rows for name, value in row.items() if value is not None}
            if taken and (
                total + len(rows) > self.most or any(types.get(name, own[name]) is not own[name] for name in own)
            ):
                break
            types, total = types | own, total + len(rows)
            taken.append(self.waiting.pop(0))
        return taken

    async def _together(self, taken: list[Waiting]) -> None:
        together = [row for rows, _ in taken for row in rows]
        try:
            predicted = await run_in_threadpool(self.predict, together)
        except WardroundError as error:
            if len(taken) > 1:  # of one request, which alone is to hear of it
                for own in taken:
                    await self._together([own])
            elif taken and not taken[0][1].done():
                taken[0][1].set_exception(error)
            return
        except Exception as error:
            for _, answered in taken:
                if not answered.done():
                    answered.set_exception(error)
            return
        begin = 0
        for rows, answered in taken:
            if not answered.done():
                answered.set_result(predicted[begin : begin + len(rows)])
            begin += len(rows)
