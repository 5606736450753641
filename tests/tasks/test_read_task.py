"""A task that comes from a file or from another institution is checked whole."""

from typing import Any

import pytest

from wardround.core.errors import StudyError
from wardround.tasks import read_task

WRONG: dict[str, tuple[Any, str]] = {
    "nothing": ({}, "task: kind: no task is called None"),
    "a list": ([], "is no table"),
    "no kind": ({"names": ["a", "b"]}, "no task is called None"),
    "an unknown kind": ({"kind": "owned", "names": ["a"]}, "no task is called 'owned'"),
    "a kind in a list": ({"kind": ["binary"], "names": ["a", "b"]}, "no task is called"),
    "no names": ({"kind": "binary"}, "task: names: missing"),
    "names in words": ({"kind": "binary", "names": "ab"}, "expected a list"),
    "names that are numbers": ({"kind": "binary", "names": [1, 2]}, "expected a text"),
    "an empty list of names": ({"kind": "multilabel", "names": []}, "has 0 names"),
    "one class of two": ({"kind": "binary", "names": ["a"]}, "has 1 names"),
    "two numbers": ({"kind": "regression", "names": ["a", "b"]}, "has 2 names"),
    "names without end": ({"kind": "multiclass", "names": ["a"] * 10_001}, "has 10001 names"),
    "a name without end": ({"kind": "regression", "names": ["a" * 501]}, "one that is too long"),
    "an option of another task": ({"kind": "binary", "names": ["a", "b"], "delta": 1.0}, "delta: no such setting"),
    "an option in words": ({"kind": "regression", "names": ["a"], "delta": "1"}, "delta: expected a number"),
    "no value of an option": ({"kind": "regression", "names": ["a"], "delta": None}, "delta: expected a number"),
    "another loss": ({"kind": "regression", "names": ["a"], "loss": "l1"}, "'l1' is not a possible value"),
    "no number": ({"kind": "count", "names": ["a"], "dispersion": float("inf")}, "not a finite number"),
    "many options": ({"kind": "count", "names": ["a"], **{f"x{n}": 1 for n in range(30)}}, "is no table"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_task_is_refused_with_the_place(case: str) -> None:
    content, words = WRONG[case]
    with pytest.raises(StudyError, match=words) as refused:
        read_task(content)
    assert refused.value.where.startswith("task")
    assert refused.value.remedy
