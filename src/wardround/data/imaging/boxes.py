"""Where findings are: NIH's file of boxes, drawn by radiologists on the images of 1024 x 1024 pixels."""

from pathlib import Path

import numpy as np
import pandas as pd

from wardround.core.errors import DataError
from wardround.core.notices import Notice
from wardround.data.imaging.finding_names import FINDINGS, plain
from wardround.data.imaging.labels import Table, read_table
from wardround.data.records import BOX_COLUMNS

SIDE = 1024  # pixels
WIDTH = 6  # image, finding, x, y, width, height; the header says so in names with commas inside them


def read_boxes(path: Path, names: np.ndarray, classes: tuple[str, ...]) -> tuple[pd.DataFrame, list[Notice]]:
    """Boxes of these images and findings, in parts of width and height, and a notice of the others."""
    table = read_table(path)
    if len(table.header) < WIDTH:
        problem = f"{len(table.header)} columns instead of {WIDTH}"
        raise DataError(str(path), problem, "Give NIH's file: image, finding, x, y, width and height of each box.")
    numbers = _numbers(table)
    places = {plain(name): place for place, name in enumerate(classes)}
    rows = {name.rpartition("/")[2]: row for row, name in enumerate(names.tolist())}
    row = np.array([rows.get(name, -1) for name in table.cells[:, 0]])
    words = [plain(word) for word in table.cells[:, 1]]
    finding = np.array([places.get(word, -1) for word in words])
    strange = sum(word not in places and word not in set(map(plain, FINDINGS)) for word in words)
    kept = (row >= 0) & (finding >= 0)
    boxes = pd.DataFrame(numbers[kept] / SIDE, columns=list(BOX_COLUMNS[2:]))
    boxes.insert(0, "row", row[kept])
    boxes.insert(1, "finding", finding[kept])
    counts = {
        "boxes": int(kept.sum()),
        "of": len(kept),
        "elsewhere": int((row < 0).sum()),
        "left_out": int(((row >= 0) & (finding < 0)).sum()),
        "unknown": strange,
    }
    return boxes, [Notice("boxes-used", "info", counts=counts)]


def _numbers(table: Table) -> np.ndarray:
    numbers = pd.DataFrame(table.cells[:, 2:WIDTH]).apply(pd.to_numeric, errors="coerce").to_numpy(float)
    # half a pixel is forgiven for rounding
    inside = (numbers >= 0).all(axis=1) & (numbers[:, :2] + numbers[:, 2:] <= SIDE + 0.5).all(axis=1)
    wrong = ~(inside & (numbers[:, 2:] > 0).all(axis=1))
    if wrong.any():
        where = f"{table.path}, line {table.lines[wrong][0]}"
        problem = f"{wrong.sum()} boxes are not inside an image of {SIDE} x {SIDE} pixels"
        raise DataError(where, problem, "Correct them: x, y, width and height in pixels of NIH's images.")
    return np.hstack([numbers[:, :2], np.minimum(numbers[:, 2:], SIDE - numbers[:, :2])])
