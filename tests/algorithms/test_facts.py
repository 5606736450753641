"""What the papers say, held on to. Quadratics have an optimum that is known, so that drift is a number."""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.representatives import represented
from tests.small_federations import after, assert_same, assert_same_tree, each_round, ragged_sites, site, trial
from wardround.algorithms import ALGORITHMS, Algorithm
from wardround.algorithms.algorithm import Work
from wardround.algorithms.clustered import bipartition, clustered
from wardround.algorithms.fairness.afl import afl, on_simplex
from wardround.algorithms.fairness.ditto import ditto
from wardround.algorithms.fairness.qfedavg import qfedavg
from wardround.algorithms.fairness.reptile import reptile
from wardround.algorithms.fedavg import fedavg
from wardround.algorithms.fednova import fednova
from wardround.algorithms.fedopt import fedadam
from wardround.algorithms.fedprox import fedprox
from wardround.algorithms.fedprox_adaptive import fedprox_adaptive
from wardround.algorithms.local_only import local
from wardround.algorithms.pooled import pooled
from wardround.algorithms.scaffold import scaffold
from wardround.core import tree
from wardround.core.tree import State, Tree
from wardround.data.site import Site
from wardround.models import Model, Shape
from wardround.models.mlp import mlp
from wardround.models.model import SecondLabels
from wardround.study.schema import Stragglers
from wardround.tasks import class_task
from wardround.training.rounds import site_model, start
from wardround.training.trial import Run, Trial, assign

DROPPED = Stragglers(0.5, "drop")
LATE = Stragglers(0.5, "keep")


def quadratics() -> Model:
    """A row is (curvature, target): its loss is curvature/2 times the squared distance of w and the target."""

    def init(seed: int) -> tuple[Tree, Tree]:
        return {"w": torch.zeros(1)}, {}

    def gradient(params: Tree, x: Tensor, y: Tensor, share: Tensor) -> tuple[Tree, Tensor]:
        curvature, target, share = x[..., :1], x[..., 1:], share.unsqueeze(-1)
        away = params["w"].unsqueeze(-2) - target
        return {"w": (share * curvature * away).sum(-2)}, (share * curvature / 2 * away.square()).sum((-2, -1))

    return Quadratics(init, no_scores, class_task(2), closed_gradient=gradient)


class Quadratics(Model):
    def losses(
        self,
        params: Tree,
        buffers: Tree,
        x: Tensor,
        y: Tensor,
        masks: Tree | None,
        weights: Tensor | None = None,
        second: SecondLabels | None = None,
    ) -> tuple[Tensor, Tree]:
        return x[..., 0] / 2 * (params["w"] - x[..., 1]).square(), buffers


def no_scores(params: Tree, buffers: Tree, x: Tensor, masks: Tree | None) -> tuple[Tensor, Tree]:
    raise NotImplementedError("a quadratic has no scores")


def quadratic_sites(*rows: tuple[int, float, float]) -> list[Site]:
    """For each (number of rows, curvature, target) a site whose rows are all alike."""
    return [
        site(f"site-{number + 1}", torch.tensor([[curvature, target]] * count).double(), torch.zeros(count).long())
        for number, (count, curvature, target) in enumerate(rows)
    ]


def quadratic_trial(algorithm: Algorithm, sites: Sequence[Site], **training: Any) -> Trial:
    return trial(algorithm, sites, quadratics(), **{"batch_size": 1, "local_epochs": 1, "lr": 0.1} | training)


def optimum_reached(run: Run) -> float:
    return float(run.server["params"]["w"])


def length(leaves: Tree) -> float:
    return float(tree.squared_norm(leaves).sqrt())


# FedAvg and FedProx


def test_one_full_batch_step_of_fedavg_is_one_step_on_all_rows() -> None:
    """FedSGD: the mean by rows of the sites' gradients is the gradient on all rows."""
    options: dict[str, Any] = {"local_epochs": 1, "batch_size": 1000, "lr": 0.5}
    together, apart = after(trial(pooled(), **options), 1), after(trial(fedavg(), **options), 1)
    assert_same_tree(apart.server["params"], together.server["params"], atol=1e-14)


def test_fedavg_counts_a_site_by_its_rows() -> None:
    """One step with lr 0.1 from 0: sites with 1 and 3 rows move to 0.1 and 0.2; (1 x 0.1 + 3 x 0.2) / 4 = 0.175."""
    sites = quadratic_sites((1, 1, 1), (3, 1, 2))
    run = after(quadratic_trial(fedavg(), sites, batch_size=3), 1)
    assert optimum_reached(run) == pytest.approx(0.175, abs=1e-15)


