"""Gradient inversion on a study's arms: rows of some patients, reconstructed from what leaves a site.

Each reconstruction is compared with the true row and with what could be guessed without any update.
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from wardround.attacks.gradient_inversion import (
    Effort,
    from_first_layer,
    observe_step,
    reconstruct,
    with_initial_memory,
)
from wardround.attacks.target import Target
from wardround.core import seeds
from wardround.privacy.dp.epsilons import format_epsilon
from wardround.privacy.dp.example_dp import Rule
from wardround.privacy.dp.protection import seeded_streams
from wardround.study.schema import Arm
from wardround.training.rounds import start
from wardround.training.trial import Run, Trial

WINDOW = 7  # pixels, of structural similarity


@dataclass(frozen=True)
class Likeness:
    """How close a reconstruction comes. Errors are mean squares over a row's prepared features."""

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
        """The reconstruction identifies this patient and is closer than any guess without the update."""
        return self.rank == 1 and self.error < min(self.guess_error, self.nearest_error)


def likeness_of(reconstruction: Tensor, true: Tensor, others: Tensor) -> Likeness:
    """`others` are rows of other patients: the other candidates, and the basis of the guess."""
    reconstruction = reconstruction.to(true.dtype).nan_to_num(0.0, 0.0, 0.0)
    guess = others.mean(0)
    distances = (others - reconstruction).square().flatten(1).mean(1)
    error = float((reconstruction - true).square().mean())
    images = true.dim() == 3
    return Likeness(
        error=error,
        guess_error=float((guess - true).square().mean()),
        nearest_error=float((others - true).square().flatten(1).mean(1).min()),
        rank=1 + int((distances <= error).sum()),
        candidates=1 + len(others),
        psnr=psnr(reconstruction, true) if images else None,
        guess_psnr=psnr(guess, true) if images else None,
        ssim=ssim(reconstruction, true) if images else None,
        guess_ssim=ssim(guess, true) if images else None,
    )


def psnr(image: Tensor, true: Tensor) -> float:
    """Peak signal-to-noise ratio in decibels; the peak is the true image's own range."""
    span = float(true.max() - true.min())
    error = max(float((image - true).square().mean()), 1e-12)
    return 10 * math.log10(max(span, 1e-12) ** 2 / error)


def ssim(image: Tensor, true: Tensor) -> float:
    """Structural similarity (Wang et al., IEEE TIP 2004) over square windows; 1 for the same image."""
    span = float(true.max() - true.min()) or 1.0
    c2, c1 = (0.03 * span) ** 2, (0.01 * span) ** 2
    a, b = image.unsqueeze(0).double(), true.unsqueeze(0).double()
    window = min(WINDOW, *true.shape[-2:])

    def mean(x: Tensor) -> Tensor:
        return avg_pool2d(x, window, stride=1)

    centre_a, centre_b = mean(a), mean(b)
    variance_a, variance_b = mean(a * a) - centre_a**2, mean(b * b) - centre_b**2
    covariance = mean(a * b) - centre_a * centre_b
    numerator = (2 * centre_a * centre_b + c1) * (2 * covariance + c2)
    denominator = (centre_a**2 + centre_b**2 + c1) * (variance_a + variance_b + c2)
    return float(torch.mean(numerator / denominator))


CANDIDATES = 100  # rows among which the true one must be the nearest


@dataclass(frozen=True)
class Picture:
    """One patient's image and its reconstructions, for a figure."""

    true: np.ndarray
    guess: np.ndarray
    reconstructions: dict[str, np.ndarray]  # by a label that says from which update


@dataclass(frozen=True)
class Victim:
    site: int
    row: int
    true: Tensor
    others: Tensor  # rows of other patients of the same site


