"""The scale that images are brought to: centre and spread are those of the raw pixels, by numpy."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.radiographs import cohort_of, some_radiographs
from wardround.data.brightness import CHUNK, LEAST_SPREAD, brightness, levels
from wardround.data.cohort import load_cohort, prepare_sites
from wardround.data.records import Records
from wardround.data.site import Rows, Site, join
from wardround.data.sources import Source
from wardround.data.split import Split
from wardround.engines.stacked.lanes import RowPool
from wardround.study.schema import Preparation

NONE = np.array([], dtype=np.int64)
# training rows, and after them test rows; the third site is darker than the others
TRAIN = {"north": np.array([3, 0, 7]), "south": np.array([1, 2, 4, 9, 11]), "dark": np.array([20, 21])}
TEST = {"north": np.array([5]), "south": np.array([6, 8]), "dark": np.array([22, 23])}
SPLITS = [Split(name, TRAIN[name], NONE, TEST[name]) for name in TRAIN]


def images() -> np.ndarray:
    pixels = np.random.default_rng(0).integers(0, 256, (24, 1, 5, 7), dtype=np.uint8)
    pixels[20:] //= 8
    return pixels


def records(pixels: np.ndarray) -> Records:
    return Records(pixels, np.arange(len(pixels)) % 2, ("no", "yes"), np.full(len(pixels), "all", dtype=object))


def prepared(scale: str, members: list[str] | None = None, pixels: np.ndarray | None = None) -> dict[str, Site]:
    cohort = cohort_of(records(images() if pixels is None else pixels))
    sites = prepare_sites(cohort, SPLITS, Preparation(scale=scale), torch.float64, members)  # type: ignore[arg-type]
    assert all(site.recipe is None for site in sites)
    return {site.name: site for site in sites}


def everything(rows: Rows) -> np.ndarray:
    return rows.everything(torch.float64)[0].numpy()


def assert_scaled(rows: Rows, raw: np.ndarray, centre: Any, spread: Any) -> None:
    """Levels are single-precision numbers, so a pixel is right to some 1e-6."""
    np.testing.assert_allclose(everything(rows), (raw / 255 - centre) / spread, rtol=0, atol=2e-6)


def test_brightness_is_the_mean_and_the_mean_square_of_the_pixels() -> None:
    many = np.random.default_rng(1).integers(0, 256, (CHUNK + 3, 1, 3, 2), dtype=np.uint8)  # the last piece is short
    moments = brightness(many)
    parts = many.reshape(len(many), -1) / 255
    np.testing.assert_allclose(moments[:, 0], parts.mean(axis=1), rtol=0, atol=1e-7)
    np.testing.assert_allclose(moments[:, 1], (parts**2).mean(axis=1), rtol=0, atol=1e-7)


def test_brightness_of_images_that_are_numbers_already_is_theirs() -> None:
    """Such pixels are taken as they are, so they must not be divided by 255 here either."""
    numbers = np.random.default_rng(2).random((6, 1, 4, 4)).astype(np.float32)
    np.testing.assert_allclose(brightness(numbers)[:, 0], numbers.mean(axis=(1, 2, 3)), rtol=0, atol=1e-6)
    site = prepared("image", pixels=np.repeat(numbers, 4, axis=0))["south"]
    pixels = everything(site.train).reshape(len(site.train), -1)
    np.testing.assert_allclose(pixels.mean(axis=1), 0, atol=1e-5)
    np.testing.assert_allclose(pixels.std(axis=1), 1, atol=1e-5)


def test_each_site_is_scaled_by_its_own_training_pixels() -> None:
    raw = images()
    for name, site in prepared("per-site").items():
        own = raw[TRAIN[name]] / 255
        assert_scaled(site.train, raw[TRAIN[name]], own.mean(), own.std())
        assert_scaled(site.test, raw[TEST[name]], own.mean(), own.std())  # by training rows, never by its own
        assert everything(site.train).mean() == pytest.approx(0, abs=1e-6)
        assert everything(site.train).std() == pytest.approx(1, abs=1e-6)


def test_federated_scaling_is_that_of_all_training_pixels_together() -> None:
    raw = images()
    together = raw[np.concatenate(list(TRAIN.values()))] / 255
    for name, site in prepared("federated").items():
        assert_scaled(site.train, raw[TRAIN[name]], together.mean(), together.std())
        assert_scaled(site.test, raw[TEST[name]], together.mean(), together.std())
    pooled = join([site.train for site in prepared("federated").values()])
    assert everything(pooled).mean() == pytest.approx(0, abs=1e-6)
    assert everything(pooled).std() == pytest.approx(1, abs=1e-6)


def test_each_image_may_be_scaled_by_itself() -> None:
    raw = images()
    for name, site in prepared("image").items():
        for rows, places in ((site.train, TRAIN[name]), (site.test, TEST[name])):
            own = raw[places] / 255
            centre, spread = own.mean(axis=(1, 2, 3), keepdims=True), own.std(axis=(1, 2, 3), keepdims=True)
            assert_scaled(rows, raw[places], centre, spread)


@pytest.mark.parametrize("scale", ["ranges", "none"])
def test_ranges_and_none_leave_pixels_from_0_to_1(scale: str) -> None:
    raw = images()
    for name, site in prepared(scale).items():
        np.testing.assert_array_equal(everything(site.train), raw[TRAIN[name]] / 255)
        assert site.train.levels is None


@pytest.mark.parametrize("scale", ["per-site", "federated", "image"])
@pytest.mark.parametrize("value", [0, 93, 255])
def test_images_of_one_colour_become_zeros_and_never_infinite(scale: str, value: int) -> None:
    for site in prepared(scale, pixels=np.full((24, 1, 4, 4), value, dtype=np.uint8)).values():
        # rounding of the centre (6e-8) over the least spread (1/255)
        np.testing.assert_allclose(everything(site.train), 0, atol=6e-8 * 255)


def test_the_least_spread_is_one_grey_value() -> None:
    flat = np.full((4, 1, 2, 2), 100, dtype=np.uint8)
    flat[3, 0, 0, 0] = 104  # spread 4 x sqrt(3) / 4 / 255, which is more than one grey value
    site_levels = levels(brightness(flat), {"a": np.arange(4)}, ["a"], Preparation(scale="image"))
    assert site_levels is not None
    assert site_levels["a"][:, 1].tolist() == pytest.approx([LEAST_SPREAD] * 3 + [np.sqrt(3) / 255], rel=1e-4)


def test_a_newcomer_is_scaled_by_its_own_rows_or_by_what_the_members_have_in_common() -> None:
    raw = images()
    members = ["south", "north"]
    newcomer = prepared("per-site", members)["dark"]
    own = raw[TRAIN["dark"]] / 255
    assert_scaled(newcomer.test, raw[TEST["dark"]], own.mean(), own.std())
    common = raw[np.concatenate([TRAIN[name] for name in members])] / 255
    newcomer = prepared("federated", members)["dark"]
    assert_scaled(newcomer.test, raw[TEST["dark"]], common.mean(), common.std())
    assert_scaled(prepared("federated", members)["south"].test, raw[TEST["south"]], common.mean(), common.std())


SCALES = ["per-site", "federated", "image", "none"]


def assert_pool_takes_the_same(parts: list[Rows], dtype: torch.dtype = torch.float64) -> None:
    pool = RowPool(parts)
    rng = np.random.default_rng(4)
    for part in parts:
        order = torch.from_numpy(rng.integers(0, len(part), (2, 3)))
        x, y = pool.take(torch.from_numpy(pool.of(part))[order], dtype)
        for step in range(2):
            expected_x, expected_y = part.take(order[step], dtype)
            torch.testing.assert_close(x[step], expected_x, rtol=0, atol=0)
            assert torch.equal(y[step], expected_y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", SCALES)
def test_a_stack_takes_the_batches_that_each_site_would(scale: str, dtype: torch.dtype) -> None:
    assert_pool_takes_the_same([site.train for site in prepared(scale).values()], dtype)


def test_a_stack_may_hold_the_same_images_scaled_in_several_ways() -> None:
    """Arms that differ in `data.scale`, or seeds with other training rows, share the pixels and nothing else."""
    cohort = cohort_of(records(images()))
    parts = []
    for scale in ("none", "per-site", "image", "none", "federated"):
        sites = prepare_sites(cohort, SPLITS, Preparation(scale=scale), torch.float64)
        parts += [site.train for site in sites]
    assert_pool_takes_the_same(parts)
    assert_pool_takes_the_same(parts[::-1])
    assert RowPool(parts).x is cohort.images


@pytest.mark.parametrize("scale", SCALES)
def test_a_stack_may_hold_the_images_of_two_sources(scale: str) -> None:
    first, second = prepared(scale), prepared("per-site", pixels=images()[::-1].copy())
    assert_pool_takes_the_same([site.train for site in (*first.values(), *second.values())])


@pytest.mark.parametrize("scale", SCALES)
def test_pooled_rows_keep_the_level_that_each_had_at_its_site(scale: str) -> None:
    sites = prepared(scale).values()
    pooled = join([site.train for site in sites])
    np.testing.assert_array_equal(everything(pooled), np.concatenate([everything(site.train) for site in sites]))
    assert pooled.labels.tolist() == [label for site in sites for label in site.train.labels.tolist()]


@pytest.mark.parametrize("mode", ["r", "c"])
def test_images_may_be_mapped_from_a_file(tmp_path: Path, mode: Any) -> None:
    radiographs = some_radiographs(60)
    np.save(tmp_path / "images.npy", radiographs.features)
    mapped = np.load(tmp_path / "images.npy", mmap_mode=mode)
    assert isinstance(mapped, np.memmap)
    contents = []
    for pixels in (radiographs.features, mapped):
        given = Records(pixels, radiographs.target, radiographs.classes, radiographs.hospital)
        cohort = load_cohort(Source(lambda given=given: given), Preparation())  # type: ignore[misc]
        rows = np.arange(len(given))
        sites = prepare_sites(cohort, [Split("a", rows[:40], NONE, rows[40:])], Preparation(), torch.float32)
        contents.append((cohort.fingerprint, everything(sites[0].train), everything(sites[0].test)))
    assert contents[0][0] == contents[1][0]
    np.testing.assert_array_equal(contents[0][1], contents[1][1])
    np.testing.assert_array_equal(contents[0][2], contents[1][2])
