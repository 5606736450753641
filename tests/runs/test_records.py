"""Records of rounds: every field comes back, lines stay whole, a run can be watched, and a damaged file is named."""

import errno
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from itertools import count, islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import wardround
from wardround.core.errors import RunError
from wardround.runs import checkpoint, records
from wardround.runs.execute import execute
from wardround.runs.folder import RunFolder
from wardround.runs.record_form import TYPES, frame_of, records_of, table_of, to_line
from wardround.runs.records import RecordFollower, RecordWriter, compact_records, cut_records, read_records
from wardround.training.round_record import RoundRecord

FULL = RoundRecord(
    arm="fedprox[mu=0.1]@alike?without=b",
    seed=3,
    round=7,
    loss=0.25,
    update_norm=1 / 3,
    divergence=1e-300,
    change=2.0,
    sites=("a", "b"),
    dropped=("c",),
    bytes_down=2**53 + 1,
    bytes_up=12,
    settings={"mu": 0.1, "server_lr": 1.0},
    charges={"a": (0.1, 2.5, 30), "b": (1.0, 0.0, 1)},
    site_charge=(0.5, 1.5, 1),
    stopped=("d",),
    failed="2 of 3 sites",
    region_messages=(1, 2),
    region_bytes=(3, 4),
    exchanges=5,
    epochs={"a": 1, "b": 2},
    not_finite=("e",),
    engine="serial",
    seconds=0.002,
    figures={"test_loss": 0.5, "validation_auc": 0.75},
)
STUDY: dict[str, Any] = {
    "name": "watched",
    "data": {"source": "heart", "hospitals": ["cleveland", "hungarian"]},
    "model": {"kind": "logistic"},
    "training": {"rounds": 6, "local_epochs": 1, "lr": 0.1},
    "evaluation": {"seeds": {"first": 1, "count": 2}, "reference": "scaffold"},
    "arms": [{"algorithm": "scaffold"}, {"algorithm": "fedadam"}, {"algorithm": "clustered"}],
}


def exact(found: Iterator[RoundRecord] | list[RoundRecord]) -> list[str]:
    """As text, in which NaN equals NaN and 1 is not 1.0."""
    return [repr(record) for record in found]


def rounds_of(arm: str, seed: int, rounds: int) -> list[RoundRecord]:
    return [replace(FULL, arm=arm, seed=seed, round=number) for number in range(1, rounds + 1)]


def followed(folder: Path) -> list[RoundRecord]:
    with RecordFollower(folder) as follower:
        return follower.new()


def write(folder: Path, lines: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "records.jsonl").write_bytes(lines)
    return folder


# -- what is written is what is read


def test_every_field_comes_back_from_lines_and_from_parquet(tmp_path: Path) -> None:
    assert [*TYPES, "figures"] == [field.name for field in fields(RoundRecord)]
    empty = RoundRecord("fedavg", 1, 1)
    odd = []
    for number, value in enumerate((math.nan, math.inf, -math.inf), start=8):
        other = replace(FULL, round=number, loss=value, update_norm=value, divergence=value, change=value)
        odd.append(replace(other, seconds=value, figures={"test_loss": value}, settings={"mu": value}))
    written = [empty, FULL, *odd]
    folder = write(tmp_path / "run", b"".join(map(to_line, written)))
    assert exact(read_records(folder)) == exact(written)
    compact_records(folder)
    (folder / "records.jsonl").unlink()
    assert exact(read_records(folder)) == exact(written)


def test_the_frame_has_numbers_or_nan_and_a_column_for_each_figure() -> None:
    infinite = replace(FULL, loss=math.inf, figures={"test_loss": math.inf})
    frame = frame_of(table_of([FULL, infinite, RoundRecord("fedavg", 1, 1)]))
    assert frame["loss"].tolist()[0] == 0.25
    assert frame["loss"].isna().tolist() == frame["test_loss"].isna().tolist() == [False, True, True]
    assert frame["loss"].mean() == 0.25
    assert frame["sites"].map(list).tolist() == [["a", "b"], ["a", "b"], []]
    assert list(frame["charges"][0]["a"]) == [0.1, 2.5, 30.0]
    assert frame["epochs"].tolist() == [{"a": 1, "b": 2}, {"a": 1, "b": 2}, {}]


