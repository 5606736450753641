"""Malformed questions to a hospital, signed by the coordinator: it answers each of them, and goes on as before."""

from collections.abc import Iterator
from pathlib import Path
from shutil import copytree, rmtree
from typing import Any

import torch
from safetensors.torch import load

from tests.deployment.hostile.answer_mutations import (
    FORGED_TEXT,
    LONG,
    Given,
    Many,
    Mutation,
    Raw,
    at,
    envelope,
    generated,
    on_added,
    on_body,
    sample,
    tensor_changes,
    written,
)
from tests.deployment.hostile.byte_network import (
    LIMIT,
    Message,
    Network,
    Place,
    body_of,
    copied,
    head_of,
    kind_of,
    verified,
)
from tests.deployment.hostile.hostile_runs import Honest, Tried
from tests.deployment.hostile.outcome_checks import CONTROL, LONGEST, same_but_for_reasons
from tests.deployment.test_nothing_of_a_patient import assert_clean
from tests.time_limit import TooLong, time_limit

NO = ("refused", "failed")
OTHER_KINDS = (
    "owned",
    "",
    "keys",
    "shares",
    "confirm",
    "unmask",
    "match",
    "assign",
    "embed",
    "assess",
    "ready",
    "update",
)


def asked(given: Given) -> list[Mutation]:
    """Pointed ones for the kind of a question."""
    body = body_of(given.answer)
    mutations = [
        Mutation("another run", at(("body", "run"), "elsewhere-0123456789")),
        Mutation("a run that is a path", at(("body", "run"), "../../../owned")),
        Mutation("a run with control characters", at(("body", "run"), FORGED_TEXT)),
        Mutation("a run of 300,000 characters", at(("body", "run"), LONG)),
        Mutation("to another hospital", at(("site",), given.others[0])),
        Mutation("why, with control characters", at(("body", "why"), FORGED_TEXT)),
        Mutation(
            "prepared on the way", at(("body", "prepare"), {"columns": [], "layouts": [], "of": [], "commons": []})
        ),
        Mutation("prepared with nothing", at(("body", "prepare"), None)),
        Mutation("a sum that is none", at(("body", "sum"), {"roster": [], "threshold": 0, "models": {}})),
        *(Mutation(f"of kind {kind!r}", at(("kind",), kind)) for kind in OTHER_KINDS),
    ]
    return mutations + [Mutation(name, at(("body", *path), value)) for name, path, value in _of_kind(body)]


def _of_kind(body: dict[str, Any]) -> Iterator[tuple[str, tuple[Any, ...], Any]]:
    if "study" in body:
        yield "a study that nobody approved", ("study",), "0" * 64
        yield "a study with control characters", ("study",), FORGED_TEXT
        yield "without this hospital", ("sites",), ["elsewhere"]
        yield "nobody else", ("sites",), body["sites"][:1]
        yield "200,000 hospitals", ("sites",), Many('"hospital @"')
        yield "the same hospital twice", ("sites",), body["sites"] * 2
    if body.get("columns"):
        column = body["columns"][0]
        yield "200,000 columns", ("columns",), Many(written({**column, "name": "invented @"}).decode())
        yield "columns that it does not have", ("columns",), [{**column, "name": "elsewhere"}]
        yield "the patients' names as a column", ("columns",), [*body["columns"], {**column, "name": "name"}]
        yield "a column of another kind", ("columns", 0, "kind"), "categorical"
        yield "no column", ("columns",), []
    if body.get("layouts"):
        yield "a layout that is not there", ("of",), [99] * len(body["of"])
        yield "the last layout", ("of",), [-1] * len(body["of"])
        yield "no layout", ("layouts",), []
        yield "a layout of the patients' names", ("layouts", 0, "levels"), [["name", ["a"]]]
        yield "a layout of other columns", ("layouts", 0, "numeric", 0, "name"), "elsewhere"
    if "missing" in body:
        yield "a column that is not there, as a fill value", ("missing", 0, "numbers"), [99]
        yield "every column, as a fill value", ("missing", 0, "numbers"), [0, 1, 2]
        yield "200,000 columns, as a fill value", ("missing", 0, "numbers"), Many("@")
        yield "the patients' names, as a fill value", ("missing", 0, "categories"), ["name", "note", "patient"]
    if "commons" in body:
        yield "a scale of nothing", ("commons", 0, "scale"), [[0.0], [0.0]]
        yield "fills that are none", ("commons", 0, "fill"), [None] * 3
    if "work" in body:
        for number in (5000, -1, 10**30):
            yield f"round {number}", ("round",), number
        yield "more epochs", ("work",), dict.fromkeys(body["work"], 50)
        yield "another trial", ("work",), {"7": 1}
        yield "time below zero", ("seconds",), -1.0
        yield "time without end", ("seconds",), Raw("1e400")
    if "score" in body:
        yield "figures of a trial that is not there", ("score",), [99]
        yield "figures of the last trial", ("score",), [-1]
        yield "figures 2,000 times", ("score",), [0] * 2000
        yield "a round that never counted", ("counted",), 99
    if "wave" in body:
        for number in (99, -1, 10**30):
            yield f"wave {number}", ("wave",), number
    if "results" in body:
        yield "results with control characters", ("results",), FORGED_TEXT


