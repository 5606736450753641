"""The sentences of a report on what left the sites, and on what its figures cannot say."""

from wardround.report.evidence import STAY, Evidence
from wardround.report.parties import privacy_words as parties_privacy
from wardround.report.table import listed
from wardround.report.topology import privacy_words as regions_privacy
from wardround.report.words_privacy import privacy_limits, protection_words

FEW_SEEDS = 5


def privacy(evidence: Evidence) -> list[str]:
    """What left the sites."""
    results = evidence.results
    sent = max((arm["cost"]["bytes_up"] for arm in evidence.arms.values()), default=0)
    rounds = max((arm["cost"]["rounds"] for arm in evidence.arms.values()), default=0)
    prepared = evidence.study.get("data", {})
    pooled = any(arm["algorithm"]["name"] == "pooled" for arm in results["arms"].values())
    lines = [
        "In each round each site sent the change of its model's weights, and what its algorithm adds to it (SCAFFOLD's "
        f"control variates, FedNova's step counts): with one seed, all sites together at most {sent / 1000:,.1f} KB in "
        f"{rounds} rounds. Their rows stayed where they were"
        + (", except in the arm called pooled, which exists for comparison only." if pooled else "."),
        "The run was across hospitals: each one's own machine trained on its rows, and the coordinator's had none."
        if evidence.deployed
        else "This was a simulation on one machine that could read all sites' rows. Nothing was sent over a network.",
        *regions_privacy(evidence),
        *parties_privacy(evidence),
        *protection_words(evidence),
    ]
    own = prepared.get("schema") == "own" and not evidence.of_images
    columns = not evidence.of_images and not prepared.get("public") and not own
    shared = ["the levels of categorical columns"] if columns and prepared.get("categories") == "one-hot" else []
    if columns and prepared.get("missing") not in ("drop", "range"):
        shared += ["which columns have gaps", "a typical value of each column, for sites that never recorded it"]
    if prepared.get("scale") == "federated":
        shared.append("each column's count, sum and sum of squares")
    if prepared.get("public") and not evidence.of_images:
        lines.append("Columns, their levels and ranges were taken from what is publicly known, not from patients.")
    if own:
        lines.append(_own_columns(evidence))
    if shared:
        lines.append(f"Before training, sites told each other: {'; '.join(shared)}.")
    if any(found["rows"] for sites in results["leakage"].values() for found in sites.values()):
        lines.append("Sites of this study share patients by design; see the table of patients on both sides.")
    if evidence.deployed:
        lines += _told(evidence)
    else:
        lines.append(
            "The run folder holds a prediction for every test row (predictions.parquet): treat it as you treat the "
            "data. This page holds counts and means; groups below 10 rows and histogram cells below 5 are withheld."
        )
        if len(evidence.samples.get("images", ())):
            whose = "drawn by a program" if evidence.synthetic else "training images of single patients"
            lines.append(
                f"This page shows {len(evidence.samples['images'])} images, because the study asks for them "
                f"(`samples` in its evaluation): {whose}."
            )
    return lines


def _own_columns(evidence: Evidence) -> str:
    others = [
        str(arm.get("name", arm.get("algorithm")))
        for arm in evidence.study.get("arms", [])
        if arm.get("data.schema", arm.get("data", {}).get("schema", "own")) != "own"
    ]
    besides = f" In {listed(others)} sites told each other of their columns, for comparison." if others else ""
    return (
        "Each site has columns of its own, and a private adapter from them to the shared part of the model, which "
        f"never left the site; what the columns are was not needed by anybody else.{besides}"
    )


def _told(evidence: Evidence) -> list[str]:
    """What sites told of their test rows in a run across hospitals."""
    smallest = evidence.deployment.smallest_cell
    what = "of the finding" if evidence.findings else "by class"
    return [
        f"No row left its hospital, and {STAY}. For each arm and seed a site told the coordinator, of its test rows: "
        "how many there are, its metrics, counts of right and wrong calls, sums, and a histogram of the scores of each "
        "class (summaries.jsonl); before training, how many rows it has, of which classes and ages"
        f"{DIRECTIONS if _compared(evidence) else ''}.",
        f"Cells of histograms that count fewer than {smallest} patients are merged with their neighbours. Where fewer "
        f"than {smallest} patients of a class were tested nothing {what} was told, where fewer at a hospital nothing "
        f"at all; groups by sex and age need {evidence.smallest_group}.",
    ]


DIRECTIONS = ", and which way clinical columns go with the label, so that an inverted label shows"


