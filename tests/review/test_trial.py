"""A simulated trial of two bundles: the formula against statsmodels and against simulation."""

from pathlib import Path

import numpy as np
import pytest
from statsmodels.stats.power import NormalIndPower
from statsmodels.stats.proportion import proportion_effectsize

from tests.review.conftest import rows_of
from wardround.bundles import Bundle, load_bundle, make_bundle, predict_table
from wardround.core.errors import StudyError
from wardround.review.trial import (
    SiteRows,
    TrialSettings,
    patients_needed,
    patients_per_arm,
    power_of,
    simulate_trial,
    standard_error,
    trial_results,
)


def site(name: str, rows: int, first: float, second: float) -> SiteRows:
    right = np.zeros((2, rows), dtype=bool)
    right[0, : round(first * rows)] = right[1, : round(second * rows)] = True
    return SiteRows(name, right)


@pytest.mark.parametrize(("patients", "first", "second"), [(400, 0.7, 0.85), (1000, 0.8, 0.86), (200, 0.6, 0.62)])
def test_the_power_by_formula_is_that_of_simulated_trials(patients: int, first: float, second: float) -> None:
    """Within four standard errors of the simulation, and two points by which the normal distribution may be off."""
    sites = [site("a", 300, first, second), site("b", 100, first - 0.1, second - 0.1)]
    results = trial_results(("A", "B"), sites, TrialSettings(patients, reliance=0.9, skill=0.7, trials=8000))
    power = results["power"]
    assert power["simulated"] == pytest.approx(power["by_formula"], abs=4 * power["simulation_error"] + 0.02)
    assert results["error_of_first_kind"] == pytest.approx(0.05, abs=0.015)


def test_one_site_is_a_test_of_two_shares() -> None:
    """Against statsmodels, which goes by the arcsine of shares: near, where shares are near each other."""
    chances, per_arm = np.array([[0.70, 0.76]]), np.array([500])
    ours = power_of(0.06, standard_error(chances, per_arm))
    theirs = NormalIndPower().power(proportion_effectsize(0.76, 0.70), 500, 0.05)
    assert ours == pytest.approx(theirs, abs=0.01)
    needed = patients_needed(chances, np.array([1.0]), 0.06)
    assert needed is not None
    theirs = NormalIndPower().solve_power(proportion_effectsize(0.76, 0.70), alpha=0.05, power=0.8)
    assert needed / 2 == pytest.approx(theirs, rel=0.03)
    assert power_of(0.06, standard_error(chances, np.array([needed // 2]))) == pytest.approx(0.8, abs=0.005)


def test_no_difference_has_no_power_beyond_chance() -> None:
    results = trial_results(("A", "A"), [site("a", 100, 0.8, 0.8)], TrialSettings(400, trials=4000))
    assert results["power"]["by_formula"] == pytest.approx(0.05)
    assert results["patients_for_power"]["patients"] is None
    assert patients_per_arm(100, [30, 10]).tolist() == [38, 13]


def test_bundles_are_judged_on_the_rows_of_the_files(heart_run: Path, bundle: Bundle, tmp_path: Path) -> None:
    local = load_bundle(make_bundle(heart_run, arm="local", site="hungarian", out=tmp_path / "local"))
    files = []
    for name in ("hungarian", "cleveland"):
        rows_of(name).to_csv(tmp_path / f"{name}.csv", index=False)
        files.append(tmp_path / f"{name}.csv")
    results = simulate_trial(bundle, local, files, truth="outcome", settings=TrialSettings(trials=200))
    for name in ("hungarian", "cleveland"):
        table = rows_of(name)
        expected = [(predict_table(one, table)["predicted"] == table["outcome"]).mean() for one in (bundle, local)]
        assert results["sites"][name]["model_right"] == pytest.approx(expected)
    with pytest.raises(StudyError, match="named twice"):
        simulate_trial(bundle, local, [files[0], files[0]], truth="outcome")
    with pytest.raises(StudyError, match="no probability"):
        TrialSettings(reliance=1.5)
