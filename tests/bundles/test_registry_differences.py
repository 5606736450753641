"""What differs between two bundles, and the verbs of a registry as a person or a script meets them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.bundles.untrained_bundles import made, write_bundle
from tests.cli.test_commands import as_json, wardround
from wardround.bundles import Bundle, Registry
from wardround.bundles.registry.bundle_differences import differences, headline
from wardround.cli.bundles.registry import shown
from wardround.core.errors import BundleError, RunError
from wardround.data.prepare import Fit, Layout, Recipe
from wardround.data.records import Column
from wardround.study.schema import Preparation


def found(a: Bundle, b: Bundle) -> dict[str, tuple[Any, Any]]:
    return {f"{difference.topic}: {difference.what}": (difference.a, difference.b) for difference in differences(a, b)}


def card(auc: float, privacy: Any = None, sites: Any = None) -> dict[str, Any]:
    figure = {"mean": auc, "sd": 0.1, "interval": [auc - 0.1, auc + 0.15]}
    return {
        "figures": {"seeds": [1, 2], "this_site": {"auc": figure, "accuracy": {"mean": 0.7}}, "all_sites": None},
        "training": {"algorithm": "fedavg", "rounds": 5, "sites": sites or {"north": 80, "south": 60}},
        "privacy": privacy,
    }


def test_the_same_bundle_made_twice_does_not_differ(tmp_path: Path) -> None:
    a, b = made(tmp_path / "a"), made(tmp_path / "b", made="2027-01-01T00:00:00+00:00")
    assert differences(a, b) == ()


def test_two_seeds_differ_in_seed_and_weights_alone(tmp_path: Path) -> None:
    a, b = (made(tmp_path / str(seed), weights=seed, seed=seed) for seed in (1, 2))
    differing = found(a, b)
    assert list(differing) == ["origin: seed", "weights: length of all", "weights: length of the difference"]
    assert differing["origin: seed"] == (1, 2)
    both = [torch.cat([leaf.double().flatten() for leaf in bundle.params.values()]) for bundle in (a, b)]
    expected = torch.linalg.vector_norm(both[1] - both[0])
    assert differing["weights: length of the difference"] == (None, pytest.approx(float(expected), rel=1e-12))
    assert differing["weights: length of all"][0] == pytest.approx(float(torch.linalg.vector_norm(both[0])), rel=1e-12)


def test_two_arms_differ_in_all_that_they_do_not_share(tmp_path: Path) -> None:
    spent = {"example": {"epsilon": 2.0, "delta": 1e-5}, "spent": {"epsilon": 1.9, "delta": 1e-5, "rounds": 5}}
    a = made(tmp_path / "a", card=card(0.8))
    b = made(
        tmp_path / "b",
        arm="local",
        kind="mlp",
        options={"hidden": [4]},
        columns=("age", "crp", "potassium", "sex"),
        precision="float64",
        study={"name": "heart", "hash": "b" * 64},
        threshold={"value": 0.4},
        calibration={"slope": 1.25, "intercept": -0.5},
        out_of_distribution={"kind": "distance", "cut": 4.0},
        unrecorded=["sex"],
        card=card(0.85, spent, {"north": 80, "east": None}),
    )
    differing = found(a, b)
    assert differing.pop("origin: study hash") == ("a" * 64, "b" * 64)
    assert differing.pop("origin: arm") == ("fedavg", "local")
    assert differing.pop("training: training rows of south") == (60, None)
    assert differing.pop("training: training rows of east") == (None, "not known")
    assert differing.pop("model: kind") == ("logistic", "mlp")
    assert differing.pop("model: hidden") == (None, [4])
    assert differing.pop("model: inputs") == ([3], [4])
    assert differing.pop("model: precision") == ("float32", "float64")
    assert differing.pop("columns: sodium") == ({"kind": "numeric"}, None)
    assert differing.pop("columns: potassium") == (None, {"kind": "numeric"})
    assert differing.pop("columns: sex") == (None, {"kind": "numeric", "recorded at this site": False})
    assert differing.pop("decision: threshold") == (0.5, 0.4)
    assert differing.pop("decision: calibration slope") == (None, 1.25)
    assert differing.pop("decision: calibration intercept") == (None, -0.5)
    assert differing.pop("decision: out of distribution beyond") == (3.0, 4.0)
    # logistic: 3 weights and an intercept; mlp: 4 x 4 + 4 and 4 + 1
    assert differing.pop("weights: other shapes") == ("4 numbers", "25 numbers")
    before, after = differing.pop("figures: auc, this site")
    assert before == {"mean": 0.8, "interval": [pytest.approx(0.7), pytest.approx(0.95)]}
    assert after["mean"] == 0.85
    assert differing.pop("privacy: protected") == (False, True)
    assert differing.pop("privacy: each patient") == (None, spent["example"])
    assert differing.pop("privacy: spent") == (None, spent["spent"])
    assert differing == {}


def prepared(ward: str, centre: float, levels: tuple[str, ...], header: str = "") -> Recipe:
    """Age as a number; ward as categories, of which `ward` fills gaps."""
    columns = (Column("age"), Column("ward", "categorical", header=header), Column("sex", "categorical"))
    layout = Layout(columns[:1], {"ward": levels, "sex": ("f", "m")}, ())
    fit = Fit({"age": 60.0}, {"ward": ward, "sex": "f"}, np.array([centre]), np.array([10.0]))
    return Recipe(columns, layout, fit, Preparation())


def test_columns_that_are_filled_scaled_or_written_otherwise(tmp_path: Path) -> None:
    two, three = ("icu", "surgery"), ("icu", "medicine", "surgery")
    a = made(tmp_path / "a", prepared_by=prepared("icu", 60.0, three))
    differing = found(a, made(tmp_path / "b", prepared_by=prepared("surgery", 60.0, three)))
    assert differing == {"preparation: filled or scaled otherwise": (None, ["ward"])}
    differing = found(a, made(tmp_path / "c", prepared_by=prepared("icu", 61.0, three)))
    assert differing == {"preparation: filled or scaled otherwise": (None, ["age"])}
    differing = found(a, made(tmp_path / "d", prepared_by=prepared("icu", 60.0, two, "Station")))
    assert differing["columns: ward"] == (
        {"kind": "categorical", "levels": three},
        {"kind": "categorical", "written": "Station", "levels": two},
    )
    assert differing["model: inputs"] == ([5], [3])  # age, three or (of two levels) one for ward, one for sex


def test_more_classes_have_no_threshold(tmp_path: Path) -> None:
    differing = found(made(tmp_path / "a"), made(tmp_path / "b", classes=("no", "mild", "severe")))
    assert differing["model: classes"] == (["no", "yes"], ["no", "mild", "severe"])
    assert differing["decision: threshold"] == (0.5, None)


def test_what_has_no_topic_of_its_own_is_still_a_difference(tmp_path: Path) -> None:
    a = made(tmp_path / "a", card=card(0.8))
    assert found(a, made(tmp_path / "b", card={**card(0.8), "limits": ["x"]})) == {
        "other: the card's text": (None, None)
    }
    differing = found(a, made(tmp_path / "c", card=card(0.8), new_in_a_later_version=1))
    assert differing == {"other: bundle.json": (None, ["new_in_a_later_version"])}


def test_the_figure_of_a_list_is_the_first_that_is_known() -> None:
    assert headline({"card": card(0.75)}) == ("auc", 0.75, (0.65, 0.9))
    unknown = card(0.8)
    unknown["figures"]["this_site"]["auc"]["mean"] = None
    assert headline({"card": unknown}) == ("accuracy", 0.7, None)
    assert headline({"card": {"figures": {"this_site": None}}}) is None
    assert headline({}) is None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (True, "yes"),
        (0.123456, "0.1235"),
        ({"mean": 0.95, "interval": [0.9, 1.05]}, "0.950 (0.900 to 1.000)"),
        ({"kind": "numeric", "range": (0.0, 5.0)}, "kind numeric, range 0, 5"),
        (["a", 2], "a, 2"),
    ],
)
def test_values_as_a_person_reads_them(value: Any, text: str) -> None:
    assert shown(value, "auc") == text
    assert shown({"mean": 1.2, "interval": [-0.1, 1.3]}, "brier") == "1.200 (0.000 to 1.300)"
    assert shown({"mean": 0.2, "interval": [-0.1, 1.3]}, "r2") == "0.200 (-0.100 to 1.000)"


# ---- the verbs


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with two bundles of different seeds."""
    for seed in (1, 2):
        write_bundle(tmp_path / f"made-{seed}", weights=seed, seed=seed, card=card(0.8))
    return tmp_path


