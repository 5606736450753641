"""The coordinator of parties with different features: it carries what they seal for each other, and cannot read it.

It learns how many patients each party has and all have, how many rows train, how many numbers each party gives, the
loss of each round, and the figures at the end. Dies at any moment; started again, it goes on with the block it was in.
"""

import json
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from safetensors import SafetensorError
from safetensors.torch import load

from wardround.core.errors import DataError, DeployError
from wardround.core.tree import Tree
from wardround.deployment.common.answer_checks import check_classes, check_waves, require, rows_scored
from wardround.deployment.common.deployed_plan import DeployedPlan
from wardround.deployment.common.deployment_results import Participants, save_summaries, write_results
from wardround.deployment.common.messaging import Step
from wardround.deployment.common.schema_agreement import split_sizes
from wardround.deployment.flat.coordinator import Coordinator
from wardround.deployment.vertical.party_plan import (
    VerticalPlan,
    coordinator_vertical_plan,
    shapes_by_kind,
    without_names,
)
from wardround.deployment.vertical.patient_matching import (
    PATIENTS,
    STAGES,
    VISITS,
    as_bytes,
    as_tensors,
    messages_in,
    terms_of,
)
from wardround.deployment.vertical.vertical_results import keep_without, topology_facts
from wardround.deployment.vertical.vertical_validation import holder_of, parties_of
from wardround.evaluation.summaries.summary_validation import Expected, check_summary
from wardround.privacy.psi.psi import COORDINATOR, SUM_PRINT, Matcher, PsiMessage, check_message, due_answers
from wardround.privacy.signatures import Verifier
from wardround.protocol.catalogue import End
from wardround.protocol.messages import Message, Sealed
from wardround.protocol.party_sealing import vouched_key
from wardround.protocol.reading import REMEDY, bad_answer
from wardround.runs.checkpoint import read_leaves, write_leaves
from wardround.runs.folder import write_atomically
from wardround.runs.record_form import from_fields
from wardround.runs.records import RecordWriter
from wardround.tasks import Task, read_task
from wardround.training.round_record import RoundRecord
from wardround.training.trial import Trial

MOST_NUMBERS = 1_000_000  # that a party gives of one row
Number = TypeVar("Number", int, float)
Answered = tuple[Message, Tree]
Answers = dict[str, Answered]
PartyCheck = Callable[[str, Answered], None]


@dataclass(frozen=True)
class ExchangeState:
    """Of a wave between two blocks. `gradients` are sealed and still to be delivered, as TRIAL/PARTY."""

    step: int = 0
    gradients: Tree = field(default_factory=dict)
    up: Mapping[str, int] = field(default_factory=dict)  # bytes of the round so far, by trial
    down: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    pending: list[dict[str, Any]] = field(default_factory=list)  # records whose model is scored when the wave ends
    records: int = 0  # of the wave that are in the run's file
    done: bool = False

    def next(self, active: Sequence[int], embeddings: Tree, gradients: Tree, seconds: float) -> "ExchangeState":
        """After a block of the trials that are `active`."""
        up, down, duration = dict(self.up), dict(self.down), dict(self.seconds)
        for place in map(str, active):
            up[place] = up.get(place, 0) + _bytes(embeddings, place)
            down[place] = down.get(place, 0) + _bytes(gradients, place)
            duration[place] = duration.get(place, 0.0) + seconds / len(active)
        after = replace(self, step=self.step + 1, gradients=gradients, pending=list(self.pending))
        return replace(after, up=up, down=down, seconds=duration)


def round_record(
    state: ExchangeState, place: int, trial: Trial, number: int, loss: float, exchanges: int
) -> tuple[dict[str, Any], ExchangeState]:
    """A round's record as a simulation has it, and the state without what was counted for it."""
    own = str(place)
    record = RoundRecord(
        arm=trial.arm,
        seed=trial.seed,
        round=number,
        loss=loss,
        sites=tuple(trial.topology.parties),
        bytes_down=state.down.get(own, 0),
        bytes_up=state.up.get(own, 0),
        exchanges=exchanges,
        epochs=dict.fromkeys(trial.topology.parties, trial.training.local_epochs),
        seconds=state.seconds.get(own, 0.0),
    )
    rest = replace(state, up=_without(state.up, own), down=_without(state.down, own))
    rest = replace(rest, seconds=_without(state.seconds, own))
    return {"trial": place, **vars(record)}, rest


def write_exchange(path: Path, state: ExchangeState) -> None:
    place = {name: value for name, value in vars(state).items() if name != "gradients"}
    write_leaves(path, state.gradients, place)


