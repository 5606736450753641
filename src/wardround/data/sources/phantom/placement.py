"""Findings in drawn chests: where each is, which anatomy it moves, and what it adds to the film.

Some findings move the anatomy before it is drawn (`reshape`), most add attenuation afterwards (`add_findings`). A
finding stays where it was from one image of a patient to the next. Its severity runs from faint to plain, so that
nobody sees it in every image that has it.
"""

from dataclasses import fields, replace

import numpy as np

from wardround.data.imaging.finding_names import FINDINGS
from wardround.data.records import BOX_COLUMNS
from wardround.data.sources.phantom.drawing import Body, Chest, clouds
from wardround.data.sources.phantom.signs import SIGNS, Box, Spots

CHANCES = len(fields(Spots))  # uniform numbers that place a finding


def place(lasting: np.ndarray, passing: np.ndarray) -> Spots:
    """Spots from uniform numbers of the patient and of the image, (images, CHANCES)."""
    moved = np.clip(lasting + 0.12 * (passing - 0.5), 0, 1)
    severity = 0.2 + 0.8 * (0.6 * lasting[:, 5] + 0.4 * passing[:, 5])
    side, both = np.where(lasting[:, 0] < 0.5, -1, 1), lasting[:, 1] < 0.35
    columns = (side, both, moved[:, 2], moved[:, 3], moved[:, 4], severity)
    return Spots(*(column.astype(np.float32)[:, None, None] for column in columns))


def reshape(body: Body, target: np.ndarray, spots: dict[str, Spots]) -> Body:
    """The anatomy that findings move: a wide heart, lost or trapped air, a heart that is pushed or pulled."""
    has = {name: target[:, k].astype(np.float32)[:, None, None] for k, name in enumerate(FINDINGS)}
    strong = {name: has[name] * spots[name].severity for name in FINDINGS}
    wide, trapped, collapsed = strong["Cardiomegaly"], strong["Emphysema"], strong["Atelectasis"]
    right = (spots["Atelectasis"].side < 0).astype(np.float32)
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
        + 0.05 * collapsed * spots["Atelectasis"].side  # pulled
        - 0.05 * strong["Pneumothorax"] * spots["Pneumothorax"].side,  # pushed
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
        for box in boxes:
            shown = box.shown.reshape(-1) > 0
            labels = np.stack([rows, np.full(len(rows), number)], axis=1)
            lines.append(np.concatenate([labels, in_image(box, part.body)], axis=1)[shown])
    return np.concatenate(lines)


def in_image(box: Box, body: Body) -> np.ndarray:
    """x, y, width and height of a box in parts of the image, (images, 4)."""

    def part(values: np.ndarray, moved: np.ndarray) -> np.ndarray:
        return np.asarray(np.clip((values * body.zoom + moved + 1) / 2, 0, 1), dtype=np.float64).reshape(-1)

    left, right = part(box.left, body.shift), part(box.right, body.shift)
    top, bottom = part(box.top, body.drop), part(box.bottom, body.drop)
    return np.stack([left, top, right - left, bottom - top], axis=1)


def _pick(chest: Chest, rows: np.ndarray) -> Chest:
    body = Body(*(getattr(chest.body, field.name)[rows] for field in fields(Body)))
    return Chest(body, *(getattr(chest, field.name)[rows] for field in fields(Chest)[1:]))
