"""The run folder: where each file is, and how it is written so that a half-written file never counts.

study.toml  environment.json  records.parquet  predictions.parquet  groups.parquet  models/ARM/seed-N.safetensors
models/ARM/seed-N.json  what the weights mean and whose rows they were trained on, for a study that starts from them
selection.parquet   predictions by which a value was selected, where the study selects
validation.parquet  predictions by which thresholds were chosen, where the study has validation rows
regional.parquet    predictions of regions' own models, where sites form regions
missing_party.parquet  predictions while a party was missing, where parties hold different features
triggered.parquet   predictions for test rows with the trigger of a simulated backdoor
uncertainty.parquet the uncertainty of validation and test rows, where the study asks for it
summaries.jsonl     of a run across hospitals, in place of predictions, selection and groups, which stay there
forgetting.parquet  predictions of the old and the new model for the test rows of the run that training started from
decisions.json      what people decided about sites that were named, where the study holds the run for them
samples.npz         some images of each site, where the study lets a report show them
wrong_calls.npz     test images that are called wrongly, with where the model looks, where the study lets them be shown
records.jsonl       while the run goes on: what will be records.parquet
results.json        a folder that has it is complete
audit.jsonl         what was done here and when; hash-chained, and not cleared when a run is repeated
report.html  figures/  tables/   computed from the rest, and rebuilt by `wardround report`
"""

import fcntl
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from shutil import rmtree
from typing import Any, Literal, TypeVar, get_args
from zipfile import BadZipFile

import numpy as np
import orjson
import pandas as pd
import pyarrow.parquet as pq
import tomli_w
import torch
from pyarrow import ArrowException
from safetensors import SafetensorError
from safetensors.numpy import save
from safetensors.torch import load_file

from wardround.core.atomic_files import PRIVATE_FOLDER, open_private, replacing
from wardround.core.atomic_files import write_atomically as write_atomically
from wardround.core.errors import RunError, name_of
from wardround.core.toml_files import read_toml
from wardround.core.tree import Tree
from wardround.runs.record_form import frame_of
from wardround.runs.records import COMPACT, RUNNING, Key, RecordWriter, compact_records, cut_records, read_table
from wardround.study.schema import Study
from wardround.training.trial import Trial

