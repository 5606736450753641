"""Which runs a folder has: question, answer, state, age and size of each, without loading what they hold."""

import fcntl
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import orjson

from wardround.core.errors import RunError, WardroundError
from wardround.core.toml_files import read_toml

State = Literal["complete", "interrupted", "running", "damaged"]


@dataclass(frozen=True)
class ListedRun:
    folder: str
    name: str
    question: str
    answer: str  # one sentence; empty where there is none yet
    state: State
    changed: str  # when it ended or last went on, in ISO form
    bytes: int


def list_runs(folder: Path) -> list[ListedRun]:
    """The latest first."""
    if not folder.is_dir():
        problem = "is not a folder" if folder.exists() else "there is no such folder"
        raise RunError(str(folder), problem, "Give the folder in which runs were made; by itself it is `runs`.")
    found = [_listed(path) for path in folder.iterdir() if (path / "study.toml").is_file()]
    return sorted(found, key=lambda run: run.changed, reverse=True)


def _listed(path: Path) -> ListedRun:
    files = [(file, status) for file in path.rglob("*") if (status := _status(file)) is not None]
    complete = (path / "results.json").is_file()
    ends = {file.name: status.st_mtime for file, status in files if file.parent == path}
    changed = ends["results.json"] if complete and "results.json" in ends else max(ends.values(), default=0.0)
    study = _read_study(path)
    state: State = "complete" if complete else "running" if _is_locked(path) else "interrupted"
    answer = ""
    if complete:
        try:
            answer = _answer(orjson.loads((path / "results.json").read_bytes()))
        except (OSError, ValueError, TypeError, LookupError, AttributeError):
            state = "damaged"
    return ListedRun(
        str(path),
        str(study.get("name", path.name)),
        str(study.get("question", "")),
        answer,
        "damaged" if not study else state,
        datetime.fromtimestamp(changed, UTC).isoformat(timespec="seconds"),
        sum(status.st_size for _, status in files),
    )


def _status(file: Path) -> Any:
    """None of a folder, and of a file that a run has removed meanwhile."""
    with suppress(OSError):
        return None if file.is_dir() else file.lstat()
    return None


def _read_study(path: Path) -> dict[str, Any]:
    try:
        return read_toml(path / "study.toml", "Run the study again with --again.", RunError)
    except WardroundError:
        return {}


def _answer(results: dict[str, Any]) -> str:
    return next(_sentences(results), "")


def _sentences(results: dict[str, Any]) -> Iterator[str]:
    if decision := results.get("decision"):
        yield str(decision["sentences"]["answer"])
    for sentence in results["answer"]:
        yield str(sentence["text"])


def _is_locked(path: Path) -> bool:
    """Whether a process is working on the run."""
    try:
        with (path / ".lock").open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
