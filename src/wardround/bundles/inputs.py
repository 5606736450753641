"""From what was recorded of a row to the numbers that a bundle's model takes: columns, an image, or several parties'.

A table's columns go through its recipe, and that is all. An image is brought to the scale that it had in training, by
the same functions. Where several parties hold a row, its numbers stand in one line as `data.parties` arranges them.
"""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch.nn import functional as F

from wardround.core.errors import shown
from wardround.data.brightness import brightness, levels, levels_of
from wardround.data.prepare import Recipe
from wardround.data.site import Block, as_numbers, scaled
from wardround.study.schema import Preparation

GRID = 4  # an image's brightness is looked at in so many rows and columns
DARK, BRIGHT = 1 / 16, 15 / 16  # from 0 to 1
LOOKS = (
    *(f"brightness of part {row + 1}.{column + 1}" for row in range(GRID) for column in range(GRID)),
    "contrast",
    "change from left to right",
    "change from top to bottom",
    "dark pixels",
    "bright pixels",
)


@dataclass(frozen=True)
class Images:
    """How a site's images become numbers. `centre` and `spread` are the site's where `scale` is "site"."""

    shape: tuple[int, int, int]  # colours, height, width
    scale: Literal["none", "site", "image"]
    centre: float = 0.0
    spread: float = 1.0
    clahe: bool = False

    def numbers(self, images: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
        """From bytes, as in training."""
        whole = as_numbers(torch.from_numpy(np.ascontiguousarray(images)), dtype)
        every = np.arange(len(images))
        if self.scale == "image":
            found = levels(brightness(images), {"": every}, [""], Preparation(scale="image"))
            return scaled(whole, None if found is None else levels_of(found[""], every))
        return scaled(whole, levels_of(np.array([self.centre, self.spread]), every) if self.scale == "site" else None)


@dataclass(frozen=True)
class Inputs:
    """What a row has beside, or in place of, the columns of a table."""

    images: Images | None = None
    parts: tuple[Block, ...] = ()  # whose numbers are whose; empty: all are at one place
    places: tuple[int, ...] = ()  # of the prepared columns, in the order of the line
    columns: Mapping[str, tuple[str, ...]] | None = None  # by party: what it holds of a row

    @property
    def others(self) -> tuple[str, ...]:
        """Parties without whom a row can be predicted too."""
        return tuple(part.party for part in self.parts if part.present is not None)

    @property
    def image_at(self) -> str | None:
        return next((part.party for part in self.parts if len(part.shape) == 3), None)

    def shape(self, recipe: Recipe) -> tuple[int, ...]:
        """Of a row as the model takes it."""
        if self.parts:
            return (max(part.stop for part in self.parts) + len(self.others),)
        return (len(recipe.names),) if self.images is None else self.images.shape

    def width(self, recipe: Recipe) -> int:
        """Of what is looked at to see whether a row is far."""
        return len(recipe.names) + (0 if self.images is None else len(LOOKS))

    def prepared(
        self, columns: np.ndarray, images: np.ndarray | None, absent: Mapping[str, np.ndarray], dtype: torch.dtype
    ) -> np.ndarray:
        """`columns` are as the recipe made them; `absent` says by party in which rows nothing of it is known."""
        if not self.parts:
            if self.images is None or images is None:
                return columns
            return self.images.numbers(images, dtype).numpy()
        made = np.zeros((len(columns), max(part.stop for part in self.parts) + len(self.others)))
        made = made.astype(np.float64 if dtype == torch.float64 else np.float32)
        first = 0
        if self.images is not None and images is not None and self.image_at is not None:
            pixels = self.images.numbers(images, dtype).flatten(1).numpy()
            first = pixels.shape[1]
            made[:, :first] = pixels
        elif self.images is not None and self.image_at is not None:
            first = int(np.prod(self.images.shape))
        made[:, first : first + len(self.places)] = columns[:, list(self.places)]
        for part in self.parts:
            if part.present is not None:
                gone = absent.get(part.party, np.zeros(len(columns), dtype=bool))
                made[gone, part.start : part.stop] = 0
                made[:, part.present] = ~gone
        return made

    def looks(
        self,
        recipe: Recipe,
        columns: np.ndarray,
        images: np.ndarray | None,
        absent: Mapping[str, np.ndarray],
        usual: np.ndarray,
    ) -> np.ndarray:
        """What says whether a row is far: how its image looks, and its columns. What is absent is taken as `usual`."""
        made = columns if self.images is None else np.concatenate([self._of_image(images, columns, usual), columns], 1)
        if not absent:
            return made
        made, first = made.copy(), made.shape[1] - columns.shape[1]
        for party, gone in absent.items():
            own = self.columns[party] if self.columns else ()
            chosen = [first + place for place, name in enumerate(recipe.layout.columns) if name in own]
            if party == self.image_at:
                chosen = [*range(first), *chosen]
            places = np.array(chosen, dtype=np.int64)
            made[np.ix_(gone, places)] = usual[places]
        return made

    def _of_image(self, images: np.ndarray | None, columns: np.ndarray, usual: np.ndarray) -> np.ndarray:
        return np.tile(usual[: len(LOOKS)], (len(columns), 1)) if images is None else looks_of(images)


def looks_of(images: np.ndarray) -> np.ndarray:
    """(images, LOOKS): plain statistics of the bytes, before any scaling. Noise has neighbours that differ, an inverted
    image is bright where others are dark, another body part is bright elsewhere."""
    x = torch.from_numpy(np.ascontiguousarray(images)).float().div_(255).mean(dim=1, keepdim=True)
    grid = F.adaptive_avg_pool2d(x, GRID).flatten(1)
    each = x.flatten(1)
    across, down = x.diff(dim=3).abs().flatten(1), x.diff(dim=2).abs().flatten(1)
    others = [each.std(dim=1, correction=0), across.mean(1), down.mean(1)]
    others += [(each < DARK).float().mean(1), (each > BRIGHT).float().mean(1)]
    made: np.ndarray = torch.cat([grid, torch.stack(others, dim=1)], dim=1).double().numpy()
    return made


def write_inputs(inputs: Inputs) -> dict[str, Any]:
    """As plain data; nothing for a table."""
    if inputs.images is None and not inputs.parts:
        return {}
    return {
        "images": None if inputs.images is None else asdict(inputs.images),
        "parties": [
            {**asdict(part), "columns": list((inputs.columns or {}).get(part.party, ()))} for part in inputs.parts
        ],
        "places": list(inputs.places),
    }


def read_inputs(told: Mapping[str, Any], recipe: Recipe) -> Inputs:
    """Refused, by a ValueError, where it does not fit itself or the recipe."""
    images = None if not told.get("images") else _read_images(told["images"])
    parts = tuple(read_part(one) for one in told.get("parties", ()))
    columns = {str(one["party"]): tuple(map(str, one["columns"])) for one in told.get("parties", ())}
    made = Inputs(images, parts, tuple(map(int, told.get("places", ()))), columns or None)
    if len(columns) < len(parts) or not set(made.places) <= set(range(len(recipe.names))):
        raise ValueError("a party stands there twice, or a number that nobody prepares")
    if parts:
        _refuse_other_lines(made)
    return made


def _read_images(told: Mapping[str, Any]) -> Images:
    colours, height, width = map(int, told["shape"])
    made = Images(
        (colours, height, width), told["scale"], float(told["centre"]), float(told["spread"]), bool(told["clahe"])
    )
    if made.scale not in ("none", "site", "image") or not 0 < colours * height * width <= 1 << 24:
        raise ValueError("images of this kind are not known")
    if not np.isfinite([made.centre, made.spread]).all() or made.spread <= 0:
        raise ValueError("images would be scaled by something that is not a number, or by nothing")
    return made


def read_part(told: Mapping[str, Any]) -> Block:
    present = told["present"]
    start, stop = int(told["start"]), int(told["stop"])
    return Block(
        str(told["party"]), start, stop, tuple(map(int, told["shape"])), None if present is None else int(present)
    )


def _refuse_other_lines(inputs: Inputs) -> None:
    """Every number of a line is one party's, and the flags stand behind them all."""
    pixels = 0 if inputs.images is None or inputs.image_at is None else int(np.prod(inputs.images.shape))
    ends = sorted((part.start, part.stop) for part in inputs.parts)
    whole = pixels + len(inputs.places)
    follows = [0, *(stop for _, stop in ends)] == [*(start for start, _ in ends), whole]
    flags = sorted(part.present for part in inputs.parts if part.present is not None)
    if not follows or flags != list(range(whole, whole + len(inputs.others))):
        raise ValueError("the parties' numbers do not make up a row")
    if any(int(np.prod(part.shape)) != part.stop - part.start for part in inputs.parts):
        raise ValueError("a party's numbers are not of its shape")


def wrong_parties(inputs: Inputs, without: Collection[str]) -> str | None:
    """What is wrong with a wish to predict without these; None: nothing."""
    for party in without:
        if party not in inputs.others:
            needed = any(part.party == party for part in inputs.parts)
            return f"{shown(party)} is always needed" if needed else f"the bundle knows no party {shown(party)}"
    return None
