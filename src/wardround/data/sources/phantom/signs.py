"""Findings in drawn chests: where each is, which anatomy it moves, and what it adds to the film.

Some findings move the anatomy before it is drawn (`reshape`), most add attenuation afterwards (`add_findings`). A
finding stays where it was from one image of a patient to the next. Its severity runs from faint to plain, so that
nobody sees it in every image that has it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from wardround.data.imaging.finding_names import FINDINGS
from wardround.data.records import BOX_COLUMNS
from wardround.data.sources.phantom.drawing import Body, Chest, bump, clouds, heart_height, ramp, wall_at


@dataclass(frozen=True)
class Spots:
    """Where and how strongly one finding is seen in the images that have it: each an array (images, 1, 1)."""

    laterality: np.ndarray  # -1: the patient's right, on the left of the image; 1: left
    both: np.ndarray  # 1 where the other side has it too
    high: np.ndarray  # 0 to 1, from the top of its zone down
    outward: np.ndarray  # 0 to 1, from the middle outwards
    large: np.ndarray  # 0 to 1
    severity: np.ndarray  # 0.2 to 1


# Around a sign: left, top, right and bottom in the chest's lengths, and where the image has it.
Box = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]
CHANCES = len(fields(Spots))  # uniform numbers that place a finding


def place(lasting: np.ndarray, passing: np.ndarray) -> Spots:
    """Spots from uniform numbers of the patient and of the image, (images, CHANCES)."""
    moved = np.clip(lasting + 0.12 * (passing - 0.5), 0, 1)
    severity = 0.2 + 0.8 * (0.6 * lasting[:, 5] + 0.4 * passing[:, 5])
    laterality, both = np.where(lasting[:, 0] < 0.5, -1, 1), lasting[:, 1] < 0.35
    columns = (laterality, both, moved[:, 2], moved[:, 3], moved[:, 4], severity)
    return Spots(*(column.astype(np.float32)[:, None, None] for column in columns))


def reshape(body: Body, target: np.ndarray, spots: dict[str, Spots]) -> Body:
    """The anatomy that findings move: a wide heart, lost or trapped air, a heart that is pushed or pulled."""
    has = {name: target[:, k].astype(np.float32)[:, None, None] for k, name in enumerate(FINDINGS)}
    strong = {name: has[name] * spots[name].severity for name in FINDINGS}
    wide, trapped, collapsed = strong["Cardiomegaly"], strong["Emphysema"], strong["Atelectasis"]
    right = (spots["Atelectasis"].laterality < 0).astype(np.float32)
    lost = 0.06 * has["Fibrosis"] - 0.12 * trapped
    return replace(
        body,
        heart=body.heart * (1 + 0.04 * has["Cardiomegaly"] + 0.26 * wide + 0.05 * has["Edema"] - 0.1 * trapped),
        arch=body.arch * (1 - 0.7 * trapped),  # flat diaphragm
        dome_right=body.dome_right - lost - 0.14 * collapsed * right,
        dome_left=body.dome_left - lost - 0.14 * collapsed * (1 - right),
        air=body.air * (1 + 0.15 * trapped),
        vessels=body.vessels * (1 - 0.4 * trapped + 0.4 * strong["Edema"]),
        lean=body.lean
        + 0.05 * collapsed * spots["Atelectasis"].laterality  # pulled
        - 0.05 * strong["Pneumothorax"] * spots["Pneumothorax"].laterality,  # pushed
    )


def add_findings(chest: Chest, target: np.ndarray, spots: dict[str, Spots], draws: np.random.Generator) -> np.ndarray:
    """Draws onto `chest.film`, and returns a line of BOX_COLUMNS for everything that has a place."""
    size = chest.film.shape[1]
    lines = [np.empty((0, len(BOX_COLUMNS)))]
    for number, (name, sign) in enumerate(SIGNS.items()):
        rows = np.flatnonzero(target[:, number])
        if not len(rows):
            continue
        part = _pick(chest, rows)
        here = Spots(*(getattr(spots[name], field.name)[rows] for field in fields(Spots)))

        def cloud(cells: int, count: int = len(rows)) -> np.ndarray:
            return clouds(draws, count, cells, size)

        film, boxes = sign(part, here, cloud)
        chest.film[rows] += film
        for *sides, shown in boxes:
            labels = np.stack([rows, np.full(len(rows), number)], axis=1)
            lines.append(np.concatenate([labels, in_image(sides, part.body)], axis=1)[shown.reshape(-1) > 0])
    return np.concatenate(lines)


def in_image(sides: Sequence[np.ndarray], body: Body) -> np.ndarray:
    """x, y, width and height of a box in parts of the image, (images, 4). `sides` are left, top, right and bottom."""
    moves = (body.shift, body.drop, body.shift, body.drop)

    def part(values: np.ndarray, moved: np.ndarray) -> np.ndarray:
        return np.asarray(np.clip((values * body.zoom + moved + 1) / 2, 0, 1), dtype=np.float64).reshape(-1)

    left, top, right, bottom = map(part, sides, moves)
    return np.stack([left, top, right - left, bottom - top], axis=1)


def _pick(chest: Chest, rows: np.ndarray) -> Chest:
    body = Body(*(getattr(chest.body, field.name)[rows] for field in fields(Body)))
    return Chest(body, *(getattr(chest, field.name)[rows] for field in fields(Chest)[1:]))


Cloud = Callable[[int], np.ndarray]  # smooth noise for these images from a grid of so many cells
Drawn = tuple[np.ndarray, list[Box]]  # attenuation to add, and around what
Sign = Callable[[Chest, Spots, Cloud], Drawn]


def _within(
    chest: Chest, spots: Spots, laterality: np.ndarray, low: float, high: float
) -> tuple[np.ndarray, np.ndarray]:
    """A point in the lung between two parts of its height, clear of heart and ribs."""
    body = chest.body
    y = body.apex + (low + (high - low) * spots.high) * (_dome(body, laterality) - body.apex)
    inner = 0.22 + 0.2 * ramp((y + 0.1) / 0.4) * body.heart * (laterality > 0)
    outer = wall_at(body, y) - 0.1
    return laterality * (inner + spots.outward * np.maximum(outer - inner, 0)), y


def _dome(body: Body, laterality: np.ndarray) -> np.ndarray:
    return np.where(laterality < 0, body.dome_right, body.dome_left)


def _sided(laterality: np.ndarray, inner: np.ndarray, outer: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Left and right end of what lies between two distances from the middle."""
    return np.minimum(laterality * inner, laterality * outer), np.maximum(laterality * inner, laterality * outer)


