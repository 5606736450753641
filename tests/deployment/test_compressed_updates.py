"""Compressed updates across hospitals: the bits of a simulation, smaller messages, and what no hospital sends."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load

from tests.deployment.hospital_files import NAMES, at_sites, study
from tests.deployment.in_process_federation import body_of, federation, kind_of
from tests.deployment.parity import KNOWN, assert_parity
from tests.deployment.test_answers_checked import Change, begin, lies
from tests.deployment.test_regions_parity import assert_regional_parity, regional
from wardround.core import tree
from wardround.core.tree import Tree
from wardround.deployment.common.spool import NOT_FINITE
from wardround.deployment.governance.plain_words import in_plain_words
from wardround.protocol.messages import Sealed
from wardround.runs.catalog import load_study
from wardround.runs.execute import run_study
from wardround.runs.folder import RunFolder

KINDS: dict[str, dict[str, Any]] = {
    "float16": {"kind": "float16"},
    "top-k": {"kind": "top-k", "share": 0.2},
    "quantised": {"kind": "quantised", "bits": 4},
}
ARMS = [{"algorithm": name} for name in ("fedavg", "scaffold", "fednova", "fedprox-adaptive", "fedadam")]
SOME = {"share": 0.75, "stragglers": {"share": 0.4, "policy": "drop"}, "rounds": 4}


@pytest.mark.parametrize("kind", [pytest.param(k, marks=[] if k == "top-k" else [pytest.mark.slow]) for k in KINDS])
def test_the_bits_of_a_simulation(kind: str, tmp_path: Path) -> None:
    """Models, and what sites remember: also where late work is dropped, and a residual with it."""
    both = assert_parity(study(ARMS, compression=KINDS[kind], training=SOME), tmp_path)
    remembered = [name for name in both.memories[NAMES[0]] if "/residual/" in name]
    assert bool(remembered) == (kind == "top-k")


def test_three_kinds_in_one_study_beside_an_arm_that_sends_all(tmp_path: Path) -> None:
    arms = [{"algorithm": "fedavg", "compression.kind": ["none", "float16", "top-k", "quantised"]}]
    document = study(arms, training={"precision": "float64"})
    both = assert_parity(document, tmp_path)
    alone = run_study(document, tmp_path / "simulated", engine="serial", sources=KNOWN, workers=1)
    theirs = both.deployed.folder.records().sort_values(["arm", "round"])
    ours = RunFolder(alone.folder).records().sort_values(["arm", "round"])
    for name in ("loss", "update_norm", "change", "bytes_down", "bytes_up", "compression_error"):
        np.testing.assert_allclose(theirs[name].astype(float), ours[name].astype(float), rtol=1e-6, err_msg=name)
    assert set(theirs["arm"][theirs["compression_error"].isna()]) == {"fedavg[kind=none]"}
    compressed = both.deployed.folder.read_json("results.json")["arms"]["fedavg[kind=top-k]"]["compression"]
    assert (compressed["kind"], compressed["share"]) == ("top-k", 0.01)
    assert 0 < compressed["error"] < 1


@pytest.mark.parametrize("kind", KINDS)
def test_what_travels_is_the_compressed_form_and_nothing_else(kind: str, tmp_path: Path) -> None:
    """The tensors of every message are as large as the record says, and no tensor has the model's shape."""
    network = federation(study(["fedavg"], compression=KINDS[kind]), tmp_path, at_sites(), known_sources=KNOWN)
    network.run()
    by_round: dict[int, int] = {}
    forms: set[str] = set()
    for _, sealed, answer in network.transport.carried:
        if kind_of(answer) == "update":
            tensors = load(bytes(answer.tensors))
            number = body_of(sealed)["round"]
            by_round[number] = by_round.get(number, 0) + tree.count_bytes({"": tensors})
            forms |= {name.removeprefix("0/params/") for name in tensors}
    records = network.folder.records()
    assert by_round == {record["round"] - 1: record["bytes_up"] for record in records.to_dict("records")}
    # the model has 14 numbers in two tensors: 14 x 2 + 2 x 2; round(0.2 x 14) = 3 of 4 + 4; 14 / 2 + 2 x 4
    assert set(records["bytes_down"]) == {len(NAMES) * 14 * 4}
    assert set(records["bytes_up"]) == {len(NAMES) * {"float16": 32, "top-k": 24, "quantised": 15}[kind]}
    expected = {"float16": {"values", "exponents"}, "top-k": {"values", "places"}, "quantised": {"codes", "scales"}}
    assert forms == expected[kind]


def test_a_site_that_restarts_between_rounds_goes_on_with_what_it_had_left_out(tmp_path: Path) -> None:
    document = study(["fedavg"], compression=KINDS["top-k"], training={"rounds": 4})
    whole = federation(document, tmp_path / "whole", at_sites(), known_sources=KNOWN)
    whole.run()
    network = federation(document, tmp_path / "restarted", at_sites(), known_sources=KNOWN)

    def before(site: str, sealed: Sealed) -> bool:
        if kind_of(sealed) == "train" and body_of(sealed)["round"] == 2:
            network.restart_site(site)
        return True

    network.transport.before = before
    network.run()
    expected = whole.folder.load_model("fedavg", 3)
    assert all(torch.equal(leaf, expected[name]) for name, leaf in network.folder.load_model("fedavg", 3).items())


