"""The coordinator of parties with different features: it carries what they seal for each other, and cannot read it.

It learns how many patients each party has and all have, how many rows train, how many numbers each party gives, the
loss of each round, and the figures at the end. Dies at any moment; started again, it goes on with the block it was in.
"""

import json
import time
from collections.abc import Callable, Collection, Generator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from safetensors import SafetensorError
from safetensors.torch import load

from wardround.core.errors import DataError, DeployError
from wardround.core.tree import Tree
from wardround.deployment.common.answer_checks import check_waves, require
from wardround.deployment.common.deployment_results import RESULT_FILES, Participants, save_summaries, write_results
from wardround.deployment.common.messaging import Step
from wardround.deployment.common.schema_agreement import split_sizes
from wardround.deployment.flat.coordinator import Coordinator
from wardround.deployment.vertical.party_answer_checks import check_dealt, check_messages, check_shapes, check_without
from wardround.deployment.vertical.party_plan import VerticalPlan, coordinator_vertical_plan, shapes_told
from wardround.deployment.vertical.patient_matching import (
    PATIENTS,
    STAGES,
    VISITS,
    as_bytes,
    as_tensors,
    messages_in,
    terms_of,
)
from wardround.deployment.vertical.split_state import ExchangeState, read_exchange, round_record, write_exchange
from wardround.deployment.vertical.vertical_results import keep_without, topology_facts
from wardround.deployment.vertical.vertical_validation import holder_of, parties_of
from wardround.privacy.psi.psi import COORDINATOR, Matcher, PsiMessage
from wardround.protocol.answers import OF_PARTIES, Kinds
from wardround.protocol.messages import Message, Sealed
from wardround.protocol.party_sealing import vouched_key
from wardround.runs.audit import FINISHED, file_hash
from wardround.runs.folder import JsonLines, write_atomically
from wardround.training.trial import Trial

CURVE = ("loss", "accuracy", "auc")  # the last of findings alone
SAME = "Install the same version of wardround everywhere."
Answered = tuple[Message, Tree]
Answers = dict[str, Answered]
PartyCheck = Callable[[str, Answered], None]


@dataclass(frozen=True)
class Matched:
    """What is known before the first block, as plain data: a run goes on without asking again."""

    classes: list[str]
    sizes: dict[str, int]  # patients of each party
    common: int
    sent: int  # bytes of the matching
    sides: list[dict[str, int]]  # the holder's rows on each side, by kind of arm
    unmatched: int | None  # None: withheld, because they are few
    described: dict[str, Any]
    shapes: dict[str, list[list[int]]]  # by party, for each kind of arm
    findings: bool = False  # whether a row may have several of the classes


