"""What bundles of every kind say of a row does not contradict itself: call, prediction set, referral and reasons; in
`predict`, over HTTP, in the report and with a model in ONNX. Whatever thresholds, cuts and limits a site has chosen."""

import base64
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from tests.attacks.studies import heart as private_hearts
from tests.bundles.image_runs import ARMS as IMAGE_ARMS
from tests.bundles.image_runs import garments, radiographs, run_of
from tests.bundles.test_same_referral import FEDAVG, heart_run, measured
from tests.bundles.untrained_bundles import made as by_hand
from tests.representatives import represented
from tests.runs.test_vertical_studies import study as vertical_study
from tests.serving.test_serve import Client
from wardround.bundles import (
    Bundle,
    FinishedRun,
    PredictOptions,
    bundle_from,
    export_onnx,
    load_bundle,
    open_finished_run,
    predict_file,
    predict_images,
    predict_table,
)
from wardround.bundles.bundle import Event
from wardround.bundles.predict.images import block_of_arrays
from wardround.bundles.predict.scoring import predict_block
from wardround.bundles.uncertainty import SHARES, Referral
from wardround.core.threads import torch_threads
from wardround.runs.execute import run_study
from wardround.serving.app import make_app
from wardround.uncertainty.decision import DOUBT, NO_ANSWER_FITS, PREDICTION_ADDED, REASONS, TEXTS

TABLE_ARMS = ("fedavg", "local", "pooled", "clustered", "intercepts", "newcomer", "exact", "network")


@dataclass(frozen=True)
class Case:
    """A bundle, and rows to predict: a table, or images with what is known of their patients."""

    bundle: Bundle
    table: pd.DataFrame | None
    images: np.ndarray | None = None

    def predict(self, bundle: Bundle, how: PredictOptions) -> pd.DataFrame:
        if self.images is not None:
            return predict_images(bundle, self.images, self.table, how)
        assert self.table is not None
        return predict_table(bundle, self.table, options=how)

    def asked(self) -> list[dict[str, Any]]:
        """The same rows as a request has them."""
        known = [] if self.table is None else self.table.astype(object).to_dict("records")
        rows = [{str(name): None if pd.isna(value) else value for name, value in row.items()} for row in known]
        if self.images is None:
            return rows
        rows = rows or [{} for _ in self.images]
        return [{**row, "image": in_base64(image)} for row, image in zip(rows, self.images, strict=True)]


