"""MONAI's networks, imported only when a study asks for one: it takes seconds and is an extra."""

from types import ModuleType

from wardround.extras import load


def monai_nets(kind: str) -> ModuleType:
    return load("monai.networks.nets", "imaging", f"model: {kind}")
