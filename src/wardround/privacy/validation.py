"""Which combinations would promise privacy that they do not give. Each is refused with its reason before training."""

from collections.abc import Iterator, Sequence

from wardround.algorithms.algorithm import Algorithm
from wardround.core.errors import StudyError
from wardround.study.schema import Arm, ExamplePrivacy
from wardround.tasks import Task

PUBLIC_SCALES = ("ranges", "image", "record", "none")
LEAST_SITES = 3  # of a secure sum: of two, each can work out the other's part
OFF = 'or write `"privacy.example" = "off"` in this arm.'
Refusals = Iterator[tuple[str, str, str]]  # where, problem, remedy
Rules = Sequence[tuple[bool, str, str, str]]  # whether it is broken; where, problem, remedy


def broken(rules: Rules) -> Refusals:
    return ((where, problem, remedy) for is_broken, where, problem, remedy in rules if is_broken)


def refuse_unsound(
    arm: Arm, algorithm: Algorithm, buffers: Sequence[str], tables: bool, overlapping: bool, task: Task
) -> None:
    """`buffers` are the model's, `tables` says whether rows are columns, `overlapping` whether a patient may be at two
    sites."""
    for where, problem, remedy in _refusals(arm, algorithm, buffers, tables, overlapping, task):
        raise StudyError(f"arms: {arm.name}: {where}", problem, remedy)


def _refusals(
    arm: Arm, algorithm: Algorithm, buffers: Sequence[str], tables: bool, overlapping: bool, task: Task
) -> Refusals:
    if arm.privacy.example is not None:
        if not task.scale_is_public:
            name = next(own.names[0] for own in (*task.outcomes.values(), task) if not own.scale_is_public)
            problem = f"the centre and spread of {name!r} would be read off patients' rows without noise"
            remedy = f"Declare its public range: `ranges = {{ {name} = [lowest, highest] }}` in [data]; {OFF}"
            yield "privacy: example", problem, remedy
        yield from _settings(arm.privacy.example)
        yield from broken(_example(arm, algorithm, buffers, overlapping))
        yield from broken(_preparation(arm, tables))
    if arm.privacy.site is not None and algorithm.federated:
        yield from broken(_site(arm, algorithm))
    secure, asynchronous = arm.privacy.secure_sum, arm.training.asynchronous
    if secure is not None and asynchronous is not None and algorithm.federated:
        needed = max(LEAST_SITES, secure.threshold or 0)
        if asynchronous.buffer < needed:
            problem = (
                f"a secure sum is of the sites of one buffer: it takes {needed}, and {asynchronous.buffer} fill it"
            )
            remedy = f'Write `buffer = {needed}` or more, or `"privacy.secure_sum" = "off"` in this arm.'
            yield "training: asynchronous: buffer", problem, remedy
    if secure is not None and _looks_at_each(arm, algorithm):
        problem = f"{arm.algorithm.name} looks at each site's update, and a secure sum shows none of them"
        yield "privacy: secure_sum", problem, 'Write `"privacy.secure_sum" = "off"` in this arm.'


def _looks_at_each(arm: Arm, algorithm: Algorithm) -> bool:
    """Whether the algorithm itself does. A rule that does is refused earlier, or is between groups' means."""
    return algorithm.federated and arm.by_mean and algorithm.needs == "each"


def _example(arm: Arm, algorithm: Algorithm, buffers: Sequence[str], overlapping: bool) -> Rules:
    return [
        (
            bool(buffers),
            "model",
            "BatchNorm's statistics mix the patients of a batch and are kept without noise",
            f'Use `norm = "group"`, {OFF}',
        ),
        (
            arm.training.oversample > 0,
            "training: oversample",
            "a patient who is drawn more often than others costs more than is charged",
            f"Set it to 0, {OFF}",
        ),
        (
            arm.training.mix is not None,
            "training: mix",
            "a mixed row is a function of two patients, and a clipped gradient does not bound what one of them adds",
            f"Leave it out, {OFF}",
        ),
        (
            arm.training.class_weights != "none",
            "training: class_weights",
            "weights that are counted from the patients are not charged",
            f'Set it to "none", {OFF}',
        ),
        (
            algorithm.needs_start_loss,
            "algorithm",
            f"{arm.algorithm.name} sends the loss on all training rows, which is not charged",
            f"Choose another algorithm, {OFF}",
        ),
        (
            algorithm.trains_own,
            "algorithm",
            f"{arm.algorithm.name} trains a second model on the same patients, which is not charged",
            f"Choose another algorithm, {OFF}",
        ),
        (
            overlapping,
            "sites: partition",
            f"partition {arm.sites.name!r} may put a patient at two sites, whose epsilons would add up unseen",
            f"Choose a partition without overlap, {OFF}",
        ),
    ]


def _settings(example: ExamplePrivacy) -> Refusals:
    """Settings of [privacy.example] that do not go together."""
    if example.clip == "none" and example.adaptive is not None:
        problem = 'there is no clip that could follow the gradients: it is "none"'
        yield "privacy: example: adaptive", problem, "Leave one of the two out."
    schedule = example.noise_schedule
    if schedule is not None and schedule.at is not None and schedule.kind != "step":
        problem = f'is where a "step" is, and the kind is "{schedule.kind}"'
        yield "privacy: example: noise_schedule: at", problem, 'Leave it out, or write kind = "step".'


def _preparation(arm: Arm, tables: bool) -> Rules:
    scale, missing = arm.preparation.scale, arm.preparation.missing
    public = 'Write `scale = "ranges"` (public clinical bounds)' if tables else 'Write `scale = "image"` ("record")'
    return [
        (
            scale not in PUBLIC_SCALES,
            "data: scale",
            f"scale {scale!r} is fitted on patients and not charged",
            f"{public}, {OFF}",
        ),
        (
            tables and missing not in ("drop", "range"),
            "data: missing",
            f"missing {missing!r} is fitted on patients and not charged",
            f'Write `missing = "drop"` or "range" (the middle of the public range), {OFF}',
        ),
        (
            tables and not arm.preparation.public,
            "data: public",
            "which levels and gaps there are is read off patients and not charged",
            f"Write `public = true` in [data], {OFF}",
        ),
    ]


def _site(arm: Arm, algorithm: Algorithm) -> Rules:
    off = 'Choose another algorithm, or write `"privacy.site" = "off"` in this arm.'
    return [
        (
            bool(algorithm.data_free),
            "privacy: site",
            f"{arm.algorithm.name} sends how many steps a site made, which tells its size, and gets no noise",
            off,
        ),
        (
            arm.training.stragglers is not None,
            "training: stragglers",
            "who is slow depends on who else is there, so that one site more changes what others send",
            'Leave them out, or write `"privacy.site" = "off"` in this arm.',
        ),
        (
            algorithm.needs == "each",
            "privacy: site",
            "noise is on the sum, and the algorithm looks at each site's update",
            off,
        ),
        (
            algorithm.needs_start_loss,
            "privacy: site",
            "the algorithm sends a loss beside its update, which a clip would mix up",
            off,
        ),
    ]
