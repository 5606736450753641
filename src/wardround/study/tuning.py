"""[tuning]: which settings are tried, and how a setting is put into an arm.

    [tuning]
    method = "random"
    budget = 8
    space = { "training.lr" = { low = 0.001, high = 1.0, log = true }, "mu" = [0.01, 0.1, 1.0] }

A trial is an arm with one set of values, trained with one seed and scored on that seed's validation rows. Trial 0 is
the arm as the study has it.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Protocol

from wardround.core.settings import Factory, Range, parse, settings_of, table_type
from wardround.study.facts import AlgorithmFacts, ModelFacts, facts_of
from wardround.study.robustness.contribution import TRIAL

if TYPE_CHECKING:  # they import this module, or what does
    from wardround.study.schema import Arm, Study

DIGITS = 4  # of a drawn number, so that it can be read and written in a study file
ATTEMPTS = 1000  # draws of values that no earlier trial has
OWN_TABLES = ("training", "model")  # of an arm, beside the settings of its algorithm
FIXED = ("training.rounds", "training.device", "training.precision")


@dataclass(frozen=True)
class Tuning:
    """For each arm and seed, the values that are best on the seed's validation rows. Never on test rows."""

    budget: Annotated[int, Range(low=2, high=1000)]  # trainings of full length, for each arm with each seed
    space: dict[str, Any]  # by dotted key: bounds, or a list of values
    method: Literal["random", "successive-halving", "bayesian"] = "random"
    arms: tuple[str, ...] = ()  # families that are tuned; empty: all
    metric: str | None = None  # None: the study's primary one


class Scale(Protocol):
    """The values that a key may have."""

    @property
    def count(self) -> float: ...

    @property
    def probes(self) -> tuple[Any, ...]:
        """Values that must be possible for all to be."""

    def at(self, place: float) -> Any:
        """The value at a place from 0 to 1."""


@dataclass(frozen=True)
class Bounds:
    """Any number between two; `log`: each order of magnitude is as likely as the next."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    @property
    def count(self) -> float:
        return self.high - self.low + 1 if self.whole else math.inf

    @property
    def probes(self) -> tuple[Any, ...]:
        return (self.low, self.high)

    def at(self, place: float) -> Any:
        low, high = self.low, self.high + (1 if self.whole else 0)  # the last whole number has a share as well
        if self.log:
            return self.rounded(math.exp(math.log(low) + place * (math.log(high) - math.log(low))))
        return self.rounded(low + place * (high - low))

    def rounded(self, value: float) -> Any:
        if self.whole:
            return min(int(self.high), math.floor(value))
        return min(self.high, max(self.low, float(f"{value:.{DIGITS}g}")))


@dataclass(frozen=True)
class Listed:
    """One of some values."""

    values: tuple[Any, ...]

    @property
    def count(self) -> float:
        return len(self.values)

    @property
    def probes(self) -> tuple[Any, ...]:
        return self.values

    def at(self, place: float) -> Any:
        return self.values[min(len(self.values) - 1, int(place * len(self.values)))]


Space = Mapping[str, Scale]
Values = Mapping[str, Any]  # one for each key


class Members(Protocol):
    """What an arm's values are made of: `study.parser.Families`."""

    @property
    def models(self) -> Mapping[str, Factory]: ...

    @property
    def algorithms(self) -> Mapping[str, Factory]: ...


