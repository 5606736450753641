"""Intervals of one seed: patients drawn again, a patient's rows together, the same draws for every arm."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from scipy.stats import norm, t

import wardround
from tests.evaluation.finding_predictions import NAMES, NAN, a_study, predictions, records_of
from tests.evaluation.synthetic_predictions import by_skill
from tests.figures_by_shape import metrics
from wardround.evaluation.comparisons import patients
from wardround.evaluation.comparisons.patients import METHOD, Resamples
from wardround.evaluation.results import results
from wardround.evaluation.scores import Scores
from wardround.study.schema import Study
from wardround.tasks import class_task
from wardround.tasks.class_metrics import METRICS, finding_metrics

CHECKED = 40  # resamples that are repeated row by row


def two_classes(rows: int = 60, draw: int = 0, **skill: float) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Two rows a patient, scores with ties."""
    table = by_skill(skill or {"a": 1.0}, seeds=(1,), patients=rows, tested=rows, rng_seed=draw)
    table["score"] = table["score"].round(1)
    return table, pd.DataFrame({"row": np.arange(rows), "patient": np.arange(rows) // 2})


def one_ill(rows: int = 20) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Two rows of one patient are positive: a third of the resamples are without a positive row."""
    table, groups = two_classes(rows, draw=3)
    return table.assign(label=(np.arange(rows) < 2).astype(np.int64)), groups


def several_classes(rows: int = 40) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The last class has two rows of one patient: a third of the resamples are without it, though it is called."""
    rng = np.random.default_rng(2)
    label = np.append(rng.integers(0, 3, rows - 2), [3, 3])
    score = np.round(rng.dirichlet(np.ones(4), rows), 1)
    columns = {f"score_{name}": score[:, number] for number, name in enumerate("abcd")}
    site = np.where(np.arange(rows) < rows // 2, "north", "south")
    table = pd.DataFrame({"arm": "a", "seed": 1, "site": site, "row": np.arange(rows), "label": label, **columns})
    return table, pd.DataFrame({"row": np.arange(rows), "patient": np.arange(rows) // 2})


def findings(rows: int = 60) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Few know of air, and few have it: some resamples are without it."""
    table, groups = predictions({"a": 1.0}, rows=rows, digits=1, unknown=0.3)
    table.loc[6:, "label_air"] = -1
    table.loc[:5, "label_air"] = [1, 1, 0, 0, 0, -1]
    return table, groups


KINDS = {"two classes": two_classes, "one ill": one_ill, "several classes": several_classes, "findings": findings}


def scores_of(kind: str) -> Scores:
    table, groups = KINDS[kind]()
    shuffled = table.sample(frac=1, random_state=1, ignore_index=True)
    thresholds = None
    if kind == "findings":
        index = pd.MultiIndex.from_tuples([("a", 1)], names=["arm", "seed"])
        thresholds = pd.DataFrame([[0.3, NAN, 0.6]], index=index, columns=[f"label_{name}" for name in NAMES])
    return Scores.of(shuffled, groups, thresholds)


@pytest.mark.parametrize("site", [None, "north"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_resamples_figures_are_those_of_rows_that_stand_there_as_often_as_drawn(kind: str, site: str | None) -> None:
    scores = scores_of(kind)
    drawn = Resamples(scores)
    resampled_figures = drawn.of("a", site)
    assert resampled_figures.shape == (drawn.count, len(METRICS))
    places = np.flatnonzero(scores.site == scores.sites.index(site)) if site else np.arange(len(scores.row))
    number = np.unique(scores.patient, return_inverse=True)[1]
    for resample in range(CHECKED):
        repeated = np.repeat(places, drawn.times[resample, number[places]].astype(int))
        threshold = scores.thresholds[0] if kind == "findings" else 0.5
        expected = metrics(scores.label[repeated], scores.score[repeated], threshold)
        ours = dict(zip(METRICS, resampled_figures[resample].tolist(), strict=True))
        assert ours == pytest.approx(expected, abs=2e-6, nan_ok=True)  # weights are single-precision numbers


def test_the_figures_of_one_finding_are_drawn_too() -> None:
    scores = scores_of("findings")
    drawn = Resamples(scores)
    number = np.unique(scores.patient, return_inverse=True)[1]
    without = 0
    for f, name in enumerate(NAMES):
        resampled_figures = drawn.of_finding("a", name)
        for resample in range(CHECKED):
            repeated = np.repeat(np.arange(len(number)), drawn.times[resample, number].astype(int))
            repeated = repeated[scores.label[repeated, f] >= 0]
            ours = dict(zip(METRICS, resampled_figures[resample].tolist(), strict=True))
            if not len(repeated):
                assert all(np.isnan(value) for value in ours.values())
                without += 1
                continue
            expected = finding_metrics(scores.label[repeated, f], scores.score[repeated, f], scores.thresholds[0, f])
            assert ours == pytest.approx(expected, abs=2e-6, nan_ok=True)
    assert without  # some resamples know nothing of air


def test_as_many_patients_as_there_are_are_drawn_and_their_rows_stay_together() -> None:
    scores = scores_of("two classes")
    drawn = Resamples(scores)
    count = len(np.unique(scores.patient))
    assert count == 30
    assert (drawn.times.sum(axis=1) == count).all()
    weights = pd.DataFrame(drawn.times[:, drawn.number].T).groupby(scores.patient)
    assert (weights.nunique() == 1).all(axis=None)
    # each is drawn once on average; the count's variance over resamples is 1 - 1/30
    assert drawn.times.mean(axis=0) == pytest.approx(np.ones(count), abs=5 / np.sqrt(drawn.count))
    assert drawn.times.var() == pytest.approx(1 - 1 / count, abs=0.05)


def test_where_no_patient_is_known_rows_are_drawn() -> None:
    table, _ = two_classes()
    assert len(np.unique(Scores.of(table).patient)) == len(table)


# ---- in results.json


def study_of(arms: tuple[str, ...], seeds: int = 1, **evaluation: Any) -> Study:
    raw = {
        "name": "patients",
        "data": {"source": "heart"},
        "evaluation": {"seeds": {"first": 1, "count": seeds}, "reference": arms[0], **evaluation},
        "arms": [{"algorithm": name} for name in arms],
    }
    return wardround.load_study(raw)[0]


def content_of(
    table: pd.DataFrame, groups: pd.DataFrame, arms: tuple[str, ...] = ("fedavg", "local")
) -> dict[str, Any]:
    return results(study_of(arms, table["seed"].nunique()), table, groups, records_of(table))


def test_intervals_are_percentiles_of_the_resamples() -> None:
    table, groups = two_classes(fedavg=2.0, local=0.5)
    content = content_of(table, groups)
    drawn = Resamples(Scores.of(table, groups))
    for arm in ("fedavg", "local"):
        for place, name in enumerate(METRICS):
            line = drawn.of(arm)[:, place]
            figure = content["arms"][arm]["metrics"][name]
            assert figure["interval"] == pytest.approx(np.quantile(line[np.isfinite(line)], [0.025, 0.975]).tolist())
            assert figure["interval"][0] <= figure["mean"] <= figure["interval"][1]
            assert figure["sd"] is None  # an SD over seeds needs two of them
            there = content["arms"][arm]["sites"]["north"][name]["interval"]
            line = drawn.of(arm, "north")[:, place]
            assert there == pytest.approx(np.quantile(line[np.isfinite(line)], [0.025, 0.975]).tolist())
    (test,) = (entry for entry in content["tests"] if entry["metric"] == "auc")
    assert test["within_sites"]  # each site's own model: scores of two sites are not of one scale
    place = METRICS.index("auc")
    both = [
        np.mean([drawn.of(arm, site)[:, place] for site in content["arms"][arm]["sites"]], axis=0)
        for arm in ("local", "fedavg")
    ]
    line = np.subtract(*both)
    pooled = content["arms"]["local"]["within_sites"]["auc"]["interval"]
    assert pooled == pytest.approx(np.quantile(both[0], [0.025, 0.975]).tolist())
    # one seed: the spread over resamples, with as many degrees of freedom as the rarer class has patients beyond one
    labels = table[table["arm"] == "local"].merge(groups, on="row")
    freedom = sum(part.groupby("label")["patient"].nunique().min() - 1 for _, part in labels.groupby("site"))
    assert test["standard_error"] == pytest.approx(line.std(ddof=1))
    assert test["freedom"] == freedom
    assert test["comparisons"] == 3  # the mean over sites stands at two places, and each site's difference at one
    reach = t.ppf(1 - 0.05 / 3 / 2, freedom) * line.std(ddof=1)
    assert test["interval"] == pytest.approx([test["difference"] - reach, test["difference"] + reach])
    assert test["method"] == content["interval"]["method"] == content["variants"][""]["method"] == METHOD
    single = 2 * t.sf(abs(test["difference"]) / line.std(ddof=1), freedom)
    assert test["p_value"] == pytest.approx(min(1, 3 * single))
    assert test["sentence"].startswith("local: ")


def test_reading_a_run_twice_gives_the_same_intervals() -> None:
    table, groups = predictions({"fedavg": 2.0, "local": 0.5})
    first, second = (results(a_study(), table, groups, records_of(table)) for _ in range(2))
    assert first == second
    figure = first["arms"]["fedavg"]["metrics"]["auc"]
    assert figure["interval"][0] < figure["mean"] < figure["interval"][1]
    air = first["arms"]["fedavg"]["findings"]["air"]["metrics"]["auc"]
    assert air["interval"][0] < air["mean"] < air["interval"][1]


def test_arms_with_the_same_scores_differ_by_exactly_nothing() -> None:
    """Both see the same draws; drawn apart, their difference would have a spread."""
    table, groups = two_classes(fedavg=1.0)
    twin = pd.concat([table, table.assign(arm="local")], ignore_index=True)
    content = content_of(twin, groups)
    assert len(content["tests"]) == 5
    for entry in (*content["tests"], *content["benefit"]):
        assert entry["difference"] == 0
        assert entry["interval"] == [0.0, 0.0]
        assert entry["p_value"] == 1.0
    assert {entry["verdict"] for entry in content["benefit"]} == {"no evidence"}


def test_a_difference_of_two_good_arms_is_surer_than_each_of_them() -> None:
    """The same hard patients are hard for both, which pairing takes out."""
    table, groups = two_classes(rows=400, fedavg=2.0)
    near = table.assign(arm="local", score=(table["score"] * 0.9 + 0.05).round(2))
    near.loc[near.index[:20], "score"] = 0.5
    content = content_of(pd.concat([table, near], ignore_index=True), groups)

    def width(interval: list[float]) -> float:
        return interval[1] - interval[0]

    (test,) = (entry for entry in content["tests"] if entry["metric"] == "auc")
    assert width(test["interval"]) < 0.5 * width(content["arms"]["fedavg"]["metrics"]["auc"]["interval"])


def test_a_benefit_must_hold_after_correction_over_the_sites() -> None:
    table, groups = two_classes(rows=400, fedavg=8.0, local=0.1)
    content = content_of(table, groups)
    gains = [entry for entry in content["benefit"] if entry["metric"] == "auc"]
    assert {(entry["site"], entry["verdict"]) for entry in gains} == {("north", "gains"), ("south", "gains")}
    assert all(entry["uncorrected"]["p_value"] <= entry["p_value_holm"] <= entry["p_value"] <= 0.05 for entry in gains)
    assert all(entry["interval"][0] > 0 for entry in gains)


def test_where_seeds_draw_new_splits_patients_are_not_drawn() -> None:
    table, groups = predictions({"fedavg": 2.0, "local": 0.5}, seeds=(1, 2, 3))
    content = results(a_study(seeds=3), table, groups, records_of(table))
    assert content["interval"]["method"] != METHOD
    assert content["arms"]["fedavg"]["metrics"]["auc"]["interval"] is not None


def test_an_arm_that_has_diverged_has_no_interval_and_nor_has_a_difference_from_it() -> None:
    table, groups = two_classes(fedavg=1.0, local=1.0)
    table["score"] = table["score"].where(table["arm"] == "fedavg")
    content = content_of(table, groups)
    assert content["arms"]["fedavg"]["metrics"]["auc"]["interval"] is not None
    assert all(figure["interval"] is None for figure in content["arms"]["local"]["metrics"].values())
    for entry in (*content["tests"], *content["benefit"]):
        assert entry["interval"] is None
        assert entry["p_value"] is None
    assert {entry["verdict"] for entry in content["benefit"]} == {"cannot be told"}


@pytest.mark.parametrize("kind", KINDS)
def test_a_site_whose_patients_are_often_not_drawn_has_no_interval(kind: str) -> None:
    """Of two patients, about one resample in seven draws neither: (1 - 2/n)^n is near e^-2."""
    table, groups = KINDS[kind]()
    table = table.assign(arm="fedavg", site=np.where(np.arange(len(table)) < 4, "tiny", "south"))
    parsed_study = a_study(("fedavg",)) if kind == "findings" else study_of(("fedavg",))
    content = results(parsed_study, table, groups, records_of(table))
    tiny, south = (content["arms"]["fedavg"]["sites"][site]["accuracy"] for site in ("tiny", "south"))
    assert tiny["mean"] is not None
    assert tiny["interval"] is None
    assert south["interval"] is not None


def test_a_finding_that_a_site_knows_nothing_of_does_not_stop_the_others() -> None:
    table, groups = predictions({"fedavg": 2.0})
    table["label_air"] = table["label_air"].where(table["site"] == "south", -1)
    content = results(a_study(("fedavg",)), table, groups, records_of(table))
    for site in ("north", "south"):
        assert content["arms"]["fedavg"]["sites"][site]["auc"]["interval"] is not None
    nothing = results(a_study(("fedavg",)), table.assign(label_air=-1), groups, records_of(table))
    assert nothing["arms"]["fedavg"]["findings"]["air"]["metrics"]["auc"]["interval"] is None
    assert nothing["arms"]["fedavg"]["left_out"] == ["air"]


def test_the_bootstrap_of_accuracy_is_about_the_same_figure_as_its_difference() -> None:
    """Rows that know different findings weigh differently in a mean over findings: rows cannot stand for it then."""
    for unknown in (0.0, 0.3):
        table, groups = predictions({"fedavg": 2.0, "local": 0.5}, unknown=unknown)
        content = results(a_study(), table, groups, records_of(table))
        (test,) = (entry for entry in content["tests"] if entry["metric"] == "accuracy")
        if unknown:
            assert test["bootstrap"] is None
        else:
            assert test["bootstrap"]["unit"] == "patients"
            low, high = test["bootstrap"]["interval"]
            assert low < test["difference"] < high
            assert test["uncorrected"]["interval"] == pytest.approx([low, high], abs=0.03)  # t against BCa


# ---- known truth


@pytest.mark.slow
def test_the_interval_of_an_auc_covers_the_truth_about_as_often_as_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """150 patients of two rows, half of them ill; scores are N(1, 1) in the ill and N(0, 1) in the others, and the two
    rows of a patient correlate by 0.7. The true AUC is Phi(1 / sqrt 2) = 0.760.

    Of 300 worlds' intervals 95 % should cover it, with a standard error of 1.3 %. Drawing rows instead of patients
    takes the second row for news: such intervals are narrower by 1 / sqrt(1 + 0.7) = 0.77, and would cover 87 %.
    """
    monkeypatch.setattr(patients, "MOST_RESAMPLES", 200)
    rng = np.random.default_rng(11)
    worlds, truth, auc = 300, float(norm.cdf(1 / np.sqrt(2))), METRICS.index("auc")
    groups = pd.DataFrame({"row": np.arange(300), "patient": np.arange(300) // 2})
    ill = np.repeat(np.arange(150) % 2, 2)
    covered, narrower = 0, []
    for world in range(worlds):
        score = ill + np.sqrt(0.7) * np.repeat(rng.normal(size=150), 2) + np.sqrt(0.3) * rng.normal(size=300)
        where = {"arm": "a", "seed": 1, "site": "all", "row": np.arange(300)}
        table = pd.DataFrame({**where, "label": ill, "score": expit(score)})
        line = Resamples(Scores.of(table, groups)).of("a")[:, auc]
        low, high = np.quantile(line, [0.025, 0.975])
        covered += int(low <= truth <= high)
        if world < 20:
            narrower.append(Resamples(Scores.of(table)).of("a")[:, auc].std() / line.std())
    assert 0.90 <= covered / worlds <= 0.98
    assert np.mean(narrower) == pytest.approx(1 / np.sqrt(1.7), abs=0.05)


def test_any_number_of_processes_gives_the_same_intervals() -> None:
    table = by_skill({"fedavg": 1.0, "local": 0.5, "pooled": 0.0}, seeds=(1,), patients=40, tested=40)
    study = a_study(["fedavg", "local", "pooled"])
    study = replace(study, evaluation=replace(study.evaluation, metric="accuracy"))
    alone, together = (
        results(study, table, pd.DataFrame(), records_of(table), task=class_task(2), workers=workers)
        for workers in (1, 2)
    )
    assert alone["arms"]["pooled"]["metrics"]["auc"]["interval"] is not None
    assert together == alone


def test_figures_do_not_depend_on_how_many_resamples_are_taken_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Resamples(scores_of("two classes")).of("a")
    monkeypatch.setattr(patients, "CACHED", 7 * 60)
    assert np.array_equal(Resamples(scores_of("two classes")).of("a"), whole, equal_nan=True)
