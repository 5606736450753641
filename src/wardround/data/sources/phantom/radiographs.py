"""Chest radiographs drawn from formulas, for machines without data: no patient is behind them.

Findings come as often and together as in the label file of the NIH, with several images of many patients and a machine
at each hospital that makes its own kind of picture. What a model scores here says that the software works, and nothing
about medicine.

Wang, Peng, Lu, Lu, Bagheri and Summers, "ChestX-ray8", CVPR 2017, arXiv:1705.02315; the counts are of the label file
that the NIH Clinical Center published with it (`Data_Entry_2017`, 14 findings, 112,120 images of 30,805 patients).
"""

from dataclasses import dataclass
from functools import cache
from typing import Annotated

import numpy as np
import pandas as pd
from scipy.special import ndtr, ndtri

from wardround.core.notices import Notice
from wardround.core.seeds import generator
from wardround.core.settings import Count, NonNegative, Range, WholeNumber
from wardround.data.imaging.finding_names import FINDINGS
from wardround.data.records import BOX_COLUMNS, Records, Source
from wardround.data.sources.phantom.drawing import TRAITS, draw_chest, stand, vessel_trees
from wardround.data.sources.phantom.signs import CHANCES, add_findings, place, reshape
from wardround.study.facts import SourceFacts, declares

PATIENTS = 64  # in a block; each block has its own draws, so that more rows leave the first ones as they were
TOGETHER = 32  # images that are drawn at once: enough to be quick, few enough for a small memory
MOST_IMAGES = 100  # of one patient
TREES = 32  # different vessels

IMAGES = {"AP": 44_810, "PA": 67_310}
WITH_FINDING = {  # images with each finding
    "AP": (5831, 1213, 6728, 10541, 2215, 2154, 801, 1895, 3146, 2027, 1017, 278, 967, 35),
    "PA": (5728, 1563, 6589, 9353, 3567, 4177, 630, 3407, 1521, 276, 1499, 1408, 2418, 192),
}
WITH_BOTH = (  # images of either view with this finding and each of those after it
    (370, 3275, 3264, 739, 590, 262, 774, 1223, 221, 424, 220, 496, 40),
    (1063, 587, 102, 108, 41, 49, 169, 127, 44, 52, 111, 7),
    (4000, 1254, 912, 269, 996, 1287, 593, 359, 188, 849, 21),
    (1159, 1546, 605, 946, 1221, 981, 449, 345, 750, 33),
    (906, 71, 431, 610, 129, 215, 117, 452, 25),
    (70, 341, 428, 131, 115, 166, 411, 10),
    (41, 123, 340, 23, 11, 48, 3),
    (223, 33, 747, 80, 289, 9),
    (162, 103, 79, 251, 4),
    (30, 9, 64, 3),
    (36, 151, 4),
    (176, 8),
    (8,),
)
COMMON = 0.1  # a finding rarer than this can be enriched
SHARE_AP = IMAGES["AP"] / sum(IMAGES.values())

# How far a finding's latent number follows age. Ours: the label file shows hardly more than the signs.
AGE_PULL = {"Emphysema": 0.2, "Cardiomegaly": 0.2, "Fibrosis": 0.2, "Hernia": 0.3, "Atelectasis": 0.1}
PERSISTENCE = 0.65  # of a latent number's variance that is the patient's and not the image's


def prevalence(view: str, enrich: float = 0.0) -> np.ndarray:
    """Share of a view's images with each finding. `enrich`, 0 to 1, moves rare findings towards 10 % of all images.

    A share p below that becomes p^(1 - enrich) * 0.1^enrich, in both views by the same factor: with 0.7 the 0.2 % of
    hernia become 3.1 %, and the 5.2 % of mass 8.2 %. More common findings stay.
    """
    total = np.sum(list(WITH_FINDING.values()), axis=0) / sum(IMAGES.values())
    return np.asarray(np.array(WITH_FINDING[view]) / IMAGES[view] * np.maximum(COMMON / total, 1) ** enrich)


