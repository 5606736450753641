"""`manifest.json` of a split on disk: where the rows came from, what is predicted, and each site's file with its hash.

It stands beside the sites' files. A site that has only its own file keeps the manifest with it. The manifest is an
input like any other: what is in it is checked before it is used.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from hashlib import file_digest
from pathlib import Path
from typing import Any

from wardround.core.atomic_files import write_atomically
from wardround.core.errors import DataError, StudyError, WardroundError, suggest
from wardround.data.records import SPLIT_PARTS, Column
from wardround.data.serialization import read_own_column, write_own_column
from wardround.tasks import Task, read_task

FILE = "manifest.json"
GROUP = "group "  # before the name of a group of patients, in the header of a table
IN_NPZ = dict(zip(SPLIT_PARTS, ("train", "val", "test"), strict=True))
FORMAT = "wardround split, version 1"
MOST_BYTES = 64 * 2**20
ANEW = "Write the split anew with `wardround data split`, or bring the file back that it names."


@dataclass(frozen=True)
class SiteRows:
    """One site's file. `recorded` are the columns of a table that this site has."""

    name: str
    file: str
    sha256: str
    rows: Mapping[str, int]  # by part of the split
    labels: Mapping[str, int]  # rows of each class, or with each finding; empty for numbers
    recorded: tuple[str, ...] = ()

    @property
    def count(self) -> int:
        return sum(self.rows.values())


@dataclass(frozen=True)
class Manifest:
    source: str
    partition: str
    settings: Mapping[str, Any]  # of the partition
    seed: int
    task: Task
    sites: tuple[SiteRows, ...]
    outcome: str = ""
    synthetic: bool = False
    image: tuple[int, int, int] | None = None  # channels, height, width; None: a table
    columns: tuple[Column, ...] = ()
    groups: tuple[str, ...] = ()  # of a table: columns of the files that are groups of patients and no features
    patients: bool = False  # whether the files number the patients
    roles: Mapping[str, str] = field(default_factory=dict)  # of a table: what the files call `patient`, `split`, ...

    def site(self, file: str) -> SiteRows | None:
        return next((site for site in self.sites if site.file == file), None)


def write_manifest(manifest: Manifest, folder: Path) -> None:
    content = {
        "format": FORMAT,
        **{name: getattr(manifest, name) for name in ("source", "partition", "seed", "outcome", "synthetic")},
        "settings": {name: value for name, value in manifest.settings.items() if _is_plain(value)},
        "task": manifest.task.to_json(),
        "image": manifest.image,
        "columns": [write_own_column(column) for column in manifest.columns],
        "groups": manifest.groups,
        "patients": manifest.patients,
        "roles": dict(manifest.roles),
        "sites": [asdict(site) for site in manifest.sites],
    }
    write_atomically(folder / FILE, (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def is_split(path: Path) -> bool:
    """A folder with a manifest, the manifest itself, or a file that one beside it names."""
    if path.is_dir():
        return (path / FILE).is_file()
    if path.name == FILE:
        return path.is_file()
    beside = path.parent / FILE
    return path.is_file() and beside.is_file() and read_manifest(path.parent).site(path.name) is not None


def read_manifest(folder: Path) -> Manifest:
    path = folder / FILE
    try:
        if path.stat().st_size > MOST_BYTES:
            raise _damaged(path, f"is larger than {MOST_BYTES >> 20} MB")
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise _damaged(path, "is no manifest of a split, or of a version that is not known here")
        return _parsed(content, path)
    except FileNotFoundError:
        remedy = "Name a folder that `wardround data split` wrote, or one of its files with the manifest beside it."
        raise DataError(str(folder), f"has no {FILE}", remedy) from None
    except WardroundError as error:
        raise error if isinstance(error, DataError) else _damaged(path, error.problem) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise _damaged(path, f"cannot be read ({type(error).__name__})") from None


def _parsed(content: Mapping[str, Any], path: Path) -> Manifest:
    sites = tuple(_site(site, path) for site in content["sites"])
    names, files = [site.name for site in sites], [site.file for site in sites]
    if not sites or len(set(names)) < len(names) or len(set(files)) < len(files):
        raise _damaged(path, "names no site, or one of them twice")
    image = content["image"]
    if image is not None and (len(image) != 3 or not all(isinstance(size, int) and size > 0 for size in image)):
        raise _damaged(path, "gives no shape of the images")
    return Manifest(
        str(content["source"]),
        str(content["partition"]),
        dict(content["settings"]),
        int(content["seed"]),
        read_task(content["task"]),
        sites,
        str(content["outcome"]),
        bool(content["synthetic"]),
        None if image is None else (image[0], image[1], image[2]),
        tuple(map(read_own_column, content["columns"])),
        tuple(map(str, content["groups"])),
        bool(content["patients"]),
        {str(role): str(name) for role, name in content["roles"].items()},
    )


def _site(content: Mapping[str, Any], path: Path) -> SiteRows:
    name, file = str(content["name"]), str(content["file"])
    if not name.isprintable() or not name.strip() or Path(file).name != file or file.startswith("."):
        raise _damaged(path, "a site has no usable name, or its file is not in this folder")
    return SiteRows(
        name,
        file,
        str(content["sha256"]),
        {part: int(content["rows"][part]) for part in SPLIT_PARTS},
        {str(label): int(count) for label, count in content["labels"].items()},
        tuple(map(str, content["recorded"])),
    )


def _damaged(path: Path, problem: str) -> DataError:
    return DataError(str(path), problem, "Write the split anew with `wardround data split`.")


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return file_digest(file, "sha256").hexdigest()


def checked_file(folder: Path, site: SiteRows) -> Path:
    """The site's file, as the manifest knows it to the last byte."""
    path = folder / site.file
    if not path.is_file():
        raise DataError(str(path), f"is not there, and {FILE} names it as the rows of {site.name}", ANEW)
    try:
        same = sha256_of(path) == site.sha256
    except OSError as error:
        raise DataError(str(path), f"cannot be read ({error.strerror})", "Check the file's permissions.") from None
    if not same:
        raise DataError(str(path), f"is not the file that {FILE} describes: its SHA-256 is another", ANEW)
    return path


def sites_at(path: Path) -> tuple[Path, Manifest, tuple[SiteRows, ...]]:
    """The folder, its manifest, and all sites; or the one site whose file `path` is."""
    if path.is_dir() or path.name == FILE:
        folder = path if path.is_dir() else path.parent
        manifest = read_manifest(folder)
        return folder, manifest, manifest.sites
    manifest = read_manifest(path.parent)
    site = manifest.site(path.name)
    if site is None:
        remedy = suggest(path.name, [site.file for site in manifest.sites], f"Files of {FILE}")
        raise DataError(str(path), f"is none of the files that {FILE} beside it names", remedy)
    return path.parent, manifest, (site,)


def split_at(path: Path) -> Manifest | None:
    """For a study's text: the manifest, where it can be read now."""
    try:
        return sites_at(path)[1]
    except (DataError, StudyError, OSError):
        return None
