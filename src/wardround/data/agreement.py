"""What sites must know of each other before they prepare their rows, without showing a row.

Each site sends `Facts` about its training rows. They determine one `Layout`, so that position 7 means the same
everywhere. Where a site never recorded a column, it is filled from the statistics of the others (`FillValues`); with
`scale = "federated"`, sums are added up (`Moments`). A simulation does this in one process, a deployment by messages:
the same functions, the same sums in the order of the sites, the same bits.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from wardround.core.errors import DataError
from wardround.data.prepare import Encoded, Fit, Layout, Recipe, recipe_of
from wardround.data.records import Column
from wardround.study.schema import Preparation

LEAST = 5  # rows: a statistic of fewer would come too close to revealing a patient's value to other sites


@dataclass(frozen=True)
class Facts:
    """Of one site's training rows, by column: whether there is a value, whether there is a gap, which levels occur."""

    present: tuple[bool, ...]
    gaps: tuple[bool, ...]
    levels: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class FillValues:
    """A site's own statistics, from which gaps are filled at sites that never recorded a column."""

    fill: np.ndarray  # mean or median of each numeric column; 0 where it has no value
    counts: np.ndarray  # of the values behind it
    levels: Mapping[str, Mapping[str, int]]  # how often each level of a category occurs


@dataclass(frozen=True)
class Moments:
    """Of the filled numeric columns of one site."""

    count: np.ndarray  # of rows, for each column; 0 where the site has fewer than LEAST values
    total: np.ndarray
    squares: np.ndarray


@dataclass(frozen=True)
class Common:
    """Statistics of all sites: used where a site has no value of its own, and for a common scale."""

    fill: np.ndarray
    level: Mapping[str, str] = field(default_factory=dict)
    scale: tuple[np.ndarray, np.ndarray] | None = None


def facts(table: Encoded, rows: np.ndarray, settings: Preparation) -> Facts:
    if settings.public:
        return _known_facts(table.columns, table.records_of(rows), settings)
    gaps = table.missing[rows]
    levels = []
    for i, known in enumerate(table.levels):
        codes, counts = np.unique(table.codes[rows, i], return_counts=True) if known else ((), ())
        enough = [int(c) for c, count in zip(codes, counts, strict=True) if c >= 0 and count >= settings.least_level]
        levels.append(tuple(known[code] for code in enough))
    return Facts(tuple((~gaps.all(axis=0)).tolist()), tuple(gaps.any(axis=0).tolist()), tuple(levels))


def _known_facts(columns: Sequence[Column], recorded: np.ndarray, settings: Preparation) -> Facts:
    """What is declared of the columns. It depends on no row, so it reveals nothing about a patient."""
    present = tuple(map(bool, recorded)) if settings.schema != "all" else (True,) * len(columns)
    recorded_columns = [column for column, is_present in zip(columns, present, strict=True) if is_present]
    unknown = [c.name for c in recorded_columns if c.kind == "categorical" and c.levels is None]
    if unknown and settings.categories == "one-hot":
        problem = f"the levels of {', '.join(unknown)} are not declared, and `public` reads nothing off rows"
        raise DataError("data: public", problem, "Give `[data.levels]` for a csv source, or leave these columns out.")
    gaps = (settings.missing != "drop",) * len(columns)
    return Facts(present, gaps, tuple(c.levels or () for c in columns))


def layout_of(columns: Sequence[Column], facts_of_sites: Sequence[Facts], settings: Preparation) -> Layout:
    """`facts_of_sites` are those of the sites that train."""
    present = _present_columns(columns, facts_of_sites, settings)
    one_hot = [(i, c) for i, c in present if c.kind == "categorical" and settings.categories == "one-hot"]
    numeric = tuple(c for _, c in present if c.kind == "numeric" or settings.categories == "codes")
    levels = {c.name: tuple(sorted(set().union(*(site.levels[i] for site in facts_of_sites)))) for i, c in one_hot}
    with_gaps = tuple(c.name for i, c in present if any(site.gaps[i] for site in facts_of_sites))
    return Layout(numeric, levels, with_gaps if settings.indicator else ())


