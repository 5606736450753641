"""Messages to parties and their answers, with tensors that are sealed bytes between them."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Generic

from wardround.core.errors import DeployError
from wardround.core.tree import Tree
from wardround.deployment.common.messaging import Answered, B, Messenger, Step
from wardround.deployment.vertical.patient_matching import as_bytes
from wardround.protocol.catalogue import Request
from wardround.protocol.messages import Sealed, message_of
from wardround.protocol.reading import REMEDY
from wardround.protocol.tensors import unpack


@dataclass(frozen=True)
class Opened(Generic[B]):
    """An answer with its tensors, which are sealed bytes between parties."""

    body: B
    tensors: Tree
    log: str


PartyCheck = Callable[[str, Opened[B]], None]


def exchange(
    messenger: Messenger,
    requests: Mapping[str, tuple[Request, Tree]],
    answer: type[B],
    what: str,
    check: PartyCheck[B],
) -> Generator[Step, None, dict[str, Opened[B]]]:
    """The answers of all, with the bytes that came with them. `check` raises where one cannot be."""
    answers: dict[str, Opened[B]] = {}

    def take(site: str, answered: Answered[B]) -> None:
        opened = Opened(answered.body, tensors_of(site, answered.sealed), answered.log)
        check(site, opened)
        answers[site] = opened

    sealed = {
        site: messenger.sealed(message_of(request, tensors), site) for site, (request, tensors) in requests.items()
    }
    yield from messenger.collect(sealed, answer, take, what, closing=True)
    return {site: answers[site] for site in messenger.members if site in answers}


def tensors_of(site: str, sealed: Sealed) -> Tree:
    """Bytes and nothing else: what they mean is between the parties."""
    try:
        tensors = unpack(sealed.tensors)
    except ValueError:
        raise DeployError(site, "sent what cannot be carried on", REMEDY) from None
    for leaf in tensors.values():
        as_bytes(leaf)
    return tensors
