"""Sources by the name that a study gives. A factory's signature is the list of the source's settings."""

from collections.abc import Callable

from wardround.data.records import Source
from wardround.data.sources.at_sites import at_sites
from wardround.data.sources.chest_xray import chest_xray
from wardround.data.sources.csv.hospital_files import csv
from wardround.data.sources.csv.party_files import csv_parties
from wardround.data.sources.ecg.recordings import synthetic_ecg
from wardround.data.sources.fashion_mnist import fashion_mnist
from wardround.data.sources.heart import heart
from wardround.data.sources.hugging_face import hugging_face
from wardround.data.sources.images import images
from wardround.data.sources.phantom.radiographs import phantom
from wardround.data.sources.signals.arrays import signal_arrays
from wardround.data.sources.signals.visits_over_time import visit_sequences
from wardround.data.sources.signals.wfdb_folder import wfdb
from wardround.data.sources.split_on_disk import split_on_disk
from wardround.data.sources.synthetic import synthetic
from wardround.data.sources.visits import visits

SOURCES: dict[str, Callable[..., Source]] = {
    "heart": heart,
    "csv": csv,
    "csv-parties": csv_parties,
    "synthetic": synthetic,
    "visits": visits,
    "fashion-mnist": fashion_mnist,
    "images": images,
    "hugging-face": hugging_face,
    "chest-xray": chest_xray,
    "phantom": phantom,
    "wfdb": wfdb,
    "signal-arrays": signal_arrays,
    "visit-sequences": visit_sequences,
    "synthetic-ecg": synthetic_ecg,
    "split-on-disk": split_on_disk,
    "at-sites": at_sites,
}

__all__ = ["SOURCES", "Source"]
