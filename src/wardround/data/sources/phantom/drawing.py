"""A frontal chest radiograph from a few numbers: attenuation of tissue, bone and air, added up as a film adds them.

All images of a block are drawn at once in single precision. Lengths are in half images: x runs from -1 (the patient's
right, on the left of the image) to 1, y from -1 (top) to 1, both moved with the patient. Attenuation is 0 for air
outside the body and about 0.8 for heart and abdomen, which is how bright they are on the film.
"""

from dataclasses import dataclass, fields

import numpy as np


@dataclass(frozen=True)
class Body:
    """How one patient stands before one detector: each an array (images, 1, 1)."""

    shift: np.ndarray  # of the whole patient to the image's right
    drop: np.ndarray  # and downwards
    tilt: np.ndarray  # of heart and great vessels
    zoom: np.ndarray
    width: np.ndarray  # half, of the rib cage
    apex: np.ndarray  # top of the lungs
    dome_right: np.ndarray  # top of the diaphragm
    dome_left: np.ndarray
    arch: np.ndarray  # how far the diaphragm falls towards the ribs; 0 is flat
    heart: np.ndarray  # size; 1 is a heart of 46 % of the chest's width
    lean: np.ndarray  # of heart and windpipe to one side
    air: np.ndarray  # darkness of the lungs
    fat: np.ndarray  # brightness that soft tissue adds
    breast: np.ndarray
    vessels: np.ndarray  # brightness of the lungs' vessels
    bones: np.ndarray
    stomach: np.ndarray  # darkness of the gas in it
    soft: np.ndarray  # blur of the diaphragm by breathing
    arms: np.ndarray  # 1: at the patient's sides; 0: held away, as for a PA image


# Mean, spread between patients, and spread between the images of one patient.
TRAITS = {
    "shift": (0.0, 0.0, 0.035),
    "drop": (0.03, 0.0, 0.035),
    "tilt": (0.0, 0.0, 0.035),
    "zoom": (1.0, 0.04, 0.02),
    "width": (0.75, 0.04, 0.005),
    "apex": (-0.76, 0.025, 0.01),
    "dome_right": (0.40, 0.05, 0.03),
    "dome_left": (0.46, 0.05, 0.03),
    "arch": (1.0, 0.12, 0.05),
    "heart": (1.0, 0.06, 0.02),
    "lean": (0.0, 0.01, 0.01),
    "air": (0.42, 0.02, 0.02),
    "fat": (0.0, 0.03, 0.01),
    "breast": (0.0, 0.02, 0.0),
    "vessels": (0.10, 0.015, 0.01),
    "bones": (0.09, 0.015, 0.01),
    "stomach": (0.12, 0.04, 0.04),
    "soft": (0.05, 0.0, 0.01),
    "arms": (0.2, 0.1, 0.1),
}
# What lying in bed before a mobile machine adds: a larger, fainter picture of a patient who breathes in less.
LYING = {"dome_right": -0.08, "dome_left": -0.08, "air": -0.09, "fat": 0.05, "soft": 0.05, "arms": 0.8, "bones": -0.02}
LYING_HEART = 1.14  # nearer to the tube than to the detector, so its shadow is wider
FEMALE = {"breast": 0.09, "width": -0.03, "heart": -0.02}


@dataclass(frozen=True)
class Chest:
    """What was drawn, and where, so that findings can be added."""

    body: Body
    x: np.ndarray  # (images, 1, size)
    y: np.ndarray  # (images, size, 1)
    abs_x: np.ndarray  # |x|
    wall: np.ndarray  # inner side of the ribs: half the width at this height, (images, size, 1)
    depth: np.ndarray  # of the lung behind a point: thinner towards the ribs, 1 at most, (images, size, size)
    floor: np.ndarray  # height of the diaphragm, (images, 1, size)
    lung: np.ndarray  # 1 where air is seen: within the ribs, above the diaphragm, beside the heart
    vessels: np.ndarray  # what vessels add
    film: np.ndarray  # attenuation; findings are added here


def ramp(t: np.ndarray) -> np.ndarray:
    """From 0 at 0 to 1 at 1, smoothly."""
    t = np.minimum(np.maximum(t, 0), 1)
    result = 3 - 2 * t
    result *= t
    result *= t
    return np.asarray(result)


