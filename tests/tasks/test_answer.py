"""Forms of answers: columns, predicted values, events and labels agree with each other for every task."""

import numpy as np
import pytest

from wardround.tasks import TASKS, Task, class_task, findings_task
from wardround.tasks.answer import NOTHING

NAMES = {"binary": ("no", "yes"), "multiclass": ("mild", "none", "severe"), "multilabel": ("mass", "fluid")}


def tasks() -> list[Task]:
    """With names of classes where a task reads them, so that a new one is covered too."""
    return [
        kind(NAMES.get(name, NAMES["multiclass"] if kind.reads == "classes" else ("stay",)))
        for name, kind in TASKS.items()
    ]


@pytest.mark.parametrize("task", tasks(), ids=lambda task: task.kind)
def test_columns_predictions_and_sets_are_of_one_shape(task: Task) -> None:
    answer, rng = task.answer, np.random.default_rng(0)
    each = len(answer.columns("score"))
    score = (
        rng.random((7, each))
        if answer.names == tuple(n.removeprefix("x_") for n in answer.columns("x"))
        else rng.random(7)
    )
    predicted = task.predicted(score, np.full(len(answer.events), 0.5))
    assert predicted.reshape(7, -1).shape[1] == len(answer.predicted_columns or answer.scores)
    assert int(np.prod(answer.set_shape, initial=1)) == max(1, sum(len(choice.labels) for choice in answer.choices))
    assert len(answer.scores) == len(answer.columns("score"))
    assert set(answer.counts(predicted)) == set(answer.classes)
    assert answer.is_sound
    assert (answer.uncalibrated == "") == (len(answer.events) == 1 and answer.form == "two_classes")
    nothing = answer.nothing()
    assert nothing == NOTHING or np.isnan(nothing)


def test_a_threshold_decides_two_classes_and_findings() -> None:
    score = np.array([0.2, 0.6, 0.61], dtype=np.float32)
    assert class_task(["no", "yes"]).predicted(score, np.array([0.6])).tolist() == [0, 1, 1]
    both = findings_task(["mass", "fluid"])
    assert both.predicted(np.array([[0.2, 0.9]]), np.array([0.1, 0.95])).tolist() == [[1, 0]]
    assert both.answer.counts(np.array([[1, 0], [1, NOTHING], [0, 1]])) == {"mass": 2, "fluid": 1}


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("binary", ("a",)),
        ("binary", ("a", "a")),
        ("binary", ("a", "b", "c")),
        ("multiclass", ("a",)),
        ("multilabel", ()),
    ],
)
def test_names_that_cannot_be_those_of_an_answer(kind: str, names: tuple[str, ...]) -> None:
    assert not TASKS[kind](names).answer.is_sound