def test_from_adding_to_withdrawing(here: Path) -> None:
    assert "has no bundles" in wardround("bundles", "list", cwd=here).stdout
    assert not (here / "registry").exists()  # looking makes nothing
    assert as_json("bundles", "add", "made-1", cwd=here)["path"] == "registry/heart-fedavg-north/1"
    added = wardround("bundles", "add", "made-2", cwd=here)
    assert "wardround bundles promote heart-fedavg-north@2 --registry registry" in added.stdout
    done = wardround("bundles", "promote", "heart-fedavg-north@2", "--by", "Ada", "--reason", "newer", cwd=here)
    assert "heart-fedavg-north@2 is in use" in done.stdout
    rows = as_json("bundles", "list", cwd=here)
    assert [(row["version"], row["in_use"], row["seed"], row["metric"], row["mean"]) for row in rows] == [
        (1, False, 1, "auc", 0.8),
        (2, True, 2, "auc", 0.8),
    ]
    table = wardround("bundles", "list", cwd=here).stdout
    assert "auc 0.800 (0.700 to 0.950)" in table
    details = as_json("bundles", "show", "heart-fedavg-north", cwd=here)
    assert (details["version"], details["in_use"], details["bundle"]["seed"]) == (2, 2, 2)
    assert [(event["event"], event.get("by")) for event in details["history"]][2] == ("bundle promoted", "Ada")
    text = wardround("bundles", "show", "heart-fedavg-north@1", cwd=here).stdout
    assert "heart-fedavg-north@1, not in use" in text
    assert "# A model that nobody trained" in text  # its card
    compared = as_json("bundles", "diff", "heart-fedavg-north@1", "made-2", cwd=here)
    assert compared["same"] is False
    assert compared["differences"][0] == {"topic": "origin", "what": "seed", "a": 1, "b": 2}
    assert "are the same bundle" in wardround("bundles", "diff", "heart-fedavg-north", "./made-2", cwd=here).stdout
    assert "length of the difference" in wardround("bundles", "diff", "made-1", "made-2", cwd=here).stdout
    assert wardround("bundles", "withdraw", "heart-fedavg-north", "--reason", "recalled", cwd=here).returncode == 0
    assert Registry(here / "registry").entries()["heart-fedavg-north"].in_use is None
    assert wardround("bundles", "verify", cwd=here).returncode == 0
    assert wardround("log", "verify", "registry/audit.jsonl", cwd=here).returncode == 0
    assert as_json("log", "verify", "registry", cwd=here)["entries"] == 4


