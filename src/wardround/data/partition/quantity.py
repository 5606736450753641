"""Size skew: large and small hospitals that see the same patients.

The sites' shares of all patients are drawn from Dir(alpha): Li et al., "Federated Learning on Non-IID Data Silos: An
Experimental Study", ICDE 2022, arXiv:2102.02079, section "quantity skew".
"""

import numpy as np

from wardround.core.settings import Count, Positive
from wardround.data.partition.dirichlet import deal_by_dirichlet
from wardround.data.partition.partition import Partitioner, first_rows, refuse_too_many_sites, rows_by_site, site_names
from wardround.data.records import Records


def quantity(count: Count = 10, alpha: Positive = 0.5, smallest: Count = 10) -> Partitioner:
    """Shuffled patients cut up by one draw of shares.

    Draws that leave a site with fewer than `smallest` rows are repeated.
    """

    def assign(records: Records, rng: np.random.Generator) -> dict[str, np.ndarray]:
        where = "sites: quantity"
        refuse_too_many_sites(records, count, smallest, where)
        everyone = np.arange(first_rows(records.units).size)
        site_of_patient = deal_by_dirichlet([everyone], records.units, count, alpha, smallest, rng, where)
        return rows_by_site(site_of_patient[records.units], site_names(count))

    return Partitioner(assign)
