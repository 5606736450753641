"""Made-up images whose rows have any number of findings, some of them not known: for tests of data and of training."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch

from wardround.data.cohort import Cohort
from wardround.data.records import BOX_COLUMNS, Records
from wardround.data.site import Rows, Site
from wardround.data.sources import Source
from wardround.data.split import fingerprints
from wardround.tasks.multilabel import UNKNOWN

NAMES = ("mass", "fluid", "air")
SHARES = (0.1, 0.3, 0.5)  # of patients who have each finding
SIZE = 6


def some_radiographs(patients: int = 200, most_images: int = 4, unknown: float = 0.0, seed: int = 0) -> Records:
    """Patients with one to `most_images` images; a finding makes its own two rows of pixels a little brighter.

    Findings are the patient's, and each image shows one of them with probability 0.9. A share `unknown` of the labels
    is not known.
    """
    rng = np.random.default_rng(seed)
    patient = np.repeat(np.arange(patients), rng.integers(1, most_images + 1, patients))
    has = rng.random((patients, len(NAMES))) < SHARES
    shown = has[patient] & (rng.random((len(patient), len(NAMES))) < 0.9)
    images = rng.integers(0, 120, (len(patient), 1, SIZE, SIZE))
    for finding in range(len(NAMES)):
        images[:, 0, 2 * finding : 2 * finding + 2] += 15 * shown[:, finding, None, None]
    target = np.where(rng.random(shown.shape) < unknown, UNKNOWN, shown.astype(np.int64))
    order = rng.permutation(len(patient))  # one patient's images do not stand together
    marked = np.argwhere(shown[order])
    return Records(
        features=images.astype(np.uint8)[order],
        target=target[order],
        classes=NAMES,
        hospital=np.array([f"hospital-{number % 3}" for number in patient[order]], dtype=object),
        patient=np.array([f"p{number:04}" for number in patient[order]], dtype=object),
        groups=pd.DataFrame(
            {
                "sex": np.where(patient % 2, "male", "female")[order],
                "age": (20.0 + patient % 60)[order],
                "view": np.where(rng.random(len(patient)) < 0.4, "AP", "PA"),
            }
        ),
        boxes=pd.DataFrame(
            {
                "row": marked[:, 0],
                "finding": marked[:, 1],
                "x": 0.0,
                "y": marked[:, 1] / 3,
                "width": 1.0,
                "height": 1 / 3,
            },
            columns=list(BOX_COLUMNS),
        ),
    )


def source_of(records: Records) -> Mapping[str, Callable[[], Source]]:
    """As `load_study` takes a user's own sources: `source = "made"`."""
    return {"made": lambda: Source(lambda: records)}


def cohort_of(records: Records) -> Cohort:
    return Cohort(records, np.arange(len(records)), fingerprints(records), ())


def a_study(**changes: Any) -> dict[str, Any]:
    """Of `source_of`, small and quick; a table that is given replaces or extends the one here."""
    raw: dict[str, Any] = {
        "name": "findings",
        "data": {"source": "made"},
        "sites": {"partition": "by-hospital"},
        "model": {"kind": "logistic"},
        "training": {"rounds": 3, "local_epochs": 2, "batch_size": 16, "lr": 0.1},
        "evaluation": {"seeds": {"count": 1}, "validation_share": 0.2},
        "arms": [{"algorithm": "fedavg"}],
    }
    return {**raw, **{key: {**raw.get(key, {}), **value} if key != "arms" else value for key, value in changes.items()}}


def finding_sites(
    sizes: Sequence[int] = (5, 23, 8, 14), inputs: tuple[int, ...] = (4,), findings: int = 3, seed: int = 0
) -> tuple[Site, ...]:
    """Ragged sites in float64 whose labels are 1, 0 and unknown; some rows have no label at all."""
    rng = np.random.default_rng(seed)
    rule = rng.normal(size=(int(np.prod(inputs)), findings))
    sites = []
    for number, size in enumerate(sizes):
        x = rng.normal(rng.normal(scale=0.5), 1, size=(size, len(rule)))
        y = (x @ rule + rng.normal(size=(size, findings)) > 0).astype(np.int64)
        y[rng.random(y.shape) < 0.25] = UNKNOWN
        y[0] = UNKNOWN
        rows = Rows(torch.tensor(x).reshape(size, *inputs), torch.tensor(y))
        none = np.array([], dtype=np.int64)
        nothing = Rows(rows.x[:0], rows.y[:0])
        sites.append(Site(f"site-{number + 1}", rows, nothing, rows, none, np.arange(size)))
    return tuple(sites)
