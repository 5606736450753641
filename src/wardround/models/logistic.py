"""The linear model of a task, with its gradient in closed form: logistic regression for two classes or several
(multinomial), least squares or Huber's regression for a number, Poisson regression for a count."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional as F

from wardround.core.errors import StudyError
from wardround.core.settings import NonNegative
from wardround.core.tree import Tree
from wardround.models.model import Model, ModelBuilder, Shape, from_module
from wardround.models.patient_gradients import Patients
from wardround.models.signal_network import refuse_signals
from wardround.study.facts import ModelFacts, declares

FACTS = declares(lambda options: ModelFacts(seeds=20, keeps_private=options.get("intercept") == "private"))


@FACTS
def logistic(l2: NonNegative = 0.0, intercept: Literal["shared", "private"] = "shared") -> ModelBuilder:
    """`linear` under the name that it has for classes and findings."""

    def build(shape: Shape) -> Model:
        numbers = [task.names[0] for task in (shape.task, *shape.task.outcomes.values()) if task.answers == "number"]
        if numbers:
            problem = f"logistic regression predicts classes, and {numbers[0]} is a number"
            raise StudyError("model: kind", problem, 'Write `kind = "linear"`, or leave [model] out.')
        return linear(l2, intercept)(shape)

    return build


@FACTS
def linear(l2: NonNegative = 0.0, intercept: Literal["shared", "private"] = "shared") -> ModelBuilder:
    """`l2` adds l2/2 times the squared weights (not the intercept) to the loss. Starts from zero.

    With `intercept = "private"` each site keeps an intercept of its own, so that hospitals may agree on what raises a
    risk without having the same share of patients who are ill. It never leaves its site.
    """

    def build(shape: Shape) -> Model:
        refuse_signals("logistic" if shape.task.answers != "number" else "linear", shape)
        features = math.prod(shape.inputs)

        def module() -> nn.Module:
            linear = nn.Linear(features, shape.outputs)
            nn.init.zeros_(linear.weight)
            nn.init.zeros_(linear.bias)
            return linear if len(shape.inputs) == 1 else nn.Sequential(nn.Flatten(), linear)

        def penalty(params: Tree) -> Tensor:
            return l2 / 2 * params[weight].square().sum((-2, -1))

        def closed_gradient(params: Tree, x: Tensor, y: Tensor, share: Tensor, copies: int = 1) -> tuple[Tree, Tensor]:
            if len(shape.inputs) > 1:
                x = x.flatten(start_dim=x.dim() - len(shape.inputs))
            columns, intercepts = params[weight], params[bias]
            if copies > 1:  # models that share a batch are so many more outputs of one model
                columns = columns.reshape(len(x), copies * shape.outputs, features)
                intercepts = intercepts.reshape(len(x), copies * shape.outputs)
            scores = x @ columns.mT + intercepts.unsqueeze(-2)
            losses, error = shape.task.losses_and_errors(scores, y)
            error = error * share.unsqueeze(-1)
            loss = (share.unsqueeze(-2) @ losses).reshape(params[bias].shape[:-1])
            grad = {weight: error.mT @ x, bias: error.sum(-2)}
            if copies > 1:
                grad = {name: leaf.reshape(params[name].shape) for name, leaf in grad.items()}
            if l2:
                grad[weight] = grad[weight] + l2 * params[weight]
                loss = loss + penalty(params)
            return grad, loss

        def row_gradients(
            params: Tree, x: Tensor, y: Tensor, masks: Tree, patients: Patients
        ) -> tuple[Tensor, Callable[[Tensor], Tree]]:
            x = F.pad(x.flatten(start_dim=1), (0, 1), value=1.0)  # the intercept is the weight of a column of ones
            _, error = shape.task.losses_and_errors(x[:, :-1] @ params[weight].mT + params[bias], y)

            def summed(factors: Tensor) -> Tree:
                both = (error * factors.unsqueeze(-1)).mT @ x
                return {weight: both[:, :-1], bias: both[:, -1]}

            return patients.lengths_of_products(error, x).sqrt(), summed

        weight, bias = ("weight", "bias") if len(shape.inputs) == 1 else ("1.weight", "1.bias")
        model = from_module(module, shape, (bias,) if intercept == "private" else ())
        return replace(
            model,
            penalty=penalty if l2 else None,
            closed_gradient=closed_gradient,
            row_gradients=row_gradients,
            linear=True,
        )

    return build
