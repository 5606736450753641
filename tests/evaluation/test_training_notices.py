"""A learning rate that is too high or too low is noticed, by rules that the documentation states."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import wardround
from wardround.evaluation.scores import labels_and_scores, task_of
from wardround.evaluation.training_notices import perfect, training_notices

HEART: dict[str, Any] = {
    "name": "rates",
    "data": {"source": "heart", "hospitals": ["cleveland", "hungarian"]},
    "training": {"rounds": 20},
    "evaluation": {"seeds": {"count": 2}},
}


def records(*losses: float, arm: str = "fedavg", test_loss: float = 0.5) -> pd.DataFrame:
    rounds = range(1, len(losses) + 1)
    return pd.DataFrame({"arm": arm, "seed": 1, "round": rounds, "loss": losses, "test_loss": test_loss})


def predictions(*scores: float) -> pd.DataFrame:
    return pd.DataFrame({"arm": "fedavg", "seed": 1, "label": np.arange(len(scores)) % 2, "score": scores})


def test_learning_rates_that_are_right_too_high_and_too_low(tmp_path: Path) -> None:
    rates = {"right": 0.1, "high": 10.0, "wild": 1000.0, "tiny": 1e-9}
    arms = [{"algorithm": "fedavg", "name": name, "training.lr": rate} for name, rate in rates.items()]
    notices = wardround.run_study({**HEART, "arms": arms}, tmp_path).results["notices"]
    arm_notices = {(notice["arm"], notice["code"]): notice for notice in notices if notice.get("arm") in rates}
    assert set(arm_notices) == {("high", "saturated-scores"), ("wild", "saturated-scores"), ("tiny", "constant-scores")}
    assert not any("seeds" in notice for notice in arm_notices.values())  # with all of them
    assert arm_notices["wild", "saturated-scores"]["counts"]["share"] > 0.01


@pytest.mark.parametrize(
    ("losses", "code"),
    [
        ((0.7, 0.6, 0.5, 0.4, 0.4), None),
        ((0.7, 0.6, 0.5, 0.6, 0.74), "rising-loss"),
        ((0.7, 0.6, 0.5, 0.6, 0.73), "flat-loss"),  # 4 % above the first
        ((0.7, 0.7, 0.7, 0.7, 0.6995), "flat-loss"),
        ((0.7, 0.7, 0.7, 0.7, 0.699), None),
        ((0.7, 0.7, 0.7, 0.7), None),  # too few rounds to say
        ((np.nan,) * 6, None),  # nobody has paid for telling it, or training diverged
    ],
)
def test_what_losses_tell_where_there_are_no_predictions(losses: tuple[float, ...], code: str | None) -> None:
    assert [notice.code for notice in training_notices(records(*losses))] == ([code] if code else [])


def test_one_notice_for_an_arm_the_first_rule_that_applies() -> None:
    falling = (0.7, 0.6, 0.5, 0.4, 0.3)
    assert training_notices(records(*falling), predictions(0.2, 0.8, 0.3, 0.7)) == []
    (notice,) = training_notices(records(*falling), predictions(0.5, 0.5, 0.5, 0.5))
    assert notice.code == "constant-scores"
    (notice,) = training_notices(records(*falling, test_loss=0.8), predictions(0.9, 0.1, 0.9, 0.1))
    assert notice.code == "overfitted"  # trained below the entropy of one half, 0.69
    (notice,) = training_notices(records(1.6, 1.5, 1.4, 1.3, 1.2, test_loss=1.1), predictions(0.9, 0.1, 0.9, 0.1))
    assert notice.code == "unfinished-training"
    unknown = (np.nan,) * 5  # the training loss is not released
    (notice,) = training_notices(records(*unknown, test_loss=0.8), predictions(0.9, 0.1, 0.9, 0.1))
    assert notice.code == "unfinished-training"
    (notice,) = training_notices(records(*falling, test_loss=0.8), predictions(0.9999, 0.1, 0.9, 0.1))
    assert notice.code == "saturated-scores"
    assert training_notices(records(*falling, test_loss=9.0), predictions(np.nan, 0.1, 0.9, 0.1)) == []  # diverged


def test_what_is_too_good_to_be_true_is_noticed() -> None:
    apart, mixed = np.tile([0.1, 0.9], 20), np.tile([0.1, 0.9], 20)
    mixed[:4] = 0.95
    table = pd.concat([predictions(*apart), predictions(*apart).assign(seed=2)])
    task = task_of(table)
    assert [(notice.code, notice.arm) for notice in perfect(table, task)] == [("perfect-scores", "fedavg")]
    assert perfect(pd.concat([predictions(*apart), predictions(*mixed).assign(seed=2)]), task) == []
    assert perfect(predictions(*apart[:38]), task) == []  # 19 of either kind
    assert perfect(predictions(*np.full(40, np.nan)), task) == []


def constant_loss(table: pd.DataFrame) -> float:
    return task_of(table).against_constant(*labels_and_scores(table), 0.0)[1]


def test_the_loss_of_the_constant_answer() -> None:
    assert constant_loss(predictions(0.1, 0.2, 0.3, 0.4)) == pytest.approx(np.log(2))
    three = pd.DataFrame({"label": [0, 1, 2, 2], "score_a": 0.0, "score_b": 0.0, "score_c": 1.0})
    assert constant_loss(three) == pytest.approx(1.5 * np.log(2))
    findings = pd.DataFrame({"label_x": [0, 1, -1], "label_y": [0, 0, 0], "score_x": 0.5, "score_y": 0.5})
    assert constant_loss(findings) == pytest.approx(np.log(2) / 2)
