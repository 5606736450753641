"""Split learning (Vepakomma et al. 2018, arXiv:1812.00564): parties with different features of the same patients train
one network in parts.

The work of a round is the split engine's: no party has a model of its own to average. To everybody else such an arm is
one model that predicts for all sites, as with pooled rows, although no rows were pooled.
"""

from dataclasses import replace

from wardround.algorithms.algorithm import Algorithm
from wardround.algorithms.fedavg import fedavg

CITATION = (
    "Vepakomma, Gupta, Swedish, Raskar. Split learning for health: distributed deep learning without sharing raw "
    "patient data. 2018. arXiv:1812.00564"
)


def split() -> Algorithm:
    return replace(
        fedavg(),
        pools=True,
        vertical=True,
        not_robust="has parties that send embeddings, and no updates that a rule could look at",
        not_regional="is for parties that hold different columns of the same patients",
        not_asynchronous="needs every party for every row",
        citation=CITATION,
    )
