"""Opacus' accountant (Gopi et al., NeurIPS 2021, arXiv:2106.02848), to compare with."""

import math
from collections.abc import Sequence

from wardround.core.silence import without_remarks
from wardround.privacy.dp.accountant import Charge, epsilon


def opacus_epsilon(charges: Sequence[Charge], delta: float) -> float:
    """Opacus adds its tolerance to its result: one in proportion keeps small epsilons comparable."""
    from opacus.accountants import PRVAccountant

    accountant = PRVAccountant()
    accountant.history = [(charge.noise, charge.rate, charge.steps) for charge in charges]
    about = epsilon(charges, delta)
    if not math.isfinite(about):
        return math.inf
    with without_remarks("absl"):  # on Rényi orders that are left out, which is sound
        return float(accountant.get_epsilon(delta, eps_error=min(max(about * 0.005, 1e-4), 0.1)))