def test_an_arm_of_a_variant_names_it() -> None:
    assert FULL.variant == "alike"
    assert RoundRecord("fedprox[mu=0.1]", 1, 1).variant == ""


def test_any_number_of_processes_reads_the_same_records(tmp_path: Path) -> None:
    """Also where only the later part has a figure, and where a damaged line is the other process's."""
    scored = replace(FULL, arm="b", figures={"test_loss": 0.5})
    written = [*rounds_of("a", 1, 5), scored]
    tables = []
    for workers in (1, 2, 9):
        folder = write(tmp_path / str(workers), b"".join(map(to_line, written)))
        tables.append(compact_records(folder, workers=workers))
        assert exact(records_of(tables[-1])) == exact(written)
    assert all(table.equals(tables[0]) for table in tables)
    damaged = write(tmp_path / "damaged", b"".join(map(to_line, written)) + b'{"arm": 1}\n')
    with pytest.raises(RunError, match="is damaged"):
        compact_records(damaged, workers=2)


def test_units_follow_one_another_in_parquet_whichever_was_faster(tmp_path: Path) -> None:
    first, second = rounds_of("a", 1, 3), rounds_of("b", 1, 3)
    mixed = [second[0], first[0], first[1], second[1], second[2], first[2]]
    folder = write(tmp_path / "run", b"".join(map(to_line, mixed)))
    compact_records(folder, [[("a", 1)], [("b", 1)]])
    (folder / "records.jsonl").unlink()
    assert exact(read_records(folder)) == exact([*first, *second])
    assert pq.read_table(folder / "records.parquet")["variant"].to_pylist() == [""] * 6


# -- whole lines


def test_a_half_line_is_no_record_and_is_gone_when_the_next_is_written(tmp_path: Path) -> None:
    before, after = rounds_of("a", 1, 2)
    for half in (b"", b'{"arm": "a", "se', to_line(after)[:-1], b"x" * 200_000):
        folder = write(tmp_path / "run", to_line(before) + half)
        assert exact(read_records(folder)) == exact([before])
        with RecordWriter(folder / "records.jsonl", 1) as writer:
            writer.add(after)
            assert writer.flush() == 2
        assert (folder / "records.jsonl").read_bytes() == to_line(before) + to_line(after)


def _append_many(path: Path, arm: str) -> None:
    records.PAUSE = 0.001
    with RecordWriter(path) as writer:
        for number, record in enumerate(rounds_of(arm, 1, 400)):
            writer.add(record)
            if number % 7 == 0:
                writer.flush()


