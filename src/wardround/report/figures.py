"""Which figures a report has, in its order, and how they are written: SVG for pages, PNG for everything else."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from shutil import rmtree
from warnings import catch_warnings, simplefilter

import matplotlib as mpl
from matplotlib.figure import Figure

from wardround.report import plots_data, plots_results
from wardround.report.evidence import STAY, Evidence
from wardround.report.style import STYLE, as_svg, for_page, save_png


@dataclass(frozen=True)
class Drawing:
    title: str
    caption: str
    draw: Callable[[Evidence], Figure | None]
    across: str = ""  # the caption in a run across hospitals, where it differs
    needs_rows: bool = False

    def caption_for(self, evidence: Evidence) -> str:
        return self.across if self.across and evidence.deployed else self.caption


FIGURES = {
    "sites": Drawing(
        "Rows of each class at each site", "With the study's first seed, before rows are split.", plots_data.sites
    ),
    "distributions": Drawing(
        "Columns before and after sites form",
        "Grey: all rows. Lines: each site. Cells of fewer than 5 rows are withheld.",
        plots_data.distributions,
        needs_rows=True,
    ),
    "correlation": Drawing(
        "Correlation of the columns",
        "Pearson's, over rows in which both are recorded.",
        plots_data.correlation,
        needs_rows=True,
    ),
    "accuracy": Drawing(
        "Accuracy of every arm",
        "Mean over seeds with its 95 % interval. Paler marks: variants of the study; where test rows are fixed, the "
        "interval speaks of training alone.",
        plots_results.accuracy,
    ),
    "differences": Drawing(
        "Differences from the reference",
        "Dot and line: paired difference with the 95 % interval that allows for seeds sharing patients. "
        "Ticks: BCa bootstrap over patients.",
        plots_results.differences,
        across="Dot and line: paired difference with the 95 % interval that allows for seeds sharing patients. Ticks: "
        f"BCa bootstrap over seeds, because {STAY}.",
    ),
    "hospitals": Drawing(
        "Accuracy at each site", "Each site's own test rows, with 95 % intervals.", plots_results.hospitals
    ),
    "benefit": Drawing(
        "What joining changed for each site",
        "Against the same site training alone, paired over seeds. Right of 0: joining helped.",
        plots_results.benefit,
    ),
    "elsewhere": Drawing(
        "One hospital's model at another",
        "Mean accuracy over seeds. A cell without a dot is an external test: that hospital took no part.",
        plots_results.elsewhere,
    ),
    "number-of-sites": Drawing(
        "Accuracy against the number of hospitals",
        "Mean over the combinations of that many hospitals in the study, every hospital counting alike, with 95 % "
        "intervals over seeds.",
        plots_results.number_of_sites,
    ),
    "calibration": Drawing(
        "Calibration",
        "Tenths of all test rows by score. On the diagonal, scores mean what they say.",
        plots_results.calibration,
        across="Tenths of all test rows by score, from the sites' histograms: a cell's rows are taken as evenly spread "
        "around their mean. On the diagonal, scores mean what they say.",
    ),
    "decision-curve": Drawing(
        "Decision curve",
        "Net benefit of acting on scores above the threshold, beside acting on everybody and on nobody.",
        plots_results.decision_curve,
        across="Net benefit of acting on scores above the threshold, beside acting on everybody and on nobody. From "
        "the sites' histograms: in a cell that was merged for its few rows, they are taken as evenly spread.",
    ),
    "subgroups": Drawing(
        "Accuracy by sex and age",
        "Groups with fewer than 10 test rows are suppressed.",
        plots_results.subgroups,
        across="Over the sites at which a group has test rows enough to be told of.",
    ),
    "sweep": Drawing(
        "The swept setting",
        "Accuracy with its 95 % interval, rounds to 95 % of the final accuracy (on validation rows where there are "
        "any, else on test rows), and mean weight change per round.",
        plots_results.sweep,
    ),
    "test-accuracy": Drawing(
        "Accuracy over rounds",
        "Mean over seeds, for people to look at: nothing was chosen by it.",
        lambda evidence: plots_data.curve(evidence, "test_accuracy", "test accuracy"),
    ),
    "test-loss": Drawing(
        "Loss over rounds",
        "Mean over seeds.",
        lambda evidence: plots_data.curve(evidence, "test_loss", "test loss"),
    ),
    "weight-change": Drawing(
        "Weight change per round",
        "Length of the shared model's change, mean over seeds. Arms with a model for each site have none.",
        lambda evidence: plots_data.curve(evidence, "change", "weight change", log=True),
    ),
}


def left_out(evidence: Evidence, drawn: Collection[str]) -> str:
    """Says what a run across hospitals has no figure of, and why."""
    lacking = [FIGURES[name].title.lower() for name in FIGURES if FIGURES[name].needs_rows and name not in drawn]
    return f"Not here: {', '.join(lacking)}. Rows and {STAY}." if evidence.deployed and lacking else ""


def draw_all(evidence: Evidence, folder: Path, workers: int = 1) -> dict[str, str]:
    """Write every figure that there is something to draw for; the SVGs as elements of a page, by name."""
    rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shares = [list(FIGURES)[number::workers] for number in range(workers)]
    # a forked process has the evidence at hand; it draws with numpy and matplotlib alone
    helpers = [get_context("fork").Process(target=_draw, args=(evidence, folder, share)) for share in shares[1:]]
    with catch_warnings():
        simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of any fork beside threads
        for helper in helpers:
            helper.start()
    _draw(evidence, folder, shares[0])
    for helper, share in zip(helpers, shares[1:], strict=True):
        helper.join()
        if helper.exitcode != 0:
            _draw(evidence, folder, share)  # whatever went wrong there is said here
    written = {name: folder / f"{name}.svg" for name in FIGURES}
    return {
        name: for_page(path.read_text(encoding="utf-8"), name, FIGURES[name].title)
        for name, path in written.items()
        if path.is_file()
    }


def _draw(evidence: Evidence, folder: Path, names: Sequence[str]) -> None:
    for name in names:
        with mpl.rc_context(STYLE):
            drawn = FIGURES[name].draw(evidence)
            if drawn is not None:
                (folder / f"{name}.svg").write_text(as_svg(drawn, name), encoding="utf-8")
                save_png(drawn, folder / f"{name}.png")
