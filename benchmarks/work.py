"""The work that every contender does. Needs torch and numpy only: peers run in an environment of their own."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

HEART_SITES = (95, 83, 44, 71)
FASHION = Path("/usr/share/datasets/fashion-mnist")


@dataclass(frozen=True)
class Work:
    name: str
    title: str
    rounds: int
    epochs: int
    batch: int
    lr: float
    mu: float
    share: float
    network: str
    seeds: int = 1
    mus: tuple[float, ...] = ()

    def settings(self) -> dict[str, object]:
        return asdict(self)


WORKS = {
    "W1": Work("W1", "4 sites, logistic", 30, 5, 32, 0.1, 0.05, 1.0, "logistic"),
    "W2": Work("W2", "W1 for 50 seeds x 5 mu", 30, 5, 32, 0.1, 0.05, 1.0, "logistic", 50, (0.0, 0.01, 0.05, 0.1, 0.5)),
    "W3": Work("W3", "10 sites x 600 images, CNN", 10, 1, 32, 0.05, 0.0, 1.0, "cnn"),
    "W4": Work("W4", "1,000 sites x 20 rows, 10 % a round", 20, 5, 32, 0.1, 0.0, 0.1, "logistic"),
    "W6": Work("W6", "4 sites x 400 radiographs of 64 px, residual network", 6, 1, 32, 0.05, 0.05, 1.0, "residual"),
    **{
        f"W5-{count}": Work(f"W5-{count}", f"{count} sites x 64 rows", 20, 5, 32, 0.1, 0.05, 1.0, "logistic")
        for count in (4, 16, 64, 256, 1024)
    },
}


def logistic() -> nn.Module:
    return nn.Linear(13, 1)


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(64 * 7 * 7, 512), nn.ReLU(), nn.Linear(512, 10),
    )  # fmt: skip


class Block(nn.Module):
    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.GroupNorm(8, after)
        self.conv2, self.norm2 = nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.GroupNorm(8, after)
        self.relu = nn.ReLU(inplace=True)
        same = stride == 1 and before == after
        self.shortcut = nn.Identity() if same else nn.Conv2d(before, after, 1, stride, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x))))) + self.shortcut(x)
        return torch.relu_(out)


def residual() -> nn.Module:
    widths = (32, 64, 128, 256)
    blocks = [Block(widths[max(k - 1, 0)], width, 2 if k else 1) for k, width in enumerate(widths)]
    return nn.Sequential(
        nn.Conv2d(1, 32, 5, 2, 2, bias=False), nn.GroupNorm(8, 32), nn.ReLU(inplace=True), nn.MaxPool2d(2), *blocks,
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 14),
    )  # fmt: skip


NETWORKS = {"logistic": logistic, "cnn": cnn, "residual": residual}


def peak_megabytes() -> float:
    """Of this process since its program began; getrusage would count what its parent held when it was started."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


def network(work: Work, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return NETWORKS[work.network]()


def loss_of(work: Work, scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    if work.network == "cnn":
        return nn.functional.cross_entropy(scores, labels)
    if work.network == "residual":
        return nn.functional.binary_cross_entropy_with_logits(scores, labels.float())
    return nn.functional.binary_cross_entropy_with_logits(scores.squeeze(-1), labels.float())


def train_as_people_do(work: Work, module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
    """A site's epochs with DataLoader and torch.optim, for the plain loop and the clients of Flower and NVFlare."""
    start = [leaf.detach().clone() for leaf in module.parameters()]
    optimiser = torch.optim.SGD(module.parameters(), lr=work.lr)
    loader = DataLoader(TensorDataset(x, y), batch_size=work.batch, shuffle=True)
    for _ in range(work.epochs):
        for rows, labels in loader:
            optimiser.zero_grad()
            loss = loss_of(work, module(rows), labels)
            if work.mu:
                pull = sum(((p - s) ** 2).sum() for p, s in zip(module.parameters(), start, strict=True))
                loss = loss + work.mu / 2 * pull
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()


def accuracy(work: Work, module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> float:
    with torch.no_grad():
        scores = module(x)
    called = scores.argmax(1) if work.network == "cnn" else (scores.squeeze(-1) > 0).long()  # or of each finding
    return float((called == y).float().mean())


def write_data(work: Work, path: Path) -> None:
    """Rows of all sites, which site each is at, and a common test set; for several seeds one after the other."""
    rng = np.random.default_rng(0)
    if work.network == "cnn":
        x, y, site, x_test, y_test = _fashion()
    elif work.network == "residual":
        x, y, site, x_test, y_test = _phantom()
    else:
        if work.name.startswith("W5"):
            sizes = [64] * int(work.name.split("-")[1])
        else:
            sizes = [20] * 1000 if work.name == "W4" else list(HEART_SITES)
        rule = rng.normal(size=13)
        shift = rng.normal(scale=0.5, size=(len(sizes), 13))
        x = np.concatenate([rng.normal(size=(n, 13)) + s for n, s in zip(sizes, shift, strict=True)]).astype(np.float32)
        site = np.repeat(np.arange(len(sizes)), sizes)
        y = (x @ rule + rng.normal(size=len(x)) > 0).astype(np.int64)
        x_test = rng.normal(size=(2000, 13)).astype(np.float32)
        y_test = (x_test @ rule + rng.normal(size=2000) > 0).astype(np.int64)
    np.savez(path, x=x, y=y, site=site, x_test=x_test, y_test=y_test, work=json.dumps(work.settings()))


def read_data(path: Path) -> tuple[Work, list[tuple[torch.Tensor, torch.Tensor]], torch.Tensor, torch.Tensor]:
    with np.load(path) as data:
        settings = json.loads(str(data["work"]))
        work = Work(**{**settings, "mus": tuple(settings["mus"])})
        x, y = torch.from_numpy(data["x"]), torch.from_numpy(data["y"])
        site = torch.from_numpy(data["site"])
        parts = [(x[site == k], y[site == k]) for k in range(int(site.max()) + 1)]
        return work, parts, torch.from_numpy(data["x_test"]), torch.from_numpy(data["y_test"])


def _phantom() -> tuple[np.ndarray, ...]:
    from wardround.data.sources.phantom.radiographs import phantom  # where data are written, wardround is at hand

    records = phantom(rows=2000, size=64).load()
    x, y = np.asarray(records.features, dtype=np.float32) / 255, records.target
    return x[:1600], y[:1600], np.repeat(np.arange(4), 400), x[1600:], y[1600:]


def _fashion() -> tuple[np.ndarray, ...]:
    import gzip

    def read(name: str, skip: int) -> np.ndarray:
        return np.frombuffer(gzip.open(FASHION / f"{name}.gz").read(), np.uint8, offset=skip)

    x = read("train-images-idx3-ubyte", 16)[: 6000 * 784].reshape(-1, 1, 28, 28).astype(np.float32) / 255
    y = read("train-labels-idx1-ubyte", 8)[:6000].astype(np.int64)
    x_test = read("t10k-images-idx3-ubyte", 16)[: 2000 * 784].reshape(-1, 1, 28, 28).astype(np.float32) / 255
    y_test = read("t10k-labels-idx1-ubyte", 8)[:2000].astype(np.int64)
    return x, y, np.repeat(np.arange(10), 600), x_test, y_test
