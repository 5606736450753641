"""What training costs in privacy: epsilon of Poisson-sampled Gaussian noise, and the noise that a given epsilon needs.

Others do the mathematics: Google's dp-accounting (privacy loss distributions, Doroshenko et al., PoPETs 2022,
arXiv:2207.04380; noise on all rows in closed form, Balle and Wang, ICML 2018, arXiv:1805.06530; Rényi divergences to
compare with). This file groups charges, chooses the grid and looks for the noise.

Noise is in units of the clip, and a row is in a step with probability `rate`, each step anew. Neighbours are

* "add-remove": one patient more or less. A step tells N(0, s^2) from (1 - q) N(0, s^2) + q N(1, s^2).
* "replace": one patient exchanged for another, whose clipped gradient may point the other way. A step tells
  (1 - q) N(0, s^2) + q N(-1, s^2) from (1 - q) N(0, s^2) + q N(1, s^2): a group of one deletion and one insertion in
  Schuchardt et al. (NeurIPS 2024, arXiv:2403.04867). dp-accounting composes this pair itself ("pld" only).

Every epsilon is rounded upwards, never down: "pld" mostly lies 0.05 % above the true value, at small rates up to 0.4 %
and, where over 200 different charges are composed, more.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from wardround.core.errors import StudyError
from wardround.core.extras import needs
from wardround.core.silence import without_remarks

Adjacency = Literal["add-remove", "replace"]
Method = Literal["pld", "rdp"]
Shape = tuple[tuple[float, int], ...]  # multiples of a noise, and the steps of each

SMALLEST_DELTA = 1e-12  # below it the rounding of Fourier transforms shows in the result
SMALLEST_NOISE = 1e-3  # below it (epsilon in the hundred thousands) noise counts as none
LARGEST_NOISE = 1e9  # above it the closed form divides by zero
GRID = 0.07  # width of the grid, in standard deviations of a step's privacy loss: an error of 0.05 % in epsilon
COARSEST = 0.2  # the same for grids that would be long, as those of small rates are: an error of 0.4 %
LONG = 20_000  # points of a grid
CUT = 1e-4  # the part of delta that may be lost at the ends of grids: it is counted as if nothing were hidden there
MOST_GROUPS = 200  # different charges that are composed one by one, at some 20 ms each; more are rounded together
DIGITS = 4  # of a noise multiplier


@dataclass(frozen=True, order=True)
class Charge:
    """So many steps, each of which adds noise to the sum over rows that were drawn by independent coins."""

    rate: float  # probability that a row takes part in a step
    noise: float  # standard deviation of the noise, in units of the clip
    steps: int

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise _wrong("sampling rate", self.rate, "a number above 0 and at most 1")
        if not 0 <= self.noise < math.inf:
            raise _wrong("noise multiplier", self.noise, "a number that is 0 (no privacy) or more")
        if self.steps < 0 or self.steps != int(self.steps):
            raise _wrong("number of steps", self.steps, "a whole number that is 0 or more")


def epsilon(
    charges: Iterable[Charge], delta: float, adjacency: Adjacency = "add-remove", method: Method = "pld"
) -> float:
    """What all charges together cost the same patients. Neither their order nor how they are divided matters."""
    _check_delta(delta)
    if method != "pld" and adjacency != "add-remove":
        problem = f"the method {method!r} cannot account for the exchange of a patient"
        raise StudyError("privacy", problem, 'Use the method "pld" for the adjacency "replace".')
    return _epsilon(_grouped(charges), delta, adjacency, method)


def epsilon_curve(per_round: Charge, rounds: int, delta: float, adjacency: Adjacency = "add-remove") -> list[float]:
    """Epsilon after 1, 2, ... `rounds` rounds of the same charge."""
    _check_delta(delta)
    return list(_curve(per_round, rounds, delta, adjacency))


def affordable(charges: Sequence[Charge], epsilon: float, delta: float, adjacency: Adjacency = "add-remove") -> int:
    """How many charges, of one round after the other, fit into `epsilon`."""
    _check_delta(delta)
    fits, too_many = 0, len(charges) + 1
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if _epsilon(_grouped(charges[:middle]), delta, adjacency, "pld") <= epsilon:
            fits = middle
        else:
            too_many = middle
    return fits


def noise_for(rate: float, steps: int, epsilon: float, delta: float, adjacency: Adjacency = "add-remove") -> float:
    """The smallest noise multiplier, rounded up to four digits, whose `steps` steps cost at most `epsilon`."""
    return scheduled_noise_for(rate, ((1.0, steps),), epsilon, delta, adjacency)


def scheduled_noise_for(
    rate: float,
    shape: Sequence[tuple[float, int]],
    epsilon: float,
    delta: float,
    adjacency: Adjacency = "add-remove",
) -> float:
    """The same for noise that changes: `shape` has multiples of the noise that is looked for, and the steps of each."""
    _check_delta(delta)
    if not 0 < epsilon < math.inf:
        raise _wrong("epsilon", epsilon, "a number above 0")
    steps: dict[float, int] = {}
    for multiple, count in shape:
        Charge(rate, multiple, count)
        steps[multiple] = steps.get(multiple, 0) + count
    nonzero = tuple(sorted((multiple, count) for multiple, count in steps.items() if count))
    return _noise_for(rate, nonzero, epsilon, delta, adjacency) if nonzero else 0.0


def together(charges: Iterable[Charge]) -> tuple[Charge, ...]:
    """One charge for each rate and noise, in the order in which they come first."""
    steps: dict[tuple[float, float], int] = {}
    for charge in charges:
        steps[charge.rate, charge.noise] = steps.get((charge.rate, charge.noise), 0) + charge.steps
    return tuple(Charge(rate, noise, count) for (rate, noise), count in steps.items())


def times(noise: float, multiple: float) -> float:
    """A multiple of a noise, without the digits that binary fractions add, so that it is charged as it is drawn."""
    return noise if multiple == 1 else float(f"{noise * multiple:.6g}")


@lru_cache(maxsize=4096)
def _epsilon(charges: tuple[Charge, ...], delta: float, adjacency: Adjacency, method: Method) -> float:
    if not charges:
        return 0.0
    if any(charge.noise < SMALLEST_NOISE for charge in charges):
        return math.inf
    if all(charge.rate == 1 for charge in charges) and method != "rdp":
        return _epsilon_on_all_rows(_equivalent_charge(charges).noise, delta, adjacency)
    if method == "rdp":
        return _epsilon_rdp(charges, delta)
    return _read_off(_composed(charges, delta, adjacency), delta)


@lru_cache(maxsize=256)
def _curve(per_round: Charge, rounds: int, delta: float, adjacency: Adjacency) -> tuple[float, ...]:
    if per_round.rate == 1 or not per_round.steps or per_round.noise < SMALLEST_NOISE:
        per_count = (replace(per_round, steps=per_round.steps * done) for done in range(1, rounds + 1))
        return tuple(epsilon([charge], delta, adjacency) for charge in per_count)
    single = _composed(_grouped([per_round]), delta / max(rounds, 1), adjacency)
    spent, epsilons = single, [_read_off(single, delta)]
    for _ in range(1, rounds):
        spent = spent.compose(single, CUT * delta / rounds)
        epsilons.append(max(epsilons[-1], _read_off(spent, delta)))
    return tuple(epsilons[:rounds])


@lru_cache(maxsize=1024)
def _noise_for(rate: float, shape: Shape, target: float, delta: float, adjacency: Adjacency) -> float:
    with needs("privacy", "differential privacy"):
        from dp_accounting.gaussian_mechanism import get_sigma_gaussian

    on_all_rows = float(get_sigma_gaussian(target, delta)) * (2 if adjacency == "replace" else 1)
    noise = on_all_rows * math.sqrt(sum(steps / multiple**2 for multiple, steps in shape))
    if rate < 1:
        noise = _search(rate, shape, target, delta, adjacency, on_all_rows)
    unit = 10.0 ** (math.floor(math.log10(noise)) + 1 - DIGITS)
    count = math.ceil(noise / unit - 1e-9)
    while epsilon(_charges(rate, _rounded(count * unit), shape), delta, adjacency) > target:
        count += 1
    return _rounded(count * unit)


def _charges(rate: float, noise: float, shape: Shape) -> list[Charge]:
    return [Charge(rate, times(noise, multiple), steps) for multiple, steps in shape]


def _search(rate: float, shape: Shape, target: float, delta: float, adjacency: Adjacency, on_all_rows: float) -> float:
    """A noise whose epsilon is `target`, by secants on the logarithms, which lie nearly on a line."""
    # Where to begin: the central limit of many steps (Bu et al., HDSR 2020, arXiv:1911.11607), which is close.
    steps = sum(count for _, count in shape)
    spread = 1 / (rate * on_all_rows * math.sqrt(steps))
    middle = math.sqrt(steps / sum(count / multiple**2 for multiple, count in shape))
    noise = 1 / math.sqrt(math.log1p(spread**2)) / middle

    def excess(log_noise: float) -> float:
        spent = epsilon(_charges(rate, math.exp(log_noise), shape), delta, adjacency)
        return math.log(min(max(spent / target, 1e-3), 1e3))  # finite where nothing is spent, or all

    from scipy.optimize import brentq

    below = above = math.log(noise)
    step = 0.05
    while excess(below) <= 0:
        above, below, step = below, below - step, step * 2
    step = 0.05
    while excess(above) > 0:
        below, above, step = above, above + step, step * 2
    return math.exp(brentq(excess, below, above, xtol=2e-5))


def _epsilon_on_all_rows(noise: float, delta: float, adjacency: Adjacency) -> float:
    """Closed form. A patient who is exchanged moves the sum by two clips: half the noise."""
    with needs("privacy", "differential privacy"):
        from dp_accounting.gaussian_mechanism import get_epsilon_gaussian

    return float(get_epsilon_gaussian(noise / 2 if adjacency == "replace" else noise, delta))


def _epsilon_rdp(charges: tuple[Charge, ...], delta: float) -> float:
    with needs("privacy", "differential privacy"):
        from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
        from dp_accounting.rdp import RdpAccountant

    accountant = RdpAccountant()
    with without_remarks("absl"):  # on Rényi orders that are left out, which is sound
        for charge in charges:
            accountant.compose(PoissonSampledDpEvent(charge.rate, GaussianDpEvent(charge.noise)), charge.steps)
        return float(accountant.get_epsilon(delta))


def _composed(charges: tuple[Charge, ...], delta: float, adjacency: Adjacency) -> Any:
    """The privacy loss distribution of all charges together. `charges` are grouped and have noise."""
    on_all_rows = [charge for charge in charges if charge.rate == 1]
    parts = [charge for charge in charges if charge.rate < 1] + (
        [_equivalent_charge(on_all_rows)] if on_all_rows else []
    )
    steps = sum(part.steps for part in parts)
    # A power of ten, so that one more step finds the grids of those before it in the cache.
    log_cut = math.floor(math.log10(CUT * delta / steps)) * math.log(10)
    width = _width(parts, steps, log_cut)
    composed: Any = None
    for part in parts:
        step = _single_step(part.rate, part.noise, width, log_cut, adjacency)
        repeated = step.self_compose(part.steps, CUT * delta / len(parts))
        composed = repeated if composed is None else composed.compose(repeated, CUT * delta / len(parts))
    return composed


def _read_off(losses: Any, delta: float) -> float:
    """Epsilon at `delta`. Beyond 700 the library's own inverse overflows, while its delta for an epsilon does not."""
    import numpy as np

    with np.errstate(over="ignore"):
        inverse = float(losses.get_epsilon_for_delta(delta))
    if inverse < 700:
        return inverse
    low, high = 0.0, 1024.0
    while losses.get_delta_for_epsilon(high) > delta:
        low, high = high, high * 2
        if high > 1e12:
            return math.inf
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if losses.get_delta_for_epsilon(middle) > delta else (low, middle)
    return high


