"""Hospitals whose images have any number of findings: deployed as simulated, and nothing of few patients is told."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.deployment import radiology_sites as radiology
from tests.deployment.in_process_federation import OpenGate, body_of, federation, kind_of, own_records
from tests.deployment.parity import KNOWN, Both, assert_parity, deploy
from tests.deployment.radiology_sites import FINDINGS, NAMES, study
from tests.deployment.regional_federation import Hierarchy, hierarchy
from tests.noticed import noticed
from wardround.bundles import load_bundle, predict_images
from wardround.core.errors import DeployError, RunError
from wardround.core.threads import torch_threads
from wardround.data.records import Records
from wardround.data.sources import Source
from wardround.deployment import load_predictions
from wardround.deployment.common.local_predictions import load_thresholds
from wardround.deployment.flat.site_bundle import bundle_of
from wardround.deployment.flat.site_session import Session
from wardround.evaluation.prediction import scores_of
from wardround.evaluation.thresholds import best_threshold
from wardround.runs.catalog import load_study
from wardround.runs.execute import StudyRun, run_study

ARMS = [{"algorithm": "fedavg"}, {"algorithm": "scaffold"}, {"algorithm": "local"}]
CNN = {"kind": "cnn", "channels": [2, 3], "hidden": 8, "kernel": 3, "norm": "fedbn", "dropout": 0.2}
SEEDS = {"seeds": {"first": 1, "count": 2}, "validation_share": 0.25, "test_share": 0.25}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    document = study(arms=ARMS, evaluation=SEEDS)
    return assert_parity(document, tmp_path_factory.mktemp("deployed"), radiology.at_sites())


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> StudyRun:
    document = study(arms=ARMS, evaluation=SEEDS)
    return run_study(document, tmp_path_factory.mktemp("runs"), engine="serial", sources=KNOWN, workers=1)


@pytest.fixture(scope="module")
def results(both: Both) -> dict[str, Any]:
    content: dict[str, Any] = both.deployed.folder.read_json("results.json")
    return content


@pytest.mark.slow
def test_networks_with_norms_of_their_own_give_the_same_bits(tmp_path: Path) -> None:
    """With one thread: several may add up the numbers of a convolution in another order."""
    training = {"share": 0.67, "class_weights": "balanced", "oversample": 0.5, "augment": {"flip": "horizontal"}}
    training["mix"] = {"kind": "mixup"}
    with torch_threads(1):
        assert_parity(study(model=CNN, training=training, arms=ARMS[:2]), tmp_path, radiology.at_sites())


def test_figures_that_need_no_threshold_are_the_simulations(results: dict[str, Any], alone: StudyRun) -> None:
    """AUC within its bound; Brier score and loss exactly. All findings, all sites."""
    assert results["findings"] == list(FINDINGS)
    assert results["primary_metric"] == "auc"
    for name, arm in results["arms"].items():
        theirs = alone.results["arms"][name]
        assert set(arm) == set(theirs)
        for metric in ("brier", "loss"):
            assert arm["metrics"][metric]["mean"] == pytest.approx(theirs["metrics"][metric]["mean"], abs=1e-7)
        bound = arm["auc_error_bound"]
        assert 0 < bound < 0.1
        assert arm["metrics"]["auc"]["mean"] == pytest.approx(theirs["metrics"]["auc"]["mean"], abs=bound + 1e-7)
        for site in NAMES:
            for metric in ("auc", "pr_auc", "brier", "loss"):
                expected = theirs["sites"][site][metric]["mean"]
                assert arm["sites"][site][metric]["mean"] == pytest.approx(expected, abs=1e-6), (name, site, metric)
        for finding in FINDINGS:
            ours, other = arm["findings"][finding], theirs["findings"][finding]
            assert (ours["rows"], ours["positives"]) == (other["rows"], other["positives"])
            assert ours["metrics"]["brier"]["mean"] == pytest.approx(other["metrics"]["brier"]["mean"], abs=1e-7)
            assert set(ours) == set(other)
            assert set(ours["sites"]) == set(other["sites"])


def test_calls_are_at_each_hospitals_own_thresholds(both: Both, results: dict[str, Any]) -> None:
    """Rates by hand: each site's validation rows choose, its test rows are called, the calls are added up."""
    assert results["arms"]["fedavg"]["findings"]["air"]["threshold"] == {"mean": None, "chosen": True}
    added: dict[str, np.ndarray] = {}
    for seed in (1, 2):
        for site in NAMES:
            cuts, table = load_thresholds(both.site_folder(site)), load_predictions(both.site_folder(site))
            assert cuts is not None
            assert table is not None
            own = table[(table["arm"] == "fedavg") & (table["seed"] == seed)]
            for finding in FINDINGS:
                label, score = own[f"label_{finding}"].to_numpy(), own[f"score_{finding}"].to_numpy(np.float64)
                chosen = cuts[f"label_{finding}"].to_dict()["fedavg", seed]
                called = score >= (0.5 if np.isnan(chosen) else chosen)
                cells = [(label == 1) & called, (label == 0) & called, (label == 1) & ~called, (label == 0) & ~called]
                added[finding] = added.get(finding, 0) + np.array([cell.sum() for cell in cells]) / 2
    for finding in FINDINGS:
        confusion = results["arms"]["fedavg"]["findings"][finding]["confusion"]
        assert [confusion[cell] for cell in ("tp", "fp", "fn", "tn")] == added[finding].tolist()


