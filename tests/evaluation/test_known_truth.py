"""How often a report claims something where there is nothing, and whether it finds what there is."""

import numpy as np
import pytest
from scipy.stats import binom

from tests.evaluation.known_truth import World, claims_in, content_of
from wardround.evaluation.comparisons import compare

NOTHING = {
    "1 hospital": World(1, 10),
    "4 hospitals": World(4, 10),
    "20 hospitals": World(20, 10),
    "4 hospitals, three seeds": World(4, 3),
    "1 hospital, one seed": World(1, 1, fixed=True),
    "4 hospitals, one seed": World(4, 1, fixed=True),
    "20 hospitals, one seed": World(20, 1, fixed=True),
    "4 hospitals, a given split and five seeds": World(4, 5, fixed=True),
}
SOME = 2_000 // len(NOTHING)


@pytest.fixture(autouse=True)
def without_bootstrap(monkeypatch: pytest.MonkeyPatch) -> None:
    """No verdict follows from it, and it takes most of the time."""
    monkeypatch.setattr(compare, "_bca", lambda lines, statistic, unit: [None] * len(lines))


def most_claims(studies: int) -> int:
    """So many of them may claim something by chance if each does with 5 %; more happens once in a thousand times."""
    return int(binom.ppf(0.999, studies, 0.05))


def claiming(world: World, studies: int, seed: int = 0) -> int:
    rng = np.random.default_rng(seed)
    return sum(bool(claims_in(content_of(world, rng))) for _ in range(studies))


@pytest.mark.parametrize(
    ("world", "studies"),
    [pytest.param(World(4, 5), 20, marks=pytest.mark.slow), (World(4, 1, fixed=True), 8)],
    ids=["new splits", "one seed"],
)
def test_where_there_is_nothing_hardly_any_report_claims_something(world: World, studies: int) -> None:
    assert claiming(world, studies) <= most_claims(studies)


@pytest.mark.slow
@pytest.mark.parametrize("world", NOTHING.values(), ids=NOTHING)
def test_of_two_thousand_studies_of_nothing_at_most_five_per_cent_claim_anything(world: World) -> None:
    """Hospitals, arms and their mean are one family. 250 studies of each kind, 2,000 in all."""
    assert claiming(world, SOME) <= most_claims(SOME)


@pytest.mark.parametrize(
    "world",
    [
        pytest.param(World(4, 10, patients=400, effect=1.0), marks=pytest.mark.slow),
        World(4, 1, fixed=True, patients=600, effect=1.0),
    ],
    ids=["new splits", "one seed"],
)
def test_what_is_there_is_found(world: World) -> None:
    """Hospitals that train alone do not see the risk factor: an AUC of one half against about 0.78."""
    for seed in range(3):
        content = content_of(world, np.random.default_rng(seed))
        means = [e for e in content["site_differences"] if e["metric"] == "auc" and e["site"] is None]
        assert [(entry["arm"], entry["verdict"]) for entry in means] == [("fedavg", "gains"), ("fedprox", "gains")]
        assert all(entry["verdict"] == "gains" for entry in claims_in(content))
        assert "fedavg better by" in content["answer"][0]["text"]


@pytest.mark.slow
def test_uncorrected_twenty_hospitals_would_claim_something_often() -> None:
    """The test above can fail: without the correction a third of all reports would claim something."""
    rng = np.random.default_rng(0)
    often = 0
    for _ in range(20):
        shown = content_of(World(20, 5), rng)["benefit"]
        often += any(e["metric"] == "auc" and (e["uncorrected"] or {"p_value": 1})["p_value"] < 0.05 for e in shown)
    assert often >= 4


def test_the_same_difference_with_two_seeds_is_no_certainty() -> None:
    """On eleven test rows two seeds easily differ by the same two ranks; rounding must not make a verdict of it."""
    from wardround.evaluation.comparisons.differences import UNKNOWN, difference_of
    from wardround.evaluation.intervals import Resampling

    entry = difference_of(np.array([-2 / 11, -2 / 11 - 3e-16]), "auc", Resampling(0.25))
    assert entry["interval"] is None
    assert entry["verdict"] == UNKNOWN
