"""What regions mean for a hospital, in plain words, for whoever must decide whether a study may run there."""

from collections.abc import Sequence

from wardround.deploy.regions import is_hierarchical, regions_of, span_of
from wardround.study import Study


def words_for_regions(study: Study, sites: Sequence[str]) -> list[str]:
    """Nothing where there are none. Where hospitals are not known, a region's are named as the study has them."""
    if not is_hierarchical(study):
        return []
    arm = next(arm for arm in study.trained_arms if arm.topology.kind == "hierarchical")
    regions = regions_of(study, sites) if sites else arm.topology.regions
    spans = sorted({span_of(arm) for arm in study.trained_arms if arm.topology.kind == "hierarchical"})
    each = "every round" if spans == [1] else f"every {' or '.join(map(str, spans))} rounds"
    named = "; ".join(f"{region} ({', '.join(members)})" for region, members in regions.items())
    private = any(arm.privacy.example is not None for arm in study.trained_arms)
    compared = "" if private or not study.deployment.compare_labels else "which way its columns go with the label, "
    return [
        f"Regions: hospitals form regions, each with a coordinator of its own: {named}. Your coordinator is that of "
        "your region, and where this text says the coordinator it is that one; a secure sum is over the hospitals of a "
        f"region. {each.capitalize()} a coordinator of all averages the regions' models. In the end each hospital is "
        "sent the last average and its region's own model before it, and scores both.",
        "Goes on from the region to the coordinator of all: the region's model and mean loss, and which columns, gaps, "
        "categories, means and sums its hospitals have together. By the name of each hospital go on its numbers of "
        f"rows, {compared}in which rounds it worked, and its figures on test rows, of the model of all and of its "
        "region's own; nothing else of a single hospital.",
    ]


def words_on_quorum(study: Study) -> list[str]:
    agreed = study.deployment
    few = (
        "all its hospitals" if agreed.quorum is None else f"{agreed.quorum} of its hospitals, or all where it has fewer"
    )
    top = "all regions" if agreed.quorum is None else f"{agreed.quorum} regions, or all where there are fewer"
    waits = (
        "Both wait without limit."
        if agreed.deadline is None
        else f"After {agreed.deadline:g} seconds a region goes on without the others; the coordinator of all waits as "
        "long for each round of a region, and once more."
    )
    return [
        f"Quorum: a region's round needs the work of {few}, an average over regions that of {top}. {waits} Smallest "
        f"cell: {agreed.smallest_cell} patients."
    ]
