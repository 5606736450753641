"""What an attack found stands in the report, and a claim that it disproved stands above everything."""

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from wardround.core.errors import RunError
from wardround.report import answer
from wardround.report.evidence import Evidence, read_attack
from wardround.report.sections import SECTIONS
from wardround.report.sections.privacy.attacks import (
    attack_sentences,
    audit_table,
    failed_audit_sentences,
    inversion_table,
    membership_table,
)
from wardround.runs.folder import RunFolder

RESULTS: dict[str, Any] = {"study": {"hash": "abc"}}


def audit(site: str, bound: float, claim: float = 8.0, limit: float = 10.0) -> dict[str, Any]:
    result = {"site": site, "claim": claim, "bound": bound, "limit": limit, "delta": 1e-5, "draws": 20000}
    return {**result, "holds": bound <= claim, "can_fail": limit > claim}


def measured(auc: float) -> dict[str, Any]:
    caught = [{"false_alarms": 0.01, "share": 0.125, "interval": [0.1, 0.2]}]
    return {
        "auc": auc,
        "interval": [auc - 0.05, auc + 0.05],
        "members": 80,
        "others": 20,
        "caught": caught,
        "sites": {},
    }


ATTACK: dict[str, Any] = {
    "schema": 1,
    "study": {"name": "private", "hash": "abc"},
    "quick": False,
    "arms": {"open": {"epsilon": None}, "closed": {"epsilon": 8.0}, "alone": {"epsilon": None}},
    "canary": {"closed": [audit("north", 3.5), audit("south", 7.25)]},
    "membership": {
        "open": {"threshold": measured(0.7), "likelihood_ratio": {"shadows": 8, **measured(0.9)}},
        "closed": {"threshold": measured(0.52)},
        "alone": {"note": "not attacked: some sites do not train in this arm"},
    },
    "inversion": {
        "candidates": 100,
        "arms": {
            "open": {"method": "quotient", "without": {"recovered": 4, "recognised": 5, "of": 5}, "with": None},
            "closed": {
                "method": "search",
                "without": {"recovered": 4, "recognised": 5, "of": 5},
                "with": {"recovered": 0, "recognised": 1, "of": 5},
            },
            "alone": {"note": "no update leaves a site in this arm"},
        },
    },
    "passed": True,
}


def evidence_of(**changed: Any) -> Evidence:
    return Evidence(RESULTS, {}, {}, attack={**copy.deepcopy(ATTACK), **changed})


def test_the_claim_stands_beside_the_bound() -> None:
    evidence = evidence_of()
    assert failed_audit_sentences(evidence) == []
    text = " ".join(attack_sentences(evidence))
    assert "in 2 of 2 cases" in text
    assert "Closest to it: closed at south, at least 7.25 shown, 8 claimed (delta 1e-05)." in text
    table = audit_table(evidence)
    assert table is not None
    assert [[*row[2:4], row[-1]] for row in table.rows] == [[8.0, 3.5, "not refuted"], [8.0, 7.25, "not refuted"]]


def test_a_failed_audit_is_said_by_arm_and_site_and_above_all_else() -> None:
    evidence = evidence_of(canary={"closed": [audit("north", 9.5), audit("south", 2.0)]}, passed=False)
    (sentence,) = failed_audit_sentences(evidence)
    assert sentence.startswith("THE AUDIT FAILED")
    assert "closed at north (at least 9.50, claimed 8)" in sentence
    assert "south" not in sentence
    table = audit_table(evidence)
    assert table is not None
    assert [row[-1] for row in table.rows] == ["FAILED", "not refuted"]


def test_a_claim_that_no_attack_could_have_disproved_is_said_to_be_so() -> None:
    evidence = evidence_of(canary={"closed": [audit("north", 2.0, claim=50.0)]})
    assert "In closed the claim is so large" in " ".join(attack_sentences(evidence))
    table = audit_table(evidence)
    assert table is not None
    assert table.rows[0][-1] == "not refuted, and could not have been"


