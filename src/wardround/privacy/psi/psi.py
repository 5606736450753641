"""Private set intersection: parties find the patients whom all of them have, and learn of no other patient.

Two parties: Meadows, "A More Efficient Cryptographic Matchmaking Protocol", IEEE S&P 1986; Huberman, Franklin and Hogg,
"Enhancing Privacy and Trust in Electronic Communities", EC 1999. Each party turns its ids into points of a group and
multiplies them by a secret key; the other multiplies them by its own. Whoever was at both has the same point in both
lists, because the order of the keys does not matter, and without a key a point says nothing of an id. More parties do
the same in a ring, until each list has all keys.

    start     each party hides its ids with its key and sends the list to the next, in the order of the points
    take      a party adds its key to each list that comes by, once to each, and passes it on; the last one sends
              short hashes to the coordinator instead of points
    compare   the coordinator sees which entries stand in all lists, and tells each party those of its own list
    confirm   the sum of a party's common points goes around in the same way; all sums must come out alike, so that
              a coordinator that tells parties different patients is found out before anybody uses the result

Both ends are state machines: a message in, messages out. Nothing is random but the secrets, so that a party that died
makes a new Party with the same secret and ids, and says the same bytes again. What each learns, and what is not
protected: docs/explanation/matching-patients.md.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from hashlib import sha256
from itertools import pairwise
from typing import Any

import numpy as np

from wardround.core.errors import DataError, DeployError, StudyError
from wardround.privacy.psi import group as psi_group
from wardround.privacy.psi.group import POINT, InvalidPoint
from wardround.privacy.psi.patient_ids import FORMS, Patients, read_ids
from wardround.privacy.secure_sum.masks import derive, pack
from wardround.privacy.secure_sum.secure_sum import Commitments, digest
from wardround.privacy.signatures import Signer, Verifier

DISTRUST = "Find out who changed or repeated the messages before the party takes part again. No patient was named."
COORDINATOR = ""  # who carries the messages; no party has this name
PRINT = 16  # bytes of the hash of a point that has all keys: enough that no two of 2**40 patients agree by chance

# Kinds of messages. A list goes around from party to party, as does a sum; each adds its key.
LIST, PRINTS, COMMON, SUM, SUM_PRINT = "list", "prints", "common", "sum", "sum print"
KINDS = (LIST, PRINTS, COMMON, SUM, SUM_PRINT)
NOBODY = -1  # in place of a patient's number: an entry that only pads the list


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
            message = cls(kind, sender, receiver, owner, int(keys), form, content, signature)
        except ValueError:  # a UnicodeDecodeError too
            message = None
        if message is None or message.encode() != encoded or message.kind not in KINDS:
            problem = "a message cannot be read"
            raise DeployError("matching patients", problem, "Install the same version of wardround everywhere.")
        return message


def due_answers(party: str, terms: Terms, received: Sequence[PsiMessage]) -> list[tuple[str, str, int]]:
    """How `party` must answer these messages, in their order: kind, owner and keys. Without any it sends its list."""
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


class Party:
    """One party in one matching.

    `secret` is 32 bytes or more from os.urandom, new for each study. `commitments` bind the party to its answers:
    restarting it cannot make it add its key to another list, which would try more ids out on it.
    """

    def __init__(
        self,
        name: str,
        ids: Iterable[Any] | Patients,
        terms: Terms,
        secret: bytes,
        signer: Signer,
        verifiers: Mapping[str, Verifier],
        commitments: Commitments,
        threads: int | None = None,
    ) -> None:
        if name not in terms.roster or not verifiers.keys() >= set(terms.roster) or len(secret) < 32:
            problem = "is not in the roster, or lacks the public key of another party or a secret of 32 bytes"
            raise DeployError(name, problem, "Make sure that all parties have kits of the same study.")
        self.name, self.terms = name, terms
        self.patients = ids if isinstance(ids, Patients) else read_ids(name, ids)
        most = terms.padded_to or terms.most_patients
        if len(self.patients) > most:
            problem = f"has {len(self.patients)} patients, but the parties agreed on lists of {most} at most"
            raise DataError(name, problem, "Agree on longer lists, or match fewer patients.")
        self._signer, self._verifiers, self._commitments, self._threads = signer, verifiers, commitments, threads
        self._key = psi_group.scalar(secret, b"matching", terms.digest, name.encode())
        self._filling = derive(secret, b"filling", terms.digest, name.encode())
        self._hidden: list[bytes] = []  # this party's points, as they were sent
        self._patient: list[int] = []  # the number of the patient behind each of them
        self._common: Patients | None = None
        self._sums: dict[str, bytes] = {}  # short hashes of the sums with all keys, by owner

    def start(self) -> list[PsiMessage]:
        """Its ids, hidden. Sorted by the points, which are as good as random: the order says nothing of the file's."""
        if not self._hidden:
            names = [name.encode() for name in self.patients.ids]
            points = psi_group.hidden(self.terms.digest, self._key, names, self._threads)
            fillers = [str(number).encode() for number in range(self.terms.padded_to - len(names))]
            points += psi_group.hidden(self._filling, self._key, fillers, self._threads)
            numbers = [*range(len(names)), *[NOBODY] * len(fillers)]
            pairs = sorted(zip(points, numbers, strict=True))
            self._hidden, self._patient = [point for point, _ in pairs], [number for _, number in pairs]
        content = b"".join(self._hidden)
        self._commit(LIST, self.name, content)
        return [self._message(LIST, self.name, 1, content, self.patients.form)]

    def take(self, message: PsiMessage) -> list[PsiMessage]:
        """The answer to a message. The same message again gets the same answer, another one is refused."""
        if message.receiver != self.name:
            raise self._refusal("a message is for somebody else")
        if message.kind == COMMON:
            return self._take_common(message)
        check_message(self.name, self.terms, message, self._verifiers)
        if message.kind == SUM_PRINT:
            return self._take_sum(message)
        if message.kind == PRINTS or self.terms.after(message.owner, message.keys) != self.name:
            raise self._refusal("a message is for somebody else")
        return self._pass_on(message)

    @property
    def aligned(self) -> Patients | None:
        """Patients of all parties, in the same order at each; nothing until every party has confirmed the same."""
        return self._common if len(self._sums) == len(self.terms.roster) else None

    def _pass_on(self, message: PsiMessage) -> list[PsiMessage]:
        points = psi_group.split(message.content)
        if message.kind == LIST and message.keys == 1 and not _increasing(points):
            raise self._refusal(f"the list of {message.owner} names somebody twice, or is not sorted")
        try:
            products = psi_group.multiply(self._key, message.content, self._threads)
        except InvalidPoint:
            raise self._refusal(f"a message of {message.sender} holds something that is not a valid point") from None
        self._commit(message.kind, message.owner, message.content)  # not before: a bad list must not bar the good one
        keys = message.keys + 1
        if keys < len(self.terms.roster):
            return [self._message(message.kind, message.owner, keys, b"".join(products))]
        prints = b"".join(self.terms.print_of(product) for product in products)
        return [self._message(PRINTS if message.kind == LIST else SUM_PRINT, message.owner, keys, prints)]

    def _take_common(self, message: PsiMessage) -> list[PsiMessage]:
        if not self._hidden or message.sender != COORDINATOR or message.owner != self.name:
            raise self._refusal("it is told of common patients out of turn")
        marks = np.unpackbits(np.frombuffer(message.content, np.uint8)).astype(bool)
        if len(message.content) != -(-len(self._hidden) // 8) or marks[len(self._hidden) :].any():
            raise self._refusal("it is told of common patients in a list of another length")
        places = [int(place) for place in np.flatnonzero(marks)]
        numbers = [self._patient[place] for place in places]
        if NOBODY in numbers:
            raise self._refusal("it is told that others have a patient who does not exist")
        if len(numbers) < self.terms.least_common:
            raise too_few(self.name, self.terms, len(numbers), {})
        self._commit(COMMON, self.name, message.content)
        self._common = self.patients.only(numbers)
        total = psi_group.add_up([self._hidden[place] for place in places], self._threads)
        return [self._message(SUM, self.name, 1, total)]

    def _take_sum(self, message: PsiMessage) -> list[PsiMessage]:
        self._commit(SUM_PRINT, message.owner, message.content)
        self._sums[message.owner] = message.content
        if len(set(self._sums.values())) > 1:
            raise self._refusal("the parties were told different patients")
        return []

    def _message(self, kind: str, owner: str, keys: int, content: bytes, form: str = "") -> PsiMessage:
        last = keys == len(self.terms.roster)
        receiver = COORDINATOR if last else self.terms.after(owner, keys)
        message = PsiMessage(kind, self.name, receiver, owner, keys, form, content)
        return replace(message, signature=self._signer.sign(message.signed(self.terms)))

    def _commit(self, kind: str, owner: str, content: bytes) -> None:
        """One of each kind for each owner in a matching, whatever happens to the process."""
        context, content_hash = digest(b"matching", self.terms.digest, owner.encode()), digest(content)
        if self._commitments.commit(f"matching {kind}", context, content_hash) != content_hash:
            raise self._refusal(f"it is asked about {owner} a second time, with another {kind}")

    def _refusal(self, problem: str) -> DeployError:
        return DeployError(self.name, problem, DISTRUST)


class Matcher:
    """The coordinator in one matching: it carries messages and compares short hashes. It has no key and no ids.

    With two parties, either may do this too. With more, none of them may: it would see which of its own patients are in
    each single list of the others.
    """

    def __init__(self, terms: Terms, verifiers: Mapping[str, Verifier]) -> None:
        self.terms, self._verifiers = terms, verifiers
        self.forms: dict[str, str] = {}
        self.sizes: dict[str, int] = {}  # entries of each list
        self.common: int | None = None  # how many patients all parties have
        self._prints: dict[str, bytes] = {}

    def take(self, message: PsiMessage) -> list[PsiMessage]:
        check_message("coordinator", self.terms, message, self._verifiers)
        if message.kind == PRINTS:
            return self._compare(message)
        if message.kind == SUM_PRINT:
            return [replace(message, receiver=party) for party in self.terms.roster]
        if message.kind == LIST and message.keys == 1:
            if message.form not in FORMS:
                raise DeployError("coordinator", f"{message.sender} says nothing of the form of its ids", DISTRUST)
            self.forms[message.owner] = message.form
            self._keep_size(message, POINT)
        return [replace(message, receiver=self.terms.after(message.owner, message.keys))]

    def _compare(self, message: PsiMessage) -> list[PsiMessage]:
        self._keep_size(message, PRINT)
        if self._prints.setdefault(message.owner, message.content) != message.content:
            problem = f"there are two lists of {message.owner} in one matching"
            raise DeployError("coordinator", problem, DISTRUST)
        if len(self._prints) < len(self.terms.roster):
            return []
        lists = {owner: _cut(content) for owner, content in self._prints.items()}
        common = set.intersection(*(set(prints) for prints in lists.values()))
        self.common = len(common)
        if len(common) < self.terms.least_common:
            raise too_few("coordinator", self.terms, len(common), self.forms)
        marks = {owner: np.array([entry in common for entry in prints]) for owner, prints in lists.items()}
        return [
            PsiMessage(COMMON, COORDINATOR, owner, owner, content=np.packbits(marks[owner]).tobytes())
            for owner in self.terms.roster
        ]

    def _keep_size(self, message: PsiMessage, each: int) -> None:
        entries = len(message.content) // each
        if self.sizes.setdefault(message.owner, entries) != entries:
            raise DeployError("coordinator", f"the list of {message.owner} changed its length on its way", DISTRUST)


def too_few(where: str, terms: Terms, common: int, forms: Mapping[str, str]) -> DataError:
    """Why there is no result, in counts and forms: no id is shown."""
    names = ", ".join(terms.roster)
    problem = f"{common or 'no'} patients are common to all of {names}"
    if common:
        problem += f", but {terms.least_common} are asked for"
    if len(set(forms.values())) > 1:
        problem += "; their ids differ in form: " + ", ".join(f"{name} has {forms[name]}" for name in sorted(forms))
    remedy = (
        "Compare how the parties write their ids: leading zeros, prefixes, capitals, another numbering. "
        "They must match to the character."
    )
    return DataError(where, problem, remedy)


def _increasing(points: list[bytes]) -> bool:
    return all(point < following for point, following in pairwise(points))


def _cut(prints: bytes) -> list[bytes]:
    return [prints[start : start + PRINT] for start in range(0, len(prints), PRINT)]
