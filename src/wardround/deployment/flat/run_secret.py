"""The secret of one run at a site: 32 bytes from the operating system, in a file that only its owner may read.

Sampling, noise and masks are derived from it, so that a restarted site repeats itself bit by bit. It is drawn once in a
run and destroyed at the end, and a run can never have another: the same round under two secrets would be two answers
where one was paid for.
"""

import os
from contextlib import suppress
from pathlib import Path

from wardround.core.errors import DeployError
from wardround.privacy.dp.noise import KEY_BYTES
from wardround.runs.ledger import sync

REMEDY = "Let the coordinator begin a new run. What this one has cost stays in the ledger."


class RunSecret:
    """`folder` is that of the run at this site, or at the coordinator."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path, self.destroyed = folder, folder / "secret", folder / "secret-destroyed"

    def draw(self, used: bool) -> bytes:
        """The run's secret, drawn before its first use. `used` says whether anything was made with one already."""
        if self.destroyed.exists():
            raise DeployError("secret", "that of this run was destroyed when the run was over", REMEDY)
        try:
            secret = self.path.read_bytes()
        except FileNotFoundError:
            if used:
                problem = "that of this run is gone, without which what was answered cannot be repeated"
                raise DeployError("secret", problem, REMEDY) from None
            return self._new()
        if len(secret) != KEY_BYTES:
            raise DeployError("secret", "that of this run was changed", REMEDY)
        return secret

    def _new(self) -> bytes:
        """Complete on disk before it is used, and never in place of another."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        secret, begun = os.urandom(KEY_BYTES), self.folder / f".secret-{os.getpid()}"
        begun.unlink(missing_ok=True)
        _write(os.open(begun, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), secret)
        os.link(begun, self.path)  # fails where there is one
        begun.unlink()
        sync(self.folder)
        return secret

    def destroy(self) -> None:
        """Overwrite and remove it. The marker comes first, so that no crash in between lets another be drawn."""
        for left in self.folder.glob(".secret-*"):
            left.unlink()
        if not self.path.exists():
            return
        self.destroyed.touch(mode=0o600)
        sync(self.folder)
        with suppress(FileNotFoundError):
            _write(os.open(self.path, os.O_WRONLY), bytes(KEY_BYTES))
            self.path.unlink()
        sync(self.folder)


def _write(descriptor: int, content: bytes) -> None:
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
