"""Tiny studies of images, for reports: some with findings, some that form a grid. Seconds each."""

from typing import Any

import numpy as np
import pandas as pd

from wardround.data.records import Records, Source

FINDINGS = ("Edema", "Mass_left", "Few", "Rare")
SITES = ("north", "south")
ROWS = 240


def with_findings(synthetic: bool = True) -> Source:
    """Two hospitals, 20 test rows each. `Few` is in 3 test rows of the north, `Rare` in no test row at all."""
    rng = np.random.default_rng(3)
    hospital = np.repeat(np.array(SITES, dtype=object), ROWS // 2)
    side = np.tile(np.repeat(np.array(["train", "validation", "test"], dtype=object), [80, 20, 20]), 2)
    target = (rng.random((ROWS, 4)) < [0.5, 0.4, 0.2, 0.1]).astype(np.int64)
    target[side != "train", 2:] = 0
    target[np.flatnonzero((side == "test") & (hospital == "north"))[:3], 2] = 1
    images = rng.integers(0, 120, size=(ROWS, 1, 8, 8))
    for finding in range(4):  # each brightens its own rows of the image
        images[:, :, 2 * finding : 2 * finding + 2] += (90 * target[:, finding])[:, None, None, None]
    groups = pd.DataFrame(
        {
            "sex": np.tile(["female", "male"], ROWS // 2),
            "age": np.tile([40.0, 50.0, 60.0, 70.0], ROWS // 4),
            "view": np.tile(["AP", "AP", "PA", "PA"], ROWS // 4),
        }
    )
    records = Records(
        images.astype(np.uint8), target, FINDINGS, hospital, groups=groups, synthetic=synthetic, split=side
    )
    return Source(lambda: records)


def with_classes() -> Source:
    """One hospital of 300 images of three classes, to be dealt to sites."""
    rng = np.random.default_rng(4)
    target = np.arange(300) % 3
    images = (rng.integers(0, 150, size=(300, 1, 8, 8)) + 50 * target[:, None, None, None]).astype(np.uint8)
    records = Records(images, target, ("coat", "boot", "bag"), np.full(300, "shop", dtype=object))
    return Source(lambda: records)


SOURCES: dict[str, Any] = {"findings": with_findings, "classes": with_classes}


def findings_study(**changed: Any) -> dict[str, Any]:
    study: dict[str, Any] = {
        "name": "chests",
        "question": "Does <it> see & tell?",
        "data": {"source": "findings", "scale": "image"},
        "model": {"kind": "mlp", "hidden": [8]},
        "training": {"rounds": 3, "lr": 0.1},
        "evaluation": {
            "seeds": {"count": 1},
            "split": "given",
            "reference": "fedavg",
            "on_training": True,
            "samples": 3,
        },
        "arms": [{"algorithm": "fedavg"}, {"algorithm": "fedprox", "mu": [0.0, 1.0]}, {"algorithm": "local"}],
    }
    return study | changed


def grid_study(**changed: Any) -> dict[str, Any]:
    study: dict[str, Any] = {
        "name": "grid",
        "data": {"source": "classes", "scale": "image"},
        "sites": {"partition": "dirichlet", "count": 3, "alpha": 1.0},
        "model": {"kind": "mlp", "hidden": [4]},
        "training": {"rounds": 2, "lr": 0.1},
        "evaluation": {
            "metric": "accuracy",
            "seeds": {"count": 1},
            "validation_share": 0.1,
            "on_training": True,
            "accept": ["one-class"],
        },
        "arms": [
            {"algorithm": "fedprox", "mu": [1.0, 0.0], "sites.alpha": [10.0, 0.5]},
            {"algorithm": "scaffold", "sites.alpha": [10.0, 0.5]},
        ],
    }
    return study | changed