def test_hospitals_in_regions_compress_what_they_send_to_their_region(tmp_path: Path) -> None:
    """The region's model goes to the coordinator of all as it is."""
    network = assert_regional_parity(regional(["fedavg"], compression=KINDS["top-k"]), tmp_path)
    records = network.run_folder.records()
    assert all(records["bytes_up"] < records["bytes_down"] / 2)
    up = [record["region_bytes"][1] for record in records.to_dict("records")]
    assert max(up) > 0
    assert records["compression_error"].between(0.01, 0.99).all()


def test_whole_hospitals_are_protected_and_say_nothing_of_the_error(tmp_path: Path) -> None:
    privacy = {"site": {"epsilon": 50.0, "delta": 1e-3, "clip": 0.2}}
    network = federation(
        study(["fedavg"], compression=KINDS["quantised"], privacy=privacy), tmp_path, at_sites(), known_sources=KNOWN
    )
    network.run()
    assert network.folder.records()["compression_error"].isna().all()
    answers = [body_of(answer) for _, _, answer in network.transport.carried if kind_of(answer) == "update"]
    assert answers
    assert all(answer["trials"]["0"]["compression_error"] is None for answer in answers)


# -- what no hospital sends


def put(name: str, change: Callable[[Any], Any]) -> Change:
    def changed(body: dict[str, Any], tensors: Tree) -> None:
        tensors[f"0/params/{name}"] = change(tensors[f"0/params/{name}"].clone())

    return changed


def at(place: int, value: float) -> Callable[[Any], Any]:
    def changed(tensor: Any) -> Any:
        tensor[place] = value
        return tensor

    return changed


def first_again(tensor: Any) -> Any:
    tensor[1] = tensor[0]
    return tensor


OUTSIDE = "a compressed update with numbers at places that the model does not have"
TWICE = "a compressed update with two numbers for one place, or places out of order"
OTHER = "tensors that are not an update of its study"
EXPONENTS = "a compressed update with exponents that no update has"
IMPOSSIBLE: list[tuple[str, str, Change, str]] = [
    ("top-k", "place beyond the model", put("places", at(-1, 10**6)), OUTSIDE),
    ("top-k", "place below zero", put("places", at(0, -1)), OUTSIDE),
    ("top-k", "place twice", put("places", first_again), TWICE),
    ("top-k", "out of order", put("places", lambda places: places.flip(0)), TWICE),
    ("top-k", "more than agreed", put("places", lambda places: torch.cat([places, places])), OTHER),
    ("top-k", "wider places", put("places", lambda places: places.long()), OTHER),
    ("top-k", "not a number", put("values", at(0, math.nan)), NOT_FINITE),
    ("top-k", "far too large", put("values", at(0, 3e38)), NOT_FINITE),
    ("quantised", "scale not a number", put("scales", at(0, math.nan)), NOT_FINITE),
    ("quantised", "scale infinite", put("scales", at(0, math.inf)), NOT_FINITE),
    ("quantised", "scale far too large", put("scales", at(0, 1e19)), NOT_FINITE),
    ("quantised", "scale below zero", put("scales", at(0, -1.0)), "a compressed update with a scale below zero"),
    ("quantised", "unused code", put("codes", at(0, 255)), "a compressed update with numbers of more than 7 times"),
    ("quantised", "a byte less", put("codes", lambda codes: codes[:-1]), OTHER),
    ("float16", "not a number", put("values", at(0, math.nan)), NOT_FINITE),
    ("float16", "exponent too large", put("exponents", at(0, 32767)), EXPONENTS),
    ("float16", "exponent too small", put("exponents", at(0, -32768)), EXPONENTS),
    ("float16", "far too large", put("exponents", at(0, 1000)), NOT_FINITE),
    ("float16", "no compression at all", put("values", lambda values: values.float()), OTHER),
    ("float16", "an error below zero", lambda b, t: b["trials"]["0"].update(compression_error=-1.0), "an answer"),
    ("float16", "no error", lambda b, t: b["trials"]["0"].update(compression_error=None), "an error of compression"),
]


@pytest.mark.parametrize(("kind", "name", "change", "problem"), IMPOSSIBLE, ids=[f"{k} {n}" for k, n, *_ in IMPOSSIBLE])
def test_what_no_hospital_sends_is_refused_and_its_sender_named(
    kind: str, name: str, change: Change, problem: str, tmp_path: Path
) -> None:
    """It leaves with one sentence, nothing of it is kept, and the others go on."""
    network = begin(tmp_path, compression=KINDS[kind])
    lies(network, "train", change, round_number=1)
    network.run()
    [line] = [line for line in network.lines if line.startswith("cedar: ")]
    assert problem in line
    assert set(network.folder.records()["sites"].iloc[0]) == {"alder", "birch", "cedar"}
    assert all(set(sites) == {"alder", "birch"} for sites in network.folder.records()["sites"][1:])
    assert not list(tmp_path.glob("**/*round-*/cedar.*"))


def test_without_compression_no_error_of_it_is_taken(tmp_path: Path) -> None:
    network = begin(tmp_path)
    lies(network, "train", lambda body, tensors: body["trials"]["0"].update(compression_error=0.5))
    network.run()
    assert any("cedar: " in line and "an error of compression" in line for line in network.lines)


def test_a_hospital_reads_that_updates_are_compressed() -> None:
    content, _ = load_study(study(["fedavg", "local"], compression=KINDS["top-k"]), sources=KNOWN)
    assert any("only the 20 % largest" in line for line in in_plain_words(content, NAMES))
    plain, _ = load_study(study(["fedavg"]), sources=KNOWN)
    assert not any("compress" in line.lower() for line in in_plain_words(plain, NAMES))
