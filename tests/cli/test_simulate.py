"""A Flower user's commands: `simulate` by flags, and the study that it writes."""

import json
from pathlib import Path

import pandas as pd
import pytest

from tests.cli.test_commands import as_json, wardround
from tests.medmnist_files import layout, saved

QUICK = ("--set", "model.channels=[2, 3]", "--set", "model.hidden=8", "--set", "model.kernel=3", "--no-report")


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of images, their split, and what the file gave when it was simulated."""
    folder = tmp_path_factory.mktemp("simulate")
    saved(folder / "images.npz", layout("eight", times=5))
    as_json("data", "split", "--data", folder / "images.npz", "--sites", "3", "--out", folder / "split")
    return folder


def test_flags_make_a_study_and_the_split_gives_the_same_predictions(here: Path, tmp_path: Path) -> None:
    """What a split on disk holds trains as the data did from which it was drawn."""
    flags = ("--mu", "0.1", "--rounds", "2", *QUICK, "--out", tmp_path / "runs")
    direct = as_json(
        "simulate", "--data", here / "images.npz", "--sites", "3", *flags, "--output", tmp_path / "direct.json"
    )
    split = as_json("simulate", "--source", here / "split", *flags, "--output", tmp_path / "split.json")
    assert json.loads((tmp_path / "split.json").read_text()) == split["results"]
    ours, theirs = (pd.read_parquet(Path(run["folder"]) / "predictions.parquet") for run in (direct, split))
    columns = [str(name) for name in ours if str(name).startswith(("score", "label", "site"))]
    order = ["site", *(name for name in columns if name.startswith("score"))]
    first, second = (table[columns].sort_values(order, ignore_index=True) for table in (ours, theirs))
    pd.testing.assert_frame_equal(first, second)
    text = (tmp_path / "split.toml").read_text()
    assert text.startswith("# Written by `wardround simulate`")
    assert 'partition = "by-hospital"' in text
    assert "channels = [2, 3]" in text  # what was set stands in it
    again = as_json("simulate", tmp_path / "split.toml", "--no-report", "--out", tmp_path / "runs")
    assert not again["fresh"]
    assert again["folder"] == split["folder"]


def test_several_mu_are_arms_and_nought_is_fedavg(here: Path, tmp_path: Path) -> None:
    flags = ("--mu", "0", "--mu", "0.1", "--mu", "1", "--rounds", "1", "--seed", "7", *QUICK)
    run = as_json("simulate", "--data", here / "split", *flags, "--out", tmp_path, "--output", tmp_path / "r.json")
    assert list(run["results"]["arms"]) == ["fedavg", "fedprox[mu=0.1]", "fedprox[mu=1.0]"]
    assert "first = 7" in (tmp_path / "r.toml").read_text()


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 3, "neither a study nor --data is named"),
        (("heart-fedprox", "--rounds", "3"), 3, "a study is named, and so is --rounds"),
        (("--data", "fashion-mnits"), 3, "Did you mean 'fashion-mnist'?"),
        (("--data", "SPLIT", "--alpha", "0.1"), 3, "has its sites already"),
        (("--data", "TABLE"), 3, "wardround init"),
        (("--data", "SPLIT", "--output", "MINE"), 3, "did not write it"),
    ],
)
def test_what_cannot_be_simulated_is_one_clear_error(
    here: Path, tmp_path: Path, arguments: tuple[str, ...], code: int, message: str
) -> None:
    (tmp_path / "rows.csv").write_text("age,died\n40,yes\n")
    (tmp_path / "mine.toml").write_text("name = 'mine'\n")
    places = {"SPLIT": here / "split", "TABLE": tmp_path / "rows.csv", "MINE": tmp_path / "mine.json"}
    done = wardround("simulate", *(places.get(text, text) for text in arguments), "--out", tmp_path)
    assert done.returncode == code
    assert message in done.stderr
    assert (tmp_path / "mine.toml").read_text() == "name = 'mine'\n"


@pytest.mark.parametrize("name", ["two", "fourteen"])
def test_init_writes_a_study_of_images_that_passes_the_check(tmp_path: Path, name: str) -> None:
    saved(tmp_path / "images.npz", layout(name, times=10))
    out = tmp_path / "study.toml"
    made = as_json("init", tmp_path / "images.npz", "--out", out)
    assert made["study"] == str(out)
    assert made["assumptions"][1] == "the images are of one place: 6 sites are drawn from them by chance"
    assert 'algorithm = "local"' in out.read_text()
    checked = wardround("check", out)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    again = wardround("init", tmp_path / "images.npz", "--out", out)
    assert again.returncode == 3
    assert "is there already" in again.stderr


def test_init_takes_a_split_of_tables_too(tmp_path: Path) -> None:
    as_json("data", "split", "--data", "heart", "--sites", "3", "--out", tmp_path / "split")
    made = as_json("init", tmp_path / "split", "--out", tmp_path / "study.toml")
    assert made["assumptions"][1:3] == ["3 hospitals, as the data name them", "the split that the data come with"]
    assert wardround("check", tmp_path / "study.toml").returncode == 0
