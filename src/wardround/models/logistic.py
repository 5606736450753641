"""Logistic regression, for two classes or several (multinomial), with its gradient in closed form."""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from wardround.models.model import Model, ModelBuilder, Shape, from_module
from wardround.settings import NonNegative
from wardround.tree import Tree


def logistic(l2: NonNegative = 0.0) -> ModelBuilder:
    """`l2` adds l2/2 times the squared weights (not the intercept) to the loss. Starts from zero."""

    def build(shape: Shape) -> Model:
        features = math.prod(shape.inputs)

        def module() -> nn.Module:
            linear = nn.Linear(features, shape.outputs)
            nn.init.zeros_(linear.weight)
            nn.init.zeros_(linear.bias)
            return linear if len(shape.inputs) == 1 else nn.Sequential(nn.Flatten(), linear)

        def penalty(params: Tree) -> Tensor:
            return l2 / 2 * params[weight].square().sum((-2, -1))

        def closed_gradient(params: Tree, x: Tensor, y: Tensor, share: Tensor) -> tuple[Tree, Tensor]:
            # d loss / d score is share x (probability - label), for one score as for several
            x = x.flatten(start_dim=x.dim() - len(shape.inputs))
            scores = x @ params[weight].mT + params[bias].unsqueeze(-2)
            if shape.classes == 2:
                labels = y.to(x.dtype).unsqueeze(-1)
                losses = F.binary_cross_entropy_with_logits(scores, labels, reduction="none").squeeze(-1)
                error = torch.sigmoid(scores) - labels
            else:
                losses = scores.logsumexp(-1) - scores.gather(-1, y.unsqueeze(-1)).squeeze(-1)
                error = torch.softmax(scores, -1) - F.one_hot(y, shape.classes)
            error = error * share.unsqueeze(-1)
            loss = (losses * share).sum(-1)
            grad = {weight: error.mT @ x, bias: error.sum(-2)}
            if l2:
                grad[weight] = grad[weight] + l2 * params[weight]
                loss = loss + penalty(params)
            return grad, loss

        model = from_module(module, shape.classes)
        weight, bias = ("weight", "bias") if len(shape.inputs) == 1 else ("1.weight", "1.bias")
        return replace(model, penalty=penalty if l2 else None, closed_gradient=closed_gradient)

    return build