def bump(t: np.ndarray) -> np.ndarray:
    """1 at 0, falling smoothly to 0 at -1 and 1."""
    t = np.maximum(1 - t * t, 0)
    return np.asarray(t * t)


def stand(person: np.ndarray, moment: np.ndarray, is_ap: np.ndarray, is_female: np.ndarray) -> Body:
    """Bodies from standard normal numbers of the patient and of the image, a column for each trait."""
    traits = {}
    for column, (name, (mean, between, within)) in enumerate(TRAITS.items()):
        value = mean + between * person[:, column] + within * moment[:, column]
        value = value + LYING.get(name, 0.0) * is_ap + FEMALE.get(name, 0.0) * is_female
        traits[name] = value.astype(np.float32)[:, None, None]
    traits["heart"] *= np.where(is_ap, LYING_HEART, 1).astype(np.float32)[:, None, None]
    traits["breast"] = np.maximum(traits["breast"], 0)
    return Body(**{field.name: traits[field.name] for field in fields(Body)})


def wall_at(body: Body, y: np.ndarray) -> np.ndarray:
    """Half the width of the rib cage at a height: closed at the apex, widest at the costophrenic angles."""
    t = np.clip((y - body.apex) / 1.4, 0, 1)
    return np.asarray(body.width * np.sqrt(1 - (1 - t) ** 2.8))


def draw_chest(body: Body, size: int, tree: np.ndarray) -> Chest:
    """`tree` are the vessels of each image's lungs, from `vessel_trees`."""
    line = (2 * np.arange(size, dtype=np.float32) + 1) / size - 1
    edge = np.float32(max(0.03, 2.5 / size))  # no edge is sharper than a pixel: no steps at any size
    x = (line[None, None, :] - body.shift) / body.zoom
    y = (line[None, :, None] - body.drop) / body.zoom
    abs_x = np.abs(x)
    wall = wall_at(body, y)

    cage = ramp((wall - abs_x) / edge + 0.5)
    dome = body.dome_right + (body.dome_left - body.dome_right) * ramp(x / 0.2 + 0.5)
    floor = dome + body.arch * 0.22 * ((abs_x - 0.38) / 0.4) ** 2
    above = ramp((floor - y) / body.soft + 0.5)
    solid = _middle(body, x, y, edge)
    lung = cage * above * (1 - solid)
    out = np.minimum(abs_x / np.maximum(wall, 0.05), 1)
    depth = 1 - 0.45 * out * out * out

    film = _outline(body, abs_x, y, edge)
    belly = (1 - above) * ramp((body.width + 0.15 - abs_x) / 0.3)  # liver, spleen, bowel
    film += 0.22 * np.maximum(belly, solid * ramp((y - body.apex + 0.3) / 0.4))
    film -= body.air * depth * lung
    film += _bones(body, abs_x, y, cage * (0.3 + 0.7 * above) * (1 - 0.6 * solid), edge)
    film -= 0.12 * bump((x - body.lean + 0.01) / 0.06) * ramp((-0.22 - y) / 0.1)  # windpipe
    film += (body.breast * bump((abs_x - 0.42) / 0.42)) * bump((y - 0.25) / 0.42)
    gas = bump((x - 0.36) / 0.2) * bump((y - body.dome_left - 0.14) / 0.11)
    film -= body.stomach * gas * (1 - above)
    vessels = body.vessels * tree * lung
    film += vessels
    return Chest(body, x, y, abs_x, wall, depth, floor, lung, vessels, film)


def _outline(body: Body, abs_x: np.ndarray, y: np.ndarray, edge: np.float32) -> np.ndarray:
    """Soft tissue of neck, shoulders, arms and trunk, thinner towards its edge."""
    trunk = 0.95 + 0.2 * body.arms + 0.8 * body.fat
    half = 0.22 + 0.95 * ramp((y + 1.1) / 0.6) - (1.17 - trunk) * ramp((y + 0.55) / 0.8)
    out = np.minimum(abs_x / half, 1) ** 2
    return np.asarray((0.55 + body.fat) * (1 - 0.38 * out * out) * ramp((half - abs_x) / (2 * edge)))


