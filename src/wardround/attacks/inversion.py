"""Gradient inversion on a study's arms: some patients' rows, from what leaves a site, with protection and without."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from wardround.attacks.gradient_inversion import Effort, from_first_layer, reconstruct
from wardround.attacks.likeness import Likeness, likeness
from wardround.attacks.one_step import forgetful, seen
from wardround.attacks.target import Target
from wardround.core import seeds
from wardround.privacy.dp.epsilons import in_words
from wardround.privacy.dp.example_dp import Rule
from wardround.privacy.dp.protection import seeded_streams
from wardround.study.schema import Arm
from wardround.training.rounds import start
from wardround.training.trial import Run, Trial

CANDIDATES = 100  # rows among which the true one must be the nearest


@dataclass(frozen=True)
class Picture:
    """One patient's image and what was made of it, for a figure."""

    true: np.ndarray
    guess: np.ndarray
    made: dict[str, np.ndarray]  # by words that say from which update


@dataclass(frozen=True)
class Victim:
    site: int
    row: int
    true: Tensor
    others: Tensor  # rows of other patients of the same site


def invert_arms(
    target: Target, at: Literal["initial", "trained"], count: int, effort: Effort, say: Callable[[str], None]
) -> tuple[dict[str, Any], list[Picture]]:
    """What stands under `inversion` in attack.json, and pictures where they may be drawn."""
    known: dict[str, list[tuple[Likeness, Tensor]]] = {}
    arms: dict[str, Any] = {}
    made: dict[str, list[Tensor]] = {}
    shown: list[Victim] = []
    for arm in target.arms:
        trial = target.trial(arm)
        if not trial.algorithm.federated:
            arms[arm.name] = {"note": "no update leaves a site in this arm"}
            continue
        first = start(trial)
        run = first if at == "initial" else forgetful(target.run(trial), first)
        chosen = victims(trial, count)
        # before the first round arms with one model have sent out the same weights, and rows are the same
        key = repr((arm.model, target.plan.alike[arm.name], arm.training.lr, "" if at == "initial" else arm.name))
        if key not in known:
            say(f"{arm.name}: {count} rows from updates without protection")
            known[key] = [attacked(trial, run, victim, None, effort) for victim in chosen]
        entry: dict[str, Any] = {"method": method(trial, run, chosen[0]), "without": summary(known[key]), "with": None}
        if arm.privacy.example is not None:
            say(f"{arm.name}: {count} rows from protected updates")
            protected = [attacked(trial, run, victim, trial.rule(victim.site), effort) for victim in chosen]
            entry["with"] = summary(protected)
            made[words(arm)] = [image for _, image in protected]
        arms[arm.name] = entry
        if not shown and chosen[0].true.dim() == 3:
            shown, made = chosen, {"without protection": [image for _, image in known[key]], **made}
    content = {"at": at, "rows": count, "candidates": CANDIDATES, "arms": arms}
    pictures = drawn(shown, made) if target.pictures_allowed else []
    return {**content, "pictures": len(pictures)}, pictures


def words(arm: Arm) -> str:
    return "" if arm.privacy.example is None else f"epsilon {in_words(arm.privacy.example.promised)}\n({arm.name})"


def victims(trial: Trial, count: int) -> list[Victim]:
    """Training rows by chance, from one site after another."""
    chosen = []
    for place in range(count):
        number = place % len(trial.sites)
        rows = trial.sites[number].train
        rng = seeds.generator(trial.seed, "attack: rows", place, trial.sites[number].name)
        order = rng.permutation(len(rows))
        row, people = int(order[0]), rows.people.numpy()
        others = [int(other) for other in order[1:] if people[other] != people[row]][: CANDIDATES - 1]
        x, _ = rows.take(torch.tensor([row, *others]), trial.dtype)
        chosen.append(Victim(number, row, x[0], x[1:]))
    return chosen


def attacked(trial: Trial, run: Run, victim: Victim, rule: Rule | None, effort: Effort) -> tuple[Likeness, Tensor]:
    streams = seeded_streams(trial.seed, victim.row, f"attack: {trial.arm}")
    had = seen(trial, run, victim.site, victim.row, rule, streams)
    generator = torch.Generator().manual_seed(seeds.number(trial.seed, "attack: search", victim.row) >> 1)
    found = reconstruct(trial.model, had, tuple(victim.true.shape), generator, effort)
    return likeness(found, victim.true, victim.others), found


def method(trial: Trial, run: Run, victim: Victim) -> str:
    streams = seeded_streams(trial.seed, 0, "attack")
    gradient = seen(trial, run, victim.site, victim.row, None, streams).gradient
    return "search" if from_first_layer(gradient, tuple(victim.true.shape)) is None else "quotient"


def summary(attacks: list[tuple[Likeness, Tensor]]) -> dict[str, Any]:
    found = [one for one, _ in attacks]
    return {
        "recovered": sum(one.success for one in found),
        "recognised": sum(one.rank == 1 for one in found),
        "of": len(found),
        "rows": [{**asdict(one), "success": one.success} for one in found],
    }


def drawn(shown: list[Victim], made: dict[str, list[Tensor]]) -> list[Picture]:
    return [
        Picture(
            victim.true.numpy(),
            victim.others.mean(0).numpy(),
            {label: images[place].numpy() for label, images in made.items()},
        )
        for place, victim in enumerate(shown)
    ]
