"""A library that remarks on its own insides, kept quiet for a moment."""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_remarks(logger_name: str) -> Iterator[None]:
    """Neither warnings nor what this logger says below an error."""
    logger = logging.getLogger(logger_name)
    before = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(before)
