"""Silence the warnings and logs of a library for a moment."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_remarks(logger_name: str) -> Iterator[None]:
    """No warnings, and nothing of this logger below an error."""
    logger = logging.getLogger(logger_name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
