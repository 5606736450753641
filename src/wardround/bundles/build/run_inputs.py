"""What a run's rows have beside the columns of a table: images, findings, parties. As a bundle will need it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from wardround.bundles.inputs import Images, Inputs
from wardround.core.errors import BundleError
from wardround.data.cohort import Cohort
from wardround.data.parties import arrangement, holdings_of, table_of
from wardround.data.prepare import Encoded, Fit, Layout, Recipe
from wardround.data.site import Rows, Site
from wardround.runs.plan import Plan
from wardround.study.schema import Arm, Preparation

WEIGHTS = "Use the saved weights in models/ with the study's own model."


@dataclass(frozen=True, eq=False)
class Beside:
    recipe: Recipe
    table: Encoded | None  # the columns that the recipe prepares; None: there are none
    inputs: Inputs = field(default_factory=Inputs)
    images: np.ndarray | None = None
    trained_on: np.ndarray | None = None  # places of the site's training images
    trained: np.ndarray | None = None  # prepared columns of its training rows, where several parties hold them
    absent: Mapping[str, np.ndarray] = field(default_factory=dict)
    thresholds: Mapping[str, float] = field(default_factory=dict)


def beside_of(plan: Plan, arm: Arm, site: Site, results: Mapping[str, Any]) -> Beside:
    """`results` are the arm's in results.json."""
    cohort, joined = plan.cohort_of(arm), arm.model.facts.in_parts
    if cohort.records.is_table and not joined:
        if site.recipe is None:
            raise BundleError(site.name, "its rows have no preparation", "Run the study again with --again.")
        return Beside(site.recipe, cohort.table, thresholds=_thresholds(plan, results))
    images = None if cohort.records.is_table else _images(cohort, arm, site)
    recipe = no_columns(arm.preparation) if site.recipe is None else site.recipe
    table, inputs, absent = None, Inputs(images), {}
    if joined:
        holdings = holdings_of(arm.topology, cohort.records)
        table = table_of(cohort.records, holdings)
        pixels = () if images is None or holdings.image_at is None else images.shape
        places, parts = arrangement(None if site.recipe is None else recipe.layout, holdings, pixels)
        if parts != site.blocks:
            raise BundleError(site.name, "its parties hold other columns now", "Run the study again with --again.")
        inputs = Inputs(images if pixels else None, parts, tuple(places), holdings.parties)
        absent = {part.party: _flags(site.test, part.present) == 0 for part in parts if part.present is not None}
    return Beside(
        recipe,
        table,
        inputs,
        None if inputs.images is None else np.asarray(cohort.records.features),
        None if inputs.images is None or site.train.index is None else site.train.index.cpu().numpy(),
        _columns(site.train, inputs, len(recipe.names)),
        {party: gone for party, gone in absent.items() if gone.any()},
        _thresholds(plan, results),
    )


def no_columns(settings: Preparation) -> Recipe:
    """Of rows that have none."""
    return Recipe((), Layout((), {}, ()), Fit({}, {}, np.zeros(0), np.zeros(0)), settings)


def _columns(rows: Rows, inputs: Inputs, width: int) -> np.ndarray:
    """In the recipe's order, from lines in the order of the parties."""
    made = np.zeros((len(rows), width))
    if width:
        lines = rows.x if rows.tabular is None else rows.tabular
        made[:, list(inputs.places)] = lines[:, : len(inputs.places)].cpu().numpy()
    return made


def _flags(rows: Rows, place: int) -> np.ndarray:
    """The number of each row that says whether a party knows it."""
    lines = rows.x if rows.tabular is None else rows.tabular
    skipped = 0 if rows.tabular is None else rows.x[0].numel()
    made: np.ndarray = lines[:, place - skipped].cpu().numpy()
    return made


def _images(cohort: Cohort, arm: Arm, site: Site) -> Images:
    """Refused where files of images could not be read as the run's were."""
    pixels = np.asarray(cohort.records.features)
    colours, height, width = (int(size) for size in pixels.shape[1:])
    if pixels.dtype != np.uint8 or colours != 1 or height != width:
        problem = f"its images are {colours} x {height} x {width} of {pixels.dtype}, and files are read as grey squares"
        raise BundleError(site.name, problem, WEIGHTS)
    shape, clahe = (colours, height, width), bool(arm.data.options.get("clahe", False))
    levels = site.train.levels if len(site.train) else site.test.levels
    if levels is None or not len(levels):
        return Images(shape, "none", clahe=clahe)
    if arm.preparation.scale == "image":
        return Images(shape, "image", clahe=clahe)
    if not bool((levels == levels[0]).all()):
        raise BundleError(site.name, "its images have different scales", "Run the study again with --again.")
    centre, spread = levels[0].to(torch.float64).tolist()
    return Images(shape, "site", centre, spread, clahe)


def _thresholds(plan: Plan, results: Mapping[str, Any]) -> dict[str, float]:
    """Of findings, as all sites' validation rows chose them: the mean over seeds."""
    if not plan.has_findings:
        return {}
    found = {name: told["threshold"] for name, told in results["findings"].items()}
    return {name: float(told["mean"]) for name, told in found.items() if told["chosen"]}


@dataclass(frozen=True, eq=False)
class Taken:
    """What can be taken from like an array, by a slice or by row numbers."""

    rows: Rows
    dtype: torch.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.rows), *self.rows.inputs)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, chosen: Any) -> np.ndarray:
        order = torch.from_numpy(np.arange(len(self.rows))[chosen])
        made: np.ndarray = self.rows.take(order, self.dtype)[0].cpu().numpy()
        return made


@dataclass(frozen=True, eq=False)
class Side:
    """Prepared rows with their labels."""

    x: Any  # an array, or what is taken from like one
    label: np.ndarray
    people: np.ndarray | None = None  # the patient of each row, as a number; None: each row is one

    def __len__(self) -> int:
        return len(self.label)


def side_of(rows: Rows, dtype: torch.dtype) -> Side:
    if rows.x.dtype == torch.uint8:
        return Side(Taken(rows, dtype), rows.labels.cpu().numpy(), rows.people.numpy())
    x, y = rows.everything(dtype)
    return Side(x.cpu().numpy(), y.cpu().numpy(), rows.people.numpy())