def read_exchange(path: Path) -> ExchangeState:
    """The beginning, where there is no file."""
    if not path.is_file():
        return ExchangeState()
    gradients, place = read_leaves(path)
    return ExchangeState(gradients=gradients, **place)


def _without(counts: Mapping[str, Number], place: str) -> dict[str, Number]:
    return {key: value for key, value in counts.items() if key != place}


def holders_task(payload: Mapping[str, Any]) -> Task:
    """A class of too few rows to be named is called by its place: no other site could tell its name."""
    names = [entry["name"] or f"class {place}" for place, entry in enumerate(payload["names"])]
    return read_task({**payload["options"], "kind": payload["kind"], "names": names})


def _bytes(tensors: Tree, place: str) -> int:
    return sum(leaf.numel() for name, leaf in tensors.items() if name.split("/", 1)[0] == place)


@dataclass(frozen=True)
class Matched:
    """All that is known before the first block, as plain data: a resumed run does not ask again."""

    task: dict[str, Any]
    sizes: dict[str, int]  # patients of each party
    common: int
    traffic: int  # bytes of the matching
    rows: list[dict[str, int]]  # the holder's training, validation and test rows, by kind of arm
    unmatched: int | None  # None: withheld, because they are few
    described: dict[str, Any]
    shapes: dict[str, list[list[int]]]  # by party, for each kind of arm


