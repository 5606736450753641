"""Malformed questions to hospitals, regions and parties, signed by the coordinator that they trust."""

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.deployment.hostile.hostile_runs import Honest, honest_run
from tests.deployment.hostile.malformed_requests import Asked
from tests.deployment.hostile.test_answers import SENDERS, WORLDS, place_in
from tests.representatives import represented

SOME = {"asked": 3, "models": 1, "envelope": 1, "generated": 2}
ALL = {"asked": 99, "models": 99, "envelope": 99, "generated": 60}
ASKED = {("flat", "west"), ("secure", "north"), ("regions", "coast"), ("parties", "clinic"), ("parties", "lab")}
CASES = [(world, name, kind) for (world, name), kinds in SENDERS.items() if (world, name) in ASKED for kind in kinds]
SHORT = [
    (world, name, kind)
    for world, name, kind in CASES
    if world == "flat"
    or (world == "secure" and kind in ("keys", "shares", "train", "confirm", "unmask"))
    or kind in ("train", "embed", "learn", "assess", "assign", "match")
]
# in every run two questions of each kind of federation, or the one that makes sites train
OFTEN = [
    *[("flat", "west", kind) for kind in ("train", "evaluate")],
    *[("secure", "north", kind) for kind in ("keys", "unmask")],
    ("regions", "coast", "train"),
    *[("parties", "clinic", "learn"), ("parties", "lab", "embed")],
]


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with TemporaryDirectory() as path:
        yield Path(path)


@lru_cache(maxsize=4)
def honest(folder: Path, world: str) -> Honest:
    senders = [name for asked_world, name in ASKED if asked_world == world]
    return honest_run(WORLDS[world](folder / world / "data", False), folder / world, senders)


def test_how_many_questions_are_asked() -> None:
    """Of each sort there are more than are asked for here."""
    assert len(SHORT) * sum(SOME.values()) >= 120


@pytest.mark.parametrize(("world", "name", "kind"), represented(SHORT, by=OFTEN))
def test_a_malformed_question_is_answered_and_changes_nothing(
    world: str, name: str, kind: str, folder: Path, tmp_path: Path
) -> None:
    run = honest(folder, world)
    asked = Asked(run, name, place_in(run, name, kind), tmp_path)
    tried = asked.try_all(SOME)
    assert tried.answers == sum(SOME.values())
    assert not tried.failures, tried.told()


@pytest.mark.slow
@pytest.mark.parametrize(("world", "name", "kind"), CASES)
def test_all_malformed_questions(world: str, name: str, kind: str, folder: Path, tmp_path: Path) -> None:
    run = honest(folder, world)
    asked = Asked(run, name, place_in(run, name, kind), tmp_path)
    asked.try_all(ALL)
    tried = asked.finish()
    assert not tried.failures, tried.told()
