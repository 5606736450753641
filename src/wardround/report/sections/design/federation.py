"""The federation of a study as a drawing: who sends what to whom, for each way in which its arms exchange."""

from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

from matplotlib.figure import Figure

from wardround.report.evidence import Evidence, rows_of
from wardround.report.render.figures import Drawing
from wardround.report.render.sketch import (
    DOWN,
    LINE,
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
    write,
)
from wardround.report.render.style import COLOURS, WIDTH
from wardround.report.render.table import counted
from wardround.report.section import Section
from wardround.report.sections.design.exchange import (
    Exchange,
    download_text,
    exchanges_of,
    model_numbers,
    named_arms,
    rules_text,
    upload_text,
)

MOST_BOXES = 8  # sites that have a box each; more are put together
MOST_REGIONS = 12
MOST_NAMED = 6  # columns of a party, or sites of a region
MARGIN, GAP, BETWEEN = 0.1, 0.1, 0.28
SIDE_BY_SIDE = 4  # boxes in a line
SITES, REGION, COORDINATOR = 2.15, 1.2, 1.75  # widths of boxes
BROAD, NARROW = 2.75, 0.95  # widths of what is written on arrows


def federation(evidence: Evidence) -> Figure:
    panels = [panel_of(evidence, exchange) for exchange in exchanges_of(evidence)]
    drawn, axes = canvas(sum(panel.height for panel in panels) + BETWEEN * (len(panels) - 1) + 2 * MARGIN)
    top = MARGIN
    for panel in panels:
        panel.draw(axes, top)
        top += panel.height + BETWEEN
    return drawn


class Panel:
    """Boxes of sites, and what they exchange: with a receiver, through regions, or with nobody."""

    def __init__(
        self,
        title: list[Line],
        senders: list[tuple[list[str], str]],
        messages: list[tuple[str, str]],
        receiver: list[str] | None = None,
        regions: Sequence[list[str]] = (),
        above: Sequence[tuple[str, str]] = (),
    ) -> None:
        """`senders` are the texts of each box and its colour, `messages` the texts on the arrows, or below the boxes,
        and their colours. Without a `receiver` boxes stand side by side. There is one of `regions` between each box
        and the receiver, and `above` are the texts between regions and the receiver."""
        self.title, self.colours = title, [colour for _, colour in senders]
        self.columns = SIDE_BY_SIDE if receiver is None else 1
        in_line = (WIDTH - 2 * MARGIN - (SIDE_BY_SIDE - 1) * GAP) / SIDE_BY_SIDE
        self.width = in_line if receiver is None else SITES
        self.receiver_width = 1.35 if regions else COORDINATOR
        self.boxes = [titled(texts, self.width - 2 * PAD) for texts, _ in senders]
        self.region_boxes = [titled(texts, REGION - 2 * PAD) for texts in regions]
        self.receiving = titled(receiver or [], self.receiver_width - 2 * PAD)
        text_width = WIDTH - 2 * MARGIN if receiver is None else NARROW if regions else BROAD
        self.messages, self.above = _notes(messages, text_width), _notes(above, text_width)
        pairs = zip_longest(self.boxes, self.region_boxes, fillvalue=list[Line]())
        heights = [max(height_of(box), height_of(region)) for box, region in pairs]
        self.rows = [max(heights[first : first + self.columns]) for first in range(0, len(heights), self.columns)]
        self.stacked = sum(self.rows) + GAP * (len(self.rows) - 1)
        beside = [height_of(lines) for lines in (self.receiving, self.messages, self.above)]
        self.body = self.stacked + height_of(self.messages) if receiver is None else max(self.stacked, *beside)
        self.height = LINE * len(title) + PAD + self.body

    def draw(self, axes: Any, top: float) -> None:
        write(axes, MARGIN, top + LINE * len(self.title) / 2, self.title)
        begin = top + LINE * len(self.title) + PAD
        if not self.receiving:
            self._draw_senders(axes, begin)
            write(axes, MARGIN, begin + self.stacked + height_of(self.messages) / 2, self.messages)
            return
        boxes = self._draw_senders(axes, begin + (self.body - self.stacked) / 2)
        centre, height = begin + self.body / 2, height_of(self.receiving)
        left = WIDTH - MARGIN - self.receiver_width
        receiver = Box(left, centre - height / 2, self.receiver_width, height)
        draw_box(axes, receiver, self.receiving)
        if not self.region_boxes:
            self._join(axes, boxes, receiver)
            note(axes, MARGIN + SITES + 0.35, centre, self.messages)
            return
        left_of_regions = MARGIN + SITES + 0.12 + NARROW + 0.06
        regions = [
            Box(left_of_regions, box.middle - height_of(lines) / 2, REGION, height_of(lines))
            for box, lines in zip(boxes, self.region_boxes, strict=True)
        ]
        for box, region, lines in zip(boxes, regions, self.region_boxes, strict=True):
            draw_box(axes, region, lines)
            arrow(axes, (box.right, box.middle), (region.left, region.middle), SOFT, "<|-|>")
        self._join(axes, regions, receiver)
        note(axes, MARGIN + SITES + 0.09, centre, self.messages)
        note(axes, left_of_regions + REGION + 0.12, centre, self.above)

    def _draw_senders(self, axes: Any, top: float) -> list[Box]:
        drawn = []
        for number, (lines, colour) in enumerate(zip(self.boxes, self.colours, strict=True)):
            row, column = divmod(number, self.columns)
            above = sum(self.rows[:row]) + GAP * row
            box = Box(MARGIN + column * (self.width + GAP), top + above, self.width, self.rows[row])
            draw_box(axes, box, lines, colour, tinted=True)
            drawn.append(box)
        return drawn

    def _join(self, axes: Any, boxes: list[Box], receiver: Box) -> None:
        for number, box in enumerate(boxes):
            end = receiver.top + receiver.height * (number + 1) / (len(boxes) + 1)
            arrow(axes, (box.right, box.middle), (receiver.left, end), SOFT, "<|-|>")


