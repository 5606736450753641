"""Parties with different features of the same patients, from the study file to the results."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from wardround.core.errors import DataError, RunError, StudyError, WardroundError
from wardround.core.notices import line_of
from wardround.data.parties import holdings_of, known_patients
from wardround.data.site import Rows
from wardround.engines import ENGINES
from wardround.evaluation.missing_party import (
    describe_deployed_noise,
    describe_noise,
    predict_missing_party,
    releases_of,
    rows_without,
)
from wardround.evaluation.prediction import predict
from wardround.models import Shape
from wardround.models.joined import joined
from wardround.privacy.psi import simulated_psi as psi_simulated
from wardround.privacy.psi.simulated_psi import match_patients
from wardround.runs.catalog import load_study
from wardround.runs.execute import run_study
from wardround.runs.plan import Plan, load_plan
from wardround.runs.site_descriptions import describe_matching, matching_notices
from wardround.runs.units import cut
from wardround.study.schema import EmbeddingNoise
from wardround.tasks import class_task

PARTIES = {"clinic": ["age", "sex", "cp"], "laboratory": ["chol", "fbs"], "cardiology": ["thalach", "oldpeak"]}


def study(**changes: Any) -> dict[str, Any]:
    """The heart hospitals' rows, whose columns three parties hold."""
    raw_study: dict[str, Any] = {
        "name": "parties",
        "data": {"source": "heart", "scale": "federated"},
        "model": {"kind": "joined", "embedding": 4, "hidden": 8, "absent": 0.2},
        "training": {"rounds": 2, "lr": 0.1},
        "topology": {"kind": "vertical", "parties": PARTIES},
        "evaluation": {"seeds": {"count": 1}, "test_share": 0.25, "validation_share": 0.1},
        "arms": [{"algorithm": "split"}],
    }
    for path, value in changes.items():
        section, _, key = path.partition("__")
        if key:
            raw_study[section] = {**raw_study.get(section, {}), key: value}
        else:
            raw_study[section] = value
    return raw_study


def planned(**changes: Any) -> Plan:
    return load_plan(*load_study(study(**changes)))


def images(**changes: Any) -> dict[str, Any]:
    own = {
        "data": {"source": "chest-xray", "size": 32, "rows": 300, "scale": "image"},
        "sites": {"partition": "iid", "count": 2},
        "topology__parties": {"radiology": ["image"], "records": ["age", "sex", "view"]},
    }
    return study(**{**own, **changes})


def test_a_row_is_a_line_of_numbers_party_by_party() -> None:
    plan = planned()
    trial = plan.trial(plan.study.arms[0], 42)
    [site] = trial.sites
    clinic, laboratory, cardiology = site.blocks
    assert [block.party for block in site.blocks] == list(PARTIES)
    assert clinic.start == 0
    assert (laboratory.start, cardiology.start) == (clinic.stop, laboratory.stop)
    assert (clinic.present, laboratory.present, cardiology.present) == (None, cardiology.stop, cardiology.stop + 1)
    assert site.train.inputs == (cardiology.stop + 2,)
    assert site.recipe is not None
    behind = site.recipe.layout.columns
    counted = {party: sum(column in columns for column in behind) for party, columns in PARTIES.items()}
    assert counted == {block.party: block.stop - block.start for block in site.blocks}


def test_all_of_a_column_is_prepared_by_the_party_that_holds_it() -> None:
    """Federated scaling of horizontal sites gives the same means; here it is one party's own business anyway."""
    plan = planned(data__scale="per-site")
    [site] = plan.trial(plan.study.arms[0], 42).sites
    age = site.train.x[:, 0]
    assert float(age.mean()) == pytest.approx(0, abs=1e-5)
    assert float(age.std(correction=0)) == pytest.approx(1, abs=1e-5)


def test_only_matched_patients_train_and_all_are_predicted() -> None:
    plan, everybody = planned(topology__known={"laboratory": 0.7}), planned()
    arm = plan.study.arms[0]
    some, every = plan.trial(arm, 42), everybody.trial(everybody.study.arms[0], 42)
    assert 0.6 < len(some.sites[0].train) / len(every.sites[0].train) < 0.8
    flag = some.sites[0].blocks[1].present
    assert flag is not None
    assert bool((some.sites[0].train.x[:, flag] == 1).all())
    assert [len(site.test) for site in some.scored] == [len(site.test) for site in every.scored]
    tested = torch.cat([site.test.x[:, flag] for site in some.scored])
    assert 0.5 < float(tested.mean()) < 0.9


