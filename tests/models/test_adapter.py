"""Adapters: what is private, where they start, and what aligning them really descends on."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import wardround
from tests.representatives import represented
from wardround.core.errors import StudyError
from wardround.core.seeds import generator
from wardround.core.tree import Tree
from wardround.engines.serial import train_sites
from wardround.models import MODELS, Model, Shape
from wardround.models.adapter import ALL, FIRST, FOLLOW_ALL, OWN, in_space, latent_of, running_mean, statistic_of
from wardround.privacy.dp.example_dp import clipped_sum, row_gradients
from wardround.runs.plan import Plan
from wardround.tasks import class_task
from wardround.training.local import batches, local_train
from wardround.training.optimisers import optimiser_for
from wardround.training.rounds import rounds, site_model, start

LATENT = 6


def built(inputs: int = 4, classes: int = 2, **options: Any) -> Model:
    return MODELS["adapter"](**{"latent": LATENT, "hidden": (5,), **options})(Shape((inputs,), class_task(classes)))


def at(model: Model, names: list[str], seed: int = 3, site: str = "north") -> Tree:
    """A site's whole model before its first round."""
    assert model.at_site is not None
    own = model.at_site(seed, site, names)
    return {**model.init(seed)[0], **{name: leaf.float() for name, leaf in own.items()}}


def some_rows(columns: int, count: int = 30, seed: int = 1) -> tuple[Tensor, Tensor]:
    rng = generator(seed, "rows of an adapter")
    x = torch.from_numpy(rng.normal(size=(count, columns))).float()
    return x, torch.from_numpy(rng.integers(0, 2, count))


def heart(**changes: Any) -> Plan:
    raw: dict[str, Any] = {
        "name": "own-columns",
        "data": {"source": "heart", "hospitals": ["cleveland", "switzerland", "va"], "schema": "own"},
        "model": {"kind": "adapter", "latent": LATENT, "hidden": [5]},
        "training": {"rounds": 2},
        "arms": [{"algorithm": "fedavg"}],
        **changes,
    }
    return wardround.load_plan(*wardround.load_study(raw))


def test_adapter_and_what_a_site_knows_of_itself_are_private_the_rest_is_shared() -> None:
    model = built(align="coral", head="private")
    shared = [name for name in model.init(0)[0] if not model.is_private(name)]
    assert shared == ["encoder.0.weight", "encoder.0.bias", "encoder.1.weight", "encoder.1.bias", ALL]
    assert model.shared_size == 5 * 6 + 5 + 5 + 5 + (1 + 6 + 21)
    assert not built().is_private("head.weight")


def test_no_shared_weight_depends_on_how_many_columns_a_site_has() -> None:
    narrow_weights, other = built(2).init(7)[0], built(31).init(7)[0]
    for name in narrow_weights:
        if name != f"{FIRST}.weight" and name != f"{FIRST}.bias":
            assert torch.equal(narrow_weights[name], other[name]), name


def test_columns_of_one_name_begin_with_one_direction_at_every_site() -> None:
    model = built()
    north, south = at(model, ["age", "lab", "ward=a"]), at(model, ["height", "age"], site="south")
    first, second = north[f"{FIRST}.weight"][:, 0], south[f"{FIRST}.weight"][:, 1]
    torch.testing.assert_close(first * math.sqrt(3), second * math.sqrt(2))
    assert not torch.allclose(
        north[f"{FIRST}.weight"][:, 1] * math.sqrt(3), south[f"{FIRST}.weight"][:, 0] * math.sqrt(2)
    )
    apart = built(start="random")
    north_weights, other = at(apart, ["age"]), at(apart, ["age"], site="south")
    assert not torch.allclose(north_weights[f"{FIRST}.weight"], other[f"{FIRST}.weight"])
    assert torch.equal(north_weights[f"{FIRST}.weight"], at(apart, ["age"])[f"{FIRST}.weight"])


def test_a_model_takes_rows_of_any_width_with_the_adapter_of_that_width() -> None:
    model = built(4)
    for width in (1, 4, 9):
        params = at(model, [f"c{i}" for i in range(width)])
        scores, _ = model.logits(params, {}, some_rows(width)[0], None)
        assert scores.shape == (30, 1)


