"""What must hold between settings of time: speeds of sites, deadlines, late work and asynchronous rounds."""

from collections.abc import Iterator

from wardround.core.errors import StudyError
from wardround.study.schema import Arm, Study
from wardround.study.timing import Asynchronous, Late

OFF = 'or write `"training.asynchronous" = "off"` in this arm.'
Rule = tuple[bool, str, str, str]  # whether it is broken; where, problem, remedy
Rules = Iterator[Rule]
OF_STALENESS = {"exponent": "polynomial", "slope": "hinge", "free": "hinge"}  # the settings that only one kind has


def check_timing(study: Study, where: str) -> None:
    for arm in study.arms:
        if not arm.algorithm.facts.federated:  # nobody waits for a site that trains alone
            continue
        deadline = study.deployment.deadline is not None
        for rules in (_of_asynchronous(arm), _of_late(arm, deadline), _of_speeds(arm), _of_privacy(arm, deadline)):
            for broken, at, problem, remedy in rules:
                if broken:
                    raise StudyError(f"{where}: arms: {arm.name}: {at}", problem, remedy)


def _of_asynchronous(arm: Arm) -> Rules:
    asynchronous, at = arm.training.asynchronous, "training: asynchronous"
    if asynchronous is None:
        return
    name, why = arm.algorithm.name, arm.algorithm.facts.not_asynchronous
    yield bool(why), at, f"{name} {why}", f"Use fedavg, fedprox, fedadam, fedyogi or fedadagrad, {OFF}"
    problem = "there are no rounds that work could be late for: staleness is a setting of `asynchronous` itself"
    yield arm.training.late is not None, "training: late", problem, "Leave `late` out of this arm."
    problem = "sites of asynchronous rounds are slow because of their speed, and do all of their work"
    remedy = f"Leave `stragglers` out and use `speed` in [sites], {OFF}"
    yield arm.training.stragglers is not None, "training: stragglers", problem, remedy
    problem = f"rounds of {arm.topology.kind} topologies are synchronous"
    yield arm.topology.kind != "flat", at, problem, f'Write `"topology.kind" = "flat"`, {OFF}'
    problem = "is the part of one site's model in the next one, and only a buffer of 1 has one site"
    mixed = asynchronous.buffer > 1 and asynchronous.mixing != Asynchronous().mixing
    yield mixed, f"{at}: mixing", problem, "Leave it out, or write `buffer = 1`."
    yield _screened(arm)
    yield from _of_staleness(asynchronous, at)


def _of_late(arm: Arm, deadline: bool) -> Rules:
    late, at = arm.training.late, "training: late"
    if late is None:
        return
    off = 'or write `"training.late" = "off"` in this arm.'
    why = arm.algorithm.facts.not_asynchronous
    yield bool(why), at, f"{arm.algorithm.name} {why}", f"Use fedavg, fedprox, fedadam, fedyogi or fedadagrad, {off}"
    problem = "no work is late: without a deadline a round waits for everybody"
    yield not deadline, at, problem, f"Give `quorum` and `deadline` in [deployment], {off}"
    problem = "work that is done in part comes in time, and whoever may be late does all of it"
    remedy = f"Leave one of the two out, {off}"
    yield arm.training.stragglers is not None, "training: stragglers", problem, remedy
    problem = f"in a {arm.topology.kind} topology late work cannot be used"
    yield arm.topology.kind != "flat", at, problem, f'Write `"topology.kind" = "flat"`, {off}'
    yield _screened(arm)
    yield from _of_staleness(late, at)


def _screened(arm: Arm) -> Rule:
    problem = "updates that began with different models differ for that reason, and a slow hospital would be named"
    return arm.screened is not None, "screening: policy", problem, 'Write `"screening.policy" = "off"` in this arm.'


def _of_staleness(late: Late, at: str) -> Rules:
    """Settings of another kind."""
    for name, kind in OF_STALENESS.items():
        strange = late.staleness != kind and getattr(late, name) != getattr(Late(), name)
        problem = f'is a setting of "{kind}", and staleness is "{late.staleness}"'
        yield strange, f"{at}: {name}", problem, f'Leave it out, or write staleness = "{kind}".'


def _of_speeds(arm: Arm) -> Rules:
    speed, off = arm.timing.speed, 'Write `"sites.speed" = "off"` in this arm'
    no_time = speed is None and arm.training.asynchronous is None
    problem = "no time passes in this arm, so that nobody can be away"
    yield arm.timing.away is not None and no_time, "sites: away", problem, "Give `speed` in [sites]."
    if speed is None:
        return
    problem = "stragglers and speeds would say of the same sites how slow they are"
    remedy = f"{off}, or leave `stragglers` out."
    yield arm.training.stragglers is not None, "training: stragglers", problem, remedy
    problem = f"the time of a {arm.topology.kind} topology is not simulated"
    yield arm.topology.kind != "flat", "sites: speed", problem, f"{off}."
    strange = speed.kind != "lognormal" and speed.spread != type(speed)().spread
    problem = f'is a setting of "lognormal", and speeds are "{speed.kind}"'
    yield strange, "sites: speed: spread", problem, 'Leave it out, or write kind = "lognormal".'


def _of_privacy(arm: Arm, deadline: bool) -> Rules:
    privacy, asynchronous = arm.privacy, arm.training.asynchronous
    timed = asynchronous is not None or (deadline and (arm.timing.speed is not None or arm.training.late is not None))
    if not timed:
        return
    problem = "when one site answers decides whose work is in a round, so that one site more changes what others send"
    what = "the deadline" if asynchronous is None else "`asynchronous`"
    remedy = f'Leave {what} out, or write `"privacy.site" = "off"` in this arm.'
    yield privacy.site is not None, "privacy: site", problem, remedy
    example = privacy.example
    changing = example is not None and example.noise is not None and example.noise_schedule is not None
    problem = "which rounds a site works in, and so which noise it has, is known only when it has been late"
    yield changing, "privacy: example: noise_schedule", problem, "Leave it out, or leave out `noise`."