def _notes(texts: Sequence[tuple[str, str]], width: float) -> list[Line]:
    return [line for text, colour in texts for line in wrap(text, width, colour=colour)]


def panel_of(evidence: Evidence, exchange: Exchange) -> Panel:
    makers = {"hierarchical": _regional, "vertical": _vertical, "local": _alone, "pooled": _pooled}
    return makers.get(exchange.kind, _flat)(evidence, exchange)


def _title(evidence: Evidence, exchange: Exchange, what: str) -> list[Line]:
    width, word = WIDTH - 2 * MARGIN, "Arm" if len(exchange.arms) == 1 else "Arms"
    return [
        *wrap(what, width, bold=True),
        *wrap(f"{word}: {named_arms(evidence, exchange.arms)}", width, colour=SOFT),
    ]


def _rounds(evidence: Evidence, exchange: Exchange) -> str:
    return counted(evidence.arms[exchange.arms[0]]["cost"]["rounds"], "round")


def _flat(evidence: Evidence, exchange: Exchange) -> Panel:
    return Panel(
        _title(evidence, exchange, f"Sites and one coordinator, {_rounds(evidence, exchange)}"),
        site_boxes(evidence),
        [
            (f"to each site: {download_text(evidence, exchange)}", DOWN),
            (f"from each site: {upload_text(evidence, exchange)}", UP),
        ],
        ["coordinator", *_coordinates(evidence, exchange)],
    )


def _coordinates(evidence: Evidence, exchange: Exchange) -> list[str]:
    rules = rules_text(evidence, exchange)
    lines = [f"combines the updates ({rules})" if rules else "averages the updates", "has no rows"]
    if exchange.has("secure_sum"):
        lines = ["sees the sum of the updates and no single one", "has no rows"]
    if exchange.has("site"):
        lines.append("adds noise to the sum, for each site as a whole")
    return lines


def _regional(evidence: Evidence, exchange: Exchange) -> Panel:
    topology = evidence.arms[exchange.arms[0]]["topology"]
    numbers = model_numbers(evidence, exchange.arms[0])
    senders, regions = [], []
    for place, (name, region) in enumerate(_few_regions(topology["regions"]).items()):
        what = f"{region['train']:,} training rows stay at {counted(len(region['sites']), 'site')}"
        senders.append(([_some(region["sites"]), what], COLOURS[place % len(COLOURS)]))
        regions.append([name, *(["sees only a sum"] if exchange.has("secure_sum") else ["averages its sites"])])
    each = "round" if topology["regional_rounds"] == 1 else f"{topology['regional_rounds']} rounds"
    return Panel(
        _title(evidence, exchange, f"Sites in regions with coordinators of their own, {_rounds(evidence, exchange)}"),
        senders,
        [(f"down: {download_text(evidence, exchange)}", DOWN), (f"up: {upload_text(evidence, exchange)}", UP)],
        ["coordinator of all", f"averages the regions' models after every {each}", "has no rows"],
        regions=regions,
        above=[(f"down: the model of all{numbers}", DOWN), (f"up: the region's model{numbers}", UP)],
    )


