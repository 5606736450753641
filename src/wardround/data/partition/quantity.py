"""Size skew: large and small hospitals that see the same patients.

The sites' shares of all patients are drawn from Dir(alpha): Li et al., "Federated Learning on Non-IID Data Silos: An
Experimental Study", ICDE 2022, arXiv:2102.02079, section "quantity skew".
"""

import numpy as np

from wardround.core.settings import Count, Positive
from wardround.data.partition.dirichlet import deal_by_dirichlet
from wardround.data.partition.partition import Partitioner, deal_patients, first_rows
from wardround.data.records import Records


def quantity(count: Count = 10, alpha: Positive = 0.5, smallest: Count = 10) -> Partitioner:
    """Shuffled patients cut up by one draw of shares.

    Draws that leave a site with fewer than `smallest` rows are repeated.
    """

    def deal(records: Records, rng: np.random.Generator, where: str) -> np.ndarray:
        everyone = np.arange(first_rows(records.units).size)
        return deal_by_dirichlet([everyone], records.units, count, alpha, smallest, rng, where)

    return deal_patients("quantity", count, smallest, deal)