@lru_cache(maxsize=64)
def _single_step(rate: float, noise: float, width: float, log_cut: float, adjacency: Adjacency) -> Any:
    with needs("privacy", "differential privacy"):
        from dp_accounting import NeighboringRelation
        from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    relations = {"add-remove": NeighboringRelation.ADD_OR_REMOVE_ONE, "replace": NeighboringRelation.REPLACE_ONE}
    return from_gaussian_mechanism(
        noise,
        value_discretization_interval=width,
        log_mass_truncation_bound=log_cut,
        sampling_prob=rate,
        neighboring_relation=relations[adjacency],
    )


def _width(parts: Sequence[Charge], steps: int, log_cut: float) -> float:
    """Distance of the grid's points. Rounding adds about its square to the variance of each step's privacy loss.

    So it is measured against the mean variance, for which Rényi's divergence of order 2 stands: it has a closed form.
    """
    deviation = math.sqrt(sum(part.steps * _divergence(part) for part in parts) / steps)
    longest = max(_largest_loss(part, math.sqrt(-2 * log_cut)) for part in parts)
    return min(max(GRID * deviation, longest / LONG), COARSEST * deviation)


def _divergence(charge: Charge) -> float:
    """log(1 + q^2 (exp(1/s^2) - 1)), without overflow."""
    exponent = charge.noise**-2
    if exponent > 500:
        return max(exponent + 2 * math.log(charge.rate), 1.0)
    return math.log1p(charge.rate**2 * math.expm1(exponent))


