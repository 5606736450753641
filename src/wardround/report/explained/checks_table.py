"""What checks of an explanation found, and in words what it did not pass."""

from collections.abc import Mapping, Sequence

from wardround.core.notices import text_of
from wardround.explain.checks import Check, notice_of
from wardround.report.render.table import Table, make_table, signed_decimals

RESULTS: Mapping[bool | None, str] = {True: "passes", False: "FAILS", None: "too few rows or columns to say"}
NAMES = {
    "deletion": "does the score fall when it is covered?",
    "insertion": "does the score rise when it is shown?",
    "randomisation": "does it change with other weights?",
    "stability": "does it stay when a row hardly changes?",
    "agreement": "do two methods agree?",
}


def checks_table(checks: Sequence[Check]) -> Table:
    rows = [
        [NAMES[check.name], check.method, check.figure, check.low, check.high, RESULTS[check.passed], check.rule]
        for check in checks
    ]
    columns = {
        "check": None,
        "method": None,
        **dict.fromkeys(("figure", "95 % CI from", "to"), signed_decimals),
        "result": None,
        "passes where": None,
    }
    note = "Figures are means over rows. They are about the model and not about whether it is right."
    return make_table("checks", "Is it true to the model?", columns, rows, note)


def failures(checks: Sequence[Check]) -> list[str]:
    """A sentence for each check that failed."""
    return [f"{text_of(notice)}." for notice in map(notice_of, checks) if notice is not None]
