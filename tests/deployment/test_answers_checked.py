"""What a hospital says of itself is checked whole before anything keeps it; who said it is decided by the signature.

The suite in tests/hostile tries hundreds of answers; here stand the facts that must hold, each by itself.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.deployment.forging import forge
from tests.deployment.hospital_files import at_sites, study
from tests.deployment.in_process_federation import Federation, body_of, federation, kind_of
from tests.deployment.parity import KNOWN
from tests.deployment.test_hostile_ends import forged
from tests.noticed import noticed
from tests.representatives import represented
from wardround.core.errors import DeployError
from wardround.core.tree import Tree
from wardround.deployment.site.answering import failure
from wardround.protocol.messages import Sealed
from wardround.protocol.text import is_plain, plain_text
from wardround.report import participation_sentence

SITES = ("alder", "birch", "cedar")
Change = Callable[[dict[str, Any], Tree], None]


def begin(folder: Path, quorum: int | None = 2, arms: list[Any] | None = None, **changes: Any) -> Federation:
    deployment = {"smallest_cell": 1} | ({"quorum": quorum, "deadline": 1.0} if quorum else {})
    content = study(
        arms or [{"algorithm": "fedavg"}], data={"hospitals": list(SITES)}, deployment=deployment, **changes
    )
    return federation(content, folder, at_sites(SITES), known_sources=KNOWN)


def lies(network: Federation, kind: str, change: Change, site: str = "cedar", round_number: int | None = None) -> None:
    """One hospital answers one kind of question with something else, validly signed."""

    def after(name: str, sealed: Sealed, answer: Sealed) -> Sealed:
        due = round_number is None or body_of(sealed).get("round") == round_number
        return forged(answer, name, change) if name == site and kind_of(sealed) == kind and due else answer

    network.transport.after = after


def results(network: Federation) -> dict[str, Any]:
    content: dict[str, Any] = network.folder.read_json("results.json")
    return content


def summary_of(body: dict[str, Any]) -> dict[str, Any]:
    summary: dict[str, Any] = body["summaries"]["0"]["test"]
    return summary


def put(**values: Any) -> Change:
    return lambda body, tensors: summary_of(body).update(values)


@pytest.mark.parametrize(
    "values",
    represented([{"site": "alder"}, {"arm": "other"}, {"seed": 99}, {"subset": "validation"}], by=[{"site": "alder"}]),
)
def test_a_hospital_cannot_write_anothers_results(values: dict[str, Any], tmp_path: Path) -> None:
    honest = begin(tmp_path / "honest")
    honest.run()
    network = begin(tmp_path / "forged")
    lies(network, "evaluate", put(**values))
    network.run()
    name = next(iter(values))
    assert any(line.startswith("cedar: sent an answer that cannot be used") and name in line for line in network.lines)
    figures, expected = results(network)["arms"]["fedavg"]["sites"], results(honest)["arms"]["fedavg"]["sites"]
    assert set(figures) == {"alder", "birch"}
    assert all(figures[site] == expected[site] for site in figures)


IMPOSSIBLE_FIGURES: list[tuple[Change, str]] = [
    (put(rows=-5), "rows"),
    (put(rows=17), "a number of rows other than agreed"),
    (put(rows=True), "rows"),
    (put(rows=16.5), "rows"),
    (lambda body, tensors: summary_of(body)["metrics"].update(accuracy=0.94), "accuracy that contradicts"),
    (lambda body, tensors: summary_of(body)["metrics"].update(auc=1.5), "auc"),
    (lambda body, tensors: summary_of(body)["sums"]["confusion"][0].update(tp=9), "do not add up to the rows"),
    (lambda body, tensors: summary_of(body)["histogram"][0].pop(), "a histogram that does not add up"),
    (lambda body, tensors: summary_of(body)["histogram"][0][0].update(score_sum=99.0), "outside its cells"),
    (lambda body, tensors: summary_of(body).pop("sums"), "no sums"),
    (lambda body, tensors: body["summaries"].clear(), "figures of other models"),
    (lambda body, tensors: body.update(figures={"0": None}), "figures"),
    (lambda body, tensors: body.update(figures={"0": {"test": {}}}), "figures"),
    (lambda body, tensors: body["figures"]["0"]["test"].update(rows="many"), "figures"),
    (lambda body, tensors: body["figures"]["0"]["test"].update(rows=15), "rows other than agreed"),
]


@pytest.mark.parametrize(
    ("change", "problem"),
    represented(IMPOSSIBLE_FIGURES, by=[IMPOSSIBLE_FIGURES[number] for number in (1, 4, 6, 7, 10, 14)]),
)
def test_impossible_figures_are_refused_and_their_sender_named(change: Change, problem: str, tmp_path: Path) -> None:
    network = begin(tmp_path)
    lies(network, "evaluate", change)
    network.run()
    assert any(
        line.startswith("cedar: sent an answer that cannot be used") and problem in line for line in network.lines
    )
    assert set(results(network)["arms"]["fedavg"]["sites"]) == {"alder", "birch"}


def first_set(**values: Any) -> Change:
    return lambda body, tensors: body["sets"][0].update(values)


IMPOSSIBLE_COUNTS: list[Change] = [
    first_set(train=10**12),
    first_set(train=0),
    first_set(train=1.5),
    first_set(train=True),
    first_set(train=-5),
    first_set(train=27),  # where `described` says 26
    lambda body, tensors: body["described"].pop("train"),
    lambda body, tensors: body["described"]["classes"].update(well=-1),
    lambda body, tensors: body["described"]["classes"].update(well=999),
    lambda body, tensors: body.pop("described"),
]


@pytest.mark.parametrize(
    "change", represented(IMPOSSIBLE_COUNTS, by=[IMPOSSIBLE_COUNTS[number] for number in (0, 4, 5, 8)])
)
def test_impossible_counts_before_the_first_round_are_refused(change: Change, tmp_path: Path) -> None:
    network = begin(tmp_path)
    lies(network, "facts", change)
    network.run()
    assert any(line.startswith("cedar: sent an answer that cannot be used") for line in network.lines)
    assert results(network)["participation"]["cedar"]["joined"] is False
    assert all(list(sites) == ["alder", "birch"] for sites in network.folder.records()["sites"])


def test_where_everybody_is_needed_the_run_stops_says_who_and_why_and_goes_on_later(tmp_path: Path) -> None:
    network = begin(tmp_path, quorum=None)
    lies(network, "train", lambda body, tensors: body.update(figures={"0": None}), round_number=1)
    with pytest.raises(DeployError, match="cedar sent an answer that cannot be used") as stopped:
        network.run()
    assert "goes on from here" in str(stopped.value)
    again = network.restart_coordinator()
    again.run()
    honest = begin(tmp_path / "honest", quorum=None)
    honest.run()
    for key in ("arms", "participation"):
        assert json.dumps(results(again)[key]["fedavg" if key == "arms" else "cedar"], default=str)
    ours, theirs = results(again)["arms"]["fedavg"]["metrics"], results(honest)["arms"]["fedavg"]["metrics"]
    assert ours == theirs


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 3e38])
def test_an_update_that_is_not_finite_is_refused_and_its_sender_named(value: float, tmp_path: Path) -> None:
    network = begin(tmp_path)

    def change(body: dict[str, Any], tensors: Tree) -> None:
        name = next(iter(tensors))
        tensors[name] = torch.full_like(tensors[name], value)

    lies(network, "train", change, round_number=1)
    network.run()
    assert any(line.startswith("cedar: sent an update with numbers that are not finite") for line in network.lines)
    assert results(network)["arms"]["fedavg"]["metrics"]["accuracy"]["mean"] > 0
    records = network.folder.records()
    assert all("cedar" not in sites for sites in records[records["round"] >= 2]["sites"])


def test_a_hospital_sends_no_update_that_is_not_finite_and_others_are_not_harmed(tmp_path: Path) -> None:
    """One arm's learning rate is far too high; the other arm is as if that arm were not there."""
    wild = {"name": "wild", "algorithm": "fedavg", "training.lr": 1e30}
    network = begin(tmp_path / "both", quorum=None, arms=[{"algorithm": "fedavg"}, wild])
    network.run()
    for _, sealed, answer in network.transport.carried:
        if kind_of(sealed) == "train":
            assert all(torch.isfinite(leaf).all() for leaf in tensors_of(answer).values())
    content = results(network)
    assert noticed(content, "update-not-finite", site="cedar", arm="wild")
    assert content["participation"]["cedar"]["rounds"] < content["participation"]["cedar"]["of"]
    alone = begin(tmp_path / "alone", quorum=None)
    alone.run()
    assert content["arms"]["fedavg"]["metrics"] == results(alone)["arms"]["fedavg"]["metrics"]