def _middle(body: Body, x: np.ndarray, y: np.ndarray, edge: np.float32) -> np.ndarray:
    """Heart and great vessels, 1 where they hide the lungs.

    The heart is an ellipse that points down to the patient's left, and grows that way. Above it the vessels taper
    upwards, with the arch of the aorta on the patient's left.
    """
    x = x - body.lean - body.tilt * y
    dx = x - (0.03 + 0.08 * body.heart)
    dy = y - heart_height(body)
    along, aside = 0.82 * dx + 0.57 * dy, 0.82 * dy - 0.57 * dx
    heart = 1 - np.sqrt((along / (0.38 * body.heart)) ** 2 + (aside / (0.27 * body.heart)) ** 2)
    taper = ramp((y + 0.6) / 0.9)
    arch = 0.07 * bump((y + 0.33) / 0.15)
    half = np.where(x > 0, 0.08 + arch + 0.18 * taper * body.heart, 0.09 + 0.08 * taper)
    return np.asarray(np.maximum(ramp(heart * 0.15 / edge + 0.5), ramp((half - np.abs(x)) / 0.1 + 0.5)))


def heart_height(body: Body) -> np.ndarray:
    """Where the middle of the heart is: a low diaphragm lets it down."""
    return 0.10 + 0.13 * body.heart + 0.3 * (body.dome_left - 0.46)


def _bones(body: Body, abs_x: np.ndarray, y: np.ndarray, seen: np.ndarray, edge: np.float32) -> np.ndarray:
    """Ribs behind, ribs in front, collar bones, spine, shoulder blades."""
    turns = np.float32(2 * np.pi / 0.155)
    behind = 0.5 + 0.5 * _waves(turns * (y - body.apex), turns * (0.5 * abs_x * abs_x - 0.1 * abs_x))
    front = 0.5 + 0.5 * _waves(turns * (y - body.apex), turns * -0.6 * abs_x)
    ribs = behind * behind * ramp((abs_x - 0.06) / 0.1) + front * front * (0.5 * ramp((abs_x - 0.2) / 0.3))
    collar = bump((y - body.apex - 0.22 + 0.35 * abs_x - 0.25 * abs_x * abs_x) / (1.6 * edge))
    collar *= 1.1 * ramp((abs_x - 0.05) / 0.06) * ramp((0.85 - abs_x) / 0.2)
    spine = 0.45 * ramp((0.1 - abs_x) / 0.05) * (0.7 + 0.3 * np.cos(turns * 1.3 * y))
    blade = 0.7 * body.arms * bump((abs_x - 0.66) / 0.09) * bump((y + 0.3) / 0.35)
    return np.asarray(body.bones * (ribs * seen + collar + spine + blade))


def _waves(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """cos(a - b) where a is a column and b a line of pixels: four short cosines instead of a long one."""
    return np.asarray(np.cos(a) * np.cos(b) + np.sin(a) * np.sin(b))


def vessel_trees(size: int, count: int, draws: np.random.Generator) -> np.ndarray:
    """Vessels that branch from the roots of both lungs, (count, size, size), about 1 where they are brightest."""
    line = (2 * np.arange(size, dtype=np.float32) + 1) / size - 1
    abs_x, y = np.abs(line)[None, None, :], line[None, :, None] + 0.02
    lung = (line > 0).astype(int)
    angle, away = np.arctan2(y, abs_x - 0.17), np.hypot(y, abs_x - 0.17)
    phase = draws.uniform(0, 2 * np.pi, (4, count, 2)).astype(np.float32)[:, :, None, lung]
    bend = 0.5 * np.sin(6 * away + phase[0]) + 0.3 * np.sin(13 * away + phase[1])
    thick = np.maximum(np.cos(5 * (angle + bend * 0.6) + phase[2]), 0) ** 3
    thin = np.maximum(np.cos(11 * (angle + bend * 0.5) + phase[3]), 0) ** 3
    root = bump(away / 0.25)
    central, peripheral = bump(away / 0.6) * ramp(away / 0.2), bump((away - 0.35) / 0.4)
    return np.asarray(0.9 * root + 0.9 * thick * central + 0.45 * thin * peripheral)


def clouds(draws: np.random.Generator, count: int, cells: int, size: int) -> np.ndarray:
    """Smooth noise, (count, size, size): standard normal numbers on a grid of cells with cubic blending between."""
    coarse = draws.standard_normal((count, cells, cells), dtype=np.float32)
    place = (np.arange(size) + 0.5) / size * (cells - 1)
    weights = ramp(1 - np.abs(place[:, None] - np.arange(cells)[None])).astype(np.float32)
    return np.asarray(weights @ coarse @ weights.T)