def draw_labels(
    is_ap: np.ndarray, age: np.ndarray, patient: np.ndarray, enrich: float, draws: np.random.Generator
) -> np.ndarray:
    """Findings of each image, (images, 14) of 0 and 1, by a Gaussian copula.

    A finding is there where its latent standard normal number lies below the quantile of its prevalence in the image's
    view. A latent number is the sum of a pull of the patient's standardised `age`, a part of the patient's own and a
    part of the image's, whose variances add up to 1; so prevalences and pairs come out the same however many images
    a patient has. `patient` counts from 0.
    """
    pull = np.array([AGE_PULL.get(finding, 0.0) for finding in FINDINGS])
    root = np.linalg.cholesky(correlations() - np.outer(pull, pull)).T
    lasting = draws.standard_normal((int(patient.max()) + 1, len(FINDINGS)))[patient]
    passing = draws.standard_normal((len(patient), len(FINDINGS)))
    own = (np.sqrt(PERSISTENCE) * lasting + np.sqrt(1 - PERSISTENCE) * passing) @ root
    threshold = np.where(is_ap[:, None], ndtri(prevalence("AP", enrich)), ndtri(prevalence("PA", enrich)))
    latent = own - age[:, None] * pull  # minus: the older, the further below
    return np.asarray(latent < threshold, dtype=np.int64)


@cache
def correlations() -> np.ndarray:
    """Of the latent numbers: for each pair the one correlation at which the copula expects the published count."""
    first, second = np.triu_indices(len(FINDINGS), 1)
    published = np.concatenate(WITH_BOTH) / sum(IMAGES.values())
    quantiles = {view: ndtri(prevalence(view)) for view in IMAGES}
    low, high = np.full(len(first), -0.99), np.full(len(first), 0.99)
    for _ in range(40):  # bisection of all pairs at once: the expected count rises with the correlation
        middle = (low + high) / 2
        expected = SHARE_AP * _both(quantiles["AP"][first], quantiles["AP"][second], middle)
        expected += (1 - SHARE_AP) * _both(quantiles["PA"][first], quantiles["PA"][second], middle)
        low, high = np.where(expected < published, middle, low), np.where(expected < published, high, middle)
    matrix = np.eye(len(FINDINGS))
    matrix[first, second] = matrix[second, first] = (low + high) / 2
    return matrix  # positive definite as it is: its smallest eigenvalue is 0.30


def _both(a: np.ndarray, b: np.ndarray, correlation: np.ndarray) -> np.ndarray:
    """Chance that two standard normal numbers lie below a and b: its derivative by r is their density (Plackett)."""
    nodes, weights = np.polynomial.legendre.leggauss(32)
    r = correlation[:, None] * (nodes + 1) / 2
    exponent = (a[:, None] ** 2 - 2 * r * a[:, None] * b[:, None] + b[:, None] ** 2) / (2 * (1 - r**2))
    density = np.exp(-exponent) / (2 * np.pi * np.sqrt(1 - r**2))
    return np.asarray(ndtr(a) * ndtr(b) + correlation / 2 * (density @ weights))


# What a hospital's machine makes of an attenuation: contrast, blur, shading, noise and the marker in a corner.
LETTERS = {  # five rows of three
    "L": ((1, 0, 0), (1, 0, 0), (1, 0, 0), (1, 0, 0), (1, 1, 1)),
    "R": ((1, 1, 0), (1, 0, 1), (1, 1, 0), (1, 0, 1), (1, 0, 1)),
}
CORNERS = (("L", 0, 1), ("R", 0, 0), ("L", 1, 1), ("R", 1, 0))  # letter, bottom, right: L is at the patient's left


def scanner_of(hospital: int, strength: float) -> dict[str, float]:
    """The machine of a hospital, which counts from 0: the same in every study. With `strength` 0 all are alike.

    Multiples of the roots of primes, without their whole parts, spread any number of machines over what there can be.
    """
    spread = 2 * np.mod(0.5 + (hospital + 1) * np.sqrt([2, 3, 5, 7, 11, 13]), 1) - 1  # between -1 and 1
    gamma, contrast, brightness, blur, shading, grain = (strength * spread).tolist()
    return {
        "gamma": 1.25**gamma,
        "contrast": 1.18**contrast,
        "brightness": 0.06 * brightness,
        "blur": float(np.clip(0.3 + 0.25 * blur, 0, 0.8)),  # share of a pixel that comes from its neighbours
        "shading": max(0.1 + 0.1 * shading, 0.0),  # darkness of the corners
        "grain": 0.02 * 1.5**grain,  # standard deviation of the noise, of the film's range
        "corner": hospital % len(CORNERS) if strength else 0,  # its place in CORNERS
    }