def test_another_registry_is_named_by_an_option(here: Path) -> None:
    assert wardround("bundles", "add", "made-1", "--registry", "shelf", "--name", "heart", cwd=here).returncode == 0
    assert [row["name"] for row in as_json("bundles", "list", "--registry", "shelf", cwd=here)] == ["heart"]
    assert not (here / "registry").exists()


def test_a_broken_registry_is_exit_code_6_and_says_where(here: Path) -> None:
    wardround("bundles", "add", "made-1", cwd=here)
    head = as_json("bundles", "verify", cwd=here)["head"]
    assert wardround("bundles", "verify", "--head", head, cwd=here).returncode == 0
    (here / "registry" / "heart-fedavg-north" / "1" / "card.md").write_text("all is well\n")
    done = wardround("bundles", "verify", "--json", cwd=here)
    assert done.returncode == RunError.exit_code == 6
    problems = json.loads(done.stdout)["problems"]
    assert problems == ["heart-fedavg-north@1: card.md was changed since the bundle was made"]
    assert problems[0] in wardround("bundles", "verify", cwd=here).stdout
    for verb in (
        ["promote", "heart-fedavg-north@1"],
        ["show", "heart-fedavg-north"],
        ["diff", "heart-fedavg-north", "made-1"],
    ):
        refused = wardround("bundles", *verb, cwd=here)
        assert refused.returncode == BundleError.exit_code
        assert "is not as it was added" in refused.stderr
    (here / "registry" / "heart-fedavg-north" / "1" / "bundle.json").write_text("{}")
    assert as_json("bundles", "list", cwd=here)[0]["as_added"] is False
    assert "changed: see wardround bundles verify" in wardround("bundles", "list", cwd=here).stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ["add", "nothing"],
        ["add", "made-1", "--name", "../x"],
        ["show", "nothing"],
        ["promote", "nothing@1"],
        ["withdraw", "nothing"],
        ["diff", "nothing@1", "made-1"],
        ["diff", "made-1", "./nothing"],
        ["verify"],
    ],
)
def test_a_mistake_is_one_error_and_makes_nothing(arguments: list[str], here: Path) -> None:
    done = wardround("bundles", *arguments, cwd=here)
    assert done.returncode == BundleError.exit_code
    assert done.stderr.startswith("Error: ")
    assert "Traceback" not in done.stderr
    assert sorted(path.name for path in here.iterdir()) == ["made-1", "made-2"]
