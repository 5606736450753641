"""Mutations of files, drawn from a seed: of bytes, and of plain data (what JSON and TOML hold)."""

import resource
import traceback
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np

from tests.time_limit import TooLong, time_limit
from wardround.core.errors import WardroundError

SECONDS = 20  # that any single call may take, on a busy machine
MEGABYTES = 700  # by which a kind of mutation may let memory grow, over all its calls

PIECES: tuple[bytes, ...] = (
    b"",
    b"\0",
    b"\xff\xfe",
    b"\xed\xa0\x80",
    b"\n",
    b"\r",
    b'"',
    b"'",
    b",",
    b";;;;",
    b"=",
    b"[",
    b"]]",
    b"{}",
    b"[" * 3000,
    b"a." * 3000,
    b"9" * 5000,
    b"-1",
    b"1e999",
    b"nan",
    b"inf",
    b"0x10",
    b"1_000",
    b"../../../etc/passwd",
    b"\x1b[31m",
    b"A" * 20_000,
    b"\xe2\x80\xae",
)
VALUES: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    3,
    2**31,
    2**62,
    10**40,
    0.5,
    -0.0,
    1e308,
    -1e308,
    float("nan"),
    float("inf"),
    "",
    " ",
    "x",
    "fedavg",
    "../../../etc/passwd",
    "/dev/zero",
    "\0",
    "\ud800",
    "\x1b[31m",
    "A" * 20_000,
    [],
    {},
    [None],
    [[]],
    [1, "a", None],
    {"a": {"b": {"c": 1}}},
    [[[[[[[[]]]]]]]],
    list(range(300)),
)


def mutated_bytes(content: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(content)
    for _ in range(int(rng.integers(1, 4))):
        place = int(rng.integers(0, len(changed) + 1))
        length = int(rng.integers(1, 40))
        match int(rng.integers(0, 7)):
            case 0:
                del changed[place:]
            case 1:
                del changed[place : place + length]
            case 2 if place < len(changed):
                changed[place] ^= 1 << int(rng.integers(0, 8))
            case 3 if place < len(changed):
                changed[place] = int(rng.integers(0, 256))
            case 4:
                changed[place:place] = PIECES[int(rng.integers(0, len(PIECES)))]
            case 5:
                changed[place:place] = changed[place : place + length] * int(rng.integers(1, 4))
            case _:
                changed[place : place + length] = rng.bytes(length)
    return bytes(changed)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every key and index in plain data."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield (*path, key)
        yield from places(item, (*path, key))


def mutated_data(data: Any, rng: np.random.Generator) -> Any:
    """A copy in which a value was replaced, removed, renamed, repeated or put elsewhere."""
    changed = deepcopy(data)
    for _ in range(int(rng.integers(1, 3))):
        all_places = list(places(changed))
        if not all_places:
            return VALUES[int(rng.integers(0, len(VALUES)))]
        *above, key = all_places[int(rng.integers(0, len(all_places)))]
        parent = changed
        for step in above:
            parent = parent[step]
        match int(rng.integers(0, 8)):
            case 0:
                del parent[key]
            case 1 if isinstance(parent, dict):
                parent[f"{key}x"] = parent.pop(key)
            case 2 if isinstance(parent, list):
                parent.insert(key, deepcopy(parent[key]))
            case 3:
                other = all_places[int(rng.integers(0, len(all_places)))]
                moved = changed
                for step in other:
                    moved = moved[step] if isinstance(moved, dict | list) else moved
                parent[key] = deepcopy(moved)
            case 4 if type(parent[key]) in (int, float):
                parent[key] = parent[key] * float(rng.choice([-1, 0, 2, 1e9, 1.5]))
            case 5 if isinstance(parent[key], str):
                parent[key] = mutated_bytes(parent[key].encode("utf-8", "replace"), rng).decode("utf-8", "replace")
            case _:
                parent[key] = deepcopy(VALUES[int(rng.integers(0, len(VALUES)))])
    return changed


class Tried:
    """Calls on mutated files, and what was wrong with any of them."""

    def __init__(self) -> None:
        self.worked, self.refused, self.wrong, self.read = 0, 0, list[str](), list[str]()
        self.before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def call(self, name: str, function: Callable[[], object], untouched: Path | None = None) -> bool:
        """Works, or is refused in words. Nothing may appear in or vanish from the folder `untouched` if refused."""
        before = listing(untouched)
        try:
            with time_limit(SECONDS):
                function()
            self.worked += 1
            self.read.append(name)
            return True
        except WardroundError as error:
            self.refused += 1
            if not error.problem or not error.remedy or len(str(error)) > 20_000 or not _is_clean(str(error)):
                self.wrong.append(f"{name}: an error that is not fit to be shown: {str(error)[:300]!r}")
            if listing(untouched) != before:
                self.wrong.append(f"{name}: left behind: {sorted(listing(untouched) ^ before)[:5]}")
        except TooLong:
            self.wrong.append(f"{name}: took more than {SECONDS} s: {traceback.format_exc()[-600:]}")
        except BaseException as error:
            self.wrong.append(f"{name}: {type(error).__name__}: {traceback.format_exc()[-900:]}")
        return False

    def check(self) -> None:
        grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - self.before) >> 10
        assert not self.wrong, f"{len(self.wrong)} of {self.worked + self.refused}:\n" + "\n".join(self.wrong[:12])
        assert grown < MEGABYTES, f"memory grew by {grown} MB"
        assert self.refused, "no mutation was refused: they do not reach what they should"


def _is_clean(text: str) -> bool:
    return all(letter == "\n" or letter.isprintable() or "\udc80" <= letter <= "\udcff" for letter in text)


def listing(folder: Path | None) -> set[str]:
    return set() if folder is None else {str(path) for path in folder.rglob("*")}
