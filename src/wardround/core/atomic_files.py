"""How files of a run are written: whole or not at all, for their owner alone, and with one clear error on a full disk.

Modes do not depend on the umask. A name that is a symbolic link is replaced, never followed out of the folder.
"""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

from wardround.core.errors import MachineError

PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600
# no space, a quota, a limit on the size of a file, a disk that went read-only, a broken one
FULL = {errno.ENOSPC: "no space is left", errno.EDQUOT: "the quota is used up", errno.EFBIG: "a file grew too large"}
BROKEN = {errno.EROFS: "it can only be read", errno.EIO: "it does not work"}


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write into, which takes the place of `path` at the end. After an error nothing of it is left.

    Whoever reads `path`, at whatever moment the writer died, finds the old content or the new.
    """
    partial = partial_path(path)
    try:
        with open_private(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, "wb") as file:
            yield file
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def write_atomically(path: Path, content: bytes) -> None:
    with replacing(path) as file:
        file.write(content)


def partial_path(path: Path) -> Path:
    """Under which name `path` is written. What a killed process left there is removed."""
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    return partial


def open_private(path: Path, flags: int, mode: str) -> BinaryIO:
    """For its owner alone from its first moment, where it is new."""
    return cast(BinaryIO, os.fdopen(os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, PRIVATE_FILE), mode))


@contextmanager
def full_disk_is_told(folder: Path, remedy: str) -> Iterator[None]:
    """Around what writes a run. `remedy` says how to go on once there is room."""
    try:
        yield
    except OSError as error:
        why = {**FULL, **BROKEN}.get(error.errno or 0)
        if why is None:
            raise
        raise MachineError(str(folder), f"cannot be written: {why} on this disk", remedy) from None


def as_os_error(error: Exception) -> OSError | None:
    """What a library that is not written in Python says of the operating system's error, as Python has it."""
    found = re.search(r"\(os error (\d+)\)", str(error))
    return OSError(int(found[1]), os.strerror(int(found[1]))) if found else None