def test_the_servers_rate_scales_the_mean_change() -> None:
    sites = quadratic_sites((1, 1, 1), (3, 1, 2))
    assert optimum_reached(after(quadratic_trial(fedavg(0.4), sites, batch_size=3), 1)) == pytest.approx(0.4 * 0.175)


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_fedprox_without_a_pull_is_fedavg_bit_for_bit(precision: str) -> None:
    sites = ragged_sites(dtype=getattr(torch, precision))
    options: dict[str, Any] = {"precision": precision, "local_epochs": 3, "share": 0.5, "stragglers": LATE}
    plain, proximal = trial(fedavg(), sites, **options), trial(fedprox(mu=0), sites, **options)
    for (a, _), (b, _) in zip(each_round(plain, 6), each_round(proximal, 6), strict=True):
        assert_same_tree(a.server["params"], b.server["params"])


def test_the_pull_is_the_gradient_of_half_mu_times_the_squared_distance() -> None:
    algorithm, mu = fedprox(mu=0.3), 0.3
    sent = {"a": torch.tensor([[1.0, -2.0]]).double(), "b": torch.tensor([0.5]).double()}
    here = {"a": torch.tensor([[4.0, 2.0]]).double(), "b": torch.tensor([0.5]).double()}
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in here.items()}
    term = mu / 2 * tree.squared_norm(tree.sub(leaves, sent))
    expected = dict(zip(leaves, torch.autograd.grad(term, list(leaves.values())), strict=True))
    pull = pull_on(algorithm, here, sent)
    assert_same_tree(pull, expected, atol=1e-15)
    assert length(pull) == pytest.approx(0.3 * 5)  # the distance is |(3, 4)| = 5
    twice = tree.add(here, tree.sub(here, sent))
    assert_same_tree(pull_on(algorithm, twice, sent), tree.scale(pull, 2), atol=1e-15)
    assert length(pull_on(algorithm, sent, sent)) == 0  # and not NaN, as the slope of an unsquared distance would be


def pull_on(algorithm: Algorithm, params: Tree, sent: Tree) -> Tree:
    shared = algorithm.broadcast(algorithm.init(sent, 1), 0)
    return algorithm.correct(tree.zeros_like(params), params, shared, {})


def test_the_pull_is_added_to_the_gradient() -> None:
    sent, here = {"w": torch.tensor([1.0])}, {"w": torch.tensor([3.0])}
    shared = fedprox(mu=0.5).broadcast(fedprox(mu=0.5).init(sent, 1), 0)
    corrected = fedprox(mu=0.5).correct({"w": torch.tensor([10.0])}, here, shared, {})
    assert corrected["w"].tolist() == [11.0]  # 10 + 0.5 x (3 - 1)


def test_a_larger_mu_keeps_sites_closer_to_the_shared_model() -> None:
    moved = []
    for mu in (0.0, 0.1, 0.5, 2.0):
        _, record = next(each_round(trial(fedprox(mu), local_epochs=10), 1))
        assert record.update_norm is not None
        moved.append(record.update_norm)
    assert moved == sorted(moved, reverse=True)
    assert moved[-1] < 0.6 * moved[0]


def test_a_very_large_mu_holds_the_site_where_it_began() -> None:
    """With lr x mu = 1/2 the local fixed point is slope / (1 + mu): 1/500 of the way to the optimum."""
    sites = quadratic_sites((1, 1, 1))
    run = after(quadratic_trial(fedprox(mu=499), sites, local_epochs=200, lr=0.001), 1)
    assert optimum_reached(run) == pytest.approx(1 / 500, abs=1e-12)


# Adaptive mu


def mu_after(losses: Sequence[float], mu: float = 1.0, step: float = 0.1, patience: int = 3) -> float:
    """mu when rounds with these losses are over."""
    algorithm = fedprox_adaptive(mu, step, patience)
    params = {"w": torch.zeros(2, dtype=torch.float64)}
    server = algorithm.init(params, 1)
    for loss in losses:
        mean = {"params": params, "loss": {"start": torch.tensor(loss, dtype=torch.float64)}}
        server = algorithm.aggregate(server, mean, 1.0)
    return float(server["settings"]["mu"])


def test_mu_rises_when_the_loss_rises() -> None:
    assert mu_after([1.0, 1.1]) == pytest.approx(1.1)
    assert mu_after([1.0, 1.1, 1.2]) == pytest.approx(1.2)


