"""Hospitals with columns of their own tell nobody which: every byte that travels is looked at."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load as read_tensors
from safetensors.torch import load_file

from tests.deployment.hospital_files import NAMES, at_sites, dots, own, study
from tests.deployment.in_process_federation import Federation, body_of, federation, kind_of
from tests.deployment.parity import KNOWN, assert_parity
from tests.representatives import represented
from wardround.core.errors import DeployError
from wardround.core.seeds import generator
from wardround.core.tree import Tree
from wardround.data.prepare import encode
from wardround.data.sources import SOURCES, Source
from wardround.protocol.messages import Sealed

LATENT, HIDDEN = 5, 7
ENCODER = {"encoder.0.weight": 35, "encoder.0.bias": 7, "encoder.1.weight": 7, "encoder.1.bias": 7}
HEAD = {"head.weight": 7, "head.bias": 1}
PRIVATE = {"adapter.first.weight", "adapter.first.bias"}
MODEL = {"kind": "adapter", "latent": LATENT, "hidden": [HIDDEN]}
# how far it has come, 5 means and 15 second moments of 5 numbers
ALIGNED = {"alignment.all": 21}


def document(algorithm: str = "fedprox", **model: Any) -> dict[str, Any]:
    return study([{"algorithm": algorithm}], data={"schema": "own"}, model={**MODEL, **model})


def ran(folder: Path, content: dict[str, Any]) -> Federation:
    network = federation(content, folder, at_sites(), known_sources=KNOWN)
    network.run()
    return network


def tensors_of(sealed: Sealed) -> Tree:
    return read_tensors(bytes(sealed.tensors)) if sealed.tensors else {}


def sizes(leaves: Tree) -> dict[str, int]:
    """By what the leaf is called in the model: a message's names begin with the trial and the part of the message."""
    return {name.rpartition("/")[2]: leaf.numel() for name, leaf in leaves.items()}


@pytest.mark.parametrize(
    ("model", "sent"),
    [
        pytest.param({}, {**ENCODER, **HEAD}, marks=pytest.mark.slow),
        ({"head": "private"}, ENCODER),
        ({"align": "coral"}, {**ENCODER, **HEAD, **ALIGNED}),
        ({"align": "coral", "head": "private"}, {**ENCODER, **ALIGNED}),
    ],
)
def test_what_travels_is_encoder_and_head_and_nothing_else(
    model: dict[str, Any], sent: dict[str, int], tmp_path: Path
) -> None:
    network = ran(tmp_path, document("fedavg", **model))
    seen = set()
    for _, asked, answer in network.transport.carried:
        for sealed in (asked, answer):
            leaves = tensors_of(sealed)
            seen.add((kind_of(sealed), bool(leaves)))
            if leaves:
                assert sizes(leaves) == sent, kind_of(sealed)
    with_tensors = {kind for kind, leaves in seen if leaves}
    assert with_tensors == {"train", "update", "evaluate"}
    records = network.folder.records()
    each = 4 * sum(sent.values()) * len(NAMES)
    assert set(records["bytes_up"]) == {each}
    assert set(records["bytes_down"]) == {each}


@pytest.mark.parametrize("align", represented(["none", "coral"], by=["coral"]))
def test_a_secure_sum_of_encoders_gives_the_same_model_as_a_simulation(align: str, tmp_path: Path) -> None:
    content = {**document(align=align), "privacy": {"secure_sum": {}}}
    assert_parity(content, tmp_path)


def test_scaffold_sends_controls_of_the_same_leaves_and_no_others(tmp_path: Path) -> None:
    network = ran(tmp_path, document("scaffold"))
    for _, asked, answer in network.transport.carried:
        for sealed in (asked, answer):
            assert not PRIVATE & set(sizes(tensors_of(sealed)))
    assert set(network.folder.records()["bytes_up"]) == {2 * 4 * sum({**ENCODER, **HEAD}.values()) * len(NAMES)}


def test_no_message_names_a_column_a_level_or_their_number(tmp_path: Path) -> None:
    """The names would say what a hospital measures; the widths, how much of it."""
    words: set[str] = set()
    for site in NAMES:
        records = own(site)
        words |= {f'"{column.name}"' for column in records.columns}
        words |= {f'"{level}"' for levels in encode(records).levels for level in levels}
    words -= {f'"{number}"' for number in range(10)}  # levels that are numbers are keys of many things
    assert {'"lab"', '"dose"', '"burns"'} <= words
    network = ran(tmp_path, document())
    for site, asked, answer in network.transport.carried:
        for sealed in (asked, answer):
            body = body_of(sealed)
            public = body.pop("directions", {})
            assert set(public) <= {"age"}  # the one column here that is on the public list
            text = json.dumps(body)
            assert not [word for word in words if word in text], f"{kind_of(sealed)}, {site}"
            assert body.get("columns") is None
            for told_of in body.get("sets", []):
                assert set(told_of) == {"train", "validation", "test", "facts", "target"}
                assert told_of["facts"] is None
                assert told_of["target"] == []
    federation_file = "".join(
        path.read_text(encoding="utf-8", errors="replace") for path in network.folder.path.rglob("*") if path.is_file()
    )
    assert '"burns"' not in federation_file