def expose(
    film: np.ndarray, scanners: list[dict[str, float]], hospital: np.ndarray, noise: float, draws: np.random.Generator
) -> np.ndarray:
    """Attenuation (images, size, size) to bytes, by the machine of each image's hospital."""
    size = film.shape[1]

    def of(name: str) -> np.ndarray:
        return np.array([machine[name] for machine in scanners], dtype=np.float32)[hospital, None, None]

    line = (2 * np.arange(size, dtype=np.float32) + 1) / size - 1
    film = (1 - of("blur")) * film + of("blur") * _neighbours(film)
    film = (film - 0.5) * of("contrast") + 0.5 + of("brightness")
    film = np.clip(film, 0.0, 1.1) ** of("gamma")
    film *= 1 - of("shading") * (line[:, None] ** 2 + line**2) / 2
    film += of("grain") * np.float32(noise) * draws.standard_normal(film.shape, dtype=np.float32)
    for number, machine in enumerate(scanners):
        film[hospital == number] = np.maximum(film[hospital == number], mark(int(machine["corner"]), size))
    return np.asarray(np.clip(film, 0, 1) * 255 + 0.5).astype(np.uint8)


def mark(corner: int, size: int) -> np.ndarray:
    """An image that is empty but for the letter."""
    name, bottom, right = CORNERS[corner]
    scale, margin = max(size // 64, 1), max(size // 24, 1)
    letter = np.kron(np.array(LETTERS[name], dtype=np.float32), np.ones((scale, scale), dtype=np.float32))
    height, width = letter.shape
    image = np.zeros((size, size), dtype=np.float32)
    top = size - margin - height if bottom else margin
    left = size - margin - width if right else margin
    image[top : top + height, left : left + width] = 0.95 * letter
    return image


def _neighbours(film: np.ndarray) -> np.ndarray:
    """The binomial mean of 3 x 3 pixels."""
    wide = np.pad(film, ((0, 0), (1, 1), (0, 0)), mode="edge")
    film = 0.5 * film + 0.25 * (wide[:, :-2] + wide[:, 2:])
    wide = np.pad(film, ((0, 0), (0, 0), (1, 1)), mode="edge")
    return np.asarray(0.5 * film + 0.25 * (wide[:, :, :-2] + wide[:, :, 2:]))


@dataclass(frozen=True)
class Block:
    """Some patients and their images, before anything is drawn."""

    patient: np.ndarray  # of each image, from 0 within the block
    hospital: np.ndarray  # from 0
    is_ap: np.ndarray
    is_female: np.ndarray
    age: np.ndarray
    target: np.ndarray

    def __len__(self) -> int:
        return len(self.patient)


CITATION = (
    "Wang et al. ChestX-ray8: hospital-scale chest X-ray database and benchmarks. CVPR 2017 (how often findings come "
    "together). arXiv:1705.02315"
)


@declares(SourceFacts(images=True, citation=CITATION))
def phantom(
    rows: Count = 4000,
    size: Annotated[int, Range(low=32, high=256)] = 64,
    hospitals: Count = 4,
    images_per_patient: Annotated[float, Range(low=1, high=5)] = 2.5,
    enrich: Annotated[float, Range(low=0, high=1)] = 0.7,
    scanners: Annotated[float, Range(low=0, high=3)] = 1.0,
    noise: NonNegative = 1.0,
    seed: WholeNumber = 0,
) -> Source:
    """Synthetic frontal chest radiographs of `size` x `size` pixels with any of fourteen findings.

    `enrich` makes rare findings more common, so that a few thousand images show enough of each: 0 keeps the published
    shares, 1 gives every finding to a tenth of the images at least. `images_per_patient` is a mean: most patients have
    one to three, a few have many. `scanners` is how much the hospitals' machines differ, `noise` how grainy their
    images are.
    """

    def load() -> Records:
        machines = [scanner_of(number, scanners) for number in range(hospitals)]
        trees = vessel_trees(size, TREES, generator(seed, "phantom vessels"))
        images = np.empty((rows, 1, size, size), dtype=np.uint8)
        blocks: list[Block] = []
        boxes = []
        done = 0
        while done < rows:
            number = len(blocks)
            block = draw_block(seed, number, hospitals, images_per_patient, enrich)
            count = min(len(block), rows - done)
            images[done : done + count, 0], block_boxes = draw_images(
                block, count, seed, number, trees, machines, noise
            )
            block_boxes[:, 0] += done
            boxes.append(block_boxes)
            blocks.append(block)
            done += count
        return _records(images, blocks, np.concatenate(boxes), enrich, seed)

    return Source(load)


def draw_block(seed: int, number: int, hospitals: int, images_per_patient: float, enrich: float) -> Block:
    draws = generator(seed, "phantom patients", number)
    # 1 + negative binomial: with a mean of 2.5 images 58 % of the patients have one, and 1 % have 15 or more
    shape = 0.3
    more = draws.negative_binomial(shape, shape / (shape + images_per_patient - 1), PATIENTS)
    patient = np.repeat(np.arange(PATIENTS), 1 + np.minimum(more, MOST_IMAGES - 1))
    home = draws.integers(hospitals, size=PATIENTS)
    female = draws.random(PATIENTS) < 0.435  # as in the NIH's label file, and so are mean and spread of age
    age = draws.standard_normal(PATIENTS)
    # some hospitals see a little more of those who lie in bed, as many a little less
    share = SHARE_AP + np.linspace(-0.06, 0.06, hospitals)[home] if hospitals > 1 else np.full(PATIENTS, SHARE_AP)
    often, now = draws.standard_normal(PATIENTS)[patient], draws.standard_normal(len(patient))
    is_ap = np.sqrt(0.7) * often + np.sqrt(0.3) * now < ndtri(share)[patient]
    target = draw_labels(is_ap, age[patient], patient, enrich, draws)
    years = np.clip(np.round(46.6 + 16.6 * age), 18, 95)
    return Block(patient, home[patient], is_ap, female[patient], years[patient], target)


def draw_images(
    block: Block, count: int, seed: int, number: int, trees: np.ndarray, machines: list[dict[str, float]], noise: float
) -> tuple[np.ndarray, np.ndarray]:
    """The block's first images as bytes, (count, size, size), and a line of BOX_COLUMNS for each place of a finding."""
    draws, grain = generator(seed, "phantom anatomy", number), generator(seed, "phantom noise", number)
    person, moment = _normal(draws, (PATIENTS, len(TRAITS))), _normal(draws, (len(block), len(TRAITS)))
    lasting, passing = (draws.random((length, len(FINDINGS), CHANCES)) for length in (PATIENTS, len(block)))
    tree = draws.integers(len(trees), size=PATIENTS)
    images, boxes = [], []
    for start in range(0, count, TOGETHER):  # the last ones are drawn whole and cut, so that `rows` changes no draw
        some = np.arange(start, min(start + TOGETHER, len(block)))
        who, target = block.patient[some], block.target[some]
        spots = {name: place(lasting[who, k], passing[some, k]) for k, name in enumerate(FINDINGS)}
        body = reshape(stand(person[who], moment[some], block.is_ap[some], block.is_female[some]), target, spots)
        chest = draw_chest(body, trees.shape[1], trees[tree[who]])
        marked = add_findings(chest, target, spots, draws)
        marked[:, 0] += start
        boxes.append(marked[marked[:, 0] < count])
        images.append(expose(chest.film, machines, block.hospital[some], noise, grain))
    return np.concatenate(images)[:count], np.concatenate(boxes)


def _normal(draws: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Standard normal numbers without the rare body that would look like none."""
    return np.clip(draws.standard_normal(shape), -2.5, 2.5)


def _records(images: np.ndarray, blocks: list[Block], boxes: np.ndarray, enrich: float, seed: int) -> Records:
    rows = len(images)

    def joined(name: str) -> np.ndarray:
        return np.concatenate([getattr(block, name) for block in blocks])[:rows]

    patient = np.concatenate([block.patient + number * PATIENTS for number, block in enumerate(blocks)])[:rows]
    target = joined("target")
    details = {"what": "images", "recipe": "drawn from formulas"}
    notices = (
        Notice("synthetic-rows", "info", counts={"rows": rows, "seed": seed}, details=details),
        Notice("synthetic-prevalence", "info", details={"shares": _shares(enrich)}),
    )
    return Records(
        features=images,
        target=target,
        classes=FINDINGS,
        hospital=np.array([f"phantom-{number + 1}" for number in joined("hospital")]),
        patient=patient,
        groups=pd.DataFrame(
            {
                "sex": np.where(joined("is_female"), "female", "male"),
                "age": joined("age").astype(np.float64),
                "view": np.where(joined("is_ap"), "AP", "PA"),
            }
        ),
        notes=notices,
        synthetic=True,
        boxes=pd.DataFrame(boxes, columns=list(BOX_COLUMNS)).astype({"row": np.int64, "finding": np.int64}),
    )


def _shares(enrich: float) -> str:
    if not enrich:
        return "each is as common as there"
    return f"those rarer than 10 % there are more common here (enrich = {enrich:g})"