def test_mu_falls_when_the_loss_has_fallen_for_patience_rounds() -> None:
    assert mu_after([9, 10, 9, 8], patience=3) == pytest.approx(1.1)  # a rise, then two falls
    assert mu_after([9, 10, 9, 8, 7], patience=3) == pytest.approx(1.0)  # a rise, then three


def test_mu_waits_for_patience_rounds_again_after_it_fell() -> None:
    losses = [10.0, 11, *range(10, 0, -1)]  # a rise, then ten falls: three times three, and one
    assert mu_after(losses, patience=3) == pytest.approx(1.1 - 3 * 0.1)


def test_a_rise_interrupts_the_falls() -> None:
    assert mu_after([9, 10, 9, 8, 8.5, 8, 7], patience=3) == pytest.approx(1.2)  # two rises, never three falls


def test_the_first_loss_is_no_fall() -> None:
    """Three losses have fallen twice."""
    assert mu_after([3, 2, 1], patience=3) == pytest.approx(1.0)


def test_mu_is_never_negative() -> None:
    assert mu_after([10.0, 11, *range(10, 0, -1)], mu=0.0, step=0.4, patience=1) == 0.0


def test_an_unchanged_loss_leaves_mu_alone() -> None:
    assert mu_after([1.0] * 10, patience=2) == 1.0


def test_adaptive_mu_is_sent_and_used_in_the_next_round() -> None:
    arm = trial(fedprox_adaptive(mu=0.0, step=0.5), lr=3.0, local_epochs=5)  # so fast that the loss rises
    history = [run for run, _ in each_round(arm, 6)]
    used = [float(run.server["settings"]["mu"]) for run in history]
    assert max(used) > 0
    for run, mu in zip(history, used, strict=True):
        assert float(arm.algorithm.broadcast(run.server, 0)["settings"]["mu"]) == mu


# SCAFFOLD


def test_scaffolds_server_control_is_the_mean_of_the_sites_controls() -> None:
    """Also for sites that were absent or whose work was dropped."""
    arm = trial(scaffold(), share=0.7, stragglers=DROPPED, local_epochs=3, rounds=8)
    present: set[str] = set()
    for run, record in each_round(arm, 8):
        present |= set(record.sites)
        controls = [run.memories[hospital.name].algorithm for hospital in arm.sites]
        mean = tree.scale(reduce(tree.add, [control["control"] for control in controls]), 1 / len(controls))
        assert length(mean) > 0
        assert_same_tree(run.server["control"], mean, atol=1e-13)
        assert len(record.sites) < len(arm.sites)
        for hospital, control in zip(arm.sites, controls, strict=True):
            assert (length(control["control"]) > 0) == (hospital.name in present)


def test_scaffolds_controls_start_at_zero() -> None:
    arm = trial(scaffold())
    weights = {"weight": torch.ones(1, 3), "bias": torch.ones(1)}
    assert length(arm.algorithm.init_memory(weights)["control"]) == 0
    assert length(arm.algorithm.init(weights, 3)["control"]) == 0


def test_scaffolds_control_is_the_mean_gradient_along_the_path() -> None:
    """One site, three steps with lr 0.1 from 0 towards 1: gradients -1, -0.9, -0.81; their mean is -0.9033."""
    run = after(quadratic_trial(scaffold(), quadratic_sites((1, 1, 1)), local_epochs=3), 1)
    control = float(run.memories["site-1"].algorithm["control"]["w"])
    assert control == pytest.approx(-(1 + 0.9 + 0.81) / 3, abs=1e-14)
    assert float(run.server["control"]["w"]) == pytest.approx(control, abs=1e-14)


# curvature 1 about 0 and curvature 4 about 1: the slopes cancel where w = 4 (1 - w), at 0.8
TWO = ((1, 1.0, 0.0), (1, 4.0, 1.0))


def test_scaffold_removes_the_drift_that_fedavg_keeps() -> None:
    """Three local steps with lr 0.1 leave (1 - 0.1)^3 = 0.729 and (1 - 0.4)^3 = 0.216 of a site's distance to its own
    optimum. FedAvg rests where the moves cancel, 0.271 w = 0.784 (1 - w): at 0.784 / 1.055, not at 0.8.
    """
    sites = quadratic_sites(*TWO)
    drifted = after(quadratic_trial(fedavg(), sites, local_epochs=3), 60)
    assert optimum_reached(drifted) == pytest.approx(0.784 / 1.055, abs=1e-10)
    corrected = after(quadratic_trial(scaffold(), sites, local_epochs=3), 200)
    assert optimum_reached(corrected) == pytest.approx(0.8, abs=1e-10)


