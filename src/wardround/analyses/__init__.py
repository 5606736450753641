"""Analyses that are exact: Table 1, regression with standard errors. Each is a loop of sums over the hospitals' rows.

`analysis.py` says what a kind is, `conduct.py` runs one in a simulation; a deployment sends the same questions as
messages. To add a kind: write its file here, and add one line.
"""

from collections.abc import Callable

from wardround.analyses.analysis import Analysis
from wardround.analyses.glm.glm import Glm
from wardround.analyses.table_one.table_one import TableOne

ANALYSES: dict[str, Callable[..., Analysis]] = {"glm": Glm, "table-one": TableOne}

__all__ = ["ANALYSES", "Analysis"]
