"""The way of a row through a study, as a drawing: from its source to the figures of the report."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from matplotlib.figure import Figure

from wardround.report.evidence import ROLES, Evidence, rows_of
from wardround.report.render import sketch
from wardround.report.render.figures import Drawing
from wardround.report.render.style import WIDTH
from wardround.report.render.table import listed
from wardround.report.section import Section
from wardround.report.sections.design.exchange import exchanges_of, named_arms, rules_text, update_numbers

MARGIN, GAP = 0.1, 0.2
NAME = 1.25  # width of a stage's name
TEST_ROWS = 1.0  # on the right, for the way of test rows
MOST_SITES = 8  # whose rows are listed one by one
KEYS = ("train", "validation", "test")  # of the counts of a site
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
    "record": "each recording is scaled by itself",
    "none": "nothing is scaled",
}


@dataclass(frozen=True)
class Stage:
    name: str
    text: str
    where: str  # at the source, at each site, at the coordinator
    colour: str

    def lines(self, width: float) -> list[sketch.Line]:
        return [line for text in self.text.split("\n") for line in sketch.wrap(text, width)]

    @property
    def box(self) -> list[sketch.Line]:
        return sketch.titled([self.name, self.where], NAME - 2 * sketch.PAD)


def pipeline(evidence: Evidence) -> Figure:
    stages = stages_of(evidence)
    width = WIDTH - 2 * MARGIN - NAME - TEST_ROWS - 2 * sketch.PAD
    heights = [max(sketch.height_of(stage.lines(width)), sketch.height_of(stage.box)) for stage in stages]
    drawn, axes = sketch.canvas(sum(heights) + GAP * (len(stages) - 1) + 2 * MARGIN)
    top, boxes = MARGIN, {}
    for stage, height in zip(stages, heights, strict=True):
        box = sketch.Box(MARGIN, top, NAME, height)
        sketch.draw_box(axes, box, stage.box, stage.colour, tinted=True)
        sketch.note(axes, box.right + sketch.PAD, box.middle, stage.lines(width))
        boxes[stage.name] = box
        top += height + GAP
    for before, after in pairwise(boxes.values()):
        sketch.arrow(
            axes, (before.left + 0.35, before.top + before.height), (after.left + 0.35, after.top), sketch.SOFT
        )
    names = list(boxes)
    for name in names[names.index("local training") + 1 : names.index("evaluation")]:  # the model comes back each round
        upper, lower = boxes[names[names.index(name) - 1]], boxes[name]
        sketch.arrow(axes, (lower.left + 0.9, lower.top), (upper.left + 0.9, upper.top + upper.height), sketch.SOFT)
    _past_training(axes, evidence, boxes["split"], boxes["evaluation"])
    return drawn


def _past_training(axes: Any, evidence: Evidence, split: sketch.Box, evaluation: sketch.Box) -> None:
    x = WIDTH - MARGIN - TEST_ROWS / 2
    for y in (split.middle, evaluation.middle):
        axes.plot([WIDTH - MARGIN - TEST_ROWS, x], [y, y], color=sketch.STAYS, linewidth=1.1, zorder=1)
    sketch.arrow(axes, (x, split.middle), (x, evaluation.middle), sketch.STAYS)
    sketch.arrow(axes, (x, evaluation.middle), (WIDTH - MARGIN - TEST_ROWS, evaluation.middle), sketch.STAYS)
    at = (split.middle + evaluation.middle) / 2
    sketch.note(axes, x - 0.42, at, sketch.wrap(test_rows(evidence), 0.84, colour=sketch.STAYS))


def test_rows(evidence: Evidence) -> str:
    """How many there are, and how many of their patients some site trains on."""
    count = sum(counts["test"] for counts in evidence.site_counts.values())
    shared = _shared_rows(evidence)
    if shared:
        return f"{count:,} test rows; {shared:,.1f} are also training rows of some site, on average"
    return f"{count:,} test rows; only their own site sees them" if evidence.deployed else f"{count:,} test rows"


def _shared_rows(evidence: Evidence) -> float:
    """Test rows whose patients are among some site's training rows, on average over seeds."""
    return float(sum(shared["rows"] for shared in evidence.results["leakage"].get("", {}).values()))


def stages_of(evidence: Evidence) -> list[Stage]:
    protection = _protection(evidence)
    return [
        Stage("source", _source(evidence), "where rows are" if evidence.deployed else "one machine", sketch.SOFT),
        Stage("cleaning", _cleaning(evidence), "each site", sketch.STAYS),
        Stage("partition", _partition(evidence), "who holds which rows", sketch.STAYS),
        Stage("split", _split(evidence), "each site", sketch.STAYS),
        Stage("scaling", _scaling(evidence), "each site", sketch.STAYS),
        Stage("local training", _training(evidence), "each site", sketch.STAYS),
        *([Stage("protection", protection, "before anything leaves", sketch.UP)] if protection else []),
        Stage("aggregation", _aggregation(evidence), "the coordinator", sketch.DOWN),
        Stage("evaluation", _evaluation(evidence), "each site's test rows", sketch.STAYS),
    ]


def _source(evidence: Evidence) -> str:
    described = evidence.results["sites"][0]
    hospitals = described["data"].get("hospitals")
    of = f": {listed(list(hospitals))}" if isinstance(hospitals, list | tuple) and hospitals else ""
    origin = " Made by a program: no patient is behind it." if evidence.synthetic else ""
    return f"{described['data']['name']}{of}.{origin}"


