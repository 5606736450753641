"""Units of a study in parallel processes.

A unit of small models keeps one processor busy, mostly with Python's own work, so threads would not help. Workers are
forked: they have the loaded study at hand and write a unit's files themselves; only progress comes back. No number
depends on how many there are, because one worker runs a unit from its first round to its last.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, cast
from warnings import catch_warnings, simplefilter

from wardround.core.errors import RunError

RunUnit = Callable[[int], Iterable[int]]  # a unit's number to the rounds it has done, after each
PR_SET_PDEATHSIG = 1


def can_fork() -> bool:
    """Only where forking is sound: on Linux, and before anything has touched an accelerator."""
    torch = sys.modules.get("torch")
    return sys.platform == "linux" and not (torch is not None and torch.cuda.is_initialized())


def in_parallel(
    todo: Sequence[int], run: RunUnit, workers: int, meanwhile: Callable[[], None] = lambda: None
) -> Generator[tuple[int, int]]:
    """Run units; yields (unit, rounds it has done). This process is one of the workers.

    `meanwhile` is called here once the others are at work.
    """
    workers = min(workers, len(todo))
    if workers < 2:
        for number in todo:
            for rounds in run(number):
                yield number, rounds
        return
    context = get_context("fork")
    started = context.Value("i", 0)

    def take() -> int | None:
        with started.get_lock():
            place = started.value
            started.value += 1
        return todo[place] if place < len(todo) else None

    pipes = [context.Pipe(duplex=False) for _ in range(workers - 1)]
    helpers = [context.Process(target=_help, args=(take, run, send, os.getpid())) for _, send in pipes]
    listening = [receive for receive, _ in pipes]
    try:
        with catch_warnings():
            simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of any fork beside threads
            for helper in helpers:
                helper.start()
        for _, send in pipes:
            send.close()  # so that a worker's end is the end of its pipe
        meanwhile()
        while (unit := take()) is not None:
            for rounds in run(unit):
                yield unit, rounds
                yield from _received(listening, 0)
        while listening:
            yield from _received(listening, None)
    finally:
        for helper in helpers:
            if helper.is_alive():
                helper.terminate()
            helper.join()


def _received(listening: list[Connection], timeout: float | None) -> Generator[tuple[int, int]]:
    """Progress of the workers so far. The error of a worker that failed is raised here."""
    for pipe in cast("list[Connection]", wait(listening, timeout)):
        try:
            message: Any = pipe.recv()
        except EOFError:
            raise RunError("a worker", "died without a word", "Run again; what was done is kept.") from None
        if message is None:
            listening.remove(pipe)
        elif isinstance(message, BaseException):
            raise message
        else:
            yield message


def _help(take: Callable[[], int | None], run: RunUnit, send: Connection, parent: int) -> None:
    _die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, who then ends its workers
    try:
        while (unit := take()) is not None:
            for rounds in run(unit):
                send.send((unit, rounds))
        send.send(None)
    except Exception as error:
        try:
            send.send(error)
        except Exception:  # an error that cannot be sent
            send.send(RuntimeError(f"a worker failed: {type(error).__name__}"))  # its text may hold a value
    finally:
        send.close()


def _die_with(parent: int) -> None:
    """A worker must not outlive a run that is killed: the next one may already be writing the same files."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
