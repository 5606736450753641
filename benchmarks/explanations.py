"""Are heat maps true, and do they show where a finding is? `python -m benchmarks.explanations [phantom|nih]`.

A network is trained on synthetic phantoms, or on the NIH's radiographs without any patient who has a box, and each
method is measured on patients that it has never seen: the pointing game, intersection over union and energy in the box
by finding, beside priors and the untrained network, and every check of `wardround.explain.checks`. Networks are kept in
`--cache` (a folder), so that figures can be repeated without training.
"""

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file, save_file
from sklearn.metrics import roc_auc_score
from torch import Tensor

from wardround.core import seeds
from wardround.core.tree import Tree
from wardround.data.records import Records
from wardround.data.sources.chest_xray import chest_xray
from wardround.data.sources.phantom.radiographs import phantom
from wardround.explain import METHODS, Method, Scorer
from wardround.explain.checks import check_all
from wardround.explain.localisation import (
    Localised,
    Marked,
    centre_prior,
    heat_maps,
    localised,
    marked,
    others_prior,
)
from wardround.models import MODELS, Model, Shape

SIDE = 64
IMAGES, SEED = 8000, 0  # phantoms, the last fifth to be measured on; choices were made on phantoms of seed 7
NETWORK = {"widths": (16, 32, 64, 128), "reduce": 2, "norm": "batch"}
EPOCHS, BATCH, LR = {"phantom": 7, "nih": 3}, 32, 0.003
BACKGROUND = 1000  # training images, whose mean integrated gradients and occlusion compare with
MOST = 25  # images of a finding that are measured
CHECKED = 12  # images on which each check is made
PRIORS = ("untrained", "centre", "others' boxes")  # what a map is compared with
AIM = 0.7  # share of hits that the phantom's findings should reach


@dataclass(frozen=True, eq=False)
class Case:
    """Images as a network takes them, and which are for what."""

    name: str
    records: Records
    images: Tensor
    train: np.ndarray
    held_out: np.ndarray

    @property
    def patient(self) -> np.ndarray:
        if self.records.patient is None:
            raise ValueError("patients are needed")
        return self.records.patient


def scaled(records: Records) -> Tensor:
    """As `scale = "image"`: each image to mean 0 and standard deviation 1."""
    images = torch.from_numpy(np.asarray(records.features)).float() / 255
    spread, mean = torch.std_mean(images, dim=(1, 2, 3), keepdim=True, correction=0)
    return (images - mean) / spread.clamp(min=1 / 255)


