"""`data split`, `simulate`, `results` and `plots`, with images drawn from formulas."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.cli.test_commands import as_json, wardround
from wardround.data.sources.chest_xray import chest_xray
from wardround.data.sources.phantom.radiographs import phantom

STUDY = """name = "phantoms"
[data]
source = "phantom"
rows = 160
size = 32
[sites]
partition = "by-hospital"
[training]
rounds = 2
[evaluation]
validation_share = 0.2
on_training = true
samples = 1
[[arms]]
algorithm = "fedavg"
[[arms]]
algorithm = "local"
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that `simulate` made."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "study.toml").write_text(STUDY)
    done = wardround("simulate", folder / "study.toml", "--out", folder, "--no-report")
    assert done.returncode == 0, done.stderr
    (run_folder,) = folder.glob("phantoms-*")
    return run_folder


def test_a_split_is_written_without_a_study_and_reads_back(tmp_path: Path) -> None:
    settings = ("--set", "data.rows=200", "--set", "data.size=32", "--set", "evaluation.validation_share=0.2")
    out = tmp_path / "split"
    written = as_json("data", "split", "--source", "phantom", "--sites", "3", "--alpha", "0.5", *settings, "--out", out)
    assert set(written["files"]) == {f"site-0{number}.npz" for number in (1, 2, 3)}
    assert sum(written["files"].values()) == 200
    original = phantom(rows=200, size=32).load()
    assert isinstance(original.features, np.ndarray)
    row_of = {image.tobytes(): row for row, image in enumerate(original.features)}
    assert len(row_of) == 200  # no two images are alike, so that each can be found again
    seen = []
    for name, rows in written["files"].items():
        again = chest_xray(out / name, size=32).load()
        assert isinstance(again.features, np.ndarray)
        assert len(again) == rows
        places = [row_of[image.tobytes()] for image in again.features]
        np.testing.assert_array_equal(again.target, original.target[places])
        assert again.classes == original.classes
        assert again.split is not None
        assert set(again.split) == {"train", "validation", "test"}
        assert original.patient is not None
        sides = [set(original.patient[np.array(places)[again.split == side]]) for side in set(again.split)]
        assert sum(map(len, sides)) == len(set.union(*sides))
        seen += places
    assert sorted(seen) == list(range(200))


def test_alpha_makes_sites_unlike_and_leaving_it_out_makes_them_alike(tmp_path: Path) -> None:
    settings = ("--source", "phantom", "--sites", "3", "--set", "data.rows=200", "--set", "data.size=32")
    alike = as_json("data", "split", *settings, "--out", tmp_path / "alike")["files"]
    unlike = as_json("data", "split", *settings, "--alpha", "0.1", "--out", tmp_path / "unlike")["files"]
    assert max(alike.values()) - min(alike.values()) < 30  # whole patients, some of whom have many images
    assert max(unlike.values()) - min(unlike.values()) > 30
    other = as_json("data", "split", *settings, "--seed", "7", "--out", tmp_path / "other")
    assert other["seed"] == 7


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("--source", "phantom", "--sites", "0"), 2, "sites"),
        (("--source", "phantom", "--alpha", "-1"), 3, "sites: alpha: -1.0 is out of range"),
        (("--source", "phanton"), 3, "Did you mean 'phantom'?"),
        (("--source", "phantom", "--set", "data.rows=20", "--set", "data.size=32", "--sites", "30"), 4, "30 sites"),
    ],
)
def test_a_split_that_cannot_be_is_one_clear_error(
    tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    done = wardround("data", "split", *arguments, "--out", tmp_path / "split")
    assert done.returncode == code
    assert message in done.stderr
    assert not (tmp_path / "split").exists()


def test_results_are_those_of_the_file(run: Path) -> None:
    done = wardround("results", run)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads((run / "results.json").read_text())


def test_results_of_a_file_that_was_changed_are_refused(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in run.iterdir():
        if path.is_file():
            (copy / path.name).write_bytes(path.read_bytes())
    assert wardround("results", copy).returncode == 0
    content = json.loads((copy / "results.json").read_text())
    content["arms"]["fedavg"]["metrics"]["auc"]["mean"] = 0.999
    (copy / "results.json").write_text(json.dumps(content))
    done = wardround("results", copy)
    assert done.returncode != 0
    assert "results.json" in done.stderr
    assert "0.999" not in done.stdout


def test_results_of_no_run_are_one_clear_error(tmp_path: Path) -> None:
    done = wardround("results", tmp_path)
    assert done.returncode == 6
    assert "Traceback" not in done.stderr


def test_simulate_is_run(run: Path) -> None:
    again = as_json("run", run.parent / "study.toml", "--out", run.parent, "--no-report")
    assert not again["fresh"]
    assert Path(again["folder"]) == run


@pytest.mark.slow
def test_plots_are_drawn_where_they_are_asked_for(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "plots"
    drawn = as_json("plots", run, "--out", out)
    assert drawn["folder"] == str(out)
    assert drawn["figures"]
    files = {path.name for path in out.iterdir()}
    assert files == {f"{name}.{kind}" for name in drawn["figures"] for kind in ("svg", "png")}
    assert not (run / "figures").exists()
    again = wardround("plots", run, "--out", out)
    assert again.returncode == 6
    assert "not an empty folder" in again.stderr
