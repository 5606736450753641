"""One weight under two names is one weight, in every way that a model is used."""

import torch
from torch import Tensor, nn

from wardround.core.tree import Tree
from wardround.models import from_module
from wardround.tasks import class_task


class Twice(nn.Module):
    """The same square matrix applied twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3, bias=False)
        self.second = nn.Linear(3, 3, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.second(self.first(x))
        return scores


def test_tied_weights_are_given_to_both_layers() -> None:
    model = from_module(Twice, class_task(3))
    assert list(model.init(0)[0]) == ["first.weight"]
    x = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
    weight = torch.diag(torch.tensor([1.0, 2.0, 3.0]))
    ways: list[Tree | None] = [None, {}]  # prediction and training
    for masks in ways:
        torch.testing.assert_close(
            model.logits({"first.weight": weight}, {}, x, masks)[0], x * torch.tensor([1.0, 4.0, 9.0])
        )
    y = torch.tensor([0, 1, 2, 0, 1])
    leaf = weight.clone().requires_grad_()
    loss = nn.functional.cross_entropy(x @ leaf.T @ leaf.T, y)
    (expected,) = torch.autograd.grad(loss, leaf)
    torch.testing.assert_close(model.gradient({"first.weight": weight}, {}, x, y, {})[0]["first.weight"], expected)
