"""Curves over rounds: every arm is drawn once, in the panel of its data and stragglers, and always the same way."""

from pathlib import Path
from typing import Any

import pytest

import wardround
from wardround.core.errors import StudyError
from wardround.report import draw_figures, read_evidence
from wardround.report.render import figures
from wardround.report.sections.results import curve
from wardround.runs.folder import RunFolder

STUDY: dict[str, Any] = {
    "name": "curves",
    "data": {"source": "synthetic", "count": 6, "largest": 60, "features": 5, "classes": 3, "scale": "none"},
    "training": {"rounds": 3, "lr": 0.01, "stragglers": {"share": 0.0, "policy": "keep"}},
    "evaluation": {"seeds": {"count": 1}, "accept": ["one-class"]},
    "arms": [
        {"name": "prox", "algorithm": "fedprox", "mu": [0.0, 1.0], "training": {"stragglers": {"share": [0.0, 0.5]}}},
        {"name": "iid", "algorithm": "fedavg", "data": {"iid": True}},
    ],
    "claims": [
        {
            "text": "It helps",
            "source": "A paper",
            "published": 0.0,
            "tolerance": 1.0,
            "arms": ["prox[mu=1.0,share=0.5]"],
            "against": ["prox[mu=0.0,share=0.5]"],
        }
    ],
    "quick": {"training.rounds": 2},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> wardround.StudyRun:
    return wardround.run_study(STUDY, tmp_path_factory.mktemp("runs"))


def test_each_arm_has_one_line_in_the_panel_of_its_data_and_stragglers(run: wardround.StudyRun) -> None:
    figure = curve(read_evidence(RunFolder(run.folder)), "test_accuracy", "test accuracy")
    assert figure is not None
    panels = {(axis.get_title(), axis.get_ylabel().split("\n")[0]): len(axis.lines) for axis in figure.axes}
    assert sum(panels.values()) == len(run.results["arms"]) == 5
    assert sorted(panels.values()) == [
        0,
        1,
        2,
        2,
    ]  # two values of mu with 0 % and with 50 %; the IID arm with 0 % alone
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "fedprox mu 0, keep late work",
        "fedprox mu 1, keep late work",
        "fedavg, keep late work",
    ]


@pytest.mark.slow
def test_the_same_run_gives_the_same_figures_whoever_draws_them(run: wardround.StudyRun, tmp_path: Path) -> None:
    evidence = read_evidence(RunFolder(run.folder))
    first = draw_figures(evidence, tmp_path / "alone")
    assert draw_figures(evidence, tmp_path / "together", workers=2) == first
    assert {"test-accuracy", "test-loss", "weight-change", "primary-metric"} <= set(first)
    for path in (tmp_path / "alone").iterdir():
        assert path.read_bytes() == (tmp_path / "together" / path.name).read_bytes(), path.name


def test_every_figure_is_rendered_once(
    run: wardround.StudyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once as SVG and once as PNG: rendering is most of a report's time."""
    rendered: list[str] = []

    def as_svg(drawn: object, name: str) -> str:
        rendered.append(f"{name}.svg")
        return "<svg></svg>"

    def save_png(drawn: object, path: Path) -> None:
        rendered.append(f"{path.name.removeprefix('.').removesuffix(figures.PARTIAL)}.png")  # written, then renamed
        path.write_bytes(b"")

    monkeypatch.setattr(figures, "as_svg", as_svg)
    monkeypatch.setattr(figures, "save_png", save_png)
    page = draw_figures(read_evidence(RunFolder(run.folder)), tmp_path)
    assert sorted(rendered) == sorted(path.name for path in tmp_path.iterdir())
    assert sorted(rendered) == sorted(f"{name}.{kind}" for name in page for kind in ("svg", "png"))


def test_arms_on_other_data_are_described_apart(run: wardround.StudyRun) -> None:
    assert [described["arms"] for described in run.results["sites"]] == [
        ["prox[mu=0.0,share=0.0]", "prox[mu=0.0,share=0.5]", "prox[mu=1.0,share=0.0]", "prox[mu=1.0,share=0.5]"],
        ["iid"],
    ]


def test_a_claim_has_a_verdict_and_says_when_the_study_was_scaled_down(run: wardround.StudyRun, tmp_path: Path) -> None:
    (claim,) = run.results["claims"]
    arms = run.results["arms"]
    figures = [
        arms[name]["metrics"]["accuracy"]["mean"] for name in ("prox[mu=1.0,share=0.5]", "prox[mu=0.0,share=0.5]")
    ]
    assert claim["ours"] == pytest.approx(figures[0] - figures[1])
    assert claim["verdict"].startswith("reproduced: ")
    strict = {**STUDY, "claims": [{**STUDY["claims"][0], "published": 0.9, "tolerance": 0.01}]}
    quick = wardround.run_study(strict, tmp_path, quick=True).results["claims"][0]
    assert quick["verdict"].startswith("not reproduced: ")
    assert "at the quick size" in quick["text"]


def test_a_claim_about_an_unknown_arm_is_an_error() -> None:
    wrong = {**STUDY, "claims": [{**STUDY["claims"][0], "against": ["prox[mu=0.0]"]}]}
    with pytest.raises(StudyError, match=r"claims\[0\]: no arm is called 'prox\[mu=0.0\]'"):
        wardround.load_study(wrong)