def _present_columns(
    columns: Sequence[Column], facts_of_sites: Sequence[Facts], settings: Preparation
) -> list[tuple[int, Column]]:
    """With their places in `columns`."""
    enough = all if settings.schema == "common" else any
    present = [(i, c) for i, c in enumerate(columns) if enough(site.present[i] for site in facts_of_sites)]
    if not present:
        problem = "no column has values at every site" if settings.schema == "common" else "no column has any value"
        raise DataError("data: schema", problem, 'Write schema = "own" with model "adapter", or look at the files.')
    text = [c.name for _, c in present if c.kind == "categorical" and not c.coded]
    if settings.categories == "codes" and text:
        problem = f'"codes" needs categories that are numbers; not so: {", ".join(text)}'
        raise DataError("data: categories", problem, 'Use categories = "one-hot".')
    return present


def compute_fill_values(table: Encoded, rows: np.ndarray, layout: Layout, settings: Preparation) -> FillValues:
    columns = len(layout.numeric)
    if settings.missing == "range" or settings.public:  # the middle of each public range; or there are no gaps to fill
        middle = _limits(layout).mean(axis=1) if settings.missing == "range" else np.zeros(columns)
        return FillValues(middle, np.full(columns, LEAST), {})
    numbers = _numbers(table, rows, layout)
    known = ~np.isnan(numbers)
    counts = known.sum(axis=0)
    with_gaps, complete = (np.nanmean, np.mean) if settings.missing == "mean" else (np.nanmedian, np.median)
    statistic: Any = complete if known.all() else with_gaps  # which takes ten times as long
    # a column without any value would make numpy warn
    fill = statistic(np.where(counts > 0, numbers, 0.0), axis=0)
    levels = {}
    for name in layout.levels:
        codes, known_levels = table.category(name)
        chosen = codes[rows]
        counted = np.bincount(chosen[chosen >= 0], minlength=len(known_levels)).tolist()
        levels[name] = {level: count for level, count in zip(known_levels, counted, strict=True) if count}
    return FillValues(fill, counts, levels)


def common_of(fill_values: Sequence[FillValues]) -> Common:
    """From the sites that train, in their order, as far as each has enough rows.

    A column that every site recorded need not be right here: its value is not used.
    """
    sites = [with_enough(values) for values in fill_values]
    total = np.maximum(sum(site.counts for site in sites), 1)
    fill = np.asarray(sum(site.fill * site.counts for site in sites) / total)
    counted: dict[str, Counter[str]] = {}
    for site in sites:
        for name, levels in site.levels.items():
            counted.setdefault(name, Counter()).update(levels)
    return Common(fill, {name: _commonest(levels) for name, levels in counted.items()})


def with_enough(values: FillValues) -> FillValues:
    """Without statistics of fewer than LEAST rows."""
    enough = values.counts >= LEAST
    counted = {name: {w: n for w, n in levels.items() if n >= LEAST} for name, levels in values.levels.items()}
    levels = {name: counts for name, counts in counted.items() if counts}
    return FillValues(np.where(enough, values.fill, 0.0), np.where(enough, values.counts, 0), levels)


def own_fill(own: FillValues, common: Common) -> np.ndarray:
    return np.where(own.counts > 0, own.fill, common.fill)


def moments(table: Encoded, rows: np.ndarray, layout: Layout, fill: np.ndarray) -> Moments:
    filled = _filled(table, rows, layout, fill)
    enough = (~np.isnan(_numbers(table, rows, layout))).sum(axis=0) >= LEAST
    counts = np.where(enough, len(filled), 0)
    return Moments(counts, *(np.where(enough, sums, 0.0) for sums in (filled.sum(axis=0), (filled**2).sum(axis=0))))


