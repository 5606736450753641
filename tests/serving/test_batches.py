"""Requests that wait are predicted together, and each hears only of its own rows."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from wardround.core.errors import DataError
from wardround.serving.batches import Batches

Rows = list[Mapping[str, Any]]


class Predicting:
    def __init__(self) -> None:
        self.calls: list[Rows] = []

    def __call__(self, rows: Rows) -> list[dict[str, Any]]:
        self.calls.append(list(rows))
        for number, row in enumerate(rows):
            if row["age"] == "bad":
                raise DataError(f"row {number} (counted from 0)", "is no number", "Send a number.")
        return [{"score": row["age"]} for row in rows]


def answers(predicting: Predicting, requests: list[Rows], most: int = 100) -> list[Any]:
    async def run() -> list[Any]:
        batches = Batches(predicting, most)
        return list(await asyncio.gather(*(batches.answer(rows) for rows in requests), return_exceptions=True))

    return asyncio.run(asyncio.wait_for(run(), 20))


def test_all_that_wait_are_one_call_and_each_gets_its_own_rows() -> None:
    predicting = Predicting()
    got = answers(predicting, [[{"age": 1}, {"age": 2}], [{"age": 3}], [{"age": None}]])
    assert got == [[{"score": 1}, {"score": 2}], [{"score": 3}], [{"score": None}]]
    assert len(predicting.calls) == 1


def test_no_call_has_more_rows_than_a_request_may_have() -> None:
    predicting = Predicting()
    assert len(answers(predicting, [[{"age": 1}] * 2] * 5, most=4)) == 5
    assert [len(call) for call in predicting.calls] == [4, 4, 2]


def test_an_error_is_that_of_the_request_alone_with_its_own_row_number() -> None:
    predicting = Predicting()
    good, bad, other = answers(predicting, [[{"age": "1"}], [{"age": "bad"}], [{"age": "2"}]])
    assert (good, other) == ([{"score": "1"}], [{"score": "2"}])
    assert isinstance(bad, DataError)
    assert bad.where == "row 0 (counted from 0)"


def test_numbers_and_texts_are_not_read_together() -> None:
    predicting = Predicting()
    answers(predicting, [[{"age": 1}], [{"age": "1"}], [{"age": "2"}]])
    assert [len(call) for call in predicting.calls] == [1, 2]


def test_a_defect_reaches_everybody_and_the_next_request_is_answered() -> None:
    class Broken(Predicting):
        def __call__(self, rows: Rows) -> list[dict[str, Any]]:
            if not self.calls:
                self.calls.append(rows)
                raise ZeroDivisionError
            return super().__call__(rows)

    predicting = Broken()

    async def run() -> list[Any]:
        batches = Batches(predicting, 100)
        first = await asyncio.gather(*(batches.answer([{"age": n}]) for n in range(2)), return_exceptions=True)
        return [*first, await batches.answer([{"age": 5}])]

    one, two, after = asyncio.run(asyncio.wait_for(run(), 20))
    assert isinstance(one, ZeroDivisionError)
    assert isinstance(two, ZeroDivisionError)
    assert after == [{"score": 5}]


@pytest.mark.parametrize("gone", [0, 1])
def test_a_client_that_went_away_does_not_hold_up_the_others(gone: int) -> None:
    predicting = Predicting()

    async def run() -> list[Any]:
        batches = Batches(predicting, 100)
        asked = [asyncio.create_task(batches.answer([{"age": n}])) for n in range(2)]
        await asyncio.sleep(0)
        asked[gone].cancel()
        return list(await asyncio.gather(*asked, return_exceptions=True))

    got = asyncio.run(asyncio.wait_for(run(), 20))
    assert got[1 - gone] == [{"score": 1 - gone}]
