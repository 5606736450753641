"""`wardround adapt` as a whole: figures from predictions, the same again, a bundle, and nothing where it fails."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from typer.testing import CliRunner

from tests.adaptation.conftest import NEW, OTHERS, hospital_file
from tests.adaptation.synthetic_hospitals import synthetic_source
from wardround import load_bundle
from wardround.adaptation import adapt as module
from wardround.adaptation import figure
from wardround.adaptation.adapt import Adapted, adapt
from wardround.adaptation.curve import caution, conclusion, curve_of, sentence, verdict
from wardround.bundles import load_shared
from wardround.bundles.card.markdown import plain
from wardround.bundles.sealed_files import seal
from wardround.cli.bundles.adapt import show_adapted
from wardround.cli.main import app
from wardround.core.errors import BundleError, CheckError, DataError, DeployError, StudyError
from wardround.evaluation.comparisons.differences import verdict_of
from wardround.runs.execute import run_study
from wardround.tasks import METRIC_FACTS


@pytest.fixture(scope="module")
def adapted(shared: Path, hospital: Path, tmp_path_factory: pytest.TempPathFactory) -> Adapted:
    return adapt(shared, hospital, out=tmp_path_factory.mktemp("adapted") / "va", repeats=3, workers=2)


def test_everything_is_there(adapted: Adapted) -> None:
    names = {path.name for path in adapted.folder.iterdir()}
    assert names == {"adapt.json", "curve.svg", "curve.png", "predictions.parquet", "bundle"}
    assert json.loads((adapted.folder / "adapt.json").read_bytes()) == adapted.results
    assert [entry["fraction"] for entry in adapted.results["fractions"]] == [0.1, 0.2, 0.5, 1.0]
    assert adapted.results["seeds"] == [5, 6, 7]
    assert (adapted.results["epochs"], adapted.results["epochs_in_study"]) == (6, 6)
    assert adapted.results["classes"] == {"no disease": 51, "disease": 149}
    assert list(adapted.table().index) == [0.1, 0.2, 0.5, 1.0]


def test_figures_follow_from_the_saved_predictions(adapted: Adapted) -> None:
    """Mean, and the corrected interval of Nadeau and Bengio: variance x (1/3 + 0.2/0.6), 2 degrees of freedom."""
    table = pd.read_parquet(adapted.folder / "predictions.parquet")
    for entry in adapted.results["fractions"]:
        rows = table[table["fraction"] == entry["fraction"]]
        right = rows.assign(right=(rows["score"] >= 0.5) == (rows["label"] == 1))
        by_way = right.groupby(["way", "seed"])["right"].mean().unstack("way")
        brier = rows.assign(off=(rows["score"].astype(float) - rows["label"]) ** 2)
        by_brier = brier.groupby(["way", "seed"])["off"].mean().unstack("way")
        for metric, values in (("accuracy", by_way), ("brier", by_brier)):
            assert entry["adapted"][metric]["mean"] == pytest.approx(values["adapted"].mean(), abs=1e-6)
            gap = (values["adapted"] - values["alone"]).to_numpy()
            difference = entry["difference"][metric]
            assert difference["difference"] == pytest.approx(gap.mean(), abs=1e-6)
            error = np.sqrt((1 / 3 + 0.2 / 0.6) * gap.var(ddof=1))
            if difference["interval"] is not None:  # of figures that are the same with every seed there is none
                limits = (
                    np.array([-1, 1]) * stats.t.ppf(1 - 0.05 / difference["comparisons"] / 2, 2) * error + gap.mean()
                )
                bound = np.inf if metric == "brier" else 1.0
                assert difference["interval"] == pytest.approx(limits.clip(-bound, bound), abs=1e-3)


def test_both_ways_are_tested_on_the_same_rows(adapted: Adapted) -> None:
    table = pd.read_parquet(adapted.folder / "predictions.parquet")
    for _, of_seed in table.groupby("seed"):
        tested = [set(part["row"]) for _, part in of_seed.groupby(["way", "fraction"])]
        assert len(tested) == 8
        assert all(rows == tested[0] for rows in tested)


def test_the_same_again_and_with_any_number_of_workers(
    adapted: Adapted, shared: Path, hospital: Path, tmp_path: Path
) -> None:
    again = adapt(shared, hospital, out=tmp_path / "va", repeats=3, workers=1)
    assert again.results == adapted.results
    first, second = (pd.read_parquet(result.folder / "predictions.parquet") for result in (again, adapted))
    pd.testing.assert_frame_equal(first, second, check_exact=True)
    assert load_bundle(again.bundle).id == load_bundle(adapted.bundle).id
    assert (again.folder / "curve.svg").read_bytes() == (adapted.folder / "curve.svg").read_bytes()


def test_the_bundle_is_the_first_seeds_adapter_with_the_shared_part(adapted: Adapted, shared: Path) -> None:
    bundle, part = load_bundle(adapted.bundle), load_shared(shared)
    for name, leaf in part.leaves.items():
        assert torch.equal(bundle.params[name], leaf), name
    assert bundle.about["study"]["hash"] == part.about["study"]["hash"]
    assert (bundle.about["site"], bundle.about["seed"]) == (NEW, 5)
    assert bundle.about["rows"]["validation"] >= 30
    assert bundle.about["threshold"]["chosen"]
    card = (adapted.bundle / "card.md").read_text(encoding="utf-8")
    for words in (part.id, part.about["study"]["hash"], "on rows of va alone", "no privacy was spent"):
        assert words in card
    assert bundle.about["card"]["figures"]["this_site"]["auc"] == adapted.results["fractions"][-1]["adapted"]["auc"]


def test_the_card_keeps_the_two_trainings_apart(shared: Path, hospital: Path, tmp_path: Path) -> None:
    """Three rounds of two epochs trained the shared part; the adapter has two epochs here."""
    result = adapt(shared, hospital, out=tmp_path / "va", repeats=2, epochs=2, workers=1)
    bundle = load_bundle(result.bundle)
    training, rows = bundle.about["card"]["training"], bundle.about["rows"]["train"]
    assert (training["rounds"], set(training["sites"])) == (3, set(OTHERS))
    assert (training["adapter"]["epochs"], training["adapter"]["rows"]) == (2, rows)
    text = " ".join((result.bundle / "card.md").read_text(encoding="utf-8").split())
    assert "The shared part, without this site: algorithm fedavg, model adapter, 3 rounds, simulated" in text
    assert f"The adapter, at this site alone: 2 epochs on {rows} training rows of its own" in text
    assert "no hospital was asked" not in text
    assert "The hospitals that trained the shared part were simulated on one machine" in text
    assert "did not train" not in text
    assert "not used by this model" not in text
    assert "or of other sites' where it has none" not in text
    assert "## Adapted or alone" in text
    for metric in ("auc", "accuracy", "brier"):
        assert plain(result.results["fractions"][-1]["sentences"][metric]) in text


def test_where_adapting_was_worse_card_and_command_warn(
    shared: Path, hospital: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unclear = adapt(shared, hospital, out=tmp_path / "alike", repeats=1, epochs=1, workers=1)
    assert unclear.results["worse"] == []  # one repeat tells nothing
    show_adapted(unclear)
    words = "Adapting was worse than training alone at this hospital"
    assert words not in capsys.readouterr().out
    assert words not in (unclear.bundle / "card.md").read_text(encoding="utf-8")
    monkeypatch.setattr(module, "curve_of", lambda *arguments: {**curve_of(*arguments), "worse": ["auc", "brier"]})
    result = adapt(shared, hospital, out=tmp_path / "worse", repeats=1, epochs=1, workers=1)
    show_adapted(result)
    card = (result.bundle / "card.md").read_text(encoding="utf-8")
    for text in (capsys.readouterr().out, card):
        assert f"{words}: with all training rows it gave a worse AUC and Brier score." in " ".join(text.split())
    assert load_bundle(result.bundle).about["card"]["limits"][0].startswith(words)


def test_a_run_will_do_in_place_of_a_shared_part(adapted: Adapted, run: Path, hospital: Path, tmp_path: Path) -> None:
    result = adapt(run, hospital, arm="fedavg", out=tmp_path / "va", repeats=1, epochs=2)
    assert result.results["shared"] == adapted.results["shared"]
    assert result.results["epochs"] == 2
    assert result.results["fractions"][0]["difference"]["auc"]["interval"] is None
    assert "one repeat gives no interval" in result.results["fractions"][0]["sentences"]["auc"]
    with pytest.raises(StudyError, match="--arm"):
        adapt(run, hospital, out=tmp_path / "other")


def test_a_shared_part_is_of_one_arm_and_seed(shared: Path, hospital: Path, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="this shared part is of 'fedavg'"):
        adapt(shared, hospital, arm="head", out=tmp_path / "va")
    with pytest.raises(StudyError, match="this shared part is of 5, not of 6"):
        adapt(shared, hospital, seed=6, out=tmp_path / "va")


def test_a_failure_leaves_nothing(
    shared: Path, hospital: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(figure, "write_curve", fails)
    with pytest.raises(BundleError, match="No space left"):
        adapt(shared, hospital, out=tmp_path / "va", repeats=1, epochs=1, workers=1)
    assert not list(tmp_path.iterdir())


def test_what_is_there_already_is_not_touched(shared: Path, hospital: Path, tmp_path: Path) -> None:
    (tmp_path / "va").mkdir()
    (tmp_path / "va" / "mine.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(BundleError, match="there already"):
        adapt(shared, hospital, out=tmp_path / "va")
    assert [path.name for path in (tmp_path / "va").iterdir()] == ["mine.txt"]


def test_wrong_files_are_refused(shared: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(DeployError):
        adapt(shared, tmp_path / "nowhere.toml", out=out)
    with pytest.raises(BundleError, match="not a shared part"):
        adapt(tmp_path, hospital_file(tmp_path / "va.toml"), out=out)
    known = hospital_file(tmp_path / "c.toml", "cleveland", 'source = "heart"\nhospitals = ["cleveland"]')
    with pytest.raises(CheckError, match="would be too good"):
        adapt(shared, known, out=out)
    (tmp_path / "rows.csv").write_text("age,result\n" + "50,yes\n60,no\n" * 40, encoding="utf-8")
    lacking = hospital_file(tmp_path / "t.toml", "north", 'source = "csv"\nfile = "rows.csv"\ntarget = "outcome"')
    with pytest.raises(DataError, match="outcome"):
        adapt(shared, lacking, out=out)
    other = hospital_file(tmp_path / "o.toml", "north", 'source = "csv"\nfile = "rows.csv"\ntarget = "result"')
    with pytest.raises(DataError, match="'no disease', 'disease'"):
        adapt(shared, other, out=out)
    assert not out.exists()


def test_a_hospital_with_other_words_and_columns_of_its_own(shared: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ill = np.arange(120) % 3 == 0
    table = pd.DataFrame(
        {"Age": 50 + 10 * ill + rng.normal(0, 5, 120), "troponin": ill + rng.normal(0, 0.3, 120)}
    ).round(3)
    table["Result"] = np.where(ill, "POS", "NEG")
    table.to_csv(tmp_path / "rows.csv", index=False)
    data = (
        'source = "csv"\nfile = "rows.csv"\ntarget = "Result"\nclasses = ["no disease", "disease"]\n\n'
        '[data.labels]\nPOS = "disease"\nNEG = "no disease"'
    )
    result = adapt(shared, hospital_file(tmp_path / "n.toml", "north", data), out=tmp_path / "out", repeats=2)
    assert result.results["columns"] == ["Age", "troponin"]
    assert result.results["left_out"] == [{"fraction": 0.1, "why": "7 training rows, fewer than 10"}]
    assert load_bundle(result.bundle).vocabulary == {"pos": "disease", "neg": "no disease"}


def test_how_the_outcome_was_read_is_shown_for_a_person_to_confirm(
    shared: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Words of fewer than five rows are not counted, and one that no row has is said to have none."""
    rng = np.random.default_rng(0)
    ill = np.arange(120) % 3 == 0
    table = pd.DataFrame({"age": 50 + 10 * ill + rng.normal(0, 5, 120).round(1), "result": np.where(ill, "POS", "neg")})
    table.loc[[0, 3], "result"] = "Pos"  # one word in another case
    table.loc[[1, 2, 4], "result"] = "0.0"
    table.loc[[5], "result"] = "0"
    table.loc[[7, 8], "result"] = None
    table.to_csv(tmp_path / "rows.csv", index=False, sep=";")
    data = (
        'source = "csv"\nfile = "rows.csv"\ntarget = "result"\nclasses = ["no disease", "disease"]\n\n'
        '[data.labels]\nPOS = "disease"\nneg = "no disease"\n"0" = "no disease"\nunclear = "no disease"'
    )
    hospital = hospital_file(tmp_path / "n.toml", "north", data)
    result = adapt(shared, hospital, out=tmp_path / "out", repeats=1, epochs=1, workers=1)
    assert result.results["target"] == [
        {"word": "pos", "class": "disease", "rows": 40},
        {"word": "neg", "class": "no disease", "rows": 74},
        {"word": "0", "class": "no disease", "rows": None},
        {"word": "unclear", "class": "no disease", "rows": 0},
    ]
    show_adapted(result)
    text = " ".join(capsys.readouterr().out.split())
    assert (
        "The outcome was read as: 'pos' -> disease (40 rows), 'neg' -> no disease (74 rows), '0' -> no disease (fewer "
        "than 5 rows), 'unclear' -> no disease (no row). Please confirm that"
    ) in text


