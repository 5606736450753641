"""Engines by name. An engine is one function, `train_sites`; the round around it is `wardround.rounds`."""

from wardround.engines import serial
from wardround.rounds import TrainSites

ENGINES: dict[str, TrainSites] = {"serial": serial.train_sites}
