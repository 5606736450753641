"""Inverted labels: class c of C becomes class C - 1 - c, and a finding that is there is absent.

Of two classes it is the other one. With more it is the untargeted flip of Karimireddy et al., ICLR 2022,
arXiv:2006.09365; Tolpegin et al., ESORICS 2020, arXiv:2007.08432, flip pairs of classes. In hospitals it is mostly no
attack: 0 and 1 mean the opposite in one file.
"""

from dataclasses import replace

import numpy as np

from wardround.adversaries.adversary import Adversary, Setting, chosen_rows, own_rows
from wardround.core.errors import StudyError
from wardround.core.settings import Share
from wardround.data.site import Rows

CITATION = (
    "Karimireddy et al. Byzantine-robust learning on heterogeneous datasets via bucketing. ICLR 2022. arXiv:2006.09365"
)


def label_flip(share: Share = 1.0) -> Adversary:
    def poison(rows: Rows, setting: Setting, rng: np.random.Generator) -> Rows:
        if setting.task.answers not in ("class", "findings"):
            problem = (
                "labels of classes and findings can be flipped, and here a number or several outcomes are predicted"
            )
            raise StudyError(
                f"{setting.where}: kind", problem, 'Write kind = "feature-shift", or one that forges updates.'
            )
        poisoned, chosen = own_rows(rows), chosen_rows(len(rows), share, rng)
        highest = len(setting.task.names) - 1 if setting.task.answers == "class" else 1
        y = poisoned.y
        y[chosen] = highest - y[chosen]
        return replace(poisoned, y=y)

    return Adversary(poisons="rows", poison=poison, citation=CITATION)
