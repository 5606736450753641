"""Sites that differ by chance only: the reference that every skewed partition is compared with."""

import numpy as np

from wardround.core.settings import Count
from wardround.data.partition.partition import Partitioner, deal_patients, first_rows
from wardround.data.records import Records


def iid(count: Count = 10) -> Partitioner:
    """Shuffled patients dealt out in turn, so that the sites' numbers of patients differ by one at most."""

    def deal(records: Records, rng: np.random.Generator, where: str) -> np.ndarray:
        return rng.permutation(np.arange(first_rows(records.units).size) % count)

    return deal_patients("iid", count, 1, deal)