def _around(x: np.ndarray, y: np.ndarray, rx: np.ndarray, ry: np.ndarray, shown: np.ndarray | None = None) -> Box:
    return x - rx, y - ry, x + rx, y + ry, np.ones_like(x) if shown is None else shown


def _both_lungs(inner: np.ndarray, top: np.ndarray, outer: np.ndarray, bottom: Sequence[np.ndarray]) -> list[Box]:
    """A box for each lung, between two distances from the middle; `bottom` is the right one's, then the left one's."""
    sides = ((_sided(np.full_like(inner, side), inner, outer), end) for side, end in zip((-1, 1), bottom, strict=True))
    return [(left, top, right, end, np.ones_like(top)) for (left, right), end in sides]


def _ball(chest: Chest, x: np.ndarray, y: np.ndarray, radius: np.ndarray) -> np.ndarray:
    """A sphere's shadow with a clear edge."""
    distance = np.sqrt((chest.x - x) ** 2 + (chest.y - y) ** 2)
    return ramp((radius - distance) / np.maximum(0.5 * radius, 2.0 / chest.film.shape[1]) + 0.5)


def _patch(
    chest: Chest, x: np.ndarray, y: np.ndarray, rx: np.ndarray, ry: np.ndarray, cloud: np.ndarray, sharp: float
) -> np.ndarray:
    """Airspace shadow with an edge as ragged as the cloud; `sharp` is how quickly it begins."""
    inside = 1 - ((chest.x - x) / rx) ** 2 - ((chest.y - y) / ry) ** 2
    return np.asarray(ramp(sharp * (inside + 0.4 * cloud)) * ramp(inside + 0.7) * chest.lung)


def atelectasis(chest: Chest, spots: Spots, cloud: Cloud) -> Drawn:
    """Plates of collapsed lung above a raised diaphragm."""
    x, y = _within(chest, spots, spots.laterality, 0.6, 0.85)
    half, thick = 0.15 + 0.12 * spots.large, 0.03 + 0.015 * spots.large
    slope = 0.5 * (spots.outward - 0.5)
    line = chest.y - y - slope * (chest.x - x)
    plates = bump(line / thick) + 0.6 * bump((line + 0.11) / thick)
    film = 0.3 * spots.severity * plates * ramp((half - np.abs(chest.x - x)) / 0.08) * chest.lung
    return film, [_around(x, y - 0.05, half, 0.11 + half * np.abs(slope))]


def cardiomegaly(chest: Chest, spots: Spots, cloud: Cloud) -> Drawn:
    """A heart wider than half the chest, which `reshape` drew; here only its box."""
    body = chest.body
    y = heart_height(body)
    x = body.lean + body.tilt * y + 0.03 + 0.08 * body.heart
    return np.zeros_like(chest.lung), [_around(x, y, 0.35 * body.heart, 0.31 * body.heart)]


