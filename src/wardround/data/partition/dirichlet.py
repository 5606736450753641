"""Label skew by Dirichlet draws.

Per class, the sites' shares are drawn from Dir(alpha): Yurochkin et al., "Bayesian Nonparametric Federated Learning of
Neural Networks", ICML 2019, arXiv:1905.12022. Hsu et al., arXiv:1909.06335, draw class shares per site instead; that
fixes the sizes of the sites, this lets them vary. A small alpha gives a class to few sites, a large one to all alike.
"""

from collections.abc import Sequence

import numpy as np

from wardround.core.errors import DataError
from wardround.core.settings import Count, Positive
from wardround.data.partition.partition import Partitioner, deal_patients
from wardround.data.records import Records

TRIES = 10_000  # ten sites of 297 patients with the defaults of `quantity` need some 600 on average

CITATION = "Yurochkin et al. Bayesian nonparametric federated learning of neural networks. ICML 2019. arXiv:1905.12022"


def dirichlet(count: Count = 10, alpha: Positive = 0.5, smallest: Count = 10) -> Partitioner:
    """Each class is cut up among the sites by its own draw. A patient counts as the class of the first row, or as the
    fifth of all rows in which its number lies; where rows have findings, as the rarest finding of all his rows, or as
    one without.

    Draws that leave a site with fewer than `smallest` rows are repeated.
    """

    def deal(records: Records, rng: np.random.Generator, where: str) -> np.ndarray:
        labels = records.task.patient_kinds(records.target, records.units)
        classes = [np.flatnonzero(labels == label) for label in np.unique(labels)]
        return deal_by_dirichlet(classes, records.units, count, alpha, smallest, rng, where)

    return deal_patients("dirichlet", count, smallest, deal, CITATION)


def deal_by_dirichlet(
    groups: Sequence[np.ndarray],
    units: np.ndarray,
    count: int,
    alpha: float,
    smallest: int,
    rng: np.random.Generator,
    where: str,
) -> np.ndarray:
    """The site of each patient, when each group of patients is cut up by its own draw of shares."""
    rows_of_patient = np.bincount(units)
    shuffled = [rng.permutation(group) for group in groups]
    rows_before = [np.concatenate(([0], np.cumsum(rows_of_patient[group]))) for group in shuffled]
    for _ in range(TRIES):
        cuts = [_cut(group.size, count, alpha, rng) for group in shuffled]
        rows_of_site = sum(np.diff(before[cut]) for before, cut in zip(rows_before, cuts, strict=True))
        if np.min(rows_of_site) >= smallest:
            site_of_patient = np.zeros(rows_of_patient.size, dtype=np.int64)
            for group, cut in zip(shuffled, cuts, strict=True):
                site_of_patient[group] = np.repeat(np.arange(count), np.diff(cut))
            return site_of_patient
    problem = f"none of {TRIES} draws with alpha {alpha:g} gave each of {count} sites at least {smallest} rows"
    raise DataError(where, problem, "Raise `alpha`, or lower `count` or `smallest`.")


def _cut(size: int, count: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """Where each site's part of `size` patients begins, and the end of the last one."""
    ends = np.rint(np.cumsum(rng.dirichlet(np.full(count, alpha))) * size).astype(np.int64)
    return np.concatenate(([0], ends[:-1], [size]))
