"""`python -m benchmarks.records`: what records of rounds cost, next to plain lines of JSON that nobody can watch.

Plain: a dict per round into a buffered file, joined by copying and read as one table at the end. Both do the work of
heart-fedprox (stacks of 50 seeds), in turn. Seconds of processor time, all threads together.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from shutil import copyfile
from statistics import median

import orjson
import pyarrow.json

from wardround.runs.record_form import frame_of
from wardround.runs.records import RecordFollower, RecordWriter, compact_records, read_records, read_table
from wardround.training.round_record import RoundRecord

TRIALS, SEEDS, TURNS = 240, 50, 5
NAMES = tuple(f"window-{number}" for number in range(4))


def rounds(count: int) -> Iterator[list[tuple[RoundRecord, dict[str, float]]]]:
    """As a stack of trials yields them: all of a round at once."""
    for number in range(1, count + 1):
        stack = []
        for trial in range(TRIALS):
            figures = {"test_loss": 1 / (number + trial / 7), "test_accuracy": 1 - 1 / (number + trial / 3)}
            loss, norm, divergence, change = (1 / (number + trial / part) for part in (11, 13, 17, 19))
            arm, seed, settings = f"fedprox[mu={trial // SEEDS}]", trial % SEEDS, {"mu": 0.1}
            record = RoundRecord(arm, seed, number, loss, norm, divergence, change, NAMES, (), 4096, 4096, settings)
            stack.append((record, figures))
        yield stack


def watched(folder: Path, count: int) -> Iterator[tuple[str, float]]:
    began = time.process_time()
    with RecordWriter(folder / "records.jsonl") as writer:
        for stack in rounds(count):
            for record, figures in stack:
                writer.add(record.finished("stacked", 0.001, figures))
        writer.flush()
    yield "write", time.process_time() - began
    (folder / "study.toml").touch()
    yield from _timed("compact", lambda: compact_records(folder))
    with RecordFollower(folder) as follower:
        yield from _timed("follow from the first line", follower.new)
        yield from _timed("follow, nothing new", follower.new)
    (folder / "records.jsonl").unlink()
    yield from _timed("read a frame", lambda: frame_of(read_table(folder)))
    yield from _timed("read typed records", lambda: list(read_records(folder)))


def plain(folder: Path, count: int) -> Iterator[tuple[str, float]]:
    began = time.process_time()
    with (folder / "part.jsonl").open("wb") as file:
        for stack in rounds(count):
            for record, figures in stack:
                fields = {**vars(record), **figures, "engine": "stacked", "seconds": 0.001}
                del fields["figures"]
                file.write(orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE))
    yield "write", time.process_time() - began
    yield from _timed("compact", lambda: copyfile(folder / "part.jsonl", folder / "records.jsonl"))
    yield from _timed("read a frame", lambda: pyarrow.json.read_json(folder / "records.jsonl").to_pandas())


def _timed(name: str, work: Callable[[], object]) -> Iterator[tuple[str, float]]:
    began = time.process_time()
    work()
    yield name, time.process_time() - began


def main(count: int = 300) -> None:
    turns: dict[str, list[dict[str, float]]] = {"watched": [], "plain": []}
    sizes = {}
    for _ in range(TURNS):
        for name, way in (("watched", watched), ("plain", plain)):
            with tempfile.TemporaryDirectory() as folder:
                turns[name].append(dict(way(Path(folder), count)))
                sizes[name] = max(path.stat().st_size for path in Path(folder).glob("records.*"))
    print(f"{TRIALS * count} records, {TURNS} turns, seconds of processor time")
    for step in turns["watched"][0]:
        ours = median(turn[step] for turn in turns["watched"])
        theirs = [turn[step] for turn in turns["plain"] if step in turn]
        beside = f"   plain {median(theirs):6.3f}" if theirs else ""
        print(f"  {step:28} {ours:6.3f}{beside}")
    print(f"  {'megabytes at the end':28} {sizes['watched'] / 1e6:6.1f}   plain {sizes['plain'] / 1e6:6.1f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
