"""The run folder: where each thing stands, and how it is written so that a half-written file never counts.

study.toml  environment.json  records.jsonl  predictions.parquet  groups.parquet  models/ARM/seed-N.safetensors
    figures/       curves over rounds, SVG and PNG
results.json   written last: a folder that has it is complete
"""

import fcntl
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from shutil import rmtree
from typing import Any, Self

import pandas as pd
import pyarrow.parquet as pq
import tomli_w
import torch
from safetensors.torch import load_file, save

from wardround.errors import RunError
from wardround.study import Study
from wardround.tree import Tree

WRITTEN_ANEW = ("results.json", "records.jsonl", "predictions.parquet", "groups.parquet")


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @classmethod
    def of(cls, study: Study, out: Path) -> "RunFolder":
        return cls(out / f"{study.name}-{study.hash[:8]}")

    @property
    def complete(self) -> bool:
        return (self.path / "results.json").is_file()

    def begin(self, study: Study, environment: Mapping[str, Any]) -> None:
        """Make the folder and clear what an earlier, unfinished or repeated run left in it."""
        self.path.mkdir(parents=True, exist_ok=True)
        for name in WRITTEN_ANEW:
            (self.path / name).unlink(missing_ok=True)
        for name in ("models", "state", "figures"):
            rmtree(self.path / name, ignore_errors=True)
        write_atomically(self.path / "study.toml", tomli_w.dumps(dict(study.resolved)).encode())
        self.write_json("environment.json", environment)

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        text = json.dumps(without_nan(content), indent=2, allow_nan=False) + "\n"
        write_atomically(self.path / name, text.encode())

    def read_json(self, name: str) -> Any:
        try:
            return json.loads((self.path / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RunError(str(self.path), f"has no {name}", "Name the folder of a complete run.") from None
        except json.JSONDecodeError as error:
            raise RunError(str(self.path / name), f"is damaged: {error}", "Run the study again with --again.") from None

    def save_model(self, arm: str, seed: int, leaves: Tree) -> None:
        folder = self.path / "models" / arm
        folder.mkdir(parents=True, exist_ok=True)
        contiguous = {name: leaf.detach().contiguous().clone() for name, leaf in leaves.items()}
        write_atomically(folder / f"seed-{seed}.safetensors", save(contiguous))

    def load_model(self, arm: str, seed: int) -> Tree:
        return load_file(self.path / "models" / arm / f"seed-{seed}.safetensors")

    def keep_predictions(self, unit: int, table: pd.DataFrame) -> None:
        """Of one finished unit, until all are finished."""
        (self.path / "state" / "predictions").mkdir(parents=True, exist_ok=True)
        content = BytesIO()
        table.to_parquet(content, index=False, compression="zstd")
        write_atomically(self._part(unit), content.getvalue())

    def join_predictions(self, units: int) -> None:
        """One file, written part by part, so that predictions never pile up in memory."""
        partial = self.path / ".predictions.parquet.partial"
        first = pq.read_schema(self._part(0))
        with pq.ParquetWriter(partial, first, compression="zstd") as writer:
            for unit in range(units):
                writer.write_table(pq.read_table(self._part(unit)).cast(first))
        os.replace(partial, self.path / "predictions.parquet")

    def remove_state(self) -> None:
        """What was only needed to resume."""
        rmtree(self.path / "state", ignore_errors=True)

    def _part(self, unit: int) -> Path:
        return self.path / "state" / "predictions" / f"unit-{unit:05}.parquet"

    def records(self) -> pd.DataFrame:
        return pd.read_json(self.path / "records.jsonl", lines=True)

    def predictions(self) -> pd.DataFrame:
        return pd.read_parquet(self.path / "predictions.parquet")

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time. The lock dies with its process, so a crash leaves nothing to clean up."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            lock = (self.path / ".lock").open("w")
        except OSError as error:
            raise RunError(str(self.path), f"cannot be made ({error.strerror})", "Give another --out.") from None
        with lock as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                remedy = "Wait until it ends, or give another --out."
                raise RunError(str(self.path), "another process is running this study here", remedy) from None
            yield


class JsonLines:
    """One line of JSON per round. What stands behind `length`, from after the last checkpoint, is cut off."""

    def __init__(self, path: Path, length: int = 0) -> None:
        self.path, self.length = path, length

    def __enter__(self) -> Self:
        self.file = self.path.open("r+b" if self.path.exists() else "w+b")
        self.file.truncate(self.length)
        self.file.seek(self.length)
        return self

    def add(self, record: Mapping[str, Any]) -> None:
        try:
            line = json.dumps(record, allow_nan=False)
        except ValueError:  # a number that is not finite; rare, so that only then the record is walked through
            line = json.dumps(without_nan(record), allow_nan=False)
        self.file.write(line.encode() + b"\n")

    @property
    def position(self) -> int:
        return self.file.tell()

    def flush(self) -> int:
        """Hand everything to the operating system; the length of the file."""
        self.file.flush()
        return self.file.tell()

    def __exit__(self, *error: object) -> None:
        self.file.close()


def write_atomically(path: Path, content: bytes) -> None:
    """Whoever reads `path`, at whatever moment the writer died, finds the old content or the new."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_bytes(content)
    os.replace(partial, path)


def without_nan(value: Any) -> Any:
    """JSON has no NaN; null stands for a number that cannot be had."""
    if isinstance(value, Mapping):
        return {str(key): without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    if isinstance(value, torch.Tensor):
        return without_nan(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value
