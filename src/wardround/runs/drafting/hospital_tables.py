"""The files of a first study, each read once, by the name of its hospital."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from wardround.core.errors import DataError, StudyError
from wardround.data.text_table import Table, checked_names, read_bytes, read_table

SUFFIXES = (".gz", ".csv", ".tsv", ".txt")


@dataclass(frozen=True)
class HospitalTables:
    paths: Mapping[str, Path]
    tables: Mapping[str, Table]

    @property
    def shared(self) -> list[str]:
        """Columns that every file has, in the order of the first."""
        first, *others = self.tables.values()
        return [name for name in first if all(name in table for table in others)]

    @property
    def names(self) -> list[str]:
        """All columns, in order of first appearance."""
        return list(dict.fromkeys(name for table in self.tables.values() for name in table))


def read_hospitals(files: Sequence[Path], renamed: Mapping[str, Path]) -> HospitalTables:
    """A file's name is that of its hospital, unless `renamed` has another."""
    paths = _by_name(files, renamed)
    if len(paths) < 2:
        problem = "one file is one hospital, which has nobody to train together with"
        remedy = (
            "Give a CSV file for each of two or more hospitals; split a file of several by its column of hospitals."
        )
        raise DataError(", ".join(map(str, paths.values())) or "files", problem, remedy)
    _refuse_equal_files(paths)
    return HospitalTables(paths, {name: read_table(path, "auto", checked_names) for name, path in paths.items()})


def _by_name(files: Sequence[Path], renamed: Mapping[str, Path]) -> dict[str, Path]:
    names = {path.absolute(): name for name, path in renamed.items()}
    for name, path in renamed.items():
        if path not in files and path.absolute() not in [file.absolute() for file in files]:
            problem = f"is named for {name!r}, and is not among the files"
            raise StudyError(f"--name {name}={path}", problem, "Give the file as an argument too.")
    paths: dict[str, Path] = {}
    for path in files:
        name = names.get(path.absolute(), hospital_name(path))
        if not name:
            raise StudyError(str(path), "gives its hospital no name", f"Give one: --name NAME={path}.")
        if name in paths:
            problem = f"two files would be of a hospital {name!r}: this one and {paths[name]}"
            raise StudyError(str(path), problem, f"Name one of them: --name NAME={path}.")
        paths[name] = path
    return paths


def hospital_name(path: Path) -> str:
    name = path.name
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return name.strip()


def _refuse_equal_files(paths: Mapping[str, Path]) -> None:
    seen: dict[str, str] = {}
    for name, path in paths.items():
        first = seen.setdefault(sha256(read_bytes(path)).hexdigest(), name)
        if first != name:
            problem = f"has the same content as {paths[first]}, the file of {first!r}"
            raise DataError(str(path), problem, "Give each hospital's own file, and each once.")
