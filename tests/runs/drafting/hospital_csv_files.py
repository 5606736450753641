"""Small files of invented patients, as hospitals export them."""

import csv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

Column = Callable[[np.random.Generator, int], list[Any]]


def outcome(rng: np.random.Generator, rows: int) -> list[Any]:
    return ["yes" if value > 0 else "no" for value in rng.normal(size=rows)]


def age(rng: np.random.Generator, rows: int) -> list[Any]:
    return list(rng.integers(20, 90, rows).tolist())


def crp(rng: np.random.Generator, rows: int) -> list[Any]:
    return list(rng.exponential(40, rows).round(2).tolist())


def ward(rng: np.random.Generator, rows: int) -> list[Any]:
    return list(rng.choice(["icu", "medicine", "surgery"], rows).tolist())


def admitted(rng: np.random.Generator, rows: int) -> list[Any]:
    return [f"2024-{month:02}-{day:02}" for month, day in rng.integers(1, 13, (rows, 2))]


def serial(prefix: str) -> Column:
    return lambda _, rows: [f"{prefix}{number:04}" for number in range(rows)]


PLAIN: Mapping[str, Column] = {
    "patient_id": serial("p"),
    "age": age,
    "crp": crp,
    "ward": ward,
    "admitted": admitted,
    "died": outcome,
}


def write(
    folder: Path, name: str, columns: Mapping[str, Column] = PLAIN, rows: int = 80, seed: int = 0, separator: str = ","
) -> Path:
    rng = np.random.default_rng([seed, *name.encode()])
    cells = {title: make(rng, rows) for title, make in columns.items()}
    path = folder / f"{name}.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow(cells)
        writer.writerows(zip(*cells.values(), strict=True))
    return path
