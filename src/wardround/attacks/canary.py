"""A lower bound on epsilon from the program's own releases: can a planted patient be detected through the noise?

The worst case is planted, a canary: its clipped gradient is as long as the clip and orthogonal to all others. A site's
releases are then drawn thousands of times with and without it, and an attacker who sees only the releases guesses which
(Nasr et al., S&P 2021, arXiv:2101.04535). Nothing is retrained: all that a run's steps reveal about the canary lies in
the canary's direction, and the code that samples, clips and adds noise is the training code (`poisson_order`,
`PrivateGradient`).

Many draws are made at once. Canaries have orthogonal directions, and noise in different directions is independent, so
one step with many canaries is as many independent draws of a step with one.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from wardround.attacks.bounds import Bound, draws_for, epsilon_bound
from wardround.core.threads import torch_threads
from wardround.core.tree import Tree
from wardround.models.model import Model
from wardround.models.patient_gradients import Patients
from wardround.privacy.dp.accountant import Charge, epsilon
from wardround.privacy.dp.example_dp import PrivateGradient, Rule, poisson_order
from wardround.privacy.dp.protection import Streams
from wardround.tasks import class_task

LENGTH = 1000.0  # of a canary's gradient before clipping, in clips
STEPS_AT_A_TIME = 16
FEWEST_DRAWS = 200_000  # fewer could refute a claim of 1 or 2, but a tight bound needs them
MOST_DRAWS = 400_000
LEAST_DRAWS = 4_000  # however many steps there are
WORK = 20_000_000  # draws x steps of one audit, at most: about five seconds


@dataclass(frozen=True)
class Audit:
    """A claimed epsilon and the lower bound that an attack reaches."""

    claim: float  # epsilon
    delta: float
    confidence: float
    steps: int
    bound: Bound

    @property
    def holds(self) -> bool:
        return self.bound.epsilon <= self.claim

    @property
    def can_fail(self) -> bool:
        """Whether so many draws would refute the claim if there were no noise at all."""
        return self.bound.limit > self.claim


def audit(
    rule: Rule,
    charges: Sequence[Charge],
    delta: float,
    streams: Streams,
    claim: float | None = None,
    draws: int | None = None,
    confidence: float = 0.95,
    assumed: Rule | None = None,
    stages: Sequence[tuple[Rule, int]] = (),
) -> Audit:
    """Attack the releases of a site that protects its patients by `rule`, for as many steps as were charged.

    The claim defaults to what the charges cost. Sampling rate and noise come from the rule, so that a charge which
    understates them is detected. `assumed` is the rule that the attacker assumes; tests pass it where `rule` was
    weakened. `stages` are the rules and their steps where noise changes over the rounds.
    """
    claim = epsilon(charges, delta) if claim is None else claim
    steps = sum(charge.steps for charge in charges)
    if draws is None:
        draws = min(draws_for(claim, FEWEST_DRAWS, MOST_DRAWS, confidence), WORK // max(steps, 1) // 2 * 2)
        draws = max(draws, LEAST_DRAWS)
    with torch_threads(1):  # the tensors are too small to gain from a second thread
        parts = [(stage, stage, count) for stage, count in stages] or [(rule, assumed or rule, steps)]
        with_canary, without_canary = canary_scores(parts, draws, streams)
    return Audit(claim, delta, confidence, steps, epsilon_bound(with_canary, without_canary, delta, confidence))


def canary_scores(
    parts: Sequence[tuple[Rule, Rule, int]], draws: int, streams: Streams
) -> tuple[np.ndarray, np.ndarray]:
    """The evidence of a run's steps for the canary, in draws with it and in draws without it.

    Each part of the run: the rule in force, the rule that the attacker assumes, and the steps.
    """
    model, people = canary_model(2 * draws), torch.arange(draws)  # the second half of the directions has no canary
    params: Tree = {"weight": torch.zeros(2 * draws)}
    label = torch.zeros(draws, dtype=torch.int64)
    scores = torch.zeros(2 * draws, dtype=torch.float64)
    sampling, noise = streams("sampling"), streams("noise")
    for rule, assumed, steps in parts:
        fixed = at_fixed_clip(rule)
        gradient = PrivateGradient(model, fixed, noise)
        for begin in range(0, steps, STEPS_AT_A_TIME):
            for rows in poisson_order(people, fixed.rate, min(STEPS_AT_A_TIME, steps - begin), sampling):
                x = torch.full((len(rows), 2), 2 * LENGTH * fixed.clip, dtype=torch.float64)  # the derivative is half
                x[:, 0] = rows
                released = gradient(params, {}, x, label[rows], {}, people[rows])[0]["weight"]
                scores += log_likelihood_ratio(released.double() * (fixed.expected / fixed.clip), assumed)
    return scores[:draws].numpy(), scores[draws:].numpy()


def at_fixed_clip(rule: Rule) -> Rule:
    """An adaptive clip also releases a noisy count, which this attack ignores; the gradient's noise stays the same."""
    return replace(rule, noise=rule.gradient_noise, adaptation=None)


def log_likelihood_ratio(released: Tensor, rule: Rule) -> Tensor:
    """Of each release with against without the canary, which is sampled with the rule's rate.

    Releases are in clips. The sum over steps is the most powerful statistic (Neyman and Pearson 1933).
    """
    present = (2 * released - 1) / (2 * rule.gradient_noise**2)
    if rule.rate == 1:
        return present
    odds = math.log(rule.rate) - math.log1p(-rule.rate)
    return softplus(present + odds) + math.log1p(-rule.rate)  # log((1 - q) + q e^present)


def canary_model(directions: int) -> Model:
    """Logistic regression without intercept in which each row has its own single non-zero column.

    A row is stored as (column number, value). Every patient has one row.
    """

    def init(seed: int) -> tuple[Tree, Tree]:
        return {"weight": torch.zeros(directions)}, {}

    def logits(params: Tree, buffers: Tree, x: Tensor, masks: Tree | None) -> tuple[Tensor, Tree]:
        weight = params["weight"]
        return (weight[x[:, 0].long()] * x[:, 1].to(weight.dtype)).unsqueeze(-1), buffers

    def row_gradients(
        params: Tree, x: Tensor, y: Tensor, masks: Tree, patients: Patients
    ) -> tuple[Tensor, Callable[[Tensor], Tree]]:
        weight, column = params["weight"], x[:, 0].long()
        value = x[:, 1].to(weight.dtype)
        error = torch.sigmoid(weight[column] * value) - y.to(weight.dtype)
        gradients = error * value

        def summed(factors: Tensor) -> Tree:
            return {"weight": torch.zeros_like(weight).index_add_(0, column, gradients * factors)}

        return patients.means(gradients.abs()), summed

    return Model(init, logits, class_task(2), row_gradients=row_gradients)
