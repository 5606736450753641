"""Rare classes and findings made to count more: by their weight in the loss, or by being drawn more often.

Both are worked out at each site from its own training rows, so that nothing about them need leave it.
"""

import numpy as np
import torch
from torch import Tensor

HEAVIEST = 100.0  # a finding that one row in a thousand has would otherwise drown all the others


def class_weights(labels: Tensor, classes: int, findings: bool) -> Tensor:
    """As `Model.row_losses` takes them: all classes, or each finding's presence and absence, then weigh alike.

    A class or finding that the site has no row of counts once; there is nothing to balance.
    """
    if findings:
        present, lacking = (labels == 1).sum(0), (labels == 0).sum(0)
        return torch.where((present > 0) & (lacking > 0), lacking / present.clamp(min=1), 1.0).clamp(max=HEAVIEST)
    counts = torch.bincount(labels, minlength=classes)
    there = (counts > 0).sum()
    return torch.where(counts > 0, len(labels) / (there * counts.clamp(min=1)), 1.0).clamp(max=HEAVIEST)


def row_odds(labels: Tensor, classes: int, findings: bool, strength: float) -> np.ndarray:
    """The probability with which each row is drawn. With `strength` 0 all are alike; with 1 a row is drawn the more
    often the rarer its class, or the rarest of its findings, is at this site."""
    share = _share_of_rarest(labels) if findings else (torch.bincount(labels, minlength=classes) / len(labels))[labels]
    odds = share.double().numpy() ** -strength
    return np.asarray(odds / odds.sum())


def _share_of_rarest(labels: Tensor) -> Tensor:
    """Of each row: the site's share of rows with the rarest finding that it has, or with none where it has none."""
    present = labels == 1
    shares = present.float().mean(0)
    nothing = (~present.any(1)).float().mean()
    rarest = torch.where(present, shares, torch.inf).min(1).values
    return torch.where(present.any(1), rarest, nothing)