@dataclass
class VerticalCoordinator(Coordinator):
    carried: int = field(default=0)

    answers: ClassVar[Kinds] = OF_PARTIES

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
            outputs = {"count": len(matched.classes), "findings": matched.findings}
            agreed = {"run": self.run_name, "shapes": matched.shapes, "outputs": outputs}
            count = len(plan.waves())
            yield from self._told(
                Message("agree", agreed), check=lambda party, answer: check_waves(answer[0].body, count)
            )
            # only now: what a party does not agree to is asked for again at the next start
            write_atomically(path, json.dumps(vars(matched)).encode())
            waves = yield from self._train_all(plan)
            self.title = "computing results"
            yield self.step()
            facts = topology_facts(self.folder, self.study, waves, _facts(matched))
            invited = Participants(self.invited, self.members, {}, scored=self.members)
            write_results(self.folder, plan, {self.holder: matched.described}, waves, [], invited, facts)
            made = {name: file_hash(self.folder.path / name) for name in RESULT_FILES}
            self.log.add(FINISHED, study=self.study.hash, files=made)
            self.title = "taking leave"
            yield from self._say_goodbye(made["results.json"])
            self.folder.remove_state()

    def _train_all(self, plan: VerticalPlan) -> Generator[Step, None, int]:
        """How many waves there were."""
        waves = plan.waves()
        trials = [[plan.trial(self.study.arm(arm), seed) for arm, seed in wave] for wave in waves]
        self.total = sum(trial.training.rounds for wave in trials for trial in wave)
        for number, members in enumerate(trials):
            yield from self._exchange(number, members, plan)
        return len(waves)

    def _plan(self, matched: Matched) -> VerticalPlan:
        plan = coordinator_vertical_plan(self.study, self.families, matched.classes, matched.findings)
        plan.counts = {kind: sides["train"] for kind, sides in zip(plan.kinds, matched.sides, strict=True)}
        plan.agree(shapes_told(self.study, plan.kinds, matched.shapes))
        plan.agreed = {
            kind: replace(plan.agreed[kind], split_sizes={self.holder: sides})
            for kind, sides in zip(plan.kinds, matched.sides, strict=True)
        }
        plan.refuse_unsound_arms()
        return plan

    def _federate_parties(self, path: Path) -> Generator[Step, None, Matched]:
        """Greet, match, deal. What all have agreed to once stands."""
        ready = yield from self._greet()
        if path.is_file():
            return Matched(**json.loads(path.read_bytes()))
        try:
            return (yield from self._match_all(ready))
        except DataError as error:
            yield from self._give_up(error)
            raise

    def _match_all(self, ready: Mapping[str, Message]) -> Generator[Step, None, Matched]:
        classes = [one["name"] or f"class {place}" for place, one in enumerate(ready[self.holder].body["classes"])]
        findings = ready[self.holder].body["findings"]
        plan = coordinator_vertical_plan(self.study, self.families, classes, findings)
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
        self.title = "sharing out rows"
        dealt, sealed = (
            yield from self._told(
                Message("assign", {"run": self.run_name}),
                [self.holder],
                lambda party, answer: check_dealt(answer, plan, self.others),
            )
        )[self.holder]
        messages = {
            party: Message("shape", {"run": self.run_name}, {"rows": sealed[party]} if party in self.others else {})
            for party in self.members
        }
        shaped = yield from self._asked(messages, "shape", lambda party, answer: check_shapes(party, answer, plan))
        return Matched(
            classes=classes,
            sizes=sizes,
            common=common,
            sent=self.carried,
            sides=[split_sizes(sides) for sides in dealt.body["sizes"]],
            unmatched=dealt.body["unmatched"],
            described=dict(dealt.body["described"]),
            shapes={party: message.body["shapes"] for party, (message, _) in shaped.items()},
            findings=findings,
        )

    def check_ready(self, site: str, answer: Message) -> None:
        super().check_ready(site, answer)
        require(bool(answer.body["classes"]) == (site == self.holder), "classes where there are no labels, or none")
        known = vouched_key(self.run_name, site, answer.body["voucher"], self.keys)
        require(known is not None, "a key that the key of its kit has not signed")

    def _match(
        self, stage: str, vouchers: Mapping[str, Any], rosters: Mapping[str, list[str]]
    ) -> Generator[Step, None, Matcher]:
        """Send each party all messages of the matching that wait for it, until nobody has anything to say."""
        matcher = Matcher(terms_of(self.study, self.run_name, stage, tuple(rosters[stage])), self.keys)
        waiting: dict[str, list[PsiMessage]] = {party: [] for party in rosters[stage]}
        steps = dict.fromkeys(rosters[stage], 0)
        while waiting:
            messages = {}
            for party, queue in waiting.items():
                body = {"run": self.run_name, "stage": stage, "wave": STAGES.index(stage), "round": steps[party]}
                told = {**body, "vouchers": vouchers, "rosters": rosters}
                messages[party] = Message("match", told, as_tensors([message.encode() for message in queue]))
                steps[party] += 1
            received = waiting
            answers = yield from self._asked(
                messages,
                f"match {stage}",
                lambda party, answer: check_messages(party, answer, received[party], matcher, self.keys),  # noqa: B023
            )
            waiting = {}
            for party in rosters[stage]:
                for encoded in messages_in(answers[party][1]) if party in answers else ():
                    message = PsiMessage.decode(encoded)
                    self.carried += len(message.content)
                    for one in _carried(matcher, message):
                        waiting.setdefault(one.receiver, []).append(one)
            if COORDINATOR in waiting:
                raise DeployError("matching patients", "a message has nowhere to go", "Begin a new run.")
        return matcher

    def _give_up(self, error: DataError) -> Generator[Step]:
        """Without patients in common there is nothing to go on with: all are told, and the next start begins anew."""
        self.log.add("matching failed", why=error.problem)
        self.title = "taking leave"
        yield from self._say_goodbye("", error.problem)
        self.folder.remove_state()

    def _exchange(self, number: int, trials: list[Trial], plan: VerticalPlan) -> Generator[Step]:
        """All blocks of a wave, and what comes of them."""
        path = self.folder.path / "state" / "waves" / f"{number:05}.safetensors"
        state = read_exchange(path)
        before, steps = self.done, [plan.steps_of(trial) for trial in trials]
        last = max(total for _, total in steps)
        self.title = f"{trials[0].arm}{f' and {len(trials) - 1} more' if len(trials) > 1 else ''}"
        if not state.done:
            with JsonLines(self.folder.unit_records(number), state.records) as records:
                while state.step < last:
                    self.done = before + sum(min(state.step, total) // each for each, total in steps)
                    state = yield from self._block(number, trials, steps, state, records)
                    write_exchange(path, state)
                state = yield from self._judge(number, trials, steps, state, records)
                write_exchange(path, state)
        self.done = before + sum(trial.training.rounds for trial in trials)

    def _block(
        self, number: int, trials: list[Trial], steps: list[tuple[int, int]], state: ExchangeState, records: JsonLines
    ) -> Generator[Step, None, ExchangeState]:
        """One block: a message to every party without labels, then one to the holder."""
        began, step = time.monotonic(), state.step
        active = [place for place, (_, total) in enumerate(steps) if step < total]
        embedded = yield from self._asked(
            self._messages("embed", number, state), f"block {step + 1}", _sends({str(place) for place in active})
        )
        given = {f"{place}/{party}": made[str(place)] for party, (_, made) in embedded.items() for place in active}
        message = Message("learn", self._at(number, step), given)
        wanted = {f"{place}/{party}" for place in active for party in self.others}
        ending = {str(place) for place in active if (step + 1) % steps[place][0] == 0}

        def check(party: str, answer: Answered) -> None:
            _sends(wanted)(party, answer)
            require(set(answer[0].body["losses"]) == ending, "losses of other rounds than those that end")

        learned, back = (yield from self._asked({self.holder: message}, f"block {step + 1}", check))[self.holder]
        losses = {int(place): float(loss) for place, loss in learned.body["losses"].items()}
        after = state.next(active, given, back, time.monotonic() - began)
        after = _record_ended_rounds(after, trials, steps, step, losses, records)
        heads = {site: one.body["head"] for site, (one, _) in embedded.items()} | {self.holder: learned.body["head"]}
        if losses:
            self.log.add("round closed", wave=number, round=step, heads=heads)
        return after.written(records.flush())

    def _judge(
        self, number: int, trials: list[Trial], steps: list[tuple[int, int]], state: ExchangeState, records: JsonLines
    ) -> Generator[Step, None, ExchangeState]:
        """The last gradients to the parties, their embeddings of other rows to the holder, its figures back."""
        every = {str(place) for place in range(len(trials))}
        shown = yield from self._asked(self._messages("embed_last", number, state), "last embeddings", _sends(every))
        given = {
            f"{place}/{party}": made[str(place)] for party, (_, made) in shown.items() for place in range(len(trials))
        }
        message = Message("assess", self._at(number, state.step), given)

        def check(party: str, answer: Answered) -> None:
            self.check_summary(party, answer[0], trials, range(len(trials)))
            check_without(answer[0].body["without"], trials, self.agreed_plan, self.holder, self.others)

        judged, _ = (yield from self._asked({self.holder: message}, "predictions", check))[self.holder]
        figures = judged.body["figures"]
        for record in state.pending:
            found = figures.get(str(record["trial"]), {})
            curve = {f"{side}_{name}": told[name] for side, told in found.items() for name in CURVE if name in told}
            shown_record = {name: value for name, value in record.items() if name != "trial"}
            records.add({**shown_record, **{name: value for name, value in curve.items() if value is not None}})
        save_summaries(self.folder, number, trials, {self.holder: judged})
        keep_without(self.folder, number, trials, judged.body["without"])
        heads = {site: one.body["head"] for site, (one, _) in shown.items()} | {self.holder: judged.body["head"]}
        self.log.add("wave finished", wave=number, heads=heads)
        return state.finished(records.flush())

    def _messages(self, kind: str, number: int, state: ExchangeState) -> dict[str, Message]:
        """To every party without labels, with the gradients of the block before."""
        found = {}
        for party in self.others:
            own = {name.split("/", 1)[0]: leaf for name, leaf in state.back.items() if name.split("/", 1)[1] == party}
            found[party] = Message(kind, self._at(number, state.step), own)
        return found

    def _at(self, wave: int, step: int) -> dict[str, Any]:
        return {"run": self.run_name, "wave": wave, "round": step}

    def _told(
        self, message: Message, parties: Collection[str] | None = None, check: PartyCheck = lambda party, answer: None
    ) -> Generator[Step, None, Answers]:
        """One message to all, or to some."""
        asked = self.members if parties is None else parties
        return (yield from self._asked(dict.fromkeys(asked, message), message.kind, check))

    def _asked(self, messages: Mapping[str, Message], what: str, check: PartyCheck) -> Generator[Step, None, Answers]:
        """The answers of all, with the bytes that came with them. `check` raises where one cannot be."""
        found: Answers = {}

        def take(site: str, sealed: Sealed, answer: Message) -> None:
            read = answer, tensors_of(site, sealed)
            check(site, read)
            found[site] = read

        yield from self.collect({site: self.sealed(one, site) for site, one in messages.items()}, take, what, True)
        return {site: found[site] for site in self.members if site in found}

    def _may_close(self, asked: Collection[str], waiting: Collection[str], began: float) -> bool:
        """Never: who is late is waited for, or the run stops here and can go on later."""
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
    records: JsonLines,
) -> ExchangeState:
    """Records of the rounds that end with this block. A trial's last one waits until its model is scored."""
    for place, (each, total) in enumerate(steps):
        if step >= total or (step + 1) % each:
            continue
        record, state = round_record(state, place, trials[place], (step + 1) // each, losses[place], each)
        if record["round"] == trials[place].training.rounds:
            state.pending.append(record)
        else:
            records.add({name: value for name, value in record.items() if name != "trial"})
    return state


def _sends(names: Collection[str]) -> PartyCheck:
    """Checks that a party sends exactly these."""

    def check(party: str, answer: Answered) -> None:
        require(set(answer[1]) == set(names), "other numbers than it was asked for")

    return check


def _carried(matcher: Matcher, message: PsiMessage) -> list[PsiMessage]:
    """What goes on. How few patients are common, where it is too few, stands in no log and is told to nobody."""
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
        found = load(sealed.tensors) if sealed.tensors else {}
    except SafetensorError:
        raise DeployError(site, "sent what cannot be carried on", SAME) from None
    for leaf in found.values():
        as_bytes(leaf)
    return found


def _facts(matched: Matched) -> dict[str, Any]:
    """As a simulation describes its matching."""
    return {
        "patients": matched.sizes,
        "common": matched.common,
        "train": matched.sides[0]["train"],
        "unmatched_train": matched.unmatched,
        "bytes": matched.sent,
    }