def test_a_patient_is_known_with_all_rows_or_with_none() -> None:
    plan = load_plan(*load_study(images()))
    arm = plan.study.arms[0]
    cohort = plan.cohort_of(arm)
    holdings = holdings_of(arm.topology, cohort.records)
    [has] = known_patients(cohort.patient, holdings, {"records": 0.5}, np.random.default_rng(0)).values()
    for patient in np.unique(cohort.patient):
        assert len(np.unique(has[cohort.patient == patient])) == 1
    assert len(np.unique(cohort.patient)) < len(cohort.patient)  # some have several images


def test_the_split_engine_runs_it_whatever_engine_is_asked_for() -> None:
    plan = planned(arms=[{"algorithm": "split"}, {"algorithm": "pooled", "topology.kind": "flat"}])
    for engine in ("auto", "serial"):
        assert [unit.engine for unit in cut(plan, engine)] == ["split", "serial"]
    with pytest.raises(RunError, match="parties with different features"):
        cut(plan, "split")


def test_split_in_blocks_of_one_equals_the_whole_network_on_joined_rows() -> None:
    """From the study file on; one site, so that the whole network's rows are prepared as the parties prepare them."""
    arms = [{"algorithm": "split"}, {"algorithm": "pooled", "topology.kind": "flat"}]
    raw_study = images(
        sites={"partition": "iid", "count": 1}, arms=arms, training={"rounds": 2, "augment": {"rotate": 5}}
    )
    plan = load_plan(*load_study(raw_study))
    scores = {}
    for arm, engine in zip(plan.study.arms, ("split", "serial"), strict=True):
        trial, run = plan.trial(arm, 42), None
        for run, _ in ENGINES[engine].rounds([trial], ENGINES[engine].start([trial])):  # noqa: B007
            pass
        assert run is not None
        scores[arm.name] = np.concatenate([prediction.score for prediction in predict(trial, run)])
    np.testing.assert_allclose(scores["split"], scores["pooled"], atol=1e-5)


def test_without_a_party_nothing_of_it_is_read() -> None:
    plan = planned()
    trial = plan.trial(plan.study.arms[0], 42)
    part = trial.model.cut.parts[1] if trial.model.cut else None
    assert part is not None
    rows = trial.scored[0].test
    emptied = rows_without(rows, part)
    assert not emptied.x[:, part.start : part.stop].any()
    assert not emptied.x[:, part.present].any()
    assert torch.equal(emptied.x[:, : part.start], rows.x[:, : part.start])
    params, buffers = trial.model.init(1)
    params["absent.laboratory"] = torch.ones(4)
    spoilt = Rows(emptied.x.clone(), emptied.y)
    spoilt.x[:, part.start : part.stop] = 99.0
    first, second = (trial.model.logits(params, buffers, changed_rows.x, None)[0] for changed_rows in (emptied, spoilt))
    assert torch.equal(first, second)
    assert not torch.equal(first, trial.model.logits(params, buffers, rows.x, None)[0])


