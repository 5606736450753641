"""The analyses of a study in plain words, for people who decide whether their hospital takes part."""

from wardround.privacy.disclosure import RULES
from wardround.privacy.secure_sum.limbs import LIMBS
from wardround.study.analyses import StudyAnalysis
from wardround.study.explanations import conducted_explanations
from wardround.study.schema import Study


def analysis_lines(study: Study) -> list[str]:
    """What is computed, what leaves for it, and what protects it."""
    if not study.analyses:
        return []
    masked = study.analyses[0].rows.privacy.secure_sum is not None
    rules = "; ".join(RULES[name].forbids for name in RULES)
    return [
        *(_question(chosen) for chosen in study.analyses),
        "Leaves the hospital, for each analysis: the names of its columns and of their categories (those that are "
        f"declared, and others from {study.deployment.smallest_cell} patients on), then in each of some five to ten "
        "steps sums over all rows without a gap in these columns: how many rows and patients there are, sums of "
        "columns and of products of two columns, likelihoods with their gradients and curvatures. No row leaves.",
        "Secure aggregation of analyses: what leaves is under masks, "
        f"{LIMBS} numbers for one; the coordinator learns the sum over all hospitals and no single hospital's part. "
        "All that began must remain to the end of a step; else it comes to nothing."
        if masked
        else "No secure aggregation of analyses: the coordinator sees each hospital's sums by themselves.",
        f"Rules of disclosure at your hospital, with your limits where they are stricter: it never tells {rules}. "
        "Where one is broken the hospital is left out of the analysis, and the others hear which rule it was.",
    ]


def explanation_lines(study: Study) -> list[str]:
    """What is told so that models can be explained."""
    conducted = conducted_explanations(study)
    if not conducted:
        return []
    masked = [chosen.options["arm"] for chosen in conducted if chosen.rows.privacy.secure_sum is not None]
    arms = ", ".join(chosen.options["arm"] for chosen in conducted)
    return [
        f"Explanation of {arms}: after the last round, how much the loss of the model on your test rows rises when a "
        "column is shuffled among them, and how its scores change along a column.",
        "Leaves the hospital for it: numbers of test rows and patients, sums of losses, of their rises by column with "
        f"their squares, and sums of changes of scores in each bin of a column; bins of fewer than "
        f"{study.deployment.smallest_cell} patients count as empty. No row leaves.",
        *(f"Of {name} the coordinator learns the sum over all hospitals alone." for name in masked),
    ]


def _question(chosen: StudyAnalysis) -> str:
    settings = ", ".join(f"{name} {value}" for name, value in sorted(chosen.options.items()) if value not in ("", None))
    return f"Analysis {chosen.name}: {chosen.kind} with {settings}. It is exact and trains no model."
