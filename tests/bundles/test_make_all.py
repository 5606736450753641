"""A bundle of every arm: by the study, by the command, and where one arm gives none."""

import json
from pathlib import Path

import pytest

from tests.bundles.conftest import hearts
from tests.cli.test_commands import wardround
from wardround.bundles import FinishedRun, bundle_from, load_bundle, make_bundles
from wardround.bundles.build.make import bundles_from
from wardround.core.errors import BundleError, StudyError
from wardround.runs.catalog import load_study
from wardround.runs.execute import run_study


def test_a_study_that_asks_for_them_has_them_in_its_run(tmp_path: Path) -> None:
    few = hearts(arms=hearts()["arms"][:3])
    wanted = {**few, "evaluation": {**few["evaluation"], "bundles": ["va", "cleveland"]}}
    plain = run_study(few, tmp_path / "plain")
    run = run_study(wanted, tmp_path / "asked")
    assert run.folder.name == plain.folder.name  # what is made of a run is no part of its name
    arms = list(run.results["arms"])
    assert len(arms) >= 2
    for arm in arms:
        for site in ("va", "cleveland"):
            [folder] = (run.folder / "bundles").glob(f"*-{arm}-{site}")
            bundle = load_bundle(folder)
            assert (bundle.about["arm"], bundle.about["site"]) == (arm, site)
    assert not (plain.folder / "bundles").exists()
    # a complete run that lacks one gets it back, and the others stay
    gone, stays = sorted((run.folder / "bundles").iterdir())[:2]
    modified = (stays / "bundle.json").stat().st_mtime_ns
    for path in gone.iterdir():
        path.unlink()
    assert not run_study(wanted, tmp_path / "asked").fresh
    assert (gone / "bundle.json").is_file()
    assert (stays / "bundle.json").stat().st_mtime_ns == modified


def test_a_site_that_is_not_there_is_refused_before_training(tmp_path: Path) -> None:
    wanted = hearts()
    wanted["evaluation"] = {**wanted["evaluation"], "bundles": ["clevland"]}
    with pytest.raises(StudyError, match=r"no site is called 'clevland'") as caught:
        run_study(wanted, tmp_path)
    assert "cleveland" in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_one_arm_that_gives_none_does_not_keep_the_others(
    finished: FinishedRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_fedavg(finished: FinishedRun, *, arm: str, **more: object) -> Path:
        if arm == "fedavg":
            raise BundleError("here", "refused for a test", "None.")
        return bundle_from(finished, arm=arm, **more)  # type: ignore[arg-type]

    monkeypatch.setattr("wardround.bundles.build.make.bundle_from", without_fedavg)
    bundles = bundles_from(finished, ["va"], tmp_path)
    assert set(bundles.refused) == {("fedavg", "va")}
    assert "refused for a test" in bundles.refused["fedavg", "va"]
    assert {arm for arm, _ in bundles.folders} == set(finished.results["arms"]) - {"fedavg"}
    assert not list(tmp_path.glob("*fedavg*"))


def test_none_at_all_is_an_error(finished: FinishedRun, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no bundle at all") as caught:
        make_bundles(finished.folder.path, sites=["nowhere"], out=tmp_path / "b")
    assert "nowhere" in str(caught.value)


def test_the_command(finished: FinishedRun, tmp_path: Path) -> None:
    run = str(finished.folder.path)
    done = wardround("bundle", run, "--every-arm", "--site", "va", "--out", str(tmp_path / "b"), "--json")
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert list(content["bundles"]) == list(finished.results["arms"])
    assert content["refused"] == {}
    again = wardround("bundle", run, "--every-arm", "--site", "va", "--out", str(tmp_path / "b"))
    assert again.returncode == 0
    assert all(arm in again.stdout for arm in content["bundles"])


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ((), "--every-arm"),
        (("--every-arm", "--arm", "fedavg", "--site", "va"), "does not go with"),
        (("--every-arm",), "--site"),
    ],
)
def test_the_command_refuses(finished: FinishedRun, options: tuple[str, ...], word: str) -> None:
    done = wardround("bundle", str(finished.folder.path), *options)
    assert done.returncode == StudyError.exit_code
    assert word in done.stderr


def test_the_study_of_five_ways_asks_for_them() -> None:
    assert load_study("five-ways")[0].evaluation.bundles == ("site-01",)
