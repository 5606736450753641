"""Values of patients that a test can recognise wherever they turn up, in every form that a caller may hold them in."""

import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import torch

NUMBER, NAME, DAY = 73919.25, "Zaphod-Patient", "1931-07-19"
SIGNS = ("73919", "Zaphod", "1931")
ROWS = [{"age": NUMBER, "name": NAME, "born": DAY}, {"age": NUMBER + 1, "name": NAME, "born": DAY}]
TEXT = f"age,name,born\n{NUMBER},{NAME},{DAY}\n"


@dataclass(frozen=True)
class Named:
    """Says that it is a path, and is the text of a table."""

    def __fspath__(self) -> str:
        return TEXT


def planted() -> Iterator[tuple[str, Any]]:
    """Objects that hold these values, each with a name for the test's id."""
    frame = pd.DataFrame(ROWS)
    yield "DataFrame", frame
    yield "Series", frame["age"]
    yield "Index", pd.Index([NUMBER, NUMBER])
    yield "numbers", np.full((2, 3), NUMBER)
    yield "objects", np.array([NAME, NUMBER], dtype=object)
    yield "numpy scalar", np.float64(NUMBER)
    yield "tensor", torch.full((2,), NUMBER, dtype=torch.float64)
    yield "arrow", pa.table(frame)
    yield "rows", ROWS
    yield "row", ROWS[0]
    yield "by name", {NAME: {"age": NUMBER}}
    yield "number as key", {NUMBER: NAME}
    yield "tuple", (NUMBER, NAME)
    yield "set", {NUMBER, NAME}
    yield "text", TEXT
    yield "bytes", TEXT.encode()
    yield "path", Named()
    yield "timestamp", pd.Timestamp(DAY)


def raised_by(call: Callable[[], object]) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


def leaks(error: BaseException | None) -> list[str]:
    """Signs of a planted value in anything that shows the error: its text, its repr, its whole traceback."""
    if error is None:
        return []
    shown = str(error) + repr(error) + "".join(traceback.format_exception(error))
    return [sign for sign in SIGNS if sign in shown]
