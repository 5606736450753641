"""Published figures beside ours: each kind of claim, and each verdict, worked out by hand."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import wardround
from tests.evaluation.synthetic_predictions import with_accuracy
from wardround.evaluation.claims.claim_metrics import MEASURES
from wardround.evaluation.claims.verdicts import FORMULAS, OUTCOMES, by_group, count_outcomes, judge, possible
from wardround.evaluation.scores import Scores
from wardround.study.claims import QUANTITIES, TAKES, Formula
from wardround.study.schema import Study
from wardround.tasks import METRIC_FACTS, TASKS

ROWS = 20
HITS = {"fedavg": [15, 16, 17], "fedprox": [16, 18, 17], "local": [12, 13, 14]}  # right of 20 rows, with seeds 1 to 3
PAIRS = [
    {"js": 0.01, "kl": 0.05, "mmd": None},
    {"js": 0.03, "kl": 0.15, "mmd": 0.2},
    {"js": 0.02, "kl": 0.1, "mmd": 0.1},
]
COUNTS = {
    "va": {"train": 60, "validation": 5, "test": 15, "classes": {"no": 20, "yes": 60}, "age": {"mean": 59.5}},
    "cleveland": {"train": 80, "validation": 0, "test": 20, "classes": {"no": 54, "yes": 46}, "age": {"mean": 54.0}},
}
SITES = {
    "rows": 293,
    "heterogeneity": {"gini": 0.137, "js": 0.02, "kl": 0.1, "mmd": None, "pairs": PAIRS},
    "sites": COUNTS,
}
CONVERGENCE = {"fedavg": (4.0, 0.08), "fedprox": (3.0, 0.06), "local": (2.0, None)}  # rounds, weight change
SECONDS = {
    "fedavg": (42.0, "serial"),
    "fedprox": (45.0, "serial"),
    "local": (1.0, "stacked"),
    "scaffold": (9.0, "serial"),
}
BUSY = 1.3  # times as long as its fastest seed half of the seeds of an arm took
FINALS: dict[str, dict[str, float | None]] = {
    "fedavg": {"training_accuracy": 0.75, "training_loss": 0.5, "validation_loss": None},
    "fedprox": {"training_accuracy": 0.5, "training_loss": 0.75, "validation_loss": 0.5},
}
COSTS = {"fedavg": 5600.0, "fedprox": 5760.0, "local": 0.0}

FINAL = tuple(dict.fromkeys(name for task in TASKS.values() for name in task.after_training()))


def study(claims: list[dict[str, Any]], **changes: Any) -> Study:
    raw = {
        "name": "claims",
        "data": {"source": "heart"},
        "evaluation": {"seeds": {"first": 1, "count": 3}},
        "arms": [{"algorithm": name} for name in HITS],
        "claims": [{"text": "It is so", "source": "A paper", **claim} for claim in claims],
        **changes,
    }
    return wardround.load_study(raw)[0]


def predictions(hits: Mapping[str, list[int]]) -> pd.DataFrame:
    right = {(arm, seed, "va"): (n, ROWS) for arm, line in hits.items() for seed, n in enumerate(line, 1)}
    return with_accuracy(right)


def _cost(arm: str) -> dict[str, Any]:
    seconds, engine = SECONDS.get(arm, (1.0, None))
    of_seeds = {"fastest": seconds, "median": seconds * (BUSY if arm == "scaffold" else 1.05)}
    return {"bytes": COSTS.get(arm, 1.0), "seconds": 2 * seconds, "seed_seconds": of_seeds, "engine": engine}


def _convergence(arm: str) -> dict[str, Any]:
    rounds, change = CONVERGENCE.get(arm, (1.0, None))
    return {"rounds_to_95_percent": {"mean": rounds, "sd": None}, "mean_change": change}


def judged(
    claim: dict[str, Any], hits: Mapping[str, list[int]] = HITS, table: pd.DataFrame | None = None, **changes: Any
) -> dict[str, Any]:
    parsed_study = study([claim], **changes)
    scores = Scores.of(predictions(hits) if table is None else table)
    arms = {
        arm: {
            "cost": _cost(arm.split("@")[0]),
            "convergence": _convergence(arm.split("@")[0]),
            "family": re.split(r"[\[@]", arm)[0],
            "variant": arm.partition("@")[2],
            "final": FINALS.get(arm.split("@")[0], {}),
        }
        for arm in scores.arms
    }
    return judge(parsed_study.claims[0], parsed_study, scores, arms, [{"arms": list(scores.arms), **SITES}])


def test_a_figure_is_the_mean_over_seeds_with_its_corrected_interval() -> None:
    judgement = judged({"published": 0.81, "tolerance": 0.02, "arms": ["fedavg"]})
    values = np.array(HITS["fedavg"]) / ROWS
    assert judgement["ours"] == pytest.approx(0.8)
    half = stats.t.ppf(0.975, 2) * np.sqrt((1 / 3 + 0.25) * values.var(ddof=1))
    assert judgement["interval"] == pytest.approx([0.8 - half, 0.8 + half])
    assert judgement["each"] == {"fedavg": pytest.approx(0.8)}
    assert judgement["verdict"] == "reproduced: 80.00 %, published 81.00 %"
    assert {key: judgement[key] for key in ("text", "source", "metric", "arms")} == {
        "text": "It is so",
        "source": "A paper",
        "metric": "accuracy",
        "arms": ["fedavg"],
    }


def test_a_difference_is_taken_seed_by_seed_and_averaged_over_pairs() -> None:
    claim = {"published": 0.05, "tolerance": 0.01, "arms": ["fedprox", "fedavg"], "against": ["fedavg", "local"]}
    judgement = judged(claim)
    first = (np.array(HITS["fedprox"]) - np.array(HITS["fedavg"])) / ROWS  # 0.05, 0.10, 0.00
    second = (np.array(HITS["fedavg"]) - np.array(HITS["local"])) / ROWS  # 0.15 with every seed
    assert judgement["ours"] == pytest.approx((first.mean() + second.mean()) / 2)
    assert judgement["each"] == {"fedprox": pytest.approx(0.05), "fedavg": pytest.approx(0.15)}
    mean = (first + second) / 2
    half = stats.t.ppf(0.975, 2) * np.sqrt((1 / 3 + 0.25) * mean.var(ddof=1))
    assert judgement["interval"] == pytest.approx([mean.mean() - half, mean.mean() + half])
    assert judgement["verdict"] == "not reproduced: +10.00 points, published +5.00 points (off by +5.00 points)"


@pytest.mark.parametrize(
    ("published", "tolerance", "verdict"),
    [
        # three seeds with 16 of 32 rows right: exactly one half, and all numbers here are exact in binary
        (0.5, 0.0, "reproduced"),
        (0.75, 0.25, "reproduced"),
        (0.25, 0.25, "reproduced"),
        (0.75, 0.125, "not reproduced"),
        (0.25, 0.125, "not reproduced"),
        (0.5000001, 0.0, "not reproduced"),
    ],
)
def test_the_tolerance_is_a_limit_that_still_counts(published: float, tolerance: float, verdict: str) -> None:
    table = with_accuracy({("fedavg", seed, "va"): (16, 32) for seed in (1, 2, 3)})
    judgement = judged({"published": published, "tolerance": tolerance, "arms": ["fedavg"]}, table=table)
    assert judgement["ours"] == 0.5
    assert judgement["verdict"].startswith(f"{verdict}: ")


def test_a_figure_that_is_off_by_exactly_the_tolerance_is_reproduced_in_decimals_too() -> None:
    table = with_accuracy({("fedavg", seed, "va"): (86, 100) for seed in (1, 2, 3)})
    judgement = judged({"published": 0.85, "tolerance": 0.01, "arms": ["fedavg"]}, table=table)
    assert judgement["verdict"].startswith("reproduced: ")


@pytest.mark.parametrize(
    ("metric", "published", "tolerance", "ours", "verdict"),
    [
        ("rows", 293.0, 0.0, 293.0, "reproduced: 293, published 293"),
        ("rows", 303.0, 0.0, 293.0, "not reproduced: 293, published 303 (off by -10)"),
        ("gini", 0.235, 0.01, 0.137, "not reproduced: 0.137, published 0.235 (off by -0.098)"),
        ("js", 0.02, 0.001, 0.02, "reproduced: 0.020, published 0.020"),
        ("mmd", 0.3, 0.1, None, "cannot be computed"),
    ],
)
def test_what_is_said_of_the_sites_is_their_description(
    metric: str, published: float, tolerance: float, ours: float | None, verdict: str
) -> None:
    judgement = judged({"metric": metric, "published": published, "tolerance": tolerance})
    assert (judgement["ours"], judgement["interval"], judgement["verdict"]) == (ours, None, verdict)
    assert judgement["variants"] == {}


def test_bytes_are_the_mean_cost_of_the_arms() -> None:
    judgement = judged({"metric": "bytes", "published": 12_500_000, "tolerance": 1, "arms": ["fedavg", "fedprox"]})
    assert judgement["ours"] == (5600 + 5760) / 2
    assert judgement["verdict"] == "not reproduced: 5.7 KB, published 12,500.0 KB (off by -12,494.3 KB)"


def test_bytes_are_compared_where_a_claim_says_so() -> None:
    judgement = judged({"metric": "bytes", "published": 160, "arms": ["fedprox"], "against": ["fedavg"]})
    assert judgement["ours"] == 160


@pytest.mark.parametrize(
    ("claim", "ours", "each", "verdict"),
    [
        ({"metric": "training_accuracy", "arms": ["fedavg"], "published": 0.75}, 0.75, {"fedavg": 0.75}, "reproduced"),
        (
            {"metric": "training_loss", "arms": ["fedavg", "fedprox"], "published": 0.5},
            0.625,
            {"fedavg": 0.5, "fedprox": 0.75},
            "not reproduced: 0.625, published 0.500 (off by +0.125)",
        ),
        (
            {"metric": "training_accuracy", "arms": ["fedavg"], "against": ["fedprox"], "published": 0.2},
            0.25,
            {"fedavg": 0.75, "fedprox": 0.5},
            "not reproduced: +25.00 points, published +20.00 points (off by +5.00 points)",
        ),
        # not asked for by the study, or null because the arm diverged
        ({"metric": "validation_accuracy", "arms": ["fedavg"], "published": 0.7}, None, {"fedavg": None}, "cannot be"),
        (
            {"metric": "validation_loss", "arms": ["fedprox"], "against": ["fedavg"], "published": 0.7},
            None,
            {"fedprox": 0.5, "fedavg": None},
            "cannot be computed",
        ),
    ],
)
def test_figures_after_the_last_round_are_on_rows_that_are_not_test_rows(
    claim: dict[str, Any], ours: float | None, each: dict[str, float | None], verdict: str
) -> None:
    judgement = judged(claim)
    assert judgement["ours"] == (None if ours is None else pytest.approx(ours))
    assert judgement["each"] == each
    assert judgement["interval"] is None
    assert judgement["verdict"].startswith(verdict)
    assert judgement["variants"] == {"": judgement["ours"]}


def test_a_claim_without_a_verdict_sets_both_side_by_side_and_says_why() -> None:
    judgement = judged({"published": 0.95, "tolerance": 0.01, "arms": ["fedavg"], "no_verdict": "other data"})
    assert judgement["verdict"] == "no verdict: 80.00 %, published 95.00 %; other data"
    near = judged({"published": 0.8, "tolerance": 0.01, "arms": ["fedavg"], "no_verdict": "other data"})
    assert near["verdict"] == "no verdict: 80.00 %, published 80.00 %; other data"  # nor is agreement a reproduction
    nothing = judged({"published": 0.8, "metric": "validation_loss", "arms": ["fedavg"], "no_verdict": "other data"})
    assert nothing["verdict"] == "cannot be computed"
    wrong = judged({"stated": {"table": 0.8, "text": 0.9}, "arms": ["fedavg"], "no_verdict": "other data"})
    assert wrong["verdict"].startswith("contradicted by its source")


def test_t_is_that_of_two_independent_samples() -> None:
    claim = {"metric": "t", "published": 2.84, "tolerance": 0.5, "arms": ["fedprox"], "against": ["local"]}
    judgement = judged(claim)
    a, b = np.array(HITS["fedprox"]) / ROWS, np.array(HITS["local"]) / ROWS
    assert judgement["ours"] == pytest.approx(stats.ttest_ind(a, b).statistic)
    assert judgement["verdict"].startswith("not reproduced: 4.899")  # 4 rows apart, SD of 1 row each: 4 / sqrt(2/3)
    same = judged(claim, {"fedavg": [1, 1, 1], "fedprox": [15, 15, 15], "local": [15, 15, 15]})
    assert (same["ours"], same["verdict"]) == (None, "cannot be computed")  # no spread, no t


def test_figures_of_one_thing_that_differ_contradict_one_another() -> None:
    stated = {"abstract": 0.7845, "its table": 0.9165}
    judgement = judged({"published": 0.7845, "tolerance": 1.0, "arms": ["fedavg"], "stated": stated})
    assert judgement["verdict"] == "contradicted by its source: 78.45 % (abstract), 91.65 % (its table); ours 80.00 %"
    agreeing = {"abstract": 0.8, "its table": 0.8000000001}
    judgement = judged({"published": 0.8, "tolerance": 0.01, "arms": ["fedavg"], "stated": agreeing})
    assert judgement["verdict"] == "reproduced: 80.00 %, published 80.00 %"


def test_a_contradiction_needs_no_figure_of_ours() -> None:
    judgement = judged({"metric": "accuracy", "stated": {"here": 0.5, "there": 0.6}})
    assert judgement["verdict"] == "contradicted by its source: 50.00 % (here), 60.00 % (there)"
    assert judged({"metric": "accuracy", "stated": {"here": 0.5}})["verdict"] == "cannot be computed"


@pytest.mark.parametrize(
    ("formula", "given", "published", "recomputed", "contradicted"),
    [
        ("sum", [[95, 83, 44, 71]], 293.0, [293.0], False),
        ("sum", [[95, 83, 44, 71]], 303.0, [293.0], True),
        ("mean", [[0.8, 0.9]], 0.85, [0.85], False),
        ("mean", [[0.8, 0.9]], 0.8451, [0.85], False),  # 0.85 rounds off by less than 0.6 %
        ("mean", [[0.8, 0.9]], 0.84, [0.85], True),
        # one of two readings of the source gives its figure, so that it does not contradict itself
        ("sum", [[95, 83, 44, 71], [242, 205, 98, 160]], 705.0, [293.0, 705.0], False),
        ("sum", [[95, 83, 44, 71], [242, 205, 98, 160]], 500.0, [293.0, 705.0], True),
    ],
)
def test_a_figure_must_follow_from_those_that_it_is_made_of(
    formula: str, given: list[list[float]], published: float, recomputed: list[float], contradicted: bool
) -> None:
    claim = {"metric": "rows", "published": published, "tolerance": 1000, "formula": formula, "given": given}
    judgement = judged(claim)
    assert judgement["recomputed"] == pytest.approx(recomputed)
    assert judgement["verdict"].startswith("contradicted by its source: it prints " if contradicted else "reproduced: ")
    assert not contradicted or judgement["verdict"].endswith("; ours 293")


def test_the_gini_coefficient_of_a_paper_is_recomputed_from_its_sizes() -> None:
    """Half the mean difference of two sites drawn with replacement, over the mean: worked out pair by pair."""
    sizes = [95, 83, 44, 71]
    by_hand = sum(abs(a - b) for a in sizes for b in sizes) / 16 / 2 / (sum(sizes) / 4)
    claim = {"metric": "gini", "published": 0.235, "formula": "gini", "given": [sizes]}
    judgement = judged(claim)
    assert judgement["recomputed"] == [pytest.approx(by_hand)]
    assert judgement["verdict"] == (
        f"contradicted by its source: it prints 0.235, its own figures give {by_hand:.3f}; ours 0.137"
    )


def test_both_kinds_of_contradiction_are_named() -> None:
    claim = {"metric": "rows", "published": 303, "stated": {"text": 303, "table": 705}, "formula": "sum"}
    judgement = judged({**claim, "given": [[95, 83, 44, 71]]})
    assert judgement["verdict"] == (
        "contradicted by its source: 303 (text), 705 (table); it prints 303, its own figures give 293; ours 293"
    )


def test_an_arm_that_diverged_has_no_verdict_and_one_seed_less_is_told_by_the_rest() -> None:
    table = predictions(HITS)
    lost = table.assign(score=table["score"].mask(table["arm"] == "fedavg"))
    judgement = judged({"published": 0.8, "arms": ["fedavg"]}, table=lost)
    assert (judgement["ours"], judgement["interval"], judgement["verdict"]) == (None, None, "cannot be computed")
    assert judgement["each"] == {"fedavg": None}
    fewer_seeds = table.assign(score=table["score"].mask((table["arm"] == "fedavg") & (table["seed"] == 3)))
    assert judged({"published": 0.8, "arms": ["fedavg"]}, table=fewer_seeds)["ours"] == pytest.approx(
        (15 + 16) / 2 / ROWS
    )


def test_an_arm_without_predictions_cannot_be_judged() -> None:
    judgement = judged({"published": 0.8, "arms": ["local"]}, {"fedavg": [15, 16, 17]})
    assert (judgement["ours"], judgement["verdict"]) == (None, "cannot be computed")


VARIANTS = [{"name": "fixed", "evaluation.vary": ["batches"]}, {"name": "few", "arms": ["fedavg"]}]


def test_the_same_figure_stands_beside_it_in_every_variant_that_has_these_arms() -> None:
    hits = {**HITS, "fedavg@fixed": [19, 20, 18], "fedprox@fixed": [18, 18, 18], "local@fixed": [1, 2, 3]}
    hits |= {"fedavg@few": [10, 10, 13]}
    figure = judged({"published": 0.95, "tolerance": 0.01, "arms": ["fedavg@fixed"]}, hits, variants=VARIANTS)
    assert figure["ours"] == pytest.approx(0.95)
    assert figure["variants"] == {"": pytest.approx(0.8), "fixed": pytest.approx(0.95), "few": pytest.approx(0.55)}
    claim = {"published": 0.0, "arms": ["fedprox"], "against": ["fedavg"]}
    difference = judged(claim, hits, variants=VARIANTS)
    assert difference["variants"] == {"": pytest.approx(0.05), "fixed": pytest.approx(-0.05)}  # no fedprox in `few`


def test_the_interval_is_that_of_the_claims_own_variant() -> None:
    """With a fixed split the corrected t would be wrong: seeds then differ in training only."""
    hits = {**HITS, **{f"{arm}@fixed": line for arm, line in HITS.items()}, "fedavg@few": [1, 2, 3]}
    values = np.array(HITS["fedavg"]) / ROWS
    for arm, extra in (("fedavg", 0.25), ("fedavg@fixed", 0.0)):
        judgement = judged({"published": 0.8, "arms": [arm]}, hits, variants=VARIANTS)
        half = stats.t.ppf(0.975, 2) * np.sqrt((1 / 3 + extra) * values.var(ddof=1))
        assert judgement["interval"] == pytest.approx([0.8 - half, 0.8 + half])


SWEPT: dict[str, Any] = {
    "arms": [{"algorithm": "fedavg"}, {"algorithm": "fedprox", "mu": [0.1, 1.0]}],
    "evaluation": {"seeds": {"first": 1, "count": 3}, "validation_share": 0.1},
    "selection": {"arms": ["fedprox"]},
}


def test_a_claim_may_be_about_the_selected_value() -> None:
    hits = {"fedavg": [15, 16, 17], "fedprox[selected]": [17, 18, 19]}
    judgement = judged({"published": 0.9, "arms": ["fedprox[selected]"], "against": ["fedavg"]}, hits, **SWEPT)
    assert judgement["ours"] == pytest.approx(0.1)


def test_the_interval_of_a_selected_arm_is_that_of_its_variant() -> None:
    hits = {"fedavg": [15, 16, 17], "fedprox[selected]@fixed": [17, 18, 19]}
    claim = {"published": 0.9, "arms": ["fedprox[selected]@fixed"]}
    judgement = judged(claim, hits, variants=[{"name": "fixed", "evaluation.vary": ["batches"]}], **SWEPT)
    values = np.array([17, 18, 19]) / ROWS
    half = stats.t.ppf(0.975, 2) * np.sqrt(values.var(ddof=1) / 3)
    assert judgement["interval"] == pytest.approx([0.9 - half, 0.9 + half])


def test_a_run_judges_its_claims_by_its_own_results(tmp_path_factory: pytest.TempPathFactory) -> None:
    raw = {
        "name": "claims",
        "data": {"source": "heart", "hospitals": ["cleveland", "hungarian"]},
        "training": {"rounds": 2},
        "evaluation": {"seeds": {"first": 1, "count": 2}},
        "arms": [{"algorithm": "fedavg"}, {"algorithm": "local"}],
        "variants": [{"name": "slow", "training.lr": 0.01}],
        "claims": [
            {"text": "a", "source": "b", "published": 0.5, "arms": ["fedavg"], "against": ["local"]},
            {"text": "a", "source": "b", "published": 1, "metric": "rows"},
            {"text": "a", "source": "b", "published": 1, "metric": "gini"},
            {"text": "a", "source": "b", "published": 1, "metric": "bytes", "arms": ["fedavg@slow"]},
        ],
    }
    content = wardround.run_study(raw, tmp_path_factory.mktemp("runs")).results
    difference, rows, gini, sent = content["claims"]
    mean = {arm: content["arms"][arm]["metrics"]["accuracy"]["mean"] for arm in content["arms"]}
    assert difference["ours"] == pytest.approx(mean["fedavg"] - mean["local"])
    assert difference["variants"]["slow"] == pytest.approx(mean["fedavg@slow"] - mean["local@slow"])
    assert rows["ours"] == 303 + 294  # as UCI gives them
    assert gini["ours"] == pytest.approx((303 - 294) / 2 / (303 + 294))  # two sites: half the difference of the shares
    assert sent["ours"] == content["arms"]["fedavg@slow"]["cost"]["bytes"] > 0


# What a claim may be about besides a mean of a metric

TWO_SITES = {  # right of 20 rows, with seeds 1 to 3
    ("fedavg", "va"): [10, 12, 14],
    ("fedavg", "cleveland"): [16, 16, 16],
    ("fedprox", "va"): [14, 15, 16],
    ("fedprox", "cleveland"): [16, 17, 18],
}


def at_two_sites(claim: dict[str, Any]) -> dict[str, Any]:
    right = {(arm, seed, site): (n, ROWS) for (arm, site), line in TWO_SITES.items() for seed, n in enumerate(line, 1)}
    return judged(claim, table=with_accuracy(right))


def test_a_claim_can_be_about_one_site() -> None:
    judgement = at_two_sites({"published": 0.6, "tolerance": 0.01, "arms": ["fedavg"], "site": "va"})
    assert judgement["ours"] == pytest.approx(0.6)
    values = np.array([10, 12, 14]) / ROWS
    half = stats.t.ppf(0.975, 2) * np.sqrt((1 / 3 + 0.25) * values.var(ddof=1))
    assert judgement["interval"] == pytest.approx([0.6 - half, 0.6 + half])
    assert (judgement["site"], judgement["verdict"]) == ("va", "reproduced: 60.00 %, published 60.00 %")
    gain = at_two_sites({"published": 0.15, "arms": ["fedprox"], "against": ["fedavg"], "site": "va"})
    assert gain["ours"] == pytest.approx(0.15)
    unknown = at_two_sites({"published": 0.6, "arms": ["fedavg"], "site": "vaa"})
    assert unknown["verdict"] == "cannot be computed: no site is called vaa"


def test_a_claim_can_be_about_the_sd_over_seeds() -> None:
    judgement = judged({"published": 0.05, "tolerance": 0.001, "arms": ["fedavg"], "statistic": "sd"})
    assert judgement["ours"] == pytest.approx(np.std([0.75, 0.8, 0.85], ddof=1))
    assert judgement["interval"] is None
    assert judgement["verdict"] == "reproduced: 5.00 points, published 5.00 points"
    two = judged({"published": 0.0, "arms": ["fedprox"], "against": ["fedavg"], "statistic": "sd"})
    assert two["ours"] == pytest.approx(np.std([0.8, 0.9, 0.85], ddof=1) - 0.05)
    single_seed = judged({"published": 0.05, "arms": ["fedavg"], "statistic": "sd"}, {"fedavg": [15]})
    assert (single_seed["ours"], single_seed["outcome"]) == (None, "cannot be computed")


@pytest.mark.parametrize(
    ("statistic", "ours"),
    [("spread", np.std([0.6, 0.8], ddof=1)), ("lowest", 0.6), ("highest", 0.8), ("range", 0.2)],
)
def test_a_claim_can_be_about_the_sites_of_an_arm(statistic: str, ours: float) -> None:
    judgement = at_two_sites({"published": 0.1, "arms": ["fedavg"], "statistic": statistic})
    assert judgement["ours"] == pytest.approx(ours)


def test_a_claim_can_compare_by_ratio_and_by_relative_change() -> None:
    claim = {"arms": ["fedprox"], "against": ["fedavg"], "statistic": "spread", "published": -0.56, "tolerance": 0.05}
    before, after = np.std([0.6, 0.8], ddof=1), np.std([0.75, 0.85], ddof=1)
    change = at_two_sites({**claim, "compare": "change"})
    assert change["ours"] == pytest.approx(after / before - 1)
    assert change["verdict"] == "not reproduced: -50.0 %, published -56.0 % (off by +6.00 points)"
    assert at_two_sites({**claim, "compare": "ratio"})["ours"] == pytest.approx(after / before)
    assert change["each"] == {"fedprox": pytest.approx(after), "fedavg": pytest.approx(before)}
    nothing = judged({"metric": "bytes", "arms": ["fedavg"], "against": ["local"], "published": 1, "compare": "ratio"})
    assert nothing["verdict"] == "cannot be computed: it would be a ratio to nothing"


def test_rounds_and_weight_change_are_those_of_the_arms() -> None:
    rounds = judged({"metric": "rounds", "arms": ["fedavg"], "published": 22, "tolerance": 2})
    assert rounds["verdict"] == "not reproduced: 4.0 rounds, published 22.0 rounds (off by -18)"
    less = {"metric": "weight_change", "arms": ["fedprox"], "against": ["fedavg"], "compare": "change"}
    judgement = judged({**less, "published": -0.35, "tolerance": 0.05})
    assert judgement["ours"] == pytest.approx(-0.25)
    assert judgement["verdict"] == "not reproduced: -25.0 %, published -35.0 % (off by +10.00 points)"
    none = judged({"metric": "weight_change", "arms": ["local"], "published": 1})
    assert none["verdict"] == "cannot be computed"  # its sites have models of their own


def test_seconds_count_only_where_an_arm_was_timed_by_itself() -> None:
    claim = {"metric": "seconds", "arms": ["fedprox"], "against": ["fedavg"], "compare": "ratio", "published": 1.071}
    judgement = judged({**claim, "tolerance": 0.05, "formula": "ratio", "given": [[45, 42]]})
    assert judgement["ours"] == pytest.approx(45 / 42)
    assert judgement["verdict"] == "reproduced: 1.071, published 1.071"
    shared = judged({**claim, "against": ["local"]})
    assert shared["ours"] is None
    assert shared["verdict"].startswith("cannot be computed: the time of one arm is not known")
    assert "--engine serial" in shared["verdict"]


def test_seconds_of_a_busy_machine_are_no_figure() -> None:
    claim = {"metric": "seconds", "arms": ["scaffold"], "published": 9.0, "tolerance": 1.0}
    judgement = judged(claim, {"scaffold": [15, 16, 17]}, arms=[{"algorithm": "scaffold"}])
    assert judgement["verdict"] == (
        "cannot be computed: the machine was busy with other work: half of the seeds took 30 % longer than the "
        "fastest, or more"
    )


@pytest.mark.parametrize(
    ("claim", "ours"),
    [
        ({"metric": "rows", "site": "va"}, 80.0),
        ({"metric": "age", "site": "cleveland"}, 54.0),
        ({"metric": "age"}, 56.75),
        ({"metric": "age", "statistic": "range"}, 5.5),
        ({"metric": "prevalence", "site": "va"}, 0.75),
        ({"metric": "prevalence", "statistic": "lowest"}, 0.46),
        ({"metric": "prevalence", "statistic": "highest"}, 0.75),
        ({"metric": "js", "statistic": "lowest"}, 0.01),
        ({"metric": "js", "statistic": "highest"}, 0.03),
        ({"metric": "js"}, 0.02),
        ({"metric": "mmd", "statistic": "highest"}, None),  # of one pair it is not known
        ({"metric": "age", "site": "nowhere"}, None),
    ],
)
def test_a_claim_can_be_about_sites_and_pairs_of_them(claim: dict[str, Any], ours: float | None) -> None:
    judgement = judged({"published": 1, **claim})
    assert judgement["ours"] == (None if ours is None else pytest.approx(ours))


def test_p_value_and_limits_are_those_of_two_independent_samples() -> None:
    a, b = np.array(HITS["fedprox"]) / ROWS, np.array(HITS["local"]) / ROWS
    test = stats.ttest_ind(a, b)
    limits = test.confidence_interval(0.95)
    for metric, ours in (("p_value", test.pvalue), ("interval_low", limits.low), ("interval_high", limits.high)):
        judgement = judged({"metric": metric, "published": 0.5, "arms": ["fedprox"], "against": ["local"]})
        assert judgement["ours"] == pytest.approx(ours), metric
    low = judged({"metric": "interval_low", "published": 0.01, "arms": ["fedprox"], "against": ["local"]})
    assert low["verdict"] == "not reproduced: +8.67 points, published +1.00 points (off by +7.67 points)"


def test_every_quantity_has_its_measure_and_stands_in_the_reference() -> None:
    assert set(MEASURES) == {*METRIC_FACTS, *FINAL, *QUANTITIES}
    assert set(FORMULAS) == set(get_args(Formula)) >= set(TAKES)
    page = (Path(__file__).parents[2] / "docs" / "reference" / "study-file.md").read_text(encoding="utf-8")
    section = page[page.index("## `[[claims]]`") : page.index("## `[quick]`")]
    statistics = {statistic for quantity in QUANTITIES.values() for statistic in quantity.statistics} | {"sd", "spread"}
    for word in (*QUANTITIES, *FINAL, *FORMULAS, *statistics, "difference", "ratio", "change"):
        assert f'`"{word}"`' in section, word


# Figures that are computed again from others of their source


def test_t_follows_from_means_and_sds_and_from_an_interval() -> None:
    samples = [85.00, 1.1, 50, 83.33, 1.2, 50]
    t, test = FORMULAS["t"].compute(samples), stats.ttest_ind_from_stats(85.00, 1.1, 50, 83.33, 1.2, 50)
    assert t == pytest.approx(test.statistic) == pytest.approx(7.254, abs=5e-4)
    error = np.sqrt(1.1**2 / 50 + 1.2**2 / 50)
    low, high = (85.00 - 83.33 + side * stats.t.ppf(0.975, 98) * error for side in (-1, 1))
    assert FORMULAS["interval_low"].compute(samples) == pytest.approx(low)
    assert FORMULAS["interval_high"].compute(samples) == pytest.approx(high)
    assert FORMULAS["t_from_interval"].compute([low, high, 50, 50]) == pytest.approx(t)  # there and back
    assert FORMULAS["p_from_t"].compute([t, 50, 50]) == pytest.approx(test.pvalue)


def test_each_list_can_have_a_formula_of_its_own_and_the_verdict_says_which() -> None:
    claim = {
        "metric": "t",
        "published": 2.84,
        "tolerance": 0.5,
        "arms": ["fedprox"],
        "against": ["local"],
        "formula": ["t", "t_from_interval"],
        "given": [[85.00, 1.1, 50, 83.33, 1.2, 50], [0.89, 2.45, 50, 50]],
    }
    judgement = judged(claim)
    assert judgement["recomputed"] == pytest.approx([7.254, 4.249], abs=5e-4)
    assert judgement["formula"] == ["t", "t_from_interval"]
    assert judgement["reason"] == (
        "it prints 2.840, its own figures give 7.254 (from its means and SDs) or 4.249 (from its interval)"
    )
    assert judgement["verdict"] == f"contradicted by its source: {judgement['reason']}; ours 4.899"


def test_a_figure_that_rounding_of_the_others_explains_is_not_contradicted() -> None:
    """Four figures to one place: their SD is 1.37, and 1.42 if all were rounded towards each other."""
    given = [0.863, 0.847, 0.832, 0.858]
    claim = {"published": 0.0142, "arms": ["fedavg"], "statistic": "spread", "formula": "sd", "given": [given]}
    assert np.std(given, ddof=1) == pytest.approx(0.01374, abs=5e-6)
    assert at_two_sites(claim)["outcome"] == "contradicted by its source"
    low, high = possible("sd", given, 0.0005)
    assert low < 0.01374 < 0.0142 < high < 0.0143
    assert at_two_sites({**claim, "rounded": 0.0005})["outcome"] == "not reproduced"
    other = {**claim, "published": 0.0321, "given": [[0.825, 0.782, 0.748, 0.763]], "rounded": 0.0005}
    assert at_two_sites(other)["outcome"] == "contradicted by its source"  # from 3.29 to 3.39
    assert possible("t", [1, 1, 50, 0, 1, 50], 0.1)[1] == pytest.approx(
        1.2 / np.sqrt(2 * 0.9**2 / 50)
    )  # runs are counts


# Many claims


def test_claims_are_counted_by_outcome_and_put_together_by_group() -> None:
    claims = [
        judged({"published": 0.8, "tolerance": 0.01, "arms": ["fedavg"], "group": "one"}),
        judged({"published": 0.9, "arms": ["fedavg"], "group": "two"}),
        judged({"published": 0.9, "arms": ["fedprox"], "group": "one"}),
    ]
    assert list(count_outcomes(claims)) == list(OUTCOMES)
    assert [count for count in count_outcomes(claims).values() if count] == [1, 2]
    assert {name: len(members) for name, members in by_group(claims).items()} == {"one": 2, "two": 1}
    assert all(claim["verdict"].startswith(claim["outcome"]) for claim in claims)
