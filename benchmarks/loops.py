"""Two loops as people write them. `plain`: DataLoader, torch.optim, weights through numpy. `tight`: nothing wasted."""

import time
from collections.abc import Iterator
from itertools import islice

import torch
from torch import nn

from benchmarks.work import Work, accuracy, loss_of, network, train_as_people_do

Parts = list[tuple[torch.Tensor, torch.Tensor]]


def chosen(work: Work, parts: Parts, generator: torch.Generator) -> list[int]:
    if work.share == 1:
        return list(range(len(parts)))
    return torch.randperm(len(parts), generator=generator)[: round(work.share * len(parts))].tolist()


def plain(work: Work, parts: Parts, seed: int = 0) -> Iterator[tuple[float, nn.Module]]:
    """Yields the time of each round and the shared model."""
    shared, generator = network(work, seed), torch.Generator().manual_seed(seed)
    for _ in range(work.rounds):
        began = time.perf_counter()
        numbers = chosen(work, parts, generator)
        weights = {name: leaf.numpy().copy() for name, leaf in shared.state_dict().items()}
        sums = {name: 0.0 * leaf for name, leaf in weights.items()}
        total = sum(len(parts[k][1]) for k in numbers)
        for k in numbers:
            module = network(work)
            module.load_state_dict({name: torch.from_numpy(leaf) for name, leaf in weights.items()})
            train_as_people_do(work, module, *parts[k])
            for name, leaf in module.state_dict().items():
                sums[name] += leaf.numpy() * (len(parts[k][1]) / total)
        shared.load_state_dict({name: torch.from_numpy(leaf) for name, leaf in sums.items()})
        yield time.perf_counter() - began, shared


def tight(work: Work, parts: Parts, seed: int = 0) -> Iterator[tuple[float, nn.Module]]:
    module, generator = network(work, seed), torch.Generator().manual_seed(seed)
    params = list(module.parameters())
    live = [p.detach() for p in params]
    shared = [p.detach().clone() for p in params]
    for _ in range(work.rounds):
        began = time.perf_counter()
        numbers = chosen(work, parts, generator)
        total = sum(len(parts[k][1]) for k in numbers)
        mean = [torch.zeros_like(leaf) for leaf in shared]
        for k in numbers:
            x, y = parts[k]
            torch._foreach_copy_(live, shared)
            for _ in range(work.epochs):
                order = torch.randperm(len(y), generator=generator)
                for batch in order.split(work.batch):  # type: ignore[no-untyped-call]
                    grads = torch.autograd.grad(loss_of(work, module(x[batch]), y[batch]), params)
                    if work.mu:
                        grads = torch._foreach_add(grads, torch._foreach_sub(live, shared), alpha=work.mu)
                    torch._foreach_add_(live, grads, alpha=-work.lr)
            torch._foreach_add_(mean, live, alpha=len(y) / total)
        shared = mean
        seconds = time.perf_counter() - began
        torch._foreach_copy_(live, shared)
        yield seconds, module


def run(
    kind: str, work: Work, parts: Parts, x_test: torch.Tensor, y_test: torch.Tensor, most: int
) -> dict[str, object]:
    """`most` bounds the rounds that are measured; what is left of a large work is scaled, and said to be."""
    loop = {"plain": plain, "tight": tight}[kind]
    measured_rounds = list(islice(loop(work, parts), most))
    return {
        "seconds": [spent for spent, _ in measured_rounds],
        "accuracy": accuracy(work, measured_rounds[-1][1], x_test, y_test),
    }
