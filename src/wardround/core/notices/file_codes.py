"""Codes of what is remarked when files are read or described."""

from collections.abc import Mapping

from wardround.core.notices.code import NOTHING, Code, count, info, quoted, share_text, warning
from wardround.core.notices.notice import Notice

LEFT_OUT = {
    "id": "identifiers",
    "free text": "free text",
    "empty": "no values",
    "ignore": "ignored by the study",
    "undeclared date": 'dates; `types = { NAME = "date" }` makes one a feature',
}


def _target_words(notice: Notice) -> str:
    words = ", ".join(f"{words} at {site!r}" for site, words in notice.details.items())
    return f"target {quoted(notice.columns)}: {words}. These were taken to mean the same; please confirm that they do."


def _target_elsewhere(notice: Notice) -> str:
    there = f"the target at {quoted(notice.other_sites)}, " if notice.other_sites else "a target elsewhere, "
    return f"{notice.columns[0]!r}, {there}is a feature: does it reveal the outcome?"


def _alike(notice: Notice) -> str:
    return "rows with equal features" if notice.details.get("features") else "equal rows"


FILE_CODES: Mapping[str, Code] = {
    # reading files
    "source-note": Code(
        ("info",),
        "A source remarks something in its own words (`notes` of its records).",
        "Read its documentation.",
        lambda n: str(n.details["text"]),
        about_others=True,
    ),
    "column-not-recorded": Code(
        ("info", "warning"),
        "A site does not record a column that others have, or has no value in it.",
        NOTHING + " It is missing there, or the site uses its own columns.",
        lambda n: (
            f"does not record {quoted(n.columns)}"
            + {"own": "; it uses the columns that it has", "missing": "; counts as missing there"}[
                str(n.details["use"])
            ]
        ),
        about_others=True,
    ),
    "column-not-shared": info(
        'Columns are left out because not every hospital has them (`columns = "common"`).',
        'Use `columns = "all"` or `"own"` to keep them.',
        lambda n: f"not at every hospital, left out: {quoted(n.columns)}",
    ),
    "column-left-out": info(
        "Columns are not features: identifiers, free text, no values, dates, or ignored by the study.",
        "Declare their `types` in `[data]` to use them.",
        lambda n: f"left out ({LEFT_OUT[str(n.details['reason'])]}): {quoted(n.columns)}",
    ),
    "column-set-aside": info(
        "The study says that a site does not really record a column; the values that it has are not used.",
        NOTHING,
        lambda n: (
            f"{', '.join(n.columns)} counts as not recorded; {count(n)} of {count(n, 'of')} rows have a value in it"
        ),
    ),
    "declaration-not-used": info(
        "What the study declares of a column does not fit its type at this site, and is not used there.",
        NOTHING,
        lambda n: (
            f"{quoted(n.columns)}: the study's `{n.details['setting']}` are not used here: "
            + {
                "levels": "the column holds numbers, which have no levels",
                "ranges": "the column is text, which has no range",
            }[str(n.details["setting"])]
        ),
    ),
    "declared-column-missing": info(
        "The study declares columns that this site's file does not have.",
        "Check their spelling, if the site has them.",
        lambda n: f"named by the study, and not in this file: {quoted(n.columns)}",
    ),
    "dates-as-years": info(
        "A column of dates is read as numbers.",
        NOTHING,
        lambda n: f"{quoted(n.columns)}: dates, read as years since 2000-01-01",
    ),
    "infinite-values": info(
        "Infinite values are read as missing.",
        "Correct the cells if they stand for something else.",
        lambda n: f"{quoted(n.columns)}: {count(n, 'values')} infinite values, read as missing",
    ),
    "group-unknown": info(
        "Rows without a value in a column of groups are in no group.",
        NOTHING,
        lambda n: f"{quoted(n.columns)}: {count(n)} of {count(n, 'of')} rows have no value, and are in no group",
    ),
    "group-not-recorded": info(
        "A hospital lacks a column that the study declares as groups.",
        "Add the column to the file if the hospital records it.",
        lambda n: f"{quoted(n.columns)}: not recorded here; this hospital has no figures by it",
    ),
    "decimal-commas": info(
        "Commas in numbers are read as decimal signs.",
        "Check that they are not thousands.",
        lambda n: f"{quoted(n.columns)}: commas read as decimal signs",
    ),
    "impossible-values": info(
        "Values that cannot be are read as missing.",
        NOTHING,
        lambda n: f"{', '.join(n.columns)} is 0 in {count(n)} rows, which is impossible; read as missing",
    ),
    "spellings-joined": info(
        "Several spellings of a level are read as one.",
        "Check the column if the levels are different things.",
        lambda n: f"{quoted(n.columns)}: {count(n, 'spellings')} spellings joined into {count(n, 'levels')} levels",
    ),
    "case-of-levels": info(
        "Levels of a column differ only in upper and lower case, and count as different.",
        "Write them alike if they mean the same.",
        lambda n: f"{quoted(n.columns)}: levels that differ only in upper and lower case count as different",
    ),
    "rows-without-target": info(
        "Rows without a value in the target are left out.",
        NOTHING,
        lambda n: share_text(n, f"rows left out, without a value in {quoted(n.columns)}"),
    ),
    "target-outside-range": warning(
        "Values of the target lie outside the public range that the study declares.",
        "Correct the cells, or widen the range under `ranges`. The range is only used to scale the target.",
        lambda n: share_text(n, f"values of {quoted(n.columns)} lie outside the declared range"),
    ),
    "rows-dropped": info(
        'Rows with gaps are left out (`missing = "drop"`).',
        'Use `missing = "median"` to keep them.',
        lambda n: share_text(n, f"rows have gaps and were dropped, {count(n, 'of') - count(n)} remain"),
    ),
    "target-elsewhere": warning(
        "The target of one hospital is a feature at another.",
        "Make sure that it does not reveal the outcome there; otherwise ignore it under `types`.",
        _target_elsewhere,
    ),
    "target-words": warning(
        "Hospitals write the two classes in different words, which were taken to mean the same.",
        "Confirm that they do, or map the words under `labels`.",
        _target_words,
    ),
    "age-not-in-years": info(
        "A column of ages does not hold numbers, so that there are no age groups.",
        "Name the column with the age in years (`age`).",
        lambda n: f"{quoted(n.columns)} is not in years, so there are no age groups",
    ),
    "no-patient-column": info(
        "No column says which patient a row is of.",
        "Name it (`patient`), so that a patient's rows stay on one side of a split.",
        lambda n: (
            "no patient numbers: two images of one patient can be on two sides"
            if n.details.get("images")
            else f"no column says which patient a row is of; {_alike(n)} count as one patient"
        ),
    ),
    "unknown-patients": info(
        "Some rows or images have no patient number; each is taken as another patient's.",
        NOTHING,
        lambda n: (
            f"{count(n, 'images')} images without a patient number, each taken as another patient's"
            if "images" in n.counts
            else f"{count(n)} rows without a value in {quoted(n.columns)}, each taken as another patient's"
        ),
    ),
    "impossible-ages": info(
        "Ages that cannot be are read as missing.",
        NOTHING,
        lambda n: f"{count(n, 'ages')} ages are 0, above {count(n, 'oldest')} or not a number, read as missing",
    ),
    "party-lacks-patients": info(
        "A party does not have all patients of the label holder.",
        NOTHING,
        lambda n: f"does not have {count(n, 'patients')} of the {count(n, 'of')} patients of {n.other_sites[0]!r}",
    ),
    "ids-spelt-differently": warning(
        "More patients of a party would be matched if ids were compared without leading zeros, capitals and prefixes.",
        "Look at how both parties write their ids.",
        lambda n: (
            f"{count(n, 'patients')} more patients would be matched if ids were compared without leading zeros, "
            "capitals and what stands before the digits: please look at how both write them"
        ),
    ),
    "visits-not-matched": info(
        "Rows of the label holder are of visits that another party does not have.",
        NOTHING,
        lambda n: f"does not have the visits of {count(n)} rows of {n.other_sites[0]!r}",
    ),
    # `wardround data describe`
    "may-be-target": info(
        "A column's words would make it a target of two classes.",
        "If the word taken as positive means healthy, say so with `positive`, or with `labels`.",
        lambda n: (
            f"{n.columns[0]!r}: as a target, {n.classes[1]!r} would be the positive class and {n.classes[0]!r} the "
            f"other. If {n.classes[1]!r} means healthy here, say so with `positive`, or with `labels`"
        ),
    ),
    "header-is-data": warning(
        "The first line of a file holds numbers or dates instead of names.",
        "If it is a row of data, add a line of names above it.",
        lambda n: "the first line holds numbers or dates; if it is a row of data, add a line of names above it",
    ),
    "file-copies": warning(
        "Rows of a file are equal to an earlier row.",
        "If they are copies, remove them.",
        lambda n: (
            f"{count(n)} rows are equal to an earlier row in every column but the identifiers. If they are copies of "
            "one patient under several numbers, they would be trained on and tested: remove them"
            if n.details.get("but_ids")
            else f"{count(n)} rows are equal to an earlier row in every column; {count(n, 'of') - count(n)} of "
            f"{count(n, 'of')} are different. Split at random, copies would be trained on and tested. Equal rows are "
            "kept on one side of a split, as if they were of one patient; if they are copies, remove them"
        ),
    ),
}
