"""Rows whose features are held by several parties: which numbers of a row are held by which party.

A row is one line of numbers: the image's pixels if there is one, then the columns of each party in turn, then for each
party but the one with the labels whether it knows the row's patient. What no party holds is left out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch

from wardround.core.errors import StudyError, refuse_strangers, suggest
from wardround.data.agreement import recipes
from wardround.data.prepare import Encoded, Layout, Recipe, encode
from wardround.data.records import SPLIT_PARTS, Column, Records
from wardround.data.site import Block, Rows, Site
from wardround.study.schema import Preparation, Topology
from wardround.study.sweeps import NAME

IMAGE = "image"
ALL = "*"  # in place of names: every column of the party's own file
WHERE = "topology: parties"
RESERVED = ("top", "absent")


@dataclass(frozen=True)
class Holdings:
    """Who holds what, checked against the data."""

    parties: Mapping[str, tuple[str, ...]]
    labels: str

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(name for name in self.parties if name != self.labels)

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for names in self.parties.values() for name in names if name != IMAGE)

    @property
    def image_at(self) -> str | None:
        return next((party for party, names in self.parties.items() if IMAGE in names), None)


def holdings_of(topology: Topology, records: Records) -> Holdings:
    """Refused where a party holds what is not recorded, or what another party holds too."""
    if len(topology.parties) < 1:
        raise StudyError(WHERE, "is empty", "Name the parties with their columns: [topology.parties] a = [...].")
    parties = {party: columns_held(party, names, records) for party, names in topology.parties.items()}
    _check_columns(parties, records)
    labels = _label_holder(topology, records)
    # an arm leaves a party out by giving it no columns
    return Holdings({name: own for name, own in parties.items() if own or name == labels}, labels)


def _check_columns(parties: Mapping[str, Sequence[str]], records: Records) -> None:
    recorded = [column.name for column in columns_of(records)]
    possible = recorded if records.is_table else [IMAGE, *recorded]
    holder: dict[str, str] = {}
    for party, names in parties.items():
        refuse_party_name(party)
        for name in names:
            if name not in possible:
                problem = f"no column is called {name!r}" if name != IMAGE else "these data have no images"
                raise StudyError(f"{WHERE}: {party}", problem, suggest(name, possible, "There are"))
            if name in holder:
                problem = f"{name!r} is held by {holder[name]!r} already"
                raise StudyError(f"{WHERE}: {party}", problem, "Name each column at one party only.")
            holder[name] = party
        if IMAGE in names and len(names) > 1:
            problem = "holds the image and columns, but a party's network takes either an image or columns"
            raise StudyError(f"{WHERE}: {party}", problem, "Give the columns to a party of their own.")
    if not holder:
        raise StudyError(WHERE, "no party has any column", "Name the columns of each.")


def _label_holder(topology: Topology, records: Records) -> str:
    labels = next(iter(topology.parties)) if topology.labels is None else topology.labels
    refuse_strangers([labels], topology.parties, "topology: labels", "party", "Parties")
    if labels in records.known_to:
        problem = f"the file of {labels!r} has no labels"
        raise StudyError("topology: labels", problem, "Name the party that is the `holder` in [data].")
    for party in topology.known:
        if party not in topology.parties or party == labels:
            others = [name for name in topology.parties if name != labels]
            problem = f"{party!r} is not a party other than the one with the labels"
            raise StudyError("topology: known", problem, suggest(party, others, "Others"))
    return labels


def refuse_party_name(party: str) -> None:
    """Leaves of a model are called PARTY.leaf, beside those of the parts that are nobody's."""
    if not NAME.fullmatch(party) or "." in party or party in RESERVED:
        problem = f"{party!r} cannot be a party's name"
        raise StudyError(WHERE, problem, "Use letters, digits, '_' and '-', and neither `top` nor `absent`.")


def columns_held(party: str, names: Sequence[str], records: Records) -> tuple[str, ...]:
    """What an arm says that a party holds, with ALL written out. Refused where files say otherwise."""
    if not records.held:
        if ALL in names:
            problem = f"{ALL!r} means all columns of a party's file, and these data are not in files by party"
            raise StudyError(f"{WHERE}: {party}", problem, 'Name the columns, or use the source "csv-parties".')
        return tuple(names)
    if party not in records.held:
        remedy = suggest(party, records.held, "Parties with files")
        raise StudyError(WHERE, f"no file is of a party called {party!r}", remedy)
    if tuple(names) == (ALL,):
        return records.held[party]
    for name in names:
        elsewhere = next((other for other, own in records.held.items() if name in own and other != party), None)
        if elsewhere is not None:
            problem = f"{name!r} is in the file of {elsewhere!r}"
            raise StudyError(f"{WHERE}: {party}", problem, suggest(name, records.held[party], "Columns of its file"))
    return tuple(names)


