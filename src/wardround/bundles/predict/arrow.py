"""Columns of Python's or pandas' values as Arrow has them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from wardround.core.errors import DataError


def as_array(values: Any, name: str, where: Callable[[int], str]) -> pa.Array:
    """A column of Python's or pandas' values. Where numbers and texts are mixed, numbers become texts without loss."""
    try:
        made = pa.array(values, from_pandas=True)
    except (pa.ArrowException, OverflowError, ValueError):
        texts = [_as_text(value) for value in values]
        broken = next((row for row, text in enumerate(texts) if not _is_unicode(text)), None)
        if broken is not None:
            problem = f"the text in {name!r} has half of a letter in it, which cannot be written as UTF-8"
            raise DataError(where(broken), problem, "Read the rows again with their right encoding.") from None
        made = pa.array(texts, pa.string())
    return made.combine_chunks() if isinstance(made, pa.ChunkedArray) else made


def type_words(kind: pa.DataType) -> str:
    """For messages. The type of a nested column names its fields, which may be a patient's words."""
    return "a nested type" if pa.types.is_nested(kind) else f"type {kind}"


def _as_text(value: Any) -> str | None:
    if value is None or value is pd.NA or (isinstance(value, float) and np.isnan(value)):
        return None
    return value if isinstance(value, str) else repr(float(value)) if isinstance(value, float) else str(value)


def _is_unicode(text: str | None) -> bool:
    """Not so with a lone surrogate, which programs leave that decode carelessly."""
    return text is None or not any("\ud800" <= letter <= "\udfff" for letter in text)
