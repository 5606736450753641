"""What [tuning] may say, checked when the study is read."""

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, get_args, get_origin

from wardround.core.errors import StudyError, refuse_strangers, shown, suggest
from wardround.core.settings import alternatives, describe
from wardround.study.tuning import (
    FIXED,
    Members,
    Space,
    Tuning,
    different,
    kinds_of,
    read_scale,
    space_of,
    tuned_arms,
    value_of,
    with_values,
    written_values,
)
from wardround.study.tuning_methods import METHODS

if TYPE_CHECKING:
    from wardround.study.schema import Arm, Study

ENDS = ("low", "high", "log")
JUDGED = "settings are compared on the same rows, by the same rules"
WHY_NOT = {  # a table of the study: why none of its keys is tuned
    "data": JUDGED,
    "sites": JUDGED,
    "evaluation": JUDGED,
    "uncertainty": JUDGED,
    "deployment": "it is an agreement between hospitals",
    "topology": "who exchanges with whom is part of the question",
    "privacy": "how patients are protected is decided before, and is not what scores best",
    "aggregation": "what a bad site can do is not seen in scores of a federation without one",
    "compression": "a score does not say what bytes are worth",
}


def check_tuning(study: "Study", members: Members, where: str) -> None:
    tuning, here = study.tuning, f"{where}: tuning"
    if tuning is None:
        return
    refuse_strangers(tuning.arms, dict.fromkeys(arm.family for arm in study.arms), f"{here}: arms", "arm", "Arms")
    if not study.evaluation.validation_share and study.evaluation.split == "drawn":
        problem = "there are no validation rows to compare settings on"
        remedy = "Set evaluation.validation_share above 0, such as 0.15: a setting is never chosen on test rows."
        raise StudyError(here, problem, remedy)
    if study.selection is not None and study.selection.on == "site":
        problem = "[selection] trains without a site, and settings that were tuned with its rows would know them"
        raise StudyError(here, problem, 'Write `on = "validation"` in [selection], or leave [tuning] out.')
    if not tuning.space:
        remedy = 'Write space = { "training.lr" = { low = 0.001, high = 1.0, log = true } }.'
        raise StudyError(f"{here}: space", "is empty, so that there is nothing to try", remedy)
    arms = tuned_arms(study)
    for key, given in tuning.space.items():
        _check_key(key, arms, members, f"{here}: space: {key}")
        _check_form(given, f"{here}: space: {key}")
    for arm in arms:
        _check_arm(study, arm, tuning, members, here)


def _check_key(key: str, arms: "list[Arm]", members: Members, where: str) -> None:
    """That some arm has it, and may be tuned by it."""
    table = key.split(".")[0]
    if "." in key and table in WHY_NOT:
        problem = f"cannot be tuned: {WHY_NOT[table]}"
        remedy = "Tune keys of [training], [model] or an algorithm. For others write a list of values in an arm."
        raise StudyError(where, problem, remedy)
    if key in FIXED:
        problem = "cannot be tuned: " + (
            "the budget counts trainings of that many rounds" if key == FIXED[0] else "it says how is computed"
        )
        raise StudyError(where, problem, "Leave it out of the space.")
    known = dict.fromkeys(name for arm in arms for name in kinds_of(arm, members))
    if key not in known:
        raise StudyError(where, "no arm that is tuned has such a setting", suggest(key, known, "It can be one of"))
    for arm in arms:
        family = [other for other in arms if (other.family, other.variant) == (arm.family, arm.variant)]
        own = [value_of(other, key) for other in family if key in kinds_of(other, members)]
        if any(value != own[0] for value in own):
            problem = f"{arm.family} has a list of values for it, each an arm of its own"
            raise StudyError(where, problem, "Leave the list out of the arm, or the key out of the space.")


