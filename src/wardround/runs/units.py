"""How a study's work is cut into units, which engine runs each, and how long they take.

The cut depends on the study alone, never on the machine or the time, so that a resumed run repeats the same bits.

The rule of `auto`: a small model (below SMALL_MODEL parameters) without buffers runs stacked, because its steps are
shorter than the time to start them; a larger one, an image network, one with BatchNorm, and one trained with
augmentation, class weights, oversampling, mixed rows, any protection of [privacy], compressed updates, at sites with
columns of their own, or beside adversaries that forge updates, runs on the reference engine. Compression rounds and
selects: a last bit in which the two engines differ may decide between two values of a number.
"""

import math
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from wardround.core.errors import RunError, StudyError, shown, suggest
from wardround.engines import ENGINES, Engine
from wardround.runs.plan import Plan, refuse_outsiders
from wardround.study.robustness.adversary_validation import is_serial_only
from wardround.study.schema import Arm, Privacy
from wardround.study.tuning import is_trial
from wardround.training.trial import Trial
from wardround.training.validation import refuse_unfit_changes

STACK_BYTES = 256 * 2**20  # a stack's tensors stay below this, as far as whole trials allow
WORTH_WORKERS = 20_000  # rounds, over all trials: some seconds
WORTH_MODELS = 200
SLOWER = 20  # times, a round of a small model one site at a time, at least
MOST_WORKERS = 8
ENOUGH_ROUNDS = 4
ENOUGH_SECONDS = 10.0  # of one kind; one round is run in any case
COPIES = 10  # of each lane's parameters while it works: start, gradient, correction, optimiser, update, ...


@dataclass(frozen=True)
class Unit:
    """Trials that run together: (arm, seed)."""

    engine: str
    members: tuple[tuple[str, int], ...]
    small: bool = True  # its model's steps; a large one uses all processors by itself

    def trials(self, plan: Plan) -> list[Trial]:
        return [plan.trial(plan.arm(arm, seed), seed) for arm, seed in self.members]

    def weight(self, plan: Plan) -> int:
        """Roughly how long it takes, relative to other units of its study."""
        arm = plan.arm(*self.members[0])
        algorithm = arm.algorithm.build(plan.families.algorithms)
        # an algorithm that needs each update does so trial by trial, and so does a rule
        each = algorithm.needs == "each" or not arm.by_mean
        return len(self.members) * arm.training.rounds * (8 if each else 1)

    @property
    def title(self) -> str:
        arms = list(dict.fromkeys(arm for arm, _ in self.members))
        seeds = {seed for _, seed in self.members}
        return f"{arms[0]}{f' and {len(arms) - 1} more' if len(arms) > 1 else ''}, " + (
            f"{len(seeds)} seeds" if len(seeds) > 1 else f"seed {next(iter(seeds))}"
        )


def engine_named(name: str) -> Engine[Any]:
    if name not in ENGINES:
        raise StudyError("--engine", f"{shown(name)} is not known", suggest(name, [*ENGINES, "auto"], "Engines"))
    return ENGINES[name]


def cut(plan: Plan, engine: str) -> list[Unit]:
    """All arms with all seeds, in the order of the study file."""
    arms, seeds = plan.study.trained_arms, plan.study.evaluation.seeds
    return cut_trials(plan, engine, [(plan.arm(arm.name, seed), seed) for arm in arms for seed in seeds])


