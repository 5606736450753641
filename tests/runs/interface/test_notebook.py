"""A bar in a notebook, and nothing anywhere else."""

import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import wardround
from tests.hospital_frames import SMALL, hospitals, study_of
from wardround.runs.execute import Progress
from wardround.runs.interface import notebook


class Screen:
    """What IPython shows: each display, as the list of what stood in it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kernel: object) -> None:
        self.displays: list[list[str]] = []
        shell = SimpleNamespace(kernel=kernel)
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
        shown = SimpleNamespace(HTML=str, display=self.display)
        monkeypatch.setitem(sys.modules, "IPython.display", shown)

    def display(self, content: str, display_id: bool) -> Any:
        assert display_id  # it is replaced, not repeated
        self.displays.append([content])
        return SimpleNamespace(update=self.displays[-1].append)


def test_a_run_in_a_notebook_shows_one_bar_that_ends_full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    screen = Screen(monkeypatch, kernel=object())
    run = wardround.run_study(study_of(hospitals()), tmp_path, changes=SMALL, workers=1)
    [shown] = screen.displays
    assert 'value="8" max="8"' in shown[-1]  # 2 arms, 2 seeds, 2 rounds
    assert "Trained: 8 of 8 rounds" in shown[-1]
    assert not wardround.resume_study(run).fresh
    assert len(screen.displays) == 1  # nothing was trained


def test_a_function_of_ones_own_takes_the_place_of_the_bar(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    screen, told = Screen(monkeypatch, kernel=object()), list[int]()
    study = study_of(hospitals())
    wardround.run_study(study, tmp_path, changes=SMALL, workers=1, progress=lambda step: told.append(step.done))
    assert (screen.displays, told[-1]) == ([], 8)


def test_in_a_terminal_there_is_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    Screen(monkeypatch, kernel=None)
    assert notebook.bar_in_notebook(None) is None
    monkeypatch.delitem(sys.modules, "IPython")
    assert notebook.bar_in_notebook(None) is None


def test_the_bar_is_drawn_a_few_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    screen, clock = Screen(monkeypatch, kernel=object()), iter(range(10**6))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock) / 100)
    bar = notebook.Bar()
    for done in range(1, 1001):
        bar(Progress(done, 1000, "<b>fedavg</b>, seed 1"))
    [shown] = screen.displays
    assert len(shown) == pytest.approx(1000 / 100 / notebook.EVERY, abs=3)
    assert "about" in shown[1]
    assert "left" in shown[1]
    assert "<b>" not in shown[1]


def test_figures_show_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    Screen(monkeypatch, kernel=None)
    select = SimpleNamespace(select_figure_formats=lambda shell, formats: asked.append(formats))
    monkeypatch.setitem(sys.modules, "IPython.core.pylabtools", select)
    notebook.show_figures()
    assert asked == [{"png"}]
