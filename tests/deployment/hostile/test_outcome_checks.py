"""The judge is not blind: each thing that must not be is found where it is."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.deployment.hostile.answer_mutations import FORGED_TEXT, Given, Many, Raw, at, changed, sample, written
from tests.deployment.hostile.byte_network import Ended, Network, body_of, flat, kind_of, signed, verified
from tests.deployment.hostile.hostile_runs import honest_run
from tests.deployment.hostile.outcome_checks import (
    harm,
    hurt_others,
    leaks,
    named,
    same_but_for_reasons,
    texts_are_plain,
)
from tests.deployment.test_nothing_of_a_patient import IDENTITY
from wardround.core.errors import DeployError

Results = dict[str, Any]


class Told(Network):
    """A run that ended with these results."""

    def __init__(self, folder: Path, results: Results, summaries: list[Results]) -> None:
        super().__init__(folder)
        self.told, self.lines = results, summaries

    def transports(self) -> list[Any]:
        return []

    def results(self) -> Results:
        return self.told

    def summaries(self) -> list[Results]:
        return self.lines


def ended(*lines: str, error: BaseException | None = None) -> Ended:
    return Ended(error, lines, frozenset(), 0.1)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, list[Results]]:
    folder = tmp_path_factory.mktemp("honest")
    honest = honest_run(flat(folder / "data"), folder, [])
    return honest.results, honest.summaries


def test_an_honest_run_has_nothing_wrong(run: tuple[Results, list[Results]], tmp_path: Path) -> None:
    results, summaries = run
    network = Told(tmp_path, results, summaries)
    assert harm(results, summaries, results, network.hospitals) == []
    assert hurt_others(network, results, summaries, ("south", "west"), late=True) == []
    assert same_but_for_reasons(results, results) == []
    assert leaks(network, ended("north: failed")) == []
    assert texts_are_plain(ended("north: failed", error=DeployError("here", "is wrong", "Do this."))) == []


def _arm(results: Results) -> Results:
    arm: Results = results["arms"]["fedavg"]
    return arm


WRONG: dict[str, Callable[[Results, list[Results]], Any]] = {
    "an accuracy above one": lambda results, lines: _arm(results)["metrics"]["accuracy"].update(mean=1.2),
    "an AUC below zero": lambda results, lines: _arm(results)["sites"]["north"]["auc"].update(mean=-0.1),
    "a number without end": lambda results, lines: results["curves"]["fedavg"]["loss"].append(float("inf")),
    "rows below zero": lambda results, lines: lines[0].update(rows=-5),
    "half a row": lambda results, lines: lines[0].update(rows=1.5),
    "a hospital that does not exist": lambda results, lines: _arm(results)["sites"].update(elsewhere={}),
    "its summary": lambda results, lines: lines[0].update(site="elsewhere"),
    "a summary twice": lambda results, lines: lines.append(lines[0]),
    "an arm more": lambda results, lines: results["arms"].update(owned=_arm(results)),
    "control characters": lambda results, lines: results["notices"].append({"text": FORGED_TEXT}),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_is_found(what: str, run: tuple[Results, list[Results]]) -> None:
    results, summaries = copy.deepcopy(run)
    WRONG[what](results, summaries)
    assert harm(results, summaries, run[0], ("north", "south", "west"))


def test_changes_at_other_hospitals_are_found(run: tuple[Results, list[Results]], tmp_path: Path) -> None:
    results, summaries = copy.deepcopy(run)
    _arm(results)["sites"]["south"]["accuracy"]["mean"] += 0.01
    network = Told(tmp_path, results, summaries)
    assert hurt_others(network, *run, ("south", "west"), late=True)
    assert not hurt_others(network, *run, ("south", "west"), late=False)  # models that all share may differ
    assert not hurt_others(network, *run, ("west",), late=True)
    assert same_but_for_reasons(results, run[0])
    _arm(results)["sites"]["south"]["accuracy"]["mean"] = None
    assert hurt_others(network, *run, ("south", "west"), late=False)


def test_planted_values_are_found(run: tuple[Results, list[Results]], tmp_path: Path) -> None:
    network = Told(tmp_path, *run)
    assert leaks(network, ended(f"north: failed: cannot read {IDENTITY}"))
    network.run_folder.mkdir()
    (network.run_folder / "audit.jsonl").write_text(IDENTITY, encoding="utf-8")
    assert leaks(network, ended())


def test_texts_that_a_terminal_would_obey_are_found() -> None:
    for text in (FORGED_TEXT, "one\nof three\nlines", "\x1b[2J", "x" * 5000):
        assert texts_are_plain(ended(text))
        assert texts_are_plain(ended(error=ValueError(text)))
    assert texts_are_plain(ended("two\nlines"))
    assert named("north", ended("north: failed"))
    assert not named("north", ended("south: failed"))


def test_mutations_are_what_they_say() -> None:
    answer = signed(b'{"kind":"update","body":{"rows":[1,2],"site":"north"},"order":[]}', b"", "north")
    given = Given("north", answer, answer, (), ("south",))
    network = at(("body", "rows", 1), -5)(given)
    assert (kind_of(network), body_of(network)) == ("update", {"rows": [1, -5], "site": "north"})
    assert verified(network, "north")
    assert not verified(network, "south")
    assert written({"a": [Raw("NaN"), Many("@")]}).startswith(b'{"a":[NaN,[0,1,2,')
    assert changed({"a": {"b": 1}}, ("a", "c"), 2) == {"a": {"b": 1, "c": 2}}
    assert sample(list(range(99)), 5, 1) == sample(list(range(99)), 5, 1)  # type: ignore[arg-type]
