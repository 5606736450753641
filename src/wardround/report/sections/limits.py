"""What the figures of a report cannot say."""

from wardround.core.notices import lines_of_json
from wardround.report.evidence import STAY, Evidence
from wardround.report.phrases import ranking_sentence, ranks_rows
from wardround.report.render.table import listed
from wardround.report.section import Section
from wardround.report.sections import remarks

FEW_SEEDS = 5


def limits(evidence: Evidence) -> list[str]:
    results = evidence.results
    test_rows = sum(site["test"] for site in results["sites"][0]["sites"].values())
    described = results["sites"][0]
    size = (
        f"The sites have {described['rows']:,} rows"
        if described["patients"] is None
        else f"The source has {described['rows']:,} rows; with the first seed {described['patients']:,} different "
        "patients are at the sites"
    )
    prepared = evidence.study.get("data", {})
    filled = prepared.get("missing") not in ("drop", "range") and not evidence.of_images
    filled = filled and prepared.get("schema") != "own"
    shared_preparation = bool(evidence.local) and (prepared.get("scale") == "federated" or filled)
    if_it_applies = [
        (
            shared_preparation,
            "Training alone shares the study's preparation (the columns' scale where it is federated, values for "
            "columns that a site never recorded), which a hospital that really stays alone would not have. Models of "
            "single hospitals in the section on the best of them are prepared from their own rows only, and may "
            "differ a little.",
        ),
        (len(evidence.sites) == 1, "One site: there is nothing to federate, and no comparison between sites."),
        (bool(evidence.own_models) and ranks_rows(evidence), ranking_sentence(evidence)),
        (
            bool(evidence.off_scale),
            f"The errors of {', '.join(evidence.off_scale)} are so large that figures leave out what tables have.",
        ),
        (
            evidence.synthetic,
            "The data are synthetic: how models do on them says nothing of how they would do on patients.",
        ),
        (
            evidence.shares_patients,
            "Some test patients were trained on at another site, which flatters every arm but local training.",
        ),
    ]
    return [
        f"{size}, and {test_rows:,} rows are test rows. The figures say nothing about other patients, hospitals or "
        "years.",
        *_on_seeds(evidence),
        *(line for applies, line in if_it_applies if applies),
        *_undefined(evidence),
        *_some_seeds(evidence),
        *remarks(evidence, "limits"),
        *(_without_rows(evidence) if evidence.deployed else []),
    ]


def _on_seeds(evidence: Evidence) -> list[str]:
    lines = []
    if evidence.seeds > 1 and evidence.results["interval"]["method"].startswith("corrected"):
        lines.append(
            "Seeds split the same patients again and again. The intervals allow for that, approximately: many seeds "
            "are not many studies."
        )
    for name, variant in evidence.results["variants"].items():
        if not variant["method"].startswith(("corrected", "bootstrap over patients")):
            where = f"In the variant {name}" if name else "Here"
            lines.append(f"{where} there are no intervals and no verdicts: all seeds have the same test rows.")
    if evidence.seeds == 1:
        lines.append(
            "One seed: intervals speak of other patients, not of another training, which may differ as much or more."
            if evidence.results["interval"]["method"].startswith("bootstrap")
            else "One seed: there are no intervals, no tests, and any difference may be chance."
        )
    elif evidence.seeds < FEW_SEEDS:
        lines.append(f"{evidence.seeds} seeds are few; the intervals are wide and uncertain themselves.")
    return lines


def _undefined(evidence: Evidence) -> list[str]:
    """Figures that no arm has at a site."""
    facts = evidence.task.report
    undefined = [
        f"{site} ({metric})"  # as results.json calls it
        for site in evidence.sites
        for metric in facts.may_lack
        if all(arm["sites"].get(site, {}).get(metric, {}).get("mean") is None for arm in evidence.arms.values())
    ]
    if not undefined:
        return []
    why = f"for want of {facts.lacking}"
    if evidence.deployed:
        why += f", or because figures of fewer than {evidence.deployment.smallest_cell} patients stay at a hospital"
    return [f"Cannot be computed, {why}: {listed(undefined)}."]


def _some_seeds(evidence: Evidence) -> list[str]:
    """Sites that have the primary metric with some seeds only, for want of test rows that define it with the others."""
    metric, some = evidence.headline.metric, []
    for site in evidence.sites:
        counts = [arm["sites"][site][metric]["seeds"] for arm in evidence.arms.values() if site in arm["sites"]]
        if counts and 0 < max(counts) < evidence.seeds:
            some.append(f"{site} {max(counts)}")
    if not some:
        return []
    lacking = evidence.task.report.lacking
    return [
        f"With some seeds a site has no {lacking}, and so no {evidence.headline.word}. Such a seed does "
        f"not count at the site, and the mean over sites is then over the others. Of {evidence.seeds} seeds count: "
        f"{listed(some)}."
    ]


def _without_rows(evidence: Evidence) -> list[str]:
    return [
        f"What needs rows is not here, because {STAY}: {evidence.task.report.needs_rows}, a bootstrap over patients, "
        "distributions and correlations of columns.",
        "Whether a patient is at two hospitals could not be checked. One who is may have been tested at one and "
        "trained on at the other.",
        *_exactness(evidence),
    ]


def _exactness(evidence: Evidence) -> list[str]:
    if not ranks_rows(evidence):
        return ["All metrics are exact, from sums that hospitals told, over the hospitals that told them."]
    return [
        f"The AUC over all sites is from histograms and may be off by up to {evidence.auc_error_bound:.3f}. Each "
        "site's own AUC is exact, and so are the other metrics, over the sites that told what they need."
    ]


PAGE = """
<section id="limits"><h2>Limits</h2><ul>{% for line in lines %}<li>{{ line }}</li>{% endfor %}</ul>
{% if noticed %}
{% call fold("Notes and warnings of this run (" ~ noticed | length ~ ")") %}
<ul>{% for line in noticed %}<li>{{ line }}</li>{% endfor %}</ul>{% endcall %}{% endif %}
</section>"""
SECTION = Section(PAGE, "limits", "Limits", {"lines": limits, "noticed": lambda e: lines_of_json(e.results["notices"])})
