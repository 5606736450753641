"""Training, validation and test rows within each site: stratified by class, and a patient never in two of them."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b

import numpy as np
import pandas as pd

from wardround.core.errors import StudyError
from wardround.data.records import SPLIT_PARTS, Records


@dataclass(frozen=True)
class Split:
    """Row numbers of one site, sorted."""

    site: str
    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray

    @property
    def rows(self) -> np.ndarray:
        return np.concatenate([self.train, self.validation, self.test])


def fingerprints(records: Records) -> np.ndarray:
    """A number per row that is equal where features and target are equal. Stays in memory, never written."""
    if isinstance(records.features, pd.DataFrame):
        return pd.util.hash_pandas_object(with_target(records.features, records.target), index=False).to_numpy()
    return prints_of(records.features, records.target)


def with_target(features: pd.DataFrame, target: np.ndarray) -> pd.DataFrame:
    """The features with a column for the target, or for each of its columns."""
    labels = target.reshape(len(target), -1).T
    names = ["__target__"] if labels.shape[0] == 1 else [f"__target_{place}__" for place in range(len(labels))]
    return features.assign(**dict(zip(names, labels, strict=True)))


def prints_of(images: np.ndarray, target: np.ndarray) -> np.ndarray:
    """As `fingerprints`, image by image: they may be a memory map larger than the machine's memory."""
    digests = bytearray()
    for image, label in zip(images, target, strict=True):
        digests += blake2b(image.tobytes() + label.tobytes(), digest_size=8).digest()
    return np.frombuffer(bytes(digests), dtype=np.uint64)


def same_patient(records: Records, prints: np.ndarray) -> np.ndarray:
    """A group number per row. Without patient ids, rows that are equal in everything count as one patient.

    Groups are numbered by first appearance, so that no hash function can change a split.
    """
    return pd.factorize(prints if records.patient is None else records.patient)[0]


def recorded_split(
    site: str,
    rows: np.ndarray,
    parts: np.ndarray,
    target: np.ndarray,
    patient: np.ndarray,
    validation_share: float,
    rng: np.random.Generator,
) -> Split:
    """The split that the source comes with. Where it has no validation rows, they are drawn from its training rows."""
    train, validation, test = (np.sort(rows[parts[rows] == name]) for name in SPLIT_PARTS)
    if validation_share and not (parts == "validation").any():
        drawn = split_site(site, train, target, patient, 0.0, validation_share, rng)
        train, validation = drawn.train, drawn.validation
    return Split(site, train, validation, test)


def split_site(
    site: str,
    rows: np.ndarray,
    target: np.ndarray,
    patient: np.ndarray,
    test_share: float,
    validation_share: float,
    rng: np.random.Generator,
) -> Split:
    """Each class gives its share of patients to each part, as near as whole patients allow.

    `target` and `patient` are for all rows of the source; a patient's class is the highest of his rows.
    """
    # in order of first appearance at this site, so that a hospital by itself draws the same split
    member, groups = pd.factorize(patient[rows])
    label = np.full(len(groups), -1)
    np.maximum.at(label, member, target[rows])
    part = np.zeros(len(groups), dtype=np.int64)  # 0 train, 1 validation, 2 test
    due_test = due_validation = 0.0
    placed_test = placed_validation = 0
    for value in np.unique(label):
        members = rng.permutation(np.flatnonzero(label == value))
        # rounding errors are carried to the next class, so that the totals come out right as well
        due_test += len(members) * test_share
        due_validation += len(members) * validation_share
        test = _whole(due_test - placed_test, len(members) - 1)
        validation = _whole(due_validation - placed_validation, len(members) - 1 - test)
        part[members[:test]] = 2
        part[members[test : test + validation]] = 1
        placed_test += test
        placed_validation += validation
    return Split(site, *(np.sort(rows[part[member] == number]) for number in range(3)))


def _whole(due: float, most: int) -> int:
    return int(np.clip(np.floor(due + 0.5), 0, max(most, 0)))


def untested_validation(splits: Sequence[Split], patient: np.ndarray) -> tuple[Split, ...]:
    """Without validation rows of patients whom any site tests, as overlapping sites may have."""
    tested = np.concatenate([patient[split.test] for split in splits])
    return tuple(replace(s, validation=s.validation[~np.isin(patient[s.validation], tested)]) for s in splits)


def held_out_rows(splits: Sequence[Split], site: str, patient: np.ndarray) -> tuple[Split, ...]:
    """The held-out site is scored on its training and validation rows, without patients whom any site tests (nothing
    is chosen on test rows) or whom others train on (the site is to be new to the models).
    """
    known = [patient[split.test] for split in splits]
    known += [patient[np.concatenate([split.train, split.validation])] for split in splits if split.site != site]
    tested = np.concatenate(known)

    def scored(split: Split) -> Split:
        rows = np.sort(np.concatenate([split.train, split.validation]))
        unseen = rows[~np.isin(patient[rows], tested)]
        if not len(unseen):
            problem = "has no row that others neither train on nor test, so nothing can be chosen there"
            raise StudyError(f"selection: site: {site}", problem, "Hold out another site.")
        return replace(split, test=unseen)

    return tuple(scored(split) if split.site == site else split for split in splits)
