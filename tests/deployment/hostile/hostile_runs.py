"""Hostile answers one after another, and what must hold after each.

Where every hospital is needed, an answer that is refused stops the run. The hospital is honest again when the
coordinator is started anew, and is asked again: so that one folder serves for many answers, and each of them is a test
of going on after the one before. Where the quorum allows it, the run ends without the sender, as if it had failed.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

from tests.deployment.hostile.answer_mutations import Given, Mutation
from tests.deployment.hostile.byte_network import (
    REGIONS,
    Answer,
    Ended,
    Message,
    Network,
    Open,
    Place,
    copied,
    kind_of,
    place_of,
)
from tests.deployment.hostile.outcome_checks import (
    harm,
    hurt_others,
    leaks,
    named,
    same_but_for_reasons,
    texts_are_plain,
)
from wardround.core.errors import WardroundError


@dataclass(frozen=True)
class Honest:
    """A run without anybody hostile, and its folder as it was before each question."""

    opened: Open
    folder: Path
    senders: tuple[str, ...]
    carried: tuple[tuple[str, Message, Message], ...]  # sender, question, answer
    results: dict[str, Any]
    summaries: list[dict[str, Any]]
    hospitals: tuple[str, ...]

    @property
    def places(self) -> dict[str, list[Place]]:
        """Questions to each who answers: of each kind the last, or the last that is answered with tensors."""
        by_sender: dict[str, dict[str, Place]] = {}
        sent: dict[tuple[str, str], bool] = {}
        for sender, question, answer in self.carried:
            place, known = place_of(question), by_sender.setdefault(sender, {})
            if place[0] not in known or answer.tensors or not sent.get((sender, place[0])):
                known[place[0]] = place
            sent[sender, place[0]] = sent.get((sender, place[0]), False) or bool(answer.tensors)
        return {sender: list(places.values()) for sender, places in by_sender.items()}

    def before(self, sender: str, place: Place) -> Path:
        """The folder of the run before this question. Who has heard a goodbye has forgotten the run, so that there is
        no going on in the middle of goodbyes: it is asked for with the question before."""
        if place[0] == "goodbye":
            places = self.places[sender]
            place = places[places.index(place) - 1]
        return _before(self.folder, self.senders.index(sender), place)

    def given(self, sender: str, place: Place) -> Given:
        mine = [(q, a) for name, q, a in self.carried if name == sender]
        number = next(n for n, (question, _) in enumerate(mine) if place_of(question) == place)
        others = tuple(name for name in self.hospitals if name not in (sender, *REGIONS.get(sender, ())))
        return Given(sender, *mine[number], tuple(answer for _, answer in mine[:number]), others)


def honest_run(opened: Open, folder: Path, senders: Sequence[str]) -> Honest:
    """Keeps the folder as a power cut would leave it just before each question to one of `senders`."""
    network = opened(folder / "honest")
    carried: list[tuple[str, Message, Message]] = []

    def answer(sender: str, question: Message, answered: Message) -> Message:
        carried.append((sender, question, answered))
        return answered

    def question(sender: str, asked: Message) -> None:
        if sender in senders and kind_of(asked) != "goodbye":
            copy = _before(folder, senders.index(sender), place_of(asked))
            rmtree(copy, ignore_errors=True)
            copytree(network.folder, copy)

    ended = network.run(answer, question)
    assert ended.error is None, ended.error
    results, summaries = network.results(), network.summaries()
    return Honest(opened, folder, tuple(senders), tuple(carried), results, summaries, network.hospitals)


def _before(folder: Path, sender: int, place: Place) -> Path:
    """Without the sender's name: an error that names a file must not seem to name the sender."""
    return folder / f"before-{sender}-{place[0]}-{place[1]}"


def lying(mutation: Mutation, given: Given, place: Place, sent: list[Message]) -> Answer:
    """The first answer to a question is hostile; asked again, the hospital is honest."""

    def answer(sender: str, question: Message, answered: Message) -> Message:
        if sent or sender != given.sender or place_of(question) != place:
            return answered
        sent.append(mutation.make(Given(sender, question, answered, given.earlier, given.others)))
        return sent[0]

    return answer


