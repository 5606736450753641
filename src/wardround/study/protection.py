"""`[privacy]`: how patients and hospitals are protected in an arm."""

import math
from dataclasses import dataclass
from typing import Annotated, Literal

from wardround.core.settings import Count, Positive, Range, Share


@dataclass(frozen=True)
class AdaptiveClip:
    """The clip follows a quantile of the lengths of patients' gradients, found with noise and paid for."""

    quantile: Annotated[float, Range(low=0, high=1, low_open=True, high_open=True)] = 0.5
    rate: Positive = 0.2  # how fast it follows
    count_noise: Positive | None = None  # SD on the number of patients below the clip; None: enough to cost little


@dataclass(frozen=True)
class NoiseSchedule:
    """How noise changes over the rounds: from that of the first round to `last` times as much in the last round."""

    last: Annotated[float, Range(low=0.01, high=100)]
    kind: Literal["linear", "exponential", "step"] = "linear"
    at: Share | None = None  # of the rounds, before a "step"; None: half of them


@dataclass(frozen=True)
class ExamplePrivacy:
    """Differential privacy for each patient, at each site. Noise is chosen for the whole run, unless it is given."""

    epsilon: Positive
    delta: Annotated[float, Range(low=0, high=1, low_open=True, high_open=True)]
    clip: Positive | Literal["none"]  # "none": gradients stay as long as they are, and no epsilon holds
    # in clips (without a clip: as it is); None: the least that keeps to epsilon. Given: a site stops at epsilon
    noise: Positive | None = None
    adaptive: AdaptiveClip | None = None
    noise_schedule: NoiseSchedule | None = None

    @property
    def longest(self) -> float:
        """The length to which a patient's gradient is clipped."""
        return math.inf if self.clip == "none" else self.clip

    @property
    def promised(self) -> float:
        """The epsilon that holds at the end. Without a clip one patient can move the sum as far as it likes."""
        return math.inf if self.clip == "none" else self.epsilon


@dataclass(frozen=True)
class SitePrivacy:
    """Differential privacy for each hospital as a whole: its update is clipped, the sum of all gets noise."""

    epsilon: Positive
    delta: Annotated[float, Range(low=0, high=1, low_open=True, high_open=True)]
    clip: Positive


@dataclass(frozen=True)
class SecureSum:
    """The coordinator learns the sum of the updates and no single one."""

    threshold: Count | None = None  # sites without which a round's sum stays closed; None: more than two thirds
    largest: Positive = 1024.0  # public bound of any number in an update
    most_rows: Count = 1_000_000  # public bound of a site's training rows


@dataclass(frozen=True)
class Privacy:
    """Protection of patients and hospitals in an arm. Each part is complete or left out."""

    example: ExamplePrivacy | None = None
    site: SitePrivacy | None = None
    secure_sum: SecureSum | None = None