def test_scaffold_removes_drift_when_sites_are_absent() -> None:
    """Six sites, half of them in a round. Curvatures 1 and 4 about 0 and 1, three of each: the optimum is 0.8 again."""
    sites = quadratic_sites(*TWO * 3)
    run = after(quadratic_trial(scaffold(), sites, local_epochs=3, share=0.5), 500)
    assert optimum_reached(run) == pytest.approx(0.8, abs=1e-8)


# FedNova


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_fednova_is_fedavg_when_all_sites_take_as_many_steps(momentum: float) -> None:
    sites = ragged_sites(sizes=(9, 10, 11, 12))  # three batches of up to four rows each
    options: dict[str, Any] = {"momentum": momentum, "share": 0.5, "local_epochs": 2}
    plain, normalised = trial(fedavg(0.7), sites, **options), trial(fednova(0.7), sites, **options)
    assert_same_tree(after(plain, 6).server["params"], after(normalised, 6).server["params"], atol=1e-13)


@pytest.mark.parametrize("momentum", represented([0.0, 0.5], by=[0.5]))
def test_fednova_removes_the_inconsistency_that_unequal_steps_give_fedavg(momentum: float) -> None:
    """Sites of 1 and 4 rows with optima 0 and 1: the mean loss over rows is least at 0.8.

    Without momentum a step of size lr leaves 1 - lr of the distance. FedAvg rests where
    1/5 (1 - (1 - lr)) (0 - w) + 4/5 (1 - (1 - lr)^4) (1 - w) = 0. For small lr that is 0.2 w = 0.8 x 4 (1 - w), or
    3.2 / 3.4 = 0.941: the site that takes more steps counts for more. Dividing each move by its site's steps leaves
    an error in proportion to lr.
    """
    sites = quadratic_sites((1, 1, 0), (4, 1, 1))

    def error(algorithm: Algorithm, lr: float) -> float:
        arm = quadratic_trial(algorithm, sites, lr=lr, momentum=momentum)
        return optimum_reached(after(arm, int(8 / lr))) - 0.8

    plain, plain_slower = error(fedavg(), 0.08), error(fedavg(), 0.04)
    normalised, normalised_slower = error(fednova(), 0.08), error(fednova(), 0.04)
    assert min(plain, plain_slower) > 0.1
    assert abs(normalised) < 0.04
    assert normalised_slower == pytest.approx(normalised / 2, rel=0.2)
    if not momentum:
        rest = 0.8 * (1 - 0.92**4) / (0.2 * 0.08 + 0.8 * (1 - 0.92**4))
        assert plain == pytest.approx(rest - 0.8, abs=1e-9)
        rest = 0.8 * (1 - 0.92**4) / 4 / (0.2 * 0.08 + 0.8 * (1 - 0.92**4) / 4)
        assert normalised == pytest.approx(rest - 0.8, abs=1e-9)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("steps", [1, 2, 7])
def test_the_weight_of_gradients_is_the_papers_closed_form(momentum: float, steps: int) -> None:
    """|a| = (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho), read off from a site whose gradient is always 1."""

    def slope(params: Tree, x: Tensor, y: Tensor, share: Tensor) -> tuple[Tree, Tensor]:
        return {"w": torch.ones_like(params["w"])}, params["w"].sum(-1)

    model = replace(quadratics(), closed_gradient=slope)
    arm = trial(fednova(), quadratic_sites((steps, 0, 0)), model, batch_size=1, local_epochs=1, momentum=momentum, lr=1)
    sent, _ = sent_by(arm, 0)
    expected = (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)
    assert float(sent["work"]["weight"]) == pytest.approx(expected, rel=1e-14)
    assert float(sent["params"]["w"]) == pytest.approx(-1, rel=1e-14)  # moved by |a|, divided by it


def sent_by(arm: Trial, number: int) -> tuple[State, State]:
    """What a site's first round sends, and what it keeps."""
    caught: list[tuple[State, State]] = []

    def finish(params: Tree, shared: State, memory: State, work: Work) -> tuple[State, State]:
        sent = arm.algorithm.finish(params, shared, memory, work)
        caught.append(sent)
        return sent

    after(replace(arm, algorithm=replace(arm.algorithm, finish=finish)), 1)
    return caught[number]


# FedOpt


def test_fedadam_without_moments_and_with_a_large_tau_is_scaled_fedavg() -> None:
    """x + eta delta / (|delta| + tau) is x + (eta / tau) delta when tau is far larger than any change."""
    adaptive = trial(fedadam(server_lr=0.5e9, beta1=0.0, beta2=0.0, tau=1e9), share=0.5, local_epochs=3)
    scaled = trial(fedavg(server_lr=0.5), share=0.5, local_epochs=3)
    assert_same_tree(after(adaptive, 6).server["params"], after(scaled, 6).server["params"], atol=1e-8)


