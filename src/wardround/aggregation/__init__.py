"""Aggregation rules by the name that a study gives. A factory's signature is the list of the rule's settings."""

from collections.abc import Callable

from wardround.aggregation.bulyan import bulyan
from wardround.aggregation.centred_clipping import centred_clipping
from wardround.aggregation.fltrust import fltrust
from wardround.aggregation.geometric_median import geometric_median
from wardround.aggregation.krum import krum, multi_krum
from wardround.aggregation.mean import mean
from wardround.aggregation.median import median
from wardround.aggregation.norm_bound import norm_bound
from wardround.aggregation.rule import Rule, Updates
from wardround.aggregation.trimmed_mean import trimmed_mean

RULES: dict[str, Callable[..., Rule]] = {
    "mean": mean,
    "norm-bound": norm_bound,
    "median": median,
    "trimmed-mean": trimmed_mean,
    "geometric-median": geometric_median,
    "krum": krum,
    "multi-krum": multi_krum,
    "bulyan": bulyan,
    "centred-clipping": centred_clipping,
    "fltrust": fltrust,
}

__all__ = ["RULES", "Rule", "Updates"]
