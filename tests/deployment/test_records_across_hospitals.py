"""Records of a run across hospitals: there while it runs, and each once however often the coordinator dies."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.deployment import test_crashes_in_process, test_regions_recovery, test_vertical_recovery
from tests.deployment.coordinator_restarts import Died, Place, place_of
from tests.deployment.in_process_federation import kind_of
from wardround.protocol.messages import Sealed
from wardround.runs.records import RecordFollower, read_records
from wardround.training.round_record import RoundRecord

# how a federation is begun or gone on with in a folder, and its rounds, arms and seeds
KINDS: dict[str, tuple[Callable[[Path], Any], int, int]] = {
    "flat": (test_crashes_in_process.begin, 3, 2),
    "regional": (test_regions_recovery.begin, 4, 2),
    "vertical": (lambda folder: test_vertical_recovery.made_in(folder)[0], 2, 1),
}


def untimed(found: list[RoundRecord]) -> list[str]:
    return [repr(replace(record, seconds=0.0)) for record in found]


@pytest.mark.parametrize("kind", KINDS)
def test_records_are_there_while_it_runs_and_each_once_although_the_coordinator_dies(kind: str, tmp_path: Path) -> None:
    begin, rounds, trials = KINDS[kind]
    network = begin(tmp_path / "quiet")
    last_kind = "assess" if kind == "vertical" else "evaluate"
    known_at_the_end: list[int] = []
    with RecordFollower(tmp_path / "quiet" / "run") as follower:
        seen: list[RoundRecord] = []

        def watch(site: str, sealed: Sealed) -> bool:
            seen.extend(follower.new())
            if kind_of(sealed) == last_kind:
                known_at_the_end.append(len(seen))
            return True

        network.transport.before = watch
        quiet = network.run()
        seen += follower.new()
    # all but those of the last rounds, whose models are scored at the end
    per_wave = (rounds - (2 if kind == "regional" else 1)) * trials
    assert known_at_the_end[0] == per_wave
    found = list(read_records(quiet.path))
    assert untimed(seen) == untimed(found)
    assert len(found) == rounds * trials == len({(record.arm, record.seed, record.round) for record in found})
    assert all(record.engine is None and record.sites and set(record.epochs) == set(record.sites) for record in found)
    assert all(record.figures for record in found if record.round == rounds)
    assert (quiet.path / "records.parquet").is_file()
    assert not (quiet.path / "records.jsonl").exists()
    assert untimed(dying(begin, tmp_path / "dying")) == untimed(found)


def dying(begin: Callable[[Path], Any], folder: Path) -> list[RoundRecord]:
    """The records of a run whose coordinator dies at every message, and leaves half a line each time."""
    places: set[Place] = set()

    def die(site: str, sealed: Sealed, answer: Sealed) -> Sealed:
        if place_of(site, sealed) not in places and kind_of(sealed) != "goodbye":  # all records are there by then
            places.add(place_of(site, sealed))
            raise Died
        return answer

    with RecordFollower(folder / "run") as follower:
        seen: list[RoundRecord] = []
        for _ in range(200):
            network = begin(folder)
            network.transport.after = die
            try:
                network.run()
            except Died:
                seen += follower.new()
                path = folder / "run" / "records.jsonl"
                if path.is_file():
                    with path.open("ab") as file:
                        file.write(b'{"arm": "half a li')
                continue
            seen += follower.new()
            found = list(read_records(folder / "run"))
            assert sorted(untimed(seen)) == sorted(untimed(found))
            return found
    raise AssertionError("it does not come to an end")
