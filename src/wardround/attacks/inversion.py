"""Reconstruct a patient's row from the update of a single local step on it.

The step is the worst case for the patient: the program's own `local_train` on one row, plain SGD without augmentation
or dropout, with or without the arm's protection. The attacker divides the update by the learning rate and subtracts
what does not depend on the row.

* Where the first layer is linear with an intercept, its gradient is error x row and its intercept's gradient is the
  error: the row is their quotient, exactly (Geiping et al., NeurIPS 2020, arXiv:2003.14053, proposition 3.1).
* Elsewhere the attack searches for a smooth row whose gradient has the same direction, by cosine (same paper, section
  4). The label is first read off the last layer's gradient (Zhao et al. 2020, arXiv:2001.02610).

The attacker knows the model, its weights and the study, and nothing about the row. The search does well on networks
whose convolutions feed a linear layer. On deep residual networks it mostly ends in a false minimum, because their
gradients jump whenever a rectifier opens or closes. A failed search there does not mean that nothing leaks.

Each reconstruction is compared with the true row and with what could be guessed without any update.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

from wardround.attacks.target import Target
from wardround.core import seeds, tree
from wardround.core.threads import torch_threads
from wardround.core.tree import Tree
from wardround.models.model import Model
from wardround.privacy.dp.epsilons import format_epsilon
from wardround.privacy.dp.example_dp import PrivateGradient, Rule
from wardround.privacy.dp.protection import Streams, seeded_streams
from wardround.tasks import Binary, Multilabel
from wardround.training.local import Memory, local_train
from wardround.training.optimisers import optimiser_for
from wardround.training.rounds import start
from wardround.training.trial import Run, Trial


@dataclass(frozen=True)
class Observation:
    """What the attacker has: the weights that were sent out, and the gradient that came back."""

    params: Tree
    buffers: Tree
    gradient: Tree  # of the shared leaves
    standardised: bool = False  # the study scales each image to mean 0 and SD 1


def observe_step(trial: Trial, run: Run, number: int, row: int, rule: Rule | None, streams: Streams) -> Observation:
    """One step of a site on one of its training rows; with a rule, clipped and noisy."""
    site = trial.sites[number]
    memory = run.memories[site.name]
    training = replace(trial.training, optimiser="sgd", momentum=0.0, weight_decay=0.0)
    model = replace(trial.model, mask_shapes={})
    shared = trial.algorithm.broadcast(run.server, number)
    lr = training.lr_in(0)
    outcome = local_train(
        trial.algorithm,
        model,
        optimiser_for(training),
        site.train,
        [torch.tensor([row])],
        shared,
        memory,
        lr,
        seeds.generator(trial.seed, "attack: dropout"),  # unused: the model has no dropout here
        private=None if rule is None else PrivateGradient(model, rule, streams("noise")),
    )
    start = trial.algorithm.begin(shared, memory.algorithm)
    gradient = tree.scale(outcome.moved or {}, -1 / lr)
    params = {**start, **memory.private}
    levels = site.train.levels
    standardised = levels is not None and bool((levels != levels[:1]).any())
    return Observation(params, memory.buffers, without_penalty(trial, params, gradient), standardised)


def without_penalty(trial: Trial, params: Tree, gradient: Tree) -> Tree:
    """The attacker can subtract the penalty: it depends on the weights alone."""
    if trial.model.penalty is None:
        return gradient
    leaves = {name: leaf.detach().requires_grad_() for name, leaf in params.items()}
    with torch.enable_grad():
        gradients = torch.autograd.grad(trial.model.penalty(leaves), list(leaves.values()), materialize_grads=True)
    penalty_gradient = dict(zip(leaves, gradients, strict=True))
    return {name: leaf - penalty_gradient[name] for name, leaf in gradient.items()}


def with_initial_memory(run: Run, first: Run) -> Run:
    """The run as an attacker can know it: the sites' private state is as it was before the first round."""
    memories = {
        site: Memory(memory.algorithm, memory.private, run.memories[site].buffers)
        for site, memory in first.memories.items()
    }
    return replace(run, memories=memories)


SMOOTHNESS = 2e-2  # weight of total variation beside the cosine
FASTEST = 0.1  # step, in units in which pixels have a standard deviation of about one
SLOWEST = 0.002


@dataclass(frozen=True)
class Effort:
    """How long the search runs."""

    steps: int = 600  # longer searches were no better on our test images
    starts: int = 1


def reconstruct(
    model: Model, observation: Observation, shape: Sequence[int], generator: torch.Generator, effort: Effort
) -> Tensor:
    """A row of this shape, from the gradient of the loss on it."""
    closed = from_first_layer(observation.gradient, shape)
    return closed if closed is not None else by_matching(model, observation, shape, generator, effort)


