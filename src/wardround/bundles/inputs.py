"""The inputs of a bundle's model: prepared columns, an image, or the parts of several parties in one line.

Columns are prepared by the recipe. Images are scaled by the functions that scale them in training. Where several
parties hold a row, its numbers stand in one line in the order of `data.parties`.
"""

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch.nn import functional as F

from wardround.bundles.sealed_files import refuse_if
from wardround.bundles.signals import Signals, read_signals
from wardround.core.errors import shown
from wardround.data.brightness import brightness, levels, levels_of
from wardround.data.prepare import Recipe
from wardround.data.site import Block, as_numbers, scaled
from wardround.study.schema import Preparation

GRID = 4  # rows and columns in which an image's brightness is averaged
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
    """How images are scaled. `centre` and `spread` are used where `scale` is "site"."""

    shape: tuple[int, int, int]  # colours, height, width
    scale: Literal["none", "site", "image"]
    centre: float = 0.0
    spread: float = 1.0
    clahe: bool = False

    @property
    def looks(self) -> int:
        """How many numbers show whether a row is out of distribution."""
        return len(LOOKS)

    def looks_of(self, images: np.ndarray) -> np.ndarray:
        return looks_of(images)

    def numbers(self, images: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
        """Scaled as in training."""
        whole = as_numbers(torch.from_numpy(np.ascontiguousarray(images)), dtype)
        rows = np.arange(len(images))
        if self.scale == "image":
            by_group = levels(brightness(images), {"": rows}, [""], Preparation(scale="image"))
            return scaled(whole, None if by_group is None else levels_of(by_group[""], rows))
        return scaled(whole, levels_of(np.array([self.centre, self.spread]), rows) if self.scale == "site" else None)


@dataclass(frozen=True)
class Inputs:
    """What a row consists of besides, or in place of, the columns of a table."""

    images: Images | None = None
    parts: tuple[Block, ...] = ()  # of each party; empty: one place holds the whole row
    places: tuple[int, ...] = ()  # of prepared columns, in the order of the line
    columns: Mapping[str, tuple[str, ...]] | None = None  # by party: the columns that it holds
    signals: Signals | None = None

    @property
    def arrays(self) -> Images | Signals | None:
        """What a row is, where it is no line of columns."""
        return self.images or self.signals

    @property
    def optional_parties(self) -> tuple[str, ...]:
        """Parties without which a row can be predicted as well."""
        return tuple(part.party for part in self.parts if part.present is not None)

    def held_by(self, party: str) -> tuple[str, ...]:
        """The columns of a party."""
        return (self.columns or {}).get(party, ())

    @property
    def image_at(self) -> str | None:
        return next((part.party for part in self.parts if len(part.shape) == 3), None)

    @property
    def pixels(self) -> int:
        """Numbers of a line that are an image's."""
        return 0 if self.images is None or self.image_at is None else int(np.prod(self.images.shape))

    def shape(self, recipe: Recipe) -> tuple[int, ...]:
        """Of a row of the model's input."""
        if self.parts:
            return (max(part.stop for part in self.parts) + len(self.optional_parties),)
        return (len(recipe.names),) if self.arrays is None else self.arrays.shape

    def width(self, recipe: Recipe) -> int:
        """Of the numbers that show whether a row is out of distribution."""
        return len(recipe.names) + (0 if self.arrays is None else self.arrays.looks)

    def prepared(
        self,
        columns: np.ndarray,
        images: np.ndarray | None,
        missing_parties: Mapping[str, np.ndarray],
        dtype: torch.dtype,
    ) -> np.ndarray:
        """Rows of the model's input. `columns` are prepared by the recipe, `images` may be signals; `missing_parties`
        holds, by party, the rows without it."""
        if not self.parts:
            if self.arrays is None or images is None:
                return columns
            return self.arrays.numbers(images, dtype).numpy()
        width = max(part.stop for part in self.parts) + len(self.optional_parties)
        lines = np.zeros((len(columns), width), dtype=np.float64 if dtype == torch.float64 else np.float32)
        if self.images is not None and images is not None and self.pixels:
            lines[:, : self.pixels] = self.images.numbers(images, dtype).flatten(1).numpy()
        lines[:, self.pixels : self.pixels + len(self.places)] = columns[:, list(self.places)]
        for part in self.parts:
            if part.present is not None:
                missing = missing_parties.get(part.party, np.zeros(len(columns), dtype=bool))
                lines[missing, part.start : part.stop] = 0
                lines[:, part.present] = ~missing
        return lines

    def looks(
        self,
        recipe: Recipe,
        columns: np.ndarray,
        images: np.ndarray | None,
        missing_parties: Mapping[str, np.ndarray],
        usual: np.ndarray,
    ) -> np.ndarray:
        """Numbers that show whether a row is out of distribution: statistics of its image, and its columns. Those of a
        missing party are `usual`."""
        arrays = self.arrays
        first = 0 if arrays is None else arrays.looks
        looks = columns
        if arrays is not None:
            of_image = np.tile(usual[:first], (len(columns), 1)) if images is None else arrays.looks_of(images)
            looks = np.concatenate([of_image, columns], axis=1)
        if not missing_parties:
            return looks
        looks = looks.copy()
        for party, missing in missing_parties.items():
            held = self.held_by(party)
            selected = [first + place for place, name in enumerate(recipe.layout.columns) if name in held]
            if party == self.image_at:
                selected = [*range(first), *selected]
            places = np.array(selected, dtype=np.int64)
            looks[np.ix_(missing, places)] = usual[places]
        return looks


def looks_of(images: np.ndarray) -> np.ndarray:
    """(images, LOOKS): statistics of the unscaled pixels. In noise neighbours differ, an inverted image is bright where
    others are dark, another body part is bright elsewhere."""
    x = torch.from_numpy(np.ascontiguousarray(images)).float().div_(255).mean(dim=1, keepdim=True)
    grid = F.adaptive_avg_pool2d(x, GRID).flatten(1)
    pixels = x.flatten(1)
    horizontal, vertical = x.diff(dim=3).abs().flatten(1), x.diff(dim=2).abs().flatten(1)
    statistics = [pixels.std(dim=1, correction=0), horizontal.mean(1), vertical.mean(1)]
    statistics += [(pixels < DARK).float().mean(1), (pixels > BRIGHT).float().mean(1)]
    return np.asarray(torch.cat([grid, torch.stack(statistics, dim=1)], dim=1).double().numpy())


def write_inputs(inputs: Inputs) -> dict[str, Any]:
    """As JSON; empty for a table."""
    if inputs.signals is not None:
        return {"signals": inputs.signals.written()}
    if inputs.images is None and not inputs.parts:
        return {}
    return {
        "images": None if inputs.images is None else asdict(inputs.images),
        "parties": [{**asdict(part), "columns": list(inputs.held_by(part.party))} for part in inputs.parts],
        "places": list(inputs.places),
    }


def read_inputs(content: Mapping[str, Any], recipe: Recipe) -> Inputs:
    """Raises a ValueError where parts do not fit each other or the recipe."""
    if content.get("signals"):
        refuse_if(bool(recipe.columns), "there are columns beside signals")
        return Inputs(signals=read_signals(content["signals"]))
    images = None if not content.get("images") else _read_images(content["images"])
    parts = tuple(read_part(party) for party in content.get("parties", ()))
    columns = {str(party["party"]): tuple(map(str, party["columns"])) for party in content.get("parties", ())}
    inputs = Inputs(images, parts, tuple(map(int, content.get("places", ()))), columns or None)
    refuse_if(
        len(columns) < len(parts) or not set(inputs.places) <= set(range(len(recipe.names))),
        "a party is repeated, or a column is not prepared",
    )
    if parts:
        _check_lines(inputs)
    return inputs


def _read_images(content: Mapping[str, Any]) -> Images:
    colours, height, width = map(int, content["shape"])
    images = Images(
        (colours, height, width),
        content["scale"],
        float(content["centre"]),
        float(content["spread"]),
        bool(content["clahe"]),
    )
    refuse_if(
        images.scale not in ("none", "site", "image") or not 0 < colours * height * width <= 1 << 24,
        "images of this kind are not supported",
    )
    refuse_if(
        not np.isfinite([images.centre, images.spread]).all() or images.spread <= 0,
        "images are scaled by something that is not a number, or by 0",
    )
    return images


def read_part(content: Mapping[str, Any]) -> Block:
    present = content["present"]
    start, stop = int(content["start"]), int(content["stop"])
    return Block(
        str(content["party"]), start, stop, tuple(map(int, content["shape"])), None if present is None else int(present)
    )


def _check_lines(inputs: Inputs) -> None:
    """Each number of a line belongs to one party, and the flags follow them all."""
    ends = sorted((part.start, part.stop) for part in inputs.parts)
    whole = inputs.pixels + len(inputs.places)
    follows = [0, *(stop for _, stop in ends)] == [*(start for start, _ in ends), whole]
    flags = sorted(part.present for part in inputs.parts if part.present is not None)
    refuse_if(
        not follows or flags != list(range(whole, whole + len(inputs.optional_parties))),
        "the parties' numbers do not make up a row",
    )
    refuse_if(
        any(int(np.prod(part.shape)) != part.stop - part.start for part in inputs.parts),
        "a party's numbers are not of its shape",
    )


def wrong_parties(inputs: Inputs, left_out: Collection[str]) -> str | None:
    """Why these parties cannot be left out; None if they can."""
    for party in left_out:
        if party not in inputs.optional_parties:
            needed = any(part.party == party for part in inputs.parts)
            return f"{shown(party)} is always needed" if needed else f"the bundle knows no party {shown(party)}"
    return None
