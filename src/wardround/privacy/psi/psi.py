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

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from wardround.core.errors import DataError, DeployError
from wardround.privacy.psi import group as psi_group
from wardround.privacy.psi.group import InvalidPoint
from wardround.privacy.psi.patient_ids import FORMS, Patients, read_ids
from wardround.privacy.psi.psi_terms import (
    COMMON,
    COORDINATOR,
    DISTRUST,
    LIST,
    PRINT,
    PRINTS,
    SUM,
    SUM_PRINT,
    PsiMessage,
    Terms,
    check_message,
)
from wardround.privacy.secure_sum.masks import derive
from wardround.privacy.secure_sum.terms import Commitments, Signer, Verifier, digest

NOBODY = -1  # in the place of a patient's number: an entry that only fills the list up


class Party:
    """One party in one matching.

    `secret` is 32 bytes or more from os.urandom, new for each study. `commitments` keep what the party has said, so
    that it cannot be made to add its key to another list by being restarted: that would try more ids out on it.
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
        """What the party says to a message. The same message again gets the same answer, another one is refused."""
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
        context, found = digest(b"matching", self.terms.digest, owner.encode()), digest(content)
        if self._commitments.commit(f"matching {kind}", context, found) != found:
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
        """Messages to send on."""
        check_message("coordinator", self.terms, message, self._verifiers)
        if message.kind == PRINTS:
            return self._compare(message)
        if message.kind == SUM_PRINT:
            return [replace(message, receiver=party) for party in self.terms.roster]
        if message.kind == LIST and message.keys == 1:
            if message.form not in FORMS:
                raise DeployError("coordinator", f"{message.sender} says nothing of the form of its ids", DISTRUST)
            self.forms[message.owner] = message.form
            self._keep_size(message, psi_group.POINT)
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
    return all(one < other for one, other in pairwise(points))


def _cut(prints: bytes) -> list[bytes]:
    return [prints[start : start + PRINT] for start in range(0, len(prints), PRINT)]
