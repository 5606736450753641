"""A hospital whose label means the opposite is found across hospitals, by columns that everybody has a name for."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.deployment.forging import changed
from tests.deployment.in_process_federation import Federation, body_of, federation, kind_of
from tests.noticed import noticed
from wardround.core.errors import CheckError, DeployError
from wardround.data.checks.clinical_names import SAME
from wardround.data.checks.label_direction import Association
from wardround.data.sources import SOURCES, Source
from wardround.deployment.common.schema_agreement import direction_payload
from wardround.protocol.catalogue import Direction
from wardround.protocol.messages import Sealed

HOSPITALS = ("cleveland", "hungarian", "va")


def heart(hospital: str, inverted: bool) -> Source:
    """Called by one name at all hospitals, as a site's rows are."""
    records = SOURCES["heart"](hospitals=(hospital,)).load()
    return Source(lambda: replace(records, target=1 - records.target if inverted else records.target))


def hospitals(folder: Path, inverted: str = "", accept: tuple[str, ...] = (), **changes: Any) -> Federation:
    document = {
        "name": "directions",
        "data": {"source": "at-sites", "schema": "own"},
        "model": {"kind": "adapter", "latent": 3, "hidden": [3]},
        "training": {"rounds": 1},
        "evaluation": {"accept": list(accept)},
        "arms": [{"algorithm": "fedavg"}],
        **changes,
    }
    sources = {name: partial(heart, name, name == inverted) for name in HOSPITALS}
    return federation(document, folder, sources)


def test_hospitals_that_mean_the_same_are_let_through(tmp_path: Path) -> None:
    network = hospitals(tmp_path)
    network.run()
    assert not noticed(network.folder.read_json("results.json"), "label-direction")


@pytest.mark.parametrize("inverted", HOSPITALS)
def test_an_inverted_label_stops_the_run_before_anything_trains(inverted: str, tmp_path: Path) -> None:
    network = hospitals(tmp_path, inverted)
    with pytest.raises(CheckError, match="label-direction") as caught:
        network.run()
    assert caught.value.where == f"{inverted}: label-direction"
    assert "map the words under `labels`" in str(caught.value)
    assert "which hospitals approve anew" in str(caught.value)
    assert "train" not in {kind_of(asked) for _, asked, _ in network.transport.carried}


def test_a_study_may_accept_it_knowingly(tmp_path: Path) -> None:
    network = hospitals(tmp_path, "va", ("label-direction",))
    network.run()
    (notice,) = noticed(network.folder.read_json("results.json"), "label-direction")
    assert notice["site"] == "va"
    assert notice["accepted"]


def told_by(network: Federation) -> dict[str, dict[str, list[float]]]:
    return {
        site: body_of(answer)["directions"]
        for site, _, answer in network.transport.carried
        if kind_of(answer) == "facts"
    }


def test_with_columns_of_their_own_only_public_names_are_told_with_two_digits(tmp_path: Path) -> None:
    network = hospitals(tmp_path)
    network.run()
    directions = told_by(network)
    assert set(directions) == set(HOSPITALS)
    for columns in directions.values():
        assert {"age", "highest heart rate"} <= set(columns) <= set(SAME)
        for effect, error in columns.values():
            assert effect == round(effect, 2)
            assert error == round(error, 3)
    associations = {"age": Association(0.123, 0.0341, 40, 40), "ward round": Association(0.2, 0.1, 40, 40)}
    assert direction_payload(associations, only_public=True) == {"age": [0.12, 0.034]}
    assert direction_payload(associations, only_public=False) == {"age": [0.12, 0.034], "ward round": [0.2, 0.1]}


@pytest.mark.slow
def test_a_study_may_leave_it_out(tmp_path: Path) -> None:
    network = hospitals(tmp_path, "va", deployment={"compare_labels": False})
    network.run()
    assert told_by(network) == {site: {} for site in HOSPITALS}


def test_where_patients_are_promised_privacy_nothing_is_told(tmp_path: Path) -> None:
    network = hospitals(
        tmp_path,
        data={"source": "at-sites", "schema": "own", "missing": "range", "scale": "ranges", "public": True},
        privacy={"example": {"epsilon": 8.0, "delta": 1e-4, "clip": 1.0}},
        training={"rounds": 1, "batch_size": 16},
    )
    network.run()
    assert told_by(network) == {site: {} for site in HOSPITALS}


@pytest.mark.parametrize("sent", [[0.7, 0.1], [0.1, 0.0], [0.1], [0.1, float("nan")], ["a", 1], [0.1, 0.2, 0.3]])
def test_an_answer_that_is_no_direction_is_refused(sent: list[Any]) -> None:
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(json.dumps(sent), type=Direction)


def test_a_site_that_sends_such_an_answer_ends_the_run_with_a_clear_word(tmp_path: Path) -> None:
    network = hospitals(tmp_path)

    def lying(site: str, sealed: Sealed, answer: Sealed) -> Sealed:
        if (site, kind_of(answer)) != ("va", "facts"):
            return answer
        return changed(answer, site, lambda body, tensors: body.update(directions={"x": [7, 7]}))

    network.transport.after = lying
    with pytest.raises(DeployError, match="va sent an answer that cannot be used"):
        network.run()