def models_changed(question: Message) -> list[Mutation]:
    """Models that are none: not numbers, of other shapes, or of trials that are not there."""
    return [
        *tensor_changes(question),
        Mutation("a model of a trial that is not there", on_added({"9/params/weight": torch.zeros(3)})),
        Mutation("a model without a trial", on_added({"weight": torch.zeros(3)})),
        Mutation("a model of no number", on_added({"x/params/weight": torch.zeros(3)})),
        Mutation("forged seal", on_body(lambda body: body.update(site="elsewhere"))),
    ]


def all_questions(given: Given) -> dict[str, list[Mutation]]:
    return {
        "asked": asked(given),
        "models": models_changed(given.answer),
        "envelope": envelope(),
        "generated": generated(given.answer),
    }


class Asked:
    """Questions to one hospital in place of one honest question."""

    def __init__(self, honest: Honest, name: str, place: Place, tmp: Path) -> None:
        self.honest, self.name, self.place = honest, name, place
        self.network: Network = copied(honest.opened, honest.before(name, place), tmp / "run")
        self.network.reopen(name, remember=False)
        self.saved = tmp / "saved"
        for site in self.network.asked_with(name):
            copytree(self.network.folder_of(site), self.saved / site)
        given = honest.given(name, place)
        self.question = given.question
        asker = self.network.asker[name]
        self.given = Given(asker, self.question, self.question, (), given.others)
        self.tried = Tried(kinds={place[0]})
        answer = self.network.answer(name, self.question)
        assert kind_of(answer) not in NO, body_of(answer)  # else refusals would say nothing
        self.restore()

    def try_all(self, sizes: dict[str, int]) -> Tried:
        for number, (sort, mutations) in enumerate(all_questions(self.given).items()):
            for mutation in sample(mutations, sizes.get(sort, 0), number):
                self.tried.add(f"{self.name} is asked: {self.place[0]}", mutation, self.judged(mutation))
        return self.tried

    def finish(self) -> Tried:
        """The coordinator goes on with its own questions, and the run ends as if nothing had been."""
        ended = self.network.run()
        problems = ["" if ended.error is None else f"an honest run cannot go on: {ended.error}"]
        if ended.error is None:
            problems = same_but_for_reasons(self.network.results(), self.honest.results)
        self.tried.failures += [
            (f"{self.name}: {self.place[0]}", "afterwards", problem) for problem in problems if problem
        ]
        return self.tried

    def judged(self, mutation: Mutation) -> list[str]:
        before = self.outside()
        self.network.notices.clear()
        try:
            with time_limit(LIMIT):
                answer = self.network.answer(self.name, mutation.make(self.given))
        except (Exception, TooLong) as error:
            self.restore()
            return [f"raises {type(error).__name__}: {error}"]
        problems = [*self.wrong(answer)]
        if self.outside() != before:
            problems.append(f"wrote {sorted(self.outside() ^ before)} outside of its folder")
        if any(CONTROL.search(text.replace("\n  ", " ", 1)) for text in self.network.notices):  # before its remedy
            problems.append("control characters on its own screen")
        if any(len(text) > LONGEST for text in self.network.notices):
            problems.append("a very long line on its own screen")
        if kind_of(answer) in NO:
            self.tried.refused += 1
            honest = self.network.answer(self.name, self.question)
            if kind_of(honest) in NO:
                problems.append(f"refuses the honest question afterwards: {body_of(honest)}"[:150])
        self.restore()
        return problems

    def wrong(self, answer: Message) -> Iterator[str]:
        """Whatever it was asked: an answer that others can read, without a patient's value, and with numbers in it."""
        if not verified(answer, self.name):
            yield "is not signed"
        body = body_of(answer)
        if head_of(answer)["site"] != self.name:
            yield "is in another's name"
        for text in (body.get("reason"), body.get("notice", {}).get("details", {}).get("reason")):
            if text is not None and (CONTROL.search(text) or len(text) > LONGEST):
                yield f"tells what it was told: {text[:60]!r}"
        try:
            assert_clean(answer.head + answer.tensors, "answer")
        except AssertionError as error:
            yield f"tells a patient's value ({error})"
        leaves = load(bytes(answer.tensors)).items() if answer.tensors else ()
        for name, leaf in leaves:
            if leaf.is_floating_point() and not bool(torch.isfinite(leaf).all()):
                yield f"sends {name}, which is not finite"

    def outside(self) -> set[Path]:
        own = {self.network.folder_of(site) for site in self.network.asked_with(self.name)}
        return {path for path in self.network.folder.parent.rglob("*") if not own & {path, *path.parents}}

    def restore(self) -> None:
        """What was answered may have changed its state, as an honest question does."""
        for site in self.network.asked_with(self.name):
            rmtree(self.network.folder_of(site))
            copytree(self.saved / site, self.network.folder_of(site))
            self.network.reopen(site, remember=False)
