"""Whether uncertainty means something, on the NIH's radiographs: a network that was trained for a minute or two."""

from typing import Any

import numpy as np
import pytest

from benchmarks.uncertainty import REFERRED, images
from tests.real_data import shared_data

pytestmark = pytest.mark.slow
WAYS = pytest.mark.parametrize("way", ["dropout", "laplace"])


@pytest.fixture(scope="module")
def found() -> Any:
    return images(shared_data("nih-cxr14/nih_cxr14_subset_28.npz"), seeds=1, rounds=4)


@WAYS
def test_without_the_most_doubtful_fifth_accuracy_rises(found: Any, way: str) -> None:
    """14 calls of each of 3,598 images, at thresholds from validation rows. Even if an image's calls were all one, an
    accuracy of the 80 % that are kept would stray by 0.5 / sqrt(2,878), 0.9 points; three of them are wanted."""
    before, remaining_accuracy, area = found[way]["referral"]["accuracy"]
    assert remaining_accuracy > before + 0.028
    assert area > before


@WAYS
def test_a_cut_refers_the_share_that_was_asked_for_where_patients_are_exchangeable(found: Any, way: str) -> None:
    """Over 40 ways to halve the patients. The split that comes with the images is none of them: by it 27 % are referred
    instead of 20, because its validation and test patients differ (the other way round it is 11 %). One half strays by
    some four points, their mean by less than one; three points leave room for thresholds from the same rows."""
    mean, sd = found[way]["patients mixed"]
    assert mean == pytest.approx(REFERRED, abs=0.03)
    assert sd < 0.08


@WAYS
def test_doubt_is_higher_on_errors_than_on_hits(found: Any, way: str) -> None:
    errors, hits = found[way]["doubt"]
    assert errors > hits
    assert found[way]["errors"] > 0.55


def test_images_that_are_no_chests_are_told_by_the_spread_of_laplaces_scores(found: Any) -> None:
    spreads = {kind: figures["spread"] for kind, figures in found["laplace"]["strange"].items()}
    assert {"noise", "inverted", "upside down", "lying"} <= set(spreads)
    assert min(spreads.values()) > 0.85, spreads


def test_a_temperature_from_validation_rows_does_not_raise_the_error_of_held_out_ones(found: Any) -> None:
    """On average over sites, by more than half of what chance alone makes of an error."""
    sites = found["dropout"]["sites"]
    before, after = np.mean([site["ece"] for site in sites], axis=0)
    assert after <= before + np.mean([site["by chance"] for site in sites]) / 2


def test_sets_hold_the_label_as_often_as_they_say_where_patients_are_exchangeable(found: Any) -> None:
    """Mean over 14 findings and 200 ways to halve a site's patients. Images of one patient are alike and come all into
    one half, so that the promise is not exact: two points are allowed."""
    for site in found["dropout"]["sites"]:
        assert site["patients mixed"][0] == pytest.approx(0.9, abs=0.02)
        plain, by_label = site["coverage of the ill"]
        assert by_label > plain + 0.2  # few of the ill are held where one cut serves all
        assert by_label > 0.8
