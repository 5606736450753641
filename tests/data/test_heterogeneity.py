import json
import math

import numpy as np
import pytest

from wardround.core.errors import DataError
from wardround.core.seeds import generator
from wardround.data.heterogeneity import gini, js_divergence, kl_divergence, measure, mmd_of_pairs


def rng() -> np.random.Generator:
    return generator(0, "test heterogeneity")


def labels(*counts: int) -> np.ndarray:
    """`counts` rows of each class in turn."""
    return np.repeat(np.arange(len(counts)), counts)


def two_samples(shift: float, rows: int = 60) -> dict[str, np.ndarray]:
    features = generator(1, "test features")
    return {"a": features.normal(0, 1, (rows, 3)), "b": features.normal(shift, 1, (rows, 3))}


def test_kl_adds_half_a_row_to_each_class_and_js_does_not() -> None:
    measured = measure({"a": labels(3, 1), "b": labels(1, 3)}, None, 3, rng())
    assert measured["kl"] == pytest.approx(
        kl_divergence(np.array([3.5, 1.5, 0.5]) / 5.5, np.array([1.5, 3.5, 0.5]) / 5.5)
    )
    assert measured["js"] == pytest.approx(js_divergence(np.array([0.75, 0.25, 0.0]), np.array([0.25, 0.75, 0.0])))


def test_equal_distributions_do_not_diverge() -> None:
    heterogeneity = measure({"a": labels(10, 30), "b": labels(10, 30)}, None, 2, rng())
    assert heterogeneity["js"] == 0
    assert heterogeneity["kl"] == 0


def test_distributions_without_a_common_class_have_js_1() -> None:
    """The middle gives each class half: each side has log2(1 / (1/2)) = 1 bit to it."""
    assert measure({"a": labels(7, 0), "b": labels(0, 9)}, None, 2, rng())["js"] == pytest.approx(1)


def test_js_by_hand() -> None:
    """p = (1, 0), q = (1/2, 1/2), middle (3/4, 1/4).

    KL(p, m) = log2(4/3); KL(q, m) = 1/2 log2(2/3) + 1/2 log2(2) = 1 - 1/2 log2(3). With log2(3) = 1.5849625 their mean
    is (2 - 1.5849625 + 1 - 0.79248125) / 2 = 0.3112781.
    """
    p, q = np.array([1.0, 0.0]), np.array([0.5, 0.5])
    assert js_divergence(p, q) == pytest.approx(0.3112781, abs=1e-7)
    assert js_divergence(q, p) == js_divergence(p, q)


def test_js_is_never_negative_nor_nan_for_nearly_equal_shares() -> None:
    shares = generator(2, "test shares")
    for _ in range(200):
        p = shares.dirichlet(np.ones(7))
        q = np.nextafter(p, shares.choice([0.0, 1.0], 7))
        assert 0 <= js_divergence(p, q) < 1e-12


def test_kl_is_smoothed_by_half_a_row_and_symmetrised() -> None:
    """Counts (2, 0) and (1, 1) become (2.5, 0.5) / 3 and (1.5, 1.5) / 3.

    The mean of both directions is half the sum of (p - q) ln(p / q): (1/3 ln(5/3) - 1/3 ln(1/3)) / 2 = ln(5) / 6.
    """
    assert measure({"a": labels(2, 0), "b": labels(1, 1)}, None, 2, rng())["kl"] == pytest.approx(math.log(5) / 6)


def test_kl_without_smoothing_is_infinite_for_an_absent_class() -> None:
    assert kl_divergence(np.array([1.0, 0.0]), np.array([0.5, 0.5])) == math.inf


def test_gini_by_hand() -> None:
    """The sum of |a - b| over unordered pairs, divided by n times the total.

    (1, 3): 2 / (2 * 4) = 0.25. (0, 0, 0, 1): 3 / (4 * 1) = 0.75.
    """
    assert gini([1, 1, 1, 1]) == 0
    assert gini([5]) == 0
    assert gini([1, 3]) == pytest.approx(0.25)
    assert gini([0, 0, 0, 1]) == pytest.approx(0.75)


def test_gini_of_the_sizes_that_the_heart_study_prints() -> None:
    """Differences in its text: 12 + 51 + 24 + 39 + 12 + 27 = 165, and 293 rows at 4 sites.

    In one of its tables: 37 + 144 + 82 + 107 + 45 + 62 = 477, and 705 rows at 4 sites.
    """
    assert gini([95, 83, 44, 71]) == pytest.approx(165 / 1172)
    assert gini([242, 205, 98, 160]) == pytest.approx(477 / 2820)
    assert round(gini([95, 83, 44, 71]), 2) == 0.14
    assert round(gini([242, 205, 98, 160]), 2) == 0.17


def naive_mmd(x: np.ndarray, y: np.ndarray, pooled: np.ndarray) -> float:
    distances = [float(np.linalg.norm(a - b)) for i, a in enumerate(pooled) for b in pooled[:i]]
    width = float(np.median(distances))

    def mean_kernel(left: np.ndarray, right: np.ndarray) -> float:
        return sum(math.exp(-float(((a - b) ** 2).sum()) / (2 * width**2)) for a in left for b in right) / (
            len(left) * len(right)
        )

    return math.sqrt(mean_kernel(x, x) + mean_kernel(y, y) - 2 * mean_kernel(x, y))


