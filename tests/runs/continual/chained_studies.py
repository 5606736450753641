"""Small studies that go on from each other."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from wardround.core.errors import WardroundError
from wardround.runs.catalog import load_study
from wardround.runs.execute import StudyRun, run_study
from wardround.runs.plan import Plan, load_plan

OLD, NEW = ("cleveland", "hungarian"), ("switzerland", "va")
PUBLIC = {"public": True, "scale": "ranges", "missing": "range"}


def study(name: str, hospitals: Any = OLD, **changes: Any) -> dict[str, Any]:
    """A table in `changes` is joined to the one that is there."""
    document: dict[str, Any] = {
        "name": name,
        "data": {"source": "heart", "hospitals": list(hospitals), **PUBLIC},
        "model": {"kind": "logistic"},
        "training": {"rounds": 3, "local_epochs": 2},
        "evaluation": {"seeds": {"first": 1, "count": 2}},
        "arms": [{"algorithm": "fedavg"}],
    }
    for key, value in changes.items():
        merged = isinstance(value, dict) and key in document
        document[key] = {**document[key], **value} if merged else value
    return document


def after(run: StudyRun | Path, name: Any = "later", arm: Any = "fedavg", **changes: Any) -> dict[str, Any]:
    """A study that starts from a run."""
    folder = run.folder if isinstance(run, StudyRun) else run
    start = {"run": str(folder), "arm": arm, **changes.pop("start", {})}
    document = study(name, **changes)
    return {**document, "model": {**document["model"], "start_from": start}}


def plan_of(document: dict[str, Any], **members: Any) -> Plan:
    return load_plan(*load_study(document, **members))


def refusal(action: Callable[[], object]) -> str:
    try:
        action()
    except WardroundError as error:
        return str(error)
    raise AssertionError("nothing was refused")


def run(document: dict[str, Any], out: Path, **options: Any) -> StudyRun:
    return run_study(document, out, **options)
