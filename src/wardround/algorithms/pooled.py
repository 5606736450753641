"""All rows at one site: what training would give if the patients could be brought together. Simulation only."""

from dataclasses import replace

from wardround.algorithms.algorithm import Algorithm
from wardround.algorithms.fedavg import fedavg


def pooled() -> Algorithm:
    return replace(fedavg(), pools=True, federated=False, citation="")
