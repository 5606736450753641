"""How figures are written: SVG for pages, PNG for everything else."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from shutil import rmtree
from warnings import catch_warnings, simplefilter

import matplotlib as mpl
from matplotlib.figure import Figure

from wardround.report.evidence import Evidence
from wardround.report.headline import headline_of
from wardround.report.render.style import STYLE, as_svg, save_png
from wardround.report.render.table import listed

ATTACK = "attack_"  # how figures of `wardround attack` are called
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

    def title_for(self, evidence: Evidence) -> str:
        return self.title.format(**_terms(evidence))

    def caption_for(self, evidence: Evidence) -> str:
        caption = self.deployed if self.deployed and evidence.deployed else self.caption
        if self.one_seed and evidence.seeds == 1 and not evidence.deployed:
            caption = self.one_seed
        return caption.format(**_terms(evidence))


def _terms(evidence: Evidence) -> dict[str, str]:
    headline = evidence.headline
    weighted = evidence.study.get("training", {}).get("class_weights", "none") != "none"
    return {
        "metric": headline.word,
        "Metric": headline.title,
        "point": headline.point,
        "groups": listed(evidence.kinds) if evidence.kinds else "group",
        "arm": evidence.main_arm,
        "single": headline_of(next(iter(evidence.results["by_number_of_sites"]), {"metric": "auc"})).title,
        "synthetic": SYNTHETIC_IMAGES if evidence.synthetic else "",
        "weights": " The training loss has the study's class weights in it, the others have not." if weighted else "",
    }


def draw_all(figures: Mapping[str, Drawing], evidence: Evidence, folder: Path, workers: int = 1) -> dict[str, str]:
    """Write every figure that there is something to draw for; the SVGs as elements of a page, by name."""
    _empty(folder)
    shares = [dict(list(figures.items())[number::workers]) for number in range(workers)]
    # a forked process has the evidence at hand; it draws with numpy and matplotlib alone
    helpers = [get_context("fork").Process(target=_draw, args=(share, evidence, folder)) for share in shares[1:]]
    with catch_warnings():
        simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of any fork beside threads
        for helper in helpers:
            helper.start()
    _draw(shares[0], evidence, folder)
    for helper, share in zip(helpers, shares[1:], strict=True):
        helper.join()
        if helper.exitcode != 0:
            _draw(share, evidence, folder)  # whatever went wrong there is said here
    return {
        name: _for_page(path.read_text(encoding="utf-8"), name, drawing.title_for(evidence))
        for name, drawing in figures.items()
        if (path := folder / f"{name}.svg").is_file()
    }


def _empty(folder: Path) -> None:
    """Without the figures of an earlier report; those of `wardround attack` cannot be drawn from the results again."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.is_dir():
            rmtree(path)
        elif not path.name.startswith(ATTACK):
            path.unlink()


def _draw(figures: Mapping[str, Drawing], evidence: Evidence, folder: Path) -> None:
    for name, drawing in figures.items():
        with mpl.rc_context(STYLE):
            figure = drawing.draw(evidence) if drawing.draw else None
            if figure is not None:
                (folder / f"{name}.svg").write_text(as_svg(figure, name), encoding="utf-8")
                save_png(figure, folder / f"{name}.png")


def _for_page(svg: str, name: str, title: str) -> str:
    """An element of a page. Its ids are made its own, because a page holds several figures."""
    element = svg[svg.index("<svg") :]
    element = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", element)
    element = re.sub(r"<metadata>.*?</metadata>", "", element, flags=re.DOTALL)
    label = title.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    return element.replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
