"""A table that a caller gave in place of a file's path. Of its rows a study file holds their digest alone."""

from collections.abc import Mapping
from typing import Any, ClassVar


class InMemory:
    """`columns` is None where only the digest is known, as in the study of a run folder."""

    MARK: ClassVar[str] = "DataFrame, sha256 "

    def __init__(self, name: str, digest: str, columns: Mapping[str, Any] | None = None) -> None:
        self.name, self.digest, self.columns = name, digest, columns

    @classmethod
    def from_mark(cls, name: str, mark: str) -> "InMemory":
        return cls(name, mark.removeprefix(cls.MARK))

    @classmethod
    def is_mark(cls, value: object) -> bool:
        return isinstance(value, str) and value.startswith(cls.MARK)

    @property
    def mark(self) -> str:
        """What stands in a study file in its place."""
        return f"{self.MARK}{self.digest}"

    def __str__(self) -> str:
        return f"DataFrame {self.name!r}"

    def __repr__(self) -> str:  # never a value; equal where the rows are
        return f"<{self.mark}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InMemory) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __deepcopy__(self, memo: object) -> "InMemory":
        return self  # it never changes, and may be large