def test_mmd_equals_the_double_loop() -> None:
    samples = two_samples(shift=0.7, rows=25) | {"c": generator(3, "test features").normal(2, 1, (10, 3))}
    pooled = np.concatenate(list(samples.values()))
    distances = mmd_of_pairs(samples, rng())
    assert set(distances) == {("a", "b"), ("a", "c"), ("b", "c")}
    for (a, b), value in distances.items():
        assert value == pytest.approx(naive_mmd(samples[a], samples[b], pooled), rel=1e-9)


def test_mmd_by_hand() -> None:
    """Rows 0 and 1: the median distance is 1, the kernel exp(-1/2), and MMD² = 1 + 1 - 2 exp(-1/2)."""
    distances = mmd_of_pairs({"a": np.array([[0.0]]), "b": np.array([[1.0]])}, rng())
    assert distances["a", "b"] == pytest.approx(math.sqrt(2 - 2 * math.exp(-0.5)))


def test_mmd_grows_with_a_shift_of_the_mean() -> None:
    values = [mmd_of_pairs(two_samples(shift), rng())["a", "b"] for shift in (0.0, 0.5, 1.0, 2.0)]
    assert values == sorted(values)
    assert values[-1] > 3 * values[0]


def test_mmd_of_equal_samples_is_0() -> None:
    rows = two_samples(0)["a"]
    assert mmd_of_pairs({"a": rows, "b": rows.copy()}, rng())["a", "b"] == pytest.approx(0, abs=1e-7)
    assert mmd_of_pairs({"a": np.zeros((5, 2)), "b": np.zeros((4, 2))}, rng())["a", "b"] == 0


@pytest.mark.parametrize("sizes", [(520, 60), (400, 400, 400)])
def test_large_samples_are_thinned_by_the_given_generator(sizes: tuple[int, ...]) -> None:
    """A site of more than 500 rows; and sites that are small, but have more than 1000 rows together."""
    features = generator(4, "test features")
    samples = {str(number): features.normal(number / 2, 1, (size, 3)) for number, size in enumerate(sizes)}
    first, again, other = (mmd_of_pairs(samples, generator(seed, "mmd"))["0", "1"] for seed in (0, 0, 1))
    assert first == again
    assert first != other
    assert first == pytest.approx(other, rel=0.1)


def test_the_table_has_each_pair_once_and_the_averages_count_pairs_alike() -> None:
    features = {"a": np.zeros((4, 1)), "b": np.zeros((8, 1)), "c": np.ones((8, 1))}
    heterogeneity = measure({"a": labels(4, 0), "b": labels(8, 0), "c": labels(0, 8)}, features, 2, rng())
    assert [(pair["site_a"], pair["site_b"]) for pair in heterogeneity["pairs"]] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert [list(pair) for pair in heterogeneity["pairs"]] == [["site_a", "site_b", "js", "kl", "mmd"]] * 3
    assert [pair["js"] for pair in heterogeneity["pairs"]] == pytest.approx([0, 1, 1])
    assert heterogeneity["js"] == pytest.approx(2 / 3)
    assert heterogeneity["mmd"] == pytest.approx(2 / 3 * math.sqrt(2 - 2 * math.exp(-0.5)))  # distances are 0 or 1
    assert heterogeneity["sizes"] == {"a": 4, "b": 8, "c": 8}
    assert heterogeneity["gini"] == pytest.approx(8 / 60)  # |4 - 8| twice, over 3 * 20


def test_one_site_has_no_pairs() -> None:
    heterogeneity = measure({"a": labels(3, 2)}, {"a": np.zeros((5, 2))}, 2, rng())
    assert heterogeneity["pairs"] == []
    assert heterogeneity["js"] is None
    assert heterogeneity["kl"] is None
    assert heterogeneity["mmd"] is None
    assert heterogeneity["gini"] == 0


def test_plain_data_is_valid_json_without_nan() -> None:
    content = measure({"a": labels(3, 2), "b": labels(1, 1)}, None, 2, rng())
    assert json.loads(json.dumps(content, allow_nan=False)) == content
    assert content["mmd"] is None
    assert content["pairs"][0]["mmd"] is None
    assert content["pairs"][0]["site_a"] == "a"
    assert content["sizes"] == {"a": 5, "b": 2}
    alone = measure({"a": labels(3, 2)}, None, 2, rng())
    assert alone["js"] is None
    assert alone["pairs"] == []


def test_what_cannot_be_measured_names_the_site() -> None:
    with pytest.raises(DataError, match="site b: has no rows"):
        measure({"a": labels(3, 2), "b": labels(0, 0)}, None, 2, rng())
    with pytest.raises(DataError, match="site a: 2 labels are not among the 2 classes"):
        measure({"a": labels(3, 1, 2)}, None, 2, rng())
    with pytest.raises(DataError, match="site a: 1 prepared features are not finite"):
        mmd_of_pairs({"a": np.array([[np.nan], [1.0]]), "b": np.ones((2, 1))}, rng())