def test_a_threshold_is_that_of_its_own_validation_rows_and_never_leaves(both: Both) -> None:
    site = "birch"
    cuts = load_thresholds(both.site_folder(site))
    assert cuts is not None
    trial = both.plan.trial(both.plan.study.arm("fedavg"), 2)
    (own,) = [scored_site for scored_site in trial.scored if scored_site.name == site]
    state = both.deployed.folder.load_model("fedavg", 2)
    params = {name.removeprefix("server/params/"): leaf for name, leaf in state.items()}
    label, score, *_ = scores_of(trial, (params, {}), own.validation)
    expected = [best_threshold(label[:, f], score[:, f]) for f in range(len(FINDINGS))]
    np.testing.assert_array_equal(cuts.xs(("fedavg", 2)).to_numpy(), expected)
    sent = [json.dumps(body_of(answer)) for name, _, answer in both.deployed.transport.carried if name == site]
    known = [value for value in expected if not np.isnan(value)]
    assert known
    assert not [value for value in known for text in sent if repr(value) in text]


def test_curves_over_rounds_are_means_of_sites_aucs(both: Both, results: dict[str, Any]) -> None:
    curve = results["curves"]["fedavg"]
    assert len(curve["test_auc"]) == len(curve["round"])
    assert results["arms"]["fedavg"]["convergence"]["measured_on"] == "validation"
    bodies = [body_of(a) for _, sealed, a in both.deployed.transport.carried if kind_of(sealed) == "evaluate"]
    place = 0  # fedavg with the first seed
    parts = [body["figures"][str(place)]["test"] for body in bodies]
    records = both.deployed.folder.records()
    last = records[(records["arm"] == "fedavg") & (records["seed"] == 1)].sort_values("round").iloc[-1]
    weights = [part["rows"] for part in parts]
    assert last["test_auc"] == pytest.approx(np.average([part["figures"]["auc"] for part in parts], weights=weights))


