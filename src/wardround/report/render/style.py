"""One look for all figures: a colour for each family of arms, readable in print and with any kind of colour vision."""

import re
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from wardround.report.evidence import Evidence
from wardround.report.headline import Headline

# Okabe and Ito's palette, which people with any kind of colour vision can tell apart, and three more of that kind
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999933", "#882255", "#44AA99")
DASHES = ("-", "--", ":", "-.")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
STYLE: Any = {
    "font.size": 9,
    "font.family": "DejaVu Sans",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text: smaller, searchable, and read aloud
}
WIDTH = 8.4  # inches: between the width of an A4 page and that of the page on a screen, which figures are scaled to
PAGE_FONT = '"DejaVu Sans", Verdana, Arial, sans-serif'  # of report.css; letters of a figure are those around it
MOST_LABELLED = 6  # lines that are labelled at their ends; more have a legend
TIP = "tip:"  # begins the id of a mark with something to say


def figure(height: float, width: float = WIDTH) -> Figure:
    # some room to spare, because the layout that is found for the SVG serves the PNG, whose letters are a little wider
    return Figure(figsize=(width, height), layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.06))


def looks(evidence: Evidence, arm: str) -> dict[str, Any]:
    """Colour and dashes of an arm: the family's colour, another dash for each member of a sweep."""
    entry = evidence.results["arms"][arm]
    family = evidence.families.index(entry["family"])
    members = [
        name
        for name, other in evidence.results["arms"].items()
        if (other["family"], other["variant"]) == (entry["family"], entry["variant"])
    ]
    return {
        "color": COLOURS[family % len(COLOURS)],
        "linestyle": DASHES[(members.index(arm) + family // len(COLOURS)) % len(DASHES)],
    }


def numbered_style(number: int) -> dict[str, str]:
    """Colour and dashes of the lines of a figure in which families have none."""
    return {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number // len(COLOURS) % len(DASHES)]}


def offset(number: int, count: int, width: float) -> float:
    """Where the mark of one of several arms stands beside the middle of its row."""
    return (number - (count - 1) / 2) * width / count


def single_axes(height: float, width: float = WIDTH) -> tuple[Figure, Any]:
    drawn = figure(height, width)
    return drawn, drawn.subplots()


def panel_grid(count: int, columns: int, height: float, sharey: bool = False) -> tuple[Figure, Any]:
    """A figure with so many panels in a line. Those of the last line that are not needed are hidden."""
    drawn = figure(height)
    panels = drawn.subplots(-(-count // columns), columns, sharex=True, sharey=sharey, squeeze=False)
    for axes in panels.flat[count:]:
        axes.set_visible(False)
    return drawn, panels


def as_svg(drawn: Figure, name: str) -> str:
    """The figure as an element of a page. Its ids are made its own, because a page holds several figures."""
    content = BytesIO()
    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        # the canvas writes by itself: `savefig` would draw everything once more beforehand, to measure it
        FigureCanvasSVG(drawn).print_svg(content, metadata={"Date": None})  # type: ignore[no-untyped-call]
    drawn.set_layout_engine("none")  # it has found its layout; the next writing need not search again
    svg = re.sub(rf'<g id="{TIP}([^"]*)">', r"<g><title>\1</title>", content.getvalue().decode())
    return svg.replace("font-family: 'DejaVu Sans'", f"font-family: {PAGE_FONT.replace(chr(34), chr(39))}")


def tell(mark: Any, text: str) -> None:
    """What a reader is told who points at a mark: its `title` in the SVG, which `as_svg` makes of the id."""
    mark.set_gid(TIP + text)


def save_png(drawn: Figure, path: Path) -> None:
    drawn.set_dpi(110)
    # the last few per cent of compression would cost most of the time
    FigureCanvasAgg(drawn).print_png(path, pil_kwargs={"compress_level": 1})  # type: ignore[no-untyped-call]


def bar(
    axes: Any,
    figures: Mapping[str, Any],
    place: float,
    headline: Headline,
    colour: str,
    marker: str = "o",
    label: str | None = None,
    faded: int = 0,
    upright: bool = False,
    thin: bool = False,
    told: str = "",
) -> None:
    """A mean with its interval, lying or upright, on the scale of its metric. `told`: what it is the figure of."""
    if figures["mean"] is None:
        return
    alpha = 1.0 if not faded else 0.55
    limits = [limit for limit in headline.limits(figures["interval"]) if limit is not None]
    ends = [headline.scale * limit for limit in limits]
    line, point = ([place] * len(ends), ends), (place, headline.scale * figures["mean"])
    if not upright:
        line, point = (line[1], line[0]), (point[1], point[0])
    axes.plot(*line, color=colour, linewidth=1 if thin else 1.4, alpha=alpha)
    size = 4 if thin else 5
    (mark,) = axes.plot(*point, marker, color=colour, markersize=size, alpha=alpha, label=label, linestyle="none")
    interval = f" ({' to '.join(map(headline.text, limits))})" if limits else ""
    tell(mark, f"{told or label or headline.word}: {headline.text(figures['mean'])}{interval}")


def difference_text(evidence: Evidence, entry: Mapping[str, Any]) -> str:
    """Of a mark: a paired difference with its interval."""
    measure, low_high = evidence.headline.measure, entry["interval"]
    interval = "" if low_high is None else f" ({' to '.join(measure.difference(x, with_unit=False) for x in low_high)})"
    return f"{measure.difference(entry['difference'])}{interval}"


def on_top_of(number: int, count: int) -> dict[str, Any]:
    """The width of one of several lines: each is narrower than the one under it, so that both are seen where they
    coincide."""
    most = min(3.6, 1.2 + 0.9 * (count - 1))
    return {"linewidth": most - (most - 1) * number / max(1, count - 1), "solid_capstyle": "butt"}


def label_ends(axes: Any, ends: Sequence[tuple[float, str, str]]) -> None:
    """Names at the right of lines that end at these heights, in their colours; apart where lines end together."""
    low, high = axes.get_ylim()
    log = axes.get_yscale() == "log"
    low, high = (np.log10(low), np.log10(high)) if log else (low, high)
    points = axes.get_position().height * axes.figure.get_size_inches()[1] * 72
    apart = 11 / points  # of a panel's height: a line of letters
    places: list[float] = []
    ordered = sorted(ends, key=lambda end: end[0])
    for value, _, _ in ordered:
        wanted = ((np.log10(value) if log else value) - low) / (high - low)
        places.append(max(min(max(wanted, 0), 1), places[-1] + apart if places else 0))
    for number in range(len(places) - 1, -1, -1):  # back below the top
        places[number] = min(places[number], 1 - (len(places) - 1 - number) * apart)
    for place, (_, name, colour) in zip(places, ordered, strict=True):
        look = {"color": colour, "fontsize": 8, "va": "center", "ha": "left"}
        axes.annotate(name, (1, place), xycoords="axes fraction", xytext=(5, 0), textcoords="offset points", **look)


def legend(drawn: Figure, **where: Any) -> None:
    """None where nothing was drawn that has a name."""
    if any(axes.get_legend_handles_labels()[0] for axes in drawn.axes):
        drawn.legend(**where)


def name_rows(axes: Any, names: Sequence[str]) -> None:
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")


def heat(
    axes: Any,
    values: np.ndarray,
    shown: Callable[[float], str],
    rows: Sequence[str],
    columns: Sequence[str],
    cmap: str = "cividis",
    none: str = "–",
) -> Any:
    """A map with its numbers written into it; `none` where there is none."""
    image = axes.imshow(values, cmap=cmap, aspect="auto")
    known = values[~np.isnan(values)]
    middle = (known.min() + known.max()) / 2 if known.size else 0.0
    for (i, j), value in np.ndenumerate(values):
        light = np.isnan(value) or ((value > middle) != cmap.endswith("_r"))
        text = none if np.isnan(value) else shown(float(value))
        axes.text(j, i, text, ha="center", va="center", fontsize=7.5, color="black" if light else "white")
    turned = sum(map(len, columns)) > 60 or len(columns) > 8
    axes.set_xticks(range(len(columns)), columns, rotation=40 if turned else 0, ha="right" if turned else "center")
    axes.set_yticks(range(len(rows)), rows)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.grid(visible=False)
    return image


def label_panels(panels: Any, columns: Sequence[str], rows: Sequence[str]) -> None:
    """Titles above the columns of curves over rounds, labels at the left of their rows."""
    for above, below, title in zip(panels[0], panels[-1], columns, strict=True):
        above.set_title(title, fontsize=9)
        below.set_xlabel("round")
        below.xaxis.get_major_locator().set_params(integer=True)
    for axes, label in zip(panels[:, 0], rows, strict=True):
        axes.set_ylabel(label)


def small_panels(
    count: int, columns: int, size: float, below: float = 0.55, labelled: bool = False
) -> tuple[Figure, list[Any]]:
    """A figure with `count` panels of one height that share their axes, and room for a legend at its foot. With
    `labelled` each has axes and labels of its own.

    Laid out by hand: searching for a layout of so many panels takes a second.
    """
    rows = -(-count // columns)
    left, top, gap, title = 0.55, 0.25, 0.55 if labelled else 0.16, 0.26
    height = top + rows * (size + title) + below
    drawn = Figure(figsize=(WIDTH, height))
    width = (WIDTH - left - 0.1 - gap * (columns - 1)) / columns
    panels = []
    for number in range(count):
        row, column = divmod(number, columns)
        x, y = left + column * (width + gap), height - top - row * (size + title) - size
        axes = drawn.add_axes((x / WIDTH, y / height, width / WIDTH, size / height))
        if not labelled:
            axes.tick_params(labelsize=7, labelbottom=number + columns >= count, labelleft=not column)
        panels.append(axes)
    return drawn, panels
