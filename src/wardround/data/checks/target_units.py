"""Is a number in the same unit everywhere? Days at one hospital and hours at another differ by a factor of 24, mg/dl
and mmol/l of glucose by 18: nothing that patients differ by.

A hospital is named if its median is at least twice that of the others, or at most half, and if nothing but a unit is a
likely reason:

* most hospitals agree: their medians lie within a factor of 1.4 of the middle one. Of two hospitals neither is most,
  and a factor of 5 is asked for;
* its middle half lies apart from the middle half of each of those;
* its interquartile range is larger by about the same factor, as it is in another unit.

Only values above 0 are looked at, and none where more than one in twenty is below: such a scale has no factor.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

LEAST = 20  # values: the quartiles of fewer say little, and come close to single patients
FACTOR, FACTOR_OF_TWO = 2.0, 5.0
AGREE = 1.4
RANGE = 2.0  # times the factor, and its part, that the interquartile ranges may differ by
NEGATIVE = 0.05


@dataclass(frozen=True)
class OtherUnit:
    site: str
    factor: float  # its median in medians of the others
    others: tuple[str, ...]


def other_units(sizes: Mapping[str, np.ndarray]) -> list[OtherUnit]:
    """`sizes` are each site's numbers."""
    if any((values < 0).mean() > NEGATIVE for values in sizes.values() if len(values)):
        return []
    above = {site: values[values > 0] for site, values in sizes.items()}
    sites = [site for site, values in above.items() if len(values) >= LEAST]
    if len(sites) < 2:
        return []
    quartiles = np.array([np.percentile(above[site], [25, 50, 75]) for site in sites])
    medians = quartiles[:, 1]
    if len(sites) == 2:
        higher = int(medians.argmax())
        return _judged(sites, quartiles, higher, [1 - higher], FACTOR_OF_TWO)
    middle = np.median(medians)
    agree = np.flatnonzero(np.maximum(medians / middle, middle / medians) <= AGREE).tolist()
    if 2 * len(agree) <= len(sites):
        return []
    return [
        odd for site in range(len(sites)) if site not in agree for odd in _judged(sites, quartiles, site, agree, FACTOR)
    ]


def _judged(
    sites: Sequence[str], quartiles: np.ndarray, site: int, others: Sequence[int], least: float
) -> list[OtherUnit]:
    low, median, high = quartiles[site]
    factor = median / np.median(quartiles[others, 1])
    apart = low > quartiles[others, 2].max() if factor > 1 else high < quartiles[others, 0].min()
    ranges = quartiles[:, 2] - quartiles[:, 0]
    usual = np.median(ranges[others])
    scaled = usual > 0 and 1 / RANGE <= ranges[site] / usual / factor <= RANGE
    if not (max(factor, 1 / factor) >= least and apart and scaled):
        return []
    return [OtherUnit(sites[site], float(factor), tuple(sites[other] for other in others))]
