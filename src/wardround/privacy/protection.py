"""What of [privacy] holds for one site of one arm: how often a patient is drawn, how much noise, and until when.

All of it follows from public things: the study, the number of training rows, and who works in which round.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from wardround.data.site import Rows
from wardround.errors import StudyError
from wardround.privacy.accountant import Charge, affordable, noise_for
from wardround.privacy.example_dp import Adaptation, Rule, poisson_order
from wardround.privacy.noise import SeededStream, Stream
from wardround.study import ExamplePrivacy, SitePrivacy
from wardround.tree import Tree

COUNT_NOISE = 1 / 20  # of a step's patients: what the count below an adaptive clip is blurred by, at least
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


@lru_cache(maxsize=4096)
def noise_of(example: ExamplePrivacy, sampling: Sampling, epochs: int) -> float:
    """Multiples of the clip, for a site that trains so many epochs over the whole run."""
    if example.noise is not None:
        return example.noise
    return noise_for(sampling.rate, max(1, sampling.steps * epochs), example.epsilon, example.delta)


def rule_of(example: ExamplePrivacy, rows: Rows, batch_size: int, epochs: int) -> Rule:
    """For a site with these training rows. `epochs` are those of the whole run."""
    sampling = Sampling.of(len(rows), batch_size)
    patients, noise = len(torch.unique(rows.people)), noise_of(example, sampling, epochs)
    adaptation = None
    if example.adaptive is not None:
        # with as much noise on the count as `noise` says, the gradient's grows by 15 %; more costs less
        spread = example.adaptive.count_noise or max(noise, COUNT_NOISE * sampling.rate * patients)
        if 2 * spread <= noise:
            problem = f"{spread:g} on the count costs more than all that epsilon {example.epsilon:g} allows"
            remedy = f"Raise it above {noise / 2:.3g}, or leave it out."
            raise StudyError("privacy: example: adaptive: count_noise", problem, remedy)
        adaptation = Adaptation(example.adaptive.quantile, example.adaptive.rate, spread)
    return Rule(sampling.rate, noise, example.clip, patients, adaptation)


@lru_cache(maxsize=4096)
def epochs_within(example: ExamplePrivacy, sampling: Sampling, epochs: int) -> int:
    """How many of the run's epochs a site may train before its next one would exceed epsilon."""
    if example.noise is None:
        return epochs  # the noise was chosen for all of them
    per_epoch = Charge(sampling.rate, example.noise, sampling.steps)
    return affordable(per_epoch, epochs, example.epsilon, example.delta)


def stopped_from(done: Sequence[int], within: int) -> int:
    """The first round that does not fit, where `done` are the epochs of each round."""
    reached = np.cumsum(done)
    return int(np.searchsorted(reached, within, side="right"))


def private_order(rows: Rows, batch_size: int, epochs: int, streams: Streams) -> list[Tensor]:
    sampling = Sampling.of(len(rows), batch_size)
    return poisson_order(rows.people, sampling.rate, sampling.steps * epochs, streams("sampling"))


def seeded_streams(seed: int, round_number: int, site: str) -> Streams:
    """Of a simulation."""
    return lambda purpose: SeededStream(seed, f"privacy: {purpose}", round_number, site)


def generator_from(stream: Stream) -> np.random.Generator:
    """For dropout and augmentation, which must be as secret as the sampling: with masks that are known, a patient more
    would change what the others' gradients are multiplied with."""
    words = (stream.uniform(8) * (2**32 - 1)).astype(np.uint32)
    return np.random.default_rng(words.tolist())


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