def effusion(chest: Chest, spots: Spots, cloud: Cloud) -> Drawn:
    """Fluid that blunts the costophrenic angle and climbs along the ribs: the meniscus."""
    film, body, boxes = np.zeros_like(chest.lung), chest.body, []
    for laterality, part, shown in (
        (spots.laterality, 1.0, np.ones_like(spots.both)),
        (-spots.laterality, 0.6, spots.both),
    ):
        height = part * (0.15 + 0.45 * spots.severity * spots.large)
        bottom = _dome(body, laterality) + 0.17 * body.arch
        surface = bottom - height * (0.45 + 0.55 * np.minimum(chest.abs_x / np.maximum(chest.wall, 0.05), 1) ** 4)
        fluid = ramp((chest.y - surface) / 0.07 + 0.3) * (chest.x * laterality > 0) * chest.lung * shown
        film += ((0.18 + 0.3 * spots.severity) * chest.depth - 0.8 * chest.vessels) * fluid
        wall = wall_at(body, bottom)
        left, right = _sided(laterality, 0.3 * wall, wall)
        boxes.append((left, bottom - height, right, bottom, shown))
    return film, boxes


def infiltration(chest: Chest, spots: Spots, cloud: Cloud) -> Drawn:
    """Faint, ill-defined, wide shadows, often on both sides."""
    film, texture, boxes = np.zeros_like(chest.lung), cloud(9), []
    for laterality, shown in ((spots.laterality, np.ones_like(spots.both)), (-spots.laterality, spots.both)):
        x, y = _within(chest, spots, laterality, 0.4, 0.85)
        rx, ry = 0.2 + 0.12 * spots.large, 0.24 + 0.14 * spots.large
        film += (0.1 + 0.17 * spots.severity) * _patch(chest, x, y, rx, ry, texture, 0.6) * shown
        boxes.append(_around(x, y, rx, ry, shown))
    return film, boxes


def pneumonia(chest: Chest, spots: Spots, cloud: Cloud) -> Drawn:
    """A mottled lobe, mostly a lower one."""
    x, y = _within(chest, spots, spots.laterality, 0.55, 0.9)
    rx, ry = 0.2 + 0.1 * spots.large, 0.2 + 0.1 * spots.large
    return (0.16 + 0.22 * spots.severity) * _patch(chest, x, y, rx, ry, cloud(15), 0.9), [_around(x, y, rx, ry)]


def consolidation(chest: Chest, spots: Spots, cloud: Cloud) -> Drawn:
    """Dense and even: no vessel is seen within it, and a fissure cuts its lower edge."""
    x, y = _within(chest, spots, spots.laterality, 0.35, 0.85)
    rx, ry = 0.28 + 0.12 * spots.large, 0.2 + 0.12 * spots.large
    shadow = _patch(chest, x, y, rx, ry, cloud(11), 1.3) * ramp((y + 0.7 * ry - chest.y) / 0.12 + 0.5)
    film = (0.14 + 0.22 * spots.severity) * shadow - 0.8 * chest.vessels * shadow
    return film, [(x - rx, y - ry, x + rx, y + 0.7 * ry, np.ones_like(x))]


def mass(chest: Chest, spots: Spots, cloud: Cloud) -> Drawn:
    """Round, wider than 3 cm; a chest is about 30 cm wide."""
    x, y = _within(chest, spots, spots.laterality, 0.2, 0.85)
    radius = 0.11 + 0.08 * spots.large
    film = (0.17 + 0.2 * spots.severity) * _ball(chest, x, y, radius) * (0.3 + 0.7 * chest.lung)
    return film, [_around(x, y, radius, radius)]


def nodule(chest: Chest, spots: Spots, cloud: Cloud) -> Drawn:
    """Round, up to 3 cm; some have one on each side."""
    film, radius, boxes = np.zeros_like(chest.lung), 0.055 + 0.03 * spots.large, []
    for laterality, high, shown in (
        (spots.laterality, spots.high, np.ones_like(spots.both)),
        (-spots.laterality, 1 - spots.high, spots.both),
    ):
        x, y = _within(chest, replace(spots, high=high), laterality, 0.2, 0.88)
        film += (0.2 + 0.22 * spots.severity) * _ball(chest, x, y, radius) * (0.3 + 0.7 * chest.lung) * shown
        boxes.append(_around(x, y, radius, radius, shown))
    return film, boxes


