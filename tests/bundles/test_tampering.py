"""Whatever is done to a bundle shows: every byte, every file, other versions, links, things that are no bundle."""

import json
import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from shutil import copytree
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load, save

from tests.bundles.untrained_bundles import write_bundle
from tests.representatives import represented
from wardround.bundles import load_bundle
from wardround.bundles.sealed_files import (
    ABOUT,
    BUNDLE,
    CARD,
    PREPARATION,
    UNCERTAINTY,
    VOCABULARY,
    WEIGHTS,
    as_text,
    seal,
)
from wardround.core import seeds
from wardround.core.errors import BundleError


@pytest.fixture
def copy(heart_bundle: Path, tmp_path: Path) -> Path:
    return copytree(heart_bundle, tmp_path / "copy")


def sealed_anew(folder: Path, change: Callable[[dict[str, Any], dict[str, bytes]], None]) -> None:
    """As somebody would do it who can compute hashes."""
    about = json.loads((folder / ABOUT).read_bytes())
    files = {name: (folder / name).read_bytes() for name in about["files"]}
    change(about, files)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    (folder / ABOUT).write_bytes(seal(about, files))


@pytest.mark.parametrize("name", represented([ABOUT, *BUNDLE.needed], by=[ABOUT, WEIGHTS]))
def test_no_byte_can_change_unseen(copy: Path, name: str) -> None:
    """The first, the last and a hundred others; each bit pattern of a drawn place."""
    content = (copy / name).read_bytes()
    drawn = seeds.generator(0, f"tampering with {name}")
    places = {0, len(content) - 1, *drawn.integers(0, len(content), 100).tolist()}
    for place in sorted(places):
        changed = bytearray(content)
        changed[place] ^= int(drawn.integers(1, 256))
        (copy / name).write_bytes(changed)
        with pytest.raises(BundleError) as caught:
            load_bundle(copy)
        assert caught.value.exit_code == 10
    (copy / name).write_bytes(content)
    load_bundle(copy)


@pytest.mark.parametrize("name", [ABOUT, *BUNDLE.needed])
@pytest.mark.parametrize("change", ["cut", "longer", "empty"])
def test_a_file_of_another_length_is_refused(copy: Path, name: str, change: str) -> None:
    content = (copy / name).read_bytes()
    (copy / name).write_bytes({"cut": content[:-1], "longer": content + b"\n", "empty": b""}[change])
    with pytest.raises(BundleError):
        load_bundle(copy)


@pytest.mark.parametrize("name", BUNDLE.needed)
def test_a_missing_file_is_named(copy: Path, name: str) -> None:
    (copy / name).unlink()
    with pytest.raises(BundleError, match=f"{name} is missing"):
        load_bundle(copy)


@pytest.mark.parametrize("name", ["notes.txt", ".hidden", "model.onnx", "more/"])
def test_a_file_that_is_not_listed_is_named(copy: Path, name: str) -> None:
    if name.endswith("/"):
        (copy / name).mkdir()
    else:
        (copy / name).write_text("x")
    with pytest.raises(BundleError, match="is not part of the bundle"):
        load_bundle(copy)


@pytest.mark.parametrize("name", [ABOUT, *BUNDLE.needed])
def test_a_link_out_of_the_folder_is_refused_even_if_its_content_is_right(
    copy: Path, tmp_path: Path, name: str
) -> None:
    (copy / name).rename(tmp_path / "outside")
    (copy / name).symlink_to(tmp_path / "outside")
    with pytest.raises(BundleError, match="is not a plain file"):
        load_bundle(copy)


def test_a_pipe_is_refused_and_not_waited_for(copy: Path) -> None:
    (copy / CARD).unlink()
    os.mkfifo(copy / CARD)
    with pytest.raises(BundleError, match="is not a plain file"):
        load_bundle(copy)


def test_a_newer_format_says_so_before_anything_else_is_looked_at(copy: Path) -> None:
    (copy / ABOUT).write_bytes(as_text({"format": 4, "something": "new"}))
    with pytest.raises(BundleError, match="is of format 4, and this version of wardround reads format 3") as caught:
        load_bundle(copy)
    assert "newer version" in caught.value.remedy


@pytest.mark.parametrize("number", [0, 1, 2])
def test_older_formats_are_refused_by_their_number(tmp_path: Path, number: int) -> None:
    folder = write_bundle(tmp_path / "old", of_format=number)
    with pytest.raises(
        BundleError, match=f"is of format {number}, and this version of wardround reads format 3"
    ) as old:
        load_bundle(folder)
    assert "Make it again" in old.value.remedy


