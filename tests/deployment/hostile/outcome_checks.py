"""What must hold after a hostile answer, whatever it was."""

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any

from tests.deployment.hostile.byte_network import Ended, Network
from tests.deployment.test_nothing_of_a_patient import assert_clean

UNIT = ("accuracy", "auc", "pr_auc", "f1", "sensitivity", "specificity", "ppv", "npv", "brier")
COUNTED = ("rows", "train", "validation", "test", "tp", "fp", "fn", "tn", "right")
CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
MOST = 10**8  # rows of anybody
LONGEST = 4000  # characters of anything that a terminal shows
MEASURED = ("accuracy", "brier", "loss", "mae", "rmse")  # of any model that is finite, where its task has them
REASONS = ("notices", "participation", "missing_work")  # where results say who left, and why


def named(sender: str, ended: Ended) -> bool:
    """In what a watcher is told, or in the error."""
    return any(sender in text for text in (*ended.lines, "" if ended.error is None else str(ended.error)))


def texts_are_plain(ended: Ended) -> list[str]:
    """Nothing that a terminal obeys, and no second line in anybody's name. An error has two lines by itself."""
    problems = []
    for text in ended.texts:
        lines = [line for line in text.split("\n") if line] if ended.error and text == str(ended.error) else [text]
        if any(CONTROL.search(line) for line in lines) or len(lines) > 2:
            problems.append(f"control characters are shown: {text[:80]!r}")
        if len(text) > LONGEST:
            problems.append(f"{len(text)} characters are shown")
    return problems[:1]


def leaks(network: Network, ended: Ended) -> list[str]:
    """The values that are planted in the first row of each hospital's file are found nowhere but there."""
    problems = []
    content = [("a message", message.head + message.tensors) for message in network.carried()]
    content += [("a text", text.encode()) for text in ended.texts]
    content += [(path.name, path.read_bytes()) for path in network.run_folder.rglob("*") if path.is_file()]
    for where, payload in content:
        try:
            assert_clean(payload, where)
        except AssertionError as error:
            problems.append(f"tells a patient's value: {error}")
    return problems[:3]


def harm(
    results: dict[str, Any], summaries: list[dict[str, Any]], honest: dict[str, Any], hospitals: Sequence[str]
) -> list[str]:
    """What stands in results and cannot be."""
    problems = [f"{where} is {value}" for where, value in _impossible(results)]
    problems += [f"summaries: {where} is {value}" for where, value in _impossible(summaries)]
    if list(results["arms"]) != list(honest["arms"]):
        problems.append(f"arms are {list(results['arms'])}")
    if results["seeds"] != honest["seeds"]:
        problems.append(f"seeds are {results['seeds']}")
    for name in {name for arm in results["arms"].values() for name in arm["sites"]} - set(hospitals):
        problems.append(f"hospital {name} is invented")
    for name in {line["site"] for line in summaries} - set(hospitals):
        problems.append(f"hospital {name} is invented in summaries")
    keys = [(line["arm"], line["seed"], line["site"], line["subset"]) for line in summaries]
    if len(keys) != len(set(keys)):
        problems.append("summaries say something twice")
    texts = [text for text in _texts(results) if CONTROL.search(text)]
    return problems[:6] + [f"control characters in results: {text[:60]!r}" for text in texts[:1]]


def _impossible(value: Any, where: str = "", name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, part in value.items():
            inner = name if key in ("mean", "lowest", "highest") else str(key)
            yield from _impossible(part, f"{where}.{key}", inner)
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from _impossible(part, f"{where}.{number}", name)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        share = name in UNIT and "difference" not in where and ".sums" not in where
        whole = value >= 0 and value == round(value) and value <= MOST if math.isfinite(value) else False
        if not math.isfinite(value) or (share and not -1e-9 <= value <= 1 + 1e-9) or (name in COUNTED and not whole):
            yield where, value


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from map(str, value)
        for part in value.values():
            yield from _texts(part)
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)
    elif isinstance(value, str):
        yield value


def hurt_others(
    network: Network, honest: dict[str, Any], summaries: list[dict[str, Any]], others: Sequence[str], late: bool
) -> list[str]:
    """Others' counts never change. Figures of their models do not change either once training is over."""
    problems, results = [], network.results()
    for name in others:
        if _described(results, name) != _described(honest, name):
            problems.append(f"{name} is described otherwise")
        here, there = ([line for line in entry if line["site"] == name] for entry in (network.summaries(), summaries))
        rows_here, rows_there = (
            [(content["arm"], content["seed"], content["subset"], content["rows"]) for content in entry]
            for entry in (here, there)
        )
        if (here != there) if late else (rows_here != rows_there):
            problems.append(f"summaries of {name} changed")
        figures = [
            {arm: entry["sites"].get(name) for arm, entry in content["arms"].items()} for content in (results, honest)
        ]
        if late and figures[0] != figures[1]:
            problems.append(f"figures of {name} changed")
        lost = [arm for arm, entry in figures[1].items() if entry is not None and _lost(figures[0][arm], entry)]
        if lost:
            problems.append(f"{name} has no figures any more in {lost}")
    return problems


def _lost(here: dict[str, Any] | None, there: dict[str, Any]) -> bool:
    known = [metric for metric in MEASURED if metric in there and there[metric]["mean"] is not None]
    return here is None or any(here[metric]["mean"] is None for metric in known)


def _described(results: dict[str, Any], name: str) -> Any:
    return [entry["sites"].get(name) for entry in results["sites"]]


def same_but_for_reasons(results: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """All but who left and why, and how long it took."""
    here, there = (_without(content) for content in (results, other))
    return [f"{where} differs" for where in _differences(here, there)][:5]


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            name: _without(part) for name, part in value.items() if name not in (*REASONS, "seconds", "seed_seconds")
        }
    return [_without(part) for part in value] if isinstance(value, list) else value


def _differences(here: Any, there: Any, where: str = "results") -> Iterator[str]:
    if isinstance(here, dict) and isinstance(there, dict):
        for name in {**here, **there}:
            yield from _differences(here.get(name), there.get(name), f"{where}.{name}")
    elif isinstance(here, list) and isinstance(there, list) and len(here) == len(there):
        for number, (item, other) in enumerate(zip(here, there, strict=True)):
            yield from _differences(item, other, f"{where}.{number}")
    elif here != there:
        yield where