def _few_regions(regions: Mapping[str, Any]) -> Mapping[str, Any]:
    """Those that have a box each, and the others as one."""
    if len(regions) <= MOST_REGIONS:
        return regions
    names = list(regions)
    rest = names[MOST_REGIONS - 1 :]
    sites = [site for name in rest for site in regions[name]["sites"]]
    together = {"sites": sites, "train": sum(regions[name]["train"] for name in rest)}
    return {name: regions[name] for name in names[: MOST_REGIONS - 1]} | {f"{len(rest)} more regions": together}


def _vertical(evidence: Evidence, exchange: Exchange) -> Panel:
    topology = evidence.arms[exchange.arms[0]]["topology"]
    holder, cost = topology["labels"], topology["cost"]
    senders = []
    for place, (name, party) in enumerate(topology["parties"].items()):
        holds = _some(party["columns"]) if party["columns"] else "no columns"
        senders.append(([name, f"its own columns stay here: {holds}"], COLOURS[place % len(COLOURS)]))
    noise = topology.get("embeddings")
    hidden = "" if noise is None else f", cut to a length of {noise['clip']:g}"
    hidden += f", with noise of {noise['noise']:g} clips" if noise and noise["noise"] else ""
    messages = [
        (f"to {holder}: an embedding of each row{hidden}, {_size(cost['bytes_up'])}", UP),
        (f"back: its gradient, {_size(cost['bytes_down'])}", DOWN),
        (f"{cost['exchanges']:,.0f} exchanges with one seed", SOFT),
    ]
    matched = topology.get("matched")
    common = [] if not matched else [f"{matched['common']:,} patients are known to all parties"]
    return Panel(
        _title(
            evidence, exchange, f"Parties with different columns of the same patients, {_rounds(evidence, exchange)}"
        ),
        senders,
        messages,
        [f"top of the network, at {holder}", f"{holder} has the labels", *common],
    )


def _alone(evidence: Evidence, exchange: Exchange) -> Panel:
    nothing = "Nothing is sent: each site has a model of its own, and there is no coordinator."
    return Panel(_title(evidence, exchange, "Every site alone"), site_boxes(evidence), [(nothing, STAYS)])


def _pooled(evidence: Evidence, exchange: Exchange) -> Panel:
    rows = sum(counts["train"] for counts in _described(evidence).values())
    messages = (
        f"Each site sends its training rows themselves to one place, where one model learns from {rows:,} of them."
    )
    title = _title(evidence, exchange, "All rows at one place: a yardstick, which no federation has")
    return Panel(title, site_boxes(evidence, stay=False), [(messages, UP)])


def site_boxes(evidence: Evidence, stay: bool = True) -> list[tuple[list[str], str]]:
    """A box for each site; where there are many, for runs of them in the study's order."""
    described = _described(evidence)
    names = list(described)
    size = -(-len(names) // MOST_BOXES)
    boxes = []
    for place, first in enumerate(range(0, len(names), size)):
        group = names[first : first + size]
        train = sum(described[name]["train"] for name in group)
        title = group[0] if len(group) == 1 else f"{group[0]} to {group[-1]}"
        where = f"at {len(group)} sites" if len(group) > 1 else "here"
        rows = f"{train:,} training rows {'stay ' if stay else ''}{where}"
        boxes.append(([title, rows], COLOURS[place % len(COLOURS)]))
    return boxes


def _described(evidence: Evidence) -> Mapping[str, Any]:
    counts = evidence.site_counts
    return {site: entry for site, entry in counts.items() if rows_of(entry)} or counts


def _some(names: list[str]) -> str:
    more = "" if len(names) <= MOST_NAMED else f" and {len(names) - MOST_NAMED} more"
    return ", ".join(names[:MOST_NAMED]) + more


def _size(count: float) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e5 else f"{count / 1000:,.1f} KB"


SECTION = Section(
    figures={
        "federation": Drawing(
            "Who sends what to whom",
            "Each way in which arms of this study exchange. Blue goes to the sites, red leaves them.",
            federation,
            tall=True,
        )
    }
)
