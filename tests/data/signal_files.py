"""Small files of signals, written by hand."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

LIMB = ("I", "II", "III", "aVR", "aVL", "aVF")
TWELVE = (*LIMB, "V1", "V2", "V3", "V4", "V5", "V6")
GAIN = 1000  # units of the file in a millivolt
GAP = -32768  # in format 16


def wave(rate: float, seconds: float, hertz: float, size: float = 1.0) -> np.ndarray:
    return np.asarray(size * np.sin(2 * np.pi * hertz * np.arange(round(rate * seconds)) / rate))


def write_record(
    folder: Path,
    name: str,
    values: np.ndarray,
    channels: Sequence[str],
    rate: str,
    comments: Sequence[str] = (),
) -> None:
    """Header and samples in WFDB's format 16, with nothing of the package. `rate` is put down as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    units = np.where(np.isnan(values), GAP, np.rint(values * GAIN)).astype("<i2")
    units.T.tofile(folder / f"{name}.dat")
    lines = [f"{name} {len(channels)} {rate} {values.shape[1]}" if rate else f"{name} {len(channels)}"]
    for channel, own in zip(channels, units, strict=True):
        check = int(own.astype(np.int64).sum()) & 0xFFFF
        check = check - 0x10000 if check > 0x7FFF else check
        lines.append(f"{name}.dat 16 {GAIN}(0)/mV 16 0 {own[0]} {check} 0 {channel}")
    (folder / f"{name}.hea").write_text("\n".join([*lines, *(f"# {text}" for text in comments)]) + "\n")
