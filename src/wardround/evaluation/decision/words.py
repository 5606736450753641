"""Differences in words that need no statistics: of 1,000 patients so many more, or so much less in a number's unit."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from wardround.evaluation.comparisons.differences import is_clear
from wardround.evaluation.comparisons.measures import MOST_DIGITS, Measure, plainly, signed
from wardround.tasks import Task

THOUSAND = 1000
WHOLE_FROM = 9.95  # of a thousand: amounts without decimals
CODES = ({"0", "1"}, {"no", "yes"}, {"false", "true"}, {"n", "y"}, {"neg", "pos"}, {"negative", "positive"})


class Subject(NamedTuple):
    """What is predicted, in a sentence."""

    outcome: str  # what a model predicts
    event: str  # what a patient is with or without
    averaged: str = ""  # over what a figure is the mean


def subject_of(task: Task, target: str | None) -> Subject:
    """`target` is the column of the outcome, where the study names one. Classes called 0 and 1 say nothing, so that the
    column's name stands for the second of them."""
    if task.answers == "number":
        name = f'"{task.names[0]}"'
        return Subject(name, name)
    if task.findings:
        return Subject("the findings", "a given finding", "the findings")
    if len(task.names) != 2:
        return Subject("the class", "a given class", "the classes")
    if {name.lower() for name in task.names} in CODES and target:
        return Subject(f'"{target}"', f'the outcome "{target}"')
    return Subject(task.names[1], task.names[1])


def in_thousand(measure: Measure, value: float) -> float:
    """A difference in the unit of page one."""
    return THOUSAND * value if measure.metric.counted else value


def amounts(measure: Measure, values: Sequence[float], clear: bool = False) -> list[str]:
    """Differences with as many digits each; where they are limits of an interval without 0, none is rounded to it."""
    digits = _digits(measure, values, clear)
    return [_amount(measure, value, digits) for value in values]


def size(measure: Measure, value: float) -> str:
    """A difference without its direction: "20 in 1,000 pairs", "0.3 days"."""
    amount = abs(in_thousand(measure, value))
    text = plainly(amount, _digits(measure, [value], True))
    return f"{text} in 1,000 {measure.metric.counted}" if measure.metric.counted else f"{text}{_unit(measure)}"


def meaning(measure: Measure, subject: Subject, amount: str) -> str:
    metric = measure.metric
    return (metric.meaning or f"{metric.words} is {{amount}}").format(amount=amount, event=subject.event)


def with_limits(measure: Measure, entry: Mapping[str, Any]) -> tuple[str, str]:
    """A difference, and its interval with as many digits in brackets; nothing where it has none."""
    if entry["interval"] is None:
        return amounts(measure, [entry["difference"]])[0], ""
    amount, low, high = amounts(measure, [entry["difference"], *entry["interval"]], is_clear(entry))
    return amount, f" (95 % CI: {low} to {high})"


def signed_amounts(measure: Measure, values: Sequence[float], clear: bool = False) -> list[str]:
    """As numbers with a sign, for columns."""
    digits = _digits(measure, values, clear)
    return [signed(in_thousand(measure, value), digits) for value in values]


def _amount(measure: Measure, value: float, digits: int) -> str:
    amount = in_thousand(measure, value)
    above, below = measure.metric.comparatives
    unit = "" if measure.metric.counted else _unit(measure)
    text = plainly(abs(amount), digits)
    if not round(abs(amount), digits):
        return f"{text}{unit} {above}"
    return f"{text}{unit} {above if amount > 0 else below}"


def _digits(measure: Measure, values: Sequence[float], clear: bool) -> int:
    shown = [abs(in_thousand(measure, value)) for value in values]
    digits = measure.digits
    if measure.metric.counted:
        digits = 0 if max(shown) >= WHOLE_FROM else 1
    while clear and digits < MOST_DIGITS and any(amount and not round(amount, digits) for amount in shown):
        digits += 1
    return digits


def _unit(measure: Measure) -> str:
    return f" {measure.unit}" if measure.unit else ""
