"""What the parties of a matching agree on, and what they send each other. psi.py has the protocol."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256

from wardround.core.errors import DeployError, StudyError
from wardround.privacy.psi.group import POINT
from wardround.privacy.secure_sum.masks import pack
from wardround.privacy.secure_sum.terms import Verifier, digest

DISTRUST = "Find out who changed or repeated the messages before the party takes part again. No patient was named."
COORDINATOR = ""  # who carries the messages; no party has this name
PRINT = 16  # bytes of the hash of a point that has all keys: enough that no two of 2**40 patients agree by chance

# Kinds of messages. A list goes around from party to party, as does a sum; each adds its key.
LIST, PRINTS, COMMON, SUM, SUM_PRINT = "list", "prints", "common", "sum", "sum print"
KINDS = (LIST, PRINTS, COMMON, SUM, SUM_PRINT)


@dataclass(frozen=True)
class Terms:
    """What all must agree on before a matching: which one it is, who takes part, how large lists may be.

    `session` must be new for each matching, so that nothing of one is of use in another. `most_patients` bounds how
    many ids a party can try out on the others. With `padded_to`, every party fills its list up to that many entries,
    and nobody learns how many patients it has. Fewer than `least_common` patients in common are not told to anybody.
    """

    session: bytes
    roster: tuple[str, ...]
    most_patients: int = 1_000_000
    padded_to: int = 0  # 0: lists are as long as they are
    least_common: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "roster", tuple(sorted(self.roster)))  # one order for all: lists go around in it
        if len(set(self.roster)) < len(self.roster) or COORDINATOR in self.roster:
            raise StudyError("matching patients", "a party is named twice, or has no name", "Name each party once.")
        if len(self.roster) < 2:
            problem = f"{len(self.roster)} party has nobody to match its patients with"
            raise StudyError("matching patients", problem, "Name two parties or more.")
        if not self.session:
            problem = "the matching has no name of its own"
            raise StudyError("matching patients", problem, "Give each matching a session that was never used before.")
        if self.most_patients < 1 or self.least_common < 1 or not 0 <= self.padded_to <= self.most_patients:
            problem = (
                f"sizes do not fit: most_patients = {self.most_patients}, padded_to = {self.padded_to}, "
                f"least_common = {self.least_common}"
            )
            remedy = "Set most_patients and least_common to 1 or more, and padded_to to no more than most_patients."
            raise StudyError("matching patients", problem, remedy)

    @cached_property
    def digest(self) -> bytes:
        """In every point, key and signature, so that nothing of one matching is of use in another."""
        sizes = (str(size).encode() for size in (self.most_patients, self.padded_to, self.least_common))
        return digest(b"wardround matching 1", self.session, *sizes, *(name.encode() for name in self.roster))

    def after(self, owner: str, keys: int) -> str:
        """Who comes next with the list of `owner`, once `keys` parties have added their key to it."""
        return self.roster[(self.roster.index(owner) + keys) % len(self.roster)]

    def print_of(self, point: bytes) -> bytes:
        """A short hash of a point that has all keys. It is of no use for anything but to be compared."""
        return sha256(b"print" + self.digest + point).digest()[:PRINT]


@dataclass(frozen=True)
class PsiMessage:
    """What one end sends another. The coordinator carries all of them."""

    kind: str
    sender: str
    receiver: str
    owner: str  # whose patients it is about
    keys: int = 0  # how many parties have added their key
    form: str = ""  # what the owner's ids look like: only in the first message about a list
    content: bytes = field(default=b"", repr=False)
    signature: bytes = field(default=b"", repr=False)

    def signed(self, terms: Terms) -> bytes:
        """All but the receiver, which follows from the rest."""
        head = (self.kind, self.sender, self.owner, str(self.keys), self.form)
        parts = (part.encode() for part in head)
        return pack(b"wardround matching", terms.digest, *parts, sha256(self.content).digest())

    def encode(self) -> bytes:
        head = (self.kind, self.sender, self.receiver, self.owner, str(self.keys), self.form)
        return pack(*(part.encode() for part in head), self.content, self.signature)

    @classmethod
    def decode(cls, encoded: bytes) -> "PsiMessage":
        try:
            *head, content, signature = _unpack(encoded)
            kind, sender, receiver, owner, keys, form = (part.decode() for part in head)
            found = cls(kind, sender, receiver, owner, int(keys), form, content, signature)
        except ValueError:  # a UnicodeDecodeError too
            found = None
        if found is None or found.encode() != encoded or found.kind not in KINDS:
            problem = "a message cannot be read"
            raise DeployError("matching patients", problem, "Install the same version of wardround everywhere.")
        return found


def due_answers(party: str, terms: Terms, received: Sequence[PsiMessage]) -> list[tuple[str, str, int]]:
    """What `party` has to say to these messages, in their order: kind, owner and keys. To none it says its own list."""
    if not received:
        return [(LIST, party, 1)]
    closing = {LIST: PRINTS, SUM: SUM_PRINT}
    due = []
    for message in received:
        keys = message.keys + 1
        if message.kind == COMMON:
            due.append((SUM, party, 1))
        elif message.kind in closing:
            kind = message.kind if keys < len(terms.roster) else closing[message.kind]
            due.append((kind, message.owner, keys))
    return due


def check_message(where: str, terms: Terms, message: PsiMessage, verifiers: Mapping[str, Verifier]) -> None:
    """That a party's message is what it may be at this place of the protocol, from the party that is to send it."""
    parties, last = len(terms.roster), message.kind in (PRINTS, SUM_PRINT)
    known = message.sender in terms.roster and message.owner in terms.roster
    fits = message.kind != COMMON and (message.keys == parties if last else 1 <= message.keys < parties)
    if not known or not fits or message.sender != terms.after(message.owner, message.keys - 1):
        raise DeployError(where, "a message does not belong to this matching", DISTRUST)
    if not verifiers[message.sender].verify(message.signature, message.signed(terms)):
        problem = f"a message in the name of {message.sender} is not signed by it for this matching"
        raise DeployError(where, problem, DISTRUST)
    entries, rest = divmod(len(message.content), PRINT if last else POINT)
    if rest or (message.kind in (SUM, SUM_PRINT) and entries != 1):
        raise DeployError(where, f"a message of {message.sender} has another length than it must have", DISTRUST)
    if message.kind in (LIST, PRINTS):
        check_size(where, terms, message.owner, entries)


def check_size(where: str, terms: Terms, owner: str, entries: int) -> None:
    if not entries or entries > terms.most_patients or (terms.padded_to and entries != terms.padded_to):
        problem = f"the list of {owner} has {entries} entries, but the parties agreed on {_agreed(terms)}"
        raise DeployError(where, problem, "Ask the party why. A list that is too long tries ids out on the others.")


def _agreed(terms: Terms) -> str:
    return f"{terms.padded_to} exactly" if terms.padded_to else f"1 to {terms.most_patients}"


def _unpack(packed: bytes) -> list[bytes]:
    parts, place = list[bytes](), 0
    while place < len(packed):
        end = place + 8 + int.from_bytes(packed[place : place + 8], "big")
        if end > len(packed):
            raise ValueError
        parts.append(packed[place + 8 : end])
        place = end
    return parts
