"""What matching patients costs: seconds, processor time and bytes.

`python -m benchmarks.psi [--patients 10000,100000] [--parties 2] [--common 0.5] [--threads 2]` prints a table. All
parties and the coordinator work one after another on this machine, each with all its threads. In a deployment every
party has a machine of its own and works while the others do, so that "seconds" there are those of one party.
"""

import argparse
import os
import time

from rich.console import Console
from rich.table import Table

from wardround.privacy.psi.simulated_psi import Matched, match_patients

PATIENTS = (10_000, 100_000)


def columns(parties: int, patients: int, common: float) -> dict[str, list[str]]:
    """Each party has `patients` patients, of whom the share `common` is everywhere and the rest nowhere else."""
    shared = [f"MRN-{number:09}" for number in range(int(patients * common))]
    return {
        f"party-{party}": shared + [f"MRN-{party}-{number:07}" for number in range(patients - len(shared))]
        for party in range(parties)
    }


def measure(parties: int, patients: int, common: float, threads: int | None) -> tuple[Matched, float, float]:
    ids = columns(parties, patients, common)
    started, worked = time.perf_counter(), time.process_time()
    matched = match_patients(ids, session=os.urandom(16), threads=threads)
    seconds, processor = time.perf_counter() - started, time.process_time() - worked
    expected = int(patients * common)
    assert all(len(party_patients) == expected for party_patients in matched.patients.values())
    return matched, seconds, processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patients", type=lambda text: [int(n) for n in text.split(",")], default=PATIENTS)
    parser.add_argument("--parties", type=lambda text: [int(n) for n in text.split(",")], default=[2])
    parser.add_argument("--common", type=float, default=0.5)
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    table = Table(title="Matching patients", title_justify="left")
    for heading in (
        "parties",
        "patients of each",
        "common",
        "seconds",
        "processor seconds",
        "a party sends, MB",
        "gets, MB",
    ):
        table.add_column(heading, justify="right")
    for parties in arguments.parties:
        for patients in arguments.patients:
            matched, seconds, processor = measure(parties, patients, arguments.common, arguments.threads)
            sends, gets = matched.traffic["party-0", ""] / 1e6, matched.traffic["", "party-0"] / 1e6
            common = len(matched.patients["party-0"])
            cells = (f"{seconds:.1f}", f"{processor:.1f}", f"{sends:.2f}", f"{gets:.2f}")
            table.add_row(f"{parties}", f"{patients:,}", f"{common:,}", *cells)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
