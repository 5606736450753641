"""The hospitals that recorded the rows: the partition that nobody made up."""

import numpy as np

from wardround.data.partition.partition import Partitioner, refuse_no_rows, rows_by_site
from wardround.data.records import Records


def by_hospital() -> Partitioner:
    """One site for each hospital that the source names, in order of first appearance. Nothing is drawn.

    A patient who was at two hospitals stays at both: that is for the checks to report.
    """

    def assign(records: Records, rng: np.random.Generator) -> dict[str, np.ndarray]:
        refuse_no_rows(records, "sites: by-hospital")
        number_of = {name: number for number, name in enumerate(records.hospitals)}
        site_of_row = np.array([number_of[name] for name in records.hospital.tolist()])
        return rows_by_site(site_of_row, [str(name) for name in number_of])

    return Partitioner(assign, keeps_hospitals=True)
