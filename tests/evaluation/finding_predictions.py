"""Made-up predictions of rows with several findings, and scikit-learn's figures of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import expit

import wardround
from wardround.runs.record_form import frame_of, table_of
from wardround.study.schema import Study
from wardround.tasks.class_metrics import METRICS
from wardround.training.round_record import RoundRecord

NAMES = ("mass", "fluid", "air")
SITES = ("north", "south")
NAN = float("nan")


def predictions(
    skill: Mapping[str, float],
    seeds: Sequence[int] = (1,),
    rows: int = 120,
    rows_per_patient: int = 2,
    unknown: float = 0.15,
    digits: int = 2,
    draw: int = 0,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """And what is known of the rows' patients. Rounded scores have ties; an arm with more skill separates better."""
    rng = np.random.default_rng(draw)
    truth = rng.normal(size=(rows, len(NAMES)))
    label = (truth + rng.normal(scale=0.7, size=truth.shape) > (1.0, 0.5, 0.0)).astype(np.int64)
    label[rng.random(label.shape) < unknown] = -1
    site = np.array(SITES)[(np.arange(rows) // rows_per_patient) % 2]
    parts = []
    for seed in seeds:
        for arm, clear in skill.items():
            score = np.round(expit(clear * truth - 1 + rng.normal(size=truth.shape)), digits)
            columns = {f"label_{name}": label[:, f] for f, name in enumerate(NAMES)}
            columns |= {f"score_{name}": score[:, f].astype(np.float32) for f, name in enumerate(NAMES)}
            where = {"arm": arm, "seed": seed, "site": site, "row": np.arange(rows)}
            parts.append(pd.DataFrame({**where, **columns}))
    groups = pd.DataFrame({"row": np.arange(rows), "patient": np.arange(rows) // rows_per_patient})
    return pd.concat(parts, ignore_index=True), groups


def a_study(arms: Sequence[str] = ("fedavg", "local"), seeds: int = 1, **evaluation: Any) -> Study:
    raw = {
        "name": "findings",
        "data": {"source": "phantom"},
        "model": {"kind": "logistic"},
        "evaluation": {"seeds": {"first": 1, "count": seeds}, "reference": arms[0], **evaluation},
        "arms": [{"algorithm": name} for name in arms],
    }
    return wardround.load_study(raw)[0]


def records_of(table: pd.DataFrame) -> pd.DataFrame:
    """One round of each arm and seed."""
    trials = table[["arm", "seed"]].drop_duplicates()
    return frame_of(
        table_of(record(str(arm), int(seed)) for arm, seed in zip(trials["arm"], trials["seed"], strict=True))
    )


def record(arm: str, seed: int) -> RoundRecord:
    return RoundRecord(
        arm, seed, 1, 0.5, update_norm=0.1, divergence=0.1, change=0.1, bytes_up=8, bytes_down=8, seconds=0.1
    )


def ratio(part: float, whole: float) -> float:
    return part / whole if whole else NAN


def by_scikit_learn(label: np.ndarray, score: np.ndarray, threshold: float = 0.5) -> dict[str, float]:
    """Figures of one finding over the rows in which it is known; NaN for those that need a positive and have none."""
    from sklearn import metrics as sk

    known = label >= 0
    label, score = label[known], score[known].astype(np.float64)
    if not len(label):
        return dict.fromkeys(METRICS, NAN)
    called = (score >= threshold).astype(int)
    (tn, fp), (fn, tp) = sk.confusion_matrix(label, called, labels=[0, 1])
    both = len(set(label)) == 2
    figures = {
        "accuracy": sk.accuracy_score(label, called),
        "auc": sk.roc_auc_score(label, score) if both else NAN,
        "pr_auc": sk.average_precision_score(label, score) if label.any() else NAN,
        "f1": ratio(2 * tp, 2 * tp + fp + fn) if label.any() else NAN,
        "sensitivity": ratio(tp, tp + fn),
        "specificity": ratio(tn, tn + fp),
        "ppv": ratio(tp, tp + fp) if label.any() else NAN,
        "npv": ratio(tn, tn + fn),
        "brier": float(((score - label) ** 2).mean()),
        "loss": sk.log_loss(label, np.clip(score, 1e-7, 1 - 1e-7), labels=[0, 1]),
    }
    return {name: float(value) for name, value in figures.items()}


def macro_by_scikit_learn(label: np.ndarray, score: np.ndarray, thresholds: Sequence[float]) -> dict[str, float]:
    """Means over the findings in which a figure is defined."""
    each = [by_scikit_learn(label[:, f], score[:, f], thresholds[f]) for f in range(label.shape[1])]
    table = pd.DataFrame(each)
    return {name: float(table[name].mean()) for name in METRICS}


def label_names(names: Sequence[str] = NAMES) -> list[str]:
    return [f"label_{name}" for name in names]


def score_names(names: Sequence[str] = NAMES) -> list[str]:
    return [f"score_{name}" for name in names]