def tensors_of(answer: Sealed) -> Tree:
    from safetensors.torch import load

    return load(bytes(answer.tensors)) if answer.tensors else {}


def test_who_misses_the_greeting_stands_in_the_results_and_in_the_first_words(tmp_path: Path) -> None:
    network = begin(tmp_path)
    network.transport.before = lambda site, sealed: not (site == "cedar" and kind_of(sealed) == "hello")
    network.run()
    participation = results(network)["participation"]
    assert list(participation) == list(SITES)
    assert participation["cedar"] == {
        "joined": False,
        "rounds": 0,
        "of": 0,
        "scored": False,
        "reason": "did not answer the greeting in time",
    }
    rounds = len(network.folder.records())
    assert participation["alder"] == {"joined": True, "rounds": rounds, "of": rounds, "scored": True, "reason": None}
    words = participation_sentence(results(network))
    assert words is not None
    assert words.startswith("Not everybody took part: 2 of 3 invited hospitals")
    assert "cedar did not take part (did not answer the greeting in time)" in words


def test_everybody_there_is_not_worth_a_word(tmp_path: Path) -> None:
    network = begin(tmp_path)
    network.run()
    assert participation_sentence(results(network)) is None


def test_who_left_in_the_middle_is_counted(tmp_path: Path) -> None:
    network = begin(tmp_path)
    lies(network, "train", lambda body, tensors: body["trials"].clear(), round_number=1)
    network.run()
    entry = results(network)["participation"]["cedar"]
    assert (entry["joined"], entry["rounds"], entry["scored"]) == (True, 1, False)
    assert entry["of"] == len(network.folder.records())
    assert entry["reason"].startswith("sent an answer that cannot be used")