def _compared(evidence: Evidence) -> bool:
    """Not where any arm promises patients privacy, as the sites themselves decide it."""
    protected = (evidence.results.get("privacy") or {}).get("arms", {})
    return evidence.deployment.compare_labels and not any(arm["example"] for arm in protected.values())


def limits(evidence: Evidence) -> list[str]:
    results = evidence.results
    test_rows = sum(site["test"] for site in results["sites"][0]["sites"].values())
    described = results["sites"][0]
    counted = (
        f"The sites have {described['rows']:,} rows"
        if described["patients"] is None
        else f"The source has {described['rows']:,} rows; with the first seed {described['patients']:,} different "
        "patients are at the sites"
    )
    lines = [
        f"{counted}, and {test_rows:,} rows are test rows. The figures say nothing about other patients, hospitals or "
        "years.",
    ]
    lines += _on_seeds(evidence)
    prepared = evidence.study.get("data", {})
    filled = prepared.get("missing") not in ("drop", "range") and not evidence.of_images
    filled = filled and prepared.get("schema") != "own"
    if evidence.local and (prepared.get("scale") == "federated" or filled):
        lines.append(
            "Training alone shares the study's preparation (the columns' scale where it is federated, values for "
            "columns that a site never recorded), which a hospital that really stays alone would not have. Models of "
            "single hospitals in the section on the best of them are prepared from their own rows only, and may "
            "differ a little."
        )
    if len(evidence.sites) == 1:
        lines.append("One site: there is nothing to federate, and no comparison between sites.")
    if evidence.own_models:
        lines.append(ranking_words(evidence))
    if evidence.synthetic:
        lines.append("The data are synthetic: how models do on them says nothing of how they would do on patients.")
    if any(found["rows"] for sites in results["leakage"].values() for found in sites.values()):
        lines.append("Some test patients were trained on at another site, which flatters every arm but local training.")
    lines += _undefined(evidence)
    lines += _some_seeds(evidence)
    lines += privacy_limits(evidence)
    return lines + (_without_rows(evidence) if evidence.deployed else [])


def _on_seeds(evidence: Evidence) -> list[str]:
    """What the intervals speak of, and how far they can be trusted."""
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
    undefined = [
        f"{site} ({metric})"
        for site in evidence.sites
        for metric in ("auc", "sensitivity", "specificity")
        if all(arm["sites"].get(site, {}).get(metric, {}).get("mean") is None for arm in evidence.arms.values())
    ]
    if not undefined:
        return []
    why = f"for want of test rows {'with a finding' if evidence.findings else 'of one class'}"
    if evidence.deployed:
        why += f", or because figures of fewer than {evidence.deployment.smallest_cell} patients stay at a hospital"
    return [f"Cannot be computed, {why}: {listed(undefined)}."]


def _some_seeds(evidence: Evidence) -> list[str]:
    """Sites that have the primary metric with some seeds only, for want of test rows of one class with the others."""
    metric, found = evidence.headline.metric, []
    for site in evidence.sites:
        counts = [arm["sites"][site][metric]["seeds"] for arm in evidence.arms.values() if site in arm["sites"]]
        if counts and 0 < max(counts) < evidence.seeds:
            found.append(f"{site} {max(counts)}")
    if not found:
        return []
    return [
        f"With some seeds a site has no test rows of one class, and so no {evidence.headline.word}. Such a seed does "
        f"not count at the site, and the mean over sites is then over the others. Of {evidence.seeds} seeds count: "
        f"{listed(found)}."
    ]


def ranking_words(evidence: Evidence) -> str:
    """Why an AUC over all sites flatters models that know their site, or cannot be had."""
    if not evidence.own_models:
        return (
            "Arms are compared by the mean of the sites' own AUC (within sites), which is exact: an AUC over all sites "
            "could only be had from histograms, or not at all."
        )
    return (
        f"Sites predict with models of their own in {listed(evidence.own_models)}: an AUC over all sites then ranks "
        "scores of different models against each other, and rewards knowing which site a patient is at. So all arms "
        "are compared by the mean of the sites' own AUC (within sites)."
    )


def _without_rows(evidence: Evidence) -> list[str]:
    return [
        f"What needs rows is not here, because {STAY}: the slope and intercept of calibration, a bootstrap over "
        "patients, distributions and correlations of columns.",
        "Whether a patient is at two hospitals could not be checked. One who is may have been tested at one and "
        "trained on at the other.",
        f"The AUC over all sites is from histograms and may be off by up to {evidence.auc_uncertain_by:.3f}. Each "
        "site's own AUC is exact, and so are the other metrics, over the sites that told what they need.",
    ]
