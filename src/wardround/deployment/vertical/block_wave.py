"""Blocks of rounds between parties: embeddings to the holder of the labels, gradients back, figures at the end."""

import time
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeVar

from wardround.core.extras import needs
from wardround.core.tree import Tree
from wardround.deployment.common.answer_checks import check_figures, check_summaries, require, rows_scored
from wardround.deployment.common.deployed_plan import DeployedPlan
from wardround.deployment.common.deployment_results import save_summaries
from wardround.deployment.common.messaging import Messenger, Step
from wardround.deployment.common.waves import TrialRecord
from wardround.deployment.coordinating.closing import close_round
from wardround.deployment.coordinating.coordinator import Closed
from wardround.deployment.vertical.party_exchange import Opened, PartyCheck, exchange
from wardround.deployment.vertical.party_plan import VerticalPlan
from wardround.deployment.vertical.vertical_results import Without, keep_without
from wardround.engines.split.split import Exchanged
from wardround.evaluation.summaries.summary_validation import Expected, check_summary
from wardround.protocol.catalogue import (
    Assess,
    Assessed,
    Embed,
    Embedded,
    EmbedLast,
    LastEmbedded,
    Learn,
    Learned,
    Request,
)
from wardround.training.round_record import RoundRecord
from wardround.training.trial import Run, Trial

with needs("deploy", "a study across hospitals"):
    from msgspec import to_builtins

Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class ExchangeState:
    """Of a wave between two blocks. `gradients` are sealed and still to be delivered, as TRIAL/PARTY."""

    step: int = 0
    gradients: Tree = field(default_factory=dict)
    up: Mapping[str, int] = field(default_factory=dict)  # bytes of the round so far, by trial
    down: Mapping[str, int] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)

    def kept(self) -> tuple[Tree, dict[str, Any]]:
        return self.gradients, {name: value for name, value in vars(self).items() if name != "gradients"}

    @classmethod
    def restored(cls, leaves: Tree, place: Mapping[str, Any]) -> "ExchangeState":
        return cls(gradients=leaves, **place)

    def next(self, active: Sequence[int], embeddings: Tree, gradients: Tree, seconds: float) -> "ExchangeState":
        """After a block of the trials that are `active`."""
        up, down, duration = dict(self.up), dict(self.down), dict(self.seconds)
        for place in map(str, active):
            up[place] = up.get(place, 0) + _bytes(embeddings, place)
            down[place] = down.get(place, 0) + _bytes(gradients, place)
            duration[place] = duration.get(place, 0.0) + seconds / len(active)
        return ExchangeState(self.step + 1, gradients, up, down, duration)

    def without_counts(self, place: str) -> "ExchangeState":
        """Of a trial whose round is over."""
        return replace(
            self, up=_without(self.up, place), down=_without(self.down, place), seconds=_without(self.seconds, place)
        )


def _without(counts: Mapping[str, Number], place: str) -> dict[str, Number]:
    return {key: value for key, value in counts.items() if key != place}


def _bytes(tensors: Tree, place: str) -> int:
    return sum(leaf.numel() for name, leaf in tensors.items() if name.split("/", 1)[0] == place)


