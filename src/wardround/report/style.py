"""One look for all figures: a colour for each family of arms, readable in print and with any kind of colour vision."""

import re
from io import BytesIO
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from wardround.report.evidence import Evidence

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
WIDTH = 7.4  # inches: the text width of an A4 page


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


def as_svg(drawn: Figure, name: str) -> str:
    """The figure as an element of a page. Its ids are made its own, because a page holds several figures."""
    content = BytesIO()
    with mpl.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        # the canvas writes by itself: `savefig` would draw everything once more beforehand, to measure it
        FigureCanvasSVG(drawn).print_svg(content, metadata={"Date": None})  # type: ignore[no-untyped-call]
    drawn.set_layout_engine("none")  # it has found its layout; the next writing need not search again
    return content.getvalue().decode()


def for_page(svg: str, name: str, title: str) -> str:
    element = svg[svg.index("<svg") :]
    element = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", element)
    element = re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.DOTALL)
    label = title.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return element.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)


def save_png(drawn: Figure, path: Path) -> None:
    drawn.set_dpi(110)
    # the last few per cent of compression would cost most of the time
    FigureCanvasAgg(drawn).print_png(path, pil_kwargs={"compress_level": 1})  # type: ignore[no-untyped-call]
