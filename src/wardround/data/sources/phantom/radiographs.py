"""Chest radiographs drawn from formulas, for machines without data: no patient is behind them.

Findings come as often and together as in the label file of the NIH (see `phantom_labels`), with several images of
many patients and a machine at each hospital that makes its own kind of picture. What a model scores here says that the
software works, and nothing about medicine.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import pandas as pd
from scipy.special import ndtri

from wardround.core.seeds import generator
from wardround.core.settings import Count, NonNegative, Range, WholeNumber
from wardround.data.imaging.finding_names import FINDINGS
from wardround.data.records import BOX_COLUMNS, Records
from wardround.data.sources.phantom.drawing import TRAITS, draw_chest, stand, vessel_trees
from wardround.data.sources.phantom.label_draws import SHARE_AP, draw_labels
from wardround.data.sources.phantom.scanner import Scanner, expose, scanner_of
from wardround.data.sources.phantom.signs import CHANCES, add_findings, place, reshape
from wardround.data.sources.source import Source
from wardround.study.facts import SourceFacts, declares

PATIENTS = 64  # in a block; each block has its own draws, so that more rows leave the first ones as they were
TOGETHER = 32  # images that are drawn at once: enough to be quick, few enough for a small memory
MOST_IMAGES = 100  # of one patient
TREES = 32  # different vessels


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


@declares(SourceFacts(citation=CITATION))
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
    block: Block, count: int, seed: int, number: int, trees: np.ndarray, machines: list[Scanner], noise: float
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
    notes = [
        f"All {rows} images are synthetic: drawn from formulas with seed {seed}, no patient is behind them.",
        f"Findings come together as in 112,120 images of the NIH (Wang et al., CVPR 2017); {_shares(enrich)}.",
    ]
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
        notes=tuple(notes),
        synthetic=True,
        boxes=pd.DataFrame(boxes, columns=list(BOX_COLUMNS)).astype({"row": np.int64, "finding": np.int64}),
    )


def _shares(enrich: float) -> str:
    if not enrich:
        return "each is as common as there"
    return f"those rarer than 10 % there are more common here (enrich = {enrich:g})"
