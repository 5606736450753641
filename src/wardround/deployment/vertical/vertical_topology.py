"""The coordinator of parties with different features: it carries what they seal for each other, and cannot read it.

It learns how many patients each party has and all have, how many rows train, how many numbers each party gives, the
loss of each round, and the figures at the end. Nobody can be left out: a row needs the numbers of all parties.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from wardround.core.errors import DataError, DeployError
from wardround.core.extras import needs
from wardround.core.tree import Tree
from wardround.deployment.common.answer_checks import check_classes, check_ready, check_waves, require, split_sizes
from wardround.deployment.common.deployed_plan import DeployedPlan
from wardround.deployment.common.deployment_results import Participants, write_results
from wardround.deployment.common.messaging import Messenger, Step
from wardround.deployment.common.schema_agreement import read_part
from wardround.deployment.coordinating.coordinator import Coordinator
from wardround.deployment.coordinating.greeting import greet
from wardround.deployment.vertical.block_wave import BlockWave
from wardround.deployment.vertical.party_exchange import Opened, exchange
from wardround.deployment.vertical.party_plan import (
    VerticalPlan,
    coordinator_vertical_plan,
    shapes_by_kind,
    without_names,
)
from wardround.deployment.vertical.patient_matching import PATIENTS, STAGES, VISITS, as_tensors, messages_in, terms_of
from wardround.deployment.vertical.vertical_results import topology_facts
from wardround.deployment.vertical.vertical_validation import holder_of, parties_of
from wardround.privacy.psi.psi import COORDINATOR, SUM_PRINT, Matcher, PsiMessage, check_message, due_answers
from wardround.privacy.signatures import Verifier
from wardround.protocol.catalogue import (
    Agree,
    Agreed,
    AskShape,
    Assign,
    Assigned,
    Described,
    Match,
    Matched,
    PartyReady,
    Request,
    Shaped,
    Stage,
    Voucher,
)
from wardround.protocol.party_sealing import vouched_key
from wardround.protocol.reading import REMEDY, bad_answer
from wardround.runs.folder import write_atomically
from wardround.tasks import read_task
from wardround.training.trial import Trial

with needs("deploy", "a study across hospitals"):
    from msgspec import Struct, json, to_builtins

MOST_NUMBERS = 1_000_000  # that a party gives of one row


def coordinator_of_parties(messenger: Messenger) -> Coordinator:
    messenger.quorum, messenger.all_needed = len(messenger.sites), True
    return Coordinator(messenger, Vertical(messenger))


class PatientsMatched(Struct):
    """All that is known before the first block: a resumed run does not ask again."""

    task: dict[str, Any]
    sizes: dict[str, int]  # patients of each party
    common: int
    traffic: int  # bytes of the matching
    rows: list[dict[str, int]]  # the holder's training, validation and test rows, by kind of arm
    unmatched: int | None  # None: withheld, because they are few
    described: Described
    shapes: dict[str, list[list[int]]]  # by party, for each kind of arm


@dataclass
class Vertical:
    messenger: Messenger
    plan: VerticalPlan | None = None
    matched: PatientsMatched | None = None
    carried: int = 0  # bytes of the matching

    @property
    def holder(self) -> str:
        return holder_of(self.messenger.study)

    @property
    def others(self) -> list[str]:
        return [party for party in parties_of(self.messenger.study) if party != self.holder]

    def agree(self) -> Generator[Step, None, DeployedPlan]:
        """Greet, match, assign rows. What all have agreed to once stands."""
        messenger = self.messenger
        path = messenger.folder.path / "state" / "matched.json"
        ready = yield from greet(messenger, PartyReady, self._check_ready)
        if path.is_file():
            self.matched = matched = json.decode(path.read_bytes(), type=PatientsMatched)
        else:
            try:
                self.matched = matched = yield from self._match_all(ready)
            except DataError as error:
                yield from self._give_up(error)
                raise
        self.plan = plan = self._planned(matched)
        count = len(plan.waves())
        request = Agree(run=messenger.run_name, shapes=matched.shapes, task=without_names(plan.task))
        yield from exchange(
            messenger,
            dict.fromkeys(messenger.members, (request, {})),
            Agreed,
            "agree",
            lambda party, answer: check_waves(answer.body, count),
        )
        # only now: if a party does not agree, all are asked again at the next start
        write_atomically(path, json.encode(matched))
        return plan

    def wave(self, number: int, trials: Sequence[Trial]) -> "BlockWave":
        if self.plan is None:
            raise ValueError("parties are asked for blocks before they have agreed")
        return BlockWave(self.messenger, self.plan, self.holder, self.others, number, trials)

    def write_results(self, waves: int, analysed: Mapping[str, Any], explained: Mapping[str, Any]) -> None:
        messenger, plan, matched = self.messenger, self.plan, self.matched
        if plan is None or matched is None:
            raise ValueError("results are written before parties have agreed")
        facts = topology_facts(messenger.folder, messenger.study, plan.task, waves, _facts(matched))
        invited = Participants(messenger.invited, messenger.members, {}, scored=messenger.members)
        write_results(messenger.folder, plan, {self.holder: matched.described}, waves, [], invited, facts)

    def _planned(self, matched: PatientsMatched) -> VerticalPlan:
        study = self.messenger.study
        plan = coordinator_vertical_plan(study, self.messenger.families, read_task(matched.task))
        plan.agree(shapes_by_kind(study, plan.kinds, matched.shapes))
        for kind, sizes in zip(plan.kinds, matched.rows, strict=True):
            plan.counts[kind] = sizes["train"]
            plan.agreed[kind] = replace(plan.agreed[kind], split_sizes={self.holder: sizes})
        plan.refuse_unsound_arms()
        return plan

    def _match_all(self, ready: Mapping[str, PartyReady]) -> Generator[Step, None, PatientsMatched]:
        messenger, told = self.messenger, ready[self.holder].task
        if told is None:
            raise DeployError(self.holder, "does not say what is predicted", REMEDY)
        # a class of too few rows to be named is called by its place: no other site could tell its name
        task = read_part(told, lambda place: f"class {place}")
        plan = coordinator_vertical_plan(messenger.study, messenger.families, task)
        vouchers = {party: body.voucher for party, body in ready.items()}
        rosters: dict[Stage, list[str]] = {PATIENTS: list(parties_of(messenger.study))}
        by_visit = [party for party in self.others if ready[party].visits]
        if by_visit:
            rosters[VISITS] = [self.holder, *by_visit]
        self.carried, sizes, common = 0, {}, 0
        for stage in rosters:
            messenger.title = f"matching {stage}"
            matcher = yield from self._match(stage, vouchers, rosters)
            if stage == PATIENTS:
                sizes, common = dict(matcher.sizes), matcher.common or 0
        messenger.log.add("patients matched", sizes=sizes, common=common)
        messenger.title = "assigning rows"
        assigned = (
            yield from exchange(
                messenger,
                {self.holder: (Assign(run=messenger.run_name), {})},
                Assigned,
                "assign",
                lambda party, answer: check_assigned(answer, plan, self.others),
            )
        )[self.holder]
        shape = AskShape(run=messenger.run_name)
        shaped = yield from exchange(
            messenger,
            {p: (shape, {"rows": assigned.tensors[p]} if p in self.others else {}) for p in messenger.members},
            Shaped,
            "shape",
            lambda party, answer: check_shapes(party, answer.body, plan),
        )
        return PatientsMatched(
            task=task.to_json(),
            sizes=sizes,
            common=common,
            traffic=self.carried,
            rows=[split_sizes(row_set) for row_set in assigned.body.sizes],
            unmatched=assigned.body.unmatched,
            described=assigned.body.described,
            shapes={party: answer.body.shapes for party, answer in shaped.items()},
        )

    def _check_ready(self, party: str, body: PartyReady) -> None:
        messenger = self.messenger
        check_ready(body, messenger.run_name)
        require((body.task is not None) == (party == self.holder), "a task where there are no labels, or none")
        known = vouched_key(messenger.run_name, party, to_builtins(body.voucher), messenger.keys)
        require(known is not None, "a key that the key of its kit has not signed")

    def _match(
        self, stage: Stage, vouchers: dict[str, Voucher], rosters: dict[Stage, list[str]]
    ) -> Generator[Step, None, Matcher]:
        """Deliver to each party all messages of the matching that wait for it, until there are none."""
        messenger, roster = self.messenger, rosters[stage]
        matcher = Matcher(terms_of(messenger.study, messenger.run_name, stage, tuple(roster)), messenger.keys)
        waiting: dict[str, list[PsiMessage]] = {party: [] for party in roster}
        steps = dict.fromkeys(roster, 0)
        while waiting:
            requests: dict[str, tuple[Request, Tree]] = {}
            for party, queue in waiting.items():
                request = Match(
                    run=messenger.run_name,
                    wave=STAGES.index(stage),
                    round=steps[party],
                    stage=stage,
                    vouchers=vouchers,
                    rosters=rosters,
                )
                requests[party] = request, as_tensors([message.encode() for message in queue])
                steps[party] += 1
            received = waiting
            answers = yield from exchange(
                messenger,
                requests,
                Matched,
                f"match {stage}",
                lambda party, answer: check_messages(party, answer, received[party], matcher, messenger.keys),  # noqa: B023
            )
            waiting = {}
            for party in roster:
                for encoded in messages_in(answers[party].tensors) if party in answers else ():
                    message = PsiMessage.decode(encoded)
                    self.carried += len(message.content)
                    for forwarded in _forward(matcher, message):
                        waiting.setdefault(forwarded.receiver, []).append(forwarded)
            if COORDINATOR in waiting:
                raise DeployError("matching patients", "a message has nowhere to go", "Begin a new run.")
        return matcher

    def _give_up(self, error: DataError) -> Generator[Step]:
        """Without patients in common there is no run: all parties hear why, and the next start begins anew."""
        self.messenger.log.add("matching failed", why=error.problem)
        yield from self.messenger.say_goodbye("", error.problem)
        self.messenger.folder.remove_state()


def _forward(matcher: Matcher, message: PsiMessage) -> list[PsiMessage]:
    """The messages to deliver next. A number of common patients that is too small is written or sent nowhere."""
    try:
        return matcher.take(message)
    except DeployError as error:
        raise DeployError(message.sender, error.problem, error.remedy) from None
    except DataError as error:
        if not matcher.common:
            raise
        least, names = matcher.terms.least_common, ", ".join(matcher.terms.roster)
        problem = f"fewer than {least} patients are common to all of {names}, and {least} are asked for"
        raise DataError(error.where, problem, error.remedy) from None


def _facts(matched: PatientsMatched) -> dict[str, Any]:
    """As a simulation describes its matching."""
    return {
        "patients": matched.sizes,
        "common": matched.common,
        "train": matched.rows[0]["train"],
        "unmatched_train": matched.unmatched,
        "bytes": matched.traffic,
    }


def check_messages(
    party: str,
    answer: Opened[Matched],
    received: Sequence[PsiMessage],
    matcher: Matcher,
    keys: Mapping[str, Verifier],
) -> None:
    """A party's part of the matching: all that the messages it received ask for and nothing else.

    What is missing cannot be asked for later: the others would have gone on without it, and stand by their answers.
    """
    places = [f"{place:03}" for place in range(len(answer.tensors))]
    require(sorted(answer.tensors) == places, "messages that are out of order")
    messages = [PsiMessage.decode(encoded) for encoded in messages_in(answer.tensors)]
    for message in messages:
        if message.sender != party:
            raise bad_answer(party, "speaks in another party's name", "Look into its log.")
        check_message(party, matcher.terms, message, keys)
    kinds = [(message.kind, message.owner, message.keys) for message in messages]
    require(kinds == due_answers(party, matcher.terms, received), "other messages than the matching asks for")
    if {message.owner for message in received if message.kind == SUM_PRINT} == set(matcher.terms.roster):
        require(answer.body.common == matcher.common, "another number of common patients")


def check_assigned(answer: Opened[Assigned], plan: VerticalPlan, others: Sequence[str]) -> None:
    body = answer.body
    require(set(answer.tensors) == set(others), "rows for other parties than the study has")
    require(len(body.sizes) == len(plan.kinds), "rows of another number of arms")
    require(all(sizes.train > 0 for sizes in body.sizes), "no training rows")
    for part, rows in split_sizes(body.sizes[0]).items():
        require(split_sizes(body.described)[part] == rows, f"two numbers of {part} rows")
    check_classes(body.described, plan.task)


def check_shapes(party: str, body: Shaped, plan: VerticalPlan) -> None:
    """Who is named with columns gives numbers of every row; an image has three sizes, a table one. The holder of the
    labels may have nothing but these."""
    require(len(body.shapes) == len(plan.kinds), "sizes for another number of arms")
    for shape, kind in zip(body.shapes, plan.kinds, strict=True):
        gives = bool(plan.study.arm(kind[0]).topology.parties[party])
        may_be_empty = not gives or party == holder_of(plan.study)
        require((gives and len(shape) in (1, 3)) or (may_be_empty and not shape), "a size that no row has")
        require(prod(shape) <= MOST_NUMBERS, "more numbers than a row may have")