@pytest.mark.parametrize("deep", [(), (7,), (7, 8)])
def test_the_space_is_where_the_network_itself_puts_rows(deep: tuple[int, ...]) -> None:
    """`latent_of` and the module's own way must be one: with identities behind it the scores are the space."""
    model = MODELS["adapter"](latent=3, hidden=(), adapter_hidden=deep)(Shape((4,), class_task(3)))
    params = at(model, list("abcd"))
    params["head.weight"], params["head.bias"] = torch.eye(3), torch.zeros(3)
    x, _ = some_rows(4)
    torch.testing.assert_close(model.logits(params, {}, x, None)[0], latent_of(deep)(params, x))


def test_moments_are_those_of_the_space() -> None:
    """Means, and second moments whose squared differences add up to the Frobenius norm of the difference."""
    z = in_space(some_rows(LATENT, 500)[0])
    other = in_space(some_rows(LATENT, 400, seed=2)[0] + 0.5)
    statistic = statistic_of("coral", LATENT)
    apart = statistic(z).mean(0) - statistic(other).mean(0)
    second = z.mT @ z / len(z) - other.mT @ other / len(other)
    expected = ((z.mean(0) - other.mean(0)).square().sum() + second.square().sum()) / LATENT
    torch.testing.assert_close(apart.square().sum(), expected)


def test_random_features_give_the_kernel() -> None:
    """E[phi(a) phi(b)] = exp(-|a-b|^2 / (4 latent)); 128 features are right to some 1/sqrt(128)."""
    z = in_space(some_rows(LATENT, 40)[0]).double()
    features = statistic_of("mmd", LATENT)(z)
    kernel = torch.exp(-torch.cdist(z, z).square() / (4 * LATENT))
    assert (features @ features.mT - kernel).abs().max() < 4 / math.sqrt(128)
    assert (features @ features.mT - kernel).abs().mean() < 1 / math.sqrt(128)


@pytest.mark.parametrize("align", ["coral", "mmd"])
def test_the_pull_is_the_gradient_of_half_the_squared_distance_of_means(align: str) -> None:
    model = built(align=align, align_weight=2.5)
    params, (x, y) = at(model, list("abcd")), some_rows(4)
    statistic, latent = statistic_of(align, LATENT), latent_of(())
    seen = torch.cat([torch.ones(1), statistic(latent(params, x)).mean(0)])
    # of all it is known four tenths of the way what this is; the site's own is up to date
    middle = torch.linspace(-0.1, 0.1, len(seen) - 1)
    params[ALL], params[OWN] = torch.cat([torch.ones(1), middle]) * 0.4, seen
    plain = built().gradient({k: v for k, v in params.items() if k not in (ALL, OWN)}, {}, x, y, {})[0]
    pulled, loss, _ = model.gradient(params, {}, x, y, {})

    weight = params[f"{FIRST}.weight"].clone().requires_grad_()
    mean = statistic(latent({**params, f"{FIRST}.weight": weight}, x)).mean(0)
    distance = (mean - middle).square().sum() / 2
    (expected,) = torch.autograd.grad(2.5 * distance, weight)
    pull = pulled[f"{FIRST}.weight"] - plain[f"{FIRST}.weight"]
    torch.testing.assert_close(pull, expected, rtol=1e-4, atol=1e-6)
    assert expected.abs().max() > 1e-4
    # what is known of all, and of this site, moves towards what was seen; the rest of the shared part is untouched
    torch.testing.assert_close(running_mean(params[ALL]), middle)
    torch.testing.assert_close(pulled[ALL], FOLLOW_ALL * (params[ALL] - seen))
    torch.testing.assert_close(pulled[OWN], torch.zeros_like(params[OWN]), atol=1e-6, rtol=0)
    torch.testing.assert_close(pulled["encoder.0.weight"], plain["encoder.0.weight"])
    assert float(loss) == pytest.approx(float(model.task.row_losses(model.logits(params, {}, x, None)[0], y).mean()))


