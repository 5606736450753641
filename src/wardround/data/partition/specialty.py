"""Specialised hospitals: each is rich in its own classes and sees some of everyone else's."""

import numpy as np

from wardround.core.errors import DataError
from wardround.core.settings import Count, Share
from wardround.data.partition.partition import Partitioner, deal_patients
from wardround.data.records import Records


def specialty(count: Count = 4, richness: Share = 0.7, smallest: Count = 10) -> Partitioner:
    """A patient goes to a home of the class with probability `richness`, else to any other site alike.

    Classes that occur are dealt to the sites in turn. With more sites than classes, a class has several homes and its
    patients are spread over them at random. A patient counts as the class of the first row, or as the fifth of all rows
    in which its number lies. Where rows have findings, he counts as the rarest finding of all his rows, and patients
    without any are spread over all sites alike.
    """

    def deal(records: Records, rng: np.random.Generator, where: str) -> np.ndarray:
        task = records.task
        homeless = len(task.names) if task.nobodys else None  # who has no finding is nobody's speciality
        kinds = task.patient_kinds(records.target, records.units)
        site_of_patient = _draw_sites(kinds, count, richness, rng, homeless)
        if short := int((np.bincount(site_of_patient[records.units], minlength=count) < smallest).sum()):
            problem = f"{short} of {count} sites would hold fewer than {smallest} rows"
            raise DataError(where, problem, "Lower `count`, `smallest` or `richness`.")
        return site_of_patient

    return deal_patients("specialty", count, smallest, deal)


def _draw_sites(
    labels: np.ndarray, count: int, richness: float, rng: np.random.Generator, homeless: int | None
) -> np.ndarray:
    present = np.setdiff1d(labels, [] if homeless is None else [homeless])
    turn = min(present.size, count)
    site_of_patient = np.zeros(labels.size, dtype=np.int64)
    if homeless is not None:
        site_of_patient[labels == homeless] = rng.choice(count, int((labels == homeless).sum()))
    for number, label in enumerate(present):
        patients = np.flatnonzero(labels == label)
        homes = [site for site in range(count) if site % turn == number % turn]
        others = [site for site in range(count) if site not in homes] or homes  # a single class is at home everywhere
        at_home = rng.random(patients.size) < richness
        site_of_patient[patients] = np.where(
            at_home, rng.choice(homes, patients.size), rng.choice(others, patients.size)
        )
    return site_of_patient