def test_the_first_step_of_fedadam_by_hand() -> None:
    """A site moves by 0.1 x 2 = 0.2: m = 0.1 x 0.2 = 0.02, v = 0.99 x 0.01^2 + 0.01 x 0.2^2 = 0.000499."""
    arm = quadratic_trial(fedadam(server_lr=0.1, beta1=0.9, beta2=0.99, tau=0.01), quadratic_sites((1, 1, 2)))
    run = after(arm, 1)
    assert float(run.server["m"]["w"]) == pytest.approx(0.02, abs=1e-15)
    assert float(run.server["v"]["w"]) == pytest.approx(0.000499, abs=1e-15)
    assert optimum_reached(run) == pytest.approx(0.1 * 0.02 / (0.000499**0.5 + 0.01), abs=1e-15)


@pytest.mark.parametrize("name", ["fedadam", "fedyogi", "fedadagrad"])
def test_moments_stay_at_the_coordinator(name: str) -> None:
    arm = trial(ALGORITHMS[name](), share=0.5)
    plain = trial(fedavg(), share=0.5)
    run, record = next(each_round(arm, 1))
    assert {"m", "v"} <= run.server.keys()
    assert arm.algorithm.broadcast(run.server, 0).keys() == {"params"}
    _, expected = next(each_round(plain, 1))
    assert (record.bytes_down, record.bytes_up) == (expected.bytes_down, expected.bytes_up)


# Clustered


def test_clustered_splits_two_groups_with_opposite_optima() -> None:
    """Sites 1, 2 and 5 want 1; sites 3 and 4 want -1. One model for all would rest between them."""
    sites = quadratic_sites((2, 1, 1), (3, 1, 1), (4, 1, -1), (1, 1, -1), (2, 1, 1))
    arm = quadratic_trial(clustered(), sites, batch_size=4, local_epochs=3)
    run = after(arm, 100)
    of_site = run.server["cluster"]["of_site"].tolist()
    assert of_site[0] == of_site[1] == of_site[4] != of_site[2] == of_site[3]
    models = [float(site_model(arm, run, number)[0]["w"]) for number in range(5)]
    assert models == pytest.approx([1, 1, -1, -1, 1], abs=1e-9)
    stuck = after(quadratic_trial(fedavg(), sites, batch_size=4, local_epochs=3), 100)
    assert abs(optimum_reached(stuck)) < 0.5


def test_clustered_waits_for_its_warm_up() -> None:
    sites = quadratic_sites((2, 1, 1), (2, 1, -1))
    arm = quadratic_trial(clustered(warm_up=4), sites)
    assert [int(run.server["cluster"]["used"]) for run, _ in each_round(arm, 6)] == [1, 1, 1, 1, 2, 2]


def test_clustered_does_not_split_a_cluster_that_is_not_complete() -> None:
    sites = quadratic_sites((2, 1, 1), (2, 1, -1), (2, 1, 1), (2, 1, -1))
    run = after(quadratic_trial(clustered(), sites, share=0.75), 30)
    assert int(run.server["cluster"]["used"]) == 1


def test_clustered_has_no_more_models_than_slots() -> None:
    sites = quadratic_sites(*[(2, 1.0, float(target)) for target in (-9, -3, 3, 9)])
    arm = quadratic_trial(clustered(slots=3, ratio=0.9, gamma=0.0), sites)
    run = after(arm, 60)
    assert int(run.server["cluster"]["used"]) == 3
    assert run.server["params"]["w"].shape == (3, 1)


def test_clustered_with_one_kind_of_site_is_fedavg() -> None:
    """The same rows at every site: they pull in one direction and stay together."""
    x, y = ragged_sites(sizes=(23,))[0].train.everything(torch.float64)
    sites = [site(f"site-{number}", x, y) for number in range(4)]
    options: dict[str, Any] = {"batch_size": 23, "local_epochs": 2}
    run = after(trial(clustered(), sites, **options), 60)
    assert int(run.server["cluster"]["used"]) == 1
    plain = after(trial(fedavg(), sites, **options), 60)
    assert_same_tree(tree.apply(lambda leaf: leaf[0], run.server["params"]), plain.server["params"], atol=1e-12)