@pytest.mark.slow
def test_selection_and_region_models_speak_of_findings(tmp_path: Path) -> None:
    document = study(
        arms=[{"name": "fedprox", "algorithm": "fedprox", "mu": [0.01, 5.0]}],
        evaluation={**SEEDS, "seeds": {"first": 1, "count": 1}},
        selection={"arms": ["fedprox"], "metric": "loss", "on": "validation"},
        topology={"kind": "hierarchical", "regions": {"east": list(NAMES[:2]), "west": [NAMES[2]]}},
    )
    network = hierarchy(document, tmp_path / "deployed", radiology.at_sites(), known_sources=KNOWN)
    ours = network.run().read_json("results.json")
    theirs = run_study(document, tmp_path / "runs", engine="serial", sources=KNOWN, workers=1).results
    assert ours["selection"][0]["chosen"] == theirs["selection"][0]["chosen"]
    assert ours["selection"][0]["scores"] == pytest.approx(theirs["selection"][0]["scores"], abs=1e-6)
    arm, other = (figures["arms"]["fedprox[selected]"] for figures in (ours, theirs))
    assert arm["metrics"]["loss"]["mean"] == pytest.approx(other["metrics"]["loss"]["mean"], abs=1e-6)
    for region in ("east", "west"):
        figures, expected = (entry["topology"]["regions"][region] for entry in (arm, other))
        loss, known = (entry["metrics"]["regional"]["loss"]["mean"] for entry in (figures, expected))
        assert loss == pytest.approx(known, abs=1e-6)
    assert _models_of(network)


def _models_of(network: Hierarchy) -> list[Path]:
    return sorted((network.folder / "run" / "models").rglob("*.safetensors"))


def test_updates_may_be_masked(tmp_path: Path) -> None:
    """In fixed point, so that the figures are the same to some digits."""
    changes = {"evaluation": {**SEEDS, "seeds": {"first": 1, "count": 1}}}
    plain = deploy(study(**changes), tmp_path / "plain", radiology.at_sites())
    masked = deploy(study(privacy={"secure_sum": {}}, **changes), tmp_path / "masked", radiology.at_sites())
    first, second = (pair.deployed.folder.read_json("results.json")["arms"]["fedavg"] for pair in (plain, masked))
    assert second["metrics"]["loss"]["mean"] == pytest.approx(first["metrics"]["loss"]["mean"], abs=1e-4)
    assert second["findings"]["air"]["positives"] == first["findings"]["air"]["positives"]


def test_patients_may_be_protected(tmp_path: Path) -> None:
    """Then how common findings are is told of no hospital, because nobody has paid for it."""
    example = {"epsilon": 4.0, "delta": 1e-5, "clip": 1.0}
    document = study(privacy={"example": example}, data={"public": True, "scale": "ranges"})
    both = deploy(document, tmp_path, radiology.at_sites())
    results = both.deployed.folder.read_json("results.json")
    assert results["privacy"]["guarantee"]
    assert results["arms"]["fedavg"]["metrics"]["auc"]["mean"] is not None
    descriptions = results["sites"][0]["sites"].values()
    assert {count for description in descriptions for count in description["classes"].values()} == {None}
    assert [list(description["classes"]) for description in descriptions] == [[*FINDINGS, "no finding"]] * len(NAMES)


def changed(name: str, change: Callable[[Records], Records]) -> Source:
    return Source(lambda: change(radiology.own(name)))


def one_class(records: Records) -> Records:
    return replace(records, target=(records.target[:, 0] == 1).astype(np.int64), classes=("no", "mass"), boxes=None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            lambda records: replace(records, classes=("mass", "fluid", "gas")),
            "it predicts findings mass, fluid, gas, and alder predicts findings mass, fluid, air",
        ),
        (
            lambda records: replace(records, classes=("fluid", "mass", "air")),
            "it predicts findings fluid, mass, air, and alder",
        ),
        (one_class, "it predicts classes no, one of too few rows, and alder predicts findings mass, fluid, air"),
        (lambda records: replace(records, features=records.features[:, :, :5, :5]), "its images are of another size"),
    ],
    ids=["names", "order", "form", "size"],
)
def test_sites_that_differ_are_refused(tmp_path: Path, change: Callable[[Records], Records], words: str) -> None:
    sources: dict[str, Callable[[], Source]] = {**radiology.at_sites(), "cedar": partial(changed, "cedar", change)}
    network = federation(study(), tmp_path, sources, known_sources=KNOWN)
    with pytest.raises(DeployError, match=words) as caught:
        network.run()
    assert caught.value.where == "cedar"
    assert caught.value.remedy


