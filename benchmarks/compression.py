"""What compression of an update costs and saves: processor time at the site and at the coordinator, bytes, and error.

`python -m benchmarks.compression [--parameters 25000000] [--repeats 3]` prints a table. The update has tensors of many
sizes, each with normal numbers of another scale, as those of a network have. One thread; the least time of the repeats.
"""

import argparse
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from wardround.core import tree
from wardround.core.tree import Tree
from wardround.study.schema import Compression
from wardround.training.compression import KINDS

MEASURED = (
    Compression("float16"),
    Compression("quantised", bits=16),
    Compression("quantised", bits=8),
    Compression("quantised", bits=4),
    Compression("quantised", bits=2),
    Compression("top-k", share=0.1),
    Compression("top-k", share=0.01),
)
TENSORS = 150
Result = TypeVar("Result")


def update_of(parameters: int) -> Tree:
    """The largest tensor is a tenth of all; scales go over three powers of ten."""
    rng = np.random.default_rng(1)
    sizes = rng.dirichlet(np.full(TENSORS, 0.5)) * parameters
    return {
        f"{number}.weight": torch.from_numpy(
            rng.normal(scale=10 ** rng.uniform(-5, -2), size=max(1, round(size)))
        ).float()
        for number, size in enumerate(sizes)
    }


def least_seconds(work: Callable[[], Result], repeats: int) -> tuple[float, Result]:
    seconds = []
    for _ in range(repeats):
        began = time.thread_time()
        result = work()
        seconds.append(time.thread_time() - began)
    return min(seconds), result


def row(update: Tree, settings: Compression, repeats: int) -> list[str]:
    kind, whole = KINDS[settings.kind], tree.count_bytes({"": update})
    there, sent = least_seconds(lambda: kind.compress(update, settings, np.random.default_rng(2)), repeats)
    checking, _ = least_seconds(lambda: kind.problem(sent, update, settings), repeats)
    back, arrived = least_seconds(lambda: kind.decompress(sent, update, settings), repeats)
    size = tree.count_bytes({"": sent})
    error = float((tree.squared_norm(tree.sub(update, arrived)) / tree.squared_norm(update)).sqrt())
    name = {"top-k": f" {settings.share:g}", "quantised": f", {settings.bits} bits"}.get(settings.kind, "")
    seconds = [f"{value:.2f}" for value in (there, checking, back)]
    return [f"{settings.kind}{name}", f"{size / 1e6:.2f}", f"{whole / size:.1f} x", *seconds, f"{error:.2g}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parameters", type=int, default=25_000_000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    update = update_of(options.parameters)
    count, size = sum(leaf.numel() for leaf in update.values()), tree.count_bytes({"": update}) / 1e6
    table = Table(title=f"An update of {count:,} parameters, {size:.0f} MB", title_justify="left")
    for column in ("kind", "MB", "smaller", "compress, s", "check, s", "decompress, s", "error"):
        table.add_column(column, justify="left" if column == "kind" else "right")
    for settings in MEASURED:
        table.add_row(*row(update, settings, options.repeats))
    Console().print(table)


if __name__ == "__main__":
    main()