def test_clustered_keeps_a_homogeneous_federation_together() -> None:
    """Ten samples of one population. Near the optimum the mean update vanishes and what is left is noise."""
    rng = np.random.default_rng(0)
    rule = rng.normal(size=10)
    sites = []
    for number in range(10):
        x = rng.normal(size=(500, 10))
        y = (x @ rule + rng.normal(size=500) > 0).astype(int)
        sites.append(site(f"site-{number}", torch.tensor(x), torch.tensor(y)))
    run = after(trial(clustered(), sites, local_epochs=1, batch_size=32), 30)
    assert int(run.server["cluster"]["used"]) == 1


def test_a_cut_separates_those_that_are_least_alike() -> None:
    """Of the cuts of four, {0, 2} from {1, 3} has the smallest largest similarity across: 0.1."""
    similarity = torch.tensor([[1.0, 0.1, 0.9, 0.0], [0.1, 1.0, 0.0, 0.8], [0.9, 0.0, 1.0, 0.1], [0.0, 0.8, 0.1, 1.0]])
    assert bipartition(similarity).tolist() == [False, True, False, True]


# Fairness between hospitals


@pytest.mark.parametrize(("precision", "atol"), [("float32", 1e-6), ("float64", 1e-14)])
def test_qfedavg_with_q_0_is_fedavg_but_for_rounding(precision: str, atol: float) -> None:
    """Both divide by the weights of the sites, one after the other of the change."""
    sites = ragged_sites(dtype=getattr(torch, precision))
    options: dict[str, Any] = {"precision": precision, "local_epochs": 3, "share": 0.5, "stragglers": LATE}
    plain, fair = trial(fedavg(), sites, **options), trial(qfedavg(q=0), sites, **options)
    for (a, _), (b, _) in zip(each_round(plain, 6), each_round(fair, 6), strict=True):
        assert_same_tree(a.server["params"], b.server["params"], atol)


def site_losses(run: Run, rows: Sequence[tuple[int, float, float]]) -> list[float]:
    return [curvature / 2 * (optimum_reached(run) - target) ** 2 for _, curvature, target in rows]


ONE_APART = [(3, 1.0, 0.0), (3, 1.0, 0.1), (3, 1.0, -0.1), (3, 1.0, 1.0)]  # three agree, one does not


def test_the_larger_q_is_the_closer_the_losses_of_the_sites_are() -> None:
    """The optimum of the objective is known: the sum over sites of |w - target| to 2q + 1, with its sign, is 0."""
    sites, spreads = quadratic_sites(*ONE_APART), []
    for q in (0.0, 1.0, 3.0):
        reached = after(quadratic_trial(qfedavg(q=q), sites, batch_size=3, lr=0.05), 400)
        w = optimum_reached(reached)
        slopes = [np.sign(w - target) * abs(w - target) ** (2 * q + 1) for *_, target in ONE_APART]
        assert sum(slopes) == pytest.approx(0, abs=1e-3)
        spreads.append(np.std(site_losses(reached, ONE_APART)))
    assert spreads[0] > spreads[1] > spreads[2]


def test_afl_raises_the_worst_hospital() -> None:
    """The smallest largest loss is halfway between the outermost targets, and only these two keep a weight."""
    sites = quadratic_sites(*ONE_APART)
    plain = after(quadratic_trial(fedavg(), sites, batch_size=3), 100)
    fair = after(quadratic_trial(afl(mixture_lr=0.05), sites, batch_size=3), 1500)
    assert optimum_reached(plain) == pytest.approx(0.25, abs=1e-4)
    assert optimum_reached(fair) == pytest.approx(0.45, abs=0.02)
    assert max(site_losses(fair, ONE_APART)) < 0.6 * max(site_losses(plain, ONE_APART))
    weights = fair.server["mixture"]["weight"]
    assert float(weights.sum()) == pytest.approx(1)
    assert float(weights[2] + weights[3]) == pytest.approx(1, abs=0.01)


def test_sites_that_are_away_keep_their_weight_in_the_mixture() -> None:
    arm = trial(afl(mixture_lr=0.5), share=0.5)
    before = start(arm).server["mixture"]["weight"]
    assert before.tolist() == pytest.approx([1 / 6] * 6)
    for run, record in each_round(arm, 4):
        now = run.server["mixture"]["weight"]
        away = [place for place, hospital in enumerate(arm.sites) if hospital.name not in record.sites]
        assert len(away) == 3
        assert torch.equal(now[away], before[away])
        assert float(now.sum()) == pytest.approx(1)
        before = now


def test_the_projection_is_the_closest_point_of_the_simplex() -> None:
    rng = np.random.default_rng(0)
    for total in (1.0, 0.3):
        values = torch.tensor(rng.normal(size=5))
        closest = on_simplex(values, torch.tensor(total))
        assert float(closest.min()) >= 0
        assert float(closest.sum()) == pytest.approx(total)
        others = torch.tensor(rng.dirichlet(np.ones(5), 2000)) * total
        assert float((others - values).norm(dim=1).min()) >= float((closest - values).norm()) - 1e-12


