"""Which combinations would promise what they do not keep. Each is refused with its reason before anything trains."""

from collections.abc import Callable, Sequence

from wardround.algorithms.algorithm import Algorithm
from wardround.core.errors import StudyError
from wardround.study.schema import Arm, ExamplePrivacy

PUBLIC_SCALES = ("ranges", "image", "none")
LEAST_SITES = 3  # of a secure sum: of two, each can work out the other's part


def refuse_unsound(arm: Arm, algorithm: Algorithm, buffers: Sequence[str], tables: bool, overlapping: bool) -> None:
    """`buffers` are the model's, `tables` says whether rows are columns, `overlapping` whether a patient may be at two
    sites."""

    def refuse(where: str, problem: str, remedy: str) -> None:
        raise StudyError(f"arms: {arm.name}: {where}", problem, remedy)

    if arm.privacy.example is not None:
        _check_example(arm, algorithm, buffers, tables, overlapping, refuse)
    if arm.privacy.site is not None and algorithm.federated:
        _check_site(arm, algorithm, refuse)
    if arm.privacy.secure_sum is not None and algorithm.needs == "each" and algorithm.federated:
        problem = f"{arm.algorithm.name} looks at each site's update, and a secure sum shows none of them"
        refuse("privacy: secure_sum", problem, 'Write `"privacy.secure_sum" = "off"` in this arm.')


def _check_example(
    arm: Arm,
    algorithm: Algorithm,
    buffers: Sequence[str],
    tables: bool,
    overlapping: bool,
    refuse: Callable[[str, str, str], None],
) -> None:
    off = 'or write `"privacy.example" = "off"` in this arm.'
    _check_settings(arm.privacy.example, refuse)
    if buffers:
        problem = "BatchNorm's statistics mix the patients of a batch and are kept without noise"
        refuse("model", problem, f'Use `norm = "group"`, {off}')
    if arm.training.oversample:
        problem = "a patient who is drawn more often than others costs more than is charged"
        refuse("training: oversample", problem, f"Set it to 0, {off}")
    if arm.training.class_weights != "none":
        problem = "weights that are counted from the patients are not charged"
        refuse("training: class_weights", problem, f'Set it to "none", {off}')
    if algorithm.needs_start_loss:
        problem = f"{arm.algorithm.name} sends the loss on all training rows, which is not charged"
        refuse("algorithm", problem, f"Choose another algorithm, {off}")
    if overlapping:
        problem = f"partition {arm.sites.name!r} may put a patient at two sites, whose epsilons would add up unseen"
        refuse("sites: partition", problem, f"Choose a partition without overlap, {off}")
    _check_preparation(arm, tables, refuse)


def _check_settings(example: ExamplePrivacy | None, refuse: Callable[[str, str, str], None]) -> None:
    """Settings of [privacy.example] that do not go together."""
    if example is None:
        return
    if example.clip == "none" and example.adaptive is not None:
        problem = 'there is no clip that could follow the gradients: it is "none"'
        refuse("privacy: example: adaptive", problem, "Leave one of the two out.")
    schedule = example.noise_schedule
    if schedule is not None and schedule.at is not None and schedule.kind != "step":
        problem = f'is where a "step" is, and the kind is "{schedule.kind}"'
        refuse("privacy: example: noise_schedule: at", problem, 'Leave it out, or write kind = "step".')


def _check_preparation(arm: Arm, tables: bool, refuse: Callable[[str, str, str], None]) -> None:
    prepared, off = arm.preparation, 'or write `"privacy.example" = "off"` in this arm.'
    if prepared.scale not in PUBLIC_SCALES:
        problem = f"scale {prepared.scale!r} is fitted on patients and not charged"
        remedy = 'Write `scale = "ranges"` (public clinical bounds)' if tables else 'Write `scale = "image"`'
        refuse("data: scale", problem, f"{remedy}, {off}")
    if not tables:
        return
    if prepared.missing not in ("drop", "range"):
        problem = f"missing {prepared.missing!r} is fitted on patients and not charged"
        refuse("data: missing", problem, f'Write `missing = "drop"` or "range" (the middle of the public range), {off}')
    if not prepared.public:
        problem = "which levels and gaps there are is read off patients and not charged"
        refuse("data: public", problem, f"Write `public = true` in [data], {off}")


def _check_site(arm: Arm, algorithm: Algorithm, refuse: Callable[[str, str, str], None]) -> None:
    off = 'Choose another algorithm, or write `"privacy.site" = "off"` in this arm.'
    if algorithm.data_free:
        problem = f"{arm.algorithm.name} sends how many steps a site made, which tells its size, and gets no noise"
        refuse("privacy: site", problem, off)
    if arm.training.stragglers is not None:
        problem = "who is slow depends on who else is there, so that one site more changes what others send"
        refuse("training: stragglers", problem, 'Leave them out, or write `"privacy.site" = "off"` in this arm.')
    if algorithm.needs == "each":
        refuse("privacy: site", "noise is on the sum, and the algorithm looks at each site's update", off)
    if algorithm.needs_start_loss:
        refuse("privacy: site", "the algorithm sends a loss beside its update, which a clip would mix up", off)
