"""The study file as one frozen, typed value. Parsed once, at the edge: nothing below sees a dict of settings.

    [data] [sites] [model] [training] [evaluation] [[arms]] [quick]

`[data]`, `[sites]`, `[model]` and each arm name a member of a family (a source, a partitioner, a model, an algorithm);
that member's factory function says which further settings there are. Everything else is a dataclass here, and every
default stands in one of these two places.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

from wardround.errors import StudyError, suggest
from wardround.settings import Count, Fraction, NonNegative, Positive, Range, Share, WholeNumber

METRICS = ("accuracy", "auc", "f1", "sensitivity", "specificity", "ppv", "npv", "brier", "loss")
Varied = Literal["partition", "split", "batches", "init"]


@dataclass(frozen=True)
class Choice:
    """A member of a family with all its settings: `dirichlet` with alpha 0.1 and 10 sites."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Preparation:
    """What each site does with its columns before training; fitted on training rows only."""

    missing: Literal["drop", "mean", "median"] = "median"
    indicator: bool = True  # a 0/1 column beside each column that has gaps at any site
    categories: Literal["one-hot", "codes"] = "one-hot"
    scale: Literal["per-site", "federated", "ranges", "none"] = "per-site"


@dataclass(frozen=True)
class Decay:
    """lr x factor after every `every` rounds, never below `minimum`."""

    factor: Share
    every: Count
    minimum: NonNegative = 0.0


@dataclass(frozen=True)
class Stragglers:
    """This share of a round's sites completes only part of its local epochs (Li et al. 2020, section 5.2)."""

    share: Annotated[float, Range(low=0, high=1)]
    policy: Literal["drop", "keep"]


@dataclass(frozen=True)
class Training:
    rounds: Count = 30
    local_epochs: Count = 1
    batch_size: Count = 32
    lr: Positive = 0.1
    lr_decay: Decay | None = None
    optimiser: Literal["sgd", "adam"] = "sgd"
    momentum: Fraction = 0.0
    weight_decay: NonNegative = 0.0
    share: Share = 1.0  # of the sites, in each round
    stragglers: Stragglers | None = None
    precision: Literal["float32", "float64"] = "float32"
    device: Literal["auto", "cpu", "cuda"] = "auto"

    def lr_in(self, round_number: int) -> float:
        if self.lr_decay is None:
            return self.lr
        decayed = self.lr * self.lr_decay.factor ** (round_number // self.lr_decay.every)
        return max(decayed, min(self.lr, self.lr_decay.minimum))


@dataclass(frozen=True)
class Seeds:
    first: WholeNumber = 42
    count: Count = 1

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.first, self.first + self.count))


@dataclass(frozen=True)
class Evaluation:
    test_share: Annotated[float, Range(low=0, high=1, low_open=True, high_open=True)] = 0.2
    validation_share: Fraction = 0.0
    seeds: Seeds = field(default_factory=Seeds)
    vary: tuple[Varied, ...] = ("partition", "split", "batches", "init")
    reference: str | None = None  # the arm that the others are compared with
    accept: tuple[str, ...] = ()  # checks whose errors this study knowingly accepts; they become warnings
    every: WholeNumber = 1  # rounds between two evaluations; 0 = only after the last

    def seed_for(self, purpose: Varied, seed: int) -> int:
        """What a seed does not vary stays as the first seed made it."""
        return seed if purpose in self.vary else self.seeds.first


@dataclass(frozen=True)
class Arm:
    """One way of training: what stands in the file, with its overrides and one point of its sweep filled in."""

    name: str  # fedprox[mu=0.05]
    family: str  # fedprox
    algorithm: Choice
    data: Choice
    sites: Choice
    model: Choice
    training: Training


@dataclass(frozen=True)
class Claim:
    """A published difference, set beside ours: the mean of `metric` over `arms` less that over `against`."""

    text: str
    source: str
    published: float
    tolerance: NonNegative  # how far ours may be from it and still count as reproduced
    arms: tuple[str, ...]
    against: tuple[str, ...]
    metric: str = "accuracy"


@dataclass(frozen=True)
class Study:
    name: str
    question: str
    data: Choice
    preparation: Preparation
    evaluation: Evaluation
    arms: tuple[Arm, ...]
    claims: tuple[Claim, ...]
    resolved: Mapping[str, Any] = field(compare=False)  # the file again, every default filled in

    @property
    def hash(self) -> str:
        """Names the run. Paths and the device are left out: every hospital computes the same hash."""
        content = {key: value for key, value in asdict(self).items() if key != "resolved"}
        return sha256(json.dumps(anonymous(content), sort_keys=True).encode()).hexdigest()

    def arm(self, name: str) -> Arm:
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise StudyError(f"study {self.name}", f"has no arm {name!r}", suggest(name, [arm.name for arm in self.arms]))


def anonymous(value: Any) -> Any:
    """Plain data without paths and device."""
    if isinstance(value, Mapping):
        return {key: anonymous(item) for key, item in value.items() if key != "device"}
    if isinstance(value, list | tuple):
        return [anonymous(item) for item in value]
    return None if isinstance(value, Path) else value