def pneumothorax(chest: Chest, spots: Spots, cloud: Cloud) -> Drawn:
    """Air beside the lung: a dark rim without vessels, and the thin line of the lung's own edge."""
    body = chest.body
    gap = 0.06 + 0.2 * spots.severity * spots.large
    inner = wall_at(replace(body, apex=body.apex + 1.3 * gap), chest.y) - gap
    here = (chest.x * spots.laterality > 0) * chest.lung
    outside = ramp((chest.abs_x - inner) / 0.03 + 0.5) * here
    thin = np.float32(max(0.02, 1.2 / chest.film.shape[1]))
    film = -(0.14 * body.air + chest.vessels) * outside
    film += (0.04 + 0.1 * spots.severity) * bump((chest.abs_x - inner) / thin) * here * (inner > 0)
    bottom = _dome(body, spots.laterality) + 0.15 * body.arch
    wide = wall_at(body, bottom)
    left, right = _sided(spots.laterality, np.minimum(0.3 * wide, wide - gap), wide)
    return film, [(left, body.apex, right, bottom, np.ones_like(gap))]


def edema(chest: Chest, spots: Spots, cloud: Cloud) -> Drawn:
    """Haze around the roots of both lungs, a butterfly, with blurred vessels."""
    wings = bump((chest.abs_x - 0.25) / 0.5) * bump((chest.y - 0.02) / 0.6) * chest.lung
    top = np.full_like(spots.high, -0.36)
    boxes = _both_lungs(0.05 + 0 * top, top, 0.62 + 0 * top, (0.38 + 0 * top,) * 2)
    return (0.03 + 0.15 * spots.severity) * wings * (1 + 0.25 * cloud(13)), boxes


def emphysema(chest: Chest, spots: Spots, cloud: Cloud) -> Drawn:
    """Air that is trapped: `reshape` drew it; here the upper zones darken a little more."""
    body = chest.body
    floors = (body.dome_right, body.dome_left)
    boxes = _both_lungs(np.full_like(body.apex, 0.08), body.apex, wall_at(body, body.dome_left), floors)
    return -0.05 * spots.severity * chest.lung * bump((chest.y + 0.4) / 0.5), boxes


def fibrosis(chest: Chest, spots: Spots, cloud: Cloud) -> Drawn:
    """A net of fine lines at both bases and along the ribs."""
    net = bump(cloud(24) / 0.6) - 0.15  # the lines are where the noise is near zero
    where = np.maximum(
        ramp((chest.y - chest.floor + 0.55) / 0.35),
        ramp((chest.abs_x / np.maximum(chest.wall, 0.05) - 0.72) / 0.15) * (chest.y > -0.3),
    )
    body = chest.body
    floors = tuple(dome + 0.15 * body.arch for dome in (body.dome_right, body.dome_left))
    boxes = _both_lungs(np.full_like(body.apex, 0.1), np.full_like(body.apex, -0.3), wall_at(body, floors[1]), floors)
    return (0.08 + 0.16 * spots.severity) * net * where * chest.lung, boxes


def pleural_thickening(chest: Chest, spots: Spots, cloud: Cloud) -> Drawn:
    """A bright rim along the ribs, over the apex or over the lower half."""
    body = chest.body
    thick = 0.08 + 0.06 * spots.severity
    low = spots.high > 0.4
    rim = ramp((chest.abs_x - chest.wall + thick) / 0.04 + 0.5) * chest.lung
    length = np.where(low, ramp(chest.y / 0.15), ramp((body.apex + 0.4 - chest.y) / 0.15))
    film = (0.17 + 0.2 * spots.severity) * rim * length * (chest.x * spots.laterality > 0)
    top, bottom = np.where(low, 0.03, body.apex), np.where(low, _dome(body, spots.laterality) + 0.12, body.apex + 0.37)
    inner = np.where(low, wall_at(body, top) - thick, 0.1)
    left, right = _sided(spots.laterality, inner, wall_at(body, bottom))
    return film, [(left, top, right, bottom, np.ones_like(thick))]


def hernia(chest: Chest, spots: Spots, cloud: Cloud) -> Drawn:
    """The stomach behind the heart: a round shadow with gas in it, and a level where gas meets fluid."""
    x, y = 0.02 + 0.12 * spots.outward, chest.body.dome_left - 0.13
    radius = 0.15 + 0.05 * spots.large
    pouch = _ball(chest, x, y, radius)
    gas = _ball(chest, x, y, 0.8 * radius) * ramp((y + 0.2 * radius - chest.y) / 0.03 + 0.5)
    film = 0.06 * pouch + 0.12 * pouch * chest.lung - (0.1 + 0.3 * spots.severity) * gas
    return film, [_around(x, y, radius, radius)]


SIGNS: dict[str, Sign] = {
    "Atelectasis": atelectasis,
    "Cardiomegaly": cardiomegaly,
    "Effusion": effusion,
    "Infiltration": infiltration,
    "Mass": mass,
    "Nodule": nodule,
    "Pneumonia": pneumonia,
    "Pneumothorax": pneumothorax,
    "Consolidation": consolidation,
    "Edema": edema,
    "Emphysema": emphysema,
    "Fibrosis": fibrosis,
    "Pleural_Thickening": pleural_thickening,
    "Hernia": hernia,
}
