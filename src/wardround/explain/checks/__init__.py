"""Is an explanation true to the model? One check a file; each gives a figure, and passes or fails by a rule that it
states. None says whether the model is right."""

from wardround.explain.checks.agreement import agreement
from wardround.explain.checks.check import Check, notice_of
from wardround.explain.checks.faithfulness import deletion, insertion
from wardround.explain.checks.randomisation import randomisation
from wardround.explain.checks.stability import stability
from wardround.explain.checks.together import check_all
from wardround.explain.checks.units import Units, cells_of_images, columns_of_rows, units_for

__all__ = [
    "Check",
    "Units",
    "agreement",
    "cells_of_images",
    "check_all",
    "columns_of_rows",
    "deletion",
    "insertion",
    "notice_of",
    "randomisation",
    "stability",
    "units_for",
]
