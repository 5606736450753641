"""Parties that are matched in one process: the same protocol, byte for byte."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from wardround.core import seeds
from wardround.core.errors import DeployError
from wardround.privacy.psi.patient_ids import Patients
from wardround.privacy.psi.psi import COORDINATOR, Matcher, Party, PsiMessage, Terms
from wardround.privacy.secure_sum.secure_sum import InMemory
from wardround.privacy.secure_sum.simulated_sum import simulated_key


@dataclass(frozen=True)
class Matched:
    patients: Mapping[str, Patients]  # the common ones at each party, in the same order
    # bytes by sender and receiver; "" is the coordinator
    traffic: Mapping[tuple[str, str], int] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)


def match_patients(
    ids: Mapping[str, Iterable[Any] | Patients],
    session: bytes = b"simulation",
    seed: int | None = None,
    terms: Terms | None = None,
    watch: Callable[[str, PsiMessage], None] = lambda to, message: None,
    threads: int | None = None,
) -> Matched:
    """Common patients of parties that are all here.

    With a seed the messages repeat too; without one, secrets come from the operating system. The result is the same
    with any secret, because common patients are in the order of their ids. `watch` is shown where a message goes, and
    the message, each time it travels: a party's messages all go to the coordinator first.
    """
    agreed = Terms(session, tuple(ids)) if terms is None else terms
    keys = {name: simulated_key(name) for name in agreed.roster}
    parties = {
        name: Party(name, ids[name], agreed, _secret(seed, name), keys[name], keys, InMemory(), threads)
        for name in agreed.roster
    }
    matcher = Matcher(agreed, keys)
    traffic: dict[tuple[str, str], int] = {}
    on_the_way = deque[tuple[str, bytes]]()

    def send(sender: str, messages: Iterable[PsiMessage]) -> None:
        for message in messages:
            to, encoded = message.receiver if sender == COORDINATOR else COORDINATOR, message.encode()
            watch(to, message)
            traffic[sender, to] = traffic.get((sender, to), 0) + len(encoded)
            on_the_way.append((to, encoded))

    for name, party in parties.items():
        send(name, party.start())
    while on_the_way:
        to, encoded = on_the_way.popleft()
        message = PsiMessage.decode(encoded)
        send(to, matcher.take(message) if to == COORDINATOR else parties[to].take(message))
    aligned = {name: party.aligned for name, party in parties.items()}
    confirmed = {name: patients for name, patients in aligned.items() if patients is not None}
    if len(confirmed) < len(aligned):
        raise DeployError("matching patients", "a party has not confirmed the result", "Start the matching again.")
    return Matched(confirmed, traffic, matcher.sizes)


def _secret(seed: int | None, name: str) -> bytes:
    return os.urandom(32) if seed is None else seeds.generator(seed, "matching patients", site=name).bytes(32)