Predictions = Literal["predictions", "selection", "validation", "regional", "missing_party", "uncertainty", "triggered"]
CLEARED = (  # when a run starts again
    "results.json",
    "decisions.json",
    RUNNING,
    COMPACT,
    *(f"{kind}.parquet" for kind in get_args(Predictions)),
    "forgetting.parquet",
    "samples.npz",
    "wrong_calls.npz",
    "ledger.jsonl",
    "attack.json",
    "groups.parquet",
    "summaries.jsonl",
    "report.html",
)
# what reading changed files may raise
READABLE = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_SERIALIZE_NUMPY
MISFITS = (
    LookupError,
    TypeError,
    ValueError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    ArrowException,
    SafetensorError,
)
Read = TypeVar("Read")


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
        self.path.mkdir(parents=True, exist_ok=True, mode=PRIVATE_FOLDER)
        try:
            self.path.chmod(PRIVATE_FOLDER)  # one that was there before, perhaps made by an earlier version
        except PermissionError:
            raise RunError(str(self.path), "belongs to somebody else", "Give another --out.") from None
        for name in CLEARED:
            (self.path / name).unlink(missing_ok=True)
        for name in ("state", "models", "figures", "tables", "bundles"):  # first what a resumed run would go by
            rmtree(self.path / name, ignore_errors=True)
        write_atomically(self.path / "study.toml", tomli_w.dumps(dict(study.resolved)).encode())
        self.write_json("environment.json", environment)

    def write_json(self, name: str, content: Mapping[str, Any]) -> None:
        write_atomically(self.path / name, orjson.dumps(without_nan(content), option=READABLE))

    def read_json(self, name: str) -> Any:
        try:
            return json.loads((self.path / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RunError(str(self.path), f"has no {name}", "Name the folder of a complete run.") from None
        except (OSError, ValueError, RecursionError) as error:
            problem = f"is damaged, or cannot be read ({type(error).__name__})"
            raise RunError(str(self.path / name), problem, "Run the study again with --again.") from None

    def read_study(self) -> dict[str, Any]:
        return read_toml(self.path / "study.toml", "Run the study again with --again.", RunError)

    def save_model(self, arm: str, seed: int, leaves: Tree) -> None:
        folder = self.path / "models" / arm
        folder.mkdir(parents=True, exist_ok=True)
        # through numpy, which makes the same bytes in a third of the time: there may be thousands of models
        write_atomically(
            folder / f"seed-{seed}.safetensors", save({n: x.detach().cpu().numpy() for n, x in leaves.items()})
        )

    def load_model(self, arm: str, seed: int) -> Tree:
        return load_file(self.path / "models" / arm / f"seed-{seed}.safetensors")

    def save_predictions(self, kind: Predictions, unit: int, table: pd.DataFrame) -> None:
        self.write_table(f"state/{kind}/unit-{unit:05}.parquet", table)

    def write_table(self, name: str, table: pd.DataFrame) -> None:
        content = BytesIO()
        table.to_parquet(content, index=False, compression="zstd")
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path / name, content.getvalue())

    def join_predictions(self, kind: Predictions) -> None:
        """One file, written part by part, so that predictions never pile up in memory."""
        parts = sorted((self.path / "state" / kind).glob("unit-*.parquet"))
        if not parts:
            return
        with (
            self.checked_content(),
            replacing(self.path / f"{kind}.parquet") as file,
            pq.ParquetWriter(file, first := pq.read_schema(parts[0]), compression="zstd") as writer,
        ):
            for part in parts:
                writer.write_table(pq.read_table(part).cast(first))

    def save_lengths(self, arm: str, lengths: Mapping[str, Any] | None) -> None:
        """The lengths of patients' gradients in one arm, until all are finished."""
        folder = self.path / "state" / "lengths"
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / f"{arm}.json", json.dumps(lengths).encode())

    def lengths(self) -> dict[str, Any]:
        parts = sorted((self.path / "state" / "lengths").glob("*.json"))
        return {part.name.removesuffix(".json"): json.loads(part.read_bytes()) for part in parts}

    def append_records(self, trials: Iterable[Trial], written: int) -> RecordWriter:
        """To go on with the records of trials, of which the first `written` count."""
        path = self.path / RUNNING
        cut_records(path, [([(trial.arm, trial.seed) for trial in trials], written)])
        return RecordWriter(path, written)

    def compact_records(self, units: Sequence[Iterable[Key]] = (), workers: int = 1) -> pd.DataFrame:
        """Once all units are finished; the same as `records`. `records.jsonl` stays: the run may have to be resumed."""
        return frame_of(compact_records(self.path, units, workers))

    def remove_state(self) -> None:
        """What was only needed to resume."""
        (self.path / RUNNING).unlink(missing_ok=True)
        rmtree(self.path / "state", ignore_errors=True)

    def records(self) -> pd.DataFrame:
        """One row for each round of each arm and seed, as far as the run has come."""
        return frame_of(read_table(self.path))

    def predictions(self) -> pd.DataFrame:
        return self._read("predictions.parquet", pd.read_parquet)

    def other_predictions(self, kind: Predictions) -> pd.DataFrame | None:
        """None where the study has none of this kind."""
        name = f"{kind}.parquet"
        return self._read(name, pd.read_parquet) if (self.path / name).is_file() else None

    def write_samples(self, samples: Mapping[str, Any]) -> None:
        self._write_arrays("samples.npz", samples)

    def samples(self) -> dict[str, np.ndarray]:
        """Images that the study lets a report show; empty where there are none."""
        return self._arrays("samples.npz", ("images", "site", "caption"))

    def write_wrong_calls(self, calls: Mapping[str, Any]) -> None:
        self._write_arrays("wrong_calls.npz", calls)

    def wrong_calls(self) -> dict[str, np.ndarray]:
        """Test images that are called wrongly, with maps of where the model looks; empty where there are none."""
        return self._arrays(
            "wrong_calls.npz", ("images", "heat", "boxes", "kind", "finding", "site", "score", "threshold")
        )

    def _write_arrays(self, name: str, arrays: Mapping[str, Any]) -> None:
        content = BytesIO()
        np.savez_compressed(content, **arrays)
        write_atomically(self.path / name, content.getvalue())

    def _arrays(self, name: str, members: Sequence[str]) -> dict[str, np.ndarray]:
        if not (self.path / name).is_file():
            return {}

        def read(path: Path) -> dict[str, np.ndarray]:
            with np.load(path, allow_pickle=False) as file:
                return {member: file[member] for member in members}

        return self._read(name, read)

    def groups(self) -> pd.DataFrame:
        return self._read("groups.parquet", pd.read_parquet)

    @property
    def deployed(self) -> bool:
        """Of a run across hospitals, in which predictions stay where they were made."""
        return (self.path / "summaries.jsonl").is_file()

    def write_summaries(self, lines: Iterable[Mapping[str, Any]]) -> None:
        content = b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines)
        write_atomically(self.path / "summaries.jsonl", content)

    def summaries(self) -> list[dict[str, Any]]:
        return self._read(
            "summaries.jsonl", lambda path: [orjson.loads(line) for line in path.read_bytes().splitlines()]
        )

    def _read(self, name: str, reader: Callable[[Path], Read]) -> Read:
        path = self.path / name
        if not path.is_file():
            raise RunError(str(self.path), f"has no {name}", "Run the study again with --again.")
        try:
            return reader(path)
        except (ArrowException, BadZipFile, KeyError, OSError, ValueError) as error:
            problem = f"cannot be read ({name_of(error)})"
            raise RunError(str(path), problem, "Run the study again with --again.") from None

    @contextmanager
    def checked_content(self) -> Iterator[None]:
        """Around code that relies on the form of a run's files: RunError where it is another."""
        try:
            yield
        except MISFITS as error:
            problem = f"does not hold what a run of this version writes ({name_of(error)})"
            remedy = "Run the study again with --again. If nobody changed the folder, please report it."
            raise RunError(str(self.path), problem, remedy) from None
        except OSError as error:
            if error.errno is not None:
                raise
            remedy = "Run the study again with --again."  # it is Arrow's, of a file that it cannot read
            raise RunError(str(self.path), "holds a file that is damaged", remedy) from None

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time. The lock dies with its process, so a crash leaves nothing to clean up."""
        try:
            self.path.mkdir(parents=True, exist_ok=True, mode=PRIVATE_FOLDER)
            lock = open_private(self.path / ".lock", os.O_RDWR | os.O_CREAT, "r+b")
        except OSError as error:
            raise RunError(str(self.path), f"cannot be made ({error.strerror})", "Give another --out.") from None
        with lock as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                remedy = "Wait until it ends, or give another --out."
                raise RunError(str(self.path), "another process is running this study here", remedy) from None
            yield


def without_nan(value: Any) -> Any:
    """JSON has no NaN: null in its place."""
    if isinstance(value, Mapping):
        return {str(key): without_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(item) for item in value]
    if isinstance(value, torch.Tensor):
        return without_nan(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value
