"""A folder that appears as a whole or not at all: filled under another name, then renamed.

The other name has the number of the process that fills it. So two processes with one target never write into the same
folder, and what a process that died has left can be told from what another is writing.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from glob import escape
from pathlib import Path
from shutil import rmtree

from wardround.core.errors import BundleError

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