def invert_arms(
    target: Target, at: Literal["initial", "trained"], count: int, effort: Effort, progress: Callable[[str], None]
) -> tuple[dict[str, Any], list[Picture]]:
    """The part `inversion` of attack.json, and pictures where they may be drawn."""
    unprotected: dict[str, list[tuple[Likeness, Tensor]]] = {}
    arms: dict[str, Any] = {}
    images: dict[str, list[Tensor]] = {}
    pictured: list[Victim] = []
    for arm in target.arms:
        trial = target.trial(arm)
        if not trial.algorithm.federated:
            arms[arm.name] = {"note": "no update leaves a site in this arm"}
            continue
        first = start(trial)
        run = first if at == "initial" else with_initial_memory(target.run(trial), first)
        chosen = _victims(trial, count)
        # before the first round, arms with the same model send out the same weights and attack the same rows
        key = repr((arm.model, target.plan.alike[arm.name], arm.training.lr, "" if at == "initial" else arm.name))
        if key not in unprotected:
            progress(f"{arm.name}: {count} rows from updates without protection")
            unprotected[key] = [_attack(trial, run, victim, None, effort) for victim in chosen]
        entry: dict[str, Any] = {
            "method": _method(trial, run, chosen[0]),
            "without": _summary(unprotected[key]),
            "with": None,
        }
        if arm.privacy.example is not None:
            progress(f"{arm.name}: {count} rows from protected updates")
            protected = [_attack(trial, run, victim, trial.rule(victim.site), effort) for victim in chosen]
            entry["with"] = _summary(protected)
            images[_label(arm)] = [image for _, image in protected]
        arms[arm.name] = entry
        if not pictured and chosen[0].true.dim() == 3:
            pictured, images = chosen, {"without protection": [image for _, image in unprotected[key]], **images}
    content = {"at": at, "rows": count, "candidates": CANDIDATES, "arms": arms}
    pictures = _pictures(pictured, images) if target.pictures_allowed else []
    return {**content, "pictures": len(pictures)}, pictures


def _label(arm: Arm) -> str:
    return (
        "" if arm.privacy.example is None else f"epsilon {format_epsilon(arm.privacy.example.promised)}\n({arm.name})"
    )


def _victims(trial: Trial, count: int) -> list[Victim]:
    """Random training rows, from each site in turn."""
    chosen = []
    for place in range(count):
        number = place % len(trial.sites)
        rows = trial.sites[number].train
        rng = seeds.generator(trial.seed, "attack: rows", place, trial.sites[number].name)
        order = rng.permutation(len(rows))
        row, people = int(order[0]), rows.people.numpy()
        others = [int(other) for other in order[1:] if people[other] != people[row]][: CANDIDATES - 1]
        x, _ = rows.take(torch.tensor([row, *others]), trial.dtype)
        chosen.append(Victim(number, row, x[0], x[1:]))
    return chosen


def _attack(trial: Trial, run: Run, victim: Victim, rule: Rule | None, effort: Effort) -> tuple[Likeness, Tensor]:
    streams = seeded_streams(trial.seed, victim.row, f"attack: {trial.arm}")
    observation = observe_step(trial, run, victim.site, victim.row, rule, streams)
    generator = torch.Generator().manual_seed(seeds.number(trial.seed, "attack: search", victim.row) >> 1)
    reconstruction = reconstruct(trial.model, observation, tuple(victim.true.shape), generator, effort)
    return likeness_of(reconstruction, victim.true, victim.others), reconstruction


def _method(trial: Trial, run: Run, victim: Victim) -> str:
    streams = seeded_streams(trial.seed, 0, "attack")
    gradient = observe_step(trial, run, victim.site, victim.row, None, streams).gradient
    return "search" if from_first_layer(gradient, tuple(victim.true.shape)) is None else "quotient"


def _summary(attacks: list[tuple[Likeness, Tensor]]) -> dict[str, Any]:
    likenesses = [likeness for likeness, _ in attacks]
    return {
        "recovered": sum(likeness.success for likeness in likenesses),
        "recognised": sum(likeness.rank == 1 for likeness in likenesses),
        "of": len(likenesses),
        "rows": [{**asdict(likeness), "success": likeness.success} for likeness in likenesses],
    }


def _pictures(pictured: list[Victim], images: dict[str, list[Tensor]]) -> list[Picture]:
    return [
        Picture(
            victim.true.numpy(),
            victim.others.mean(0).numpy(),
            {label: rebuilt[place].numpy() for label, rebuilt in images.items()},
        )
        for place, victim in enumerate(pictured)
    ]