def test_processes_that_append_at_once_leave_whole_lines_in_their_order(tmp_path: Path) -> None:
    context = get_context("fork")
    path = write(tmp_path / "run", b'{"half') / "records.jsonl"
    workers = [context.Process(target=_append_many, args=(path, arm)) for arm in "abcd"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    found = list(read_records(path.parent))
    for arm in "abcd":
        assert exact([record for record in found if record.arm == arm]) == exact(rounds_of(arm, 1, 400))
    assert len(found) == 1600


def _write_until_it_fails(path: Path, first: RoundRecord, fill: Callable[[], None], second: RoundRecord) -> None:
    with RecordWriter(path) as writer:
        writer.add(first)
        writer.flush()
        fill()
        writer.add(second)
        for _ in range(500):  # the thread meets the error; this is where it is heard of
            time.sleep(0.01)
            writer.flush()


def test_a_full_disk_leaves_whole_lines_and_is_reported_where_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, real = tmp_path / "records.jsonl", os.write
    first, second = rounds_of("a", 1, 2)

    def half(file: int, content: bytes) -> int:
        if len(content) < 100:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(file, content[: len(content) - 50])

    monkeypatch.setattr(records, "PAUSE", 0.01)
    with pytest.raises(OSError, match="No space"):
        _write_until_it_fails(path, first, lambda: monkeypatch.setattr(os, "write", half), second)
    assert path.read_bytes() == to_line(first)


def test_what_a_unit_wrote_after_its_checkpoint_is_cut_off(tmp_path: Path) -> None:
    first, second, other = rounds_of("a", 1, 3), rounds_of("b", 1, 3), rounds_of("c", 1, 2)
    mixed = [record for group in zip(first, second, strict=True) for record in group]
    path = write(tmp_path / "run", b"".join(map(to_line, [*mixed, *other])) + b'{"ha') / "records.jsonl"
    cut_records(path, [([("a", 1)], 2), ([("b", 1)], 0)])
    assert exact(read_records(path.parent)) == exact([*first[:2], *other])
    whole = path.stat().st_ino
    cut_records(path, [([("a", 1)], 2), ([("b", 1)], 0)])
    assert path.stat().st_ino == whole  # nothing to cut, nothing written
    with pytest.raises(RunError, match="is shorter than it was when the run stopped"):
        cut_records(path, [([("a", 1)], 3)])
    with pytest.raises(RunError, match="is shorter"):
        cut_records(tmp_path / "records.jsonl", [([("a", 1)], 1)])


# -- damaged and older files


@pytest.mark.parametrize(
    "line",
    [
        b"nonsense\n",
        b"[]\n",
        b"3\n",
        b"\n",
        b"\xff\xfe\n",
        b'{"arm":"a","seed":1}\n',
        b'{"arm":null,"seed":1,"round":1}\n',
        b'{"arm":"a","seed":1,"round":"one"}\n',
        b'{"arm":"a","seed":1.5,"round":1}\n',
        b'{"arm":"a","seed":1,"round":1,"sites":"all"}\n',
        b'{"arm":"a","seed":1,"round":1,"charges":[1]}\n',
        b'{"arm":"a","seed":1,"round":1,"loss":"much"}\n',
        b'{"arm":"a","seed":1,"round":1,"bytes_up":null}\n',
        b'{"arm":"a","seed":1,"round":1,"test_loss":[1]}\n',
        b"[" * 100_000 + b"\n",
    ],
)
def test_a_damaged_line_is_one_clear_error(line: bytes, tmp_path: Path) -> None:
    folder = write(tmp_path / "run", to_line(FULL) + line + to_line(FULL))
    (folder / "study.toml").touch()
    for read in (read_records, lambda path: RunFolder(path).records(), followed):
        with pytest.raises(RunError, match=r"records\.jsonl: is damaged: it does not hold records"):
            list(read(folder))


def test_a_damaged_table_is_one_clear_error(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", to_line(FULL))
    compact_records(folder)
    (folder / "records.jsonl").unlink()
    path = folder / "records.parquet"
    whole, other = path.read_bytes(), pa.table({"arm": ["a"], "seed": [1]})
    for content in (b"", b"PAR1", whole[:-100], whole[: len(whole) // 2] + whole[len(whole) // 2 + 1 :], whole[4:]):
        path.write_bytes(content)
        for read in (read_records, lambda path: RunFolder(path).records(), followed):
            with pytest.raises(RunError, match="is damaged: it does not hold records"):
                list(read(folder))
    pq.write_table(other, path)
    with pytest.raises(RunError, match="is damaged"):
        read_records(folder)


def test_a_folder_without_records_is_no_run_or_has_only_just_begun(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"has no records\.parquet"):
        read_records(tmp_path)
    (tmp_path / "study.toml").touch()
    assert list(read_records(tmp_path)) == []


def test_a_complete_run_of_an_earlier_version_is_read_from_its_lines(tmp_path: Path) -> None:
    line = {"arm": "fedavg", "seed": 1, "round": 1, "loss": None, "sites": ["a"], "settings": {}, "test_loss": None}
    folder = write(tmp_path / "run", json.dumps(line).encode() + b"\n")
    (folder / "results.json").write_text("{}")
    assert exact(read_records(folder)) == exact([RoundRecord("fedavg", 1, 1, sites=("a",))])


def test_lines_that_a_killed_process_left_beside_the_table_do_not_count(tmp_path: Path) -> None:
    folder = write(tmp_path / "run", to_line(FULL))
    compact_records(folder)
    (folder / "results.json").write_text("{}")
    (folder / "records.jsonl").write_bytes(b"damaged\n")
    assert exact(read_records(folder)) == exact([FULL])


# -- runs


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> wardround.StudyRun:
    return wardround.run_study(STUDY, tmp_path_factory.mktemp("whole"), engine="stacked", workers=1)


def untimed(found: Iterator[RoundRecord] | list[RoundRecord]) -> list[str]:
    return exact([replace(record, seconds=0.0) for record in found])


def test_a_complete_run_has_its_records_in_one_table(run: wardround.StudyRun) -> None:
    found = list(wardround.read_records(run.folder))
    assert len(found) == 3 * 2 * 6
    assert all(record.engine == "stacked" and record.figures["test_loss"] > 0 for record in found)
    assert not (run.folder / "records.jsonl").exists()
    pd.testing.assert_frame_equal(run.records(), RunFolder(run.folder).records())
    assert run.records()["loss"].tolist() == [record.loss for record in found]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_follower_sees_every_record_once_while_a_run_is_stopped_resumed_and_ended(
    workers: int, run: wardround.StudyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = count()
    monkeypatch.setattr(checkpoint.Pace, "due", property(lambda pace: next(turns) % 3 == 2))  # not after every round
    monkeypatch.setattr(records, "PAUSE", 0.001)
    plan = wardround.load_plan(*wardround.load_study(STUDY))
    folder = RunFolder.of(plan.study, tmp_path)
    seen: list[RoundRecord] = []
    beyond = 0
    with RecordFollower(folder.path) as follower:
        assert follower.new() == []  # nothing is there yet
        for stop in (2, 4, 5, 1000):
            steps = execute(plan, folder, "stacked", workers=workers)
            for _ in islice(steps, stop):
                seen += follower.new()
            steps.close()
            seen += follower.new()
            if not folder.complete:
                kept = sum(part.records for part in map(partial(checkpoint.read_checkpoint, folder.path), range(3)))
                beyond += len(list(read_records(folder.path))) - kept
        assert folder.complete
        assert follower.new() == []
    assert beyond > 0  # some were cut off and made again
    places = [(record.arm, record.seed, record.round) for record in seen]
    assert len(set(places)) == len(places) == 3 * 2 * 6
    assert untimed(read_records(folder.path)) == untimed(read_records(run.folder))
    assert sorted(untimed(seen)) == sorted(untimed(read_records(run.folder)))
    assert len(followed(folder.path)) == 3 * 2 * 6


SLOW = """
import sys, time, wardround
from dataclasses import replace
from wardround.engines import ENGINES
from wardround.runs import checkpoint

checkpoint.SHORTEST_PAUSE = 1000.0  # no checkpoint before the end
known = ENGINES["serial"]

def slow(trials, state):
    for number, (after, found) in enumerate(known.rounds(trials, state)):
        yield after, found
        print(time.monotonic(), flush=True)  # its record has been added
        time.sleep(2.0 if number == 3 else 0.01)

ENGINES["serial"] = replace(known, rounds=slow)
study = {study!r}
wardround.run_study(study, {out!r}, engine="serial", workers=1)
"""


def test_records_are_in_the_file_within_a_second_also_while_one_round_takes_long(tmp_path: Path) -> None:
    study = {**STUDY, "arms": [{"algorithm": "scaffold"}], "evaluation": {"seeds": {"first": 1, "count": 1}}}
    code = SLOW.format(study=study, out=str(tmp_path))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        added = [float(process.stdout.readline()) for _ in range(4)]
        [folder] = tmp_path.iterdir()
        follower = RecordFollower(folder)
        found: list[RoundRecord] = []
        while len(found) < 4 and time.monotonic() < added[-1] + 1.5:
            found += follower.new()
            time.sleep(0.01)
        late = time.monotonic() - added[-1]
        assert [record.round for record in found] == [1, 2, 3, 4]
        assert late < 1.0
        assert not list(folder.glob("state/units/*"))
        assert process.wait(60) == 0
        assert [record.round for record in follower.new()] == [5, 6]
        follower.close()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