def _cleaning(evidence: Evidence) -> str:
    prepared, described = evidence.study.get("data", {}), evidence.results["sites"][0]
    rows = f"{described['rows']:,} rows remain"
    if evidence.signals:
        return f"Gaps and short recordings stay as they are, and the model is told what was measured; {rows}."
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
    rows = {site: rows_of(counts) for site, counts in evidence.site_counts.items()}
    text = f"rows of {', '.join(f'{site} {count:,}' for site, count in rows.items())}."
    if len(rows) > MOST_SITES:
        fewest, most, names = min(rows.values()), max(rows.values()), list(rows)
        text = f"{len(names)} sites, {names[0]} to {names[-1]}, with {fewest:,} to {most:,} rows."
    text = f"{evidence.results['sites'][0]['partition']['name']}: {text}"
    for exchange in exchanges_of(evidence):
        arms = named_arms(evidence, exchange.arms)
        topology = evidence.arms[exchange.arms[0]].get("topology") or {}
        if exchange.kind == "hierarchical":
            text += f"\nIn {arms}: {len(topology['regions'])} regions, {listed(list(topology['regions']))}."
        elif exchange.kind == "vertical":
            text += f"\nIn {arms}: columns are held by {listed(list(topology['parties']))}."
    return text + ("\nA patient can be at several sites." if _shared_rows(evidence) else "")


def _split(evidence: Evidence) -> str:
    settings, sites = evidence.study.get("evaluation", {}), evidence.site_counts.values()
    totals = {role: sum(counts[key] for counts in sites) for key, role in zip(KEYS, ROLES, strict=True)}
    rows = [f"{count:,} {role} rows" for role, count in totals.items() if count]
    vary = set(settings.get("vary", ())) & {"partition", "split"}
    if settings.get("split") == "given":
        drawn = "as the source gives it"
    elif evidence.seeds == 1 or not vary:
        drawn = "drawn once, by patient"
    else:
        drawn = f"drawn anew with each of {evidence.seeds} seeds, by patient"
    return f"{listed(rows)} with the first seed; {drawn}."


def _scaling(evidence: Evidence) -> str:
    setting = evidence.study.get("data", {}).get("scale", "")
    scale = SCALES.get(setting, "as the study says")
    fitted = ", fitted on training rows" if setting in ("per-site", "federated") else ""
    return f"{scale[0].upper()}{scale[1:]}{fitted}; test rows are scaled by the same numbers."


def _training(evidence: Evidence) -> str:
    training, model = evidence.study.get("training", {}), evidence.study.get("model", {})
    sizes = {(arm.get("model") or {}).get("shared_parameters") for arm in evidence.arms.values()} - {None}
    count = f", {sizes.pop():,} shared parameters" if len(sizes) == 1 else ""
    epochs = training.get("local_epochs", 1)
    text = (
        f"{model.get('kind', 'logistic')}{count}: {epochs} local epoch{'' if epochs == 1 else 's'} a round, batches of "
        f"{training.get('batch_size')}, {training.get('optimiser', 'sgd')} with learning rate {training.get('lr'):g}."
    )
    changed = list(dict.fromkeys(key for arm in evidence.study.get("arms", []) for key in arm if "." in key))
    return text + (f"\nArms differ in {listed(changed)}." if changed else "")


def _protection(evidence: Evidence) -> str:
    lines = []
    for exchange in exchanges_of(evidence):
        arms, steps = named_arms(evidence, exchange.arms), []
        if exchange.has("example"):
            clip, epsilon = exchange.settings("example", "clip"), exchange.settings("example", "epsilon")
            cut = "not cut" if clip == "none" else f"cut to a length of {clip}"
            steps.append(f"each patient's gradient is {cut} and gets noise (epsilon {epsilon})")
        if exchange.has("site"):
            clip = exchange.settings("site", "clip")
            steps.append(f"each site's update is cut to a length of {clip}, and the sum gets noise")
        if exchange.has("secure_sum"):
            steps.append("updates are masked, so that only their sum can be read")
        if steps:
            lines.append(f"{arms}: {'; '.join(steps)}.")
        noise = (evidence.arms[exchange.arms[0]].get("topology") or {}).get("embeddings")
        if noise is not None:
            cut = f"embeddings are cut to a length of {noise['clip']:g} and get noise of {noise['noise']:g} clips"
            lines.append(f"{arms}: {cut}.")
    return "\n".join(lines)


def _aggregation(evidence: Evidence) -> str:
    lines = []
    for exchange in exchanges_of(evidence):
        first = evidence.arms[exchange.arms[0]]
        rounds, numbers = f"{first['cost']['rounds']} rounds", update_numbers(evidence, exchange.arms[0])
        size = "" if numbers is None else f" of {numbers:,} parameters"
        holder = (first.get("topology") or {}).get("labels")
        kinds = {
            "local": "none, every site keeps its own model.",
            "pooled": "none, all training rows are at one place.",
            "vertical": f"parties' embeddings are joined at {holder}, {rounds}.",
            "hierarchical": f"updates{size} are averaged in each region, then the regions' models; {rounds}.",
        }
        rules = rules_text(evidence, exchange)
        become = f"become one by a rule ({rules})" if rules else "are averaged"
        text = kinds.get(exchange.kind, f"updates{size} of the sites {become}, {rounds}.")
        lines.append(f"{named_arms(evidence, exchange.arms)}: {text}")
    return "\n".join(lines)


def _evaluation(evidence: Evidence) -> str:
    seeds = f"{evidence.seeds} seed{'' if evidence.seeds == 1 else 's'}"
    against = f"; compared with {evidence.reference}" if evidence.reference else ""
    stays = " Predictions stay at their site, which tells counts." if evidence.deployed else ""
    return f"Every arm predicts the same test rows, {seeds}{against}.{stays}"


SECTION = Section(
    figures={"pipeline": Drawing("The way of a row", "From its source to this report.", pipeline, tall=True)}
)
