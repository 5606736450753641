"""What [aggregation] may say, as far as the text of a study tells: whether a rule can stand before the algorithm, and
what privacy and regions leave to see of updates. With how many sites it withstands how many bad ones is checked when
the sites are known (`aggregation.robust`)."""

from collections.abc import Sequence

from wardround.core.errors import StudyError
from wardround.study.robustness.preaggregation import Preaggregation
from wardround.study.schema import Arm, Study

OFF = '"aggregation.rule" = "mean" in this arm.'


def check_aggregation(study: Study, where: str) -> None:
    """What can be known of a rule before the sites are: with how many of them it withstands so many bad ones is checked
    when they are known."""
    used = [arm for arm in study.arms if not arm.by_mean]
    for arm in study.arms:
        here = f"{where}: arms: {arm.name}: aggregation"
        _refuse_unused_preaggregation(arm, used, here)
        if arm in used:
            _check_rule(arm, here)
    _check_same_groups(study, where)


def _refuse_unused_preaggregation(arm: Arm, used: Sequence[Arm], where: str) -> None:
    """What a study says for some arms may stand in the others, where it does nothing."""
    own, known = arm.preaggregation, [Preaggregation(), *(other.preaggregation for other in used)]
    if arm.by_mean and own not in known and arm.algorithm.facts.federated:
        problem = "nothing is done before a mean, and the rule here is the mean"
        raise StudyError(where, problem, 'Name a rule, such as rule = "median", or leave the other keys out.')
    sizes = [Preaggregation.bucket_size, *(each.bucket_size for each in known if each.before == "bucketing")]
    if own.before != "bucketing" and own.bucket_size not in sizes:
        problem = "is the size of buckets, and there are none"
        raise StudyError(f"{where}: bucket_size", problem, 'Leave it out, or write before = "bucketing".')


def _check_rule(arm: Arm, where: str) -> None:
    algorithm = arm.algorithm
    if algorithm.facts.not_robust:
        problem = f"{algorithm.name} {algorithm.facts.not_robust}"
        raise StudyError(f"{where}: rule", problem, f"Use fedavg, fedprox, fednova or fedadam, or write {OFF}")
    if arm.training.asynchronous is not None or arm.training.late is not None:
        setting = "late" if arm.training.asynchronous is None else "asynchronous"
        problem = "an update that began with an older model is far from the others without being bad"
        raise StudyError(f"{where}: rule", problem, f'Write {OFF[:-1]}, or `"training.{setting}" = "off"`.')
    _check_rule_and_privacy(arm, where)
    if arm.topology.kind == "hierarchical":
        _check_rule_in_regions(arm, where)


def _check_rule_and_privacy(arm: Arm, where: str) -> None:
    rule = arm.aggregation
    if arm.privacy.site is not None:
        problem = "its noise is on a sum, and with any other rule one site more changes the result by an unknown length"
        if rule.facts.in_sums:
            problem = "[privacy.site] clips every update already, and its clip is the bound"
        raise StudyError(f"{where}: rule", problem, f'Write {OFF[:-1]}, or `"privacy.site" = "off"`.')
    if arm.preaggregation.groups is not None:
        _check_groups(arm, where)
    elif arm.privacy.secure_sum is not None and arm.bounded_at_site is None:
        problem = f"{rule.name} looks at single updates, and a secure sum shows none of them"
        remedy = f'Give `groups`, use rule = "norm-bound" with a number as `bound`, or write {OFF}'
        raise StudyError(f"{where}: rule", problem, remedy)
    if arm.bounded_at_site is not None and arm.preaggregation != Preaggregation():
        problem = "the sites bound their updates themselves, and nothing is done with single ones before the sum"
        raise StudyError(where, problem, "Leave `before` and `momentum` out.")


def _check_groups(arm: Arm, where: str) -> None:
    """Groups of sites with a secure sum each."""
    if arm.privacy.secure_sum is None:
        problem = "are for secure sums, and single updates are seen here"
        raise StudyError(f"{where}: groups", problem, 'Write before = "bucketing", or add [privacy.secure_sum].')
    if arm.topology.kind == "hierarchical":
        problem = "regions have a secure sum each already, and one of them has too few sites for several"
        remedy = 'Leave `groups` out, or write `"topology.kind" = "flat"` in this arm.'
        raise StudyError(f"{where}: groups", problem, remedy)


def _check_same_groups(study: Study, where: str) -> None:
    """Of two arms whose sites are in other groups, the sums of one round would differ by single updates."""
    grouped = [arm for arm in study.trained_arms if arm.preaggregation.groups is not None and not arm.by_mean]
    for arm in grouped[1:]:
        here, first = f"{where}: arms: {arm.name}", grouped[0]
        if arm.preaggregation.groups != first.preaggregation.groups:
            problem = f"{first.name} has {first.preaggregation.groups} of them, and sums over other groups of the same "
            problem += "sites would differ by single updates"
            raise StudyError(f"{here}: aggregation: groups", problem, "Use as many groups in all arms.")
        if (arm.train_at, arm.held_out) != (first.train_at, first.held_out):
            problem = f"other sites train than in {first.name}, so that its groups would be other ones"
            raise StudyError(
                f"{here}: aggregation: groups", problem, "Let the same sites train in all arms with groups."
            )


def _check_rule_in_regions(arm: Arm, where: str) -> None:
    """Each region applies the rule to its own sites. Their models are averaged by weight, as ever."""
    flat = 'or write `"topology.kind" = "flat"` in this arm.'
    if arm.aggregation.facts.keeps or arm.preaggregation.momentum:
        name = "momentum" if arm.preaggregation.momentum else arm.aggregation.name
        problem = f"{name} keeps something of the last rounds of one model, and regions have models of their own"
        raise StudyError(f"{where}: rule", problem, f"Use another rule, such as median, {flat}")
    if arm.aggregation.facts.root:
        problem = "its root data are at one coordinator, and each region has one of its own"
        raise StudyError(f"{where}: rule", problem, f"Use another rule, such as median, {flat}")
    if arm.preaggregation.before == "bucketing":
        problem = "buckets are drawn among all sites, and a region has some of them"
        raise StudyError(f"{where}: before", problem, f'Write before = "nearest-neighbours", {flat}')
