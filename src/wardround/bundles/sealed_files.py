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
from hashlib import sha256
from pathlib import Path
from typing import Any

from wardround.core.errors import BundleError
from wardround.runs.folder import without_nan

FORMAT = 3  # 3: `out_of_distribution` in place of `far`; 1 and 2 are still read
ABOUT = "bundle.json"
WEIGHTS = "weights.safetensors"
PREPARATION = "preparation.json"
VOCABULARY = "vocabulary.json"
CARD = "card.md"
ONNX = "model.onnx"
UNCERTAINTY = "uncertainty.json"
NEEDED = (WEIGHTS, PREPARATION, VOCABULARY, CARD)
OPTIONAL = (ONNX, UNCERTAINTY)
REMAKE = "Make it again with `wardround bundle`, or copy it again from where it was made."


def as_text(content: Mapping[str, Any]) -> bytes:
    return (json.dumps(without_nan(content), indent=2, allow_nan=False) + "\n").encode()


def seal(about: Mapping[str, Any], files: Mapping[str, bytes]) -> bytes:
    """The content of bundle.json."""
    content = {key: value for key, value in about.items() if key not in ("files", "id", "seal")}
    content["files"] = {name: sha256(files[name]).hexdigest() for name in sorted(files)}
    content = without_nan(content)
    content["id"] = _digest({key: value for key, value in content.items() if key != "made"})
    content["seal"] = _digest(content)
    return as_text(content)


def _digest(content: Mapping[str, Any]) -> str:
    return sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


def read_sealed(folder: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The content of bundle.json and the bytes of every other file, each compared with its hash."""
    about = _read_about(folder)
    listed = about["files"]
    names = _file_names(folder)
    for name in listed:
        if name not in names:
            raise BundleError(str(folder), f"{name} is missing", REMAKE)
    extra = sorted(set(names) - set(listed) - {ABOUT})
    if extra:
        remedy = "Remove it from the folder: a bundle holds only what it lists."
        raise BundleError(str(folder), f"{extra[0]!r} is not part of the bundle", remedy)
    content = {}
    for name, digest in listed.items():
        content[name] = read_plain(folder / name)
        if sha256(content[name]).hexdigest() != digest:
            raise BundleError(str(folder / name), "was changed since the bundle was made", REMAKE)
    return about, content


def _read_about(folder: Path) -> dict[str, Any]:
    if not folder.is_dir():
        remedy = "Name a folder made by `wardround bundle`."
        raise BundleError(str(folder), "is not a folder" if folder.exists() else "does not exist", remedy)
    path = folder / ABOUT
    if not path.exists() and not path.is_symlink():
        remedy = "Name a folder made by `wardround bundle`."
        raise BundleError(str(folder), f"is not a bundle: it has no {ABOUT}", remedy)
    text = read_plain(path)
    about = parsed_about(text, path, FORMAT, "a bundle")
    if not _is_sealed(about, text):
        raise BundleError(str(path), "was changed since the bundle was made", REMAKE)
    missing = [name for name in NEEDED if name not in about["files"]]
    unknown = [name for name in about["files"] if name not in (*NEEDED, *OPTIONAL)]
    if missing or unknown:
        problem = f"lists no {missing[0]}" if missing else f"lists {unknown[0]!r}, which no bundle has"
        raise BundleError(str(path), problem, REMAKE)
    return dict(about)


def parsed_about(text: bytes, path: Path, newest: int, what: str) -> dict[str, Any]:
    """The JSON file that describes a folder. `what` is the kind of folder, `newest` its newest known format."""
    try:
        about = json.loads(text)
    except (ValueError, RecursionError):
        raise BundleError(str(path), "is damaged: it is not JSON", REMAKE) from None
    number = about.get("format") if isinstance(about, dict) else None
    if type(number) is not int or number < 1:
        raise BundleError(str(path), f"is not the description of {what}: it has no format number", REMAKE)
    if number > newest:
        problem = f"is of format {number}, and this version of wardround reads format {newest}"
        raise BundleError(str(path), problem, "Install a newer version of wardround.")
    return dict(about)


def _is_sealed(about: Mapping[str, Any], text: bytes) -> bool:
    """Compares bytes, so that repeated keys are refused as well."""
    files = about.get("files")
    if not isinstance(files, dict):
        return False
    content = {key: value for key, value in about.items() if key not in ("id", "seal")}
    try:
        identity = _digest({key: value for key, value in content.items() if key != "made"})
        whole = _digest({**content, "id": identity})
        return text == as_text(about) and about.get("id") == identity and about.get("seal") == whole
    except (ValueError, RecursionError):  # NaN, or deeply nested lists
        return False


def _file_names(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError as error:
        raise BundleError(str(folder), f"cannot be read ({error.strerror})", "Look at its permissions.") from None


def read_plain(path: Path) -> bytes:
    """Links are refused: what they lead to may change later."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise BundleError(str(path), "is not a plain file", REMAKE)
        return path.read_bytes()
    except OSError as error:
        raise BundleError(str(path), f"cannot be read ({error.strerror})", "Look at its permissions.") from None
