"""A lower bound on epsilon from the program's own releases: can a planted patient be told from noise?

The worst patient is planted, a canary: its clipped gradient is as long as the clip and points where no other does. What
a site releases is then drawn thousands of times with and without it, and whoever sees only the releases guesses which
(Nasr et al., S&P 2021, arXiv:2101.04535). Nothing is retrained: what all steps of a run tell about the canary is in the
canary's direction, and the code that samples, clips and adds noise is the code that trains (`poisson_order`,
`PrivateGradient`).

Many draws are made at once. Each canary has a direction of its own, none of which touches another, and noise in
different directions is independent: a step with many canaries is as many independent draws of a step with one.
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

LENGTH = 1000.0  # of a canary's gradient, in clips: far more than is let through
STEPS_AT_A_TIME = 16
FEWEST_DRAWS = 200_000  # a claim of 1 or 2 could be refuted by fewer, but a close bound takes them
MOST_DRAWS = 400_000
LEAST_DRAWS = 4_000  # whatever work it is
WORK = 20_000_000  # draws x steps of one audit, at most: some five seconds


@dataclass(frozen=True)
class Audit:
    """A claim beside what an attacker could show of it."""

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
        """Whether so many draws would show it, were there no noise at all."""
        return self.bound.limit > self.claim


def audit(
    rule: Rule,
    charges: Sequence[Charge],
    delta: float,
    streams: Streams,
    claim: float | None = None,
    draws: int | None = None,
    confidence: float = 0.95,
    told: Rule | None = None,
    stages: Sequence[tuple[Rule, int]] = (),
) -> Audit:
    """Attack the releases of a site that protects its patients by `rule`, as many steps of it as were charged.

    The claim is what the charges cost, unless another is given: rate and noise of the releases are the rule's own, so
    that a charge which says less of them is found out. `told` is the rule that the attacker believes in; a test gives
    it where `rule` has been weakened. `stages` are rules and steps of each, where noise changes over the rounds.
    """
    claim = epsilon(charges, delta) if claim is None else claim
    steps = sum(charge.steps for charge in charges)
    if draws is None:
        draws = min(draws_for(claim, FEWEST_DRAWS, MOST_DRAWS, confidence), WORK // max(steps, 1) // 2 * 2)
        draws = max(draws, LEAST_DRAWS)
    with torch_threads(1):  # tensors are too small for two threads to help one another
        parts = [(one, one, count) for one, count in stages] or [(rule, told or rule, steps)]
        present, absent = scores(parts, draws, streams)
    return Audit(claim, delta, confidence, steps, epsilon_bound(present, absent, delta, confidence))


def scores(parts: Sequence[tuple[Rule, Rule, int]], draws: int, streams: Streams) -> tuple[np.ndarray, np.ndarray]:
    """How much the steps of a run speak for the canary, in draws with it and in draws without it.

    Of each part of the run: the rule that holds, the one that the attacker believes in, and the steps.
    """
    model, people = canary_model(2 * draws), torch.arange(draws)  # the second half of all directions stays empty
    params: Tree = {"weight": torch.zeros(2 * draws)}
    label = torch.zeros(draws, dtype=torch.int64)
    found = torch.zeros(2 * draws, dtype=torch.float64)
    sampling, noise = streams("sampling"), streams("noise")
    for rule, told, steps in parts:
        fixed = at_fixed_clip(rule)
        gradient = PrivateGradient(model, fixed, noise)
        for begin in range(0, steps, STEPS_AT_A_TIME):
            for rows in poisson_order(people, fixed.rate, min(STEPS_AT_A_TIME, steps - begin), sampling):
                x = torch.full((len(rows), 2), 2 * LENGTH * fixed.clip, dtype=torch.float64)  # the derivative is half
                x[:, 0] = rows
                released = gradient(params, {}, x, label[rows], {}, people[rows])[0]["weight"]
                found += evidence(released.double() * (fixed.expected / fixed.clip), told)
    return found[:draws].numpy(), found[draws:].numpy()


def at_fixed_clip(rule: Rule) -> Rule:
    """An adaptive clip releases a noisy count besides, which this attack does not use; the gradient's noise is kept."""
    return replace(rule, noise=rule.gradient_noise, adaptation=None)


def evidence(released: Tensor, rule: Rule) -> Tensor:
    """Logarithm of how much likelier each release is with the canary, which was in the step with the rule's rate.

    Releases are in clips. The sum over steps is the best statistic there is (Neyman and Pearson 1933).
    """
    present = (2 * released - 1) / (2 * rule.gradient_noise**2)
    if rule.rate == 1:
        return present
    odds = math.log(rule.rate) - math.log1p(-rule.rate)
    return softplus(present + odds) + math.log1p(-rule.rate)  # log((1 - q) + q e^present)


def canary_model(directions: int) -> Model:
    """Logistic regression without intercept in which every row has one column of its own that is not 0.

    A row is written as (number of the column, value in it). Every patient has one row.
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
        own = error * value

        def summed(factors: Tensor) -> Tree:
            return {"weight": torch.zeros_like(weight).index_add_(0, column, own * factors)}

        return patients.means(own.abs()), summed

    return Model(init, logits, classes=2, row_gradients=row_gradients)
