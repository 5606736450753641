"""A bundle's files: how they are sealed, and how they are read so that only sealed content counts.

bundle.json lists the SHA-256 of every other file. Its `id` is the hash of its content without `made`, so that the same
bundle made twice has one id; its `seal` is the hash of all its content, so that any change shows. The hashes reveal
damage and careless changes. To detect a bundle that was replaced as a whole, keep its id elsewhere, as the registry
does.
"""

import json
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from wardround.core.errors import BundleError
from wardround.runs.folder import without_nan

FORMAT = 3
ABOUT = "bundle.json"
WEIGHTS = "weights.safetensors"
PREPARATION = "preparation.json"
VOCABULARY = "vocabulary.json"
CARD = "card.md"
ONNX = "model.onnx"
INT8, INT8_REPORT = "model-int8.onnx", "int8.json"
UNCERTAINTY = "uncertainty.json"


@dataclass(frozen=True)
class SealedKind:
    """A kind of folder: how it is called, which command makes it, and what it holds."""

    name: str
    command: str
    about: str  # the JSON file that lists the others
    format: int
    needed: tuple[str, ...]
    optional: tuple[str, ...] = ()

    @property
    def remake(self) -> str:
        return f"Make it again with `{self.command}`, or copy it again from where it was made."


BUNDLE = SealedKind(
    "bundle",
    "wardround bundle",
    ABOUT,
    FORMAT,
    (WEIGHTS, PREPARATION, VOCABULARY, CARD),
    (ONNX, INT8, INT8_REPORT, UNCERTAINTY),
)


def refuse_if(condition: bool | np.bool_, problem: str) -> None:
    """For content that is sealed and still does not fit; `load_bundle` turns it into an error for users."""
    if condition:
        raise ValueError(problem)


def as_text(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(without_nan(content), indent=2, allow_nan=False) + "\n").encode()


def hashes_of(files: Mapping[str, bytes]) -> dict[str, str]:
    return {name: sha256(files[name]).hexdigest() for name in sorted(files)}


def seal(about: Mapping[str, Any], files: Mapping[str, bytes]) -> bytes:
    """The content of bundle.json."""
    content = {key: value for key, value in about.items() if key != "files"}
    return _sealed({**content, "files": hashes_of(files)})


def _sealed(about: Mapping[str, Any]) -> bytes:
    content: dict[str, Any] = without_nan({key: about[key] for key in about if key not in ("id", "seal")})
    content["id"] = _digest({key: value for key, value in content.items() if key != "made"})
    content["seal"] = _digest(content)
    return as_text(content)


def _digest(content: Mapping[str, Any]) -> str:
    return sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


class SealedFileError(BundleError):
    """About one file of a sealed folder; `file` is its name."""

    def __init__(self, path: Path | str, problem: str, remedy: str) -> None:
        super().__init__(str(path), problem, remedy)
        self.file = Path(path).name


def read_sealed(folder: Path, kind: SealedKind = BUNDLE) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The content of bundle.json and the bytes of every other file, each compared with its hash."""
    about = _read_about(folder, kind)
    listed = about["files"]
    try:
        names = set(os.listdir(folder))
    except OSError as error:
        raise _unreadable(folder, error) from None
    for name in listed:
        if name not in names:
            raise BundleError(str(folder), f"{name} is missing", kind.remake)
    extra = sorted(names - set(listed) - {kind.about})
    if extra:
        remedy = f"Remove it from the folder: a {kind.name} holds only what it lists."
        raise BundleError(str(folder), f"{extra[0]!r} is not part of the {kind.name}", remedy)
    content = {}
    for name, digest in listed.items():
        content[name] = _read_plain(folder / name, kind)
        if sha256(content[name]).hexdigest() != digest:
            raise _changed(folder / name, kind)
    return about, content


def _read_about(folder: Path, kind: SealedKind) -> dict[str, Any]:
    path, made_by = folder / kind.about, f"Name a folder made by `{kind.command}`."
    if not folder.is_dir():
        raise BundleError(str(folder), "is not a folder" if folder.exists() else "does not exist", made_by)
    if not path.exists() and not path.is_symlink():
        raise BundleError(str(folder), f"is not a {kind.name}: it has no {kind.about}", made_by)
    text = _read_plain(path, kind)
    about = _parsed(text, path, kind)
    if not _is_sealed(about, text):
        raise _changed(path, kind)
    missing = [name for name in kind.needed if name not in about["files"]]
    unknown = [name for name in about["files"] if name not in (*kind.needed, *kind.optional)]
    if missing or unknown:
        problem = f"lists no {missing[0]}" if missing else f"lists {unknown[0]!r}, which no {kind.name} has"
        raise SealedFileError(path, problem, kind.remake)
    return about


def _parsed(text: bytes, path: Path, kind: SealedKind) -> dict[str, Any]:
    try:
        about = json.loads(text)
    except (ValueError, RecursionError):
        raise SealedFileError(path, "is damaged: it is not JSON", kind.remake) from None
    number = about.get("format") if isinstance(about, dict) else None
    if type(number) is not int:
        problem = f"is not the description of a {kind.name}: it has no format number"
        raise SealedFileError(path, problem, kind.remake)
    if number != kind.format:
        problem = f"is of format {number}, and this version of wardround reads format {kind.format}"
        raise SealedFileError(
            path, problem, "Install a newer version of wardround." if number > kind.format else kind.remake
        )
    return dict(about)


def _is_sealed(about: Mapping[str, Any], text: bytes) -> bool:
    """Compares bytes, so that repeated keys are refused as well."""
    try:
        return isinstance(about.get("files"), dict) and _sealed(about) == text
    except (ValueError, RecursionError):  # NaN, or deeply nested lists
        return False


def _read_plain(path: Path, kind: SealedKind) -> bytes:
    """Links are refused: what they lead to may change later."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise SealedFileError(path, "is not a plain file", kind.remake)
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(path, error) from None


def _unreadable(path: Path, error: OSError) -> BundleError:
    return SealedFileError(path, f"cannot be read ({error.strerror})", "Look at its permissions.")


def _changed(path: Path, kind: SealedKind) -> BundleError:
    return SealedFileError(path, f"was changed since the {kind.name} was made", kind.remake)
