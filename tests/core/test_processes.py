"""Units in several processes: the same bits, errors that come through, and no worker that outlives its run."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import wardround
from tests.representatives import represented
from tests.runs.test_resume import STUDY, kill_at_random, numbers
from wardround.core.errors import RunError
from wardround.core.processes import beside, can_fork, in_parallel, mapped
from wardround.runs.execute import Progress

pytestmark = pytest.mark.skipif(not can_fork(), reason="workers are forked, on Linux only")


def test_tests_have_one_thread_each_as_the_processes_that_they_start_have() -> None:
    import torch

    assert torch.get_num_threads() == int(os.environ["OMP_NUM_THREADS"])


def count_to_three(unit: int) -> Iterator[int]:
    for rounds in (1, 2, 3):
        time.sleep(0.01)
        yield rounds


@pytest.mark.parametrize("workers", represented([1, 2, 3, 9], by=[1, 3]))
def test_every_unit_is_run_once_by_whoever_is_free(workers: int) -> None:
    heard = list(in_parallel(range(5), count_to_three, workers))
    assert sorted(heard) == [(unit, rounds) for unit in range(5) for rounds in (1, 2, 3)]
    for unit in range(5):
        assert [rounds for other, rounds in heard if other == unit] == [1, 2, 3]


@pytest.mark.parametrize("workers", represented([2, 3], by=[3]))
def test_a_study_gives_the_same_bits_with_any_number_of_workers(tmp_path: Path, workers: int) -> None:
    alone = wardround.run_study(STUDY, tmp_path / "alone", workers=1)
    steps: list[Progress] = []
    together = wardround.run_study(STUDY, tmp_path / "together", workers=workers, progress=steps.append)
    assert numbers(together.folder) == numbers(alone.folder)
    assert steps[-1].done == steps[-1].total
    assert [step.done for step in steps] == sorted(step.done for step in steps)


@pytest.mark.slow
def test_a_run_that_was_killed_with_two_workers_goes_on_with_one_to_the_same_bits(tmp_path: Path) -> None:
    expected = numbers(wardround.run_study(STUDY, tmp_path / "undisturbed", workers=1).folder)
    (tmp_path / "killed").mkdir()
    finished, died = kill_at_random(tmp_path / "killed", seed=3, kills=2, workers=2)
    assert died == 2
    assert numbers(finished) == expected


def test_a_workers_error_is_raised_here() -> None:
    parent = os.getpid()

    def fails_elsewhere(unit: int) -> Iterator[int]:
        yield 1
        if os.getpid() != parent:
            raise RunError(f"unit {unit}", "went wrong", "Mend it.")
        time.sleep(0.2)
        yield 2

    with pytest.raises(RunError, match="went wrong"):
        list(in_parallel(range(4), fails_elsewhere, 2))


def test_a_worker_that_dies_is_noticed() -> None:
    parent = os.getpid()

    def dies_elsewhere(unit: int) -> Iterator[int]:
        yield 1
        if os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.2)
        yield 2

    with pytest.raises(RunError, match="died without a word"):
        list(in_parallel(range(4), dies_elsewhere, 2))


def test_workers_end_when_their_run_is_killed(tmp_path: Path) -> None:
    code = """
import os, time
from wardround.core.processes import in_parallel
def forever(unit):
    while True:
        yield os.getpid()
        time.sleep(0.02)
for unit, who in in_parallel(range(3), forever, 3):
    print(who, flush=True)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    seen: set[int] = set()
    while len(seen) < 3:
        seen.add(int(process.stdout.readline()))
    process.kill()
    process.wait()
    process.stdout.close()
    for _ in range(100):
        if not any(alive(pid) for pid in seen):
            return
        time.sleep(0.05)
    pytest.fail("a worker outlived its run")


def alive(pid: int) -> bool:
    """Runs still; one that has ended but was not collected does not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(") ")[1][0] != "Z"
    except OSError:
        return False


def test_stopping_early_ends_the_workers() -> None:
    steps = in_parallel(range(4), count_to_three, 2)
    next(steps)
    steps.close()
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("workers", represented([1, 2, 3, 9], by=[2]))
def test_results_of_several_processes_come_in_the_order_of_the_items(workers: int) -> None:
    found = mapped(lambda item: (item, os.getpid()), range(7), workers)
    assert [item for item, _ in found] == list(range(7))
    assert len({process for _, process in found}) == min(workers, 7)
    assert mapped(str, [], workers) == []
    assert not multiprocessing.active_children()


def test_what_another_process_could_not_finish_is_done_here() -> None:
    parent = os.getpid()

    def dies_elsewhere(item: int) -> int:
        if os.getpid() != parent:
            os.kill(os.getpid(), signal.SIGKILL)
        return item

    def fails(item: int) -> int:
        raise RunError(f"item {item}", "went wrong", "Mend it.") if item == 1 else ValueError

    assert mapped(dies_elsewhere, range(4), 2) == [0, 1, 2, 3]
    with pytest.raises(RunError, match="item 1"):
        mapped(lambda item: fails(item) if item else 0, range(2), 2)
    assert not multiprocessing.active_children()


def test_work_beside_is_done_elsewhere_and_ends_with_an_error_of_the_body(tmp_path: Path) -> None:
    with beside(lambda: (tmp_path / "written").write_text(str(os.getpid()))) as result:
        assert result() > 0
    assert int((tmp_path / "written").read_text()) != os.getpid()
    with beside(os.getpid, forked=False) as result:
        assert result() == os.getpid()
    with pytest.raises(ValueError, match="body"), beside(lambda: time.sleep(60)):
        raise ValueError("body")
    assert not multiprocessing.active_children()
