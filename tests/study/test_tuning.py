"""[tuning]: what a study may ask for, which values are tried, and how they are put into an arm."""

import math
import tomllib
from typing import Any

import numpy as np
import pytest
import tomli_w

from wardround.core.errors import StudyError
from wardround.runs.catalog import families, load_study
from wardround.study.parser import parse_study
from wardround.study.tuning import (
    Bounds,
    Listed,
    Scale,
    different,
    draw_values,
    flat_space,
    kinds_of,
    space_of,
    tuned_keys,
    value_of,
    with_values,
    written_values,
)

LR = {"low": 0.001, "high": 1.0, "log": True}


def study(tuning: dict[str, Any] | None, **tables: Any) -> dict[str, Any]:
    raw: dict[str, Any] = {
        "name": "tuned",
        "data": {"source": "heart"},
        "evaluation": {"validation_share": 0.2, "seeds": {"first": 3, "count": 2}},
        "arms": [{"algorithm": "fedavg"}, {"algorithm": "fedprox", "mu": 0.02}],
        **tables,
    }
    return raw if tuning is None else {**raw, "tuning": tuning}


def refusal(tuning: dict[str, Any], **tables: Any) -> str:
    with pytest.raises(StudyError) as error:
        load_study(study(tuning, **tables))
    return f"{error.value.where}: {error.value.problem} {error.value.remedy}"


@pytest.mark.parametrize(
    ("space", "words"),
    [
        ({"training.learning_rate": LR}, ["training.learning_rate", "no arm that is tuned has such a setting"]),
        ({"nu": [0.1]}, ["space: nu", "mu"]),
        ({"data.files": ["a", "b"]}, ["data.files", "cannot be tuned", "same rows"]),
        ({"evaluation.test_share": [0.1, 0.2]}, ["evaluation.test_share", "cannot be tuned"]),
        ({"privacy.example.epsilon": [1, 2]}, ["cannot be tuned", "patients are protected"]),
        ({"training.rounds": [5, 10]}, ["training.rounds", "the budget counts"]),
        ({"training.device": ["cpu"]}, ["training.device", "cannot be tuned"]),
        ({}, ["space", "is empty"]),
        ({"mu": []}, ["space: mu", "an empty list"]),
        ({"mu": [0.1, 0.1]}, ["listed twice"]),
        ({"mu": 0.1}, ["expected bounds or a list"]),
        ({"mu": {"low": 1.0, "high": 0.1}}, ["`low` must be below `high`"]),
        ({"mu": {"low": 0.1, "high": 0.1}}, ["`low` must be below `high`"]),
        ({"mu": {"low": 0.0, "high": 0.1, "log": True}}, ["log = true", "`low` is 0", "above 0"]),
        ({"training.lr": {"low": 0.0, "high": 0.1}}, ["training.lr: low", "out of range"]),
        ({"mu": {"low": 0.1}}, ["mu: high", "missing"]),
        ({"mu": {"low": 0.1, "hihg": 1}}, ["hihg", "Did you mean 'high'"]),
        ({"mu": {"low": "a", "high": 1}}, ["expected a number"]),
        ({"mu": {"low": 0.1, "high": 1.0, "log": 1}}, ["expected true or false"]),
        ({"training.optimiser": {"low": 1, "high": 2}}, ["has no bounds", "List the values"]),
        ({"training.optimiser": ["sgd", "adm"]}, ["'adm' is not a possible value", "adam"]),
        ({"training.local_epochs": {"low": 1.5, "high": 3}}, ["expected a whole number"]),
        ({"training.lr_decay.factor": [0.5, 0.9]}, ["no arm that is tuned has such a setting"]),
        ({"training.lr": [0.1, 0.2], "mu": [0.02]}, ["2 different settings, and a budget of 4"]),
    ],
)
def test_a_space_that_cannot_be_tried_is_refused_when_the_study_is_read(space: Any, words: list[str]) -> None:
    said = refusal({"budget": 4, "space": space})
    assert all(word in said for word in words), said


def test_other_refusals() -> None:
    good: dict[str, Any] = {"budget": 4, "space": {"training.lr": LR}}
    load_study(study(good))
    assert "tuning: budget: 0 is out of range" in refusal({**good, "budget": 0})
    assert "at least 2" in refusal({**good, "budget": 1})
    assert "tuning: space: missing" in refusal({"budget": 4})
    assert "'baysian' is not a possible value" in refusal({**good, "method": "baysian"})
    assert "no arm is called 'fedpro'" in refusal({**good, "arms": ["fedpro"]})
    assert "metric" in refusal({**good, "metric": "acuracy"})
    no_rows = refusal(good, evaluation={"seeds": {"count": 2}})
    assert "no validation rows" in no_rows
    assert "evaluation.validation_share above 0" in no_rows
    only_mu = refusal({**good, "space": {"mu": {"low": 0.1, "high": 1.0}}})
    assert "tuned.toml" not in only_mu
    assert "fedavg: it has no key of the space" in only_mu
    load_study(study({"budget": 4, "space": {"mu": {"low": 0.1, "high": 1.0}}, "arms": ["fedprox"]}))
    swept = refusal(
        {"budget": 4, "space": {"mu": {"low": 0.1, "high": 1.0}}, "arms": ["fedprox"]},
        arms=[{"algorithm": "fedprox", "mu": [0.1, 0.2]}],
    )
    assert "has a list of values for it" in swept
    scaffold = refusal({"budget": 3, "space": {"training.momentum": [0.0, 0.5, 0.9]}}, arms=[{"algorithm": "scaffold"}])
    assert "not sound with local momentum" in scaffold
    held_out = refusal(
        good,
        arms=[{"algorithm": "fedprox", "mu": [0.1, 0.2]}],
        selection={"arms": ["fedprox"], "on": "site", "site": "cleveland"},
    )
    assert "[selection] trains without a site" in held_out


