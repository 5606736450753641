"""What a hospital's machine makes of an attenuation: contrast, blur, shading, noise and the marker in a corner."""

from dataclasses import dataclass

import numpy as np

LETTERS = {  # five rows of three
    "L": ((1, 0, 0), (1, 0, 0), (1, 0, 0), (1, 0, 0), (1, 1, 1)),
    "R": ((1, 1, 0), (1, 0, 1), (1, 1, 0), (1, 0, 1), (1, 0, 1)),
}
CORNERS = (("L", 0, 1), ("R", 0, 0), ("L", 1, 1), ("R", 1, 0))  # letter, bottom, right: L is at the patient's left


@dataclass(frozen=True)
class Scanner:
    gamma: float
    contrast: float
    brightness: float
    blur: float  # share of a pixel that comes from its neighbours
    shading: float  # darkness of the corners
    grain: float  # standard deviation of the noise, of the film's range
    corner: int  # of CORNERS


def scanner_of(hospital: int, strength: float) -> Scanner:
    """The machine of a hospital, which counts from 0: the same in every study. With `strength` 0 all are alike.

    Multiples of the roots of primes, without their whole parts, spread any number of machines over what there can be.
    """
    spread = 2 * np.mod(0.5 + (hospital + 1) * np.sqrt([2, 3, 5, 7, 11, 13]), 1) - 1  # between -1 and 1
    gamma, contrast, brightness, blur, shading, grain = (strength * spread).tolist()
    return Scanner(
        gamma=1.25**gamma,
        contrast=1.18**contrast,
        brightness=0.06 * brightness,
        blur=float(np.clip(0.3 + 0.25 * blur, 0, 0.8)),
        shading=max(0.1 + 0.1 * shading, 0.0),
        grain=0.02 * 1.5**grain,
        corner=hospital % len(CORNERS) if strength else 0,
    )


def expose(
    film: np.ndarray, scanners: list[Scanner], hospital: np.ndarray, noise: float, draws: np.random.Generator
) -> np.ndarray:
    """Attenuation (images, size, size) to bytes, by the machine of each image's hospital."""
    size = film.shape[1]

    def of(name: str) -> np.ndarray:
        return np.array([getattr(machine, name) for machine in scanners], dtype=np.float32)[hospital, None, None]

    line = (2 * np.arange(size, dtype=np.float32) + 1) / size - 1
    film = (1 - of("blur")) * film + of("blur") * _neighbours(film)
    film = (film - 0.5) * of("contrast") + 0.5 + of("brightness")
    film = np.clip(film, 0.0, 1.1) ** of("gamma")
    film *= 1 - of("shading") * (line[:, None] ** 2 + line**2) / 2
    film += of("grain") * np.float32(noise) * draws.standard_normal(film.shape, dtype=np.float32)
    for number, machine in enumerate(scanners):
        letter = mark(machine.corner, size)
        film[hospital == number] = np.maximum(film[hospital == number], letter)
    return np.asarray(np.clip(film, 0, 1) * 255 + 0.5).astype(np.uint8)


def mark(corner: int, size: int) -> np.ndarray:
    """An image that is empty but for the letter."""
    name, bottom, right = CORNERS[corner]
    scale, margin = max(size // 64, 1), max(size // 24, 1)
    letter = np.kron(np.array(LETTERS[name], dtype=np.float32), np.ones((scale, scale), dtype=np.float32))
    height, width = letter.shape
    image = np.zeros((size, size), dtype=np.float32)
    top = size - margin - height if bottom else margin
    left = size - margin - width if right else margin
    image[top : top + height, left : left + width] = 0.95 * letter
    return image


def _neighbours(film: np.ndarray) -> np.ndarray:
    """The binomial mean of 3 x 3 pixels."""
    wide = np.pad(film, ((0, 0), (1, 1), (0, 0)), mode="edge")
    film = 0.5 * film + 0.25 * (wide[:, :-2] + wide[:, 2:])
    wide = np.pad(film, ((0, 0), (0, 0), (1, 1)), mode="edge")
    return np.asarray(0.5 * film + 0.25 * (wide[:, :, :-2] + wide[:, :, 2:]))
