"""Predictions made up so that their figures are known beforehand."""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from scipy.special import expit

SURE = 0.9  # the score of a row that is called positive; 1 - SURE of one that is called negative


def with_accuracy(right: Mapping[tuple[str, int, str], tuple[int, int]], first_row: int = 0) -> pd.DataFrame:
    """For (arm, seed, site): so many rows right out of so many. Rows of a site are the same for all arms and seeds.

    Labels are 0, 1, 0, 1, ...; the first rows are right. Brier's score is 0.01 for a right row, 0.81 for a wrong one.
    """
    start = {site: first_row + 1000 * number for number, site in enumerate(dict.fromkeys(key[2] for key in right))}
    parts = []
    for (arm, seed, site), (hits, rows) in right.items():
        label = np.arange(rows) % 2
        called = np.where(np.arange(rows) < hits, label, 1 - label)
        score = np.where(called == 1, SURE, 1 - SURE)
        row = start[site] + np.arange(rows)
        where = {"arm": arm, "seed": seed, "site": site}
        parts.append(pd.DataFrame({**where, "row": row, "label": label, "score": score}))
    return pd.concat(parts, ignore_index=True)


def by_skill(
    skill: Mapping[str, float],
    seeds: Sequence[int] = range(8),
    patients: int = 120,
    tested: int = 40,
    rng_seed: int = 0,
) -> pd.DataFrame:
    """Two sites; with each seed a new draw of `tested` patients, the same for all arms.

    An arm's score is a noisy view of what decides the label, the clearer the higher its skill.
    """
    rng = np.random.default_rng(rng_seed)
    truth = rng.normal(size=patients)
    label = (truth + rng.normal(scale=0.5, size=patients) > 0).astype(np.int64)
    site = np.where(np.arange(patients) < patients // 2, "north", "south")
    parts = []
    for seed in seeds:
        row = np.sort(rng.choice(patients, tested, replace=False))
        for arm, clear in skill.items():
            score = expit(clear * truth[row] + rng.normal(size=tested))
            where = {"arm": arm, "seed": seed, "site": site[row]}
            parts.append(pd.DataFrame({**where, "row": row, "label": label[row], "score": score}))
    return pd.concat(parts, ignore_index=True)
