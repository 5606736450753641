"""Rules for what may leave a site: no figure of a few patients, nor one from which it could be derived.

Figures leave only if every rule that applies to them is kept. Whoever releases something describes it as a `Release`;
what a rule looks at, and its words, stand in `RULES`, in whose order they are asked. Counts are held to
`secondary_suppression` besides: they leave with gaps rather than not at all. The numbers of rows in each part of a
split are not among the figures: sites agree on them before the first round.
"""

import numpy as np

from wardround.privacy.disclosure.dominance import largest_share
from wardround.privacy.disclosure.earlier_releases import differs_by_few
from wardround.privacy.disclosure.model_size import has_many_columns, has_rare_column, is_saturated
from wardround.privacy.disclosure.rule import DisclosureRule, Limits, Release
from wardround.privacy.disclosure.small_cells import has_few_patients

RULES: dict[str, DisclosureRule] = {
    "smallest-cell": DisclosureRule(
        "figures of fewer patients than `smallest_cell`",
        lambda release: True,
        lambda release, limits: has_few_patients(release.people, limits.smallest_cell),
    ),
    "secondary-suppression": DisclosureRule(
        "counts from which a count of few patients would follow",
        lambda release: False,  # it hides cells of a table, and forbids none as a whole
        lambda release, limits: False,
    ),
    "dominance": DisclosureRule(
        "sums of which more than `largest_share` comes from one patient",
        lambda release: release.summed is not None,
        lambda release, limits: largest_share(_given(release.summed), release.people) > limits.largest_share,
    ),
    "least-sites": DisclosureRule(
        "sums of fewer hospitals than `least_sites`, where only the sum is to be known",
        lambda release: release.contributors is not None,
        lambda release, limits: (release.contributors or 0) < limits.least_sites,
    ),
    "columns-per-patient": DisclosureRule(
        "regressions with more columns for each patient than `columns_per_patient`",
        lambda release: release.design is not None,
        lambda release, limits: has_many_columns(_given(release.design), release.people, limits.columns_per_patient),
    ),
    "rare-column": DisclosureRule(
        "regressions with a column that has its commonest value in all but fewer patients than `smallest_cell`",
        lambda release: release.design is not None,
        lambda release, limits: has_rare_column(_given(release.design), release.people, limits.smallest_cell),
    ),
    "saturated-model": DisclosureRule(
        "regressions with a coefficient for each combination of values, where few patients have one of these",
        lambda release: release.design is not None,
        lambda release, limits: is_saturated(_given(release.design), release.people, limits.smallest_cell),
    ),
    "earlier-release": DisclosureRule(
        "an answer to a question that was answered before of the same patients but for fewer than `smallest_cell`, or "
        "before their records changed",
        lambda release: bool(release.earlier) or release.changed,
        lambda release, limits: release.changed or differs_by_few(release.marks, release.earlier, limits.smallest_cell),
    ),
}


def rules_asked(release: Release) -> tuple[str, ...]:
    """The rules that apply, as every release names them."""
    return tuple(name for name, rule in RULES.items() if rule.applies(release) or name in release.within)


def broken_rule(release: Release, limits: Limits) -> str:
    """The first rule that forbids a release; empty: it may leave."""
    asked = (name for name, rule in RULES.items() if rule.applies(release))
    return next((name for name in asked if RULES[name].broken(release, limits)), "")


def must_stay(people: np.ndarray, smallest: int) -> bool:
    """Whether a rule forbids figures of these rows."""
    return bool(broken_rule(Release(people), Limits(smallest_cell=max(smallest, 1))))


def _given(part: np.ndarray | None) -> np.ndarray:
    if part is None:
        raise ValueError("a rule is asked only where it applies")
    return part


__all__ = ["RULES", "DisclosureRule", "Limits", "Release", "broken_rule", "must_stay", "rules_asked"]
