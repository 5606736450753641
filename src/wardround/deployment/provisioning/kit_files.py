"""Files of a kit: TOML with errors that say what to do, and keys that nobody but their owner may read."""

import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from wardround.core.errors import DeployError, StudyError
from wardround.core.extras import load
from wardround.core.settings import Setting, parse_settings
from wardround.core.toml_files import read_toml, refuse_unplain

DAYS = 825  # how long certificates are valid
HOSTS = ("127.0.0.1", "localhost")
PORT = 9090


def read_table(path: Path, what: str) -> dict[str, Any]:
    """`what` says in words which file was expected, such as "a site file"."""
    table = read_toml(path, f"Give the path of {what}.", DeployError)
    with as_deploy_errors():
        refuse_unplain(table, str(path))
    return table


def read_settings(known: Mapping[str, Setting], path: Path, what: str) -> dict[str, Any]:
    """Of the file `path`. Paths in it are relative to its folder."""
    table = read_table(path, what)
    with as_deploy_errors():
        values = parse_settings(known, table, path.name, path.parent)
    return {name: path.parent / value if isinstance(value, Path) else value for name, value in values.items()}


@contextmanager
def as_deploy_errors(prefix: str = "") -> Iterator[None]:
    """Settings are parsed as those of a study are, but an error here is about a kit's file."""
    try:
        yield
    except StudyError as error:
        raise DeployError(f"{prefix}{error.where}", error.problem, error.remedy) from None


def require_file(path: Path, remedy: str) -> Path:
    if not path.is_file():
        raise DeployError(str(path), "no such file", remedy)
    return path


def require_private(path: Path, remedy: str) -> Path:
    """A private key must be there, and neither its group nor others may read or change it."""
    mode = stat.S_IMODE(require_file(path, remedy).stat().st_mode)
    if mode & 0o077:
        problem = f"is a private key that others on this machine may use (mode {mode:04o})"
        raise DeployError(str(path), problem, f"Run `chmod 600 {path}`.")
    return path


def write_private(path: Path, content: bytes) -> None:
    """Owner-only from its first moment, so that there is no instant in which another user can open it."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def need_cryptography() -> None:
    load("cryptography", "deploy", "a study across hospitals")


def need_flower() -> None:
    """For what talks to other hospitals, before a kit is read. Its package refuses a version it does not know."""
    need_cryptography()
    load("wardround.deployment.flower", "deploy", "a study across hospitals")