def cut_trials(plan: Plan, engine: str, trained: Iterable[tuple[Arm, int]]) -> list[Unit]:
    """Arms with a seed each, in their order."""
    if engine != "auto":
        engine_named(engine)
    units: list[Unit] = []
    open_stacks: dict[str, list[tuple[str, int]]] = {}
    shapes_by_model: dict[int, Shapes] = {}
    for arm, seed in trained:
        trial = plan.trial(arm, seed)
        if id(trial.model) not in shapes_by_model:
            shapes_by_model[id(trial.model)] = shapes_of(trial)
        shapes = shapes_by_model[id(trial.model)]
        refuse_outsiders(trial, shapes.buffers)
        refuse_unfit_changes(trial)
        plan.refuse_unsound(arm, trial, shapes.buffers)
        if arm.topology.kind == "vertical":
            units.append(Unit("split", ((arm.name, seed),), trial.light))
            continue
        if engine == "split":
            problem = "the split engine trains parties with different features, and this arm has none"
            raise RunError(f"arm {trial.arm}", problem, "Use --engine auto.")
        alone = reason_for_serial(arm, trial)
        small = trial.light and not shapes.buffers and not alone
        stacked = engine == "stacked" or (engine == "auto" and small)
        if not stacked:
            refuse_batches_of_one(trial, shapes)
            units.append(Unit("serial", ((arm.name, seed),), trial.light))
            continue
        refuse_unstackable(trial, shapes, alone)
        shape = (len(trial.sites), arm.held_out, shapes.shapes, trial.algorithm.regions, trial.clock is None)
        collects = trial.algorithm.posterior is not None
        # trials that try settings share a stack whatever their learning rates; other studies keep the stacks they had
        training = replace(arm.training, lr=1.0) if is_trial(arm) else arm.training
        rule = (arm.aggregation, arm.preaggregation)
        key = repr((arm.algorithm.name, shapes.fixed(arm), rule, arm.model, training, shape, collects))
        open_stacks.setdefault(key, []).append((arm.name, seed))
        if len(open_stacks[key]) == most_trials(trial, shapes.size):
            units.append(Unit("stacked", tuple(open_stacks.pop(key))))
    return units + [Unit("stacked", tuple(members)) for members in open_stacks.values()]


def serial_setting(arm: Arm) -> str | None:
    """A setting that only the serial engine knows, if the arm has one."""
    training = arm.training
    settings = {
        "training.augment": training.augment is not None,
        "training.class_weights": training.class_weights != "none",
        "training.oversample": bool(training.oversample),
        "training.mix": training.mix is not None,
        "privacy": arm.privacy != Privacy(),
        "screening": arm.screened is not None,
        "aggregation.root": bool(arm.aggregation.facts.root) and not arm.by_mean,
        "compression": arm.compression.kind != "none" and arm.algorithm.facts.federated,
        "adversaries that forge updates or turn bad later": is_serial_only(arm),
        'data.schema = "own"': arm.preparation.schema == "own",
        f'model.kind = "{arm.model.name}"': arm.model.facts.in_parts,
        "training.asynchronous": training.asynchronous is not None and is_trial(arm) and arm.algorithm.facts.federated,
    }
    return next((name for name, used in settings.items() if used), None)


def reason_for_serial(arm: Arm, trial: Trial) -> str | None:
    """A setting that keeps an arm out of stacks. Rounds that close at a deadline have other numbers of sites in each
    trial, and a stack has one for all."""
    clock = trial.clock
    early = clock is not None and clock.deadline is not None and trial.training.asynchronous is None
    return serial_setting(arm) or ("deployment.deadline where sites have speeds" if early else None)


@dataclass(frozen=True)
class Shapes:
    """What the cut needs to know of an arm's model and algorithm."""

    shapes: tuple[tuple[str, tuple[int, ...]], ...]
    buffers: tuple[str, ...]
    swept: frozenset[str]  # settings that are leaves of the server's state, and so may differ within a stack

    @property
    def size(self) -> int:
        return sum(math.prod(shape) for _, shape in self.shapes)

    def fixed(self, arm: Arm) -> dict[str, Any]:
        return {name: value for name, value in arm.algorithm.options.items() if name not in self.swept}


def shapes_of(trial: Trial) -> Shapes:
    params, buffers = trial.model.init(0)
    shapes = tuple((name, tuple(leaf.shape)) for name, leaf in params.items())
    server = trial.algorithm.init(params, len(trial.sites))
    return Shapes(shapes, tuple(buffers), frozenset(server.get("settings", {})))