def _check_form(given: Any, where: str) -> None:
    """A list of different values, or bounds that leave room between them."""
    if isinstance(given, list | tuple):
        if not given:
            raise StudyError(where, "an empty list has nothing to try", "List at least one value.")
        if any(value in given[:place] for place, value in enumerate(given)):
            raise StudyError(where, "a value is listed twice", "List each once.")
    elif isinstance(given, Mapping):
        _check_bounds(given, where)
    else:
        remedy = "Write { low = 0.001, high = 1.0, log = true }, or a list such as [0.01, 0.1, 1.0]."
        raise StudyError(where, f"expected bounds or a list, found {shown(given)}", remedy)


def _check_bounds(given: Mapping[str, Any], where: str) -> None:
    for name in given:
        if name not in ENDS:
            raise StudyError(f"{where}: {name}", "no such setting", suggest(name, ENDS, "Bounds have"))
    for end in ("low", "high"):
        if end not in given:
            raise StudyError(f"{where}: {end}", "missing", "Bounds have a `low` and a `high`.")
        if type(given[end]) not in (int, float) or not math.isfinite(given[end]):
            raise StudyError(f"{where}: {end}", f"expected a number, found {shown(given[end])}", "Write a number.")
    if not isinstance(given.get("log", False), bool):
        raise StudyError(
            f"{where}: log", f"expected true or false, found {shown(given['log'])}", "Write true or false."
        )
    if given["low"] >= given["high"]:
        problem = f"from {given['low']:g} to {given['high']:g} there is no room: `low` must be below `high`"
        raise StudyError(where, problem, "Exchange the two, or list values.")
    if given.get("log") and given["low"] <= 0:
        problem = f"log = true steps by orders of magnitude, and `low` is {given['low']:g}"
        raise StudyError(where, problem, "Write a `low` above 0, such as 0.0001, or leave `log` out.")


def _check_arm(study: "Study", arm: "Arm", tuning: Tuning, members: Members, here: str) -> None:
    where = f"{here}: {arm.name}"
    if arm.privacy.example is not None or arm.privacy.site is not None:
        problem = (
            "it trains with differential privacy: every trial would spend epsilon, and choosing between trials would "
            "tell something of validation rows that no noise protects"
        )
        remedy = (
            "Tune in a study of public or synthetic rows, then write the values into this arm; or name the other arms "
            "in `arms`."
        )
        raise StudyError(where, problem, remedy)
    kinds = kinds_of(arm, members)
    if not any(key in kinds for key in tuning.space):
        problem = "it has no key of the space, so that it could not be tuned as the others are"
        remedy = 'Add a key that it has, such as "training.lr", or name the arms to tune in `arms`.'
        raise StudyError(where, problem, remedy)
    for key, given in tuning.space.items():
        if key in kinds:
            _check_kind(kinds[key], given, f"{here}: space: {key}")
    space = space_of(tuning, arm, members)
    needed = METHODS[tuning.method].trials(tuning.budget, arm.training.rounds)
    there = different(space, written_values(arm, space))
    if there < needed:
        problem = f"the space has {there:g} different settings, and a budget of {tuning.budget} is {needed} trials"
        raise StudyError(where, problem, "Lower `budget`, or widen the space.")


def _check_kind(kind: Any, given: Any, where: str) -> None:
    """That the values are of the setting's type, and that only numbers have bounds."""
    if isinstance(given, Mapping) and _plain(kind) not in (int, float):
        raise StudyError(where, f"is {describe(kind)}, which has no bounds", "List the values to try.")
    read_scale(kind, given, where)


def _plain(kind: Any) -> Any:
    first = next(option for option in alternatives(kind) if option is not type(None))
    return get_args(first)[0] if get_origin(first) is Annotated else first


def probes(study: "Study", members: Members) -> Iterator["Arm"]:
    """Each tuned arm with each value that its space ends with, so that what is unsound is refused before training."""
    for arm in tuned_arms(study):
        space: Space = {} if study.tuning is None else space_of(study.tuning, arm, members)
        for key, scale in space.items():
            for value in scale.probes:
                yield with_values(arm, {key: value}, members)
