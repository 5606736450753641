"""Moments of late models across hospitals: those of a simulation, sent with the final model, for hospitals' bundles."""

from pathlib import Path

import pytest
import torch

from tests.deployment.hospital_files import study
from tests.deployment.in_process_federation import session_of
from tests.deployment.parity import assert_parity
from wardround.bundles import load_bundle
from wardround.core import tree
from wardround.core.errors import DeployError
from wardround.deployment.common.update_checks import broadcast_shapes, check_broadcast
from wardround.deployment.flat.site_bundle import bundle_of
from wardround.uncertainty.swag import fit_swag

SITE = "alder"


@pytest.mark.parametrize("secure", [False, True], ids=["plain", "secure"])
def test_a_hospital_draws_from_the_moments_that_a_simulation_collects(secure: bool, tmp_path: Path) -> None:
    document = study(
        ["fedavg"],
        uncertainty={"method": "swag", "passes": 5},
        training={"rounds": 6, "lr": 0.1},
        evaluation={"validation_share": 0.2},
        **({"privacy": {"secure_sum": {}}} if secure else {}),
    )
    both = assert_parity(document, tmp_path)
    session = session_of(both.deployed.transport.sites[SITE])
    bundle = load_bundle(bundle_of(session, arm="fedavg", out=tmp_path / "bundle"))
    assert bundle.uncertainty is not None
    assert bundle.uncertainty.swag is not None
    seed = both.plan.study.evaluation.seeds.first
    leaves = both.deployed.folder.load_model("fedavg", seed)
    fitted = fit_swag(tree.unflatten(tree.unflatten(leaves)["server"]), bundle.params)
    for name, leaf in fitted.variance.items():
        assert torch.equal(bundle.uncertainty.swag.variance[name], leaf)
        assert bool((leaf > 0).any())
    trial = both.plan.trial(both.plan.study.arms[0], seed)
    final = broadcast_shapes(trial, final=True)
    assert set(broadcast_shapes(trial)) < set(final)  # rounds send no more than without
    plain = {0: {"params": trial.model.init(0)[0]}}
    with pytest.raises(DeployError, match="another model"):  # a final model needs its moments
        check_broadcast({0: final}, plain, [0])
