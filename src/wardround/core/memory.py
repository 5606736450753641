"""Memory that is free."""

import ctypes
from contextlib import suppress


def return_memory() -> None:
    """Give free memory back to the system; glibc would keep it."""
    with suppress(AttributeError, OSError):  # another library for memory
        ctypes.CDLL(None).malloc_trim(0)