def test_a_hospital_with_more_than_half_of_all_weight_is_noticed(tmp_path: Path) -> None:
    network = begin(tmp_path)

    def many(body: dict[str, Any], tensors: Tree) -> None:
        body["sets"][0]["train"] = body["described"]["train"] = 5000
        body["described"]["classes"] = dict.fromkeys(body["described"]["classes"])

    lies(network, "facts", many)
    network.run()
    (notice,) = noticed(results(network), "large-share-of-weight")
    assert notice["site"] == "cedar"
    assert notice["counts"]["share"] > 0.98


def test_who_differs_from_most_leaves_whoever_it_is(tmp_path: Path) -> None:
    """Also where it is the first in the list, which others used to be compared with."""
    network = begin(tmp_path)

    def another_kind(body: dict[str, Any], tensors: Tree) -> None:
        body["columns"][0]["kind"] = "categorical"

    lies(network, "hello", another_kind, site="alder")
    network.run()
    assert any(line.startswith("alder: ") and "is categorical here" in line for line in network.lines)
    assert all(list(sites) == ["birch", "cedar"] for sites in network.folder.records()["sites"])


ESCAPES = "\x1b[2J\x1b]0;owned\x07\r\nalder: left the run\u202e\x9b31m\x00"


@pytest.mark.parametrize("kind", ["refused", "failed"])
def test_text_from_a_hospital_reaches_the_screen_without_control_characters(kind: str, tmp_path: Path) -> None:
    network = begin(tmp_path)

    def after(site: str, sealed: Sealed, answer: Sealed) -> Sealed:
        if site == "cedar" and kind_of(sealed) == "train":
            reason = (
                {"reason": ESCAPES, "until": None}
                if kind == "refused"
                else {"notice": {**failure(site, "x").to_json(), "details": {"reason": ESCAPES}}}
            )
            return forge(kind, reason, site)
        return answer

    network.transport.after = after
    network.run()
    lines = [line for line in network.lines if line.startswith("cedar: ")]
    assert lines
    assert all(is_plain(line) for line in lines)
    assert all(is_plain(notice["text"]) for notice in results(network)["notices"])


def test_names_with_control_characters_are_refused(tmp_path: Path) -> None:
    network = begin(tmp_path)
    lies(network, "hello", lambda body, tensors: body["columns"][0].update(name=f"age{ESCAPES}"))
    network.run()
    assert any("cedar: sent an answer that cannot be used: a name in it has control" in line for line in network.lines)
    assert all(is_plain(line) for line in network.lines)


def test_invented_columns_are_refused_by_a_limit(tmp_path: Path) -> None:
    network = begin(tmp_path)

    def invent(body: dict[str, Any], tensors: Tree) -> None:
        body["columns"] = [{**body["columns"][0], "name": f"column {number}"} for number in range(200_000)]

    lies(network, "hello", invent)
    network.run()
    assert any(
        line.startswith("cedar: sent an answer that cannot be used") and "50000" in line for line in network.lines
    )


def test_plain_text_keeps_what_people_write() -> None:
    words = "Größe, \u0627\u0644\u0639\u0645\u0631, 年龄 \u200c ok"
    assert plain_text(words) == words
    assert plain_text(ESCAPES) == "[2J ]0;owned alder: left the run 31m"
    assert plain_text("x" * 10_000) == "x" * 297 + "..."
    assert plain_text({"not": "text"}) == ""