@pytest.mark.parametrize("align", ["none", "coral", "mmd"])
def test_a_patients_gradient_depends_on_no_other_patient(align: str) -> None:
    """So that a clip on it bounds what the patient can do: each row alone gives what it gives among others."""
    model = built(align=align)
    params, (x, y) = at(model, list("abcd")), some_rows(4, 8)
    together = row_gradients(model, params, x, y, {})
    for row in range(8):
        alone = row_gradients(model, params, x[row : row + 1], y[row : row + 1], {})
        for name in params:
            torch.testing.assert_close(together[name][row], alone[name][0])
    total, lengths = clipped_sum(model, params, x, y, {}, torch.arange(8), clip=0.01)
    length = math.sqrt(sum(float(leaf.square().sum()) for leaf in total.values()))
    assert lengths.min() > 0.01
    assert length <= 8 * 0.01 * (1 + 1e-6)


def test_hooks_give_the_gradient_lengths_of_a_site_with_another_width() -> None:
    """The module was made for four columns, the site has seven."""
    model = built(4)
    params, (x, y) = at(model, list("abcdefg")), some_rows(7, 12)
    each = row_gradients(model, params, x, y, {})
    expected = torch.stack([leaf.flatten(1).square().sum(1) for leaf in each.values()]).sum(0).sqrt()
    total, lengths = clipped_sum(model, params, x, y, {}, torch.arange(12), clip=1e9)
    torch.testing.assert_close(lengths, expected.double(), rtol=1e-5, atol=0)
    summed = each[f"{FIRST}.weight"].double().sum(0)
    torch.testing.assert_close(total[f"{FIRST}.weight"], summed, rtol=1e-4, atol=1e-6)


def test_each_hospital_gets_an_adapter_for_its_own_columns() -> None:
    plan = heart(
        data={
            "source": "heart",
            "schema": "own",
            "not_recorded": {
                "switzerland": ["chol", "fbs", "ca"],
                "va": ["slope", "ca", "thal"],
                "hungarian": ["slope", "ca", "thal"],
            },
        }
    )
    trial = plan.trial(plan.study.arms[0], 42)
    widths = {}
    for site, memory in start(trial).memories.items():
        widths[site] = memory.private[f"{FIRST}.weight"].shape[1]
    names = {site.name: site.recipe.names for site in trial.sites if site.recipe is not None}
    assert widths == {site: len(site_columns) for site, site_columns in names.items()}
    recorded = {
        site: {name.split("=")[0].removesuffix(" missing") for name in site_columns}
        for site, site_columns in names.items()
    }
    assert len(recorded["cleveland"]) == 13
    assert {"slope", "ca", "thal"}.isdisjoint(recorded["hungarian"])
    assert len(recorded["hungarian"]) == 10
    assert {"chol", "fbs", "ca"}.isdisjoint(recorded["switzerland"])
    assert len(recorded["switzerland"]) == 10
    assert {"slope", "ca", "thal"}.isdisjoint(recorded["va"])
    assert len(recorded["va"]) == 10


def test_training_moves_the_adapter_and_the_site_keeps_it() -> None:
    plan = heart()
    trial = plan.trial(plan.study.arms[0], 42)
    run, site = start(trial), trial.sites[1]
    order = batches(len(site.train), 1, 32, generator(1, "order"))
    shared = trial.algorithm.broadcast(run.server, 1)
    memory = run.memories[site.name]
    outcome = local_train(
        trial.algorithm,
        trial.model,
        optimiser_for(trial.training),
        site.train,
        order,
        shared,
        memory,
        0.1,
        generator(1, "masks"),
    )
    assert set(outcome.update["params"]) == {n for n in trial.model.init(0)[0] if not trial.model.is_private(n)}
    before, after = memory.private[f"{FIRST}.weight"], outcome.memory.private[f"{FIRST}.weight"]
    assert not torch.equal(before, after)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model": {"kind": "logistic"}}, 'logistic takes the same columns from all sites.*\n.*"adapter"'),
        ({"arms": [{"algorithm": "pooled"}]}, "rows with different columns cannot be pooled"),
        (
            {"data": {"source": "heart", "schema": "own", "scale": "federated"}},
            '"federated" adds up columns over sites',
        ),
        (
            {"arms": [{"algorithm": "fedavg", "model.align": "mmd", "training.optimiser": "adam"}]},
            "running means need plain steps",
        ),
        ({"arms": [{"algorithm": "fedadam", "model.align": "coral"}]}, "running means need plain steps"),
        (
            {"arms": [{"algorithm": "fedavg", "model.align": "coral", "training.lr": 0.51}]},
            "with a learning rate above 0.5 running means overshoot",
        ),
        ({"data": {"source": "heart", "not_recorded": {"va": ["calcium"]}}}, "no column is called 'calcium'"),
        ({"data": {"source": "heart", "not_recorded": {"vaa": ["ca"]}}}, "no hospital is called 'vaa'"),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason(changes: dict[str, Any], reason: str) -> None:
    def first_trial() -> None:
        plan = heart(**changes)
        plan.trial(plan.study.arms[0], 42)

    with pytest.raises(StudyError, match=reason):
        first_trial()