def flat_space(space: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """By dotted key, so that `[tuning.space.training] lr = ...` and `"training.lr" = ...` are one thing."""
    flat: dict[str, Any] = {}
    for key, value in space.items():
        if isinstance(value, Mapping) and value and not {"low", "high", "log"} & set(value):
            flat |= flat_space(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat


def is_tuned(study: "Study", arm: "Arm") -> bool:
    return study.tuning is not None and (not study.tuning.arms or arm.family in study.tuning.arms)


def is_trial(arm: "Arm") -> bool:
    return TRIAL in arm.name


def tuned_arms(study: "Study") -> list["Arm"]:
    return [arm for arm in study.arms if is_tuned(study, arm)]


def tuned_keys(study: "Study", arm: "Arm") -> list[str]:
    """Keys whose values in the file are only those of trial 0."""
    if study.tuning is None or not is_tuned(study, arm):
        return []
    return [key for key in study.tuning.space if key.split(".")[0] in OWN_TABLES or key in arm.algorithm.options]


def kinds_of(arm: "Arm", members: Members) -> dict[str, Any]:
    """The type of every key of this arm that can be tuned."""
    kinds = {name: known.kind for name, known in settings_of(members.algorithms[arm.algorithm.name]).items()}
    kinds |= {f"model.{name}": known.kind for name, known in settings_of(members.models[arm.model.name]).items()}
    kinds |= _kinds_within("training", arm.training)
    return {key: kind for key, kind in kinds.items() if key not in FIXED}


def _kinds_within(prefix: str, block: Any) -> dict[str, Any]:
    """Of a block's settings, and of those of the tables that it has."""
    kinds: dict[str, Any] = {}
    for name, known in settings_of(type(block)).items():
        value = getattr(block, name)
        if table_type(known.kind) is None:
            kinds[f"{prefix}.{name}"] = known.kind
        elif is_dataclass(value):
            kinds |= _kinds_within(f"{prefix}.{name}", value)
    return kinds


def space_of(tuning: Tuning, arm: "Arm", members: Members) -> dict[str, Scale]:
    """What is tried in this arm: the keys that it has. Checked before (`tuning_validation`)."""
    kinds = kinds_of(arm, members)
    return {key: read_scale(kinds[key], given, "tuning: space") for key, given in tuning.space.items() if key in kinds}


def read_scale(kind: Any, given: Any, where: str) -> Scale:
    if not isinstance(given, Mapping):
        return Listed(tuple(parse(kind, value, where) for value in given))
    low, high = (parse(kind, given[end], f"{where}: {end}") for end in ("low", "high"))
    return Bounds(low, high, bool(given.get("log", False)), isinstance(low, int))


def written_values(arm: "Arm", space: Space) -> dict[str, Any]:
    """Those that the arm has in the study."""
    return {key: value_of(arm, key) for key in space}


def value_of(arm: "Arm", key: str) -> Any:
    block, _, name = key.partition(".")
    if not name:
        return arm.algorithm.options[key]
    if block == "model":
        return arm.model.options[name]
    value: Any = arm.training
    for part in name.split("."):
        value = getattr(value, part)
    return value


def with_values(arm: "Arm", values: Values, members: Members) -> "Arm":
    """The arm with these values in place of its own."""
    own = {key: value for key, value in values.items() if "." not in key}
    of_model = {key.removeprefix("model."): value for key, value in values.items() if key.startswith("model.")}
    changed = arm
    if own:
        factory, options = members.algorithms[arm.algorithm.name], {**arm.algorithm.options, **own}
        choice = replace(arm.algorithm, options=options, facts=facts_of(AlgorithmFacts, factory, options))
        changed = replace(changed, algorithm=choice)
    if of_model:
        factory, options = members.models[arm.model.name], {**arm.model.options, **of_model}
        model = replace(arm.model, options=options, facts=facts_of(ModelFacts, factory, options))
        changed = replace(changed, model=model)
    training = {key.removeprefix("training."): value for key, value in values.items() if key.startswith("training.")}
    return replace(changed, training=_with_fields(arm.training, training)) if training else changed


def _with_fields(block: Any, values: Values) -> Any:
    """A block with the values of dotted keys below it."""
    changes: dict[str, Any] = {}
    for name in (field.name for field in fields(block)):
        below = {key.removeprefix(f"{name}."): value for key, value in values.items() if key.startswith(f"{name}.")}
        if name in values:
            changes[name] = values[name]
        elif below:
            changes[name] = _with_fields(getattr(block, name), below)
    return replace(block, **changes)


def draw_values(space: Space, first_seed: int, count: int, written: Values) -> list[dict[str, Any]]:
    """`count` different sets of values, of which the first is the one that is written.

    A draw depends on its key, its number and the study's first seed alone: arms that have a key in common try the same
    values of it, with every seed.
    """
    from wardround.core import seeds  # here, because it imports numpy, which `wardround --help` does without

    drawn = [dict(written)]
    for attempt in range(1, ATTEMPTS * count):
        if len(drawn) == count:
            break
        values = {
            key: scale.at(seeds.generator(first_seed, f"tuning: {key}", attempt).random())
            for key, scale in space.items()
        }
        if values not in drawn:
            drawn.append(values)
    return drawn


def different(space: Space, written: Values) -> float:
    """How many sets of values there are, with the one that is written."""
    inside = all(holds(scale, written[key]) for key, scale in space.items())
    return math.prod(scale.count for scale in space.values()) + (not inside)


def holds(scale: Scale, value: Any) -> bool:
    if isinstance(scale, Bounds):
        return bool(scale.low <= value <= scale.high)
    return value in scale.probes
