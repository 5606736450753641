"""A coordinator, or a hospital, that would choose who is in a group with whom: refused, with the reason."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.deployment.forging import changed
from tests.deployment.grouped_federation import GROUPS, KNOWN, SITES, begin, grouped
from tests.deployment.in_process_federation import Federation, OpenGate, body_of, key, kind_of, public, reason_in
from wardround.core.errors import DeployError, StudyError
from wardround.deployment import refuse_undeployable
from wardround.deployment.flat.group_draw import Drawing, drawn_seed
from wardround.deployment.flat.site_draw import SiteDraw
from wardround.deployment.governance.plain_words import in_plain_words
from wardround.deployment.governance.policy import Policy, objections
from wardround.privacy.secure_sum.groups import draw_groups
from wardround.protocol.catalogue import Commitment, Draw
from wardround.protocol.messages import Sealed
from wardround.runs.catalog import load_study
from wardround.study.schema import Study

PEERS = {site: public(site) for site in SITES}


def a_study() -> Study:
    return load_study(grouped(), sources=KNOWN)[0]


def draws(folder: Path, sites: tuple[str, ...] = SITES) -> dict[str, SiteDraw]:
    study = a_study()
    return {site: SiteDraw(study, site, list(sites), folder / f"{site}.jsonl") for site in sites}


def committed(by_site: Mapping[str, SiteDraw]) -> dict[str, Commitment]:
    return {site: draw.commit(key(site)) for site, draw in by_site.items()}


def test_honest_sites_draw_the_same_and_each_of_them_decides_it(tmp_path: Path) -> None:
    seeds = set()
    for number in range(3):
        by_site = draws(tmp_path / str(number))
        commitments = committed(by_site)
        numbers = {site: draw.open(commitments, PEERS) for site, draw in by_site.items()}
        drawn = Draw(commitments=commitments, numbers=numbers)
        [seed] = {draw.seed(drawn) for draw in by_site.values()}
        seeds.add(seed)
        assert drawn_seed(a_study(), SITES, drawn) == seed
    assert len(seeds) == 3


def test_a_number_stays_after_a_restart_and_in_the_next_run(tmp_path: Path) -> None:
    first = draws(tmp_path)["elm"].commit(key("elm")).commitment
    assert draws(tmp_path)["elm"].commit(key("elm")).commitment == first
    assert draws(tmp_path, SITES[:6])["elm"].commit(key("elm")).commitment != first


def forged(commitments: dict[str, Commitment], drawing: Drawing) -> dict[str, Commitment]:
    """The coordinator's number in the name of another hospital."""
    return {**commitments, "gum": drawing.commit("gum", "00" * 32, key("coordinator"))}


TO_OPEN: dict[str, tuple[Callable[[dict[str, Commitment], Drawing], dict[str, Commitment]], str]] = {
    "another's commitment, not signed by it": (forged, "a commitment that gum has not signed"),
    "a hospital less": (lambda known, _: {s: c for s, c in known.items() if s != "gum"}, "of all hospitals"),
    "a hospital more": (lambda known, _: {**known, "oak": known["gum"]}, "of all hospitals, and of no other"),
    "one hospital's commitment as another's": (lambda known, _: {**known, "gum": known["fir"]}, "gum has not signed"),
    "another commitment of its own": (
        lambda known, drawing: {**known, "alder": drawing.commit("alder", "11" * 32, key("alder"))},
        "another commitment than this hospital's",
    ),
    "an odd signature": (
        lambda known, _: {**known, "gum": Commitment(commitment=known["gum"].commitment, signature="abc")},
        "gum has not signed",
    ),
}


@pytest.mark.parametrize("what", TO_OPEN)
def test_a_number_is_told_only_to_whom_has_the_commitments_of_all(what: str, tmp_path: Path) -> None:
    by_site = draws(tmp_path)
    change, problem = TO_OPEN[what]
    with pytest.raises(DeployError, match=problem):
        by_site["alder"].open(change(committed(by_site), by_site["alder"].drawing), PEERS)


def test_a_second_draw_of_the_same_study_is_refused(tmp_path: Path) -> None:
    """A hospital that changes its number when it has seen the others': its accomplices may, the honest ones stop."""
    by_site = draws(tmp_path)
    first = committed(by_site)
    by_site["alder"].open(first, PEERS)
    again = {**first, "gum": by_site["gum"].drawing.commit("gum", "22" * 32, key("gum"))}
    with pytest.raises(DeployError, match="drawn with other commitments before"):
        draws(tmp_path)["alder"].open(again, PEERS)