@dataclass
class VerticalCoordinator(Coordinator):
    carried: int = field(default=0)

    end: ClassVar[End] = "party"

    @property
    def quorum(self) -> int:
        """Nobody can be left out: a row needs the numbers of all parties."""
        return len(self.sites)

    @property
    def holder(self) -> str:
        return holder_of(self.study)

    @property
    def others(self) -> list[str]:
        return [party for party in parties_of(self.study) if party != self.holder]

    def run(self) -> Generator[Step]:
        with self.folder.locked():
            self._begin()
            path = self.folder.path / "state" / "matched.json"
            matched = yield from self._federate_parties(path)
            self.plan = plan = self._plan(matched)
            agreed = {"run": self.run_name, "shapes": matched.shapes, "task": without_names(plan.task)}
            count = len(plan.waves())
            request = dict.fromkeys(self.members, Message("agree", agreed))
            yield from self._exchange(request, "agree", lambda party, answer: check_waves(answer[0].body, count))
            # only now: if a party does not agree, all are asked again at the next start
            write_atomically(path, json.dumps(vars(matched)).encode())
            waves = yield from self._train_all(plan)
            self.title = "computing results"
            yield self.step()
            facts = topology_facts(self.folder, self.study, plan.task, waves, _facts(matched))
            invited = Participants(self.invited, self.members, {}, scored=self.members)
            write_results(self.folder, plan, {self.holder: matched.described}, waves, [], invited, facts)
            yield from self._finish()

    def _train_all(self, plan: VerticalPlan) -> Generator[Step, None, int]:
        """The number of waves."""
        waves = plan.waves()
        trials = [[plan.trial(self.study.arm(arm), seed) for arm, seed in wave] for wave in waves]
        self.total = sum(trial.training.rounds for wave in trials for trial in wave)
        for number, members in enumerate(trials):
            yield from self._train_wave(number, members, plan)
        return len(waves)

    def _plan(self, matched: Matched) -> VerticalPlan:
        plan = coordinator_vertical_plan(self.study, self.families, read_task(matched.task))
        plan.agree(shapes_by_kind(self.study, plan.kinds, matched.shapes))
        for kind, sizes in zip(plan.kinds, matched.rows, strict=True):
            plan.counts[kind] = sizes["train"]
            plan.agreed[kind] = replace(plan.agreed[kind], split_sizes={self.holder: sizes})
        plan.refuse_unsound_arms()
        return plan

    def _federate_parties(self, path: Path) -> Generator[Step, None, Matched]:
        """Greet, match, assign rows. What all have agreed to once stands."""
        ready = yield from self._greet()
        if path.is_file():
            return Matched(**json.loads(path.read_bytes()))
        try:
            return (yield from self._match_all(ready))
        except DataError as error:
            yield from self._give_up(error)
            raise

    def _match_all(self, ready: Mapping[str, Message]) -> Generator[Step, None, Matched]:
        task = holders_task(ready[self.holder].body["task"])
        plan = coordinator_vertical_plan(self.study, self.families, task)
        vouchers = {party: message.body["voucher"] for party, message in ready.items()}
        rosters = {PATIENTS: list(parties_of(self.study))}
        by_visit = [party for party in self.others if ready[party].body["visits"]]
        if by_visit:
            rosters[VISITS] = [self.holder, *by_visit]
        self.carried, sizes, common = 0, {}, 0
        for stage in rosters:
            self.title = f"matching {stage}"
            matcher = yield from self._match(stage, vouchers, rosters)
            if stage == PATIENTS:
                sizes, common = dict(matcher.sizes), matcher.common or 0
        self.log.add("patients matched", sizes=sizes, common=common)
        self.title = "assigning rows"
        request = {self.holder: Message("assign", {"run": self.run_name})}
        answers = yield from self._exchange(
            request, "assign", lambda party, answer: check_assigned(answer, plan, self.others)
        )
        assigned, sealed = answers[self.holder]
        messages = {
            party: Message("shape", {"run": self.run_name}, {"rows": sealed[party]} if party in self.others else {})
            for party in self.members
        }
        shaped = yield from self._exchange(messages, "shape", lambda party, answer: check_shapes(party, answer, plan))
        return Matched(
            task=task.to_json(),
            sizes=sizes,
            common=common,
            traffic=self.carried,
            rows=[split_sizes(sizes) for sizes in assigned.body["sizes"]],
            unmatched=assigned.body["unmatched"],
            described=dict(assigned.body["described"]),
            shapes={party: message.body["shapes"] for party, (message, _) in shaped.items()},
        )

    def check_ready(self, site: str, answer: Message) -> None:
        super().check_ready(site, answer)
        require((answer.body["task"] is not None) == (site == self.holder), "a task where there are no labels, or none")
        known = vouched_key(self.run_name, site, answer.body["voucher"], self.keys)
        require(known is not None, "a key that the key of its kit has not signed")

    def _match(
        self, stage: str, vouchers: Mapping[str, Any], rosters: Mapping[str, list[str]]
    ) -> Generator[Step, None, Matcher]:
        """Deliver to each party all messages of the matching that wait for it, until there are none."""
        matcher = Matcher(terms_of(self.study, self.run_name, stage, tuple(rosters[stage])), self.keys)
        waiting: dict[str, list[PsiMessage]] = {party: [] for party in rosters[stage]}
        steps = dict.fromkeys(rosters[stage], 0)
        while waiting:
            messages = {}
            for party, queue in waiting.items():
                body: dict[str, Any] = {**self._at(STAGES.index(stage), steps[party]), "stage": stage}
                body |= {"vouchers": vouchers, "rosters": rosters}
                messages[party] = Message("match", body, as_tensors([message.encode() for message in queue]))
                steps[party] += 1
            received = waiting
            answers = yield from self._exchange(
                messages,
                f"match {stage}",
                lambda party, answer: check_messages(party, answer, received[party], matcher, self.keys),  # noqa: B023
            )
            waiting = {}
            for party in rosters[stage]:
                for encoded in messages_in(answers[party][1]) if party in answers else ():
                    message = PsiMessage.decode(encoded)
                    self.carried += len(message.content)
                    for forwarded in _forward(matcher, message):
                        waiting.setdefault(forwarded.receiver, []).append(forwarded)
            if COORDINATOR in waiting:
                raise DeployError("matching patients", "a message has nowhere to go", "Begin a new run.")
        return matcher

    def _give_up(self, error: DataError) -> Generator[Step]:
        """Without patients in common there is no run: all parties hear why, and the next start begins anew."""
        self.log.add("matching failed", why=error.problem)
        self.title = "taking leave"
        yield from self._say_goodbye("", error.problem)
        self.folder.remove_state()

    def _train_wave(self, number: int, trials: list[Trial], plan: VerticalPlan) -> Generator[Step]:
        path = self.folder.path / "state" / "waves" / f"{number:05}.safetensors"
        state = read_exchange(path)
        before, steps = self.done, [plan.steps_of(trial) for trial in trials]
        last = max(total for _, total in steps)
        self.title = f"{trials[0].arm}{f' and {len(trials) - 1} more' if len(trials) > 1 else ''}"
        if not state.done:
            with self.folder.append_records(trials, state.records) as records:
                while state.step < last:
                    self.done = before + sum(min(state.step, total) // each for each, total in steps)
                    state = yield from self._block(number, trials, steps, state, records)
                    write_exchange(path, state)
                state = yield from self._assess(number, trials, state, records)
                write_exchange(path, state)
        self.done = before + sum(trial.training.rounds for trial in trials)

    def _block(
        self,
        number: int,
        trials: list[Trial],
        steps: list[tuple[int, int]],
        state: ExchangeState,
        records: RecordWriter,
    ) -> Generator[Step, None, ExchangeState]:
        """One block: a message to every party without labels, then one to the holder."""
        began, step = time.monotonic(), state.step
        active = [place for place, (_, total) in enumerate(steps) if step < total]
        embedded = yield from self._exchange(
            self._messages("embed", number, state), f"block {step + 1}", _sends({str(place) for place in active})
        )
        embeddings = {
            f"{place}/{party}": leaves[str(place)] for party, (_, leaves) in embedded.items() for place in active
        }
        message = Message("learn", self._at(number, step), embeddings)
        expected = {f"{place}/{party}" for place in active for party in self.others}
        ending = {str(place) for place in active if (step + 1) % steps[place][0] == 0}

        def check(party: str, answer: Answered) -> None:
            _sends(expected)(party, answer)
            require(set(answer[0].body["losses"]) == ending, "losses of other rounds than those that end")

        learned, gradients = (yield from self._exchange({self.holder: message}, f"block {step + 1}", check))[
            self.holder
        ]
        losses = {int(place): float(loss) for place, loss in learned.body["losses"].items()}
        after = state.next(active, embeddings, gradients, time.monotonic() - began)
        after = _record_ended_rounds(after, trials, steps, step, losses, records)
        if losses:
            self.log.add("round closed", wave=number, round=step, heads=self._heads(embedded, learned))
        return replace(after, records=records.flush())

    def _assess(
        self, number: int, trials: list[Trial], state: ExchangeState, records: RecordWriter
    ) -> Generator[Step, None, ExchangeState]:
        """The last gradients to the parties, their embeddings of other rows to the holder, its figures back."""
        places = [str(place) for place in range(len(trials))]
        requests = self._messages("embed_last", number, state)
        embedded = yield from self._exchange(requests, "last embeddings", _sends(places))
        embeddings = {f"{place}/{party}": leaves[place] for party, (_, leaves) in embedded.items() for place in places}
        message = Message("assess", self._at(number, state.step), embeddings)

        def check(party: str, answer: Answered) -> None:
            self.check_summary(party, answer[0], trials, range(len(trials)))
            check_without(answer[0].body["without"], trials, self.agreed_plan, self.holder, self.others)

        assessed, _ = (yield from self._exchange({self.holder: message}, "predictions", check))[self.holder]
        for record in state.pending:
            figures = assessed.body["figures"].get(str(record["trial"]), {})
            curve = {
                f"{subset}_{name}": value
                for subset, curve in figures.items()
                for name, value in curve["figures"].items()
            }
            known = {name: value for name, value in curve.items() if value is not None}
            records.add(replace(from_fields(record), figures=known))
        save_summaries(self.folder, number, trials, {self.holder: assessed})
        keep_without(self.folder, number, trials, assessed.body["without"])
        self.log.add("wave finished", wave=number, heads=self._heads(embedded, assessed))
        return ExchangeState(step=state.step, records=records.flush(), done=True)

    def _heads(self, answers: Answers, of_holder: Message) -> dict[str, str]:
        heads = {party: message.log for party, (message, _) in answers.items()}
        return {**heads, self.holder: of_holder.log}

    def _messages(self, kind: str, number: int, state: ExchangeState) -> dict[str, Message]:
        """To every party without labels, with its gradients of the block before."""
        gradients: dict[str, Tree] = {party: {} for party in self.others}
        for name, leaf in state.gradients.items():
            place, party = name.split("/", 1)
            gradients[party][place] = leaf
        return {party: Message(kind, self._at(number, state.step), leaves) for party, leaves in gradients.items()}

    def _at(self, wave: int, step: int) -> dict[str, Any]:
        return {"run": self.run_name, "wave": wave, "round": step}

    def _exchange(
        self, requests: Mapping[str, Message], what: str, check: PartyCheck
    ) -> Generator[Step, None, Answers]:
        """The answers of all, with the bytes that came with them. `check` raises where one cannot be."""
        answers: Answers = {}

        def take(site: str, sealed: Sealed, message: Message) -> None:
            answer = message, tensors_of(site, sealed)
            check(site, answer)
            answers[site] = answer

        yield from self.collect(
            {site: self.sealed(request, site) for site, request in requests.items()}, take, what, True
        )
        return {site: answers[site] for site in self.members if site in answers}

    def _may_close(self, requested: Collection[str], waiting: Collection[str], began: float) -> bool:
        """Never: a late party is waited for, or the run stops here and can go on later."""
        deadline = self.study.deployment.deadline
        if deadline is not None and waiting and time.monotonic() - began > deadline:
            late = ", ".join(waiting)
            problem = f"{late} did not answer within {deadline:g} seconds, and every party is needed in every block"
            raise DeployError("coordinator", problem, "Start it again when they are there: it goes on from here.")
        return False


def _record_ended_rounds(
    state: ExchangeState,
    trials: list[Trial],
    steps: list[tuple[int, int]],
    step: int,
    losses: Mapping[int, float],
    records: RecordWriter,
) -> ExchangeState:
    """Records of the rounds that end with this block. A trial's last one waits until its model is scored."""
    for place, (each, total) in enumerate(steps):
        if step >= total or (step + 1) % each:
            continue
        record, state = round_record(state, place, trials[place], (step + 1) // each, losses[place], each)
        if record["round"] == trials[place].training.rounds:
            state.pending.append(record)
        else:
            records.add(from_fields(record))
    return state


def _sends(names: Collection[str]) -> PartyCheck:
    """Checks that a party sends exactly these."""

    def check(party: str, answer: Answered) -> None:
        require(set(answer[1]) == set(names), "other numbers than it was asked for")

    return check


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


def tensors_of(site: str, sealed: Sealed) -> Tree:
    """Bytes and nothing else: what they mean is between the parties."""
    try:
        tensors = load(sealed.tensors) if sealed.tensors else {}
    except SafetensorError:
        raise DeployError(site, "sent what cannot be carried on", REMEDY) from None
    for leaf in tensors.values():
        as_bytes(leaf)
    return tensors


def _facts(matched: Matched) -> dict[str, Any]:
    """As a simulation describes its matching."""
    return {
        "patients": matched.sizes,
        "common": matched.common,
        "train": matched.rows[0]["train"],
        "unmatched_train": matched.unmatched,
        "bytes": matched.traffic,
    }


def check_messages(
    party: str, answer: Answered, received: Sequence[PsiMessage], matcher: Matcher, keys: Mapping[str, Verifier]
) -> None:
    """A party's part of the matching: all that the messages it received ask for and nothing else.

    What is missing cannot be asked for later: the others would have gone on without it, and stand by their answers.
    """
    require(sorted(answer[1]) == [f"{place:03}" for place in range(len(answer[1]))], "messages that are out of order")
    messages = [PsiMessage.decode(encoded) for encoded in messages_in(answer[1])]
    for message in messages:
        if message.sender != party:
            raise bad_answer(party, "speaks in another party's name", "Look into its log.")
        check_message(party, matcher.terms, message, keys)
    kinds = [(message.kind, message.owner, message.keys) for message in messages]
    require(kinds == due_answers(party, matcher.terms, received), "other messages than the matching asks for")
    if {message.owner for message in received if message.kind == SUM_PRINT} == set(matcher.terms.roster):
        require(answer[0].body["common"] == matcher.common, "another number of common patients")


def check_assigned(answer: Answered, plan: VerticalPlan, others: Sequence[str]) -> None:
    body, sealed = answer[0].body, answer[1]
    require(set(sealed) == set(others), "rows for other parties than the study has")
    require(len(body["sizes"]) == len(plan.kinds), "rows of another number of arms")
    require(all(sizes["train"] > 0 for sizes in body["sizes"]), "no training rows")
    for part, rows in body["sizes"][0].items():
        require(body["described"][part] == rows, f"two numbers of {part} rows")
    check_classes(body["described"], plan.task)


def check_shapes(party: str, answer: Answered, plan: VerticalPlan) -> None:
    """Who is named with columns gives numbers of every row; an image has three sizes, a table one. The holder of the
    labels may have nothing but these."""
    shapes = answer[0].body["shapes"]
    require(len(shapes) == len(plan.kinds), "sizes for another number of arms")
    for shape, kind in zip(shapes, plan.kinds, strict=True):
        gives = bool(plan.study.arm(kind[0]).topology.parties[party])
        may_be_empty = not gives or party == holder_of(plan.study)
        require((gives and len(shape) in (1, 3)) or (may_be_empty and not shape), "a size that no row has")
        require(prod(shape) <= MOST_NUMBERS, "more numbers than a row may have")


def check_without(
    without: Mapping[str, Any], trials: Sequence[Trial], plan: DeployedPlan, holder: str, others: Collection[str]
) -> None:
    """Figures as they are while another party is missing."""
    for key, by_party in without.items():
        require(key == str(int(key)) and int(key) < len(trials), "figures of a model that the study does not have")
        require(set(by_party) == set(others), "figures without other parties than the study has")
        rows, exact = rows_scored(holder, "test", trials[int(key)], plan)
        for summary in by_party.values():
            check_summary(summary, Expected(plan.task, rows, exact))
