"""What clipping by patient and noise cost in training time: plain, ours, and Opacus, on the same work, in one run.

`python -m benchmarks.privacy` prints seconds per step and ratios. All take the same batches of the same images through
the same network on one thread; contenders take turns, and the fastest of several turns counts, because the machine is
shared. `secret` is ours with the cryptographic noise of a deployment; Opacus and `ours` draw theirs from torch.
"""

import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from wardround.core import tree
from wardround.models import MODELS, Shape
from wardround.privacy.dp.example_dp import PrivateGradient, Rule
from wardround.privacy.dp.noise import SecretStream, SeededStream, Stream
from wardround.tasks import Binary, Multilabel, class_task, findings_task

BATCH, STEPS, TURNS = 64, 4, 7
CLIP, NOISE, LR = 1.0, 1.0, 0.05
WORKS: dict[str, tuple[str, dict[str, object], Shape]] = {
    "logistic": ("logistic", {}, Shape((32,), class_task(2))),
    "mlp": ("mlp", {"hidden": (64, 64)}, Shape((32,), class_task(2))),
    "cnn": ("cnn", {"norm": "group"}, Shape((1, 28, 28), class_task(10))),
    "residual": ("residual", {}, Shape((1, 64, 64), findings_task(14))),
}


def batches(shape: Shape) -> list[tuple[torch.Tensor, torch.Tensor]]:
    rng = np.random.default_rng(0)
    pairs = []
    for _ in range(STEPS):
        x = torch.from_numpy(rng.standard_normal((BATCH, *shape.inputs)).astype(np.float32))
        findings, names = isinstance(shape.task, Multilabel), len(shape.task.names)
        size = (BATCH, names) if findings else (BATCH,)
        pairs.append((x, torch.from_numpy(rng.integers(0, 2 if findings else names, size))))
    return pairs


def ours(kind: str, options: dict[str, object], shape: Shape, stream: Stream | None) -> Callable[[], None]:
    """`stream` None: without privacy."""
    model = MODELS[kind](**options)(shape)
    params, _ = model.init(0)
    params = tree.for_convolutions({"": params})[""]
    private = None if stream is None else PrivateGradient(model, Rule(0.1, NOISE, CLIP, 10 * BATCH), stream)
    patients, work = torch.arange(BATCH), batches(shape)

    def turn() -> None:
        now = params
        for x, y in work:
            grad = model.gradient(now, {}, x, y, {})[0] if private is None else private(now, {}, x, y, {}, patients)[0]
            now = tree.apply(lambda leaf, g: torch.sub(leaf, g, alpha=LR), now, grad)

    return turn


def opacus(kind: str, options: dict[str, object], shape: Shape, how: str) -> Callable[[], None]:
    """The same network as a module, wrapped as Opacus' documentation wraps one, without its data loader."""
    from opacus.grad_sample import wrap_model
    from opacus.optimizers import DPOptimizer

    module = module_of(kind, options, shape)
    wrapped = wrap_model(module, grad_sample_mode=how, batch_first=True, loss_reduction="mean")
    plain = torch.optim.SGD(wrapped.parameters(), lr=LR)
    optimiser = DPOptimizer(plain, noise_multiplier=NOISE, max_grad_norm=CLIP, expected_batch_size=BATCH)
    work = batches(shape)

    def turn() -> None:
        for x, y in work:
            optimiser.zero_grad()
            scores = wrapped(x)
            if isinstance(shape.task, Multilabel):
                loss = nn.functional.binary_cross_entropy_with_logits(scores, y.float())
            elif isinstance(shape.task, Binary):
                loss = nn.functional.binary_cross_entropy_with_logits(scores.squeeze(-1), y.float())
            else:
                loss = nn.functional.cross_entropy(scores, y)
            torch.autograd.backward(loss)
            optimiser.step()

    return turn


def module_of(kind: str, options: dict[str, object], shape: Shape) -> nn.Module:
    """The torch module behind one of our models."""
    from wardround.models import model as models

    built: list[nn.Module] = []
    original = models._built

    def remember(build: Callable[[], nn.Module], seed: int) -> nn.Module:
        built.append(original(build, seed))
        return built[-1]

    models._built = remember
    try:
        MODELS[kind](**options)(shape)
    finally:
        models._built = original
    for part in built[0].modules():
        if isinstance(part, nn.ReLU):
            part.inplace = False  # which Opacus' hooks do not bear
    return built[0].train()


def main() -> None:
    torch.set_num_threads(1)
    print(f"{'work':10}{'contender':>16}{'ms a step':>12}{'x plain':>10}")
    for name, (kind, options, shape) in WORKS.items():
        contenders: dict[str, Callable[[], None]] = {
            "plain": ours(kind, options, shape, None),
            "ours": ours(kind, options, shape, SeededStream(0, "bench", 0, "")),
            "ours, secret": ours(kind, options, shape, SecretStream(b"k" * 32, "bench")),
        }
        for how in ("hooks", "ghost") if name == "cnn" else ("hooks",):
            try:
                peer = opacus(kind, options, shape, how)
                peer()
                contenders[f"opacus {how}"] = peer
            except Exception as error:  # a peer that cannot do the work is named, and left out
                print(f"{name:10}{f'opacus {how}':>16}  cannot: {type(error).__name__}")
        times: dict[str, list[float]] = {contender: [] for contender in contenders}
        for _ in range(TURNS + 1):
            for contender, turn in contenders.items():
                began = time.perf_counter()
                turn()
                times[contender].append((time.perf_counter() - began) / STEPS)
        best = {contender: min(durations[1:]) for contender, durations in times.items()}
        middle = {contender: statistics.median(durations[1:]) for contender, durations in times.items()}
        for contender, seconds in best.items():
            ratios = f"{seconds / best['plain']:.2f} ({middle[contender] / middle['plain']:.2f})"
            print(f"{name:10}{contender:>16}{1000 * seconds:>12.2f}{ratios:>16}")


if __name__ == "__main__":
    main()
