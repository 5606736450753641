"""Is it the patient? A reconstructed row beside the true one and beside what could be guessed without any update."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

WINDOW = 7  # pixels over which structural similarity looks


@dataclass(frozen=True)
class Likeness:
    """How near a reconstruction comes. Errors are mean squares over the numbers of a row, as prepared for the model."""

    error: float
    guess_error: float  # of the mean of other patients' rows: the best guess without an update
    nearest_error: float  # of the other patient's row that is most like the true one
    rank: int  # of the true row among the candidates, by distance from the reconstruction; 1 is the nearest
    candidates: int
    psnr: float | None  # of images, in decibels
    guess_psnr: float | None
    ssim: float | None
    guess_ssim: float | None

    @property
    def success(self) -> bool:
        """The reconstruction points at this patient, and is nearer than whatever could be had without the update."""
        return self.rank == 1 and self.error < min(self.guess_error, self.nearest_error)


def likeness(found: Tensor, true: Tensor, others: Tensor) -> Likeness:
    """`others` are rows of other patients: the candidates beside the true one, and what a guess is made of."""
    found = found.to(true.dtype).nan_to_num(0.0, 0.0, 0.0)
    guess = others.mean(0)
    distances = (others - found).square().flatten(1).mean(1)
    error = float((found - true).square().mean())
    images = true.dim() == 3
    return Likeness(
        error=error,
        guess_error=float((guess - true).square().mean()),
        nearest_error=float((others - true).square().flatten(1).mean(1).min()),
        rank=1 + int((distances <= error).sum()),
        candidates=1 + len(others),
        psnr=psnr(found, true) if images else None,
        guess_psnr=psnr(guess, true) if images else None,
        ssim=ssim(found, true) if images else None,
        guess_ssim=ssim(guess, true) if images else None,
    )


def psnr(found: Tensor, true: Tensor) -> float:
    """Peak signal-to-noise ratio in decibels; the peak is the true image's own range."""
    span = float(true.max() - true.min())
    error = max(float((found - true).square().mean()), 1e-12)
    return 10 * math.log10(max(span, 1e-12) ** 2 / error)


def ssim(found: Tensor, true: Tensor) -> float:
    """Structural similarity (Wang et al., IEEE TIP 2004) over square windows; 1 for the same image."""
    span = float(true.max() - true.min()) or 1.0
    small, smaller = (0.03 * span) ** 2, (0.01 * span) ** 2
    a, b = found.unsqueeze(0).double(), true.unsqueeze(0).double()
    window = min(WINDOW, *true.shape[-2:])

    def mean(x: Tensor) -> Tensor:
        return avg_pool2d(x, window, stride=1)

    centre_a, centre_b = mean(a), mean(b)
    spread_a, spread_b = mean(a * a) - centre_a**2, mean(b * b) - centre_b**2
    together = mean(a * b) - centre_a * centre_b
    above = (2 * centre_a * centre_b + smaller) * (2 * together + small)
    below = (centre_a**2 + centre_b**2 + smaller) * (spread_a + spread_b + small)
    return float(torch.mean(above / below))
