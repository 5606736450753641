"""Columns, layouts and recipes as plain data for a message or a file, and back. Floats survive JSON to the last bit."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from wardround.core.settings import parse
from wardround.data.prepare import Fit, Layout, Recipe
from wardround.data.records import Column, Kind
from wardround.study.schema import Preparation

Plain = dict[str, Any]


def write_column(column: Column) -> Plain:
    """What other sites may know of it. How the hospital's own file spells it stays there."""
    limits = None if column.limits is None else list(column.limits)
    levels = None if column.levels is None else list(column.levels)
    return {"name": column.name, "kind": column.kind, "limits": limits, "coded": column.coded, "levels": levels}


def read_column(plain: Mapping[str, Any]) -> Column:
    limits, levels = plain["limits"], plain["levels"]
    kind: Kind = "categorical" if plain["kind"] == "categorical" else "numeric"
    return Column(
        str(plain["name"]),
        kind,
        None if limits is None else (float(limits[0]), float(limits[1])),
        bool(plain["coded"]),
        None if levels is None else tuple(map(str, levels)),
    )


def write_own_column(column: Column) -> Plain:
    """For the hospital itself, with the spellings of its own file."""
    own: Plain = {"header": column.header, "dates": column.dates, "words": [list(pair) for pair in column.words]}
    own["missing_codes"] = list(column.missing_codes)
    return {**write_column(column), **own}


def read_own_column(plain: Mapping[str, Any]) -> Column:
    words = tuple((str(word), str(level)) for word, level in plain["words"])
    missing_codes = tuple(map(float, plain["missing_codes"]))
    header, dates = str(plain["header"]), bool(plain["dates"])
    return replace(read_column(plain), header=header, dates=dates, words=words, missing_codes=missing_codes)


def write_layout(layout: Layout, write: Callable[[Column], Plain] = write_column) -> Plain:
    return {
        "numeric": [write(column) for column in layout.numeric],
        "levels": [[name, list(levels)] for name, levels in layout.levels.items()],  # in this order
        "indicators": list(layout.indicators),
    }


def read_layout(plain: Mapping[str, Any], read: Callable[[Mapping[str, Any]], Column] = read_column) -> Layout:
    levels = {str(name): tuple(map(str, levels)) for name, levels in plain["levels"]}
    return Layout(tuple(map(read, plain["numeric"])), levels, tuple(map(str, plain["indicators"])))


def write_recipe(recipe: Recipe) -> Plain:
    """One site's whole preparation, for the site itself."""
    fitted = recipe.fit
    return {
        "columns": [write_own_column(column) for column in recipe.columns],
        "layout": write_layout(recipe.layout, write_own_column),
        "fit": {
            "fill": dict(fitted.fill),
            "fill_level": dict(fitted.fill_level),
            "centre": fitted.centre.tolist(),
            "spread": fitted.spread.tolist(),
        },
        "settings": asdict(recipe.settings),
    }


def read_recipe(plain: Mapping[str, Any], where: str) -> Recipe:
    """`where` is for the error when a setting is not known."""
    fitted = plain["fit"]
    return Recipe(
        tuple(map(read_own_column, plain["columns"])),
        read_layout(plain["layout"], read_own_column),
        Fit(
            {str(name): float(value) for name, value in fitted["fill"].items()},
            {str(name): str(level) for name, level in fitted["fill_level"].items()},
            np.array(fitted["centre"], dtype=float),
            np.array(fitted["spread"], dtype=float),
        ),
        parse(Preparation, plain["settings"], where),
    )
