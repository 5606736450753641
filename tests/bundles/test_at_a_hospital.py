"""A bundle at a hospital that took part in a deployed run: the same model and preparation as a simulation gives."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.cli.test_commands import wardround
from tests.deployment import hospital_files as hospitals
from tests.deployment import private_studies as protected
from tests.deployment.in_process_federation import OpenGate, own_records
from tests.deployment.parity import KNOWN, Both, deploy
from tests.representatives import represented
from wardround.bundles import load_bundle, make_bundle
from wardround.bundles.bundle import Event
from wardround.core.errors import BundleError, DeployError, RunError, StudyError
from wardround.data.records import Column, Records
from wardround.deployment import make_site_bundle
from wardround.deployment.common.deployed_plan import in_agreed_columns
from wardround.deployment.flat import site_bundle as sitebundle
from wardround.deployment.flat.site_bundle import bundle_of
from wardround.deployment.flat.site_session import Session
from wardround.privacy.dp.accountant import epsilon
from wardround.runs.catalog import load_study
from wardround.runs.execute import run_study
from wardround.runs.ledger import charges_of

DOCUMENT: dict[str, Any] = hospitals.study(
    [
        {"name": "fedavg", "algorithm": "fedavg"},
        {"name": "local", "algorithm": "local"},
        {"name": "some", "algorithm": "fedprox", "train_at": ["alder", "cedar"]},
        {"name": "network", "algorithm": "fedavg", "model": {"kind": "mlp", "hidden": [4]}},
    ],
    evaluation={"seeds": {"first": 3, "count": 2}, "validation_share": 0.2, "threshold": 0.5, "test_share": 0.3},
)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return deploy(DOCUMENT, tmp_path_factory.mktemp("deployed"))


def session_of(both: Both, site: str, document: Mapping[str, Any] = DOCUMENT) -> Session:
    """As another process finds it, after the run."""
    study, families = load_study(document, sources=KNOWN)
    source = hospitals.at_sites()[site]
    load = lambda: own_records(source(), site)  # noqa: E731
    return Session.restore(site, both.site_folder(site), OpenGate(study), families, load)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    document = {**DOCUMENT, "sites": {"partition": "by-hospital"}}
    return run_study(document, tmp_path_factory.mktemp("runs"), sources=KNOWN, engine="serial").folder


@pytest.mark.parametrize(
    ("site", "arm"),
    represented(
        [("alder", "fedavg"), ("birch", "fedavg"), ("dogwood", "local"), ("birch", "some"), ("cedar", "network")],
        by=[("alder", "fedavg"), ("cedar", "network")],
    ),
)
def test_the_same_weights_preparation_and_choices_as_in_a_simulation(
    both: Both, simulated: Path, tmp_path: Path, site: str, arm: str
) -> None:
    here = load_bundle(bundle_of(session_of(both, site), arm=arm, seed=4, out=tmp_path / "here"))
    there = load_bundle(make_bundle(simulated, arm=arm, site=site, seed=4, out=tmp_path / "there", sources=KNOWN))
    for name in ("weights.safetensors", "vocabulary.json"):
        assert (here.path / name).read_bytes() == (there.path / name).read_bytes(), name
    assert here.recipe.names == there.recipe.names
    assert dict(here.recipe.fit.fill) == dict(there.recipe.fit.fill)
    assert np.array_equal(here.recipe.fit.centre, there.recipe.fit.centre)
    for key in (
        "threshold",
        "calibration",
        "out_of_distribution",
        "classes",
        "features",
        "rows",
        "model",
        "seed",
        "site",
    ):
        assert here.about[key] == there.about[key], key
    assert here.unrecorded == {"alder": (), "birch": ("lab",), "cedar": (), "dogwood": ("stage",)}[site]


def test_the_card_says_what_the_hospital_knows_and_no_more(both: Both, simulated: Path, tmp_path: Path) -> None:
    here = load_bundle(bundle_of(session_of(both, "cedar"), arm="fedavg", out=tmp_path / "here")).about["card"]
    there = load_bundle(make_bundle(simulated, arm="fedavg", site="cedar", out=tmp_path / "there", sources=KNOWN))
    expected = there.about["card"]
    figures, others = here["figures"]["this_site"], expected["figures"]["this_site"]
    assert set(figures) == set(others)
    for metric, figure in figures.items():  # a simulation stacks sites, which rounds the last digit otherwise
        assert figure["mean"] == pytest.approx(others[metric]["mean"], abs=1e-5), metric
        assert figure["seeds"] == others[metric]["seeds"]
    assert here["figures"]["interval"] == expected["figures"]["interval"]
    assert here["figures"]["all_sites"] is None
    own = expected["training"]["sites"]["cedar"]
    assert here["training"]["sites"] == {"alder": None, "birch": None, "cedar": own, "dogwood": None}
    text = (tmp_path / "here" / "card.md").read_text()
    assert "| alder | not known |" in text
    assert "across hospitals" in text
    assert "all sites" not in text


def test_arms_and_seeds_that_are_not_there(both: Both, tmp_path: Path) -> None:
    session = session_of(both, "alder")
    with pytest.raises(StudyError, match="no arm 'fedavgg'"):
        bundle_of(session, arm="fedavgg", out=tmp_path / "x")
    with pytest.raises(StudyError, match="no seed 9"):
        bundle_of(session, arm="fedavg", seed=9, out=tmp_path / "x")
    session.folder = tmp_path / "begun"
    with pytest.raises(BundleError, match="has no predictions yet"):
        bundle_of(session, arm="fedavg", out=tmp_path / "x")
    session.waves = []
    with pytest.raises(BundleError, match="have not agreed yet"):
        bundle_of(session, arm="fedavg", out=tmp_path / "x")
    assert list(tmp_path.iterdir()) == []


def test_columns_are_called_as_the_hospitals_own_file_calls_them(both: Both) -> None:
    """Sites agree without telling each other headers, spellings, and what stands for a gap."""
    records = session_of(both, "alder").records
    words = (("m", "medical"),)
    own = {
        "age": Column("age", header="Alter", dates=True, missing_codes=(-1.0,)),
        "ward": Column("ward", "categorical", header="Station", words=words),
    }
    here: Records = replace(records, columns=tuple(own.get(c.name, c) for c in records.columns))
    agreed = {column.name: column for column in in_agreed_columns(here, hospitals.COLUMNS).columns}
    assert (agreed["age"].own_name, agreed["age"].dates, agreed["age"].missing_codes) == ("Alter", True, (-1.0,))
    assert agreed["age"].limits == (0, 120)  # which all agreed on
    assert (agreed["ward"].own_name, agreed["ward"].words) == ("Station", words)
    assert agreed["dose"].own_name == "dose"


def test_the_command_needs_the_site_file_and_its_own_site(
    both: Both, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = both.site_folder("alder")
    missing = wardround("bundle", state, "--arm", "fedavg", cwd=tmp_path)
    assert (missing.returncode, "there is no site file" in missing.stderr) == (DeployError.exit_code, True)
    file = tmp_path / "site.toml"
    file.touch()

    class Own:
        name, data = "alder", {"source": "wards"}

        @classmethod
        def load(cls, path: Path) -> "Own":
            assert path == file
            return cls()

    study, families = load_study(DOCUMENT, sources=KNOWN)
    monkeypatch.setattr(sitebundle, "SiteFile", Own)
    monkeypatch.setattr(sitebundle, "known_families", lambda: families)
    monkeypatch.setattr(sitebundle, "SiteGate", lambda own, families: OpenGate(study))
    source = hospitals.at_sites()["alder"]
    opened = type("Opened", (), {"load": staticmethod(lambda: own_records(source(), "alder"))})
    monkeypatch.setattr(sitebundle, "open_source", lambda own, families: opened)
    with pytest.raises(StudyError, match="this is the folder of 'alder'"):
        make_site_bundle(state, arm="fedavg", site="birch", site_file=file)
    done = wardround("bundle", state, "--arm", "fedavg", "--site-file", file, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert load_bundle(tmp_path / "bundles" / "wards-fedavg-alder").about["run"] == state.name
    monkeypatch.setattr(sitebundle, "SiteGate", lambda own, families: OpenGate(None))
    with pytest.raises(DeployError, match="not approved here"):
        make_site_bundle(state, arm="fedavg", site_file=file, out=tmp_path / "x")


def test_predictions_here_are_those_of_the_run(both: Both, tmp_path: Path) -> None:
    """A bundle is refused where the predictions that the run left here are others."""
    session = session_of(both, "birch")
    folder = session.folder / "predictions"
    [part] = sorted(folder.glob("*.parquet"))
    whole = part.read_bytes()
    table = pd.read_parquet(part)
    try:
        table.assign(score=1 - table["score"]).to_parquet(part)
        with pytest.raises(BundleError, match="differ from those in the run"):
            bundle_of(session, arm="fedavg", out=tmp_path / "x")
    finally:
        part.write_bytes(whole)
    assert list(tmp_path.iterdir()) == []


def changed(session: Session, change: Callable[[Records], Records]) -> Session:
    """As another process finds it after the hospital's file was changed."""
    records = change(session.records)
    return Session.restore(session.site, session.folder, session.gate, session.families, lambda: records)


