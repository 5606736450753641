"""A shared part whose patients are protected: what it tells, and what a newcomer's bundle may hold."""

from pathlib import Path

import pytest

from tests.adaptation.conftest import OTHERS, SHARED, hearts
from wardround import load_bundle
from wardround.adaptation.adapt import adapt
from wardround.bundles import load_shared, make_shared
from wardround.bundles.bundle import Event
from wardround.runs.execute import run_study


@pytest.fixture(scope="module")
def protected(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("private")
    data = {"source": "heart", "hospitals": list(OTHERS), "schema": "own"}
    public = {"scale": "ranges", "missing": "range", "public": True}
    study = hearts(
        data={**data, **public},
        privacy={"example": {"epsilon": 4.0, "delta": 1e-4, "clip": 1.0}},
        arms=[{"name": "fedavg", "algorithm": "fedavg"}],
        evaluation={"seeds": {"first": 5, "count": 1}, "validation_share": 0.2, "every": 0},
    )
    return make_shared(run_study(study, folder).folder, arm="fedavg", out=folder / "part")


def test_it_reports_what_was_promised_and_spent(protected: Path) -> None:
    part = load_shared(protected)
    assert set(part.leaves) == SHARED
    privacy = part.about["privacy"]
    assert (privacy["example"]["epsilon"], privacy["guarantee"]) == (4.0, False)
    assert set(privacy["spent"]) == set(OTHERS)
    for spent in privacy["spent"].values():
        assert 0 < spent["epsilon"] <= 4.0


def test_the_newcomers_bundle_says_that_its_adapter_has_no_noise(
    protected: Path, hospital: Path, tmp_path: Path
) -> None:
    """Threshold, calibration and far rows are as in every bundle of a private study: nothing is read off patients."""
    result = adapt(protected, hospital, out=tmp_path / "va", repeats=2, epochs=2)
    bundle = load_bundle(result.bundle)
    assert bundle.about["private"]
    assert (bundle.events, bundle.out_of_distribution.kind) == ((Event(0.5, None),), "ranges")
    card = (result.bundle / "card.md").read_text(encoding="utf-8")
    assert "protects each patient of the hospitals that it was trained at (epsilon 4 at delta 0.0001" in card
    assert "trained without noise, so this bundle must not leave va" in card
    assert "no privacy was spent" not in card
    assert "promises each patient privacy" not in card
    assert "patients of va are not protected by it" in card
    assert "patients are protected" not in card
    assert "## Privacy" not in card  # which would speak of this hospital's patients
