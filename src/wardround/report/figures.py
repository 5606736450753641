"""Which figures a report has, in its order, and how they are written: SVG for pages, PNG for everything else."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from shutil import rmtree
from warnings import catch_warnings, simplefilter

import matplotlib as mpl
from matplotlib.figure import Figure

from wardround.report import (
    plots_curves,
    plots_data,
    plots_federation,
    plots_findings,
    plots_grid,
    plots_images,
    plots_pipeline,
    plots_privacy,
    plots_results,
    plots_sure,
    plots_topology,
    plots_ways,
)
from wardround.report.evidence import STAY, Evidence
from wardround.report.headline import headline_of
from wardround.report.style import STYLE, as_svg, for_page, save_png
from wardround.report.table import FEWEST, listed

ATTACK = "attack_"  # how figures of `wardround attack` are called
ATTACK_FIGURES = {
    "attack_canary": "Epsilon that is claimed, and what an attack could show of it",
    "attack_pictures": "Images, and what was rebuilt from an update",
    "attack_inversion": "Patients' rows that were rebuilt from an update",
    "attack_membership": "Telling who was trained on",
}
SYNTHETIC_IMAGES = "SYNTHETIC: made by a program, no patient is behind any of it. "


@dataclass(frozen=True)
class Drawing:
    """`{metric}`, `{Metric}`, `{groups}` and the like in title and caption are filled in for a run."""

    title: str
    caption: str
    draw: Callable[[Evidence], Figure | None]
    across: str = ""  # the caption in a run across hospitals, where it differs
    one_seed: str = ""  # and with one seed
    needs_rows: bool = False
    tall: bool = False  # needs a page of its own on paper

    def title_for(self, evidence: Evidence) -> str:
        return self.title.format(**_words(evidence))

    def caption_for(self, evidence: Evidence) -> str:
        caption = self.across if self.across and evidence.deployed else self.caption
        if self.one_seed and evidence.seeds == 1 and not evidence.deployed:
            caption = self.one_seed
        return caption.format(**_words(evidence))


def _words(evidence: Evidence) -> dict[str, str]:
    headline = evidence.headline
    return {
        "metric": headline.word,
        "Metric": headline.title,
        "point": headline.point,
        "groups": listed(evidence.kinds) if evidence.kinds else "group",
        "arm": evidence.main_arm,
        "single": headline_of(next(iter(evidence.results["by_number_of_sites"]), {"metric": "auc"})).title,
        "synthetic": SYNTHETIC_IMAGES if evidence.synthetic else "",
        "weights": " The training loss has the study's class weights in it, the others have not."
        if evidence.study.get("training", {}).get("class_weights", "none") != "none"
        else "",
    }


FIGURES = {
    "federation": Drawing(
        "Who sends what to whom",
        "Each way in which arms of this study exchange. Blue goes to the sites, red leaves them.",
        plots_federation.federation,
        tall=True,
    ),
    "pipeline": Drawing("The way of a row", "From its source to this report.", plots_pipeline.pipeline, tall=True),
    "samples": Drawing(
        "Images of each site",
        "{synthetic}Some training images with the study's first seed, and their labels.",
        plots_images.samples,
        tall=True,
    ),
    "sites": Drawing(
        "Rows of each class at each site", "With the study's first seed, before rows are split.", plots_data.sites
    ),
    "prevalence": Drawing(
        "How common each finding is at each site",
        f"{{synthetic}}Per cent of the site's rows, with the study's first seed. Below {FEWEST} rows: withheld.",
        plots_findings.prevalence,
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
    "primary-metric": Drawing(
        "{Metric} of every arm",
        "Mean over seeds with its 95 % CI, by itself. Paler marks: variants of the study.",
        plots_results.overall,
        one_seed="With its 95 % CI over patients, by itself. Paler marks: variants of the study.",
    ),
    "differences": Drawing(
        "Differences from the reference",
        "Paired difference with its 95 % CI, corrected for all comparisons of this report.{point}",
        plots_results.differences,
        one_seed="Difference on the same test rows with its 95 % CI over patients, corrected for all comparisons of "
        "this report.{point}",
    ),
    "grid": Drawing("Every cell of the grid", "On all sites' test rows; bright is better.", plots_grid.grid_map),
    "grid-sides": Drawing(
        "The grid on training, validation and test rows",
        "After the last round. Above {metric}, below the loss; bright is better.",
        plots_grid.grid_sides,
    ),
    "grid-lines": Drawing(
        "The grid from both sides", "On all sites' test rows, with 95 % intervals.", plots_grid.grid_lines
    ),
    "auc-by-finding": Drawing(
        "AUC of each finding",
        "With 95 % intervals; none where too few test rows have the finding.",
        plots_findings.auc_by_finding,
        tall=True,
    ),
    "roc": Drawing(
        "ROC curve of each finding",
        "Over all sites' test rows. Grey: a coin.",
        plots_findings.roc,
        across="From histograms of the sites' scores on test rows. Grey: a coin.",
        tall=True,
    ),
    "precision-recall": Drawing(
        "Precision-recall curve of each finding",
        "Over all sites' test rows. Grey: how common the finding is, which is what a coin would reach.",
        plots_findings.precision_recall,
        across="From histograms of the sites' scores on test rows. Grey: how common the finding is, which is what a "
        "coin would reach.",
        tall=True,
    ),
    "findings-at-sites": Drawing(
        "AUC of each finding at each site",
        f"Under {{arm}}, on each site's own test rows. Withheld where fewer than {FEWEST} of them have the finding.",
        plots_findings.findings_at_sites,
    ),
    "hospitals": Drawing(
        "{Metric} at each site", "Each site's own test rows, with 95 % intervals.", plots_results.hospitals, tall=True
    ),
    "benefit": Drawing(
        "What joining changed for each site",
        "Against the same site training alone, paired over seeds. Right of 0: joining helped.{point}",
        plots_results.benefit,
        one_seed="Against the same site training alone, on the same test rows. Right of 0: joining helped.{point}",
    ),
    "elsewhere": Drawing(
        "One hospital's model at another",
        "Mean {metric} over seeds. A cell without a dot is an external test: that hospital took no part.",
        plots_results.elsewhere,
    ),
    "number-of-sites": Drawing(
        "{single} against the number of hospitals",
        "Mean over the combinations of that many hospitals in the study, every hospital counting alike, with 95 % "
        "intervals over seeds.",
        plots_results.number_of_sites,
    ),
    "ways": Drawing(
        "Ways to train together, side by side",
        "Bars with 95 % intervals where there are any. Those of an AUC begin at one half, which is a guess.",
        plots_ways.ways_bars,
        tall=True,
    ),
    "regions": Drawing(
        "Regions and their sites",
        "With the rows that train in each region, with the study's first seed.",
        plots_topology.regions_tree,
        tall=True,
    ),
    "regional-models": Drawing(
        "Each region's own model beside the model of all",
        "Both on the test rows of the region's sites.",
        plots_topology.regional_models,
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
    "reliability": Drawing(
        "Whether scores come true, before and after temperatures",
        "Tenths of all test rows by score; of findings, all of them together. On the diagonal, scores mean what they "
        "say.",
        plots_sure.reliability,
        tall=True,
    ),
    "coverage": Drawing(
        "How often sets hold the right answer",
        "Each site's own test rows, by cuts from its own validation rows. Grey: where 99 of 100 runs would lie if both "
        "kinds of patients were alike. Calls that were added to sets are left out.",
        plots_sure.coverage,
        tall=True,
    ),
    "referral": Drawing(
        "Leaving the least clear rows to a clinician",
        "Test rows of all sites in the order of doubt. Dotted: the share that the study asks for. Far to the right few "
        "rows are left, and an AUC says little.",
        plots_sure.referral,
    ),
    "doubt": Drawing(
        "Doubt on right and on wrong calls",
        "One bit is a coin that is tossed. On the right, 0.5 means that doubt tells nothing; with 95 % intervals.",
        plots_sure.doubt,
    ),
    "strange-images": Drawing(
        "Images that the model should not know",
        "AUC of telling changed test images from the same images unchanged. 1 is always, 0.5 a coin; below it, the "
        "model is surer of the changed ones.",
        plots_sure.strange,
    ),
    "subgroups": Drawing(
        "{Metric} by {groups}",
        "Groups with fewer than 10 test rows are suppressed.",
        plots_results.subgroups,
        across="Over the sites at which a group has test rows enough to be told of.",
    ),
    "sweep": Drawing(
        "The swept setting",
        "{Metric} with its 95 % interval, rounds to 95 % of the final {metric} (on validation rows where there are "
        "any, else on test rows), and mean weight change per round.",
        plots_results.sweep,
    ),
    "test-accuracy": Drawing(
        "Accuracy over rounds",
        "Mean over seeds, for people to look at: nothing was chosen by it.",
        partial(plots_data.curve, column="test_accuracy", label="test accuracy"),
    ),
    "test-loss": Drawing(
        "Loss over rounds", "Mean over seeds.", partial(plots_data.curve, column="test_loss", label="test loss")
    ),
    "weight-change": Drawing(
        "Weight change per round",
        "Length of the shared model's change, mean over seeds. Arms with a model for each site have none.",
        partial(plots_data.curve, column="change", label="weight change", log=True),
    ),
    "curves": Drawing(
        "{Metric} over rounds",
        "Mean over seeds, for people to look at: nothing was chosen by it.",
        plots_curves.headline_curves,
        tall=True,
    ),
    "losses": Drawing(
        "Loss over rounds",
        "Mean over seeds. Training: over the batches of the round, as the model was at each of them.{weights}",
        plots_curves.losses,
        tall=True,
    ),
    "movement": Drawing(
        "How far models move in a round",
        "Weight change: length of the shared model's change; arms with a model for each site have none. Divergence: "
        "root mean square distance of the sites' models from their mean.",
        plots_curves.movement,
        tall=True,
    ),
    "epsilon-cost": Drawing(
        "{Metric} against epsilon",
        "On all sites' test rows, with 95 % intervals. A line joins arms that differ in epsilon alone; right of the "
        "dotted line stand arms without noise.",
        plots_privacy.cost_of_epsilon,
    ),
    "epsilon-spent": Drawing(
        "Budget spent in each round at each site",
        "From the ledger, with the seed that cost a site most; one patient more or less. Dashed: the epsilon that the "
        "study allows. A cross: the site stopped there, because its next round would have exceeded it.",
        plots_privacy.budget,
        tall=True,
    ),
    "gradient-lengths": Drawing(
        "Lengths of patients' gradients before and after clipping",
        f"All sites together, first seed, in clips; the dashed line is the clip. Bars below {FEWEST} patients are "
        "withheld. A simulation can show this; in a run across hospitals nobody sees it.",
        plots_privacy.lengths,
        tall=True,
    ),
}


def left_out(evidence: Evidence, drawn: Collection[str]) -> str:
    """Says what a run across hospitals has no figure of, and why."""
    lacking = [FIGURES[name].title.lower() for name in FIGURES if FIGURES[name].needs_rows and name not in drawn]
    return f"Not here: {', '.join(lacking)}. Rows and {STAY}." if evidence.deployed and lacking else ""


def draw_all(evidence: Evidence, folder: Path, workers: int = 1) -> dict[str, str]:
    """Write every figure that there is something to draw for; the SVGs as elements of a page, by name."""
    _empty(folder)
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
        name: for_page(path.read_text(encoding="utf-8"), name, FIGURES[name].title_for(evidence))
        for name, path in written.items()
        if path.is_file()
    }


def attack_figures(folder: Path) -> dict[str, str]:
    """The SVGs that `wardround attack` drew, as elements of a page, by their titles."""
    written = {name: folder / f"{name}.svg" for name in ATTACK_FIGURES}
    return {
        ATTACK_FIGURES[name]: for_page(path.read_text(encoding="utf-8"), name, ATTACK_FIGURES[name])
        for name, path in written.items()
        if path.is_file()
    }


def _empty(folder: Path) -> None:
    """Without the figures of an earlier report; those of `wardround attack` cannot be drawn from the results again."""
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if path.is_dir():
            rmtree(path)
        elif not path.name.startswith(ATTACK):
            path.unlink()


def _draw(evidence: Evidence, folder: Path, names: Sequence[str]) -> None:
    for name in names:
        with mpl.rc_context(STYLE):
            drawn = FIGURES[name].draw(evidence)
            if drawn is not None:
                (folder / f"{name}.svg").write_text(as_svg(drawn, name), encoding="utf-8")
                save_png(drawn, folder / f"{name}.png")