def other_outcomes(records: Records) -> Records:
    target = records.target.copy()
    target[::3] = 1 - target[::3]
    return replace(records, target=target)


def other_values(records: Records) -> Records:
    assert isinstance(records.features, pd.DataFrame)
    older = np.where(np.arange(len(records)) % 2, 0, 7)
    return replace(records, features=records.features.assign(age=records.features["age"] + older))


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (other_outcomes, RunError),
        (lambda records: records.take(np.arange(len(records) - 20)), RunError),
        (lambda records: records.take([*range(len(records)), *range(3)]), RunError),
        (other_values, BundleError),
    ],
)
def test_a_file_that_was_changed_since_the_run_is_said_to_be(
    both: Both, tmp_path: Path, change: Callable[[Records], Records], kind: type[Exception]
) -> None:
    session = changed(session_of(both, "cedar"), change)
    with pytest.raises(kind, match="its file was changed since") as caught:
        bundle_of(session, arm="fedavg", out=tmp_path / "x")
    assert "--again" not in str(caught.value)
    assert "Bring the file back as it was" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_private_arm_shows_what_the_hospitals_own_ledger_charged(tmp_path: Path) -> None:
    document = protected.private(evaluation={"seeds": {"first": 3, "count": 2}, "validation_share": 0.2})
    network = protected.begin(tmp_path, document)
    network.run()
    study, families = load_study(document, sources=protected.KNOWN)
    [folder] = [path for path in (tmp_path / "sites" / "cedar").iterdir() if path.is_dir()]
    load = lambda: own_records(protected.sources()["cedar"](), "cedar")  # noqa: E731
    session = Session.restore("cedar", folder, OpenGate(study), families, load)
    bundle = load_bundle(bundle_of(session, arm="fedprox", seed=4, out=tmp_path / "bundle"))
    assert (bundle.events, bundle.out_of_distribution.kind) == ((Event(0.5, None),), "ranges")
    entries = [entry for entry in protected.ledger(tmp_path, "cedar") if entry.seed == 4]
    spent = bundle.about["card"]["privacy"]["spent"]
    assert spent == {"epsilon": epsilon(charges_of(entries), 1e-5), "delta": 1e-5, "rounds": len(entries)}
    assert 0 < spent["epsilon"] <= 2.0
    assert bundle.about["card"]["privacy"]["guarantee"] is True
    assert bundle.about["card"]["privacy"]["spent_by_the_whole_run"]["epsilon"] > spent["epsilon"]
    assert "No guarantee" not in (bundle.path / "card.md").read_text()
    # a single value that no test row shows is enough where the ledger has the fingerprint of all rows
    assert isinstance(session.records.features, pd.DataFrame)
    table = session.records.features.copy()
    trained = np.setdiff1d(np.arange(len(table)), session.plan.splits(study.arm("fedprox"), 4)[0].test)[0]
    table.iloc[trained, 0] += 1
    other = changed(session, lambda records: replace(records, features=table))
    with pytest.raises(RunError, match="its file was changed since"):
        bundle_of(other, arm="fedprox", seed=4, out=tmp_path / "other")