def refuse_batches_of_one(trial: Trial, shapes: Shapes) -> None:
    if any(name.endswith("running_var") for name in shapes.buffers):
        for site in trial.sites:
            if len(site.train) % trial.training.batch_size == 1:
                problem = f"{len(site.train)} training rows leave one row for the last batch, and BatchNorm needs two"
                raise RunError(f"arm {trial.arm}: {site.name}", problem, "Change training.batch_size.")


def refuse_unstackable(trial: Trial, shapes: Shapes, alone: str | None) -> None:
    problem = f"the stacked engine does not support {alone}" if alone else ""
    if shapes.buffers:
        problem = "the stacked engine cannot run a model with buffers such as BatchNorm statistics"
    if problem:
        raise RunError(f"arm {trial.arm}", problem, "Use --engine auto or serial.")


def most_trials(trial: Trial, size: int) -> int:
    lanes = max(1, round(trial.training.share * len(trial.sites)))
    batch = trial.training.batch_size * max(1, trial.sites[0].train.x[0].numel())
    memory = sum(leaf.numel() for part in trial.algorithm.init_memory({}).values() for leaf in part.values())
    bytes_each = 8 * (lanes * (COPIES * size + 4 * batch) + len(trial.sites) * (memory + size))
    return max(1, STACK_BYTES // bytes_each)


def workers_for(units: Sequence[Unit], rounds: int) -> int:
    """How many units to run at a time: one for each processor, where the work is worth it."""
    worth = WORTH_WORKERS if all(unit.engine == "stacked" for unit in units) else WORTH_WORKERS // SLOWER
    if rounds < worth or not all(unit.small for unit in units):
        return 1
    return processors()


def processors() -> int:
    """How many processes are worth it at most."""
    return min(os.cpu_count() or 1, MOST_WORKERS)


def workers_at_the_end(units: Sequence[Unit]) -> int:
    """How many processes compute what follows training: statistics over that many models are worth several."""
    many = sum(len(unit.members) for unit in units) >= WORTH_MODELS and all(unit.small for unit in units)
    return processors() if many else 1


def total_rounds(plan: Plan, units: Sequence[Unit]) -> int:
    return sum(plan.arm(arm, seed).training.rounds for unit in units for arm, seed in unit.members)


@dataclass(frozen=True)
class Kind:
    """Arms that do the same amount of work in a round."""

    title: str
    seconds: float  # of one round of one unit
    rounds: int  # over all units of this kind; a stack's trials take theirs together
    measured: int  # rounds

    @property
    def total(self) -> float:
        return self.seconds * self.rounds


def estimate(plan: Plan, engine: str = "auto") -> list[Kind]:
    """Training alone: predictions, figures and the report come on top."""
    kinds: dict[str, list[Unit]] = {}
    for unit in cut(plan, engine):
        arm = plan.arm(*unit.members[0])
        kinds.setdefault(repr((unit.engine, arm.family, arm.model, arm.training, len(unit.members))), []).append(unit)
    return [_measured(plan, units) for units in kinds.values()]


def _measured(plan: Plan, units: list[Unit]) -> Kind:
    trials, engine = units[0].trials(plan), engine_named(units[0].engine)
    seconds: list[float] = []
    began = time.perf_counter()
    for _ in engine.rounds(trials, engine.start(trials)):
        seconds.append(time.perf_counter() - began)
        if len(seconds) >= ENOUGH_ROUNDS or sum(seconds) >= ENOUGH_SECONDS:
            break
        began = time.perf_counter()
    # the first round also fetches rows and warms up, which later ones need not
    per_round = median(seconds[1:] or seconds)
    return Kind(units[0].title, per_round, total_rounds(plan, units) // len(units[0].members), len(seconds))