def phantom_case() -> Case:
    records = phantom(rows=IMAGES, size=SIDE, seed=SEED).load()
    patient = np.asarray(records.patient)
    border = patient[IMAGES * 4 // 5]
    return Case(
        "phantom", records, scaled(records), np.flatnonzero(patient < border), np.flatnonzero(patient >= border)
    )


def nih_case(folder: Path) -> Case:
    """Nobody with a box is trained on, whatever part of the split they are in."""
    records = chest_xray(
        folder / "nih_cxr14_subset_64.npz", size=SIDE, boxes=folder / "NIH_BBox_List_2017.csv.gz", cache=None
    ).load()
    if records.boxes is None:
        raise ValueError("the file of boxes is needed")
    patient = np.asarray(records.patient)
    with_box = np.isin(patient, patient[records.boxes["row"]])
    train = np.flatnonzero((records.split == "train") & ~with_box)
    return Case("nih", records, scaled(records), train, np.flatnonzero(with_box | (records.split == "test")))


def network(case: Case) -> Model:
    return MODELS["residual"](**NETWORK)(Shape((1, SIDE, SIDE), case.records.task))


def trained(case: Case, cache: Path) -> tuple[Model, Tree, Tree]:
    """Weights and buffers, from the cache where they are there."""
    model, file = network(case), cache / f"{case.name}.safetensors"
    if not file.is_file():
        began = time.process_time()
        params, buffers = train(model, case)
        cache.mkdir(parents=True, exist_ok=True)
        save_file({f"p.{k}": v for k, v in params.items()} | {f"b.{k}": v for k, v in buffers.items()}, file)
        print(f"trained in {time.process_time() - began:.0f} s of processor time", flush=True)
    leaves = load_file(file)
    params, buffers = ({k[2:]: v for k, v in leaves.items() if k.startswith(part)} for part in ("p.", "b."))
    return model, params, buffers


def train(model: Model, case: Case) -> tuple[Tree, Tree]:
    params, buffers = model.init(1)
    leaves = {name: leaf.requires_grad_() for name, leaf in params.items()}
    target = torch.from_numpy(np.maximum(case.records.target, 0))
    steps = EPOCHS[case.name] * (len(case.train) // BATCH)
    optimiser = torch.optim.AdamW(list(leaves.values()), LR, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, LR, total_steps=steps + 1, pct_start=0.15)
    rng = seeds.generator(0, "benchmark batches")
    for _ in range(EPOCHS[case.name]):
        order = rng.permutation(case.train)
        for start in range(0, len(order) - BATCH + 1, BATCH):
            rows = torch.from_numpy(order[start : start + BATCH])
            x = case.images[rows]
            x = torch.where(torch.from_numpy(rng.random((BATCH, 1, 1, 1))) < 0.5, x.flip(-1), x)
            loss, buffers = model.loss(
                leaves, buffers, x.contiguous(memory_format=torch.channels_last), target[rows], {}
            )
            buffers = {name: leaf.detach() for name, leaf in buffers.items()}
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            schedule.step()
    return {name: leaf.detach() for name, leaf in leaves.items()}, buffers


def auc(scorer: Scorer, case: Case) -> float:
    score = scorer.all_values(case.images[torch.from_numpy(case.held_out)])
    target = case.records.target[case.held_out]
    return float(np.mean([roc_auc_score(t, s) for t, s in zip(target.T, score.T, strict=True) if 0 < t.sum() < len(t)]))


def places_of(case: Case) -> Marked:
    """At most so many of each finding, one image of a patient after the other."""
    boxes = case.records.boxes
    if boxes is None:
        raise ValueError("boxes are needed")
    places = marked(boxes[boxes["row"].isin(case.held_out)], case.patient, (SIDE, SIDE))
    chosen = [np.flatnonzero(places.finding == number)[:MOST] for number in range(len(case.records.classes))]
    return places.of(np.concatenate(chosen))


def methods() -> dict[str, Method]:
    return {name: factory() for name, factory in METHODS.items() if factory().explains == "image"}


def localisation(
    case: Case, scorer: Scorer, untrained: Scorer, names: Sequence[str]
) -> Iterator[tuple[str, list[Localised]]]:
    places, background = places_of(case), case.images[torch.from_numpy(case.train[:BACKGROUND])]
    background = background.mean(dim=0, keepdim=True)
    priors = {"centre": centre_prior(places), "others' boxes": others_prior(places)}
    known = methods()
    for name in names:
        rng = seeds.generator(0, "benchmark")
        maps, before = (
            heat_maps(known[name], each, case.images, background, places, rng) for each in (scorer, untrained)
        )
        yield name, localised(maps, places, {**priors, "untrained": before}, case.records.classes)


def shown(figure: object, signed: bool = False) -> str:
    mean, low, high = (getattr(figure, name) for name in ("mean", "low", "high"))
    form = "+.0f" if signed else ".0f"
    return f"{100 * mean:{form}} ({100 * low:{form}} to {100 * high:{form}})"


def show_localisation(console: Console, title: str, lines: Sequence[Localised], measure: str) -> None:
    table = Table(title=f"{title}: {measure}, % (95 % CI over patients)")
    for column in (*("finding", "images", "patients", "area", "trained"), *PRIORS, "over untrained", "over centre"):
        table.add_column(column)
    for line in lines:
        if line.measure == measure:
            counts = (line.finding or "all", str(line.images), str(line.patients), f"{100 * line.area:.0f}")
            beside = [f"{100 * line.against[name][0].mean:.0f}" for name in PRIORS]
            apart = [shown(line.against[name][1], signed=True) for name in ("untrained", "centre")]
            table.add_row(*counts, shown(line.figure), *beside, *apart)
    console.print(table)


def show_checks(console: Console, case: Case, scorer: Scorer, names: Sequence[str]) -> None:
    """On images that have the finding, of which the network is most sure."""
    background = case.images[torch.from_numpy(case.train[:BACKGROUND])].mean(dim=0, keepdim=True)
    held = case.images[torch.from_numpy(case.held_out)]
    score, target = scorer.all_values(held), case.records.target[case.held_out] == 1
    aucs = [roc_auc_score(t, s) if t.sum() >= CHECKED else 0.0 for t, s in zip(target.T, score.T, strict=True)]
    finding = int(np.argmax(aucs))
    order = np.argsort(-np.where(target[:, finding], score[:, finding], -np.inf), kind="stable")
    rows = held[torch.from_numpy(order[:CHECKED].copy())]
    own, known = scorer.of(finding), {name: methods()[name] for name in names}
    values = {n: m.attribute(own, rows, background, seeds.generator(0, "benchmark")).values for n, m in known.items()}
    table = Table(title=f"{case.name}: checks on {CHECKED} images with {case.records.classes[finding]}")
    for column in ("check", "method", "figure (95 % CI)", "result", "passes where"):
        table.add_column(column)
    for check in check_all(own, rows, background, known, values, seeds.generator(0, "benchmark checks")):
        result = {True: "passes", False: "FAILS", None: "-"}[check.passed]
        figure = f"{check.figure:.2f} ({check.low:.2f} to {check.high:.2f})"
        table.add_row(check.name, check.method, figure, result, check.rule)
    console.print(table)


def measure(case: Case, cache: Path, console: Console, names: Sequence[str]) -> None:
    model, params, buffers = trained(case, cache)
    scorer = Scorer(model, params, buffers)
    start = model.init(2)
    untrained = Scorer(model, *start)
    console.print(
        f"{case.name}: mean AUC {auc(scorer, case):.3f} on {len(case.held_out)} images that were not trained on"
    )
    for name, lines in localisation(case, scorer, untrained, names):
        title = f"{case.name}, {methods()[name].title}"
        for kind in ("pointing", "iou", "energy"):
            show_localisation(console, title, lines, kind)
        hits = [line.figure.mean for line in lines if line.measure == "pointing" and line.finding]
        console.print(
            f"{title}: at least {AIM:.0%} of hits for {sum(hit >= AIM for hit in hits)} of {len(hits)} findings"
        )
    show_checks(console, case, scorer, names)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.explanations")
    parser.add_argument("case", choices=("phantom", "nih"), nargs="?", default="phantom")
    parser.add_argument("--nih", type=Path, help="folder with nih_cxr14_subset_64.npz and the file of boxes")
    parser.add_argument("--cache", type=Path, default=Path("benchmark-networks"))
    parser.add_argument("--methods", default=",".join(methods()), help="some of %(default)s")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.case == "nih" and given.nih is None:
        parser.error("the NIH's files are needed: --nih FOLDER")
    case = phantom_case() if given.case == "phantom" else nih_case(given.nih)
    measure(case, given.cache, Console(width=170), given.methods.split(","))


if __name__ == "__main__":
    main()
