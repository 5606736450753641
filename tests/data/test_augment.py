"""What augmentation does to an image, pixel by pixel, and what it leaves alone: who is in which batch."""

from collections import deque
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.radiographs import a_study, some_radiographs, source_of
from tests.small_federations import trial
from wardround import load_plan, load_study
from wardround.algorithms.fedavg import fedavg
from wardround.core.errors import StudyError
from wardround.core.seeds import generator
from wardround.data.augment import _warped, augmenter
from wardround.data.site import Rows, Site
from wardround.engines.serial import order_of, train_site
from wardround.runs.units import cut
from wardround.study.schema import Augmentation
from wardround.training.rounds import start
from wardround.training.trial import assign


class Fixed:
    """A generator whose uniform draws are said beforehand: angles in degrees, cuts, then shifts from -1 to 1."""

    def __init__(self, *draws: Any) -> None:
        self.draws = deque(draws)

    def uniform(self, low: float, high: float, size: int | tuple[int, ...]) -> np.ndarray:
        return np.broadcast_to(np.asarray(self.draws.popleft(), dtype=float), size)


def warped(x: Tensor, angle: float = 0.0, cut: float = 0.0, shift: tuple[float, float] = (0.0, 0.0)) -> Tensor:
    return _warped(x, Augmentation(), cast("np.random.Generator", Fixed(angle, cut, shift)))


def pictures(count: int = 5, height: int = 8, width: int = 8) -> Tensor:
    return torch.from_numpy(np.random.default_rng(1).random((count, 1, height, width)))


def change(x: Tensor, seed: int = 3, **settings: Any) -> Tensor:
    augment = augmenter(Augmentation(**settings), generator(seed, "augment"))
    assert augment is not None
    return augment(x)


@pytest.mark.parametrize(("flip", "kinds"), [("horizontal", 2), ("both", 4)])
def test_a_flip_mirrors_every_other_image_and_changes_no_pixel(flip: str, kinds: int) -> None:
    x = pictures(1).expand(400, -1, -1, -1)
    changed = change(x, flip=flip)
    ways = {"as it was": x[0], "left and right": x[0].flip(-1), "up and down": x[0].flip(-2), "both": x[0].flip(-1, -2)}
    counts = {way: int(sum(torch.equal(image, expected) for image in changed)) for way, expected in ways.items()}
    assert sum(counts.values()) == 400  # each image is exactly one of these
    expected = dict.fromkeys(list(ways)[:2] if kinds == 2 else ways, 400 / kinds)
    # four standard deviations of a binomial count
    for way, count in counts.items():
        assert count == pytest.approx(expected.get(way, 0), abs=4 * np.sqrt(400 / kinds) if way in expected else 0)


@pytest.mark.parametrize(("angle", "turns"), [(90, 1), (-90, -1), (180, 2)])
def test_a_quarter_turn_is_torchs_rot90(angle: float, turns: int) -> None:
    x = pictures()
    torch.testing.assert_close(warped(x, angle), torch.rot90(x, turns, (-2, -1)), rtol=0, atol=1e-12)


def test_each_image_is_turned_by_its_own_angle() -> None:
    x = pictures(3)
    turned = _warped(x, Augmentation(), cast("np.random.Generator", Fixed([0, 90, -90], 0.0, (0.0, 0.0))))
    for image, before, turns in zip(turned, x, (0, 1, -1), strict=True):
        torch.testing.assert_close(image, torch.rot90(before, turns, (-2, -1)), rtol=0, atol=1e-12)


@pytest.mark.parametrize("shift", [(-1, -1), (1, -1), (0, 0), (-0.5, 1)])
def test_a_cut_shows_the_part_that_was_drawn_stretched_to_the_whole(shift: tuple[float, float]) -> None:
    """On an image that rises evenly to the right and downwards, bilinear sampling is exact.

    Pixel i of n has its middle at u = (2 i + 1) / n - 1. With a half left, the new pixel shows the old place
    u / 2 + shift / 2, which is pixel ((u / 2 + shift / 2 + 1) n - 1) / 2; beyond the edge the edge repeats.
    """
    n = 8
    across, down = torch.arange(n, dtype=torch.float64), 10 * torch.arange(n, dtype=torch.float64)
    x = (across + down[:, None]).reshape(1, 1, n, n)
    middle = (2 * np.arange(n) + 1) / n - 1
    places = [np.clip(((middle / 2 + s / 2 + 1) * n - 1) / 2, 0, n - 1) for s in shift]
    expected = torch.from_numpy(places[0] + 10 * places[1][:, None]).reshape(1, 1, n, n)
    torch.testing.assert_close(warped(x, cut=0.5, shift=shift), expected, rtol=0, atol=1e-12)


def test_a_cut_without_a_turn_never_looks_outside_the_image() -> None:
    """Outside would repeat the edge: an image that rises to the right would then have equal neighbours."""
    n = 64
    x = torch.arange(n, dtype=torch.float64).expand(300, 1, n, n).contiguous()
    changed = change(x, crop=0.3)[:, 0, 0]
    steps = changed.diff(dim=1)[:, 1:-1]  # the outermost half pixel may lie on the edge itself
    assert float(steps.min()) >= 0.7 - 1e-9
    assert float(steps.max()) <= 1 + 1e-9
    assert float(changed.min()) >= 0
    assert float(changed.max()) <= n - 1


