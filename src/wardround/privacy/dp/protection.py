"""What of [privacy] holds for one site of one arm: how often a patient is drawn, how much noise, and until when.

All of it follows from public things: the study, the number of training rows, and who works in which round.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from wardround.core.errors import StudyError
from wardround.core.tree import Tree
from wardround.data.site import Rows
from wardround.privacy.dp.accountant import Charge, affordable, noise_for, scheduled_noise_for, times
from wardround.privacy.dp.example_dp import Adaptation, Rule, poisson_order
from wardround.privacy.dp.noise import SeededStream, Stream
from wardround.study.schema import ExamplePrivacy, NoiseSchedule, SitePrivacy

COUNT_NOISE = 1 / 20  # of a step's patients: what the count below an adaptive clip is blurred by, at least
LEVELS = 6  # of a noise that changes over the rounds
Streams = Callable[[str], Stream]  # by purpose


@dataclass(frozen=True)
class Sampling:
    """How a site's rows are drawn: by itself with probability `rate` in each of so many steps an epoch."""

    rate: float
    steps: int

    @classmethod
    def of(cls, rows: int, batch_size: int) -> "Sampling":
        """As many steps as batches would make, each with a batch's size on average."""
        return cls(min(1.0, batch_size / rows), -(-rows // batch_size))


def multiples(schedule: NoiseSchedule | None, rounds: int) -> tuple[float, ...]:
    """The noise of each round, in multiples of the first round's. At most `LEVELS` of them differ, because the price of
    each is computed by itself."""
    if schedule is None:
        return (1.0,) * rounds
    if schedule.kind == "step":
        change = math.ceil((0.5 if schedule.at is None else schedule.at) * rounds)
        return tuple(1.0 if number < change else schedule.last for number in range(rounds))
    levels = min(rounds, LEVELS)
    way = [level / (levels - 1) if levels > 1 else 0.0 for level in range(levels)]
    if schedule.kind == "linear":
        values = [1 + (schedule.last - 1) * part for part in way]
    else:
        values = [schedule.last**part for part in way]
    return tuple(float(f"{values[number * levels // rounds]:.4g}") for number in range(rounds))


@lru_cache(maxsize=4096)
def noise_by_round(example: ExamplePrivacy, sampling: Sampling, epochs: tuple[int, ...]) -> tuple[float, ...]:
    """Multiples of the clip, for a site that trains so many epochs in each round of the whole run. Without a clip: the
    standard deviation itself, and nothing unless the study gives it."""
    shape = multiples(example.noise_schedule, len(epochs))
    base = example.noise
    if base is None and example.clip == "none":
        base = 0.0
    elif base is None:
        steps = [max(sampling.steps * count, 0) for count in epochs]
        planned = list(zip(shape, steps, strict=True)) if any(steps) else [(1.0, 1)]
        base = scheduled_noise_for(sampling.rate, planned, example.epsilon, example.delta)
    return tuple(times(base, multiple) for multiple in shape)


def charge_of(example: ExamplePrivacy, sampling: Sampling, noise: float, epochs: int) -> Charge:
    """What so many epochs with this noise cost. Where nothing is clipped no noise hides a patient: none is counted."""
    return Charge(sampling.rate, 0.0 if example.clip == "none" else noise, sampling.steps * epochs)


@lru_cache(maxsize=4096)
def charges_within(example: ExamplePrivacy, sampling: Sampling, epochs: tuple[int, ...]) -> tuple[Charge, ...]:
    """Of each round, up to the one before which a site stops because it would exceed epsilon."""
    noise = noise_by_round(example, sampling, epochs)
    charges = tuple(charge_of(example, sampling, *both) for both in zip(noise, epochs, strict=True))
    if example.noise is None or example.clip == "none":
        return charges  # the noise was chosen for all of them, or there is nothing to keep to
    return charges[: affordable(charges, example.epsilon, example.delta)]


def rule_of(
    example: ExamplePrivacy, rows: Rows, batch_size: int, epochs: tuple[int, ...], round_number: int = 0
) -> Rule:
    """For a site with these training rows, in one round. `epochs` are those of each round of the whole run."""
    sampling = Sampling.of(len(rows), batch_size)
    patients, noise = len(torch.unique(rows.people)), noise_by_round(example, sampling, epochs)[round_number]
    adaptation = None
    if example.adaptive is not None:
        # with as much noise on the count as `noise` says, the gradient's grows by 15 %; more costs less
        spread = example.adaptive.count_noise or max(noise, COUNT_NOISE * sampling.rate * patients)
        if 2 * spread <= noise:
            problem = f"{spread:g} on the count costs more than all that epsilon {example.epsilon:g} allows"
            remedy = f"Raise it above {noise / 2:.3g}, or leave it out."
            raise StudyError("privacy: example: adaptive: count_noise", problem, remedy)
        adaptation = Adaptation(example.adaptive.quantile, example.adaptive.rate, spread)
    return Rule(sampling.rate, noise, example.longest, patients, adaptation)


def private_order(rows: Rows, batch_size: int, epochs: int, streams: Streams) -> list[Tensor]:
    sampling = Sampling.of(len(rows), batch_size)
    return poisson_order(rows.people, sampling.rate, sampling.steps * epochs, streams("sampling"))


def seeded_streams(seed: int, round_number: int, site: str) -> Streams:
    return lambda purpose: SeededStream(seed, f"privacy: {purpose}", round_number, site)


def generator_from(stream: Stream) -> np.random.Generator:
    """For dropout and augmentation, which must be as secret as the sampling: with masks that are known, a patient more
    would change what the others' gradients are multiplied with."""
    entropy = (stream.uniform(8) * (2**32 - 1)).astype(np.uint32)
    return np.random.default_rng(entropy.tolist())


@lru_cache(maxsize=256)
def site_noise(site: SitePrivacy, share: float, rounds: int) -> float:
    """Multiples of the clip on the sum of the updates of a round."""
    return noise_for(share, rounds, site.epsilon, site.delta)


def clipped_update(update: dict[str, Tree], exempt: frozenset[str], clip: float) -> dict[str, Tree]:
    """A site's whole update as one vector, no longer than the clip; what does not depend on data stays as it is."""
    leaves = [leaf for part, tree in update.items() if part not in exempt for leaf in tree.values()]
    length = math.sqrt(sum(float(leaf.double().square().sum()) for leaf in leaves))
    if not math.isfinite(length):
        return {
            part: tree if part in exempt else {name: torch.zeros_like(leaf) for name, leaf in tree.items()}
            for part, tree in update.items()
        }
    factor = min(1.0, clip * (1 - 1e-5) / length) if length else 1.0
    return {
        part: tree if part in exempt else {name: leaf * factor for name, leaf in tree.items()}
        for part, tree in update.items()
    }
