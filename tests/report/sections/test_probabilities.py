"""Figures of probabilities show what results.json says, and tell it to who points at a mark."""

import re
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle

from wardround.report.evidence import Evidence, read_evidence
from wardround.report.render.style import PAGE_FONT, as_svg, looks
from wardround.report.render.table import FEWEST
from wardround.report.sections.probabilities import calibration, ranking
from wardround.runs.folder import RunFolder


@pytest.fixture(scope="module")
def evidence(ways_folder: Path) -> Evidence:
    return read_evidence(RunFolder(ways_folder)).detailed


def test_both_curves_of_two_classes_are_those_of_the_results(evidence: Evidence) -> None:
    figure = ranking.both_curves(evidence)
    assert figure is not None
    panels = dict(zip(("roc", "pr"), figure.axes, strict=True))
    for kind, keys in (("roc", ranking.ROC), ("pr", ranking.PR)):
        for arm, line in zip(evidence.few_arms, panels[kind].lines[::2], strict=False):  # its dot follows each
            (entry,) = ranking.ranked(evidence, arm).values()
            assert np.asarray(line.get_xydata()).T.tolist() == [entry[kind][key] for key in keys]
            assert to_hex(line.get_color()) == to_hex(looks(evidence, arm)["color"])
    svg = as_svg(figure, "ranking")
    titles = re.findall("<g><title>(.*?)</title>", svg)
    for arm in evidence.few_arms:
        area = evidence.headline_for("auc").text(evidence.arms[arm]["metrics"]["auc"]["mean"])
        assert any(title.startswith(f"{arm}: AUC {area}") for title in titles)
    assert "tip:" not in svg


def test_a_tenth_has_its_interval_and_few_rows_have_no_bar(evidence: Evidence) -> None:
    figure = calibration.calibration(evidence)
    assert figure is not None
    above, below = figure.axes[:2]
    arm = evidence.few_arms[0]
    tenths = evidence.arms[arm]["calibration"]["bins"]
    drawn = [np.asarray(line.get_ydata()).tolist() for line in above.lines[1:]]  # the diagonal is first
    assert drawn[::2] == [tenth["interval"] for tenth in tenths]
    assert drawn[1::2] == [[tenth["positive"]] for tenth in tenths]
    shown = [bar.get_height() for bar in below.patches if isinstance(bar, Rectangle)]
    histogram = evidence.arms[arm]["score_histogram"]
    counts = [count / evidence.seeds for count in (*histogram["negative"], *histogram["positive"])]
    assert shown == [count if count >= FEWEST else 0 for count in counts]


def test_a_run_of_an_earlier_version_says_why_it_has_no_curve(evidence: Evidence) -> None:
    arms = {name: {k: v for k, v in arm.items() if k != "ranking"} for name, arm in evidence.results["arms"].items()}
    earlier = Evidence({**evidence.results, "arms": arms}, evidence.study, evidence.environment)
    assert ranking.both_curves(earlier) is None
    assert "earlier version" in ranking.why_no_curves(earlier)
    assert not ranking.why_no_curves(evidence)


def test_letters_of_figures_are_those_of_the_page() -> None:
    css = files("wardround.report.render").joinpath("templates", "report.css").read_text(encoding="utf-8")
    assert re.search(r"body {[^}]*font: \S+ ([^;]*);", css)[1] == PAGE_FONT  # type: ignore[index]