def test_a_run_tells_of_its_parties(tmp_path: Path) -> None:
    arms = [{"algorithm": "split", "topology.block": [1, 8]}, {"algorithm": "pooled", "topology.kind": "flat"}]
    result = run_study(study(arms=arms, topology__known={"laboratory": 0.7}), out=tmp_path)
    content = json.loads((result.folder / "results.json").read_text())
    topology = content["arms"]["split[block=8]"]["topology"]
    assert content["arms"]["pooled"]["topology"] is None
    assert (topology["kind"], topology["labels"], topology["block"]) == ("vertical", "clinic", 8)
    assert topology["parties"]["laboratory"]["columns"] == ["chol", "fbs"]
    matched = topology["matched"]
    assert matched["patients"]["clinic"] == 918
    assert matched["common"] == matched["patients"]["laboratory"] < 918
    batches = -(-matched["train"] // 32)
    assert topology["cost"]["exchanges"] == 2 * -(-batches // 8)
    # embeddings of four numbers, of two parties, in two epochs
    assert topology["cost"]["bytes_up"] == topology["cost"]["bytes_down"] == 2 * 2 * matched["train"] * 4 * 4
    assert set(topology["missing_party"]) == {"laboratory", "cardiology"}
    for absence in topology["missing_party"].values():
        accuracy, without = content["arms"]["split[block=8]"]["metrics"]["accuracy"], absence["metrics"]["accuracy"]
        assert absence["difference"]["accuracy"]["difference"] == pytest.approx(without["mean"] - accuracy["mean"])
        assert absence["difference"]["accuracy"]["interval"][0] <= absence["difference"]["accuracy"]["interval"][1]
    assert (result.folder / "missing_party.parquet").is_file()


def test_predictions_without_a_party_are_of_all_test_rows() -> None:
    plan = planned()
    trial = plan.trial(plan.study.arms[0], 42)
    run = ENGINES["split"].start([trial])
    predictions = predict_missing_party(trial, run)
    assert set(predictions) == {"laboratory", "cardiology"}
    for sites in predictions.values():
        assert [len(prediction.rows) for prediction in sites] == [len(site.test) for site in trial.scored]


def test_what_noise_on_embeddings_gives() -> None:
    """T releases with noise s on numbers that may move by two clips: mu = 2 sqrt(T) / s in Gaussian privacy (Dong, Roth
    and Su, JRSS B 2022); delta(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu)."""
    from scipy.optimize import brentq
    from scipy.stats import norm

    guarantee = describe_noise(EmbeddingNoise(1.0, 20.0), 10)
    assert guarantee is not None
    mu = 2 * np.sqrt(10) / 20

    def excess(epsilon: float) -> float:
        return float(norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)) - 1e-5

    assert guarantee["epsilon"] == pytest.approx(brentq(excess, 0.01, 10), rel=2e-3)
    nothing = describe_noise(EmbeddingNoise(1.0), 10)
    assert nothing is not None
    assert nothing["epsilon"] is None  # a clip alone hides nothing
    assert describe_noise(None, 10) is None


def test_noise_of_all_arms_and_seeds_counts_where_embeddings_really_leave() -> None:
    """Two arms of 2 and 4 epochs with 3 seeds: 18 releases with one noise, mu = 2 sqrt(18) / s as above."""
    arms: list[dict[str, Any]] = [{"algorithm": "split"}, {"algorithm": "split", "name": "long", "training.rounds": 4}]
    noisy = study(
        arms=arms, topology__embeddings={"clip": 1.0, "noise": 20.0}, evaluation__seeds={"first": 1, "count": 3}
    )
    parsed = load_study({**noisy, "training": {"rounds": 2, "local_epochs": 1, "lr": 0.1}})[0]
    guarantees = [describe_deployed_noise(parsed, arm) for arm in parsed.arms]
    expected = describe_noise(EmbeddingNoise(1.0, 20.0), 18)
    assert expected is not None
    assert expected["covers"] == "one seed"
    assert guarantees == [{**expected, "covers": "all arms and seeds"}] * 2
    arms[1]["topology.embeddings.noise"] = 0.0
    bare = describe_deployed_noise(load_study({**noisy, "arms": arms})[0], parsed.arms[0])
    assert bare is not None
    assert bare["epsilon"] is None  # the other arm sends the same rows without any


@pytest.mark.slow
def test_dropout_tells_uncertainty_where_embeddings_get_noise(tmp_path: Path) -> None:
    noisy = study(
        topology__embeddings={"clip": 1.0, "noise": 0.5}, model__dropout=0.2, uncertainty={"method": "dropout"}
    )
    assert (run_study(noisy, out=tmp_path).folder / "results.json").is_file()


def files_of_parties(folder: Path, common: int) -> dict[str, Any]:
    """A clinic of 250 patients and a laboratory of 270, of whom the clinic has some."""
    rng = np.random.default_rng(0)
    ages, doubt = np.random.default_rng(0).normal(size=250), np.random.default_rng(1).normal(size=250)
    sick = ["yes" if number > 0 else "no" for number in ages + doubt]
    clinic = [f"P{n:03},{age:.6f},{word}" for n, (age, word) in enumerate(zip(ages, sick, strict=True))]
    names = [f"P{n:03}" for n in range(common)] + [f"S{n:03}" for n in range(270 - common)]
    lab = [f"{name},{value:.6f}" for name, value in zip(names, rng.normal(size=270), strict=True)]
    (folder / "clinic.csv").write_text("\n".join(["pid,age,sick", *clinic]) + "\n", encoding="utf-8")
    (folder / "lab.csv").write_text("\n".join(["pid,crp", *lab]) + "\n", encoding="utf-8")
    files = {party: str(folder / f"{party}.csv") for party in ("clinic", "lab")}
    data = {"source": "csv-parties", "files": files, "patient": "pid", "target": "sick"}
    return study(data=data, topology__parties={"clinic": ["*"], "lab": ["*"]})


def test_each_party_is_counted_with_its_own_patients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And arms that differ in the exchange alone are matched once."""
    asked: list[dict[str, int]] = []

    def watched(patients: dict[str, list[str]]) -> Any:
        asked.append({party: len(ids) for party, ids in patients.items()})
        return match_patients(patients)

    monkeypatch.setattr(psi_simulated, "match_patients", watched)
    arms = [{"algorithm": "split"}, {"algorithm": "split", "name": "blocks", "topology.block": 4}]
    plan = load_plan(*load_study({**files_of_parties(tmp_path, 250), "arms": arms}))
    matching = describe_matching(plan)
    assert asked == [{"clinic": 250, "lab": 270}]
    assert matching["split"]["patients"] == {"clinic": 250, "lab": 270}
    assert matching["split"]["common"] == 250
    assert matching["blocks"] == matching["split"]
    assert not plan.notices
    assert {notice.code for notice in matching_notices(plan)} == {"matched-rows"}


def test_few_patients_in_common_are_warned_of(tmp_path: Path) -> None:
    """25 of 250 are a tenth; of those who train, a share near 25 x 0.65 = 16, fewer than 20."""
    raw_study = files_of_parties(tmp_path, 25)
    plan = load_plan(*load_study(raw_study))
    matched, few = matching_notices(plan)
    assert (matched.code, matched.severity, matched.arm) == ("matched-rows", "info", "split")
    assert (few.code, few.severity, few.arm) == ("few-matched-patients", "warning", "split")
    assert few.counts["patients"] < 20
    assert few.counts == {"patients": matched.counts["rows"], "of": matched.counts["of"]}
    results = json.loads((run_study(raw_study, out=tmp_path / "runs").folder / "results.json").read_bytes())
    assert {**few.to_json(), "text": line_of(few)} in results["notices"]


def first_trial(changes: dict[str, Any]) -> None:
    plan = planned(**changes)
    plan.trial(plan.study.arms[0], 42)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"arms": [{"algorithm": "fedavg"}]}, "fedavg averages models"),
        ({"topology__kind": "flat"}, 'the topology is not "vertical"'),
        ({"model": {"kind": "mlp"}}, "mlp is one network"),
        ({"topology__parties": {"clinic": ["age"]}}, "two or more"),
        ({"privacy": {"secure_sum": {}}}, "[privacy] protects updates of models"),
        ({"training__share": 0.5}, "every party is needed"),
        ({"training__oversample": 0.5}, "would tell the other parties"),
        ({"training__mix": {"kind": "mixup"}}, "would have to be told to the other parties"),
        ({"arms": [{"algorithm": "split", "train_at": ["va"]}]}, "every party is needed"),
        ({"arms": [{"algorithm": "pooled", "topology.kind": "flat"}], "topology__parties": {}}, "is empty"),
        ({"topology__parties": {"a": ["age"], "b": ["ag"]}}, "no column is called 'ag'"),
        ({"topology__parties": {"a": ["age"], "b": ["age"]}}, "'age' is held by 'a' already"),
        ({"topology__parties": {"a": ["image"], "b": ["age"]}}, "these data have no images"),
        ({"topology__parties": {"a.b": ["sex"], "b": ["age"]}}, "cannot be a party's name"),
        ({"topology__labels": "clinics"}, "no party is called 'clinics'"),
        ({"topology__known": {"clinic": 0.5}}, "is not a party other than the one with the labels"),
        ({"topology__known": {"laboratory": 1e-9}}, "have no training patient in common"),
        ({"model__bottoms": {"clinics": {}}}, "no party with features is called 'clinics'"),
        ({"model__bottoms": {"clinic": {"kind": "transformer"}}}, "'transformer' is not known"),
        ({"model__bottoms": {"clinic": {"kind": "mlp", "hiden": [3]}}}, "no such setting"),
        ({"model__weights": "none.safetensors"}, "are for images"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(WardroundError) as caught:
        first_trial(changes)
    assert problem in caught.value.problem
    assert isinstance(caught.value, StudyError | DataError)
    assert caught.value.remedy


def test_a_party_has_an_image_or_columns() -> None:
    plan = load_plan(*load_study(images(topology__parties={"radiology": ["image", "view"], "records": ["age"]})))
    with pytest.raises(StudyError, match="takes either an image or columns"):
        plan.trial(plan.study.arms[0], 42)


def test_an_arm_leaves_a_party_out_by_giving_it_no_columns() -> None:
    arms = [{"algorithm": "pooled", "topology.kind": "flat", "topology.parties.records": []}]
    plan = load_plan(*load_study(images(arms=arms)))
    [image] = plan.trial(plan.study.arms[0], 42).sites[0].blocks
    assert (image.party, image.shape) == ("radiology", (1, 32, 32))


@pytest.mark.slow
def test_the_image_part_starts_from_a_horizontally_trained_network(tmp_path: Path) -> None:
    """Everything but its head, which answers another question; the file is one of a run folder."""
    settings: dict[str, Any] = {"kind": "cnn", "channels": [2, 4], "hidden": 8, "kernel": 3}
    horizontal = images(model=settings, topology={}, arms=[{"algorithm": "fedavg"}])
    result = run_study(horizontal, out=tmp_path)
    path = result.folder / "models" / "fedavg" / "seed-42.safetensors"
    raw_study = images(model__bottoms={"radiology": settings}, model__weights=str(path))
    plan = load_plan(*load_study(raw_study))
    started = ENGINES["split"].start([plan.trial(plan.study.arms[0], 42)]).server["params"]
    from safetensors.torch import load_file

    saved = load_file(path)
    first = [name for name in started if name.startswith("radiology.0.")]
    assert first
    for name in first:
        assert torch.equal(started[name], saved["server/params/" + name.removeprefix("radiology.")])
    head = [name for name in started if name.startswith("radiology.9.")]
    assert {tuple(started[name].shape) for name in head} == {(4, 8), (4,)}  # an embedding, not findings


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    save_file({"other": torch.zeros(2)}, tmp_path / "other.safetensors")
    plan = load_plan(*load_study(images(model__weights=str(tmp_path / "other.safetensors"))))
    with pytest.raises(StudyError, match="has none of the model's"):
        plan.trial(plan.study.arms[0], 42)


def test_the_network_needs_parties() -> None:
    with pytest.raises(StudyError, match="names no parties"):
        joined()(Shape((4,), class_task(2)))


def test_a_rows_embedding_leaves_once_an_epoch() -> None:
    """3 rounds of 4 epochs with one seed."""
    parsed = load_study(study(training={"rounds": 3, "local_epochs": 4, "lr": 0.1}))[0]
    assert releases_of(parsed.arms[0]) == 12


def test_an_arm_that_sends_embeddings_as_they_are_leaves_nothing_to_tell() -> None:
    """The same rows leave in both arms, with noise in one of them only."""
    noisy = {"algorithm": "split", "topology.embeddings.clip": 1.0, "topology.embeddings.noise": 20.0}
    parsed = load_study(study(arms=[noisy, {"algorithm": "split", "name": "plain"}]))[0]
    guarantee = describe_deployed_noise(parsed, parsed.arms[0])
    assert guarantee is not None
    assert guarantee["epsilon"] is None
    assert guarantee["releases"] == 2 * len(list(parsed.evaluation.seeds)) * releases_of(parsed.arms[0])
    assert describe_deployed_noise(parsed, parsed.arms[1]) is None