@pytest.mark.parametrize(
    "model", [None, mlp(hidden=(4,), dropout=0.3)(Shape((3,), class_task(2)))], ids=["", "dropout"]
)
def test_ditto_without_a_pull_is_local_training_bit_for_bit(model: Model | None) -> None:
    options: dict[str, Any] = {"share": 0.5, "stragglers": LATE, "local_epochs": 3, "momentum": 0.5}
    apart, own = trial(local(), model=model, **options), trial(ditto(lam=0), model=model, **options)
    shared = trial(fedavg(), model=model, **options)
    runs = zip(each_round(apart, 5), each_round(own, 5), each_round(shared, 5), strict=True)
    for (alone, _), (run, _), (averaged, _) in runs:
        assert_same_tree(run.server["params"], averaged.server["params"])
        for number in range(len(own.sites)):
            assert_same_tree(site_model(own, run, number)[0], site_model(apart, alone, number)[0])


def test_the_more_ditto_pulls_the_closer_a_sites_model_is_to_the_shared_one() -> None:
    distances = []
    for lam in (0.0, 1.0, 10.0, 300.0):
        arm = trial(ditto(lam=lam), lr=0.003)
        *_, last, ended = [start(arm), *(run for run, _ in each_round(arm, 40))]
        sent = last.server["params"]  # what the sites' models were last pulled to
        distances.append(max(length(tree.sub(site_model(arm, ended, n)[0], sent)) for n in range(len(arm.sites))))
    assert distances == sorted(distances, reverse=True)
    assert distances[-1] < 0.02 * distances[0]


def test_what_ditto_sends_is_what_fedavg_sends() -> None:
    sites = ragged_sites()
    (_, plain), (_, own) = (next(each_round(trial(algorithm, sites), 1)) for algorithm in (fedavg(), ditto()))
    assert own.bytes_up == plain.bytes_up
    assert own.update_norm == plain.update_norm


def test_reptile_predicts_with_what_local_work_made_of_the_shared_model() -> None:
    arm = trial(reptile(server_lr=0.5), share=0.5)
    before = start(arm)
    for run, record in each_round(arm, 3):
        for number, hospital in enumerate(arm.sites):
            if hospital.name in record.sites:
                alone = replace(arm, sites=(hospital,), scored=(hospital,), algorithm=fedavg())
                alone = replace(alone, training=replace(alone.training, share=1.0))
                stood = replace(before, server=start(alone).server | {"params": before.server["params"]})
                stood = replace(stood, memories=start(alone).memories)
                tuned, _ = next(each_round(alone, record.round, stood))
                assert_same_tree(site_model(arm, run, number)[0], tuned.server["params"], 1e-14)
            elif not run.memories[hospital.name].algorithm["work"]["done"]:
                assert_same_tree(site_model(arm, run, number)[0], run.server["params"])
        before = run


# Local and pooled


def test_local_sends_nothing() -> None:
    arm = trial(local(), share=0.5)
    for run, record in each_round(arm, 3):
        assert (record.bytes_down, record.bytes_up, record.change) == (0, 0, None)
        assert run.server == {}
        assert record.sites


def test_local_sites_are_not_influenced_by_others() -> None:
    sites = ragged_sites()
    others = (sites[0], *ragged_sites(seed=1)[1:])
    first, second = after(trial(local(), sites), 4), after(trial(local(), others), 4)
    assert_same_tree(first.memories["site-1"].algorithm["params"], second.memories["site-1"].algorithm["params"])
    assert not torch.equal(
        first.memories["site-2"].algorithm["params"]["weight"], second.memories["site-2"].algorithm["params"]["weight"]
    )


def test_pooled_has_one_site_with_every_row_and_sends_no_model() -> None:
    arm = trial(pooled())
    run, record = next(each_round(arm, 1))
    assert run.memories.keys() == {"pooled"}
    assert (record.bytes_down, record.bytes_up) == (0, 0)
    assert [arm.trainer_of(number) for number in range(len(arm.scored))] == [0] * len(arm.scored)


# Absent and late sites


EVERY_ALGORITHM = pytest.mark.parametrize("name", [name for name, make in ALGORITHMS.items() if not make().pools])