def test_numbers_that_nobody_committed_to_are_refused(tmp_path: Path) -> None:
    by_site = draws(tmp_path)
    commitments = committed(by_site)
    numbers = {site: draw.open(commitments, PEERS) for site, draw in by_site.items()}
    for wrong, problem in (
        (Draw(commitments=commitments, numbers={**numbers, "gum": "33" * 32}), "to which gum has not committed"),
        (Draw(commitments=commitments, numbers={s: n for s, n in numbers.items() if s != "gum"}), "of all hospitals"),
        (None, "does not say how the groups"),
    ):
        with pytest.raises(DeployError, match=problem):
            by_site["alder"].seed(wrong)
    mine = by_site["gum"].drawing.commit("gum", "44" * 32, key("coordinator"))
    other = Draw(commitments={**commitments, "gum": mine}, numbers={**numbers, "gum": "44" * 32})
    with pytest.raises(DeployError, match="other numbers than those"):
        by_site["alder"].seed(other)


def test_a_sum_over_another_group_is_refused_by_the_site(tmp_path: Path) -> None:
    """While the run goes on: alder is asked for sums with other hospitals, by a coordinator that signs what it asks."""
    network = begin(tmp_path, grouped(training={"rounds": 1}))
    reasons: dict[str, str] = {}

    def after(site: str, sealed: Sealed, answer: Sealed) -> Sealed:
        if (site, kind_of(sealed)) == ("alder", "keys") and not reasons:
            mine = body_of(sealed)["sum"]["roster"]
            for name, roster in rosters(mine).items():
                network.restart_site(site)

                def ask(body: dict[str, Any], _: object, roster: list[str] = roster) -> None:
                    body["sum"]["roster"] = roster

                asked = changed(sealed, "coordinator", ask)
                no = body_of(network.transport.sites[site].answer(asked))
                reasons[name] = str(no["reason"] if "reason" in no else reason_in(no))
        return answer

    network.transport.after = after
    network.run()
    assert "other groups were drawn" in reasons["one of the other group as well"]
    assert "other groups were drawn" in reasons["one of the other group in place of one"]
    assert "other groups were drawn" in reasons["everybody"]
    assert "where the study needs" in reasons["two of its own"]
    model = network.folder.load_model("fedprox", 3)  # the honest coordinator's round was not harmed
    assert model


def rosters(mine: list[str]) -> dict[str, list[str]]:
    others = [site for site in SITES if site not in mine]
    return {
        "one of the other group as well": sorted([*mine, others[0]]),
        "one of the other group in place of one": sorted([*(s for s in mine if s != mine[-1]), others[0], "alder"]),
        "everybody": list(SITES),
        "two of its own": mine[:2] if "alder" in mine[:2] else ["alder", next(s for s in mine if s != "alder")],
    }


def test_other_numbers_in_the_agreement_are_refused_by_the_site(tmp_path: Path) -> None:
    network = begin(tmp_path, grouped(training={"rounds": 1}))
    reasons: list[str] = []

    def after(site: str, sealed: Sealed, answer: Sealed) -> Sealed:
        if (site, kind_of(sealed)) == ("alder", "prepare") and not reasons:
            changes: list[Callable[[dict[str, Any]], Any]] = [
                lambda body: body["draw"]["numbers"].update(gum="55" * 32),
                lambda body: body.pop("draw"),
            ]
            for change in changes:

                def ask(body: dict[str, Any], _: object, change: Callable[[dict[str, Any]], Any] = change) -> None:
                    change(body)

                asked = changed(sealed, "coordinator", ask)
                no = body_of(network.transport.sites[site].answer(asked))
                reasons.append(str(no["reason"] if "reason" in no else reason_in(no)))
        return answer

    network.transport.after = after
    network.run()
    assert "to which gum has not committed" in reasons[0]
    assert "does not say how the groups" in reasons[1]


def test_a_policy_counts_the_hospitals_of_the_smallest_group() -> None:
    study = a_study()
    assert not objections(Policy(smallest_cell=1, least_sites=3), study, "alder", list(SITES))
    [problem] = objections(Policy(smallest_cell=1, least_sites=4), study, "alder", list(SITES))
    assert "averages 3 in a round" in problem


def test_groups_that_a_gate_finds_too_small_have_no_sum(tmp_path: Path) -> None:
    class Strict(OpenGate):
        def least_sites(self) -> int:
            return 5

    study = grouped(training={"rounds": 1})
    gates = {"alder": Strict(load_study(study, sources=KNOWN)[0])}
    network: Federation = begin(tmp_path, study, gates)
    with pytest.raises(DeployError):
        network.run()
    said = " ".join(network.lines)
    assert "fewer than the 5 that alder demands" in said


def test_sizes_of_groups_are_what_the_study_says() -> None:
    drawn = draw_groups(123, SITES, GROUPS)
    assert sorted(drawn.count(group) for group in range(GROUPS)) == [3, 4]


def test_a_hospitals_people_are_told_of_groups_before_they_approve() -> None:
    text = " ".join(in_plain_words(a_study(), SITES))
    assert "hospitals form 2 groups" in text
    assert "hidden among those of its group alone" in text


def test_groups_that_are_too_small_are_refused_before_kits_are_made() -> None:
    with pytest.raises(StudyError, match="2 groups of 5 sites have 2 in the smallest"):
        refuse_undeployable(a_study(), list(SITES[:5]))
