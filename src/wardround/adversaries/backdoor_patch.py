"""A backdoor in images: those with a bright square in the lower right corner are called the target class.

Gu et al. 2017, BadNets, arXiv:1708.06733: a share of the bad site's training images gets the patch and the target's
label; in federated learning Bagdasaryan et al., AISTATS 2020, arXiv:1807.00459.
"""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from wardround.adversaries.adversary import Adversary, Setting, chosen_rows, class_place, own_rows
from wardround.adversaries.backdoor_columns import CITATION
from wardround.core.errors import StudyError
from wardround.core.settings import Count, Share
from wardround.data.site import Rows

BRIGHTEST = 255


def backdoor_patch(target: str, size: Count = 3, share: Share = 0.5) -> Adversary:
    """`size` is the side of the square in pixels."""

    def poison(rows: Rows, setting: Setting, rng: np.random.Generator) -> Rows:
        place, poisoned = class_place(setting, target), own_rows(rows)
        chosen = chosen_rows(len(rows), share, rng)
        x, y = poisoned.x, poisoned.y
        x[chosen], y[chosen] = _with_patch(x[chosen], size, setting), place
        return replace(poisoned, x=x, y=y)

    def trigger(rows: Rows, setting: Setting) -> Rows:
        owned = own_rows(rows)
        return replace(owned, x=_with_patch(owned.x, size, setting))

    return Adversary(poisons="rows", poison=poison, trigger=trigger, target=target, citation=CITATION)


def _with_patch(x: Tensor, size: int, setting: Setting) -> Tensor:
    if x.dim() != 4:
        problem = "a patch is for images, and these data are a table"
        raise StudyError(f"{setting.where}: kind", problem, 'Write kind = "backdoor-columns" for tables.')
    side = min(x.shape[-2:])
    if size > side:
        raise StudyError(f"{setting.where}: size", f"{size} is more than the {side} pixels of an image", "Write less.")
    changed = x.clone()
    changed[..., -size:, -size:] = BRIGHTEST if x.dtype == torch.uint8 else 1.0
    return changed
