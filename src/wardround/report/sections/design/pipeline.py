"""The way of a row through a study, as a drawing: from its source to the figures of the report."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from matplotlib.figure import Figure

from wardround.report.evidence import Evidence, rows_of
from wardround.report.render.figures import Drawing
from wardround.report.render.sketch import (
    DOWN,
    PAD,
    SOFT,
    STAYS,
    UP,
    Box,
    Line,
    arrow,
    canvas,
    draw_box,
    height_of,
    note,
    titled,
    wrap,
)
from wardround.report.render.style import WIDTH
from wardround.report.render.table import listed
from wardround.report.section import Section
from wardround.report.sections.design.exchange import exchanges_of, named_arms, update_numbers

MARGIN, GAP = 0.1, 0.2


NAME = 1.25  # width of a stage's name


BESIDE = 1.0  # on the right, for the way of test rows


MOST_SITES = 8  # whose rows are given one by one


MISSING = {
    "drop": "rows with gaps are left out",
    "mean": "gaps are filled with the mean of the column",
    "median": "gaps are filled with the median of the column",
    "range": "gaps are filled with the middle of the column's public range",
}


SCALES = {
    "per-site": "each site scales its columns by itself",
    "federated": "columns are scaled by the moments of all sites together, put together from their sums",
    "ranges": "columns are scaled by their public ranges",
    "image": "each image is scaled by itself",
    "none": "nothing is scaled",
}


@dataclass(frozen=True)
class Stage:
    name: str
    words: str
    where: str  # at the source, at each site, at the coordinator
    colour: str

    def lines(self, width: float) -> list[Line]:
        return [line for text in self.words.split("\n") for line in wrap(text, width)]

    @property
    def box(self) -> list[Line]:
        return titled([self.name, self.where], NAME - 2 * PAD)


def pipeline(evidence: Evidence) -> Figure | None:
    stages = stages_of(evidence)
    width = WIDTH - 2 * MARGIN - NAME - BESIDE - 2 * PAD
    heights = [max(height_of(stage.lines(width)), height_of(stage.box)) for stage in stages]
    drawn, axes = canvas(sum(heights) + GAP * (len(stages) - 1) + 2 * MARGIN)
    top, boxes = MARGIN, {}
    for stage, height in zip(stages, heights, strict=True):
        box = Box(MARGIN, top, NAME, height)
        draw_box(axes, box, stage.box, stage.colour, tinted=True)
        note(axes, box.right + PAD, box.middle, stage.lines(width))
        boxes[stage.name] = box
        top += height + GAP
    placed = list(boxes.values())
    for before, after in pairwise(placed):
        arrow(axes, (before.left + 0.35, before.top + before.height), (after.left + 0.35, after.top), SOFT)
    names = list(boxes)
    for name in names[names.index("local training") + 1 : names.index("evaluation")]:  # the model comes back each round
        upper, lower = boxes[names[names.index(name) - 1]], boxes[name]
        arrow(axes, (lower.left + 0.9, lower.top), (upper.left + 0.9, upper.top + upper.height), SOFT)
    _past_training(axes, evidence, boxes["split"], boxes["evaluation"])
    return drawn


def _past_training(axes: Any, evidence: Evidence, split: Box, evaluation: Box) -> None:
    """Test rows go from the split to the evaluation, and nobody trains on them."""
    x = WIDTH - MARGIN - BESIDE / 2
    for y in (split.middle, evaluation.middle):
        axes.plot([WIDTH - MARGIN - BESIDE, x], [y, y], color=STAYS, linewidth=1.1, zorder=1)
    arrow(axes, (x, split.middle), (x, evaluation.middle), STAYS)
    arrow(axes, (x, evaluation.middle), (WIDTH - MARGIN - BESIDE, evaluation.middle), STAYS)
    at = (split.middle + evaluation.middle) / 2
    note(axes, x - 0.42, at, wrap(test_rows(evidence), 0.84, colour=STAYS))


def test_rows(evidence: Evidence) -> str:
    """How many there are, and how many of their patients some site trains on."""
    count = sum(counts["test"] for counts in _sites(evidence).values())
    shared = sum(found["rows"] for found in evidence.results["leakage"].get("", {}).values())
    if shared:
        return f"{count:,} test rows; {shared:,.1f} are also training rows of some site, on average"
    return f"{count:,} test rows; only their own site sees them" if evidence.deployed else f"{count:,} test rows"


def stages_of(evidence: Evidence) -> list[Stage]:
    """In the order in which a row meets them."""
    made = [
        Stage("source", _source(evidence), "where rows are" if evidence.deployed else "one machine", SOFT),
        Stage("cleaning", _cleaning(evidence), "each site", STAYS),
        Stage("partition", _partition(evidence), "who holds which rows", STAYS),
        Stage("split", _split(evidence), "each site", STAYS),
        Stage("scaling", _scaling(evidence), "each site", STAYS),
        Stage("local training", _training(evidence), "each site", STAYS),
    ]
    protection = _protection(evidence)
    if protection:
        made.append(Stage("protection", protection, "before anything leaves", UP))
    made += [
        Stage("aggregation", _aggregation(evidence), "the coordinator", DOWN),
        Stage("evaluation", _evaluation(evidence), "each site's test rows", STAYS),
    ]
    return made


def _sites(evidence: Evidence) -> Mapping[str, Any]:
    found: Mapping[str, Any] = evidence.results["sites"][0]["sites"]
    return found


def _source(evidence: Evidence) -> str:
    described = evidence.results["sites"][0]
    hospitals = described["data"].get("hospitals")
    of = f": {listed(list(hospitals))}" if isinstance(hospitals, list | tuple) and hospitals else ""
    made = " Made by a program: no patient is behind it." if evidence.synthetic else ""
    return f"{described['data']['name']}{of}.{made}"


def _cleaning(evidence: Evidence) -> str:
    prepared, described = evidence.study.get("data", {}), evidence.results["sites"][0]
    rows = f"{described['rows']:,} rows remain"
    if evidence.of_images:
        return f"Images that are not as they should be are counted and named; {rows}."
    gaps = MISSING.get(prepared.get("missing", ""), "gaps stay")
    if prepared.get("missing") in ("mean", "median") and prepared.get("indicator"):
        gaps += ", and a column beside it says where"
    levels = {"one-hot": "a column for each level of a category", "codes": "categories as their codes"}
    features = described["features"]
    columns = "" if not features else f", {len(features)} columns in all"
    coded = levels.get(prepared.get("categories", ""), "categories as they are")
    return f"{gaps[0].upper()}{gaps[1:]}; {rows}; {coded}{columns}."


def _partition(evidence: Evidence) -> str:
    described, sites = evidence.results["sites"][0], _sites(evidence)
    if len(sites) <= MOST_SITES:
        rows = ", ".join(f"{site} {rows_of(counts):,}" for site, counts in sites.items())
        text = f"{described['partition']['name']}: rows of {rows}."
    else:
        counts = [rows_of(one) for one in sites.values()]
        names = list(sites)
        text = (
            f"{described['partition']['name']}: {len(names)} sites, {names[0]} to {names[-1]}, with {min(counts):,} "
            f"to {max(counts):,} rows."
        )
    for way in exchanges_of(evidence):
        arms = named_arms(evidence, way.arms)
        told = evidence.arms[way.arms[0]].get("topology") or {}
        if way.kind == "hierarchical":
            text += f"\nIn {arms}: {len(told['regions'])} regions, {listed(list(told['regions']))}."
        elif way.kind == "vertical":
            text += f"\nIn {arms}: columns are held by {listed(list(told['parties']))}."
    shared = any(found["rows"] for found in evidence.results["leakage"].get("", {}).values())
    return text + ("\nA patient can be at several sites." if shared else "")


def _split(evidence: Evidence) -> str:
    settings, sites = evidence.study.get("evaluation", {}), _sites(evidence).values()
    sides = {side: sum(counts[side] for counts in sites) for side in ("train", "validation", "test")}
    told = [f"{count:,} {'training' if side == 'train' else side} rows" for side, count in sides.items() if count]
    vary = set(settings.get("vary", ())) & {"partition", "split"}
    if settings.get("split") == "given":
        drawn = "as the source gives it"
    elif evidence.seeds == 1 or not vary:
        drawn = "drawn once, by patient"
    else:
        drawn = f"drawn anew with each of {evidence.seeds} seeds, by patient"
    return f"{listed(told)} with the first seed; {drawn}."


def _scaling(evidence: Evidence) -> str:
    scale = SCALES.get(evidence.study.get("data", {}).get("scale", ""), "as the study says")
    fitted = (
        ", fitted on training rows" if evidence.study.get("data", {}).get("scale") in ("per-site", "federated") else ""
    )
    return f"{scale[0].upper()}{scale[1:]}{fitted}; test rows are scaled by the same numbers."


def _training(evidence: Evidence) -> str:
    training, model = evidence.study.get("training", {}), evidence.study.get("model", {})
    sizes = dict.fromkeys(
        (arm.get("model") or {}).get("shared_parameters") for arm in evidence.arms.values() if arm.get("model")
    )
    known = [size for size in sizes if size is not None]
    count = f", {known[0]:,} shared parameters" if len(known) == 1 else ""
    epochs = training.get("local_epochs", 1)
    text = (
        f"{model.get('kind', 'logistic')}{count}: {epochs} local epoch{'' if epochs == 1 else 's'} a round, batches of "
        f"{training.get('batch_size')}, {training.get('optimiser', 'sgd')} with learning rate {training.get('lr'):g}."
    )
    changed = _changed(evidence)
    return text + (f"\nArms differ in {listed(changed)}." if changed else "")


def _changed(evidence: Evidence) -> list[str]:
    """Settings of the whole study that some arm has otherwise."""
    keys = (key for arm in evidence.study.get("arms", []) for key in arm if "." in key)
    return list(dict.fromkeys(keys))


def _protection(evidence: Evidence) -> str:
    told = []
    for way in exchanges_of(evidence):
        done = []
        if way.has("example"):
            clip, epsilon = way.settings("example", "clip"), way.settings("example", "epsilon")
            cut = "not cut" if clip == "none" else f"cut to a length of {clip}"
            done.append(f"each patient's gradient is {cut} and gets noise (epsilon {epsilon})")
        if way.has("site"):
            clip = way.settings("site", "clip")
            done.append(f"each site's update is cut to a length of {clip}, and the sum gets noise")
        if way.has("secure_sum"):
            done.append("updates are masked, so that only their sum can be read")
        if done:
            told.append(f"{named_arms(evidence, way.arms)}: {'; '.join(done)}.")
        noise = (evidence.arms[way.arms[0]].get("topology") or {}).get("embeddings")
        if noise is not None:
            cut = f"embeddings are cut to a length of {noise['clip']:g} and get noise of {noise['noise']:g} clips"
            told.append(f"{named_arms(evidence, way.arms)}: {cut}.")
    return "\n".join(told)


def _aggregation(evidence: Evidence) -> str:
    told = []
    for way in exchanges_of(evidence):
        arms, first = named_arms(evidence, way.arms), evidence.arms[way.arms[0]]
        rounds = first["cost"]["rounds"]
        numbers = update_numbers(evidence, way.arms[0])
        size = "" if numbers is None else f" of {numbers:,} parameters"
        topology = first.get("topology") or {}
        told.append(
            {
                "local": f"{arms}: none, every site keeps its own model.",
                "pooled": f"{arms}: none, all training rows are at one place.",
                "vertical": f"{arms}: parties' embeddings are joined at {topology.get('labels')}, {rounds} rounds.",
                "hierarchical": f"{arms}: updates{size} are averaged in each region, then the regions' models; "
                f"{rounds} rounds.",
            }.get(way.kind, f"{arms}: updates{size} of the sites are averaged, {rounds} rounds.")
        )
    return "\n".join(told)


def _evaluation(evidence: Evidence) -> str:
    seeds = f"{evidence.seeds} seed{'' if evidence.seeds == 1 else 's'}"
    against = f"; compared with {evidence.reference}" if evidence.reference else ""
    stays = " Predictions stay at their site, which tells counts." if evidence.deployed else ""
    return f"Every arm predicts the same test rows, {seeds}{against}.{stays}"


SECTION = Section(
    figures={"pipeline": Drawing("The way of a row", "From its source to this report.", pipeline, tall=True)}
)