def from_first_layer(gradient: Tree, shape: Sequence[int]) -> Tensor | None:
    """Least squares over the quotients of all outputs; None where the first layer is not linear with an intercept."""
    names = list(gradient)
    weight = gradient[names[0]]
    bias = gradient.get(names[0].removesuffix("weight") + "bias")
    if weight.dim() != 2 or weight.shape[1] != math.prod(shape) or bias is None or bias.dim() != 1:
        return None
    length = bias.square().sum()
    return ((bias @ weight) / length.clamp(min=torch.finfo(bias.dtype).tiny)).reshape(tuple(shape))


def label_of(model: Model, gradient: Tree) -> Tensor:
    """The derivative of the loss by a score is probability - truth, so its sign gives the label.

    For findings, -1 where the gradient is 0: the finding is unknown, or the network is certain of it.
    """
    by_score = list(gradient.values())[-1]
    if by_score.dim() > 1:  # the last layer's intercept stays at its site; what a rectifier lets through is positive
        by_score = by_score.flatten(1).sum(1)
    if isinstance(model.task, Multilabel):
        return torch.where(by_score < 0, 1, torch.where(by_score > 0, 0, -1))
    if isinstance(model.task, Binary):
        return (by_score[0] < 0).long()
    return by_score.argmin()


def by_matching(
    model: Model, observation: Observation, shape: Sequence[int], generator: torch.Generator, effort: Effort
) -> Tensor:
    """The best result over several random starts."""
    with torch_threads(1):  # steps on one row are too short to gain from a second thread
        candidates = [_search(model, observation, shape, generator, effort.steps) for _ in range(effort.starts)]
    return min(candidates, key=lambda candidate: candidate[0])[1]


def _search(
    model: Model, observation: Observation, shape: Sequence[int], generator: torch.Generator, steps: int
) -> tuple[float, Tensor]:
    label = label_of(model, observation.gradient).unsqueeze(0)
    leaves = {name: observation.params[name].detach().requires_grad_() for name in observation.gradient}
    target = list(observation.gradient.values())
    target_norm = torch.stack([leaf.square().sum() for leaf in target]).sum().sqrt()
    dtype = target[0].dtype
    x = (torch.randn(1, *shape, generator=generator, dtype=dtype)).requires_grad_()
    momentum, variance = torch.zeros_like(x), torch.zeros_like(x)
    best, best_x = math.inf, x.detach().clone()
    for step in range(steps):
        image = _standardise(x) if observation.standardised else x
        scores, _ = model.logits(
            {**observation.params, **leaves}, observation.buffers, image, {}
        )  # as in training, without dropout
        loss = model.task.row_losses(scores, label).sum()
        gradients = torch.autograd.grad(loss, list(leaves.values()), create_graph=True, materialize_grads=True)
        dot = torch.stack([(a * b).sum() for a, b in zip(gradients, target, strict=True)]).sum()
        norm = torch.stack([leaf.square().sum() for leaf in gradients]).sum().sqrt()
        distance = 1 - dot / (norm * target_norm + 1e-30)
        objective = distance + (SMOOTHNESS * total_variation(image) if x.dim() == 4 else 0)
        (slope,) = torch.autograd.grad(objective, x)
        if float(objective.detach()) < best:
            best, best_x = float(objective.detach()), image.detach().clone()
        with torch.no_grad():
            slope = slope.sign()  # Adam on signs: the cosine's slope is tiny where it matters
            momentum = 0.9 * momentum + 0.1 * slope
            variance = 0.999 * variance + 0.001 * slope.square()
            unbiased = momentum / (1 - 0.9 ** (step + 1)), variance / (1 - 0.999 ** (step + 1))
            pace = SLOWEST + (FASTEST - SLOWEST) * (1 + math.cos(math.pi * step / steps)) / 2
            x -= pace * unbiased[0] / (unbiased[1].sqrt() + 1e-8)
    return best, best_x[0]


def _standardise(x: Tensor) -> Tensor:
    """Mean 0 and SD 1. Otherwise the search may end in an image of the right shape and the wrong contrast, which
    GroupNorm cannot tell apart."""
    return (x - x.mean()) / x.std(correction=0).clamp(min=1e-6)


def total_variation(x: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels."""
    return (x[..., 1:, :] - x[..., :-1, :]).abs().mean() + (x[..., :, 1:] - x[..., :, :-1]).abs().mean()


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
        key = repr(
            (arm.model, arm.start, target.plan.alike[arm.name], arm.training.lr, "" if at == "initial" else arm.name)
        )
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
            label = f"epsilon {format_epsilon(arm.privacy.example.promised)}\n({arm.name})"
            images[label] = [image for _, image in protected]
        arms[arm.name] = entry
        if not pictured and chosen[0].true.dim() == 3:
            pictured, images = chosen, {"without protection": [image for _, image in unprotected[key]], **images}
    content = {"at": at, "rows": count, "candidates": CANDIDATES, "arms": arms}
    pictures = _pictures(pictured, images) if target.pictures_allowed else []
    return {**content, "pictures": len(pictures)}, pictures


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
