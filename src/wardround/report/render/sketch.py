"""Boxes, arrows and lines of text for drawings that explain a study. Lengths are inches, from the top left corner."""

from functools import lru_cache
from typing import Any, NamedTuple

from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.patches import FancyBboxPatch
from matplotlib.textpath import text_to_path

from wardround.report.render.style import COLOURS, STYLE, WIDTH

SIZE = 7.5  # points of the letters
LINE = 0.145  # from one line of text to the next
SPARE = 1.08  # room for a page whose letters are a little wider than ours
PAD = 0.08  # between a box and its text
SOFT = "#555555"
DOWN, UP, STAYS = COLOURS[0], COLOURS[1], COLOURS[2]  # what sites are sent, what they send, what does not move


class Box(NamedTuple):
    left: float
    top: float
    width: float
    height: float

    @property
    def right(self) -> float:
        return self.left + self.width

    @property
    def middle(self) -> float:
        return self.top + self.height / 2


def canvas(height: float) -> tuple[Figure, Any]:
    drawn = Figure(figsize=(WIDTH, height))
    axes = drawn.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, WIDTH), ylim=(height, 0))
    axes.axis("off")
    return drawn, axes


class Line(NamedTuple):
    text: str
    bold: bool = False
    colour: str = "black"


@lru_cache(maxsize=4096)
def width_of(text: str, bold: bool = False) -> float:
    font = FontProperties(family=STYLE["font.family"], size=SIZE, weight="bold" if bold else "normal")
    points, _, _ = text_to_path.get_text_width_height_descent(text, font, ismath=False)
    return float(SPARE * points / 72)


def wrap(text: str, width: float, bold: bool = False, colour: str = "black") -> list[Line]:
    """Lines that fit into `width`; a word that does not is broken."""
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and width_of(longer, bold) <= width:
            lines[-1] = longer
            continue
        while width_of(word, bold) > width and len(word) > 1:
            fits = max(n for n in range(1, len(word)) if n == 1 or width_of(word[:n], bold) <= width)
            lines.append(word[:fits])
            word = word[fits:]
        lines.append(word)
    return [Line(line, bold, colour) for line in lines]


def titled(texts: list[str], width: float) -> list[Line]:
    """The first text as a title."""
    return [line for number, text in enumerate(texts) for line in wrap(text, width, bold=number == 0)]


def height_of(lines: list[Line]) -> float:
    return LINE * len(lines) + 2 * PAD


def draw_box(axes: Any, box: Box, lines: list[Line], colour: str = "black", tinted: bool = False) -> None:
    _ground(axes, box, colour if tinted else "white", "none", 0.12 if tinted else 1.0)
    _ground(axes, box, "none", colour, 1.0)
    write(axes, box.left + PAD, box.middle, lines)


def _ground(axes: Any, box: Box, face: str, edge: str, alpha: float) -> None:
    shape: dict[str, Any] = {"boxstyle": "round,pad=0,rounding_size=0.05", "linewidth": 1, "zorder": 2}
    corner = (box.left, box.top)
    axes.add_patch(FancyBboxPatch(corner, box.width, box.height, facecolor=face, edgecolor=edge, alpha=alpha, **shape))


def write(axes: Any, x: float, middle: float, lines: list[Line]) -> None:
    """Lines one below the other, from `x` on."""
    top = middle - LINE * len(lines) / 2
    for number, (text, bold, colour) in enumerate(lines):
        weight = "bold" if bold else "normal"
        y = top + LINE * (number + 0.5)
        axes.text(x, y, text, fontsize=SIZE, va="center", color=colour, fontweight=weight, zorder=4)


def arrow(axes: Any, start: tuple[float, float], end: tuple[float, float], colour: str, style: str = "-|>") -> None:
    shape = {"arrowstyle": style, "color": colour, "linewidth": 0.9, "shrinkA": 1, "shrinkB": 1, "mutation_scale": 8}
    axes.annotate("", xy=end, xytext=start, arrowprops=shape, zorder=1)


def note(axes: Any, x: float, middle: float, lines: list[Line]) -> None:
    """Lines on a white ground, over whatever arrows cross it."""
    width = max(width_of(line.text, line.bold) for line in lines)
    height = LINE * len(lines)
    box = Box(x - PAD / 2, middle - (height + PAD) / 2, width + PAD, height + PAD)
    _ground(axes, box, "white", "none", 1.0)
    write(axes, x, middle, lines)
