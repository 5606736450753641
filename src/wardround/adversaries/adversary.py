"""What a simulated adversary is: a bad site that trains on changed rows, or sends something else than its update.

    data       poison(rows, setting, rng)  -> rows      of the site's training rows, before training
    updates    forge(view, rng)            -> update    after training, before the coordinator takes it in

Both are pure. What is forged is the part of an update that moves the model (`params`); the rest, such as SCAFFOLD's
controls, is sent as it was computed. Where papers assume it, attackers are omniscient: they see the honest updates of
the round before they answer. That is more than a real attacker has, so that what withstands it withstands him.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from wardround.core.errors import StudyError, refuse_strangers
from wardround.core.tree import Tree
from wardround.data.prepare import Recipe
from wardround.data.site import Rows
from wardround.study.facts import AdversaryFacts
from wardround.tasks import Task

Sees = Literal["all", "attackers", "own"]


@dataclass(frozen=True)
class Setting:
    """What is known of a site's rows besides themselves. `where` is the place in the study, for errors."""

    task: Task
    recipe: Recipe | None  # None: images
    where: str


@dataclass(frozen=True)
class View:
    """What an attacker has in a round. All but `own` is what its kind lets it see."""

    own: Tree  # its own update, as it was trained
    honest: Sequence[Tree]  # of the sites that are not bad and work in this round
    attackers: Sequence[Tree]  # of the bad sites of its kind, as they were trained, its own included
    share: float  # of the mean that its own update makes up
    before: Tree | None  # by how much the model has moved since the site last worked; None: it has not worked yet

    def seen(self, sees: Sees) -> Sequence[Tree]:
        """The updates that it goes by. Where no honest site works in a round there are only the attackers' own."""
        if sees == "own":
            return (self.own,)
        return self.honest if sees == "all" and self.honest else self.attackers


Poison = Callable[[Rows, Setting, np.random.Generator], Rows]
Forge = Callable[[View, np.random.Generator], Tree]


@dataclass(frozen=True, kw_only=True)
class Adversary(AdversaryFacts):
    poison: Poison | None = None  # exactly one of the two is there
    forge: Forge | None = None
    trigger: Callable[[Rows, Setting], Rows] | None = None  # of a backdoor: rows with its trigger


def own_rows(rows: Rows) -> Rows:
    """The same rows in tensors of their own, which others do not share."""
    if rows.index is None:
        return replace(rows, x=rows.x.clone(), y=rows.y.clone())
    return replace(rows, x=rows.x[rows.index], y=rows.y[rows.index], index=None)


def column_place(setting: Setting, name: str) -> int:
    """Where a numeric column of a table stands in prepared rows."""
    names = numeric_columns(setting)
    refuse_strangers([name], names, f"{setting.where}: columns", "numeric column", "Numeric columns")
    return names.index(name)


def numeric_columns(setting: Setting) -> list[str]:
    if setting.recipe is None:
        raise StudyError(f"{setting.where}: kind", "changes columns of a table, and these data are images", IMAGES)
    return [column.name for column in setting.recipe.layout.numeric]


IMAGES = 'Write kind = "backdoor-patch" for images.'


def class_place(setting: Setting, name: str) -> int:
    """The number of a class of the study."""
    if setting.task.answers != "class":
        problem = "a backdoor makes rows be called one class, and here no row is of one class"
        raise StudyError(f"{setting.where}: kind", problem, "Choose another kind of adversary.")
    names = list(map(str, setting.task.names))
    refuse_strangers([name], names, f"{setting.where}: target", "class", "Classes")
    return names.index(name)


def chosen_rows(count: int, share: float, rng: np.random.Generator) -> Tensor:
    """So many of a site's rows, at least one."""
    return torch.from_numpy(np.sort(rng.choice(count, size=max(1, round(share * count)), replace=False)))


def mean_of(trees: Sequence[Tree]) -> Tree:
    """Every update counts the same, as in the papers."""
    return {name: torch.stack([leaves[name] for leaves in trees]).mean(0) for name in trees[0]}
