"""The hospitals that recorded the rows: the partition that nobody made up."""

import numpy as np

from wardround.data.partition.partition import Partitioner, refuse_no_rows, refuse_torn_patients, rows_by_site
from wardround.data.records import Records


def by_hospital() -> Partitioner:
    """One site for each hospital that the source names, in order of first appearance. Nothing is drawn."""

    def assign(records: Records, rng: np.random.Generator) -> dict[str, np.ndarray]:
        where = "sites: by-hospital"
        refuse_no_rows(records, where)
        number_of = {name: number for number, name in enumerate(records.hospitals)}
        site_of_row = np.array([number_of[name] for name in records.hospital.tolist()])
        refuse_torn_patients(
            site_of_row,
            records.units,
            where,
            "If hospitals number their patients independently, put the hospital's name into the patient's number.",
        )
        return rows_by_site(site_of_row, [str(name) for name in number_of])

    return Partitioner(assign)