def in_base64(pixels: np.ndarray) -> str:
    file = BytesIO()
    Image.fromarray(np.squeeze(pixels)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def spoilt(table: pd.DataFrame) -> pd.DataFrame:
    """Rows as they are, and some with gaps, levels and numbers that training did not have."""
    odd = table.iloc[:4].astype({"age": float, "chol": float}).astype({"cp": object})
    odd.loc[0, "age"] = np.nan
    odd.loc[1, "cp"] = "9"
    odd.loc[2, "chol"] = 1e308
    odd.loc[3, "age"] = 400.0
    return pd.concat([table, odd], ignore_index=True)


def recorded(run: FinishedRun, site: str | None = None) -> pd.DataFrame:
    records = run.plan.cohort_of(run.plan.study.arms[0]).records
    assert isinstance(records.features, pd.DataFrame)
    return records.features if site is None else records.features[records.hospital == site].reset_index(drop=True)


@pytest.fixture(scope="module", params=represented(["some", "every"], by=["some"]))
def cases(
    request: pytest.FixtureRequest, finished: FinishedRun, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Case]:
    """A table, a network, too few rows, complete rows, findings and three classes; or every kind there is."""
    folder = tmp_path_factory.mktemp("decisions")
    if request.param == "some":
        return cases_of(finished, ("fedavg", "network"), IMAGE_ARMS[:1], folder)
    return cases_of(finished, TABLE_ARMS, IMAGE_ARMS, folder) | other_tables(finished, folder)


def rows_of(finished: FinishedRun) -> pd.DataFrame:
    return spoilt(recorded(finished, "hungarian").iloc[:60].reset_index(drop=True))


def cases_of(
    finished: FinishedRun, table_arms: Sequence[str], image_arms: list[dict[str, Any]], folder: Path
) -> dict[str, Case]:
    by_name: dict[str, Case] = {}
    rows = rows_of(finished)
    for arm in table_arms:
        path = bundle_from(finished, arm=arm, site="hungarian", out=folder / arm)
        by_name[f"table, {arm}"] = Case(load_bundle(path), rows)
    few = bundle_from(finished, arm="fedavg", site="switzerland", out=folder / "few")
    by_name["table, few validation rows"] = Case(load_bundle(few), rows)
    data = {"source": "heart", "hospitals": ["cleveland"], "missing": "drop"}
    sites = {"partition": "iid", "count": 2}
    complete = heart_run(folder / "complete", data=data, sites=sites)
    path = bundle_from(complete, arm="fedavg", site="site-01", out=folder / "complete rows")
    by_name["table, complete rows only"] = Case(load_bundle(path), rows)
    chests, clothes = radiographs(), garments()
    run = run_of(chests, folder / "chests", arms=image_arms)
    known = chests.groups.iloc[:40].reset_index(drop=True)
    for name in (str(arm_entry["name"]) for arm_entry in image_arms):
        path = bundle_from(run, arm=name, site="hospital-1", out=folder / f"chests {name}")
        by_name[f"findings, {name}"] = Case(load_bundle(path), known, np.asarray(chests.features)[:40, 0])
    run = run_of(clothes, folder / "clothes", arms=FEDAVG)
    path = bundle_from(run, arm="fedavg", site="shop-0", out=folder / "shop")
    by_name["three classes, images"] = Case(load_bundle(path), None, np.asarray(clothes.features)[:40, 0])
    return by_name


def other_tables(finished: FinishedRun, folder: Path) -> dict[str, Case]:
    by_name: dict[str, Case] = {}
    rows = rows_of(finished)
    with torch_threads(1):
        evaluation = {"seeds": {"first": 1, "count": 1}, "validation_share": 0.25, "every": 0}
        private = run_study(private_hearts(evaluation=evaluation), folder / "private", workers=1).folder
        parties = vertical_study(evaluation__validation_share=0.2, arms=[{"algorithm": "split"}])
        vertical = open_finished_run(run_study(parties, folder / "vertical", workers=1).folder)
    path = bundle_from(open_finished_run(private), arm="private", site="va", out=folder / "va")
    by_name["table, private"] = Case(load_bundle(path), rows)
    path = bundle_from(vertical, arm="split", site="hungarian", out=folder / "parties")
    by_name["table, parties"] = Case(load_bundle(path), rows)
    return by_name


def reasons_in(why: str) -> list[str]:
    """Codes; a text that is none of the vocabulary ends in an error."""
    codes = {text: code for code, text in TEXTS.items()}
    return [codes[part.partition(": ")[0]] for part in why.split("; ")] if why else []


def contradictions(bundle: Bundle, predictions: pd.DataFrame) -> list[str]:
    """Rows that break the rule, in words."""
    problems = []
    findings = bundle.answer.form == "findings"
    questions = [(f"_{name}", ("absent", "present")) for name in bundle.classes] if findings else [("", None)]
    for row in predictions.to_dict("records"):
        codes = reasons_in(row["why"])
        place = f"row {row['row']}"
        if "refer" in row and row["refer"] != bool(codes):
            problems.append(f"{place}: refer is {row['refer']} with the reasons {codes}")
        if codes != [reason.code for reason in REASONS if reason.code in codes]:
            problems.append(f"{place}: reasons twice, or in another order")
        for end, names in questions:
            call = row[f"predicted{end}"]
            unscored = call is None or call != call
            if unscored and "refer" in row and not row["refer"]:
                problems.append(f"{place}: nobody looks at a row without a prediction")
            if f"set{end}" not in row:
                continue
            held = row[f"prediction_set{end}"]
            if unscored:
                problems += [f"{place}: a set without a call"] if isinstance(held, str) else []
                continue
            answers = held.split(" or ")
            word = call if names is None else names[int(call)]
            if word not in answers:
                problems.append(f"{place}: called {word}, set {held}")
            if not findings and len(answers) == 1 and {PREDICTION_ADDED.code, NO_ANSWER_FITS.code} & set(codes):
                problems.append(f"{place}: one answer, which was added")
    return problems


def with_choices(bundle: Bundle, rng: np.random.Generator) -> Bundle:
    """The bundle with thresholds, conformal cuts and limits of doubt at any place."""
    changes: dict[str, Any] = {}
    changes["events"] = tuple(Event(float(rng.uniform(0.01, 0.99)), event.calibration) for event in bundle.events)
    uncertainty = bundle.uncertainty
    if uncertainty is not None and uncertainty.cuts is not None and uncertainty.referral is not None:
        values = rng.uniform(0, 1, uncertainty.cuts.values.shape)
        values[rng.random(values.shape) < 0.1] = np.inf
        doubts = np.r_[np.inf, np.sort(rng.random(SHARES - 1))[::-1], -np.inf]
        cuts = replace(uncertainty.cuts, values=values)
        changes["uncertainty"] = replace(uncertainty, cuts=cuts, referral=Referral(uncertainty.referral.share, doubts))
    return replace(bundle, **changes)


def test_no_prediction_of_any_kind_of_bundle_contradicts_itself(cases: dict[str, Case]) -> None:
    rng = np.random.default_rng(0)
    seen: set[str] = set()
    without = {
        name for name, case in cases.items() if case.bundle.uncertainty is None or not case.bundle.uncertainty.cuts
    }
    assert without == {"table, few validation rows", "table, private"} & cases.keys()
    for name, case in cases.items():
        assert contradictions(case.bundle, case.predict(case.bundle, PredictOptions())) == [], name
        for _ in range(12):
            share = (
                None if case.bundle.uncertainty is None or case.bundle.uncertainty.referral is None else rng.random()
            )
            bundle = with_choices(case.bundle, rng)
            predictions = case.predict(bundle, PredictOptions(refer_share=share))
            assert contradictions(bundle, predictions) == [], name
            seen |= {code for why in predictions["why"] for code in reasons_in(why)}
        plain = case.predict(case.bundle, PredictOptions(uncertainty=False))
        assert contradictions(case.bundle, plain) == [], name
        assert not {DOUBT.code, PREDICTION_ADDED.code, NO_ANSWER_FITS.code} & {
            c for why in plain["why"] for c in reasons_in(why)
        }
    # the cases are such that all occur but those of images that cannot be read and of counts
    assert seen == {reason.code for reason in REASONS} - {"unreadable-image", "no-exposure"}


def test_over_http_a_row_is_called_and_referred_as_in_a_file(cases: dict[str, Case]) -> None:
    for name, case in cases.items():
        expected = case.predict(case.bundle, PredictOptions())
        answer = Client(make_app(case.bundle)).post("/predict", json={"rows": case.asked()})
        assert answer.status_code == 200, (name, answer.text)
        predictions = pd.DataFrame(answer.json()["rows"]).assign(row=expected["row"])
        assert contradictions(case.bundle, predictions.astype(object).where(predictions.notna(), None)) == [], name
        columns = [
            column
            for column in map(str, expected)
            if column.startswith(("predicted", "prediction_set")) or column in ("refer", "why")
        ]
        pd.testing.assert_frame_equal(
            predictions[columns].astype(object).fillna(""), expected[columns].astype(object).fillna(""), obj=name
        )


def test_a_summary_counts_each_reason_by_its_code(cases: dict[str, Case], tmp_path: Path) -> None:
    case = cases["table, fedavg"]
    assert case.table is not None
    case.table.to_csv(tmp_path / "rows.csv", index=False)
    summary = predict_file(case.bundle, tmp_path / "rows.csv", tmp_path / "out.parquet")
    predictions = pd.read_parquet(tmp_path / "out.parquet")
    counted = {reason.code: sum(reason.code in reasons_in(why) for why in predictions["why"]) for reason in REASONS}
    assert summary.reasons == {code: count for code, count in counted.items() if count}
    assert summary.referred == predictions["refer"].sum() == (predictions["why"] != "").sum()


def test_an_image_that_cannot_be_read_is_referred_for_that(cases: dict[str, Case]) -> None:
    """On standard output such a row is written before the whole is refused."""
    case = cases["three classes, images"]
    assert case.images is not None
    block = replace(block_of_arrays(case.bundle, case.images[:2], None, ()), unreadable={1: "damaged"})
    predictions = predict_block(case.bundle, block)
    assert predictions.refer is not None
    assert predictions.refer[1]
    assert predictions.columns["why"].to_pylist()[1] == TEXTS["unreadable-image"]
    assert predictions.decided is not None
    assert predictions.scored is not None
    assert (predictions.decided.predicted[1], np.isnan(predictions.scored.score[1]).all()) == (-1, True)


@pytest.fixture(scope="module")
def cleveland(tmp_path_factory: pytest.TempPathFactory) -> tuple[Bundle, pd.DataFrame]:
    """Four heart hospitals with one score of each row: the threshold of Cleveland's bundle lies above the scores that
    nine in ten of its healthy validation patients have."""
    folder = tmp_path_factory.mktemp("cleveland")
    training = {"rounds": 30, "local_epochs": 5, "batch_size": 32, "lr": 0.1}
    evaluation = {"seeds": {"first": 42, "count": 1}, "validation_share": 0.3, "every": 0}
    run = heart_run(folder / "runs", training=training, evaluation=evaluation, uncertainty={"method": "none"})
    bundle = load_bundle(bundle_from(run, arm="fedavg", site="cleveland", out=folder / "b"))
    return bundle, recorded(run, "cleveland")


def test_nobody_is_called_what_the_set_excludes(cleveland: tuple[Bundle, pd.DataFrame]) -> None:
    bundle, table = cleveland
    uncertainty, predictions = bundle.uncertainty, predict_table(*cleveland)
    assert uncertainty is not None
    assert uncertainty.cuts is not None
    threshold = bundle.events[0].threshold
    assert uncertainty.cuts.values[0] < threshold  # between the two, conformal cuts rule out what is called
    between = predictions["score"].between(uncertainty.cuts.values[0], threshold, inclusive="neither")
    assert between.sum() >= 5
    assert (predictions["predicted"][between] == bundle.classes[0]).all()
    assert (predictions["prediction_set"][between] == " or ".join(bundle.classes)).all()
    assert predictions["refer"][between].all()
    assert predictions["why"][between].str.contains(PREDICTION_ADDED.text).all()
    assert contradictions(bundle, predictions) == []
    assert len(predictions) == len(table)
    doubtful = predictions["refer"] & ~predictions["out_of_distribution"]
    assert doubtful.sum() > between.sum()
    assert (predictions["why"][doubtful] != "").all()


def test_the_report_counts_what_a_bundle_says(tmp_path: Path) -> None:
    """With one score of each row and the report's own threshold: the same sets, and the same rows referred."""
    run = heart_run(tmp_path / "runs", uncertainty={"method": "none", "refer": 0.05, "alpha": 0.4})
    results = json.loads((run.folder.path / "results.json").read_text())
    uncertainty = results["arms"]["fedavg"]["uncertainty"]
    assert uncertainty["referral"]["at"]["referred"] > uncertainty["referral"]["at"]["reasons"][DOUBT.code]
    for site in ("cleveland", "hungarian"):
        sets, away, added = [], [], []
        for seed in run.plan.study.evaluation.seeds:
            scored_site = next(
                entry for entry in run.plan.trial(run.plan.study.arms[0], seed).scored if entry.name == site
            )
            path = bundle_from(run, arm="fedavg", site=site, seed=seed, out=tmp_path / f"{site} {seed}")
            bundle = replace(load_bundle(path), events=(Event(float(np.asarray(measured(run).cut)), None),))
            predictions = predict_table(bundle, recorded(run).iloc[scored_site.test_rows].reset_index(drop=True))
            codes = [set(reasons_in(why)) for why in predictions["why"]]
            unsupported = [bool({PREDICTION_ADDED.code, NO_ANSWER_FITS.code} & entry) for entry in codes]
            sets.append((~predictions["prediction_set"].str.contains(" or ", regex=False)).mean())
            added.append(np.mean(unsupported))
            away.append(
                np.mean([DOUBT.code in entry or other for entry, other in zip(codes, unsupported, strict=True)])
            )
        at_site = uncertainty["sets"]["sites"][site]
        assert at_site["single"] == pytest.approx(np.mean(sets))
        assert at_site["prediction_added"] + at_site["empty"] == pytest.approx(np.mean(added))
        assert uncertainty["referral"]["at"]["sites"][site] == pytest.approx(np.mean(away))


@pytest.mark.slow
def test_a_model_in_onnx_is_called_by_the_threshold_that_stands_in_it(tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")

    bundle = by_hand(tmp_path / "b", threshold={"value": 0.37})
    export_onnx(bundle, tmp_path / "model.onnx")
    table = pd.DataFrame(np.random.default_rng(1).normal(size=(200, 3)), columns=["age", "crp", "sodium"])
    session = runtime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    scores = session.run(["scores"], {"features": table.to_numpy(np.float32)})[0]
    metadata = {pair.key: pair.value for pair in onnx.load(str(tmp_path / "model.onnx")).metadata_props}
    predictions = predict_table(bundle, table)
    classes = np.array(json.loads(metadata["wardround.classes"]))
    called = classes[(scores.astype(np.float64) >= json.loads(metadata["wardround.threshold"])).astype(int)]
    assert set(called) == {"no", "yes"}
    assert (predictions["predicted"] == called).all()
