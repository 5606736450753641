"""A folder that appears as a whole or not at all: filled under another name, then renamed."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shutil import rmtree

from wardround.bundles.files import refuse_taken
from wardround.errors import BundleError


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Where to write what `target` will hold. Whatever fails meanwhile, `target` is not there afterwards."""
    out = Path(os.path.abspath(target))  # so that it has a name, even where it is given as `.`
    refuse_taken(out)
    partial = out.with_name(f".{out.name}.partial")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        rmtree(partial, ignore_errors=True)  # what a process that died has left
        partial.mkdir()
        try:
            yield partial
            os.rename(partial, out)
        finally:
            rmtree(partial, ignore_errors=True)
    except OSError as error:
        raise BundleError(str(target), f"cannot be written ({error.strerror})", "Give another --out.") from None
