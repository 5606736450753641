"""Units of a study in parallel processes.

A unit of small models keeps one processor busy, mostly with Python's own work, so threads would not help. Workers are
forked: they have the loaded study at hand and write a unit's files themselves; only progress comes back. No number
depends on how many there are, because one worker runs a unit from its first round to its last.
"""

import ctypes
import os
import signal
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, TypeVar, cast
from warnings import catch_warnings, simplefilter

from wardround.core.errors import RunError

RunUnit = Callable[[int], Iterable[int]]  # a unit's number to the rounds it has done, after each
Item = TypeVar("Item")
Result = TypeVar("Result")
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


def mapped(function: Callable[[Item], Result], items: Sequence[Item], workers: int) -> list[Result]:
    """`function` of each item, in the order of items; this process is one of the workers. Results come back through
    pipes. What another process could not finish is computed here, so that its error is raised here."""
    workers = max(1, min(workers, len(items))) if can_fork() else 1
    shares = [items[number::workers] for number in range(workers)]
    with ExitStack() as helpers:
        others = [helpers.enter_context(beside(partial(_each, function, share))) for share in shares[1:]]
        results = [_each(function, shares[0]), *(result() for result in others)]
    return [results[place % workers][place // workers] for place in range(len(items))]


def _each(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    return [function(item) for item in items]


@contextmanager
def beside(work: Callable[[], Result], forked: bool = True) -> Iterator[Callable[[], Result]]:
    """`work` in a forked process while the body runs; the value waits for its result. Where that process fails, or
    cannot be had, the work is done here. It may use one thread and must leave nothing but its result and files."""
    if not (forked and can_fork()):
        yield work
        return
    context = get_context("fork")
    receive, send = context.Pipe(duplex=False)
    helper = context.Process(target=_work, args=(work, send, os.getpid()))
    with catch_warnings():
        simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of any fork beside threads
        helper.start()
    send.close()  # so that the worker's end is the end of the pipe

    def result() -> Result:
        try:
            return cast(Result, receive.recv())
        except EOFError:
            return work()

    try:
        yield result
    finally:
        receive.close()
        if helper.is_alive():
            helper.terminate()
        helper.join()


def _work(work: Callable[[], Any], send: Connection, parent: int) -> None:
    _die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)  # the threads of the process that was forked are not here
    try:
        send.send(work())
    except Exception:
        pass
    finally:
        send.close()


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
