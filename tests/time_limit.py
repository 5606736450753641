"""A limit that ends whatever runs in it, in the main thread."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TooLong(BaseException):
    """Not an Exception, so that no handler on the way takes it for something that it knows."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    def over(number: int, frame: FrameType | None) -> None:
        raise TooLong(f"still busy after {seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, over)
    outer, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    began = time.monotonic()
    try:
        yield
    finally:
        # a limit around this one goes on with what is left of it; 0 would mean none
        left = max(outer - (time.monotonic() - began), 1e-3) if outer else 0
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, left)
