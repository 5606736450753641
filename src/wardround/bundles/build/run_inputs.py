"""What the rows of a run are made of, as a bundle needs it: columns, images, findings, parties; and labelled rows."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from wardround.bundles.inputs import Images, Inputs
from wardround.bundles.signals import Signals
from wardround.core.errors import BundleError
from wardround.data.cohort import Cohort
from wardround.data.parties import arrangement, holdings_of, table_of
from wardround.data.prepare import Encoded, Fit, Layout, Recipe
from wardround.data.site import Rows, Site
from wardround.runs.plan import Plan
from wardround.study.schema import Arm, Preparation
from wardround.tasks import Task

WEIGHTS = "Use the saved weights in models/ with the study's own model."


@dataclass(frozen=True, eq=False)
class RunInputs:
    recipe: Recipe
    table: Encoded | None = None  # the columns that the recipe prepares; None: there are none
    inputs: Inputs = field(default_factory=Inputs)
    images: np.ndarray | None = None  # all rows' bytes, or their signals
    training_images: np.ndarray | None = None  # places of the site's training rows among them
    training_columns: np.ndarray | None = None  # prepared columns of training rows, where these are not the whole row
    missing_parties: Mapping[str, np.ndarray] = field(default_factory=dict)  # by party: test rows that it lacks
    thresholds: Mapping[str, float] = field(default_factory=dict)  # of findings, chosen at all sites together


def run_inputs(plan: Plan, arm: Arm, site: Site, results: Mapping[str, Any]) -> RunInputs:
    """`results` are the arm's in results.json."""
    cohort, in_parts, thresholds = plan.cohort_of(arm), arm.model.facts.in_parts, _thresholds(results)
    if cohort.records.is_table and not in_parts:
        if site.recipe is None:
            raise BundleError(site.name, "its rows have no preparation", "Run the study again with --again.")
        return RunInputs(site.recipe, cohort.table, thresholds=thresholds)
    if cohort.records.is_signals:
        return _of_signals(cohort, arm, site, thresholds)
    images = None if cohort.records.is_table else _images(cohort, arm, site)
    recipe = _no_columns(arm.preparation) if site.recipe is None else site.recipe
    table, inputs, missing = _of_parties(cohort, arm, site, images) if in_parts else (None, Inputs(images), {})
    has_images = inputs.images is not None
    return RunInputs(
        recipe,
        table,
        inputs,
        np.asarray(cohort.records.features) if has_images else None,
        site.train.index.cpu().numpy() if has_images and site.train.index is not None else None,
        _columns(site.train, inputs, len(recipe.names)),
        missing,
        thresholds,
    )


def _of_signals(cohort: Cohort, arm: Arm, site: Site, thresholds: Mapping[str, float]) -> RunInputs:
    records, scale, index = cohort.records, arm.preparation.scale, site.train.index
    values, levels = np.asarray(records.features), (site.train if len(site.train) else site.test).levels
    by_site = levels is not None and len(levels) > 0 and scale != "record"
    if by_site and levels is not None and not bool((levels == levels[0]).all()):
        raise BundleError(site.name, "its recordings have different scales", "Run the study again with --again.")
    own = (
        tuple((centre, spread) for centre, spread in levels[0].double().tolist())
        if by_site and levels is not None
        else ()
    )
    kind: Any = "record" if scale == "record" else "site" if by_site else "none"
    return RunInputs(
        _no_columns(arm.preparation),
        None,
        Inputs(signals=Signals(records.channels, values.shape[-1], records.rate, kind, own)),
        values,
        None if index is None else index.cpu().numpy(),
        np.zeros((len(site.train), 0)),
        thresholds=thresholds,
    )


def _of_parties(
    cohort: Cohort, arm: Arm, site: Site, images: Images | None
) -> tuple[Encoded | None, Inputs, dict[str, np.ndarray]]:
    """The table, the model's inputs, and by party the test rows that it lacks."""
    holdings = holdings_of(arm.topology, cohort.records)
    pixels = () if images is None or holdings.image_at is None else images.shape
    places, parts = arrangement(None if site.recipe is None else site.recipe.layout, holdings, pixels)
    if parts != site.blocks:
        raise BundleError(site.name, "its parties hold other columns now", "Run the study again with --again.")
    inputs = Inputs(images if pixels else None, parts, tuple(places), holdings.parties)
    missing = {part.party: _flags(site.test, part.present) == 0 for part in parts if part.present is not None}
    return table_of(cohort.records, holdings), inputs, {party: rows for party, rows in missing.items() if rows.any()}


def _no_columns(settings: Preparation) -> Recipe:
    return Recipe((), Layout((), {}, ()), Fit({}, {}, np.zeros(0), np.zeros(0)), settings)


def _columns(rows: Rows, inputs: Inputs, width: int) -> np.ndarray:
    """In the recipe's order, from lines in the order of the parties."""
    columns = np.zeros((len(rows), width))
    if width:
        lines = rows.x if rows.tabular is None else rows.tabular
        columns[:, list(inputs.places)] = lines[:, : len(inputs.places)].cpu().numpy()
    return columns


def _flags(rows: Rows, place: int) -> np.ndarray:
    """The number of each row that says whether a party knows it."""
    lines = rows.x if rows.tabular is None else rows.tabular
    skipped = 0 if rows.tabular is None else rows.x[0].numel()
    return np.asarray(lines[:, place - skipped].cpu().numpy())


def _images(cohort: Cohort, arm: Arm, site: Site) -> Images:
    """Refused where files of images could not be read as the run's were."""
    pixels = np.asarray(cohort.records.features)
    colours, height, width = (int(size) for size in pixels.shape[1:])
    if pixels.dtype != np.uint8 or colours not in (1, 3) or height != width:
        problem = f"its images are {colours} x {height} x {width} of {pixels.dtype}, and files are read as squares"
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


def _thresholds(results: Mapping[str, Any]) -> dict[str, float]:
    """Of findings, as all sites' validation rows chose them: the mean over seeds."""
    thresholds = {name: finding["threshold"] for name, finding in results["findings"].items()}
    return {name: float(threshold["mean"]) for name, threshold in thresholds.items() if threshold["chosen"]}


@dataclass(frozen=True, eq=False)
class LazyRows:
    """Prepared rows that are sliced like an array, so that images are never all in memory."""

    shape: tuple[int, ...]
    take: Callable[[np.ndarray], np.ndarray]  # by row numbers

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, selected: Any) -> np.ndarray:
        return self.take(np.arange(len(self))[selected])


@dataclass(frozen=True, eq=False)
class LabelledRows:
    """Prepared rows with their labels."""

    x: np.ndarray | LazyRows
    y: np.ndarray  # as training has them
    label: np.ndarray  # what predictions are compared with
    people: np.ndarray | None = None  # the patient of each row, as a number; None: a patient each

    def __len__(self) -> int:
        return len(self.label)


def labelled_rows(rows: Rows, dtype: torch.dtype, task: Task) -> LabelledRows:
    def take(selected: np.ndarray) -> np.ndarray:
        return np.asarray(rows.take(torch.from_numpy(selected), dtype)[0].cpu().numpy())

    if rows.x.dtype == torch.uint8:
        x: np.ndarray | LazyRows = LazyRows((len(rows), *rows.inputs), take)
        y = rows.labels
    else:
        numbers, y = rows.everything(dtype)
        x = numbers.cpu().numpy()
    return LabelledRows(x, y.cpu().numpy(), task.label(y).cpu().numpy(), rows.people.numpy())
