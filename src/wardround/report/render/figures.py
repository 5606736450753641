"""How figures are written: SVG for pages, PNG for everything else."""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree

import matplotlib as mpl
from matplotlib.figure import Figure

from wardround.core.processes import mapped
from wardround.report.evidence import Evidence
from wardround.report.headline import Headline
from wardround.report.render.style import STYLE, WIDTH, as_svg, save_png
from wardround.report.render.table import listed

PARTIAL = ".partial"
ALL_ARMS = "-of-all-arms"
ATTACK = "attack_"  # how figures of `wardround attack` are called
Counted = Callable[[int, int], None]  # called with how many are done, and of how many
SYNTHETIC_IMAGES = "SYNTHETIC: made by a program, no patient is behind any of it. "


@dataclass(frozen=True)
class Drawing:
    """`{metric}`, `{Metric}`, `{groups}` and the like in title and caption are filled in for a run."""

    title: str
    caption: str = ""
    draw: Callable[[Evidence], Figure | None] | None = None  # none: another command has drawn it
    deployed: str = ""  # the caption in a run across hospitals, where it differs
    one_seed: str = ""  # and with one seed
    tall: bool = False  # needs a page of its own on paper
    of_task: bool = False  # for the tasks alone whose `report` names it
    detailed: bool = False  # it shows the arm of page one beside training alone; a second one has all arms

    def title_for(self, evidence: Evidence) -> str:
        return self.title.format(**_terms(evidence))

    def caption_for(self, evidence: Evidence) -> str:
        caption = self.deployed if self.deployed and evidence.deployed else self.caption
        if self.one_seed and evidence.seeds == 1 and not evidence.deployed:
            caption = self.one_seed
        return caption.format(**_terms(evidence))


def _terms(evidence: Evidence) -> dict[str, str]:
    if not evidence.trained:
        return {}
    headline = evidence.headline
    weighted = evidence.study.get("training", {}).get("class_weights", "none") != "none"
    return {
        "metric": headline.word,
        "target": evidence.task.names[0],
        "Metric": headline.title,
        "point": headline.point,
        "nearly": evidence.nearly,
        "better": "Left" if headline.sign < 0 else "Right",
        "groups": listed(evidence.kinds) if evidence.kinds else "group",
        "arm": evidence.main_arm,
        "single": _single(evidence).title,
        "part": "finding" if evidence.findings else "class",
        "positive": evidence.event if len(evidence.classes) == 2 else "",
        "synthetic": SYNTHETIC_IMAGES if evidence.synthetic else "",
        "weights": " The training loss has the study's class weights in it, the others have not." if weighted else "",
    }


def _single(evidence: Evidence) -> Headline:
    """In which the number of hospitals is looked at."""
    entry = next(iter(evidence.results["by_number_of_sites"]), None)
    return evidence.headline if entry is None else evidence.headline_for(entry["metric"])


def draw_all(
    figures: Mapping[str, Drawing],
    evidence: Evidence,
    folder: Path,
    workers: int = 1,
    progress: Counted | None = None,
) -> dict[str, str]:
    """Write every figure that there is something to draw for; the SVGs as elements of a page, by name.

    Whoever interrupts this finds whole figures only.
    """
    _empty(folder)
    declared = evidence.task.report.figures
    figures = {name: drawing for name, drawing in figures.items() if not drawing.of_task or name in declared}
    if set(evidence.few_arms) != set(evidence.detailed.few_arms):
        figures = with_all_arms(figures)
    watching = os.getpid()

    def draw(name: str) -> str | None:
        svg = _draw(name, figures[name], evidence, folder)
        if progress is not None and os.getpid() == watching:  # others' figures are counted where they appear
            progress(len(list(folder.glob("*.svg"))), len(figures))
        return svg

    try:
        drawn = mapped(draw, list(figures), workers)
    except BaseException:
        for partial in folder.glob(f".*{PARTIAL}"):
            partial.unlink()
        raise
    if progress is not None:
        progress(len(figures), len(figures))  # some have nothing to show
    return {
        name: _for_page(svg, name, figures[name].title_for(evidence))
        for name, svg in zip(figures, drawn, strict=True)
        if svg is not None
    }


def with_all_arms(figures: Mapping[str, Drawing]) -> dict[str, Drawing]:
    """Those that show few arms once more, with all."""
    named = {name: [(name, drawing)] for name, drawing in figures.items()}
    for name, drawing in figures.items():
        if drawing.detailed:
            named[name].append((f"{name}{ALL_ARMS}", replace(drawing, detailed=False)))
    return dict(pair for pairs in named.values() for pair in pairs)


def _empty(folder: Path) -> None:
    """Without the figures of an earlier report; those of `wardround attack` cannot be drawn from the results again."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.is_dir():
            rmtree(path)
        elif not path.name.startswith(ATTACK):
            path.unlink()


def _draw(name: str, drawing: Drawing, evidence: Evidence, folder: Path) -> str | None:
    """The figure as SVG, here or where another command has left it; none where there is nothing to draw."""
    path = folder / f"{name}.svg"
    if drawing.draw is None:
        return path.read_text(encoding="utf-8") if path.is_file() else None
    with mpl.rc_context(STYLE):
        figure = drawing.draw(evidence.detailed if drawing.detailed else evidence)
        if figure is None:
            return None
        svg = as_svg(figure, name)
        partial = folder / f".{name}{PARTIAL}"
        partial.write_text(svg, encoding="utf-8")
        partial.replace(path)
        save_png(figure, partial)
        partial.replace(path.with_suffix(".png"))
    return svg


def _in_page_width(found: re.Match[str]) -> str:
    """Letters are of one size in all figures, so that one which is narrower than the page stays so."""
    points = float(found[2])
    width = min(100.0, 100 * points / (72 * WIDTH))
    return f'<svg{found[1]} style="--as-drawn: {points:g}pt" width="{width:.4g}%"'


def _for_page(svg: str, name: str, title: str) -> str:
    """An element of a page. Its ids are made its own, because a page holds several figures."""
    element = svg[svg.index("<svg") :]
    element = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", element)
    element = re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.DOTALL)
    label = title.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    element = re.sub(r'<svg([^>]*?) width="([\d.]+)pt" height="[^"]*"', _in_page_width, element, count=1)
    return element.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