@pytest.mark.parametrize(
    "text",
    ["", "[]", "null", "{}", '{"format": "1"}', '{"format": true}', '{"format": 0}', "[" * 100_000, '{"format": 1}'],
)
def test_what_is_no_bundle_json_is_refused_in_words(copy: Path, text: str) -> None:
    (copy / ABOUT).write_text(text)
    with pytest.raises(BundleError):
        load_bundle(copy)


def test_a_key_that_stands_there_twice_is_refused(copy: Path) -> None:
    """JSON readers take the last; another program may take the first."""
    text = (copy / ABOUT).read_text()
    (copy / ABOUT).write_text(text.replace('"format": 3,', '"format": 3,\n  "format": 3,', 1))
    with pytest.raises(BundleError, match="was changed"):
        load_bundle(copy)


def test_places_that_are_no_bundle(tmp_path: Path, heart_bundle: Path) -> None:
    (tmp_path / "empty").mkdir()
    for place, problem in (
        (tmp_path / "nowhere", "does not exist"),
        (heart_bundle / CARD, "is not a folder"),
        (tmp_path / "empty", "is not a bundle: it has no bundle.json"),
    ):
        with pytest.raises(BundleError, match=problem):
            load_bundle(place)


def other_shape(about: dict[str, Any], files: dict[str, bytes]) -> None:
    leaves = load(files[WEIGHTS])
    files[WEIGHTS] = save({**leaves, "params/weight": leaves["params/weight"][:, :-1].contiguous()})


def not_a_number(about: dict[str, Any], files: dict[str, bytes]) -> None:
    leaves = load(files[WEIGHTS])
    files[WEIGHTS] = save({**leaves, "params/bias": torch.full_like(leaves["params/bias"], float("nan"))})


def no_weights(about: dict[str, Any], files: dict[str, bytes]) -> None:
    files[WEIGHTS] = b"not safetensors"


def other_precision(about: dict[str, Any], files: dict[str, bytes]) -> None:
    about["precision"] = "float64"


def no_threshold(about: dict[str, Any], files: dict[str, bytes]) -> None:
    about["threshold"] = None


def no_recipe(about: dict[str, Any], files: dict[str, bytes]) -> None:
    files[PREPARATION] = b"{}"


def unknown_setting(about: dict[str, Any], files: dict[str, bytes]) -> None:
    content = json.loads(files[PREPARATION])
    content["settings"]["spread"] = "wide"
    files[PREPARATION] = as_text(content)


def column_too_many(about: dict[str, Any], files: dict[str, bytes]) -> None:
    content = json.loads(files[PREPARATION])
    content["layout"]["indicators"].append("age")
    files[PREPARATION] = as_text(content)


def bad_words(about: dict[str, Any], files: dict[str, bytes]) -> None:
    files[VOCABULARY] = b"[]"


def prepared_otherwise(
    change: Callable[[dict[str, Any]], object],
) -> Callable[[dict[str, Any], dict[str, bytes]], None]:
    def changed(about: dict[str, Any], files: dict[str, bytes]) -> None:
        content = json.loads(files[PREPARATION])
        change(content)
        files[PREPARATION] = as_text(content)

    return changed