def small_numbers(value: Any, smallest: int) -> Iterator[int]:
    """Whole numbers that count patients, below the least that may be told."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key in ("rows", "tp", "fn", "positives") and isinstance(item, int) and 0 < item < smallest:
                yield item
            if key not in ("confusion",):  # wrong calls of a class that is large enough may be few
                yield from small_numbers(item, smallest)
    elif isinstance(value, list):
        for item in value:
            yield from small_numbers(item, smallest)


def test_what_is_told_has_no_small_cell(tmp_path: Path) -> None:
    """Few rows have a mass. What sites say of it by class stays with them, in one warning for each."""
    smallest = 8
    document = study(
        deployment={"smallest_cell": smallest}, evaluation={"seeds": {"count": 1}, "validation_share": 0.2}
    )
    both = deploy(document, tmp_path, radiology.at_sites(patients=240))
    results = both.deployed.folder.read_json("results.json")
    bodies = [body_of(answer) for _, sealed, answer in both.deployed.transport.carried if kind_of(sealed) == "evaluate"]
    assert len(bodies) == len(NAMES)
    for body in bodies:
        assert not list(small_numbers(body["summaries"], smallest))
        assert not (body["summaries"]["0"]["test"]["findings"]["mass"].get("histogram") or [[], []])[1]
    withheld = [notice for notice in noticed(results, "figures-withheld") if notice["details"].get("findings")]
    assert [notice["site"] for notice in withheld] == list(NAMES)
    arm = results["arms"]["fedavg"]
    assert "mass" in arm["left_out"]
    assert not arm["findings"]["mass"]["positives"]
    counts = [
        body_of(a)["described"]["classes"] for _, s, a in both.deployed.transport.carried if kind_of(s) == "facts"
    ]
    assert not [count for classes in counts for count in classes.values() if count is not None and 0 < count < smallest]


def session_of(both: Both, site: str, records: Records) -> Session:
    known, families = load_study(study(arms=ARMS, evaluation=SEEDS), sources=KNOWN)
    load = lambda: own_records(Source(lambda: records), site)  # noqa: E731
    return Session.restore(site, both.site_folder(site), OpenGate(known), families, load)


def test_a_hospital_makes_a_bundle_of_its_own(both: Both, tmp_path: Path) -> None:
    records = radiology.own("alder")
    bundle = load_bundle(bundle_of(session_of(both, "alder", records), arm="fedavg", out=tmp_path / "b", clahe=True))
    assert bundle.classes == FINDINGS
    assert len(bundle.events) == len(FINDINGS)
    assert bundle.inputs.images is not None
    assert bundle.inputs.images.clahe
    table = load_predictions(both.site_folder("alder"))
    assert table is not None
    own = table[(table["arm"] == "fedavg") & (table["seed"] == 1)]
    plain = load_bundle(bundle_of(session_of(both, "alder", records), arm="fedavg", out=tmp_path / "plain"))
    images = np.asarray(records.features)[own["row"].to_numpy()]
    network = predict_images(plain, images)
    scores = [f"score_{name}" for name in FINDINGS]
    np.testing.assert_allclose(network[scores].to_numpy(float), own[scores].to_numpy(float), atol=1e-6)
    card = (tmp_path / "plain" / "card.md").read_text(encoding="utf-8")
    assert "| birch | not known |" in card
    other = replace(records, target=1 - np.abs(records.target))
    with pytest.raises(RunError, match="its rows are not those of the run"):
        bundle_of(session_of(both, "alder", other), arm="fedavg", out=tmp_path / "c")
