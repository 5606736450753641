"""What the report says of sites with so few validation rows that nothing could be chosen there."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd

from tests.evaluation.test_uncertainty_results import FEW, ONE, both_sides
from wardround.evaluation.uncertainty.uncertainty_results import describe_arm
from wardround.evaluation.uncertainty.uncertainty_rows import seeds_of
from wardround.report import Evidence
from wardround.report.sections import uncertainty
from wardround.report.sections.uncertainty import uncertainty_at_sites_table
from wardround.study.schema import Uncertainty


def told_of(*sizes: int, too_sure: float = 1.0, alpha: float = 0.1) -> dict[str, Any]:
    """An arm with sites of so many validation rows, and as many test rows."""
    parts = [both_sides(rows=size, too_sure=too_sure).assign(site=f"site-{size}") for size in sizes]
    whole = pd.concat([part.assign(row=part["row"] + 10_000 * place) for place, part in enumerate(parts)])
    described = describe_arm(list(seeds_of(whole, FEW, ensemble=False)), Uncertainty(alpha=alpha), ONE)
    assert described is not None
    return described


def evidence_of(arm_uncertainty: dict[str, Any]) -> Evidence:
    """As much of it as the table of sites looks at."""
    return cast(
        Evidence, SimpleNamespace(uncertainty={"fedavg": arm_uncertainty}, findings=[], classes=["well", "ill"])
    )


def test_it_says_how_many_sites_have_a_temperature() -> None:
    uncertainties = {"fedavg": told_of(400, 25, 20, too_sure=3.0)}
    text = uncertainty._calibrated("fedavg", uncertainties)
    assert "With a temperature at 1 of 3 sites it is" in text
    assert "site-25 and site-20 had too few validation patients for one." in text
    both = told_of(400, 300, too_sure=3.0)
    assert "With a temperature at each site it is" in uncertainty._calibrated("fedavg", {"fedavg": both})
    right = uncertainty._calibrated("fedavg", {"fedavg": told_of(400, 300)})
    assert "That another temperature than 1 would be better is shown at no site, so none was used." in right
    assert "With a temperature" not in uncertainty._calibrated("fedavg", {"fedavg": told_of(25, 20)})


def test_sets_and_referral_that_no_bundle_would_have_are_not_shown() -> None:
    arm_uncertainty = told_of(400, 29, 30)
    assert [uncertainty.has_cuts(arm_uncertainty, f"site-{size}") for size in (400, 29, 30)] == [True, False, True]
    assert "site-29 had fewer than 30 validation rows" in uncertainty._without_cuts("fedavg", arm_uncertainty)
    assert uncertainty._without_cuts("fedavg", told_of(400, 30)) == ""
    site_table = uncertainty_at_sites_table(evidence_of(arm_uncertainty))
    place = [column.partition(",")[0] for column in site_table.columns].index("sets hold")
    shown = {row[1]: row[place] for row in site_table.rows}
    assert shown["site-29"] in (None, "", "-", "–")
    assert shown["site-400"] not in (None, "", "-", "–")
    assert not np.isnan(arm_uncertainty["sets"]["coverage"])


def test_calls_that_were_added_to_their_sets_are_told_of_where_there_are_any() -> None:
    """At 60 % few scores fit both answers, and some fit neither: calls near one half are then added."""
    added, usual = told_of(400, alpha=0.4), told_of(400)
    share = added["sets"]["prediction_added"] + added["sets"]["empty"]
    text = uncertainty._sets(evidence_of(added), "fedavg", added)
    assert share > 0
    assert f"In {100 * share:.1f} % of sets the score would have ruled out the call itself; it was added" in text
    assert usual["sets"]["prediction_added"] + usual["sets"]["empty"] == 0
    assert "was added" not in uncertainty._sets(evidence_of(usual), "fedavg", usual)
    for arm_uncertainty in (added, usual):
        at, sets = arm_uncertainty["referral"]["at"], arm_uncertainty["sets"]
        assert sets["single"] + sets["multiple"] == 1
        assert at["referred"] >= max(at["reasons"].values())
        assert at["reasons"]["call-added"] == sets["prediction_added"]  # of two classes a row has one call
        assert at["reasons"]["no-answer-fits"] == sets["empty"]
