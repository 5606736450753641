"""A study in plain words, for whoever must decide whether it may run at a hospital."""

from collections.abc import Iterable, Sequence

from wardround.algorithms import ALGORITHMS
from wardround.study import Arm, Study

MOST_ARMS = 20  # named one by one; a longer list would hide what matters


def in_plain_words(study: Study, sites: Sequence[str] = ()) -> list[str]:
    """One sentence or two for each thing that matters. `sites` are the hospitals, where they are known."""
    return [
        f"Study: {study.name}. {study.question}".strip(),
        f"Hospitals: {', '.join(sites)}." if sites else "Hospitals: not named here; ask the coordinator.",
        *_training(study),
        *_leaves(study),
        *_stays(study),
        *_agreed(study, sites),
        f"Hash: {study.hash}. Compare it with the one that the coordinator tells you in another way.",
    ]


def _training(study: Study) -> list[str]:
    arms, seeds = study.trained_arms, study.evaluation.seeds.count
    names = [arm.name for arm in arms[:MOST_ARMS]]
    more = f" and {len(arms) - MOST_ARMS} more" if len(arms) > MOST_ARMS else ""
    rounds = sorted({arm.training.rounds for arm in arms})
    span = f"{rounds[0]}" if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"
    told = [
        f"Arms: {len(arms)} ways of training are compared: {', '.join(names)}{more}.",
        f"Models: {_each(arm.model.name for arm in arms)}. Algorithms: {_each(arm.algorithm.name for arm in arms)}.",
        f"Work: each arm trains for {_count(span, 'round')}, with {_count(seeds, 'seed')}; that makes "
        f"{_count(seeds * sum(arm.training.rounds for arm in arms), 'round')} in all.",
    ]
    partial = dict.fromkeys(", ".join(arm.train_at) for arm in arms if arm.train_at)
    if partial:
        told.append(f"In some arms only these hospitals train: {'; '.join(partial)}. The others are only tested.")
    if study.selection is not None:
        where = "validation rows" if study.selection.on == "validation" else f"rows of {study.selection.site}"
        told.append(f"Selection: settings of {', '.join(study.selection.arms)} are chosen on {where}.")
    return told


def _leaves(study: Study) -> list[str]:
    shared = [arm for arm in study.trained_arms if _federated(arm)]
    told = []
    if shared:
        told.append(
            "Leaves the hospital, in each round: what training changed in the shared part of the model, the number of "
            "training rows and of steps, and the loss. The coordinator sees this of each hospital by itself: the study "
            "has neither secure aggregation nor differential privacy."
        )
    sums = ", its sum and sum of squares" if any(a.preparation.scale == "federated" for a in study.trained_arms) else ""
    told.append(
        "Leaves the hospital, before training: names of columns and classes, numbers of rows, and of each column of "
        "the training rows whether there are gaps, which categories occur and how often (rare ones too), its mean or "
        f"median{sums}."
    )
    cell = study.deployment.smallest_cell
    told.append(
        "Leaves the hospital, at the end: figures of its test rows (accuracy and the like, counts, histograms of "
        f"scores) and numbers of rows by class, sex and age. What counts fewer than {cell} patients is withheld."
    )
    return told


def _stays(study: Study) -> list[str]:
    told = ["Stays at the hospital: every row, every prediction for a patient, and its site file."]
    if alone := _each(arm.algorithm.name for arm in study.trained_arms if not _federated(arm)):
        told.append(f"Stays at the hospital as well: the models that it trains alone ({alone}).")
    return told


def _agreed(study: Study, sites: Sequence[str]) -> list[str]:
    agreed = study.deployment
    everybody = f"all {len(sites)} hospitals" if sites else "all hospitals"
    quorum = everybody if agreed.quorum is None else f"at least {_count(agreed.quorum, 'hospital')}"
    deadline = (
        "It waits for them without limit."
        if agreed.deadline is None
        else f"After {agreed.deadline:g} seconds it goes on without the others."
    )
    return [f"Quorum: a round needs the work of {quorum}. {deadline} Smallest cell: {agreed.smallest_cell} patients."]


def _federated(arm: Arm) -> bool:
    return ALGORITHMS[arm.algorithm.name](**arm.algorithm.options).federated


def _each(names: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(names))


def _count(number: int | str, what: str) -> str:
    return f"{number} {what}" if str(number) == "1" else f"{number} {what}s"
