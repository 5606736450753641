"""What a card says in sentences, from what the bundle does."""

from collections.abc import Sequence

from wardround.bundles.out_of_distribution import SHARE, Far
from wardround.data.prepare import Recipe


def purpose(
    site: str, classes: Sequence[str], findings: bool = False, takes: str = "from the columns listed below"
) -> list[str]:
    if findings:
        what = f"To give each row a score for each of these findings: {', '.join(classes)}"
    elif len(classes) == 2:
        what = f"To give each row a score for {classes[1]!r} against {classes[0]!r}"
    else:
        what = f"To give each row a score for each of: {', '.join(classes)}"
    return [
        f"{what}, {takes}, for patients of {site} whose rows are recorded as its training rows were.",
        "To support a decision that a clinician takes, after a local check on recent rows.",
    ]


def not_for(site: str, synthetic: bool) -> list[str]:
    lines = [
        f"Other hospitals: preparation, threshold and calibration are those of {site}.",
        "Decisions without a person who can overrule them.",
        "Rows that are marked as far, or that have levels or gaps which training did not have, without a look at the "
        "patient.",
        "A medical product needs its own approval; this card is none.",
    ]
    return ["Patients: it was trained on rows that are made up.", *lines] if synthetic else lines


def gap_words(recipe: Recipe) -> list[str]:
    settings, layout = recipe.settings, recipe.layout
    if settings.missing == "drop":
        return ["Training used complete rows only: a row with a gap is given no score."]
    others = "" if settings.schema == "own" else ", or of other sites' where it has none"
    fill = {
        "mean": f"the mean of this site's training rows{others}",
        "median": f"the median of this site's training rows{others}",
        "range": "the middle of the column's public range",
    }[settings.missing]
    lines = []
    if layout.numeric:
        lines.append(f"A gap in a number is filled with {fill}.")
    if layout.levels:
        known = [name for name in layout.levels if name in recipe.fit.fill_level]
        empty = [name for name in layout.levels if name not in recipe.fit.fill_level]
        if known:
            lines.append(f"A gap in a category is filled with the commonest level: {', '.join(known)}.")
        if empty:
            lines.append(f"A gap in a category counts as none of its levels: {', '.join(empty)}.")
    if layout.indicators:
        lines.append(f"The model is told where a gap was: {', '.join(layout.indicators)}.")
    return lines


def level_words(recipe: Recipe) -> list[str]:
    if recipe.settings.categories == "codes":
        return ["Categories are used as the numbers that they are written as, also numbers that training did not have."]
    if not recipe.layout.levels:
        return []
    return ["A level that no training row had counts as none of the known levels, and the row is marked."]


def far_words(far: Far, width: int, images: bool = False) -> list[str]:
    if far.kind == "ranges":
        nothing = "No image is marked as far: what images usually look like would be read off patients."
        return [nothing] if images else ["A row is marked as far when a value lies outside its column's public range."]
    over = f"all {width} prepared numbers together"
    if images:
        beside = f", and the {width} prepared numbers of its columns" if width else ""
        over = f"the brightness of its image in 16 parts, its contrast, its grain, its dark and bright pixels{beside}"
    return [
        f"A row is marked as far when its distance from this site's training rows, over {over}, exceeds {far.cut:.3g}.",
        f"Of rows like the training rows, about {100 * (1 - SHARE):.0f} in 100 exceed it.",
    ]