def _largest_loss(charge: Charge, reach: float) -> float:
    """Privacy loss where a grid ends, `reach` standard deviations out."""
    exponent = (reach * charge.noise + 0.5) / charge.noise**2
    if exponent > 500:
        return exponent + math.log(charge.rate)
    return math.log1p(charge.rate * math.expm1(exponent))


def _grouped(charges: Iterable[Charge]) -> tuple[Charge, ...]:
    """One charge for each rate and noise, in order, so that equal spending is computed once and in one way."""
    limited = (Charge(float(c.rate), min(float(c.noise), LARGEST_NOISE), int(c.steps)) for c in charges)
    steps = {(charge.rate, charge.noise): charge.steps for charge in together(limited) if charge.steps}
    apart = 0.001
    while len(steps) > MOST_GROUPS:
        steps, apart = _coarser(steps, apart), apart * 2
    return tuple(Charge(rate, noise, count) for (rate, noise), count in sorted(steps.items()))


def _coarser(steps: dict[tuple[float, float], int], apart: float) -> dict[tuple[float, float], int]:
    """Neighbours together: the rate rounded up and the noise down, by at most `apart`. Neither makes it cheaper."""
    merged: dict[tuple[float, float], int] = {}
    for (rate, noise), count in steps.items():
        more = min(1.0, max(rate, math.exp(math.ceil(math.log(rate) / apart) * apart)))
        less = min(noise, math.exp(math.floor(math.log(noise) / apart) * apart)) if noise else 0.0
        merged[more, less] = merged.get((more, less), 0) + count
    return merged


def _equivalent_charge(charges: Sequence[Charge]) -> Charge:
    """Gaussian noise on all rows, several times, reveals as much as once with less: the inverse variances add up."""
    return Charge(1.0, sum(charge.steps / charge.noise**2 for charge in charges) ** -0.5, 1)


def _rounded(noise: float) -> float:
    """Without the digits that binary fractions add: 3.1 and not 3.1000000000000005."""
    return float(f"{noise:.{DIGITS}g}")


def _check_delta(delta: float) -> None:
    if not SMALLEST_DELTA <= delta < 1:
        raise _wrong(
            "delta", delta, f"a number below 1 and not below {SMALLEST_DELTA:g}, as a rule 1 / (10 x patients)"
        )


def _wrong(what: str, value: object, expected: str) -> StudyError:
    return StudyError("privacy", f"the {what} is {value}", f"Give {expected}.")