def test_a_source_without_words_shows_its_classes(adapted: Adapted, capsys: pytest.CaptureFixture[str]) -> None:
    assert adapted.results["target"] == [
        {"word": None, "class": "no disease", "rows": 51},
        {"word": None, "class": "disease", "rows": 149},
    ]
    show_adapted(adapted)
    assert "read as: no disease (51 rows), disease (149 rows)" in " ".join(capsys.readouterr().out.split())


@pytest.mark.slow
def test_three_classes_and_patients_of_several_rows(tmp_path: Path) -> None:
    study = {
        "name": "kinds",
        "data": {"source": "made-up", "hospitals": ["east", "west"], "schema": "own"},
        "model": {"kind": "adapter", "latent": 4, "hidden": [6]},
        "training": {"rounds": 3, "batch_size": 16, "lr": 0.1, "precision": "float64"},
        "evaluation": {"validation_share": 0.2, "every": 0},
        "arms": [{"name": "fedavg", "algorithm": "fedavg"}],
    }
    sources = {"made-up": synthetic_source}
    run = run_study(study, tmp_path, sources=sources).folder
    data = 'source = "made-up"\nhospitals = ["north"]\nrows = 120\neach = 2'
    file = hospital_file(tmp_path / "n.toml", "north", data)
    result = adapt(run, file, arm="fedavg", out=tmp_path / "out", repeats=2, sources=sources)
    table = pd.read_parquet(result.folder / "predictions.parquet")
    assert [name for name in table.columns if name.startswith("score")] == [f"score_kind {n}" for n in range(3)]
    bundle = load_bundle(result.bundle)
    assert (bundle.events, bundle.about["precision"]) == ((), "float64")
    for entry in result.results["fractions"]:
        assert entry["rows"]["mean"] % 2 == 0  # whole patients