@pytest.mark.parametrize(
    "change",
    [
        lambda about, files: about.pop("name"),
        lambda about, files: about.pop("made"),
        lambda about, files: about.pop("study"),
        lambda about, files: about["study"].pop("name"),
        lambda about, files: about.update(site=None),
        lambda about, files: about.update(seed="1"),
        lambda about, files: about.update(classes=["x", "x"]),
        lambda about, files: about.update(task={"kind": "multiclass", "names": about["classes"]}),
        lambda about, files: about.update(task={"kind": "binary", "names": ["x", "y"]}),
        lambda about, files: about.update(task={"kind": "ordinal", "names": about["classes"]}),
        lambda about, files: about.update(task={"kind": "binary", "names": about["classes"], "delta": 2}),
        lambda about, files: about.update(task=["binary"]),
        lambda about, files: about.update(precision="float16"),
        lambda about, files: about["threshold"].update(value=10**400),
        lambda about, files: about["threshold"].update(value="0.3"),
        lambda about, files: about["out_of_distribution"].update(cut=None),
        lambda about, files: about["model"]["shape"].update(inputs=[2**40]),
        lambda about, files: about.update(model={**about["model"], "kind": "mlp", "options": {"hidden": [2**40]}}),
        lambda about, files: about.update(model={**about["model"], "kind": "mlp", "options": {"hidden": [2**62]}}),
        lambda about, files: files.update({PREPARATION: b"[" * 100_000 + b"]" * 100_000}),
        lambda about, files: files.update({VOCABULARY: b"[" * 100_000 + b"]" * 100_000}),
        prepared_otherwise(lambda description: description["fit"]["centre"].pop()),
        prepared_otherwise(lambda description: description["fit"]["spread"].append(1.0)),
        prepared_otherwise(lambda description: description["fit"]["spread"].__setitem__(0, 0.0)),
        prepared_otherwise(lambda description: description["fit"]["centre"].__setitem__(0, None)),
        prepared_otherwise(lambda description: description["fit"]["centre"].__setitem__(0, 10**400)),
        prepared_otherwise(lambda description: description["fit"]["fill"].pop("age")),
        prepared_otherwise(lambda description: description["columns"].pop()),
        prepared_otherwise(lambda description: description["columns"].append(description["columns"][0])),
    ],
)
def test_a_bundle_that_could_not_predict_is_refused_when_it_is_opened(
    copy: Path, change: Callable[[dict[str, Any], dict[str, bytes]], None]
) -> None:
    """And not with the first row. A model of a million million weights is refused before it takes memory."""
    sealed_anew(copy, change)
    with pytest.raises(BundleError, match="does not hold what a bundle of format 3 holds") as caught:
        load_bundle(copy)
    assert caught.value.exit_code == 10


def test_a_bundle_json_of_lists_in_lists_is_refused(copy: Path) -> None:
    text = (copy / ABOUT).read_text()
    for depth in (500, 2_000, 100_000):  # as deep as Python reads, writes, and does neither
        (copy / ABOUT).write_text(text.replace("{", '{"deep": ' + "[" * depth + "]" * depth + ",", 1))
        with pytest.raises(BundleError):
            load_bundle(copy)


@pytest.mark.parametrize(
    "change",
    [
        other_shape,
        not_a_number,
        no_weights,
        other_precision,
        no_threshold,
        no_recipe,
        unknown_setting,
        column_too_many,
        bad_words,
    ],
)
def test_parts_that_do_not_fit_are_refused_even_where_every_hash_is_right(
    copy: Path, change: Callable[[dict[str, Any], dict[str, bytes]], None]
) -> None:
    sealed_anew(copy, change)
    with pytest.raises(BundleError, match="does not hold what a bundle of format 3 holds"):
        load_bundle(copy)


def test_a_model_that_is_not_known_here_is_named(copy: Path) -> None:
    def other(about: dict[str, Any], files: dict[str, bytes]) -> None:
        about["model"]["kind"] = "logistik"

    sealed_anew(copy, other)
    with pytest.raises(BundleError, match="needs a model 'logistik', which is not known here") as caught:
        load_bundle(copy)
    assert "Did you mean 'logistic'?" in caught.value.remedy


def test_the_id_is_that_of_the_content_and_not_of_the_moment(copy: Path, heart_bundle: Path) -> None:
    before = load_bundle(heart_bundle)
    sealed_anew(copy, lambda about, files: about.update(made="2031-01-01T00:00:00+00:00"))
    later = load_bundle(copy)
    assert later.id == before.id
    assert later.about["seal"] != before.about["seal"]
    sealed_anew(copy, lambda about, files: about["threshold"].update(value=0.25))
    changed = load_bundle(copy)
    assert changed.id != before.id
    assert changed.events[0].threshold == 0.25


def test_a_bundle_that_was_made_before_tasks_were_is_read_by_its_classes(copy: Path, heart_bundle: Path) -> None:
    now = load_bundle(heart_bundle)
    sealed_anew(copy, lambda about, files: about.pop("task"))
    before = load_bundle(copy)
    assert before.task == now.task
    x = np.random.default_rng(0).normal(size=(20, len(now.recipe.names)))
    assert (before.scores(x) == now.scores(x)).all()
    assert before.predicted(before.scores(x)).tolist() == now.predicted(now.scores(x)).tolist()


def test_hashes_are_those_that_any_tool_computes(heart_bundle: Path) -> None:
    about = json.loads((heart_bundle / ABOUT).read_bytes())
    assert set(about["files"]) == {*BUNDLE.needed, UNCERTAINTY}
    for name, digest in about["files"].items():
        assert sha256((heart_bundle / name).read_bytes()).hexdigest() == digest
    plain = {key: value for key, value in about.items() if key not in ("id", "seal", "made")}
    assert sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest() == about["id"]
    assert np.isfinite(about["out_of_distribution"]["cut"])
