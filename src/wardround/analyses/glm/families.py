"""Families of outcomes with their canonical or usual link: what one row adds to likelihood, score and information.

All functions take arrays: the outcome `y` and the linear predictor `eta`. A site sums what they return.
"""

from dataclasses import dataclass

import numpy as np
from scipy.special import expit, gammaln, xlog1py, xlogy

LARGEST_PREDICTOR = 700.0  # exp beyond it overflows; a step that goes there is halved


@dataclass(frozen=True)
class Family:
    """`dispersion` is that of the negative binomial (variance mean + dispersion x mean²); 0 elsewhere."""

    name: str
    ratio: str  # what exp(coefficient) is called; empty: it is nothing
    dispersion: float = 0.0

    def mean(self, eta: np.ndarray) -> np.ndarray:
        if self.name == "gaussian":
            return eta
        return np.asarray(expit(eta) if self.name == "logistic" else np.exp(np.minimum(eta, LARGEST_PREDICTOR)))

    def log_likelihood(self, y: np.ndarray, eta: np.ndarray) -> np.ndarray:
        """Of each row; of a Gaussian minus half its squared residual, from which the likelihood follows."""
        if self.name == "gaussian":
            return np.asarray(-((y - eta) ** 2) / 2)
        if self.name == "logistic":
            return np.asarray(y * eta - np.logaddexp(0.0, eta))
        mean = self.mean(eta)
        if not self.dispersion:
            return np.asarray(y * eta - mean - gammaln(y + 1))
        size, spread = 1 / self.dispersion, np.log1p(self.dispersion * mean)
        constant = gammaln(y + size) - gammaln(size) - gammaln(y + 1)
        return np.asarray(y * (eta + np.log(self.dispersion) - spread) - size * spread + constant)

    def slope(self, y: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """Of the log-likelihood by eta."""
        return np.asarray((y - mean) / (1 + self.dispersion * mean) if self.dispersion else y - mean)

    def curvature(self, y: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """Minus the second derivative by eta: the observed information, with which Newton's steps end quickly."""
        if self.name == "gaussian":
            return np.ones_like(mean)
        if self.name == "logistic":
            return np.asarray(mean * (1 - mean))
        if self.dispersion:
            return np.asarray(mean * (1 + self.dispersion * y) / (1 + self.dispersion * mean) ** 2)
        return mean

    def expected_curvature(self, mean: np.ndarray) -> np.ndarray:
        """The same on average over outcomes with this mean: the expected information, for standard errors."""
        return self.curvature(mean, mean)

    @property
    def differs(self) -> bool:
        """Whether observed and expected information differ."""
        return self.dispersion > 0

    def variance(self, mean: np.ndarray) -> np.ndarray:
        """In units of the scale."""
        if self.name == "gaussian":
            return np.ones_like(mean)
        return mean * (1 - mean) if self.name == "logistic" else mean * (1 + self.dispersion * mean)

    def deviance(self, y: np.ndarray, mean: np.ndarray) -> np.ndarray:
        """Of each row."""
        if self.name == "gaussian":
            return np.asarray((y - mean) ** 2)
        if self.name == "logistic":
            return np.asarray(-2 * (xlogy(y, mean) + xlog1py(1 - y, -mean)))
        ratio = xlogy(y, y / mean)
        if not self.dispersion:
            return np.asarray(2 * (ratio - (y - mean)))
        spread = (1 + self.dispersion * y) / (1 + self.dispersion * mean)
        return np.asarray(2 * (ratio - (y + 1 / self.dispersion) * np.log(spread)))

    def start(self, mean: float) -> float:
        """The linear predictor with this mean of the outcome, for a first step."""
        if self.name == "gaussian":
            return mean
        if self.name == "logistic":
            mean = min(max(mean, 1e-6), 1 - 1e-6)
            return float(np.log(mean / (1 - mean)))
        return float(np.log(max(mean, 1e-6)))

    def wrong_outcome(self, y: np.ndarray) -> str:
        """What is wrong with some outcomes; empty where nothing is."""
        if self.name == "logistic" and not np.isin(y, (0.0, 1.0)).all():
            return "has values other than 0 and 1, and a logistic regression needs those"
        if self.name in ("poisson", "negative-binomial"):
            if (y < 0).any():
                return "has negative values, and counts have none"
            if (y != np.round(y)).any():
                return "has values that are no whole numbers, and counts are"
        return ""


RATIOS = {"logistic": "odds ratio", "poisson": "rate ratio", "negative-binomial": "rate ratio"}


def family_of(name: str, dispersion: float) -> Family:
    return Family(name, RATIOS.get(name, ""), dispersion)
