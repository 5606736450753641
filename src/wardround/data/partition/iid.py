"""Sites that differ by chance only: the reference that every skewed partition is compared with."""

import numpy as np

from wardround.core.settings import Count
from wardround.data.partition.partition import Partitioner, first_rows, refuse_too_many_sites, rows_by_site, site_names
from wardround.data.records import Records


def iid(count: Count = 10) -> Partitioner:
    """Shuffled patients dealt out in turn, so that the sites' numbers of patients differ by one at most."""

    def assign(records: Records, rng: np.random.Generator) -> dict[str, np.ndarray]:
        refuse_too_many_sites(records, count, smallest=1, where="sites: iid")
        patients = first_rows(records.units).size
        site_of_patient = rng.permutation(np.arange(patients) % count)
        return rows_by_site(site_of_patient[records.units], site_names(count))

    return Partitioner(assign)