def test_differential_privacy_is_refused_with_the_reason_and_the_way_out() -> None:
    private = {"privacy.example.epsilon": 4.0, "privacy.example.delta": 1e-5, "privacy.example.clip": 1.0}
    data = {"source": "heart", "public": True, "scale": "ranges", "missing": "range"}
    arms = [{"algorithm": "fedavg"}, {"name": "private", "algorithm": "fedavg", **private}]
    said = refusal({"budget": 4, "space": {"training.lr": LR}}, arms=arms, data=data)
    assert "tuning: private" in said
    assert "every trial would spend epsilon" in said
    assert "public or synthetic rows" in said
    named, _ = load_study(study({"budget": 4, "space": {"training.lr": LR}, "arms": ["fedavg"]}, arms=arms, data=data))
    assert tuned_keys(named, named.arm("private")) == []
    assert tuned_keys(named, named.arm("fedavg")) == ["training.lr"]


def test_a_study_without_it_keeps_its_hash_and_one_with_it_is_read_back_to_the_same() -> None:
    plain, _ = load_study(study(None))
    assert plain.hash == "bf430b1ad763bb7630b73021197b1b94b040e8034c67e6c63b580361f420a028"
    tuned, known = load_study(study({"budget": 4, "space": {"training": {"lr": LR}, "mu": [0.1, 1.0, 2]}}))
    assert tuned.hash != plain.hash
    assert set(tuned.tuning.space) == {"training.lr", "mu"}  # type: ignore[union-attr]
    assert parse_study(tomllib.loads(tomli_w.dumps(dict(tuned.resolved))), known).hash == tuned.hash
    changed, _ = load_study(study({"budget": 4, "space": {"training.lr": LR}}), changes={"tuning.budget": 9})
    assert changed.tuning is not None
    assert changed.tuning.budget == 9


def test_nested_tables_and_dotted_keys_are_one_thing() -> None:
    assert flat_space({"training": {"lr": LR, "momentum": [0, 0.9]}, "mu": [1]}) == {
        "training.lr": LR,
        "training.momentum": [0, 0.9],
        "mu": [1],
    }


def test_drawn_values_cover_their_bounds_evenly() -> None:
    places = (np.arange(10_000) + 0.5) / 10_000
    log = Bounds(0.001, 1.0, log=True)
    decades = np.floor([math.log10(log.at(place)) for place in places])
    assert all(abs((decades == decade).sum() - 3333) < 30 for decade in (-3, -2, -1))
    even = Bounds(2, 5, whole=True)
    counts = np.bincount([even.at(place) for place in places])
    assert counts.tolist() == [0, 0, 2500, 2500, 2500, 2500]
    assert {Bounds(1, 64, log=True, whole=True).at(place) for place in places} == set(range(1, 65))
    assert (log.at(0.0), log.at(1.0)) == (0.001, 1.0)
    assert [Listed(("a", "b")).at(place) for place in (0.0, 0.49, 0.5, 0.999)] == ["a", "a", "b", "b"]


def test_trials_differ_and_arms_try_the_same_values_of_a_key_that_they_share() -> None:
    parsed, known = load_study(study({"budget": 8, "space": {"training.lr": LR, "mu": [0.01, 0.1]}}))
    assert parsed.tuning is not None
    drawn = {}
    for arm in parsed.arms:
        space = space_of(parsed.tuning, arm, known)
        drawn[arm.name] = draw_values(space, 3, 8, written_values(arm, space))
        assert all(one not in drawn[arm.name][:place] for place, one in enumerate(drawn[arm.name]))
    assert drawn["fedavg"][0] == {"training.lr": 0.1}
    assert drawn["fedprox"][0] == {"training.lr": 0.1, "mu": 0.02}
    assert [v["training.lr"] for v in drawn["fedavg"]] == [v["training.lr"] for v in drawn["fedprox"]]
    small: dict[str, Scale] = {"a": Listed((1, 2)), "b": Bounds(1, 2, whole=True)}
    assert different(small, {"a": 1, "b": 1}) == 4
    assert different(small, {"a": 3, "b": 1}) == 5
    assert len(draw_values(small, 0, 5, {"a": 3, "b": 1})) == 5


def test_values_are_put_where_they_belong() -> None:
    raw = study(
        None,
        model={"kind": "mlp", "hidden": [8]},
        training={"lr_decay": {"factor": 0.5, "every": 2}},
        arms=[{"algorithm": "fedprox"}],
    )
    parsed, known = load_study(raw)
    arm = parsed.arms[0]
    values = {"mu": 0.7, "training.lr": 0.3, "training.lr_decay.factor": 0.9, "model.hidden": (4, 2)}
    changed = with_values(arm, values, families())
    assert {key: value_of(changed, key) for key in values} == values
    assert changed.training.lr_decay is not None
    assert changed.training.lr_decay.every == 2
    assert changed.algorithm.options["server_lr"] == 1.0
    assert value_of(arm, "mu") == 0.01  # the first is as it was
    assert {"mu", "server_lr", "training.lr", "training.lr_decay.factor", "model.dropout"} <= set(kinds_of(arm, known))
    assert with_values(arm, written_values(arm, dict.fromkeys(values, Listed(()))), known) == arm