def test_a_bar_in_an_image_that_is_not_square_keeps_its_length_and_width_when_turned() -> None:
    x = torch.zeros(1, 1, 24, 48, dtype=torch.float64)
    x[..., 10:14, 18:30] = 1  # 4 high, 12 wide, about the middle
    expected = torch.zeros_like(x)
    expected[..., 6:18, 22:26] = 1
    torch.testing.assert_close(warped(x, 90), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("angle", [30, 45, 73])
def test_a_square_in_an_image_that_is_not_square_is_not_sheared(angle: float) -> None:
    """A square's spread in pixels is the same in every direction, however it is turned: (a^2 - 1) / 12 each way.

    Sampling blurs its edges, which moves these figures by a few parts in a hundred; shearing would by a factor of 4.
    """
    x = torch.zeros(1, 1, 40, 80, dtype=torch.float64)
    x[..., 12:28, 32:48] = 1
    turned = warped(x, angle)[0, 0]
    down = torch.arange(40, dtype=torch.float64)[:, None] - 19.5
    across = torch.arange(80, dtype=torch.float64) - 39.5
    area = turned.sum()
    spread = [float((turned * place).sum() / area) for place in (down**2, across**2, down * across)]
    assert float(area) == pytest.approx(256, rel=0.03)
    assert spread[0] == pytest.approx(255 / 12, rel=0.05)
    assert spread[1] == pytest.approx(255 / 12, rel=0.05)
    assert spread[2] == pytest.approx(0, abs=0.5)


def test_noise_has_the_spread_that_is_asked_for() -> None:
    x = torch.full((16, 1, 64, 64), 0.5)
    noise = change(x, noise=0.05) - x
    # 65,536 draws: the standard error of their SD is 0.05 / sqrt(2 x 65,536), of their mean 0.05 / 256
    assert float(noise.std()) == pytest.approx(0.05, abs=5 * 0.05 / np.sqrt(2 * 65_536))
    assert float(noise.mean()) == pytest.approx(0, abs=5 * 0.05 / 256)


def test_noise_stays_within_black_and_white() -> None:
    changed = change(torch.rand(4, 1, 16, 16).round(), noise=0.5)
    assert float(changed.min()) == 0
    assert float(changed.max()) == 1


def test_the_images_that_were_given_are_left_as_they_were() -> None:
    x = pictures()
    before = x.clone()
    change(x, flip="both", rotate=20.0, crop=0.2, noise=0.1)
    assert torch.equal(x, before)


def test_the_same_stream_gives_the_same_bytes_and_another_does_not() -> None:
    x = pictures().float()
    settings: dict[str, Any] = {"flip": "both", "rotate": 20.0, "crop": 0.2, "noise": 0.1}
    assert torch.equal(change(x, **settings), change(x, **settings))
    assert not torch.equal(change(x, **settings), change(x, seed=4, **settings))


@pytest.mark.parametrize("settings", [None, Augmentation()])
def test_where_nothing_is_asked_nothing_is_done(settings: Augmentation | None) -> None:
    assert augmenter(settings, generator(1, "augment")) is None


def image_sites() -> list[Site]:
    x = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (30, 1, 6, 6), dtype=np.uint8))
    y = torch.arange(30) % 2
    none = np.array([], dtype=np.int64)
    parts = [Rows(x, y, torch.arange(30)[places]) for places in (slice(0, 11), slice(11, 30))]
    return [Site(f"site-{n}", part, part, part, none, none) for n, part in enumerate(parts)]


def test_augmentation_leaves_every_batch_with_the_rows_that_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = trial(fedavg(), image_sites())
    training = replace(plain.training, augment=Augmentation("both", 30.0, 0.2, 0.1))
    augmented = replace(plain, training=training)
    batches: list[tuple[list[int], bool]] = []
    take = Rows.take

    def watched(self: Rows, order: Tensor, dtype: torch.dtype, change: Any = None) -> tuple[Tensor, Tensor]:
        batches.append((order.tolist(), change is not None))
        return take(self, order, dtype, change)

    monkeypatch.setattr(Rows, "take", watched)
    seen = []
    for arm in (plain, augmented):
        for assignment in assign(arm, 0):
            assert [part.tolist() for part in order_of(arm, assignment.site, 0, 2)] == [
                part.tolist() for part in order_of(plain, assignment.site, 0, 2)
            ]
            train_site(arm, start(arm), assignment)
        seen.append(list(batches))
        batches.clear()
    assert [rows for rows, _ in seen[0]] == [rows for rows, _ in seen[1]]
    assert {changed for _, changed in seen[0]} == {False}
    assert {changed for _, changed in seen[1]} == {True}


def test_images_are_changed_before_they_are_scaled() -> None:
    """Noise is on pixels from 0 to 1, whatever a site's spread is."""
    x = torch.full((8, 1, 16, 16), 128, dtype=torch.uint8)
    rows = Rows(x, torch.zeros(8, dtype=torch.int64), torch.arange(8), torch.tensor([[0.25, 0.1]] * 8))
    changed, _ = rows.take(torch.arange(8), torch.float64, lambda pixels: pixels * 0)
    torch.testing.assert_close(changed, torch.full_like(changed, -2.5), rtol=0, atol=1e-6)


def test_a_table_cannot_be_mirrored() -> None:
    raw = {
        "name": "table",
        "data": {"source": "heart"},
        "training": {"augment": {"flip": "horizontal"}},
        "arms": [{"algorithm": "fedavg"}],
    }
    with pytest.raises(StudyError, match="training: augment"):
        cut(load_plan(*load_study(raw)), "auto")
    raw = a_study(training={"augment": {"flip": "horizontal"}})
    images = load_plan(*load_study(raw, sources=source_of(some_radiographs())))
    assert [unit.engine for unit in cut(images, "auto")] == ["serial"]
