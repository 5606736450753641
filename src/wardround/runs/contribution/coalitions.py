"""Before the arms of a study train: coalitions of the sites of one arm, each trained and scored on validation rows.

They are cut into units like any others, so that they are stacked, checkpointed and resumed in the same way.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from wardround.core import seeds
from wardround.core.errors import StudyError
from wardround.evaluation.hospitals.shapley import coalitions, fewest
from wardround.runs.contribution.reconstruction import reconstructed_worths, refuse_irreproducible
from wardround.runs.contribution.worths import Key, Worth, players_of, read_worths, worth_of
from wardround.runs.folder import RunFolder
from wardround.runs.plan import Plan
from wardround.runs.tuning.tune import TrainUnits
from wardround.runs.units import Unit, cut_trials
from wardround.study.robustness.contribution import coalition_name, contributed_arm
from wardround.study.schema import Arm
from wardround.training.rounds import start


@dataclass
class Contributed:
    """Worths by seed and coalition, that of nobody included, and the units in which coalitions trained."""

    players: dict[int, list[str]]  # by seed
    worths: dict[Key, Worth] = field(default_factory=dict)
    units: list[Unit] = field(default_factory=list)


def refuse_contribution(plan: Plan) -> None:
    """What is known of [contribution] once the data are there."""
    settings = plan.study.contribution
    if settings is None:
        return
    arm = contributed_arm(plan.study)
    for seed in plan.study.evaluation.seeds:
        players = players_of(plan, seed)
        if len(players) < 2:
            raise StudyError("contribution", "one hospital trains, and adds all there is", "Leave [contribution] out.")
        least = fewest(len(players))
        if settings.method == "shapley" and settings.trainings < least:
            problem = f"{settings.trainings} are too few for {len(players)} hospitals"
            remedy = f'Write {least} or more, or method = "leave-one-out", which takes {len(players) + 1}.'
            raise StudyError("contribution: trainings", problem, remedy)
        if not any(len(split.validation) for split in plan.for_selection(arm, plan.splits(arm, seed))):
            problem = "there are no validation rows on which models of fewer hospitals could be compared"
            raise StudyError(f"contribution: seed {seed}", problem, "Set evaluation.validation_share above 0.")
        if settings.method == "reconstruction":
            refuse_irreproducible(plan.trial(arm, seed))


def planned_coalitions(plan: Plan, seed: int) -> list[int]:
    """That train with a seed, the whole first."""
    settings, count = plan.study.contribution, len(players_of(plan, seed))
    whole = 2**count - 1
    if settings is None or settings.method == "reconstruction":
        return []
    if settings.method == "leave-one-out":
        return [whole, *(whole ^ (1 << player) for player in range(count))]
    return coalitions(count, settings.trainings, seeds.generator(seed, "coalitions"))


def count_coalitions(plan: Plan) -> int:
    """Trainings of [contribution], over all seeds."""
    if plan.study.contribution is None:
        return 0
    return sum(len(planned_coalitions(plan, seed)) for seed in plan.study.evaluation.seeds)


def planned_rounds_of_coalitions(plan: Plan) -> int:
    if plan.study.contribution is None:
        return 0
    return contributed_arm(plan.study).training.rounds * count_coalitions(plan)


def contribute(
    plan: Plan, engine: str, folder: RunFolder, train: TrainUnits, first: int
) -> Generator[int, None, Contributed]:
    """Yields how many rounds of coalitions are done. `first` is the number of their first unit in the folder."""
    arm, all_seeds = contributed_arm(plan.study), list(plan.study.evaluation.seeds)
    done = Contributed({seed: players_of(plan, seed) for seed in all_seeds})
    members = [
        (_coalition_arm(plan, arm, seed, coalition, done.players[seed]), seed)
        for seed in all_seeds
        for coalition in planned_coalitions(plan, seed)
    ]
    for own, seed in members:
        plan.add_tuned(own, seed)
    done.units = cut_trials(plan, engine, members)
    yield from train(done.units, first, {})
    with folder.checked_content():
        for place in range(len(done.units)):
            done.worths |= read_worths(folder, first + place)
    for seed, players in done.players.items():
        trial = plan.trial(plan.arm(arm.name, seed), seed)
        done.worths[seed, 0] = worth_of(plan, trial, start(trial), players, 0)
        if not members:
            done.worths |= reconstructed_worths(plan, trial, players)
    return done


def _coalition_arm(plan: Plan, arm: Arm, seed: int, coalition: int, players: Sequence[str]) -> Arm:
    own = plan.arm(arm.name, seed)
    names = tuple(player for n, player in enumerate(players) if coalition >> n & 1)
    return replace(own, name=coalition_name(arm.name, coalition), train_at=names, uncertainty=None, screening=None)


def of_seed(contributed: Contributed, seed: int) -> Mapping[int, Worth]:
    return {coalition: worth for (own, coalition), worth in contributed.worths.items() if own == seed}
