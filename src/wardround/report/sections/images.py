"""What studies of images or signals add: samples, and curves of losses and metrics over rounds."""

from functools import partial
from textwrap import wrap
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from wardround.evaluation.comparisons.listing import grouped
from wardround.report.arms import line_title, panel_title
from wardround.report.evidence import Evidence
from wardround.report.render.figures import Drawing
from wardround.report.render.signal_traces import traces
from wardround.report.render.style import WIDTH, figure, label_panels, looks, numbered_style
from wardround.report.section import Section

MOST_OF_SITE = 6
SIDE_BY_SIDE = 4  # more sites than this stand in two columns
LINES = 3  # of what is written below an image


def samples(evidence: Evidence) -> Figure | None:
    """A row of images for each site, with their labels below them."""
    if not _pictured(evidence):
        return None
    images, captions = evidence.samples["images"], [str(text) for text in evidence.samples["caption"]]
    all_of_site = grouped((str(site), place) for place, site in enumerate(evidence.samples["site"]))
    of_site = {site: places[:MOST_OF_SITE] for site, places in all_of_site.items()}
    longest = max(map(len, of_site.values()))
    blocks = 2 if len(of_site) > SIDE_BY_SIDE and longest <= 4 else 1
    gap = 0.1
    size = min(1.25, (WIDTH - 0.2 - 0.3 * (blocks - 1)) / (blocks * longest) - gap)
    letters = int(size / 0.06)  # of the captions' size that fit into the width of an image
    texts = {place: _short(captions[place], letters) for places in of_site.values() for place in places}
    lines = max(text.count("\n") + 1 for text in texts.values())
    rows = -(-len(of_site) // blocks)
    row_height = 0.24 + size + 0.13 * lines + 0.08
    head = 0.24 if evidence.synthetic else 0.0
    height = rows * row_height + 0.05 + head
    drawn = Figure(figsize=(WIDTH, height))
    if head:  # in the picture itself, which may end up on a slide
        drawn.text(0.1 / WIDTH, 1 - 0.04 / height, "SYNTHETIC: no patient", fontsize=9, color="#a33c00", va="top")
    for number, (site, places) in enumerate(of_site.items()):
        row, block = number % rows, number // rows
        left, top = 0.1 + block * (longest * (size + gap) + 0.3), height - head - row * row_height - 0.05
        drawn.text(left / WIDTH, (top - 0.02) / height, site, fontsize=9, fontweight="bold", va="top")
        for column, place in enumerate(places):
            x, y = left + column * (size + gap), top - 0.22 - size
            axes = drawn.add_axes((x / WIDTH, y / height, size / WIDTH, size / height))
            picture = images[place][0] if len(images[place]) == 1 else np.moveaxis(images[place], 0, -1)
            axes.imshow(picture, cmap="gray", vmin=0, vmax=255, interpolation="none")
            axes.set_axis_off()
            text = texts[place]
            drawn.text(x / WIDTH, (y - 0.03) / height, text, fontsize=7, va="top", linespacing=1.15)
    return drawn


def _pictured(evidence: Evidence) -> bool:
    """Whether there are samples, and they are pictures."""
    return not evidence.signals and bool(len(evidence.samples.get("images", ())))


def _short(caption: str, letters: int) -> str:
    """In lines of so many letters; what does not fit is counted."""
    names = caption.replace("_", " ").split(", ")
    for count in range(len(names), 0, -1):
        more = f" +{len(names) - count}" if count < len(names) else ""
        lines = wrap(", ".join(names[:count]) + more, letters, break_long_words=False)
        if len(lines) <= LINES or count == 1:
            return "\n".join(lines[:LINES])
    return caption


LOSSES = {"loss": "training loss", "validation_loss": "validation loss", "test_loss": "test loss"}
MOVEMENT = {"change": "weight change", "divergence": "divergence"}


def headline_curves(evidence: Evidence) -> Figure | None:
    metric, word = evidence.curve_headline.metric, evidence.curve_headline.word
    return _panels(evidence, {f"{role}_{metric}": f"{role} {word}" for role in ("validation", "test")})


def _panels(evidence: Evidence, columns: dict[str, str]) -> Figure | None:
    """Figures from left to right; sites that were formed differently from top to bottom."""
    points = {column: _points(evidence, column) for column in columns}
    shown = [column for column in columns if points[column]]
    if not shown:
        return None
    layout = {name: (panel_title(evidence, name), line_title(evidence, name)) for name in evidence.arms}
    rows, lines = (list(dict.fromkeys(titles)) for titles in zip(*layout.values(), strict=True))
    styles = _styles(evidence, {name: line for name, (_, line) in layout.items()})
    foot = 0.5 + 0.19 * -(-len(lines) // 4)
    drawn = figure(foot + (2.5 if len(rows) == 1 else 1.75) * len(rows))
    panels = drawn.subplots(len(rows), len(shown), sharex=True, sharey="col", squeeze=False)
    handles: dict[str, Any] = {}
    for name, (row, line) in layout.items():
        for column, axes in zip(shown, panels[rows.index(row)], strict=True):
            if name in points[column]:
                (handles[line],) = axes.plot(*points[column][name], linewidth=1.3, **styles[name])
    label_panels(panels, [columns[column] for column in shown], rows if len(rows) > 1 else [""])
    for axes in panels.flat:
        axes.xaxis.get_major_locator().set_params(integer=True)
    drawn.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(4, len(lines)), fontsize=8)
    return drawn


def _points(evidence: Evidence, column: str) -> dict[str, tuple[list[int], list[float]]]:
    """A line that is 0 throughout, of one site alone, says nothing. An arm that diverged at once has no number to draw,
    but keeps its place in the legend."""
    curves = {name: evidence.curve(name, column) for name in evidence.arms}
    if not any(any(values) for _, values in curves.values()):
        return {}
    return {name: (rounds, values) for name, (rounds, values) in curves.items() if any(values) or not rounds}


def _styles(evidence: Evidence, line: dict[str, str]) -> dict[str, dict[str, Any]]:
    """The family's colour where every arm has a line of its own, else a colour for each line."""
    lines, styles = list(dict.fromkeys(line.values())), {name: looks(evidence, name) for name in line}
    if len(set(map(repr, styles.values()))) == len(line) == len(lines):
        return styles
    return {name: numbered_style(lines.index(title)) for name, title in line.items()}


SECTION = Section(
    figures={
        "samples": Drawing(
            "Images of each site",
            "{synthetic}Some training images with the study's first seed, and their labels.",
            samples,
            tall=True,
        ),
        "traces": Drawing(
            "Signals of each site",
            "{synthetic}Some training recordings with the study's first seed, and their labels. Each channel is drawn "
            "by itself, at its own size; it breaks off where nothing was measured.",
            traces,
            tall=True,
        ),
        "curves": Drawing(
            "{Metric} over rounds",
            "Mean over seeds, for people to look at: nothing was chosen by it.",
            headline_curves,
            tall=True,
        ),
        "losses": Drawing(
            "Loss over rounds",
            "Mean over seeds. Training: over the batches of the round, as the model was at each of them.{weights}",
            partial(_panels, columns=LOSSES),
            tall=True,
        ),
        "movement": Drawing(
            "How far models move in a round",
            "Weight change: length of the shared model's change; arms with a model for each site have none. "
            "Divergence: root mean square distance of the sites' models from their mean.",
            partial(_panels, columns=MOVEMENT),
            tall=True,
        ),
    }
)
