"""Mistakes in algorithms, most of them made by other codebases."""

from typing import Any

import torch

from tests.mutants.mutant import Mutant, with_field, with_part
from wardround.algorithms.clustered import bipartition, clustered, split
from wardround.algorithms.fairness.afl import on_simplex
from wardround.algorithms.fairness.ditto import correct as ditto_pull
from wardround.algorithms.fairness.ditto import own_model as ditto_model
from wardround.algorithms.fairness.qfedavg import step as qfedavg_step
from wardround.algorithms.fedavg import fedavg
from wardround.algorithms.fednova import fednova
from wardround.algorithms.fedopt import _fedopt as fedopt
from wardround.algorithms.fedprox import correct as proximal_pull
from wardround.algorithms.fedprox_adaptive import fedprox_adaptive
from wardround.algorithms.local_only import local
from wardround.algorithms.regions import Regions
from wardround.algorithms.scaffold import scaffold
from wardround.core import tree

FACTS = "algorithms/test_facts.py"
REFERENCES = "algorithms/test_against_references.py"
HIERARCHICAL = "algorithms/test_hierarchical.py"


def _unit_pull(original: Any, grad: Any, params: Any, shared: Any, memory: Any) -> Any:
    away = tree.sub(params, shared["params"])
    return tree.add_scaled(grad, away, shared["settings"]["mu"] / tree.squared_norm(away).sqrt().clamp(min=1e-12))


def _pull_times(factor: float) -> Any:
    def correct(original: Any, grad: Any, params: Any, shared: Any, memory: Any) -> Any:
        return tree.add_scaled(grad, tree.sub(params, shared["params"]), factor * shared["settings"]["mu"])

    return correct


def _mu_turned_round(aggregate: Any, server: Any, mean: Any, share: float) -> Any:
    after = aggregate(server, mean, share)
    mu = 2 * server["settings"]["mu"] - after["settings"]["mu"]
    return {**after, "settings": {**after["settings"], "mu": mu.clamp(min=0)}}


def _without_floor(aggregate: Any, server: Any, mean: Any, share: float) -> Any:
    far = 100.0  # from the floor
    settings = server["settings"]
    after = aggregate({**server, "settings": {**settings, "mu": settings["mu"] + far}}, mean, share)
    return {**after, "settings": {**settings, "mu": after["settings"]["mu"] - far}}


def _counts_on(aggregate: Any, server: Any, mean: Any, share: float) -> Any:
    after = aggregate(server, mean, share)
    fell = mean["loss"]["start"] < server["watch"]["last_loss"]
    falls = torch.where(fell & server["watch"]["last_loss"].isfinite(), server["watch"]["falls"] + 1, 0.0)
    return {**after, "watch": {**after["watch"], "falls": falls}}


def _rate_of_one(aggregate: Any, server: Any, mean: Any, share: float) -> Any:
    rate = torch.ones_like(server["settings"]["server_lr"])
    after = aggregate({**server, "settings": {**server["settings"], "server_lr": rate}}, mean, share)
    return {**after, "settings": server["settings"]}


def _second_moment(wrong: Any) -> Any:
    return lambda original, second, *settings: original(lambda v, d: wrong(second, v, d), *settings)