def test_rebuilt_rows_and_found_members_with_protection_and_without() -> None:
    evidence = evidence_of()
    text = " ".join(attack_sentences(evidence))
    assert (
        "From one update without protection, 4 of 5 patients' rows were rebuilt; from updates with noise, 0 of 5."
        in text
    )
    assert "Whose row it was, of 100, showed in 5 of 5 unprotected updates and in 1 of 5 with noise." in text
    assert "an AUC of 0.90 without differential privacy (open) and 0.52 with it (closed); 0.5 is a guess" in text
    exposed = copy.deepcopy(ATTACK["inversion"])
    exposed["arms"]["closed"]["with"]["recovered"] = 2
    assert "from updates with noise, 2 of 5 (closed)." in " ".join(attack_sentences(evidence_of(inversion=exposed)))
    rebuilt, members = inversion_table(evidence), membership_table(evidence)
    assert rebuilt is not None
    assert members is not None
    assert rebuilt.rows == [
        ["open", None, "in closed form", 5, 5, None, 4, None],
        ["closed", 8.0, "by search", 5, 5, 1, 4, 0],
    ]
    assert [row[:4] for row in members.rows] == [
        ["open", None, "by the loss", 0.7],
        ["open", None, "by shadow models", 0.9],
        ["closed", 8.0, "by the loss", 0.52],
    ]
    assert members.columns[-1] == "found at 1 % false alarms"
    assert members.rows[0][-1] == 0.125


@pytest.mark.parametrize("kind", ["canary", "membership", "inversion"])
def test_attacks_that_were_not_made_leave_no_words(kind: str) -> None:
    bare = {key: value for key, value in ATTACK.items() if key not in ("canary", "membership", "inversion")}
    evidence = Evidence(RESULTS, {}, {}, attack={**bare, kind: ATTACK[kind]})
    assert len(attack_sentences(evidence)) == 2  # that it was attacked, and what this kind found
    assert attack_sentences(replace(evidence, attack=bare)) == ["The run was attacked with `wardround attack`."]
    assert not SECTIONS["privacy.attacks"](replace(evidence, attack=None))


def test_the_file_is_read_and_another_studys_or_versions_is_refused(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert read_attack(folder, RESULTS) is None
    (tmp_path / "attack.json").write_text(json.dumps(ATTACK))
    assert read_attack(folder, RESULTS) == ATTACK
    with pytest.raises(RunError, match="of another study"):
        read_attack(folder, {"study": {"hash": "other"}})
    for broken in ({**ATTACK, "schema": 99}, {"schema": 1}, [1]):
        (tmp_path / "attack.json").write_text(json.dumps(broken))
        with pytest.raises(RunError, match="another version"):
            read_attack(folder, RESULTS)


def test_the_page_is_red_on_top(tmp_path: Path) -> None:
    """The sentence is the first of page one, in a class of its own."""
    import wardround
    from tests.report.test_report import small

    run = wardround.run_study(
        small("red", training={"rounds": 1}, evaluation={"seeds": {"count": 1}, "reference": "fedavg"}), tmp_path
    )
    broken = {**ATTACK, "study": run.results["study"], "canary": {"fedavg": [audit("va", 9.5)]}, "passed": False}
    (run.folder / "attack.json").write_text(json.dumps(broken))
    (run.folder / "figures").mkdir(exist_ok=True)
    (run.folder / "figures" / "attack_inversion.svg").write_text(
        '<?xml version="1.0"?><svg><g id="a"/><use href="#a"/></svg>'
    )
    html = wardround.build_report(run.folder).read_text(encoding="utf-8")
    first = html.index('<section id="front">')
    assert html[first:].startswith('<section id="front">\n<p class="failed" role="alert">THE AUDIT FAILED')
    assert html.count("THE AUDIT FAILED") == 2
    assert 'id="table-audit"' in html
    assert 'id="figure-attack-1"' in html
    assert "Patients&#39; rows that were rebuilt from an update" in html
    assert '<g id="attack_inversion-a"/><use href="#attack_inversion-a"/>' in html
    evidence = Evidence(run.results, {"evaluation": {"reference": "fedavg"}}, {}, attack=broken)
    assert answer(evidence)[0].startswith("THE AUDIT FAILED")
