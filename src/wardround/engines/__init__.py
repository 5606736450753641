"""Engines by name: `serial` is the truth, `stacked` the fast one that must equal it."""

from typing import Any

from wardround.engines.engine import Engine
from wardround.engines.serial import SERIAL
from wardround.engines.stacked import STACKED

ENGINES: dict[str, Engine[Any]] = {"serial": SERIAL, "stacked": STACKED}

__all__ = ["ENGINES", "Engine"]
