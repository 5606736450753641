"""How a message travels: a body (`protocol/catalogue.py`), named tensors and an address. Signed, never pickled.

A message is three byte strings: the head (JSON), the tensors (safetensors) and a signature over both. The head keeps
the order of the tensors, because sums over leaves depend on it in the last bit and the file sorts them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from typing import Any, Protocol

import orjson

from wardround.core.errors import DeployError
from wardround.core.extras import needs
from wardround.core.tree import Tree
from wardround.privacy.signatures import Signer, Verifier
from wardround.protocol.catalogue import PROTOCOL, Body
from wardround.protocol.tensors import Buffer, pack, unpack
from wardround.protocol.text import plain_text
from wardround.protocol.values import Hex, Name

with needs("deploy", "a study across hospitals"):
    import msgspec
    from msgspec import Raw, Struct


class Head(Struct, forbid_unknown_fields=True):
    """All of a message but its tensors."""

    protocol: int
    kind: str
    site: Name  # the receiver of a request, the sender of an answer
    log: Hex  # head of the sender's audit log
    body: Raw
    order: list[str]  # names of the tensors


class OtherVersion(DeployError):
    """The sender speaks another version of the protocol."""


class Version(Struct):
    """Read first: nothing else of another version can be relied on."""

    protocol: int


@dataclass(frozen=True)
class Message:
    kind: str
    body: Any = field(default_factory=dict)
    tensors: Tree = field(default_factory=dict, repr=False)
    names: tuple[str, ...] = ()  # of the tensors in their order, where they were left closed
    site: str = ""  # the receiver of a request, the sender of an answer
    log: str = ""  # head of the sender's audit log
    raw: bytes = field(default=b"", repr=False)  # the body as it came


def message_of(body: Body, tensors: Tree | None = None) -> Message:
    return Message(body.kind, body, tensors or {})


@dataclass(frozen=True)
class Sealed:
    head: bytes
    tensors: Buffer = field(repr=False)
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


def seal(message: Message, signer: Signer, packed: Buffer | None = None, packed_hash: bytes | None = None) -> Sealed:
    """`packed` are the message's tensors as bytes, with their hash, where they are known already."""
    body = Raw(msgspec.json.encode(message.body))
    head = Head(PROTOCOL, message.kind, message.site, message.log, body, list(message.tensors))
    tensors = pack(message.tensors) if packed is None else packed
    unsigned = Sealed(msgspec.json.encode(head), tensors, b"")
    if packed_hash is not None:
        unsigned.__dict__["tensors_hash"] = packed_hash
    return replace(unsigned, signature=signer.sign(unsigned.digest))


def read_head(content: bytes, sender: str) -> Head:
    """DeployError where it is no head, or one of another version of the protocol."""
    try:
        version = msgspec.json.decode(content, type=Version).protocol
        if version != PROTOCOL:
            versions = f"speaks version {plain_text(str(version), 20)} of the protocol and this machine {PROTOCOL}"
            remedy = f"Where it is {min(version, PROTOCOL)}, wardround is the older one."
            raise OtherVersion(sender, f"{versions}; install the same version of wardround at both", remedy)
        return msgspec.json.decode(content, type=Head)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise _unreadable(sender, error) from None


def open_sealed(sealed: Sealed, verifier: Verifier, sender: str, tensors: bool = True) -> Message:
    """Refused unless the sender wrote exactly this. Without `tensors` only their names are read."""
    if not verifier.verify(sealed.signature, sealed.digest):
        raise DeployError(sender, "a message does not carry its signature", "Make sure that both have the same kits.")
    head = read_head(sealed.head, sender)
    try:
        leaves = unpack(sealed.tensors) if tensors else {}
        ordered = {name: leaves[name] for name in head.order if tensors}
        raw = bytes(head.body)
        body = dict(orjson.loads(raw).items())
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise _unreadable(sender, error) from None
    return Message(head.kind, body, ordered, tuple(head.order), head.site, head.log, raw)


def _unreadable(sender: str, error: Exception) -> DeployError:
    problem = f"a message cannot be read ({type(error).__name__})"
    return DeployError(sender, problem, "Install the same version of wardround everywhere.")