@dataclass
class Tried:
    """What was tried, and all that did not hold: (question, mutation, what was wrong)."""

    answers: int = 0
    refused: int = 0
    failures: list[tuple[str, str, str]] = field(default_factory=list)
    kinds: set[str] = field(default_factory=set)

    def add(self, where: str, mutation: Mutation, problems: Iterable[str]) -> None:
        self.answers += 1
        self.failures += [(where, mutation.name, problem) for problem in problems]

    def join(self, other: "Tried") -> None:
        self.answers += other.answers
        self.refused += other.refused
        self.failures += other.failures
        self.kinds |= other.kinds

    def told(self) -> str:
        lines = [f"{where}: {name}: {problem}" for where, name, problem in self.failures]
        return f"{len(lines)} of {self.answers} do not hold:\n" + "\n".join(lines)


class WhereAllAreNeeded:
    """Answers of one sender to one question. `tmp` gets copies of the folder. `before` is what was tried with the
    question before: where it was refused, its run goes on here."""

    def __init__(
        self, honest: Honest, sender: str, place: Place, tmp: Path, before: "WhereAllAreNeeded | None" = None
    ) -> None:
        self.honest, self.sender, self.place, self.tmp = honest, sender, place, tmp
        self.given = honest.given(sender, place)
        self.copies: int = 0 if before is None else before.copies
        self.network: Network | None = None if before is None else before.network
        self.last: Mutation | None = None if before is None else before.last  # refused in this network
        self.tried = Tried(kinds={place[0]})

    def fresh(self) -> Network:
        self.copies += 1
        return copied(self.honest.opened, self.honest.before(self.sender, self.place), self.tmp / str(self.copies))

    def drop(self) -> None:
        """What was tried last may have left something behind that only a fresh copy is free of."""
        if self.network is not None:
            rmtree(self.network.folder)
        self.network, self.last = None, None

    def attempt(self, mutation: Mutation) -> tuple[Ended, list[str]]:
        self.network = self.network or self.fresh()
        sent: list[Message] = []
        ended = self.network.run(lying(mutation, self.given, self.place, sent))
        if not sent:
            return ended, [f"never asked: {_short(ended.error)}"]
        return ended, [*self.judged(self.network, ended, mutation), *leaks(self.network, ended)]

    def try_all(self, mutations: Sequence[Mutation]) -> Tried:
        """What is sealed comes last: until then all is one run that must be able to end."""
        where = f"{self.sender}, {self.place[0]}"
        hidden = [candidate for candidate in mutations if candidate.expect == "sealed"]
        for mutation in [*(candidate for candidate in mutations if candidate.expect != "sealed"), *hidden]:
            if hidden and mutation is hidden[0]:
                self.finish()
            ended, problems = self.attempt(mutation)
            if problems and self.last is not None:
                before, spoilt = self.last, problems
                self.drop()
                ended, problems = self.attempt(mutation)
                if not problems:
                    self.tried.failures.append(
                        (where, f"{before.name}, or one before", f"cannot be resumed: {spoilt[0]}")
                    )
            self.tried.add(where, mutation, problems)
            refused = isinstance(ended.error, WardroundError)
            self.tried.refused += refused
            self.last = mutation if refused and mutation.expect != "sealed" else None
            if self.last is None:
                self.drop()
        return self.tried

    def finish(self) -> Tried:
        """Whoever was hostile is honest now: the run ends as if nothing had been."""
        if self.network is not None and self.last is not None:
            where, after = f"{self.sender}, {self.place[0]}", f"after {self.last.name}"
            self.tried.failures += [(where, after, problem) for problem in self.finishes(self.network)]
        self.drop()
        return self.tried

    def judged(self, network: Network, ended: Ended, mutation: Mutation) -> list[str]:
        problems = [*texts_are_plain(ended)]
        if isinstance(ended.error, WardroundError):
            if mutation.expect != "closed" and not named(self.sender, ended):
                problems.append(f"does not name {self.sender}: {_short(ended.error)}")
            return problems
        if ended.error is not None:
            return [*problems, f"raises {_short(ended.error)}"]
        if mutation.expect == "refused" and self.place[0] != "goodbye":  # then the results are there already
            problems.append("was taken")
        if mutation.expect == "closed" and not named(self.sender, ended) and not _came_to_nothing(ended):
            same = same_but_for_reasons(network.results(), self.honest.results)
            problems += ["was taken, and results differ"] if same else []
        late = self.place[0] in ("evaluate", "assess", "goodbye")
        if mutation.expect != "bends":
            problems += hurt_others(network, self.honest.results, self.honest.summaries, self.given.others, late)
        return problems + harm(network.results(), network.summaries(), self.honest.results, network.hospitals)

    def finishes(self, network: Network) -> list[str]:
        ended = network.run()
        if ended.error is not None:
            return [f"an honest run cannot go on: {_short(ended.error)}"]
        differences = same_but_for_reasons(network.results(), self.honest.results)
        return differences + (
            [] if network.summaries() == self.honest.summaries else ["summaries differ from the honest run"]
        )


