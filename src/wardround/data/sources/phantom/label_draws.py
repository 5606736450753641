"""Which findings go together: counts of the NIH label file, and label vectors drawn so that they repeat these counts.

Wang, Peng, Lu, Lu, Bagheri and Summers, "ChestX-ray8", CVPR 2017, arXiv:1705.02315; the counts are of the label file
that the NIH Clinical Center published with it (`Data_Entry_2017`, 14 findings, 112,120 images of 30,805 patients).
"""

from functools import cache

import numpy as np
from scipy.special import ndtr, ndtri

from wardround.data.imaging.finding_names import FINDINGS

IMAGES = {"AP": 44_810, "PA": 67_310}
WITH_FINDING = {  # images with each finding
    "AP": (5831, 1213, 6728, 10541, 2215, 2154, 801, 1895, 3146, 2027, 1017, 278, 967, 35),
    "PA": (5728, 1563, 6589, 9353, 3567, 4177, 630, 3407, 1521, 276, 1499, 1408, 2418, 192),
}
WITH_BOTH = (  # images of either view with this finding and each of those after it
    (370, 3275, 3264, 739, 590, 262, 774, 1223, 221, 424, 220, 496, 40),
    (1063, 587, 102, 108, 41, 49, 169, 127, 44, 52, 111, 7),
    (4000, 1254, 912, 269, 996, 1287, 593, 359, 188, 849, 21),
    (1159, 1546, 605, 946, 1221, 981, 449, 345, 750, 33),
    (906, 71, 431, 610, 129, 215, 117, 452, 25),
    (70, 341, 428, 131, 115, 166, 411, 10),
    (41, 123, 340, 23, 11, 48, 3),
    (223, 33, 747, 80, 289, 9),
    (162, 103, 79, 251, 4),
    (30, 9, 64, 3),
    (36, 151, 4),
    (176, 8),
    (8,),
)
COMMON = 0.1  # a finding rarer than this can be enriched
SHARE_AP = IMAGES["AP"] / sum(IMAGES.values())

# How far a finding's latent number follows age. Ours: the label file shows hardly more than the signs.
AGE_PULL = {"Emphysema": 0.2, "Cardiomegaly": 0.2, "Fibrosis": 0.2, "Hernia": 0.3, "Atelectasis": 0.1}
PERSISTENCE = 0.65  # of a latent number's variance that is the patient's and not the image's


def prevalence(view: str, enrich: float = 0.0) -> np.ndarray:
    """Share of a view's images with each finding. `enrich`, 0 to 1, moves rare findings towards 10 % of all images.

    A share p below that becomes p^(1 - enrich) * 0.1^enrich, in both views by the same factor: with 0.7 the 0.2 % of
    hernia become 3.1 %, and the 5.2 % of mass 8.2 %. More common findings stay.
    """
    total = np.sum(list(WITH_FINDING.values()), axis=0) / sum(IMAGES.values())
    return np.asarray(np.array(WITH_FINDING[view]) / IMAGES[view] * np.maximum(COMMON / total, 1) ** enrich)


def draw_labels(
    is_ap: np.ndarray, age: np.ndarray, patient: np.ndarray, enrich: float, draws: np.random.Generator
) -> np.ndarray:
    """Findings of each image, (images, 14) of 0 and 1, by a Gaussian copula.

    A finding is there where its latent standard normal number lies below the quantile of its prevalence in the image's
    view. A latent number is the sum of a pull of the patient's standardised `age`, a part of the patient's own and a
    part of the image's, whose variances add up to 1; so prevalences and pairs come out the same however many images
    a patient has. `patient` counts from 0.
    """
    pull = np.array([AGE_PULL.get(finding, 0.0) for finding in FINDINGS])
    root = np.linalg.cholesky(correlations() - np.outer(pull, pull)).T
    lasting = draws.standard_normal((int(patient.max()) + 1, len(FINDINGS)))[patient]
    passing = draws.standard_normal((len(patient), len(FINDINGS)))
    own = (np.sqrt(PERSISTENCE) * lasting + np.sqrt(1 - PERSISTENCE) * passing) @ root
    threshold = np.where(is_ap[:, None], ndtri(prevalence("AP", enrich)), ndtri(prevalence("PA", enrich)))
    latent = own - age[:, None] * pull  # minus: the older, the further below
    return np.asarray(latent < threshold, dtype=np.int64)


@cache
def correlations() -> np.ndarray:
    """Of the latent numbers: for each pair the one correlation at which the copula expects the published count."""
    first, second = np.triu_indices(len(FINDINGS), 1)
    published = np.concatenate(WITH_BOTH) / sum(IMAGES.values())
    quantiles = {view: ndtri(prevalence(view)) for view in IMAGES}
    low, high = np.full(len(first), -0.99), np.full(len(first), 0.99)
    for _ in range(40):  # bisection of all pairs at once: the expected count rises with the correlation
        middle = (low + high) / 2
        expected = SHARE_AP * _both(quantiles["AP"][first], quantiles["AP"][second], middle)
        expected += (1 - SHARE_AP) * _both(quantiles["PA"][first], quantiles["PA"][second], middle)
        low, high = np.where(expected < published, middle, low), np.where(expected < published, high, middle)
    matrix = np.eye(len(FINDINGS))
    matrix[first, second] = matrix[second, first] = (low + high) / 2
    return matrix  # positive definite as it is: its smallest eigenvalue is 0.30


def _both(a: np.ndarray, b: np.ndarray, correlation: np.ndarray) -> np.ndarray:
    """Chance that two standard normal numbers lie below a and b: its derivative by r is their density (Plackett)."""
    nodes, weights = np.polynomial.legendre.leggauss(32)
    r = correlation[:, None] * (nodes + 1) / 2
    exponent = (a[:, None] ** 2 - 2 * r * a[:, None] * b[:, None] + b[:, None] ** 2) / (2 * (1 - r**2))
    density = np.exp(-exponent) / (2 * np.pi * np.sqrt(1 - r**2))
    return np.asarray(ndtr(a) * ndtr(b) + correlation / 2 * (density @ weights))