def test_the_coordinator_keeps_no_private_leaf(tmp_path: Path) -> None:
    network = ran(tmp_path, document(align="mmd"))
    saved = network.folder.load_model("fedprox", 3)
    assert {name.rpartition("/")[2] for name in saved} & (PRIVATE | {"alignment.own"}) == set()
    assert "server/params/alignment.all" in saved


def test_each_site_keeps_an_adapter_of_its_own_width(tmp_path: Path) -> None:
    """The widths are those of the columns that a hospital has: 3 numbers at most, wards, stages, indicators."""
    ran(tmp_path, document())
    widths = {}
    for site in NAMES:
        (path,) = (tmp_path / "sites" / site).glob("*/models/fedprox/seed-3.safetensors")
        widths[site] = load_file(path)["adapter.first.weight"].shape[1]
    # age, dose, lab; one ward column of two, three of three; three stages; whether dose is missing
    assert widths == {"alder": 8, "birch": 7, "cedar": 10, "dogwood": 5}


def hospital_files(folder: Path) -> dict[str, Path]:
    """`crp` is a number at one hospital and a word at the other; columns stand in another order in each file."""
    rng = generator(5, "files of two hospitals")
    lines: dict[str, list[str]] = {"alder": ["weight,crp,ill,age"], "birch": ["sick,crp,age,ward"]}
    for _ in range(60):
        age, crp = rng.integers(30, 90), rng.normal(20, 5)
        ill = int(age + crp > 80)
        lines["alder"].append(f"{rng.normal(70, 9):.1f},{crp:.2f},{'yes' if ill else 'no'},{age}")
        lines["birch"].append(f"{1 - ill},{'high' if crp > 20 else 'low'},{age},{rng.choice(['a', 'b', 'c'])}")
    files = {site: folder / f"{site}.csv" for site in lines}
    for site, path in files.items():
        path.write_text("\n".join(lines[site]) + "\n", encoding="utf-8")
    return files


def test_hospitals_whose_files_differ_in_names_kinds_and_order_give_the_same_bits(tmp_path: Path) -> None:
    """In a simulation `crp` must be two columns; a hospital by itself has one. Both begin with the same weights."""
    files = hospital_files(tmp_path)
    targets, classes = {"alder": "ill", "birch": "sick"}, ("well", "ill")
    labels = {"alder": {"yes": "ill", "no": "well"}, "birch": {"0": "ill", "1": "well"}}
    data = {"source": "csv", "files": {site: str(path) for site, path in files.items()}, "target": "ill"}
    data |= {"targets": {"birch": "sick"}, "classes": list(classes), "labels": labels}
    content = study([{"algorithm": "fedprox"}], model=MODEL) | {"data": {**data, "columns": "own", "schema": "own"}}
    at_home = {
        site: partial(
            SOURCES["csv"], files={site: path}, target=targets[site], classes=classes, labels={site: labels[site]}
        )
        for site, path in files.items()
    }
    both = assert_parity(content, tmp_path / "run", at_home)
    names = [column.name for column in both.plan.cohort_of(both.plan.study.arms[0]).records.columns]
    assert {"crp at alder", "crp at birch"} <= set(names)
    trial = both.plan.trial(both.plan.study.arms[0], 3)
    inputs_by_site = {site.name: site.recipe.names for site in trial.sites if site.recipe is not None}
    assert inputs_by_site == {
        "alder": ("age", "crp", "weight"),
        "birch": ("age", "crp=low", "ward=a", "ward=b", "ward=c"),
    }


def test_a_study_may_speak_of_columns_that_one_hospital_alone_has(tmp_path: Path) -> None:
    """birch never recorded `lab`: what is said of alder's is nothing to it, and gives what a simulation gives."""
    absent = {"alder": ["lab"], "birch": ["lab", "dose"], "cedar": ["ward"]}
    content = study([{"algorithm": "fedavg"}], data={"schema": "own", "not_recorded": absent}, model=MODEL)
    both = assert_parity(content, tmp_path)
    trial = both.plan.trial(both.plan.study.arms[0], 3)
    columns_by_site = {
        site.name: {c.name for c in site.recipe.columns} for site in trial.sites if site.recipe is not None
    }
    assert columns_by_site["alder"] == {"age", "dose", "ward", "stage"}
    assert columns_by_site["birch"] == {"age", "ward", "stage"}
    assert columns_by_site["cedar"] == {"age", "dose", "lab", "stage"}


def test_images_are_refused_where_a_study_is_about_columns(tmp_path: Path) -> None:
    def pictures() -> Source:
        records = dots("birch")
        return Source(lambda: replace(records, target=records.target % 2, classes=own("birch").classes))

    network = federation(document(), tmp_path, {**at_sites(), "birch": pictures}, known_sources=KNOWN)
    with pytest.raises(DeployError, match="images"):
        network.run()