def columns_of(records: Records) -> tuple[Column, ...]:
    """Of a table its own; of images what is recorded with each image: age, sex, view."""
    if records.is_table:
        return records.columns
    return tuple(Column(name, "numeric" if name == "age" else "categorical") for name in records.groups.columns)


def table_of(records: Records, holdings: Holdings) -> Encoded | None:
    """The columns that any party holds; None where there are only images."""
    chosen = tuple(column for column in columns_of(records) if column.name in holdings.columns)
    if not chosen:
        return None
    table = records.features if isinstance(records.features, pd.DataFrame) else records.groups
    return encode(replace(records, features=table[[column.name for column in chosen]], columns=chosen, recorded={}))


def known_patients(
    patient: np.ndarray, holdings: Holdings, known: Mapping[str, float], rng: np.random.Generator
) -> dict[str, np.ndarray]:
    """In a simulation: of each other party, which rows' patients it has too. Drawn by patient, never by row."""
    people, codes = np.unique(patient, return_inverse=True)
    return {party: (rng.random(len(people)) < known.get(party, 1.0))[codes] for party in holdings.others}


def joined_sites(
    sites: Sequence[Site],
    table: Encoded | None,
    rows: Mapping[str, Mapping[str, np.ndarray]],
    holdings: Holdings,
    present: Mapping[str, np.ndarray],
    preparation: Preparation,
    members: Sequence[str],
    together: bool,
    dtype: torch.dtype,
) -> tuple[Site, ...]:
    """Sites whose rows are lines of numbers, party by party. `rows` are each site's rows by part of the split,
    `present` as `known_patients` gives it. `together`: a party prepares its columns for all sites as one."""
    train = {site: parts["train"] for site, parts in rows.items()}
    by_site: dict[str, Recipe] = {}
    if table is not None and together:
        whole = np.concatenate([train[name] for name in members])
        by_site = dict.fromkeys(train, recipes(table, {"all": whole}, preparation, ["all"])["all"])
    elif table is not None:
        by_site = recipes(table, train, preparation, members)

    def joined(site: Site) -> Site:
        recipe = by_site.get(site.name)
        pixels = tuple(site.train.x.shape[1:]) if site.train.x.dim() == 4 else ()
        places, blocks = arrangement(None if recipe is None else recipe.layout, holdings, pixels)

        def part(name: str) -> Rows:
            chosen = rows[site.name][name]
            before: Rows = getattr(site, name)
            parts = [] if recipe is None or table is None else [recipe.apply(table, chosen)[:, places]]
            parts += [present[party][chosen].astype(float)[:, None] for party in holdings.others]
            line = torch.from_numpy(np.concatenate([np.zeros((len(chosen), 0)), *parts], axis=1)).to(dtype)
            return replace(before, tabular=line) if pixels else replace(before, x=line)

        train, validation, test = map(part, SPLIT_PARTS)
        return replace(site, recipe=recipe, blocks=blocks, train=train, validation=validation, test=test)

    return tuple(joined(site) for site in sites)


def arrangement(
    layout: Layout | None, holdings: Holdings, pixels: tuple[int, ...]
) -> tuple[list[int], tuple[Block, ...]]:
    """The places of prepared numbers in the order of the parties, and each party's part of the line."""
    behind = () if layout is None else layout.columns
    at = int(np.prod(pixels)) if pixels else 0
    places: list[int] = []
    spans: dict[str, tuple[int, int, tuple[int, ...]]] = {}
    for party, names in holdings.parties.items():
        own = [place for place, column in enumerate(behind) if column in names]
        if IMAGE in names:
            spans[party] = (0, at, pixels)
        elif own:
            start = at + len(places)
            spans[party] = (start, start + len(own), (len(own),))
            places += own
        elif names:
            problem = "none of its columns has a value in a training row"
            raise StudyError(f"{WHERE}: {party}", problem, "Name columns that are recorded.")
    first = at + len(places)
    flag = {party: first + number for number, party in enumerate(holdings.others)}
    return places, tuple(Block(party, *span, flag.get(party)) for party, span in spans.items())
