"""How sure a bundle is: by which method, intervals by hand, sets and referral from validation rows, what is refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import expit
from scipy.stats import norm
from torch import nn

from tests.attacks.studies import heart as private_hearts
from tests.bundles.conftest import hearts
from tests.bundles.untrained_bundles import made as by_hand
from wardround.bundles import (
    Bundle,
    FinishedRun,
    PredictOptions,
    bundle_from,
    load_bundle,
    make_bundle,
    predict_file,
    predict_table,
)
from wardround.bundles.build import validation_choices
from wardround.bundles.build.run_inputs import LabelledRows
from wardround.bundles.predict.blocks import Block
from wardround.bundles.predict.predict import required_columns
from wardround.bundles.predict.reading import read_block
from wardround.bundles.sealed_files import ABOUT, UNCERTAINTY, WEIGHTS, as_text, seal
from wardround.bundles.uncertainty import SHARES, Referral, Uncertainty, read_uncertainty, set_texts, write_uncertainty
from wardround.core.errors import BundleError, StudyError
from wardround.data.frames import as_array
from wardround.data.site import Block as Part
from wardround.data.site import Rows
from wardround.models import Model, ModelBuilder, Shape, from_module
from wardround.models.joined import joined
from wardround.runs.execute import run_study
from wardround.tasks import class_task
from wardround.uncertainty.conformal import Cuts
from wardround.uncertainty.decision import DOUBT
from wardround.uncertainty.laplace import plausible_priors
from wardround.uncertainty.validation import has_dropout

SITE = "hungarian"


@pytest.fixture(scope="module")
def laplace(finished: FinishedRun, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    out = tmp_path_factory.mktemp("unsure") / "laplace"
    return load_bundle(bundle_from(finished, arm="fedavg", site=SITE, out=out))


@pytest.fixture(scope="module")
def dropout(finished: FinishedRun, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    out = tmp_path_factory.mktemp("unsure") / "dropout"
    return load_bundle(bundle_from(finished, arm="network", site=SITE, out=out))


def sides(finished: FinishedRun, arm: str) -> tuple[Rows, Rows, pd.DataFrame]:
    """Training and validation rows of the site, and its test rows as they were recorded."""
    plan = finished.plan
    trial = plan.trial(plan.study.arm(arm), 1)
    site = next(scored_site for scored_site in trial.scored if scored_site.name == SITE)
    table = plan.cohort_of(plan.study.arm(arm)).records.features
    assert isinstance(table, pd.DataFrame)
    return site.train, site.validation, table.iloc[site.test_rows].reset_index(drop=True)


def recorded(finished: FinishedRun, arm: str, rows: np.ndarray) -> pd.DataFrame:
    table = finished.plan.cohort_of(finished.plan.study.arm(arm)).records.features
    assert isinstance(table, pd.DataFrame)
    return table.iloc[rows].reset_index(drop=True)


def test_dropout_where_the_model_has_it_else_laplace(laplace: Bundle, dropout: Bundle) -> None:
    assert laplace.uncertainty is not None
    assert dropout.uncertainty is not None
    assert (laplace.uncertainty.method, dropout.uncertainty.method) == ("laplace", "dropout")
    assert (dropout.uncertainty.passes, dropout.uncertainty.laplace) == (30, None)
    assert laplace.uncertainty.why == dropout.uncertainty.why == ""


def test_a_party_that_is_left_out_in_training_is_no_dropout() -> None:
    parts = (Part("a", 0, 2, (2,), None), Part("b", 2, 3, (1,), 3))
    shape = Shape((4,), class_task(2), parts=parts)
    assert not has_dropout(joined(absent=0.2)(shape))
    assert has_dropout(joined(absent=0.2, dropout=0.1)(shape))


def test_laplace_by_hand(finished: FinishedRun, laplace: Bundle) -> None:
    """For logistic regression the Gauss-Newton matrix is X'WX with W = p (1 - p), and a row's logit has the variance
    h' (X'WX + prior)^-1 h; 90 % of a normal distribution lie within 1.645 SDs."""
    train, _, table = sides(finished, "fedavg")
    assert laplace.uncertainty is not None
    assert laplace.uncertainty.laplace is not None
    weight, bias = (laplace.params[name].double().numpy() for name in ("weight", "bias"))
    design = np.column_stack([train.x.double().numpy(), np.ones(len(train))])
    coefficients = np.append(weight[0], bias)
    p = expit(design @ coefficients)
    precision = design.T @ (design * (p * (1 - p))[:, None])
    precision += laplace.uncertainty.laplace.prior * np.eye(len(coefficients))
    _, validation, _ = sides(finished, "fedavg")
    assert len(validation) >= 30
    predictions = predict_table(laplace, table)
    names = required_columns(laplace).needed
    columns = {name: as_array(table[name], name, str) for name in names}
    read = read_block(laplace.recipe, Block(len(table), columns, str), laplace.unrecorded)
    x = laplace.recipe.apply(read.table, np.arange(len(table)))
    h = np.column_stack([x, np.ones(len(x))])
    z, sd = h @ coefficients, np.sqrt((h * np.linalg.solve(precision, h.T).T).sum(axis=1))
    half = norm.ppf(0.95) * sd
    np.testing.assert_allclose(predictions["low"], expit(z - half), atol=1e-5)
    np.testing.assert_allclose(predictions["high"], expit(z + half), atol=1e-5)


def test_no_prior_leaves_less_room_than_the_weights_themselves_take() -> None:
    """Weights 0.5 and -0.5 have a mean square of a quarter: a precision of 4 at most."""
    priors = plausible_priors(torch.tensor([[0.5, -0.5]]))
    assert max(priors) == pytest.approx(10**0.5)
    assert min(priors) == pytest.approx(0.001)
    assert plausible_priors(torch.full((1, 3), 100.0)) == (1e-4,)  # below all that are tried
    assert max(plausible_priors(torch.zeros((2, 2)))) == pytest.approx(1e6)


@pytest.mark.parametrize("kind", ["laplace", "dropout"])
def test_an_interval_holds_its_score_and_shrinks_to_nothing_nowhere(
    finished: FinishedRun, request: pytest.FixtureRequest, kind: str
) -> None:
    bundle: Bundle = request.getfixturevalue(kind)
    predictions = predict_table(bundle, sides(finished, "fedavg")[2])
    assert (predictions["low"] <= predictions["score"]).all()
    assert (predictions["score"] <= predictions["high"]).all()
    assert ((predictions["high"] - predictions["low"]) > 1e-4).all()
    assert predictions[["low", "high"]].to_numpy().min() >= 0
    assert predictions[["low", "high"]].to_numpy().max() <= 1
    alone = pd.concat([predict_table(bundle, sides(finished, "fedavg")[2].iloc[[row]]) for row in (0, 7)])
    pd.testing.assert_frame_equal(
        alone.drop(columns="row").reset_index(drop=True),
        predictions.iloc[[0, 7]].drop(columns="row").reset_index(drop=True),
        check_exact=True,
    )


@pytest.mark.parametrize("kind", ["laplace", "dropout"])
def test_sets_and_referral_are_those_of_validation_rows(
    finished: FinishedRun, request: pytest.FixtureRequest, kind: str
) -> None:
    """Of n validation rows of a class, the cut has rank ceil(0.9 (n + 1)): so many of them have their class in the set.
    Of all of them a fifth is referred, to the nearest row."""
    bundle: Bundle = request.getfixturevalue(kind)
    arm = "fedavg" if kind == "laplace" else "network"
    plan = finished.plan
    trial = plan.trial(plan.study.arm(arm), 1)
    site = next(scored_site for scored_site in trial.scored if scored_site.name == SITE)
    label = site.validation.labels.numpy()
    predictions = predict_table(bundle, recorded(finished, arm, site.validation_rows))
    for number, name in enumerate(bundle.classes):
        own = predictions["prediction_set"][label == number]
        wanted = min(int(np.ceil(0.9 * (len(own) + 1) - 1e-9)), len(own))
        assert own.str.contains(name, regex=False).sum() >= wanted
    both = predictions["prediction_set"] == " or ".join(bundle.classes)
    assert (predictions["prediction_set"].isin(bundle.classes) | both).all()
    unclear = predictions["why"].str.contains(DOUBT.text)
    assert (predictions["refer"] | ~predictions["out_of_distribution"]).all()  # who is far is referred
    assert unclear.sum() == round(0.2 * len(predictions))
    assert predictions["refer"].sum() >= round(0.2 * len(predictions))
    shares = [
        predict_table(bundle, recorded(finished, arm, site.validation_rows), options=PredictOptions(refer_share=s))
        for s in (0, 1)
    ]
    assert not shares[0]["why"].str.contains(DOUBT.text).any()
    assert shares[1]["refer"].all()


def test_sets_in_words() -> None:
    sets = np.array([[True, False], [True, True], [False, False], [False, True]])
    numbers, words = set_texts(sets, ("well", "ill"))
    assert [words[number] for number in numbers] == ["well", "well or ill", "none", "ill"]
    many = np.eye(70, dtype=bool)  # more than a number has bits
    numbers, words = set_texts(many, [f"c{place}" for place in range(70)])
    assert [words[number] for number in numbers] == [f"c{place}" for place in range(70)]


def test_a_number_beyond_all_bounds_is_referred(finished: FinishedRun, laplace: Bundle, dropout: Bundle) -> None:
    """Where a score comes out, anything may be; where none does, nothing is said."""
    table = sides(finished, "fedavg")[2].iloc[:2].astype({"chol": float})
    table.loc[0, "chol"] = 1e308
    scored = predict_table(laplace, table)
    assert scored["score"][0] in (0.0, 1.0)
    assert (scored["low"][0], scored["high"][0]) == (0.0, 1.0)
    for bundle in (laplace, dropout):
        predictions = predict_table(bundle, table)
        unknown = predictions["score"].isna()
        assert (predictions["low"].isna() == unknown).all()
        assert (predictions["prediction_set"].isna() == unknown).all()
        assert bool(predictions.loc[0, "refer"])
        assert not unknown[1]


def test_without_uncertainty_the_columns_are_as_before(finished: FinishedRun, laplace: Bundle, tmp_path: Path) -> None:
    table = sides(finished, "fedavg")[2]
    whole, plain = (
        predict_table(laplace, table),
        predict_table(laplace, table, options=PredictOptions(uncertainty=False)),
    )
    assert list(plain) == ["row", "score", "probability", "predicted", "out_of_distribution", "why"]
    assert list(whole) == [
        *list(plain)[:3],
        "low",
        "high",
        "prediction_set",
        "predicted",
        "out_of_distribution",
        "refer",
        "why",
    ]
    same = list(plain)[:-1]
    pd.testing.assert_frame_equal(whole[same], plain[same], check_exact=True)
    assert all(text.startswith(before) for text, before in zip(whole["why"], plain["why"], strict=True))
    table.to_csv(tmp_path / "rows.csv", index=False)
    summary = predict_file(laplace, tmp_path / "rows.csv", tmp_path / "out.parquet")
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "out.parquet"), whole, check_exact=True)
    assert summary.referred == whole["refer"].sum()


def test_a_bundle_of_an_older_format_says_nothing_of_it(tmp_path: Path) -> None:
    bundle = by_hand(tmp_path / "b")
    table = pd.DataFrame({"age": [1.0], "crp": [0.0], "sodium": [2.0]})
    assert "refer" not in predict_table(bundle, table)
    with pytest.raises(StudyError, match="the bundle knows no cut for it"):
        predict_table(bundle, table, options=PredictOptions(refer_share=0.1))
    with pytest.raises(StudyError, match="is not a share"):
        predict_table(bundle, table, options=PredictOptions(refer_share=1.1))


def test_the_card_counts_what_it_is_worth(finished: FinishedRun, laplace: Bundle) -> None:
    table = sides(finished, "fedavg")[2]
    predictions = predict_table(laplace, table)
    about = laplace.about["card"]["uncertainty"]["evaluation"]
    saved = finished.folder.predictions()
    chosen = saved[(saved["arm"] == "fedavg") & (saved["seed"] == 1) & (saved["site"] == SITE)]
    label = chosen["label"].to_numpy()
    names = np.array(laplace.classes)[label]
    held = [name in words.split(" or ") for name, words in zip(names, predictions["prediction_set"], strict=True)]
    assert about["rows"] == len(table)
    assert about["sets"]["coverage"] == pytest.approx(np.mean(held))
    assert about["width"] == pytest.approx((predictions["high"] - predictions["low"]).mean(), abs=1e-6)
    right = (predictions["predicted"] == names).to_numpy()
    assert about["referral"]["all"] == pytest.approx(right.mean())
    unclear = predictions["refer"] & ~predictions["out_of_distribution"]
    if not predictions["out_of_distribution"].any():
        assert about["referral"]["share"] == pytest.approx(unclear.mean())
        assert about["referral"]["kept"] == pytest.approx(right[~unclear].mean())
    text = (laplace.path / "card.md").read_text()
    assert "## Uncertainty" in text
    assert f"| sets that hold the right answer (target: 0.90) | {np.mean(held):.3f} |" in text


def test_protected_patients_give_neither_laplace_nor_cuts(tmp_path: Path) -> None:
    study = private_hearts(evaluation={"seeds": {"first": 1, "count": 1}, "validation_share": 0.25, "every": 0})
    folder = run_study(study, tmp_path / "runs").folder
    bundle = load_bundle(make_bundle(folder, arm="private", site="va", out=tmp_path / "va"))
    how = bundle.uncertainty
    assert bundle.about["private"]
    assert how is not None
    assert (how.method, how.laplace, how.temperature, how.cuts, how.referral) == ("none", None, None, None, None)
    assert "protects patients" in how.why
    assert "protects patients" in how.unchosen
    assert bundle.about["card"]["uncertainty"]["evaluation"] is None
    assert "There is no interval" in (bundle.path / "card.md").read_text()


def bent() -> ModelBuilder:
    class Bent(nn.Module):
        def __init__(self, inputs: int) -> None:
            super().__init__()
            self.line = nn.Linear(inputs, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            activation: torch.Tensor = self.line(x).tanh()
            return activation

    def build(shape: Shape) -> Model:
        return from_module(lambda: Bent(shape.inputs[0]), shape)

    return build


def test_a_model_that_laplace_does_not_fit_says_so(tmp_path: Path) -> None:
    study = hearts(model={"kind": "bent"}, arms=[{"name": "fedavg", "algorithm": "fedavg"}])
    folder = run_study(study, tmp_path / "runs", models={"bent": bent}).folder
    bundle_folder = make_bundle(folder, arm="fedavg", site=SITE, out=tmp_path / "b", models={"bent": bent})
    bundle = load_bundle(bundle_folder, models={"bent": bent})
    how = bundle.uncertainty
    assert how is not None
    assert (how.method, how.laplace) == ("none", None)
    assert how.why == "the model has no dropout, and the model's scores do not come from a linear layer with a bias"
    assert how.cuts is not None  # sets and referral need scores alone
    assert "low" not in predict_table(bundle, pd.DataFrame({c.own_name: [None] for c in bundle.recipe.columns}))


def test_it_comes_back_as_it_was_written_with_what_is_infinite(laplace: Bundle) -> None:
    cuts = np.linspace(1, 0, SHARES + 1)
    cuts[0], cuts[-1] = np.inf, -np.inf
    how = Uncertainty("none", 30, 7, "why", unchosen="not", referral=Referral(0.2, cuts))
    how = Uncertainty(**{**vars(how), "cuts": Cuts(0.1, "plain", np.array([np.inf, 0.3]), np.array([3, 40]))})
    back = read_uncertainty(json.loads(as_text(write_uncertainty(how))), {}, laplace.model, laplace.params)
    assert back.referral is not None
    assert back.cuts is not None
    np.testing.assert_array_equal(back.referral.cuts, cuts)
    np.testing.assert_array_equal(back.cuts.values, [np.inf, 0.3])
    assert (back.method, back.seed, back.why, back.unchosen) == ("none", 7, "why", "not")
    assert (back.cut(0.0), back.cut(1.0), back.cut(0.5)) == (np.inf, -np.inf, 0.5)


def otherwise(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content.update(changes)


@pytest.mark.parametrize(
    "change",
    [
        otherwise(method="guess"),
        otherwise(method="dropout"),  # the model has none
        otherwise(passes=10**9),
        lambda uncertainty: uncertainty["temperature"].update(values=[0.0]),
        lambda uncertainty: uncertainty["temperature"].update(values=[1.0, 1.0]),
        lambda uncertainty: uncertainty["sets"].update(cuts=[0.1]),
        lambda uncertainty: uncertainty["sets"].update(kind="other"),
        lambda uncertainty: uncertainty["referral"]["cuts"].pop(),
        lambda uncertainty: uncertainty["referral"].update(share=2.0),
        lambda uncertainty: uncertainty["laplace"].update(layer="head"),
        lambda uncertainty: uncertainty["laplace"].update(prior=0.0),
        lambda uncertainty: uncertainty.pop("sets"),
    ],
)
def test_what_does_not_fit_is_refused_when_it_is_opened(
    laplace: Bundle, tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    files = {path.name: path.read_bytes() for path in laplace.path.iterdir() if path.name != ABOUT}
    uncertainty = json.loads(files[UNCERTAINTY])
    change(uncertainty)
    files[UNCERTAINTY] = as_text(uncertainty)
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / ABOUT).write_bytes(seal(dict(laplace.about), files))
    with pytest.raises(BundleError, match="does not hold what a bundle of format 3 holds"):
        load_bundle(tmp_path)
    assert WEIGHTS in files


def test_laplace_of_some_rows_speaks_for_all_of_them(laplace: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty rows that are all alike, of which ten are in memory: the sum over rows is that of forty."""
    width = laplace.params["weight"].shape[1]
    label = np.arange(40) % 2
    side = LabelledRows(np.tile(np.linspace(-1, 1, width, dtype=np.float32), (40, 1)), label, label)
    whole = validation_choices._fit_laplace(laplace, side)
    monkeypatch.setattr(validation_choices, "MOST_CELLS", 10 * width)
    assert len(validation_choices._in_memory(laplace, side)[0]) == 10
    torch.testing.assert_close(validation_choices._fit_laplace(laplace, side).values, whole.values)
