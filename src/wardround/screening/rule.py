"""Which sites are named, and by what: five rules, each with a limit.

    direction   its first updates point away from the others': their mean cosine with each of the others'
    length      its updates are several times as long, or as short, as the median of all
    turned      its updates point against its own earlier ones, and those of the others do not
    copy        its updates equal another site's, up to a factor
    echo        its updates equal the last change of the shared model, up to a factor, and those of the others do not

The limits are such that of `LEVEL` of federations of `clean_hospitals` at most one site is named in a whole run, by any
rule in any round (`benchmarks/screening.py` measures it). Nothing holds for hospitals that differ more than
those do: a named site differs from the others, and why is for people to find out. With few sites nobody is named: which
of them is the odd one is then too uncertain.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from wardround.screening.statistics import NEVER, WINDOW, State, turning

LEVEL = 0.05  # of clean federations in which any site is named
LEAST_SITES = 8
Rule = Literal["direction", "length", "turned", "copy", "echo"]
RULES: tuple[Rule, ...] = ("direction", "length", "turned", "copy", "echo")

FIRST = np.array([3, 2, 1]) / 6  # weights of the first rounds: sites agree most before models have settled
DIRECTION = -0.15
FACTOR = 5.0
TURNED = -0.6
ALIKE = 0.02  # sine of an angle: a degree
SEVERAL = 5.0  # times, by which the others are further from an echo


@dataclass(frozen=True)
class Evidence:
    """Why a site was named: the rule, its statistic, and with whom it was compared (the number of a site)."""

    rule: Rule
    value: float
    other: int | None = None

    def to_numbers(self, places: Mapping[int, int]) -> tuple[float, float, float]:
        """As a record has it, which numbers other sites by their places among those whose lengths it has."""
        return float(RULES.index(self.rule)), self.value, -1.0 if self.other is None else float(places[self.other])

    @classmethod
    def of_numbers(cls, numbers: Sequence[float]) -> "Evidence":
        rule, value, other = numbers
        return cls(RULES[int(rule)], value, None if other < 0 else int(other))


def judge(state: State, present: tuple[int, ...]) -> dict[int, Evidence]:
    """Sites that are named now for the first time. `present` worked in the round."""
    if len(present) < LEAST_SITES:
        return {}
    shown = [_direction, _length, _turned, _copy, _echo]
    named: dict[int, Evidence] = {}
    for site in present:
        if state["named"][site] == NEVER:
            found = next(filter(None, (rule(state, site, present) for rule in shown)), None)
            if found is not None:
                named[site] = found
    return named


def most_left_out(sites: int) -> int:
    """Of so many: who leaves out more than a third no longer knows who the others are."""
    return sites // 3


def limit_of(rule: Rule) -> float:
    return {"direction": DIRECTION, "length": FACTOR, "turned": TURNED, "copy": ALIKE, "echo": ALIKE}[rule]


def _direction(state: State, site: int, present: tuple[int, ...]) -> Evidence | None:
    if state["worked"][site] != WINDOW:  # judged once
        return None
    value = float(FIRST @ state["agreement"][site])
    return Evidence("direction", value) if value <= DIRECTION else None


def _length(state: State, site: int, present: tuple[int, ...]) -> Evidence | None:
    value = float(np.exp(state["ratio"][site].mean()))  # NaN until there is a whole window
    return Evidence("length", value) if value >= FACTOR or value <= 1 / FACTOR else None


def _turned(state: State, site: int, present: tuple[int, ...]) -> Evidence | None:
    cosines = turning(state)
    others = _known(cosines, site, present)
    if not len(others) or np.median(others) <= 0:
        return None
    return Evidence("turned", float(cosines[site])) if cosines[site] <= TURNED else None


def _copy(state: State, site: int, present: tuple[int, ...]) -> Evidence | None:
    apart = state["apart"][site].max(-1)  # NaN until there is a whole window
    others = [other for other in present if other != site and apart[other] <= ALIKE]
    if not others:
        return None
    nearest = min(others, key=lambda other: float(apart[other]))
    return Evidence("copy", float(apart[nearest]), nearest)


def _echo(state: State, site: int, present: tuple[int, ...]) -> Evidence | None:
    echo = state["echo"].max(-1)
    others = _known(echo, site, present)
    if not len(others) or not echo[site] <= min(ALIKE, float(np.median(others)) / SEVERAL):
        return None
    return Evidence("echo", float(echo[site]))


def _known(values: np.ndarray, site: int, present: tuple[int, ...]) -> np.ndarray:
    own = np.array([values[other] for other in present if other != site])
    return np.asarray(own[np.isfinite(own)])
