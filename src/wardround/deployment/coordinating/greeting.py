"""The beginning of a run: greet everybody, let those who came agree, and send them what they agreed on.

A topology declares how it does this as a `Greeting`; the loop until all agree is the same for sites and for regions.
"""

from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from wardround.core.notices import Notice
from wardround.deployment.common.answer_checks import check_waves
from wardround.deployment.common.messaging import Answered, Check, Messenger, SiteLeft, Step
from wardround.deployment.common.schema_agreement import Disagreement
from wardround.deployment.coordinating.agreement import Federation, read_federation, write_federation
from wardround.protocol.catalogue import Hello, PartyReady, Prepared, Ready, RegionPrepared, RegionReady
from wardround.protocol.messages import message_of
from wardround.runs.folder import write_atomically

G = TypeVar("G", Ready, RegionReady, PartyReady)


@dataclass(frozen=True)
class Greeting(Generic[G]):
    ready: type[G]
    prepared: type[Prepared | RegionPrepared]
    check: Check[G]
    hospitals_in: Callable[[Mapping[str, G]], Collection[str]]  # that are there, by what was answered
    negotiate: Callable[[dict[str, G]], Generator[Step, None, Federation]]  # raises SiteLeft or Disagreement


def greet(messenger: Messenger, ready: type[G], check: Check[G]) -> Generator[Step, None, dict[str, G]]:
    hello = message_of(Hello(run=messenger.run_name, study=messenger.study.hash, sites=messenger.hospitals))
    requests = {site: messenger.sealed(hello, site) for site in messenger.present}
    answers: dict[str, Answered[G]] = yield from messenger.answers(requests, ready, hello.kind, check=check)
    for site, answered in answers.items():
        messenger.log.add("site joined", site=site, versions=answered.body.versions, head=answered.log)
    return {site: answered.body for site, answered in answers.items()}


def federate(messenger: Messenger, greeting: Greeting[G]) -> Generator[Step, None, Federation]:
    """What was agreed stands when a run is resumed."""
    path = messenger.folder.path / "state" / "agreement.json"
    ready = yield from greet(messenger, greeting.ready, greeting.check)
    if path.is_file():
        federation = read_federation(path.read_bytes(), messenger.study, messenger.families, messenger.hospitals)
    else:
        federation = yield from _agree(messenger, greeting, ready)
        write_atomically(path, write_federation(federation))
    federation.plan.refuse_unsound_arms()
    waves = len(federation.plan.waves())
    messenger.agreement = federation.prepare
    answers = yield from messenger.ask_all(
        federation.prepare, greeting.prepared, closing=True, check=lambda site, body: check_waves(body, waves)
    )
    messenger.prepared = set(answers)
    return federation


def _agree(messenger: Messenger, greeting: Greeting[G], ready: dict[str, G]) -> Generator[Step, None, Federation]:
    """Repeat until all remaining sites agree. Later, no site can be added to this run."""
    while True:
        known = greeting.hospitals_in(ready)
        there = [hospital for hospital in messenger.hospitals if hospital in known]
        if len(ready) < len(messenger.members) or there != messenger.hospitals:
            messenger.hospitals = there
            restrict_to(messenger, [site for site in ready if site not in messenger.left])
            ready = yield from greet(messenger, greeting.ready, greeting.check)
            continue
        messenger.title = "agreeing on columns"
        try:
            return (yield from greeting.negotiate(ready))
        except SiteLeft:
            spoken_for = {hospital for site in messenger.present for hospital in messenger.hospitals_of(site)}
            messenger.hospitals = [hospital for hospital in messenger.hospitals if hospital in spoken_for]
            restrict_to(messenger, messenger.present)
            ready = yield from greet(messenger, greeting.ready, greeting.check)
        except Disagreement as error:
            ready = without(messenger, error, ready)


def restrict_to(messenger: Messenger, sites: Collection[str]) -> None:
    """Remove all other sites from the run, and keep the reason for the results."""
    for site in messenger.members:
        late = Notice("site-late", "warning", site, details={"greeting": True})
        if site not in sites:
            messenger.not_joined[site] = messenger.left.get(site, late)
    messenger.members = [site for site in messenger.members if site in sites]
    messenger.write_federation()


def without(messenger: Messenger, error: Disagreement, ready: Mapping[str, G]) -> dict[str, G]:
    """Remove who disagrees with the majority, if the quorum allows it; otherwise the run stops."""
    if len(messenger.present) - len(error.notices) < messenger.quorum:
        raise error
    for notice in error.notices:
        messenger.leave(notice)
    return {site: body for site, body in ready.items() if site not in messenger.left}
