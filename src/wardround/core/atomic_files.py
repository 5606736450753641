"""How files of a run are written: whole or not at all, for their owner alone, and with one clear error on a full disk.

Modes do not depend on the umask. A name that is a symbolic link is replaced, never followed out of the folder.
"""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from shutil import rmtree
from typing import BinaryIO, cast

from wardround.core.errors import BundleError, MachineError

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


_OURS: set[Path] = set()  # what this process is filling: its number alone would not tell two threads apart


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Where to write what `target` will hold. Whatever fails meanwhile, nothing of it is there afterwards.

    Of several that write to one target at once the first to end has it, and the others get an error.
    """
    out = Path(os.path.abspath(target))  # so that it has a name, even where it is given as `.`
    refuse_existing(out)
    partial = own_partial_path(out)
    if partial in _OURS:
        raise BundleError(str(target), "is being written by this very process", "Give another --out.")
    _OURS.add(partial)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        remove_leftovers(out)
        rmtree(partial, ignore_errors=True)  # of a process that died and had our number, as happens in containers
        partial.mkdir()
        try:
            yield partial
            _put_in_place(partial, out, target)
        finally:
            rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise BundleError(str(target), f"cannot be written ({error.strerror})", "Give another --out.") from None
    finally:
        _OURS.discard(partial)


def _put_in_place(partial: Path, out: Path, target: Path) -> None:
    try:
        os.rename(partial, out)  # only onto nothing or onto an empty folder
    except OSError:
        if out.is_symlink() or out.exists():
            problem = "was written by somebody else meanwhile; what is there is theirs, and nothing of this was kept"
            raise BundleError(str(target), problem, "Look at it, or give another --out.") from None
        raise


def own_partial_path(path: Path) -> Path:
    """Under which name this process writes what will be `path`."""
    return path.with_name(f".{path.name}.{os.getpid()}.partial")


def remove_leftovers(path: Path) -> None:
    """Files and folders of processes that were killed while they wrote what would have been `path`."""
    for found in path.parent.glob(f".{escape(path.name)}.*.partial"):
        number = found.name.split(".")[-2]
        if not number.isdigit() or _is_alive(int(number)):
            continue
        if found.is_dir() and not found.is_symlink():
            rmtree(found, ignore_errors=True)
        else:
            found.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it is somebody else's
        return True
    return True


def refuse_existing(out: Path) -> None:
    """Unless it is an empty folder."""
    if out.is_symlink() or (out.exists() and not (out.is_dir() and not any(out.iterdir()))):
        raise BundleError(str(out), "is there already", "Give another --out, or move the old one away.")
