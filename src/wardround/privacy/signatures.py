"""Who signs what others check, whatever the keys are."""

from typing import Protocol


class Signer(Protocol):
    def sign(self, content: bytes) -> bytes: ...


class Verifier(Protocol):
    def verify(self, signature: bytes, content: bytes) -> bool: ...
