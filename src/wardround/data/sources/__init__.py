"""Sources by the name that a study gives. A factory's signature is the list of the source's settings."""

from collections.abc import Callable

from wardround.data.sources.at_sites import at_sites
from wardround.data.sources.chest_xray import chest_xray
from wardround.data.sources.csv import csv
from wardround.data.sources.csv_parties import csv_parties
from wardround.data.sources.fashion_mnist import fashion_mnist
from wardround.data.sources.heart import heart
from wardround.data.sources.phantom import phantom
from wardround.data.sources.source import Source
from wardround.data.sources.synthetic import synthetic

SOURCES: dict[str, Callable[..., Source]] = {
    "heart": heart,
    "csv": csv,
    "csv-parties": csv_parties,
    "synthetic": synthetic,
    "fashion-mnist": fashion_mnist,
    "chest-xray": chest_xray,
    "phantom": phantom,
    "at-sites": at_sites,
}

__all__ = ["SOURCES", "Source"]