def common_scale(moments_of_sites: Sequence[Moments]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and SD over all sites' rows, from their sums."""
    count = np.maximum(sum(site.count for site in moments_of_sites), 1)
    mean = np.asarray(sum(site.total for site in moments_of_sites) / count)
    squares = np.asarray(sum(site.squares for site in moments_of_sites))
    return mean, _safe(np.sqrt(np.maximum(squares / count - mean**2, 0)))


def fit_site(
    table: Encoded, rows: np.ndarray, layout: Layout, settings: Preparation, own: FillValues, common: Common
) -> Fit:
    """One site's statistics, from its own training rows and those that the sites have in common."""
    fill = own_fill(own, common)
    modes = {name: _commonest(levels) for name, levels in own.levels.items() if levels}
    names = [column.name for column in layout.numeric]
    scale = _scale(table, rows, layout, settings, fill, common)
    return Fit(dict(zip(names, fill.tolist(), strict=True)), {**common.level, **modes}, *scale)


def recipes(
    table: Encoded, train: Mapping[str, np.ndarray], settings: Preparation, members: Collection[str] | None = None
) -> dict[str, Recipe]:
    """How each site prepares its rows: each by itself, or as the members agree."""
    if settings.schema == "own":
        return {site: own_recipe(table, rows, settings) for site, rows in train.items()}
    members = list(train) if members is None else members
    layout = agree(table, {site: train[site] for site in members}, settings)
    fits = fit(table, train, layout, settings, members)
    return {site: recipe_of(table.columns, layout, fits[site], settings) for site in train}


def own_recipe(table: Encoded, rows: np.ndarray, settings: Preparation) -> Recipe:
    """A site by itself: its own columns, its own levels. Nothing leaves the site.

    Columns are in alphabetical order of the names in its own file: a simulation holds all hospitals in one table, whose
    order and names of columns a hospital by itself cannot know.
    """
    layout = agree(table, {"alone": rows}, settings)
    own_name = {column.name: column.own_name for column in table.columns}
    layout = Layout(
        tuple(sorted(layout.numeric, key=lambda column: column.own_name)),
        {name: layout.levels[name] for name in sorted(layout.levels, key=own_name.__getitem__)},
        tuple(sorted(layout.indicators, key=own_name.__getitem__)),
    )
    own = compute_fill_values(table, rows, layout, settings)
    fitted = fit_site(table, rows, layout, settings, own, Common(np.zeros(len(layout.numeric))))
    return recipe_of(table.columns, layout, fitted, settings)


def agree(table: Encoded, train: Mapping[str, np.ndarray], settings: Preparation) -> Layout:
    """`train` holds the training rows of each site that trains."""
    return layout_of(table.columns, [facts(table, rows, settings) for rows in train.values()], settings)


def fit(
    table: Encoded,
    train: Mapping[str, np.ndarray],
    layout: Layout,
    settings: Preparation,
    members: Collection[str] | None = None,
) -> dict[str, Fit]:
    """Each site's statistics. A site that never recorded a column uses the mean of the others' for it.

    Only `members` (all by default) contribute to common statistics: a site that does not train with them uses theirs
    and contributes none.
    """
    members = list(train) if members is None else members
    own = {site: compute_fill_values(table, rows, layout, settings) for site, rows in train.items()}
    common = common_of([own[site] for site in members])
    if settings.scale == "federated":
        of_members = [moments(table, train[site], layout, own_fill(own[site], common)) for site in members]
        common = Common(common.fill, common.level, common_scale(of_members))
    return {site: fit_site(table, rows, layout, settings, own[site], common) for site, rows in train.items()}


def _numbers(table: Encoded, rows: np.ndarray, layout: Layout) -> np.ndarray:
    return np.asarray(table.numbers[rows][:, table.numeric_places(layout)])


def _filled(table: Encoded, rows: np.ndarray, layout: Layout, fill: np.ndarray) -> np.ndarray:
    numbers = _numbers(table, rows, layout)
    return np.where(np.isnan(numbers), fill, numbers)


def _commonest(levels: Mapping[str, int]) -> str:
    """Ties go to the first in the alphabet."""
    return min(levels, key=lambda level: (-levels[level], level))


def _scale(
    table: Encoded, rows: np.ndarray, layout: Layout, settings: Preparation, fill: np.ndarray, common: Common
) -> tuple[np.ndarray, np.ndarray]:
    width = len(layout.numeric)
    if settings.scale == "none":
        return np.zeros(width), np.ones(width)
    if settings.scale == "ranges":
        limits = _limits(layout)
        return limits[:, 0], limits[:, 1] - limits[:, 0]
    if settings.scale == "federated":
        if common.scale is None:
            raise ValueError("a common scale must be agreed on first")
        return common.scale
    filled = _filled(table, rows, layout, fill)
    return filled.mean(axis=0), _safe(filled.std(axis=0))


def _limits(layout: Layout) -> np.ndarray:
    if unknown := [column.name for column in layout.numeric if column.limits is None]:
        raise DataError(
            "data: scale",
            f'"ranges" needs a public range for every numeric column; none is known for {", ".join(unknown)}',
            "Give `[data.ranges]` for a csv source, or choose another scale.",
        )
    return np.array([column.limits for column in layout.numeric], dtype=float).reshape(-1, 2)


def _safe(spread: np.ndarray) -> np.ndarray:
    """A constant column is left where it is instead of divided by zero."""
    return np.where(spread > 1e-12, spread, 1.0)
