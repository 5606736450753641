"""Engines by name: `serial` is the truth, `stacked` the fast one that must equal it, `split` for split learning."""

from typing import Any

from wardround.engines.engine import Engine
from wardround.engines.serial import SERIAL
from wardround.engines.split.split import SPLIT
from wardround.engines.stacked.stacked import STACKED

ENGINES: dict[str, Engine[Any]] = {"serial": SERIAL, "stacked": STACKED, "split": SPLIT}

__all__ = ["ENGINES", "Engine"]