class WhereSomeMayLeave(WhereAllAreNeeded):
    """The quorum allows that one leaves: the run ends as if the sender had failed at that question.

    Somebody else may leave where nobody can say who is right, and the sender is named then too. A share that is sealed
    can be seen by its receiver alone, which does not go on with it: the run ends as if the receiver had failed. And
    where the two hospitals of a region contradict each other, the run ends as if their region had failed.
    """

    def __init__(self, honest: Honest, sender: str, place: Place, tmp: Path, failed: Mutation) -> None:
        super().__init__(honest, sender, place, tmp)
        self.failed = failed
        self.runs: dict[str, Network] = {}  # those in which somebody failed
        self.run_without(sender, place)

    def run_without(self, name: str, place: Place) -> Network:
        if name not in self.runs:
            self.runs[name] = self.fresh()
            ended = self.runs[name].run(lying(self.failed, self.honest.given(name, place), place, []))
            assert ended.error is None, ended.error
            assert named(name, ended)
        return self.runs[name]

    def try_all(self, mutations: Sequence[Mutation]) -> Tried:
        for mutation in mutations:
            _, problems = self.attempt(mutation)
            self.tried.add(f"{self.sender}, {self.place[0]}, quorum", mutation, problems)
            self.drop()
        return self.tried

    def judged(self, network: Network, ended: Ended, mutation: Mutation) -> list[str]:
        if ended.error is not None and not isinstance(ended.error, WardroundError):
            return [f"raises {_short(ended.error)}"]
        both = named(self.sender, ended) and any(named(name, ended) for name in self.given.others)
        if ended.error is not None:
            # where hospitals contradict each other nobody knows who is right: it stops, and both are named
            return [] if self.place[0] == "hello" and both else [f"stops the run: {_short(ended.error)}"]
        gone = who_left(network.results())
        if not gone:
            return super().judged(network, ended, mutation)
        self.tried.refused += 1
        without = self.runs[self.sender]
        region = network.asker[self.sender].removesuffix(" as coordinator")
        if mutation.expect == "sealed" and len(gone) == 1:
            without = self.run_without(min(gone), self.next_place("train"))
        elif self.place[0] == "hello" and both and set(REGIONS.get(region, ())) == gone:
            without = self.run_without(region, self.place)
        differences = [*texts_are_plain(ended)]
        if not named(self.sender, ended):
            differences.append(f"does not name {self.sender}")
        if gone != who_left(without.results()):
            differences.append(f"{', '.join(sorted(gone))} left")
        differences += same_but_for_reasons(network.results(), without.results())
        if network.summaries() != without.summaries():
            differences.append("summaries differ from a run in which it failed")
        return differences

    def next_place(self, kind: str) -> Place:
        """Of the question of this kind that comes next after the hostile answer."""
        places = [place_of(question) for _, question, _ in self.honest.carried]
        return next(place for place in places[places.index(self.place) :] if place[0] == kind)


def who_left(results: dict[str, Any]) -> set[str]:
    return {name for name, described in results["participation"].items() if described["reason"] is not None}


def _came_to_nothing(ended: Ended) -> bool:
    return any("came to nothing" in line for line in ended.lines)


def _short(error: BaseException | None) -> str:
    return (
        "it ended"
        if error is None
        else f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
    )