MUTANTS = (
    Mutant(
        "scaffold drops the memory that it returns",
        scaffold,
        with_part(finish=lambda right, params, shared, memory, work: (right(params, shared, memory, work)[0], memory)),
        "the server's control is the mean of the sites' controls",
        (f"{FACTS}::test_scaffolds_server_control_is_the_mean_of_the_sites_controls",),
    ),
    Mutant(
        "scaffold's control starts from the weights",
        scaffold,
        with_part(init_memory=lambda right, params: {"control": params}),
        "controls start at zero",
        (f"{FACTS}::test_scaffolds_controls_start_at_zero",),
    ),
    Mutant(
        "scaffold's server control ignores the share of sites",
        scaffold,
        with_part(aggregate=lambda right, server, mean, share: right(server, mean, 1.0)),
        "the server's control is the mean over all sites, not over those that came",
        (
            f"{FACTS}::test_scaffolds_server_control_is_the_mean_of_the_sites_controls",
            f"{FACTS}::test_scaffold_removes_drift_when_sites_are_absent",
        ),
    ),
    Mutant(
        "scaffold corrects in the wrong direction",
        scaffold,
        with_part(correct=lambda right, grad, *rest: tree.sub(tree.scale(grad, 2.0), right(grad, *rest))),
        "a step is corrected by the server's control minus the site's",
        (f"{FACTS}::test_scaffold_removes_the_drift_that_fedavg_keeps",),
    ),
    Mutant(
        "scaffold forgets the learning rate in its control",
        scaffold,
        with_part(
            finish=lambda right, params, shared, memory, work: right(
                params, shared, memory, work._replace(lr_sum=work.steps)
            )
        ),
        "a control is the mean gradient along the path",
        (f"{FACTS}::test_scaffolds_control_is_the_mean_gradient_along_the_path",),
    ),
    Mutant(
        "scaffold weights sites by rows",
        scaffold,
        with_field(weighting="samples"),
        "SCAFFOLD's mean is over sites, each counted once",
        (f"{REFERENCES}::test_scaffold",),
    ),
    Mutant(
        "qfedavg forgets how fast its objective bends",
        qfedavg_step,
        lambda original, mean: mean["params"],
        "the sum of changes is divided by that of the h_k",
        (f"{REFERENCES}::test_qfedavg",),
    ),
    Mutant(
        "afl shares weights out instead of projecting them",
        on_simplex,
        lambda original, values, total: values / values.sum() * total,
        "the projection is the closest point of the simplex",
        (f"{FACTS}::test_the_projection_is_the_closest_point_of_the_simplex", f"{REFERENCES}::test_afl"),
    ),
    Mutant(
        "ditto forgets the pull",
        ditto_pull,
        lambda original, grad, params, shared, memory: grad,
        "the larger lam is, the closer a site's model is to the shared one",
        (f"{FACTS}::test_the_more_ditto_pulls_the_closer_a_sites_model_is_to_the_shared_one",),
    ),
    Mutant(
        "ditto's own model starts anew in each round",
        ditto_model,
        lambda original, shared, memory: shared["params"],
        "a site's model goes on from where it was",
        (f"{FACTS}::test_ditto_without_a_pull_is_local_training_bit_for_bit", f"{REFERENCES}::test_ditto"),
    ),
    Mutant(
        "fedprox forgets the square",
        proximal_pull,
        _unit_pull,
        "the proximal gradient is mu (w - w_t)",
        (f"{FACTS}::test_the_pull_is_the_gradient_of_half_mu_times_the_squared_distance",),
    ),
    Mutant(
        "fedprox forgets the half",
        proximal_pull,
        _pull_times(2.0),
        "the proximal gradient is mu (w - w_t)",
        (f"{FACTS}::test_the_pull_is_the_gradient_of_half_mu_times_the_squared_distance",),
    ),
    Mutant(
        "fedprox pushes instead of pulling",
        proximal_pull,
        _pull_times(-1.0),
        "a larger mu keeps sites closer to the shared model",
        (f"{FACTS}::test_a_larger_mu_keeps_sites_closer_to_the_shared_model",),
    ),
    Mutant(
        "adaptive mu moves the wrong way",
        fedprox_adaptive,
        with_part(aggregate=_mu_turned_round),
        "mu rises when the loss rises",
        (f"{FACTS}::test_mu_rises_when_the_loss_rises",),
    ),
    Mutant(
        "adaptive mu becomes negative",
        fedprox_adaptive,
        with_part(aggregate=_without_floor),
        "mu is never negative",
        (f"{FACTS}::test_mu_is_never_negative",),
    ),
    Mutant(
        "adaptive mu does not wait again after it fell",
        fedprox_adaptive,
        with_part(aggregate=_counts_on),
        "mu waits for `patience` rounds again after it fell",
        (f"{FACTS}::test_mu_waits_for_patience_rounds_again_after_it_fell",),
    ),
    Mutant(
        "fedavg ignores the server's rate",
        fedavg,
        with_part(aggregate=_rate_of_one),
        "the server's rate scales the mean change",
        (f"{FACTS}::test_the_servers_rate_scales_the_mean_change",),
    ),
    Mutant(
        "fednova divides by steps instead of the weight of gradients",
        fednova,
        with_part(
            finish=lambda right, params, shared, memory, work: right(
                params, shared, memory, work._replace(gradient_weight=work.steps)
            )
        ),
        "with momentum a gradient counts for more than its own step",
        (f"{REFERENCES}::test_fednova",),
    ),
    Mutant(
        "fednova takes one step for the whole round",
        fednova,
        with_part(
            aggregate=lambda right, server, mean, share: right(
                server, {**mean, "work": {"weight": torch.ones_like(mean["work"]["weight"])}}, share
            )
        ),
        "FedNova is FedAvg when all sites take as many steps",
        (f"{FACTS}::test_fednova_is_fedavg_when_all_sites_take_as_many_steps",),
    ),
    Mutant(
        "fedadam's second moment forgets the square",
        fedopt,
        _second_moment(lambda second, v, delta: second(v, delta.abs().sqrt())),
        "the first step of FedAdam by hand",
        (f"{FACTS}::test_the_first_step_of_fedadam_by_hand",),
    ),
    Mutant(
        "a second moment moves the wrong way",
        fedopt,
        _second_moment(lambda second, v, delta: (2 * v - second(v, delta)).abs()),
        "FedAdam, FedYogi and FedAdagrad are those of Reddi et al.",
        (f"{REFERENCES}::test_fedopt",),
    ),
    Mutant(
        "fedopt's second moment starts at zero",
        fedopt,
        with_part(init=lambda right, params, sites: {**right(params, sites), "v": tree.zeros_like(params)}),
        "the second moment starts at tau squared",
        (f"{REFERENCES}::test_fedopt",),
    ),
    Mutant(
        "fedopt sends its moments to the sites",
        fedopt,
        with_part(broadcast=lambda right, server, site: server),
        "moments stay at the coordinator",
        (f"{FACTS}::test_moments_stay_at_the_coordinator",),
    ),
    Mutant(
        "clustered never splits",
        split,
        lambda original, *args: [],
        "two groups with opposite optima are split",
        (f"{FACTS}::test_clustered_splits_two_groups_with_opposite_optima",),
    ),
    Mutant(
        "clustered splits before its warm-up",
        clustered,
        lambda original, *args, **settings: original(*args, **{**settings, "warm_up": 0}),
        "no cluster is split before the warm-up is over",
        (f"{FACTS}::test_clustered_waits_for_its_warm_up",),
    ),
    Mutant(
        "clustered cuts between the most similar sites",
        bipartition,
        lambda original, similarity: original(-similarity),
        "a cut separates those that are least alike",
        (f"{FACTS}::test_a_cut_separates_those_that_are_least_alike",),
    ),
    Mutant(
        "local forgets its model after each round",
        local,
        with_part(finish=lambda right, params, shared, memory, work: ({}, memory)),
        "a site that trains alone goes on with its own model",
        (f"{REFERENCES}::test_local",),
    ),
    Mutant(
        "regions are averaged a round too early",
        Regions.merges,
        lambda original, self, number: original(self, number + 1),
        "regions are averaged after their own number of rounds",
        (f"{HIERARCHICAL}::test_regions_go_apart_and_are_averaged_by_what_came_since_the_last_time",),
    ),
    Mutant(
        "a model goes down to regions in every round",
        Regions.begins,
        lambda original, self, number: True,
        "regions are sent the model of all at the beginning of a cycle only",
        (f"{HIERARCHICAL}::test_messages_and_bytes_of_both_kinds_of_link",),
    ),
)