@dataclass(frozen=True)
class BlockWave:
    """A step is a block: embeddings to the holder of the labels, gradients back."""

    messenger: Messenger
    plan: VerticalPlan
    holder: str
    others: Sequence[str]
    number: int
    trials: Sequence[Trial]

    @cached_property
    def steps(self) -> list[tuple[int, int]]:
        """Of each trial: blocks in a round, and in all rounds."""
        return [self.plan.steps_of(trial) for trial in self.trials]

    def first(self) -> ExchangeState:
        return ExchangeState()

    def rounds_done(self, state: ExchangeState) -> int | None:
        steps = self.steps
        done = sum(min(state.step, total) // each for each, total in steps)
        return done if state.step < max(total for _, total in steps) else None

    def step(
        self, state: ExchangeState, pending: Sequence[TrialRecord]
    ) -> Generator[Step, None, Closed[ExchangeState]]:
        """A message to every party without labels, then one to the holder."""
        began, step, steps = time.monotonic(), state.step, self.steps
        active = [place for place, (_, total) in enumerate(steps) if step < total]
        what = f"block {step + 1}"
        requests = self._to_others(Embed(**self._place(step)), state)
        embedded = yield from exchange(self.messenger, requests, Embedded, what, _sends(map(str, active)))
        embeddings = {f"{n}/{party}": answer.tensors[str(n)] for party, answer in embedded.items() for n in active}
        expected = _sends(f"{place}/{party}" for place in active for party in self.others)
        ending = [place for place in active if (step + 1) % steps[place][0] == 0]

        def check(party: str, answer: Opened[Learned]) -> None:
            expected(party, answer)
            require(set(answer.body.losses) == set(ending), "losses of other rounds than those that end")

        request = {self.holder: (Learn(**self._place(step)), embeddings)}
        learned = (yield from exchange(self.messenger, request, Learned, what, check))[self.holder]
        after = state.next(active, embeddings, learned.tensors, time.monotonic() - began)
        ready: list[RoundRecord] = []
        waiting = list(pending)
        for place in ending:
            record = self._close(after, place, (step + 1) // steps[place][0], learned.body.losses[place])
            after = after.without_counts(str(place))
            # a trial's last record waits until its model is scored
            if record.record.round == self.trials[place].training.rounds:
                waiting.append(record)
            else:
                ready.append(record.record)
        if ending:
            self.messenger.log.add("round closed", wave=self.number, round=step, heads=self._heads(embedded, learned))
        return Closed(after, ready, waiting)

    def _close(self, state: ExchangeState, place: int, round_number: int, loss: float) -> TrialRecord:
        trial, own = self.trials[place], str(place)
        parties = tuple(trial.topology.parties)
        exchanges = self.steps[place][0]
        up, down = state.up.get(own, 0), state.down.get(own, 0)
        taken = Exchanged(trial, round_number, loss, parties, down, up, exchanges)
        epochs = dict.fromkeys(parties, trial.training.local_epochs)
        # models stay with the parties, so that there is no state of the coordinator's own
        run = Run(round_number - 1, {}, {})
        return close_round(place, trial, run, (), taken, epochs, state.seconds.get(own, 0.0))[1]

    def forget(self, state: ExchangeState) -> None:
        """Parties stand by their answers, so that none is kept here."""

    def finish(self, state: ExchangeState, pending: Sequence[TrialRecord]) -> Generator[Step, None, list[RoundRecord]]:
        """The last gradients to the parties, their embeddings of other rows to the holder, its figures back."""
        messenger, trials, places = self.messenger, self.trials, range(len(self.trials))
        requests = self._to_others(EmbedLast(**self._place(state.step)), state)
        embedded = yield from exchange(messenger, requests, LastEmbedded, "last embeddings", _sends(map(str, places)))
        embeddings = {f"{n}/{party}": answer.tensors[str(n)] for party, answer in embedded.items() for n in places}

        def check(party: str, answer: Opened[Assessed]) -> None:
            check_summaries(party, answer.body.summaries, trials, self.plan)
            check_figures(party, answer.body.figures, places, trials, self.plan)
            check_without(answer.body.without, trials, self.plan, self.holder, self.others)

        request = {self.holder: (Assess(**self._place(state.step)), embeddings)}
        assessed = (yield from exchange(messenger, request, Assessed, "predictions", check))[self.holder]
        records = []
        for waits in pending:
            curve = {
                f"{subset}_{name}": value
                for subset, own in assessed.body.figures.get(waits.trial, {}).items()
                for name, value in own.figures.items()
            }
            known = {name: value for name, value in curve.items() if value is not None}
            records.append(replace(waits.record, figures=known))
        save_summaries(messenger.folder, self.number, trials, {self.holder: assessed.body.summaries})
        keep_without(messenger.folder, self.number, trials, assessed.body.without)
        messenger.log.add("wave finished", wave=self.number, heads=self._heads(embedded, assessed))
        return records

    def _heads(self, answers: Mapping[str, Opened[Any]], of_holder: Opened[Any]) -> dict[str, str]:
        return {**{party: answer.log for party, answer in answers.items()}, self.holder: of_holder.log}

    def _to_others(self, request: Request, state: ExchangeState) -> dict[str, tuple[Request, Tree]]:
        """To every party without labels, with its gradients of the block before."""
        gradients: dict[str, Tree] = {party: {} for party in self.others}
        for name, leaf in state.gradients.items():
            place, party = name.split("/", 1)
            gradients[party][place] = leaf
        return {party: (request, leaves) for party, leaves in gradients.items()}

    def _place(self, step: int) -> dict[str, Any]:
        return {"run": self.messenger.run_name, "wave": self.number, "round": step}


def _sends(names: Iterable[str]) -> PartyCheck[Any]:
    """Checks that a party sends exactly these."""
    expected = set(names)

    def check(party: str, answer: Opened[Any]) -> None:
        require(set(answer.tensors) == expected, "other numbers than it was asked for")

    return check


def check_without(
    without: Without, trials: Sequence[Trial], plan: DeployedPlan, holder: str, others: Collection[str]
) -> None:
    """Figures as they are while another party is missing."""
    for number, by_party in without.items():
        require(number < len(trials), "figures of a model that the study does not have")
        require(set(by_party) == set(others), "figures without other parties than the study has")
        rows, exact = rows_scored(holder, "test", trials[number], plan)
        for summary in by_party.values():
            check_summary(to_builtins(summary), Expected(plan.task, rows, exact))
