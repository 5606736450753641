"""A broken device: all readings are off by so many standard deviations of the site's own training rows.

Of a table some numeric columns, or all; of images their brightness. Rows are changed after they were prepared, as if
the device broke when scales had been agreed on: a shift that was there before would mostly be scaled away.
"""

from dataclasses import replace

import numpy as np
import torch

from wardround.adversaries.adversary import Adversary, Setting, column_place, numeric_columns, own_rows
from wardround.core.errors import StudyError
from wardround.data.site import Rows

BYTES = 255


def feature_shift(strength: float = 3.0, columns: tuple[str, ...] = ()) -> Adversary:
    def poison(rows: Rows, setting: Setting, rng: np.random.Generator) -> Rows:
        poisoned = own_rows(rows)
        if poisoned.x.dim() == 4:
            return replace(poisoned, x=_brighter(poisoned.x, strength, setting, columns))
        x = poisoned.x
        for name in columns or numeric_columns(setting):
            place = column_place(setting, name)
            x[:, place] += strength * x[:, place].std(correction=0)
        return replace(poisoned, x=x)

    return Adversary(poisons="rows", poison=poison)


def _brighter(x: torch.Tensor, strength: float, setting: Setting, columns: tuple[str, ...]) -> torch.Tensor:
    """Brighter by so many standard deviations of all pixels; darker where it is below 0."""
    if columns:
        problem = "these data are images, which have no columns"
        raise StudyError(f"{setting.where}: columns", problem, "Leave `columns` out: all pixels become brighter.")
    pixels = x.to(torch.float64)
    shifted = pixels + strength * pixels.std(correction=0)
    return shifted.round().clamp(0, BYTES).to(torch.uint8) if x.dtype == torch.uint8 else shifted.to(x.dtype)
