"""What coordinator and sites send each other: a kind, a body of plain data, named tensors. Signed, never pickled.

A message travels as three byte strings: the head (JSON), the tensors (safetensors) and a signature over both. The head
keeps the order of the tensors, because sums over leaves depend on it in the last bit and the file sorts them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import Any, Protocol

import orjson
from safetensors import SafetensorError
from safetensors.torch import load, save

from wardround.core.errors import DeployError
from wardround.core.tree import Tree
from wardround.privacy.signatures import Signer, Verifier
from wardround.protocol.text import plain_text

PROTOCOL = 6  # both ends must speak the same one


@dataclass(frozen=True)
class Message:
    kind: str
    body: Mapping[str, Any] = field(default_factory=dict)
    tensors: Tree = field(default_factory=dict, repr=False)
    names: tuple[str, ...] = ()  # of the tensors in their order, where they were left closed


@dataclass(frozen=True)
class Sealed:
    head: bytes
    tensors: bytes = field(repr=False)
    signature: bytes = field(repr=False)

    @cached_property
    def tensors_hash(self) -> bytes:
        """By itself, so that what is sent to many sites need be hashed once."""
        return sha256(self.tensors).digest()

    @cached_property
    def digest(self) -> bytes:
        return sha256(sha256(self.head).digest() + self.tensors_hash).digest()

    @property
    def hash(self) -> str:
        return self.digest.hex()

    @property
    def size(self) -> int:
        return len(self.head) + len(self.tensors) + len(self.signature)


class Transport(Protocol):
    """Whoever carries messages to sites and brings their answers."""

    def ask(self, messages: dict[str, Sealed]) -> Iterator[tuple[str, Sealed] | None]:
        """Answers in order of arrival; None where nothing has come for a moment. Ends when every site has answered.

        Messages may be added while it goes on; those that are answered are taken out.
        """

    def connected(self) -> Mapping[str, bool]: ...


def tensor_bytes(tensors: Tree) -> bytes:
    return save({name: leaf.detach().contiguous() for name, leaf in tensors.items()}) if tensors else b""


def seal(message: Message, signer: Signer, packed: bytes | None = None, packed_hash: bytes | None = None) -> Sealed:
    """`packed` are the message's tensors as bytes, with their hash, where they are known already."""
    content = {"protocol": PROTOCOL, "kind": message.kind, "body": message.body, "order": list(message.tensors)}
    tensors = tensor_bytes(message.tensors) if packed is None else packed
    unsigned = Sealed(orjson.dumps(content), tensors, b"")
    if packed_hash is not None:
        unsigned.__dict__["tensors_hash"] = packed_hash
    return replace(unsigned, signature=signer.sign(unsigned.digest))


def open_sealed(sealed: Sealed, verifier: Verifier, sender: str, tensors: bool = True) -> Message:
    """Refused unless the sender wrote exactly this. Without `tensors` only their names are read."""
    if not verifier.verify(sealed.signature, sealed.digest):
        raise DeployError(sender, "a message does not carry its signature", "Make sure that both have the same kits.")
    try:
        content = orjson.loads(sealed.head)
        if content["protocol"] != PROTOCOL:
            version = plain_text(str(content["protocol"]), 20)
            problem = f"speaks version {version} of the protocol, this machine version {PROTOCOL}"
            raise DeployError(sender, problem, "Install the same version of wardround everywhere.")
        leaves = load(sealed.tensors) if sealed.tensors and tensors else {}
        names = tuple(map(str, content["order"]))
        return Message(
            str(content["kind"]), dict(content["body"]), {name: leaves[name] for name in names if tensors}, names
        )
    except (KeyError, TypeError, ValueError, SafetensorError) as error:
        problem = f"a message cannot be read ({type(error).__name__})"
        raise DeployError(sender, problem, "Install the same version of wardround everywhere.") from None
