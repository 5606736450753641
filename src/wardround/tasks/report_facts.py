"""What a report, a terminal and a comparison of runs show of a task, declared as data.

Which metrics stand in which table, which figures apply, and the words that depend on the kind of outcome: sections of a
report read them, and none asks what kind of outcome it is about.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf


@dataclass(frozen=True)
class ReportFacts:
    """Metrics are those beside the primary one, which always stands first and is not repeated."""

    arms: tuple[str, ...]  # in the table of all arms
    terminal: tuple[str, ...]  # in a terminal, where fewer fit
    groups: tuple[tuple[str, ...], ...]  # by group of patients: of each choice the first that is not the primary one
    outside: tuple[str, ...]  # at a hospital that took no part: the first that is not the primary one
    runs: tuple[str, ...]  # where runs stand side by side
    with_sd: tuple[str, ...] = ()  # of those in a terminal
    may_lack: tuple[str, ...] = ()  # named where no arm has them at a site

    unit: str = ""  # of the outcome, such as days
    named: str = ""  # the outcome with its unit, as an axis has it
    least: float = -inf  # below which there is no outcome
    outcome: str = ""  # what is predicted, as an item of a checklist
    output: str = ""  # what the model gives for a row
    balance: str = ""  # how often each outcome is; empty: counts of the classes say so
    strata: str = "outcome"  # by what rows are shared out evenly between training and test
    labels: str = "labels"  # of which divergences between sites are measured
    lacking: str = "test rows"  # for want of which a metric is not defined
    quality: str = "Performance"  # what its metrics measure, as a heading
    told: str = "sums"  # what a hospital tells of its test rows, besides their number and its metrics
    told_before: str = ""  # and of its outcomes before training, after the number of its rows
    withheld: str = "Where fewer than {smallest} patients were tested at a hospital nothing was told"
    score: str = "score"  # what a model gives, in a sentence
    curves: str = ""  # what is drawn of predictions against outcomes, in a list
    needs_rows: str = "calibration"  # what of predictions cannot be had from sums
    target: Mapping[str, str] = field(default_factory=dict)  # of `describe_target`, the headings of columns
    figures: tuple[str, ...] = ()  # drawings that need a kind of outcome, by name

    def beside(self, primary: str) -> list[str]:
        """Those of `groups`."""
        return first_of(self.groups, primary)

    def at_outsiders(self, primary: str) -> list[str]:
        """Those of `outside`."""
        return first_of((self.outside,), primary)


def first_of(choices: tuple[tuple[str, ...], ...], primary: str) -> list[str]:
    """Of each choice the first that is neither the primary metric nor there already."""
    chosen: list[str] = []
    for choice in choices:
        chosen += [metric for metric in choice if metric != primary and metric not in chosen][:1]
    return chosen