@EVERY_ALGORITHM
def test_a_dropped_site_changes_neither_the_server_nor_its_memory(name: str) -> None:
    """Its rows may as well be others."""
    sites, stragglers = ragged_sites(), Stragglers(0.5, "drop")
    arm = trial(ALGORITHMS[name](), sites, stragglers=stragglers)
    before = after(trial(ALGORITHMS[name](), sites), 1)  # so that there is a memory to spoil
    (run, record), *_ = each_round(arm, 2, before)
    assert len(record.dropped) == 3
    for dropped in record.dropped:
        assert run.memories[dropped] is before.memories[dropped]
    others = dict(zip((hospital.name for hospital in sites), ragged_sites(seed=9), strict=True))
    spoilt = [others[hospital.name] if hospital.name in record.dropped else hospital for hospital in sites]
    (same, _), *_ = each_round(trial(ALGORITHMS[name](), spoilt, stragglers=stragglers), 2, before)
    assert_same(run, same)


@EVERY_ALGORITHM
def test_a_round_in_which_everyone_is_dropped_changes_nothing(name: str) -> None:
    arm = trial(ALGORITHMS[name](), stragglers=Stragglers(1.0, "drop"))
    before = after(trial(ALGORITHMS[name]()), 2)
    (run, record), *_ = each_round(arm, 3, before)
    assert_same(replace(run, round=2), before)
    assert (record.loss, record.sites, record.bytes_up) == (None, (), 0)
    assert record.change == (None if arm.algorithm.personal else 0.0)
    assert len(record.dropped) == len(arm.sites)


@EVERY_ALGORITHM
def test_an_absent_site_keeps_its_memory(name: str) -> None:
    arm = trial(ALGORITHMS[name](), share=0.5)
    before = after(trial(ALGORITHMS[name]()), 1)
    (run, record), *_ = each_round(arm, 2, before)
    absent = run.memories.keys() - set(record.sites)
    assert len(absent) == 3
    for site_name in absent:
        assert run.memories[site_name] is before.memories[site_name]


def test_a_late_site_does_the_beginning_of_its_work() -> None:
    """Its batches are the first ones of those that it would have had."""
    arm = trial(fedavg(), ragged_sites(sizes=(11,)), local_epochs=4)
    whole = batches_seen(arm)
    assert len(whole) == 12  # four times three
    for epochs in (1, 2, 3):
        late = batches_seen(replace(arm, training=replace(arm.training, local_epochs=epochs)))
        assert len(late) == 3 * epochs
        assert all(torch.equal(a, b) for a, b in zip(late, whole, strict=False))


def batches_seen(arm: Trial, rounds: int = 1) -> list[Tensor]:
    """The rows of every step, in order."""
    seen: list[Tensor] = []
    gradient = arm.model.closed_gradient
    assert gradient is not None

    def spy(params: Tree, x: Tensor, y: Tensor, share: Tensor) -> tuple[Tree, Tensor]:
        seen.append(x)
        return gradient(params, x, y, share)

    after(replace(arm, model=replace(arm.model, closed_gradient=spy)), rounds)
    return seen


def roster(arm: Trial) -> list[tuple[int, int, int, bool]]:
    return [(t, a.number, a.epochs, a.counts) for t in range(10) for a in assign(arm, t)]


# Pairing


@EVERY_ALGORITHM
def test_two_arms_with_one_seed_see_the_same_batches_and_rosters(name: str) -> None:
    options: dict[str, Any] = {"share": 0.7, "stragglers": LATE, "local_epochs": 3}
    first, second = trial(fedavg(), **options), trial(ALGORITHMS[name](), **options)
    other = trial(ALGORITHMS[name](), seed=8, **options)
    assert roster(first) == roster(second) != roster(other)
    # where sites train a second model, it takes the same batches again
    shared_work = replace(second, algorithm=replace(second.algorithm, own=None))
    a, b, c = batches_seen(first, 3), batches_seen(shared_work, 3), batches_seen(other, 3)
    assert len(a) == len(b)
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
    if second.algorithm.own is not None:
        again = sorted(batch.numpy().tobytes() for batch in batches_seen(second, 3))
        assert again == sorted(2 * [batch.numpy().tobytes() for batch in a])
    assert any(x.shape != y.shape or not torch.equal(x, y) for x, y in zip(a, c, strict=False))


@EVERY_ALGORITHM
def test_two_arms_with_one_seed_start_from_the_same_model(name: str) -> None:
    model = mlp(hidden=(4,))(Shape((3,), class_task(2)))
    first, second = trial(fedavg(), model=model), trial(ALGORITHMS[name](), model=model)
    assert_same_tree(site_model(first, start(first), 2)[0], site_model(second, start(second), 2)[0])
