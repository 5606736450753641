"""Files that are written completely or not at all, readable by their owner only, with a clear error on a full disk.

Modes do not depend on the umask. A symbolic link is replaced, never followed out of the folder.
"""

import errno
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, LOCK_NB, flock
from glob import escape
from pathlib import Path
from shutil import rmtree
from typing import BinaryIO, cast

from wardround.core.errors import BundleError, MachineError

PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600
MOST_WRITERS = 1000  # of one file at once
DISK_ERRORS = {
    errno.ENOSPC: "no space is left",
    errno.EDQUOT: "the quota is used up",
    errno.EFBIG: "a file grew too large",
    errno.EROFS: "it can only be read",
    errno.EIO: "it does not work",
}


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file to write into, which replaces `path` at the end. After an error or a crash the old content is there.

    Of several who write at once, in this process or others, each writes a whole file; the last to finish stays.
    """
    with replacing_as(path) as (file, _):
        yield file


def write_atomically(path: Path, content: bytes | memoryview) -> None:
    with replacing(path) as file:
        file.write(content)


@contextmanager
def replacing_as(path: Path) -> Iterator[tuple[BinaryIO, Path]]:
    """The same, with the name of the file, for libraries that write to a name."""
    file, partial = _open_partial(path)
    with file:
        try:
            yield file, partial
            file.flush()
            os.replace(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def _open_partial(path: Path) -> tuple[BinaryIO, Path]:
    """An empty file that nobody else writes, and its name. Who writes holds a lock, which ends with its process."""
    for number in range(MOST_WRITERS):
        partial = path.with_name(f".{path.name}{f'-{number}' if number else ''}.partial")
        while (file := _new_and_locked(partial)) is None and _removed_left_over(partial):
            pass
        if file is not None:
            return file, partial
    problem = f"is being written by {MOST_WRITERS} at once"
    raise MachineError(str(path), problem, "End those that hang, then start again.")


def _new_and_locked(partial: Path) -> BinaryIO | None:
    """None if it is there already, or was taken for left over before it was locked."""
    try:
        file = open_private(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, "wb")
    except FileExistsError:
        return None
    try:
        flock(file, LOCK_EX | LOCK_NB)
        if os.fstat(file.fileno()).st_nlink:
            return file
    except BlockingIOError:
        pass
    file.close()
    return None


def _removed_left_over(partial: Path) -> bool:
    """Remove what nobody writes. False if somebody does."""
    try:
        with open_private(partial, os.O_WRONLY, "wb") as file:
            flock(file, LOCK_EX | LOCK_NB)
            if os.path.samestat(os.fstat(file.fileno()), partial.lstat()):  # else it is finished, and in its place
                partial.unlink()
    except (BlockingIOError, PermissionError):
        return False
    except FileNotFoundError:
        pass
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        partial.unlink(missing_ok=True)  # a link, which is nobody's
    return True


def open_private(path: Path, flags: int, mode: str) -> BinaryIO:
    """A new file is readable by its owner only, from the start."""
    return cast(BinaryIO, os.fdopen(os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, PRIVATE_FILE), mode))


@contextmanager
def reporting_full_disk(folder: Path, remedy: str) -> Iterator[None]:
    """Turn errors of a full or broken disk into one that says so. `remedy`: how to go on once there is room."""
    try:
        yield
    except OSError as error:
        if error.errno not in DISK_ERRORS:
            raise
        problem = f"cannot be written: {DISK_ERRORS[error.errno]} on this disk"
        raise MachineError(str(folder), problem, remedy) from None


def as_os_error(error: Exception) -> OSError | None:
    """The operating system's error behind that of a library written in Rust; None if there is none."""
    match = re.search(r"\(os error (\d+)\)", str(error))
    return OSError(int(match[1]), os.strerror(int(match[1]))) if match else None


_OURS: set[Path] = set()  # folders that this process is writing: its number alone does not tell two threads apart


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to write into, which becomes `target` at the end. After an error nothing is left.

    If several write to one target at once, the first to finish gets it, and the others get an error.
    """
    out = Path(os.path.abspath(target))  # so that it has a name, even if it is `.`
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
    """The name under which this process writes what will be `path`."""
    return path.with_name(f".{path.name}.{os.getpid()}.partial")


def remove_leftovers(path: Path) -> None:
    """Files and folders of processes that were killed while they wrote what would have been `path`."""
    for leftover in path.parent.glob(f".{escape(path.name)}.*.partial"):
        number = leftover.name.split(".")[-2]
        if not number.isdigit() or _is_alive(int(number)):
            continue
        if leftover.is_dir() and not leftover.is_symlink():
            rmtree(leftover, ignore_errors=True)
        else:
            leftover.unlink(missing_ok=True)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it belongs to another user
        pass
    return True


def refuse_existing(out: Path) -> None:
    """An empty folder may be written to."""
    if out.is_symlink() or (out.exists() and not (out.is_dir() and not any(out.iterdir()))):
        raise BundleError(str(out), "is there already", "Give another --out, or move the old one away.")
