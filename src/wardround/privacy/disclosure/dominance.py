"""Dominance: no sum to which one patient contributes nearly everything, for then the sum is that patient's value.

The usual form is the (1, k) rule of statistical offices: the largest contributor has at most the share k of the sum of
absolute values (Hundepool et al., Statistical Disclosure Control, Wiley 2012, section 4.2.1).
"""

import numpy as np


def largest_share(summed: np.ndarray, people: np.ndarray) -> float:
    """Of each column's sum of absolute values the largest part that comes from one patient, over all columns. A value
    that is missing adds nothing, and a column of zeros has no largest part."""
    known, rows = np.unique(people, return_inverse=True)
    by_patient = np.abs(np.nan_to_num(np.asarray(summed, dtype=np.float64).reshape(len(people), -1)))
    if len(known) < len(people):
        order = np.argsort(rows, kind="stable")
        first = np.searchsorted(rows[order], np.arange(len(known)))
        by_patient = np.add.reduceat(by_patient[order], first, axis=0)
    totals = by_patient.sum(0)
    if not (totals > 0).any():
        return 0.0
    return float((by_patient.max(0)[totals > 0] / totals[totals > 0]).max())