def test_diverged_training_hands_nothing_over(shared: Path, hospital: Path, tmp_path: Path) -> None:
    part = load_shared(shared)
    diverging = {**part.about, "training": {**part.about["training"], "lr": 1e30}}
    (tmp_path / "part").mkdir()
    weights = (shared / "shared.safetensors").read_bytes()
    (tmp_path / "part" / "shared.safetensors").write_bytes(weights)
    (tmp_path / "part" / "shared.json").write_bytes(seal(diverging, {"shared.safetensors": weights}))
    with pytest.raises(BundleError, match="diverged"):
        adapt(tmp_path / "part", hospital, out=tmp_path / "out", repeats=1, workers=1)
    assert not (tmp_path / "out").exists()


def test_commands_show_what_was_made(
    run: Path, hospital: Path, adapted: Adapted, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runner = CliRunner()
    shown = runner.invoke(app, ["share", str(run), "--arm", "fedavg", "--out", str(tmp_path / "part")])
    assert shown.exit_code == 0, shown.output
    assert "cleveland, hungarian, switzerland" in shown.output
    asked = ["adapt", str(tmp_path / "part"), str(hospital), "--quick", "--repeats", "2", "--epochs", "1", "--json"]
    done = runner.invoke(app, [*asked, "--out", str(tmp_path / "va")])
    assert done.exit_code == 0, done.output
    content = json.loads(done.stdout)
    assert content["folder"] == str(tmp_path / "va")
    assert (len(content["seeds"]), content["epochs"]) == (2, 1)
    show_adapted(adapted)
    text = " ".join(capsys.readouterr().out.split())
    for entry in adapted.results["fractions"]:
        assert entry["sentences"]["auc"] in text
    assert all(line in text for line in adapted.results["sentences"])


def _difference(low: float, high: float, metric: str = "auc") -> dict[str, Any]:
    entry = {"difference": (low + high) / 2, "interval": [low, high], "metric": metric, "comparisons": 4}
    return entry | {"verdict": verdict_of([low, high], METRIC_FACTS[metric])}


def _fraction(share: float, low: float, high: float) -> dict[str, Any]:
    figures = {"auc": {"mean": 0.75}, "brier": {"mean": 0.2}, "accuracy": {"mean": 0.7}}
    return {
        "fraction": share,
        "rows": {"mean": 28.0},
        "adapted": figures,
        "alone": figures,
        "difference": {metric: _difference(low, high, metric) for metric in figures},
    }


def test_a_caution_names_what_was_worse() -> None:
    assert caution([]) == ""
    assert "it gave a worse AUC. Use a model trained at this hospital alone" in caution(["auc"])
    limits = ((0.02, 0.08), (-0.08, -0.02), (-0.03, 0.05))
    assert [verdict(_difference(*interval)) for interval in limits] == ["better", "worse", "none"]
    assert [verdict(_difference(*interval, "brier")) for interval in limits] == ["worse", "better", "none"]


def test_sentences_say_what_intervals_mean() -> None:
    text = sentence(_fraction(0.1, 0.02, 0.08), "auc")
    assert text == (
        "With 10 % of its training rows (28) adapting gives an AUC of 0.750 and training alone 0.750: adapting is "
        "better (+5.0 points, 95 % CI +2.0 to +8.0, corrected for 4 comparisons)."
    )
    assert "adapting is worse (+0.050, 95 % CI +0.020 to +0.080" in sentence(_fraction(0.1, 0.02, 0.08), "brier")
    assert "no evidence of a difference" in sentence(_fraction(1.0, -0.03, 0.05), "accuracy")
    lines = [_fraction(0.1, 0.02, 0.08), _fraction(0.5, -0.001, 0.08), _fraction(1.0, -0.03, 0.05)]
    assert conclusion(lines, "auc") == (
        "Adapting gives a better AUC with 10 % of the rows; there is no evidence of a difference in AUC with 50 % and "
        "100 % of the rows."
    )
    assert conclusion(lines[:1], "brier") == "Adapting gives a worse Brier score with 10 % of the rows."
