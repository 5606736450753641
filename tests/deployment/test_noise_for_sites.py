"""Privacy for whole sites in a deployment: the coordinator's noise is secret, and the same when a round is repeated."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.deployment.coordinator_restarts import Died, until_finished
from tests.deployment.in_process_federation import Federation, kind_of
from tests.deployment.private_studies import begin, private
from wardround.core import tree
from wardround.deployment.common.waves import WaveState
from wardround.deployment.coordinating.coordinator import Progress, write_progress
from wardround.privacy.dp.protection import site_noise
from wardround.protocol.messages import Sealed
from wardround.study.schema import SitePrivacy

SITE = {"epsilon": 4.0, "delta": 1e-3, "clip": 0.5}


def content(**changes: Any) -> dict[str, Any]:
    return private(["fedavg"], **{"privacy": {"site": SITE}, **changes})


def model(network: Federation) -> torch.Tensor:
    return torch.cat([leaf.flatten() for leaf in network.folder.load_model("fedavg", 3).values()])


def test_a_round_that_is_closed_twice_has_the_same_noise(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator dies when it has computed a round's model and before that is on disk, in every round."""
    network: Federation = begin(tmp_path, content())
    computed: dict[int, list[torch.Tensor]] = {}

    def dying(path: Path, progress: Progress[WaveState]) -> None:
        state = progress.state
        leaves = torch.cat([leaf.flatten() for leaf in tree.flatten(state.runs[0].server).values()])
        known = computed.setdefault(state.round * 2 + progress.done, [])
        known.append(leaves)
        if len(known) == 1:
            raise Died
        write_progress(path, progress)

    monkeypatch.setattr("wardround.deployment.coordinating.coordinator.write_progress", dying)
    until_finished(network, lambda again: None)
    assert len(computed) == 4
    for first, second in computed.values():
        assert torch.equal(first, second)


def test_the_noise_is_secret_and_of_the_right_size(tmp_path: Path) -> None:
    """Two runs of the same study differ by two draws of noise. After one round of five numbers and more, 99.99 % of
    such differences are within six standard deviations, and hardly any are below a hundredth of one."""
    secrets, models = [], []
    for name in ("one", "two"):
        network = begin(tmp_path / name, content(training={"rounds": 1}))

        def look(
            site: str, sealed: Sealed, answer: Sealed, path: Path = network.folder.path / "state" / "secret"
        ) -> Sealed:
            if kind_of(sealed) == "evaluate":
                assert path.stat().st_mode & 0o777 == 0o600
                secrets.append(path.read_bytes())
            return answer

        network.transport.after = look
        network.run()
        assert not (network.folder.path / "state").exists()
        models.append(model(network))
    assert len(set(secrets)) == 2
    spread = SITE["clip"] * site_noise(SitePrivacy(**SITE), 1.0, 1) / 4 * 2**0.5
    differences = (models[0] - models[1]).abs()
    assert float(differences.max()) < 6 * spread
    assert float(differences.max()) > spread / 100


def test_no_figure_of_a_single_site_is_kept(tmp_path: Path) -> None:
    network = begin(tmp_path, content(training={"rounds": 1}))
    network.run()
    records = network.folder.records()
    assert records[["loss", "update_norm", "divergence"]].isna().all(axis=None)
    assert [tuple(map(float, charge)) for charge in records["site_charge"]] == [
        (1.0, site_noise(SitePrivacy(**SITE), 1.0, 1), 1.0)
    ]


def test_a_round_without_a_site_costs_the_same(tmp_path: Path) -> None:
    """Three of four came, and the round costs what a round of four costs."""
    network = begin(tmp_path, content(training={"rounds": 2}, deployment={"quorum": 3, "smallest_cell": 1}))
    network.messenger.revoked = lambda: {"birch": "stolen"} if network.messenger.done else {}
    network.run()
    records = network.folder.records()
    assert records["sites"].map(len).tolist() == [4, 3]
    assert [float(charge[0]) for charge in records["site_charge"]] == [1.0, 1.0]