PROTECTED: dict[str, Any] = {
    "data": {"source": "heart", "schema": "own", "missing": "range", "scale": "ranges", "public": True},
    "training": {"rounds": 2, "batch_size": 24, "lr": 0.05},
    "privacy": {"example": {"epsilon": 4.0, "delta": 1e-3, "clip": 1.0}, "secure_sum": {}},
}


@pytest.mark.parametrize(
    "align", ["none", pytest.param("coral", marks=pytest.mark.slow), pytest.param("mmd", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize(
    "algorithm", represented(["fedavg", "fedprox", "scaffold", "fednova", "fedadam"], by=["scaffold", "fedadam"])
)
def test_patients_are_protected_and_sums_are_masked_with_every_algorithm(algorithm: str, align: str) -> None:
    """What is sent is the same leaves as without; what is charged is what the accountant asks for."""
    if algorithm == "fedadam" and align != "none":
        pytest.skip("refused: running means need plain steps")
    arm = {"algorithm": algorithm, "model.align": align}
    plan = heart(arms=[arm], **PROTECTED)
    trial = plan.trial(plan.study.arms[0], 42)
    run = start(trial)
    for after, record in rounds(run, trial, train_sites):
        assert not record.failed
        assert set(record.charges) == {site.name for site in trial.sites}
        run = after
    private = [name for name in trial.model.init(0)[0] if trial.model.is_private(name)]
    assert not set(private) & set(run.server["params"])
    moved = tree_distance(start(trial).server["params"], run.server["params"])
    assert 0 < moved < 10


def tree_distance(before: Tree, after: Tree) -> float:
    return math.sqrt(sum(float((after[name] - leaf).square().sum()) for name, leaf in before.items()))


def test_with_public_columns_nothing_of_a_sites_layout_depends_on_its_rows() -> None:
    """Which columns a site has is what its file and the study say; levels and ranges are declared."""
    absent = {"va": ["slope", "ca", "thal"]}
    plan = heart(**{**PROTECTED, "data": {**PROTECTED["data"], "not_recorded": absent}})
    layouts = {
        site.name: site.recipe.names
        for seed in (42, 43, 44)
        for site in plan.trial(plan.study.arms[0], seed).sites
        if site.recipe is not None
    }
    everything = layouts["cleveland"]
    assert layouts["hungarian"] == layouts["switzerland"] == everything
    assert layouts["va"] == tuple(
        n for n in everything if not n.startswith(("slope", "ca", "thal")) or n == "thalach" or n == "thalach missing"
    )


def test_images_have_no_columns() -> None:
    with pytest.raises(StudyError, match="is for tables"):
        MODELS["adapter"]()(Shape((1, 8, 8), class_task(2)))


@pytest.mark.slow
@pytest.mark.parametrize(("align", "weight"), [("coral", 1.0), ("mmd", 5.0)])
def test_aligned_hospitals_come_closer_in_the_space(align: str, weight: float) -> None:
    """The distance of their moments from the mean of all hospitals' is what alignment lowers."""

    def distance(how: str) -> float:
        arm = {"algorithm": "fedavg", "model.align": how, "model.align_weight": weight}
        plan = heart(arms=[arm], training={"rounds": 40, "local_epochs": 2, "lr": 0.05})
        trial = plan.trial(plan.study.arms[0], 42)
        run = start(trial)
        for after, _ in rounds(run, trial, train_sites):
            run = after
        means = []
        for number, site in enumerate(trial.sites):
            params = site_model(trial, run, number)[0]
            means.append(statistic_of(align, LATENT)(latent_of(())(params, site.train.x)).mean(0))
        middle = torch.stack(means).mean(0)
        return sum(float((mean - middle).square().sum()) for mean in means)

    assert distance(align) < 0.5 * distance("none")
