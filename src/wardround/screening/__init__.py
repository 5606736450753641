"""Whose updates differ: statistics of updates that a coordinator sees, and a rule with a stated false-alarm level."""

from wardround.screening.decisions import NONE_DECIDED, Decision, Decisions
from wardround.screening.rule import LEAST_SITES, LEVEL, RULES, Evidence, judge, most_left_out
from wardround.screening.sketch import sketch_of
from wardround.screening.statistics import RoundStatistics, Seen, describe, first_state

__all__ = [
    "LEAST_SITES",
    "LEVEL",
    "NONE_DECIDED",
    "RULES",
    "Decision",
    "Decisions",
    "Evidence",
    "RoundStatistics",
    "Seen",
    "describe",
    "first_state",
    "judge",
    "most_left_out",
    "sketch_of",
]
