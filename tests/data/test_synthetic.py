"""The recipe of Li et al. (MLSys 2020), fact by fact."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.spatial.distance import jensenshannon

from wardround.core.errors import StudyError
from wardround.core.notices import Notice
from wardround.core.seeds import generator
from wardround.core.settings import parse_settings, settings_of
from wardround.data.records import Records
from wardround.data.sources.synthetic import SiteModel, draw_site, shared_model, site_model, site_size, synthetic


def table(records: Records) -> pd.DataFrame:
    assert isinstance(records.features, pd.DataFrame)
    return records.features


def label_shares(records: Records) -> np.ndarray:
    """A row per site, a column per class."""
    counts = [np.bincount(records.target[records.hospital == name], minlength=10) for name in records.hospitals]
    return np.array([count / count.sum() for count in counts])


def mean_pairwise_divergence(shares: np.ndarray) -> float:
    """Jensen-Shannon, in bits: 0 for equal label shares, 1 for sites without a common class."""
    pairs = zip(*np.triu_indices(len(shares), 1), strict=True)
    return float(np.mean([jensenshannon(shares[i], shares[j], base=2) ** 2 for i, j in pairs]))


def test_the_default_is_thirty_sites_with_sixty_features_and_ten_classes() -> None:
    records = synthetic().load()
    assert records.hospitals == tuple(f"site-{number:02}" for number in range(1, 31))
    assert [column.name for column in records.columns] == list(table(records).columns)
    assert list(table(records).columns) == [f"x{number:02}" for number in range(1, 61)]
    assert (table(records).dtypes == np.float64).all()
    assert records.target.dtype == np.int64
    assert records.classes == ("0", "1", "2", "3", "4", "5", "6", "7", "8", "9")
    assert len(records) == len(table(records)) == len(records.target) == len(records.hospital) == len(records.groups)


def test_it_says_that_it_is_synthetic() -> None:
    records = synthetic(count=3).load()
    assert records.synthetic
    (notice,) = records.notices
    assert (notice.code, notice.counts) == ("synthetic-rows", {"rows": len(records), "seed": 0})
    assert notice.details["recipe"] == "Synthetic(1, 1)"
    assert synthetic(iid=True, count=3).load().notices[0].details["recipe"] == "Synthetic-IID"


def test_rows_can_be_taken() -> None:
    records = synthetic(count=3).load()
    subset = records.take([60, 5])
    assert table(subset).equals(table(records).iloc[[60, 5]].reset_index(drop=True))


def test_site_sizes_are_fifty_plus_a_lognormal() -> None:
    sizes = np.array([site_size(0, number) for number in range(1, 3001)])
    assert sizes.min() >= 50
    # lognormal(4, 2) has the median exp(4) = 54.6, and 15.9 % of it lies above exp(4 + 2), one standard deviation up.
    assert np.median(sizes) == pytest.approx(50 + 54, abs=5)
    assert np.mean(sizes > 50 + np.exp(6)) == pytest.approx(0.159, abs=0.02)


@pytest.mark.parametrize("iid", [False, True])
def test_the_same_seed_gives_the_same_bits_and_another_seed_other_ones(iid: bool) -> None:
    first, again, other = (synthetic(iid=iid, count=5, seed=seed).load() for seed in (3, 3, 4))
    assert table(first).to_numpy().tobytes() == table(again).to_numpy().tobytes()
    assert first.target.tobytes() == again.target.tobytes()
    assert first.hospital.tolist() == again.hospital.tolist()
    assert not np.isin(table(first).to_numpy(), table(other).to_numpy()).any()
    assert len(first) != len(other)


def test_more_sites_leave_the_first_ones_as_they_were() -> None:
    few, many = synthetic(count=2).load(), synthetic(count=120).load()
    assert many.hospitals[0] == "site-001"
    assert list(many.hospitals) == sorted(many.hospitals)
    assert table(few).equals(table(many).iloc[: len(few)])
    assert np.array_equal(few.target, many.target[: len(few)])


def test_largest_cuts_large_sites_to_their_first_rows() -> None:
    full, cut = synthetic(count=8).load(), synthetic(count=8, largest=80).load()
    sizes = {name: int((full.hospital == name).sum()) for name in full.hospitals}
    assert min(sizes.values()) < 80 < max(sizes.values())
    for name, size in sizes.items():
        rows = table(cut)[cut.hospital == name].to_numpy()
        assert len(rows) == min(size, 80)
        assert np.array_equal(rows, table(full)[full.hospital == name].to_numpy()[:80])
    counts = {"sites": sum(size > 80 for size in sizes.values()), "of": 8, "rows": 80}
    assert Notice("sites-cut", "info", counts=counts) in cut.notices


def test_a_drawn_label_is_the_class_with_the_highest_softmax() -> None:
    model = site_model(1.0, 1.0, 6, 4, seed=1, number=1)
    rows, target = draw_site(model, 500, generator(0, "test"))
    scores = np.array([[row @ model.weights[:, k] + model.bias[k] for k in range(4)] for row in rows])
    odds = np.exp(scores - scores.max(axis=1, keepdims=True))
    assert np.array_equal(target, (odds / odds.sum(axis=1, keepdims=True)).argmax(axis=1))


@pytest.mark.parametrize("iid", [False, True])
def test_each_site_is_labelled_by_its_own_model(iid: bool) -> None:
    records = synthetic(iid=iid, count=4, seed=2).load()
    for number, name in enumerate(records.hospitals, start=1):
        model = shared_model(60, 10, seed=2) if iid else site_model(1.0, 1.0, 60, 10, seed=2, number=number)
        own = records.hospital == name
        scores = table(records)[own].to_numpy() @ model.weights + model.bias
        assert np.array_equal(records.target[own], scores.argmax(axis=1))


@pytest.mark.slow
def test_the_covariance_is_diagonal_and_falls_as_j_to_the_minus_1_2() -> None:
    centre = np.linspace(-2, 2, 60)
    model = SiteModel(weights=np.zeros((60, 2)), bias=np.zeros(2), centre=centre)
    rows, _ = draw_site(model, 20_000, generator(0, "test"))
    # A sample variance of 20,000 normal draws has a relative standard error of sqrt(2 / 20,000) = 1 %.
    assert rows.var(axis=0) == pytest.approx(np.arange(1, 61) ** -1.2, rel=0.05)
    assert np.abs(np.corrcoef(rows.T) - np.eye(60)).max() < 0.04
    assert rows.mean(axis=0) == pytest.approx(centre, abs=0.04)


@pytest.mark.parametrize("spread", [0.0, 0.5, 4.0])
def test_alpha_and_beta_are_standard_deviations_between_sites(spread: float) -> None:
    by_alpha = [site_model(spread, 0.0, 60, 10, seed=0, number=number) for number in range(500)]
    by_beta = [site_model(0.0, spread, 60, 10, seed=0, number=number) for number in range(500)]
    # Means of 600 weights and of 60 centre elements: the elements' own variance 1 adds 1/600 and 1/60.
    weight_means = [model.weights.mean() for model in by_alpha]
    centre_means = [model.centre.mean() for model in by_beta]
    assert np.std(weight_means) == pytest.approx(np.sqrt(spread**2 + 1 / 600), rel=0.1)
    assert np.std(centre_means) == pytest.approx(np.sqrt(spread**2 + 1 / 60), rel=0.1)


def test_weights_and_biases_of_a_site_share_their_mean_and_have_variance_one() -> None:
    models = [site_model(10.0, 1.0, 200, 50, seed=0, number=number) for number in range(5)]
    for model in models:
        assert model.bias.mean() == pytest.approx(model.weights.mean(), abs=0.6)  # 50 biases: standard error 0.14
        assert model.weights.std() == pytest.approx(1, rel=0.05)
        assert model.centre.std() == pytest.approx(1, rel=0.25)  # 200 elements: standard error 5 %
    assert np.std([model.weights.mean() for model in models]) > 1


def test_sites_differ_much_more_in_their_labels_than_iid_sites() -> None:
    different = mean_pairwise_divergence(label_shares(synthetic(1.0, 1.0, largest=500).load()))
    still_different = mean_pairwise_divergence(label_shares(synthetic(0.0, 0.0, largest=500).load()))
    alike = mean_pairwise_divergence(label_shares(synthetic(iid=True, largest=500).load()))
    assert different > 10 * alike
    assert still_different > 10 * alike  # Synthetic(0, 0) is not IID: each site still draws its own model


def test_alpha_cannot_change_a_label() -> None:
    # u_k adds u_k * (sum(x) + 1) to the score of every class: a flaw of the published recipe, kept and documented.
    without, with_alpha = synthetic(alpha=0.0).load(), synthetic(alpha=5.0).load()
    assert table(without).equals(table(with_alpha))
    assert np.array_equal(without.target, with_alpha.target)


def test_iid_sites_share_one_model_and_centre() -> None:
    records = synthetic(iid=True, alpha=3.0, beta=3.0).load()
    plain = synthetic(iid=True, alpha=0.0, beta=0.0).load()
    assert table(records).equals(table(plain))
    assert np.array_equal(records.target, plain.target)
    assert not shared_model(60, 10, seed=0).centre.any()
    assert table(records).mean().to_numpy() == pytest.approx(np.zeros(60), abs=0.05)


def test_no_two_sites_draw_the_same_rows() -> None:
    records = synthetic(iid=True, largest=100).load()
    assert not table(records).duplicated().any()


def test_a_study_can_set_everything() -> None:
    raw = {"alpha": 0, "beta": 0.5, "iid": False, "count": 2, "features": 3, "classes": 2, "largest": 60, "seed": 9}
    records = synthetic(**parse_settings(settings_of(synthetic), raw, "data", Path())).load()
    assert table(records).shape[1] == 3
    assert records.classes == ("0", "1")
    assert len(records) <= 120


@pytest.mark.parametrize("wrong", [{"alpha": -1.0}, {"count": 0}, {"classes": 1}, {"largest": 0}])
def test_impossible_settings_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(StudyError, match="out of range"):
        parse_settings(settings_of(synthetic), wrong, "data", Path())
