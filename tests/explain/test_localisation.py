"""Figures of localisation on maps and boxes whose results are known."""

import numpy as np
import pandas as pd
import pytest

from tests.explain.image_scorers import image_scorer, images_of
from wardround.core import seeds
from wardround.data.records import BOX_COLUMNS
from wardround.explain import METHODS
from wardround.explain.localisation import (
    Figure,
    Marked,
    centre_prior,
    covered,
    heat_maps,
    localised,
    marked,
    measures,
    others_prior,
    shown,
)
from wardround.tasks import findings_task


def boxes(*lines: tuple[float, ...]) -> pd.DataFrame:
    return pd.DataFrame(list(lines), columns=list(BOX_COLUMNS)).astype({"row": int, "finding": int})


def test_a_box_covers_the_pixels_whose_middles_are_in_it() -> None:
    middles = (np.arange(16) + 0.5) / 16
    rng = seeds.generator(1, "test boxes")
    for _ in range(50):
        box = rng.uniform(0, 0.5, 4) + np.array([0, 0, 0.05, 0.05])
        x, y, width, height = box
        lines, columns = ((middles > start) & (middles < start + size) for start, size in ((y, height), (x, width)))
        if lines.any() and columns.any():
            np.testing.assert_array_equal(covered(box, (16, 16)), lines[:, None] & columns)
    assert covered((0.99, 0.99, 0.01, 0.01), (16, 16)).sum() == 1  # a tiny box is still somewhere
    assert covered((0, 0, 1, 1), (16, 8)).all()


def test_places_are_images_and_findings_with_all_their_boxes() -> None:
    frame = boxes((4, 1, 0, 0, 0.5, 0.5), (2, 0, 0.5, 0.5, 0.5, 0.5), (4, 1, 0.5, 0, 0.5, 0.5))
    places = marked(frame, np.array(["a", "b", "c", "d", "e"]), (4, 4))
    assert places.row.tolist() == [2, 4]
    assert places.finding.tolist() == [0, 1]
    assert places.patient.tolist() == ["c", "e"]
    assert places.inside.sum(axis=(1, 2)).tolist() == [4, 8]
    assert places.inside[1, :2].all()
    assert len(marked(boxes(), np.array([]), (4, 4))) == 0


def test_measures_of_maps_whose_results_are_known() -> None:
    inside = np.zeros((1, 4, 4), dtype=bool)
    inside[0, :2, :2] = True
    perfect = inside.astype(float)
    elsewhere = 1 - perfect
    split = np.zeros((1, 4, 4))
    split[0, 0, 0], split[0, 3, 3], split[0, 3, 2] = 1.0, 0.9, 0.1
    assert {name: float(value[0]) for name, value in measures(perfect, inside).items()} == {
        "pointing": 1,
        "iou": 1,
        "energy": 1,
    }
    assert all(value[0] == 0 for value in measures(elsewhere, inside).values())
    found = measures(split, inside)
    assert found["pointing"][0] == 1
    assert found["iou"][0] == pytest.approx(1 / 5)  # one of four in the box, and one beside it
    assert found["energy"][0] == pytest.approx(0.5)
    for same in (np.zeros((1, 4, 4)), np.ones((1, 4, 4))):  # says nothing: chance, in every measure
        assert {float(value[0]) for value in measures(same, inside).values()} == {0.25}


def test_priors_look_at_no_image_and_others_at_no_box_of_the_same_patient() -> None:
    frame = boxes(
        (0, 0, 0, 0, 0.5, 0.5), (1, 0, 0, 0, 0.5, 0.5), (2, 0, 0.5, 0.5, 0.5, 0.5), (3, 1, 0, 0, 1, 1)
    )  # fmt: skip
    places = marked(frame, np.array(["a", "a", "b", "b"]), (8, 8))
    centre = centre_prior(places)
    assert np.unravel_index(centre[0].argmax(), (8, 8)) in [(3, 3), (3, 4), (4, 3), (4, 4)]
    np.testing.assert_allclose(centre[0], centre[0, ::-1, ::-1])
    prior = others_prior(places)
    np.testing.assert_array_equal(prior[0], places.inside[2])  # of patient b alone, although a has it twice
    np.testing.assert_array_equal(prior[2], places.inside[0])
    np.testing.assert_array_equal(prior[3], centre[3])  # nobody else has it


def test_intervals_are_over_patients() -> None:
    """A patient's images written down four times say nothing new."""
    rng = seeds.generator(2, "test")
    values, others = (rng.random(40) < share for share in (0.7, 0.4))
    patient = np.arange(40)
    once = Figure.of_share(values.astype(float), patient)
    again = Figure.of_share(np.repeat(values, 4).astype(float), np.repeat(patient, 4))
    assert (once.low, once.high) == pytest.approx((again.low, again.high))
    apart = Figure.of_difference(values.astype(float), others.astype(float), patient)
    four_values, four_others = (np.repeat(each, 4).astype(float) for each in (values, others))
    four = Figure.of_difference(four_values, four_others, np.repeat(patient, 4))
    assert (apart.low, apart.high) == pytest.approx((four.low, four.high))
    expected = values.astype(float) - others
    half = 2.0227 * expected.std(ddof=1) / np.sqrt(40)  # Student's t with 39 degrees of freedom
    assert apart.mean == pytest.approx(expected.mean())
    assert apart.high - apart.mean == pytest.approx(half, rel=1e-3)
    alone = Figure.of_share(np.ones(3), np.array(["a", "a", "a"]))
    assert alone.low < 0.3  # one patient is hardly any evidence


def test_findings_are_listed_by_themselves_and_together() -> None:
    inside = np.zeros((4, 8, 8), dtype=bool)
    inside[:, 1:3, 1:3] = True
    places = Marked(np.arange(4), np.array([0, 0, 2, 2]), np.array(["a", "b", "b", "c"]), inside)
    maps = np.zeros((4, 8, 8))
    maps[[0, 1, 2], 1, 1] = maps[3, 7, 7] = 1
    listed = localised(maps, places, {"centre": centre_prior(places)}, ("mass", "none", "fluid"))
    pointing = {entry.finding: entry for entry in listed if entry.measure == "pointing"}
    assert list(pointing) == ["mass", "fluid", ""]
    assert [entry.figure.mean for entry in pointing.values()] == [1, 0.5, 0.75]
    assert [entry.images for entry in pointing.values()] == [2, 2, 4]
    assert [entry.patients for entry in pointing.values()] == [2, 2, 3]
    own, apart = pointing["fluid"].against["centre"]
    assert own.mean == 0
    assert apart.mean == 0.5
    assert pointing[""].area == pytest.approx(4 / 64)


def test_maps_of_places_are_those_of_their_finding_without_what_lowers_the_score() -> None:
    scorer, images = image_scorer("logistic", findings_task(3)), images_of(4)
    frame = boxes((3, 2, 0, 0, 1, 1), (1, 0, 0, 0, 1, 1))
    places = marked(frame, np.arange(4), (8, 8))
    method, rng = METHODS["integrated-gradients"](), seeds.generator(3, "test")
    maps = heat_maps(method, scorer, images, images[:0], places, rng)
    for place, (row, finding) in enumerate(((1, 0), (3, 2))):
        alone = method.attribute(scorer.of(finding), images[row : row + 1], images[:0], rng).values
        np.testing.assert_allclose(maps[place], shown(alone)[0])
    assert (maps >= 0).all()
    assert (shown(-np.ones((1, 8, 8))) == 0).all()
