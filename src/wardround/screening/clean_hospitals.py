"""The named generator of honest hospitals that differ, on which the limits of the rule were chosen and its level is
measured. What it does not draw (a hospital with other patients altogether) the level says nothing about.

Each federation has a disease rule of its own: coefficients of `COLUMNS` measurements, of length `SIGNAL`. Each hospital
then differs in

    its size            log-normal around 100 training rows, from 40 to 400
    its patients        the mean of each measurement by a normal number of SD 0.5, its spread by a factor exp(N(0, 0.2))
    how common it is    the intercept by a normal number of SD 0.7: shares between about 20 and 80 %
    the rule itself     each coefficient by a normal number, together of length 0.25 x SIGNAL

and scales its measurements by itself, as studies do by default.
"""

from dataclasses import dataclass

import numpy as np

from wardround.core import seeds

COLUMNS = 8
SIGNAL = 1.5


@dataclass(frozen=True)
class CleanHospitals:
    """How much hospitals differ. The defaults are those of the stated level."""

    rows: int = 100
    sizes: float = 0.6
    patients: float = 0.5
    spread: float = 0.2
    prevalence: float = 0.7
    rule: float = 0.25


DEFAULT = CleanHospitals()


def clean_hospitals(
    seed: int, hospitals: int = 10, inverted: int = 0, how: CleanHospitals = DEFAULT
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Scaled measurements and labels, 0 or 1, of each hospital. The labels of the first `inverted` are turned round."""
    rng = seeds.generator(seed, "clean hospitals")
    rule = rng.normal(size=COLUMNS)
    rule *= SIGNAL / np.linalg.norm(rule)
    federation = []
    for number in range(hospitals):
        size = int(np.clip(how.rows * np.exp(rng.normal(0, how.sizes)), 40, 400))
        own = rule + rng.normal(0, how.rule * SIGNAL / np.sqrt(COLUMNS), COLUMNS)
        centre = rng.normal(0, how.patients, COLUMNS)
        x = centre + np.exp(rng.normal(0, how.spread, COLUMNS)) * rng.normal(size=(size, COLUMNS))
        risk = 1 / (1 + np.exp(-(x @ own + rng.normal(0, how.prevalence))))
        y = (rng.random(size) < risk).astype(np.int64)
        federation.append(((x - x.mean(0)) / x.std(0), 1 - y if number < inverted else y))
    return federation
