"""Checks of the machine: what it needs to run studies."""

import os
import sys
from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from pathlib import Path

from wardround.core.extras import installed, packages_of

# sha256 of the shipped heart files, as UCI's archive has them
HEART_FILES = {
    "cleveland": "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8",
    "hungarian": "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796",
    "switzerland": "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314",
    "va": "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f",
}


@dataclass(frozen=True)
class Condition:
    name: str
    ok: bool
    state: str
    remedy: str = ""
    needed: bool = True


def examine() -> list[Condition]:
    """What every study needs. `examine_extras` has what only some need."""
    return [_python(), *_packages(), *_processors(), _shipped_data(), _fashion_mnist(), _writable()]


def _python() -> Condition:
    state = ".".join(map(str, sys.version_info[:3]))
    return Condition("Python", sys.version_info >= (3, 11), state, "Use Python 3.11 or newer.")


def _packages() -> list[Condition]:
    versions = {name: installed(name) for name in ("wardround", *packages_of())}
    remedy = "Install wardround again: `pip install wardround`, or `make setup` in its source."
    return [
        Condition(name, version is not None, version or "not installed", remedy) for name, version in versions.items()
    ]


def _processors() -> list[Condition]:
    import torch

    threads = f"{os.cpu_count()}, torch uses {torch.get_num_threads()} threads"
    there = torch.cuda.is_available()
    state = torch.cuda.get_device_name() if there else "none; studies run on the processor"
    return [
        Condition("processors", True, threads, needed=False),
        Condition("accelerator", there, state, needed=False),
    ]


def _shipped_data() -> Condition:
    folder = files("wardround.data.sources").joinpath("files")
    damaged = [
        name
        for name, expected in HEART_FILES.items()
        if sha256(folder.joinpath(f"processed.{name}.data").read_bytes()).hexdigest() != expected
    ]
    state = f"damaged: {', '.join(damaged)}" if damaged else "four hospitals, as UCI gives them"
    return Condition("heart data", not damaged, state, "Install wardround again.")


def _fashion_mnist() -> Condition:
    there = Path("/usr/share/datasets/fashion-mnist").is_dir()
    remedy = "For image studies: apt-get install dataset-fashion-mnist, or set data.path."
    return Condition("Fashion-MNIST", there, "found" if there else "not on this machine", remedy, needed=False)


def _writable() -> Condition:
    ok = os.access(Path.cwd(), os.W_OK)
    return Condition("this folder", ok, "writable" if ok else "not writable", "Give --out a folder you may write to.")
