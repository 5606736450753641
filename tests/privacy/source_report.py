"""The privacy scheme of the chest X-ray report, as a counter-example: what it says, and what it really costs.

It clips the gradient of a whole batch to C and adds noise of `stated_noise` times C at every step. That is the noise of
one release by the textbook formula (Dwork and Roth 2014, Theorem A.1), proven for an epsilon below 1. But every
step is a release; a patient who enters or leaves a batch moves its clipped gradient by up to 2C; and epsilon is counted
per round: four rounds of epsilon 2 are called 8. Batches that are shuffled earn no amplification by sampling.
"""

import math

from wardround.privacy.dp.accountant import Charge, epsilon

WRITTEN_NOISE = 0.72  # what the report writes where its own formula gives 2.42
ROUNDS = 4
MOVED = 2.0  # by how many clips one patient can move the clipped gradient of a batch


def stated_noise(epsilon: float, delta: float) -> float:
    """The report's formula for the noise of one release, in units of the clip."""
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def true_epsilon(claimed: float, delta: float, releases: int) -> float:
    """Of a patient who is in so many noisy batches, where the report claims `claimed` for its four rounds."""
    return epsilon_of(stated_noise(claimed / ROUNDS, delta), delta, releases)


def epsilon_of(noise: float, delta: float, releases: int) -> float:
    """The same for any noise. Every release is on all rows: nothing is hidden by who was drawn."""
    return epsilon([Charge(1.0, noise / MOVED, releases)], delta)
