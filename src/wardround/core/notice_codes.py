"""Every code of a notice: how severe it may be, what it means, what to do, and the sentence that is made from it.

This is the only place where notices become text. `text` says what was found at one site, without the site's name;
`meaning` says it once for all, for the reference and where many sites have the same.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from wardround.core.notices import Notice, Severity

Text = Callable[[Notice], str]
NOTHING = "Nothing need be done."
LR_HIGH = "The learning rate (`lr`) may be too high."
MANY_SITES = 3  # with so many, a remark that they share is made once
MOST_NAMED = 20  # sites of such a line
FEW_CLASSES = 3  # named in a line
WITHHELD = "stay there and count nowhere else"


@dataclass(frozen=True)
class Code:
    severities: tuple[Severity, ...]
    meaning: str
    remedy: str
    text: Text
    is_check: bool = False  # a check before training: `[evaluation] accept` may name it
    same_by: tuple[str, ...] = ("columns", "classes", "other_sites", "details", "files")  # beside site, arm, variant
    remedy_for: Text | None = None  # where it depends on the notice


def _info(meaning: str, remedy: str, text: Text) -> Code:
    return Code(("info",), meaning, remedy, text)


def _warning(meaning: str, remedy: str, text: Text) -> Code:
    return Code(("warning",), meaning, remedy, text)


def _check(
    severities: Sequence[Severity],
    meaning: str,
    remedy: str,
    text: Text,
    remedy_for: Text | None = None,
    same_by: tuple[str, ...] = Code.same_by,
) -> Code:
    return Code(tuple(severities), meaning, remedy, text, True, same_by, remedy_for)


# -- sentences that need more than one expression


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _count(notice: Notice, name: str = "rows") -> int:
    return int(notice.counts.get(name, 0))


def _share(notice: Notice, what: str) -> str:
    """`3 of 40 rows ...`"""
    return f"{_count(notice)} of {_count(notice, 'of')} {what}"


def _plural(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _images(what: str, outcome: str) -> Text:
    def text(notice: Notice) -> str:
        of = f" of {_count(notice, 'of')}" if "of" in notice.counts else ""
        more = ", ..." if _count(notice, "images") > len(notice.files) else ""
        return f"images {what}, {outcome}: {_count(notice, 'images')}{of} ({', '.join(notice.files)}{more})"

    return text


def _by_chance(notice: Notice) -> str:
    if not _count(notice, "by_chance"):
        return ""
    return f" (chance explains at most {_count(notice, 'by_chance')} equal rows in these columns)"


def _one_class(notice: Notice) -> str:
    if not notice.classes:
        return "no finding is present in some training rows and absent in others; there is nothing to learn"
    return f"every training row is of class {notice.classes[0]!r}; there is nothing to learn"


def _rare_class(notice: Notice) -> str:
    if notice.details.get("findings"):
        return f"finding {notice.classes[0]!r} is in only {_count(notice)} rows"
    return f"class {notice.classes[0]!r} has only {_count(notice)} rows"


def _missing_class(notice: Notice) -> str:
    more = len(notice.classes) - FEW_CLASSES
    names = _quoted(notice.classes[:FEW_CLASSES]) + (f" and {more} more" if more > 0 else "")
    of, part = _count(notice, "of"), notice.details["part"]
    if notice.details.get("findings"):
        return f"no {part} row with {names} ({len(notice.classes)} of {of} findings)"
    return f"no {part} row of class {names} ({len(notice.classes)} of {of} classes)"


def _target_leak(notice: Notice) -> str:
    column = notice.columns[0]
    what = f"whether {column!r} has a value" if notice.details.get("by_gap") else f"column {column!r}"
    text = (
        f"{what} alone tells {_listed([repr(name) for name in notice.classes])} from the rest: area under the ROC "
        f"curve {notice.counts['auc']:.3f} over {_count(notice, 'of')} rows, {_count(notice)} of them of the rarer "
        "class"
    )
    if notice.severity == "warning" and not notice.accepted:
        text += ". This may be natural; is it known before the outcome?"
    return text


def _target_leak_remedy(notice: Notice) -> str:
    return (
        "Find out how it is recorded: what is known only after the outcome, or because of it, is not a feature. "
        f'Leave it out; in a file, with `types = {{ "{notice.columns[0]}" = "ignore" }}` in [data].'
    )


def _copies(notice: Notice) -> str:
    if notice.details.get("patients_known"):
        return _share(notice, "rows are equal in every column to a row of another patient of this site")
    return _share(
        notice,
        "rows are equal to an earlier one in every column, more than chance explains: a random split would test on "
        "rows that were trained on. Here copies are kept on one side, but each counts as if it were another patient",
    )


def _label_direction(notice: Notice) -> str:
    points = sorted(notice.per_column.items(), key=lambda item: -item[1])  # higher ones first, as they were given
    seen = [f"{'higher' if sign > 0 else 'lower'} {name}" for name, sign in points]
    pair = len(notice.other_sites) == 1
    here = f"at {notice.site}" if pair else "here"
    there = f"at {notice.other_sites[0]}" if pair else "at the other sites"
    text = f"{notice.classes[0]!r} goes with {_listed(seen)} {here}, and with the opposite {there}"
    if pair:
        return f"the label of one of them seems to be inverted (which one cannot be known from two): {text}"
    if notice.details.get("certain"):
        return f"its label seems to be inverted: {text}"
    return f"its label, or that of {_listed(notice.other_sites)}, seems to be inverted: {text}"


def _label_direction_remedy(notice: Notice) -> str:
    return (
        f"Find out what the target means at each of them. Where {notice.classes[0]!r} is read from the wrong word, map "
        "the words under `labels` in the source or the site file."
    )


def _overlap_remedy(notice: Notice) -> str:
    if notice.details.get("overlapping"):
        return "The partition overlaps by design; use its disjoint variant for figures without leakage."
    return "Remove the copies."


def _rare_class_remedy(notice: Notice) -> str:
    if notice.details.get("findings"):
        return "Its own figures say little; it is left out of averages where it has no row."
    return "If it is a typo, correct it: it makes one more class for every metric."


def _missing_class_remedy(notice: Notice) -> str:
    if notice.details.get("findings"):
        return "Averages over findings at this site leave them out."
    return "Its rows count in the overall figures; metrics that need every class are left out here."


LEFT_OUT = {
    "id": "identifiers",
    "free text": "free text",
    "empty": "no values",
    "ignore": "ignored by the study",
    "date": 'dates; `types = { NAME = "date" }` makes one a feature',
}


def _target_words(notice: Notice) -> str:
    words = ", ".join(f"{words} at {site!r}" for site, words in notice.details.items())
    return f"target {_quoted(notice.columns)}: {words}. These were taken to mean the same; please confirm that they do."


def _target_elsewhere(notice: Notice) -> str:
    there = f"the target at {_quoted(notice.other_sites)}, " if notice.other_sites else "a target elsewhere, "
    return f"{notice.columns[0]!r}, {there}is a feature: does it reveal the outcome?"


def _boxes(notice: Notice) -> str:
    text = (
        f"{_count(notice, 'boxes')} of {_count(notice, 'of')} boxes used; {_count(notice, 'elsewhere')} are of images "
        f"that are not here, {_count(notice, 'left_out')} of findings that the study leaves out"
    )
    unknown = _count(notice, "unknown")
    return f"{text}, {unknown} of findings that are not known" if unknown else text


def _diverged(notice: Notice) -> str:
    return "training diverged; the scores are not numbers and count nowhere"


def _saturated(notice: Notice) -> str:
    share = notice.counts.get("share", 0.0)
    ends = f", and {share:.0%} of its scores are nearly 0 or 1" if share > 0 else ""
    return f"has a higher test loss than one answer for everybody would have{ends}"


def _withheld(notice: Notice) -> str:
    few = f"fewer than {_count(notice, 'smallest')} patients {notice.details['part']}"
    if notice.details.get("findings"):
        return f"{few} have, or have not, {', '.join(notice.classes)}; its figures of these findings {WITHHELD}"
    if notice.classes:
        return f"{few} of class {', '.join(notice.classes)}; its figures by class {WITHHELD}"
    return f"{few}; its figures {WITHHELD}"


def _reason(what: str) -> Text:
    def text(notice: Notice) -> str:
        reason = notice.details.get("reason")
        return f"{what}: {reason}" if reason else what

    return text


CODES: Mapping[str, Code] = {
    # checks of the rows, before anything trains
    "no-rows": _check(
        ["error"],
        "A site has no training rows or no test rows.",
        "Leave the site out, join it with another, or change the shares in `[evaluation]`. If accepted, a site without "
        "test rows only trains and has no figures of its own.",
        lambda n: f"{_count(n)} rows leave no {n.details['part']} rows",
        lambda n: "Leave this site out, join it with another, or change the shares in [evaluation].",
    ),
    "few-rows": _check(
        ["warning"],
        "A site has fewer than 30 rows, so that its own figures say little.",
        "Read its own figures with care. Its rows still count in the overall figures.",
        lambda n: f"only {_count(n)} rows ({_count(n, 'test')} of them for testing); its own figures will say little",
        lambda n: "Leave this site out, join it with another, or change the shares in [evaluation].",
    ),
    "one-site": _check(
        ["warning"],
        "An arm is federated and there is one hospital.",
        "Name more `files` or `hospitals` in `[data]`, or form sites with a `partition` in `[sites]`.",
        lambda n: "is the only hospital, so that federated training has nobody to learn from and equals training alone",
    ),
    "shared-rows": _check(
        ["error", "warning"],
        "The same patient is at two sites, or rows are equal there, beyond what chance explains.",
        "Remove the copies.",
        lambda n: _share(n, f"rows are also at another site{_by_chance(n)}"),
        _overlap_remedy,
    ),
    "leak": _check(
        ["error", "warning"],
        "A patient in some site's test rows is also in some site's training rows.",
        "Remove the copies. For `age-windows`: `disjoint = true`. The [results](results.md#leakage--variant--site) "
        "count them.",
        lambda n: _share(n, "test rows are also training rows of some site, so that test figures are too good"),
        _overlap_remedy,
    ),
    "target-leak": _check(
        ["error", "warning"],
        "A column tells the outcome by itself.",
        "Find out how it is recorded. What is known only after the outcome, or because of it, is not a feature: leave "
        'it out (`types = { NAME = "ignore" }`).',
        _target_leak,
        _target_leak_remedy,
    ),
    "copies": _check(
        ["error", "warning"],
        "Many rows of a site are copies of an earlier one, more than chance explains.",
        "Remove the copies from the file, keeping one of each, unless they are different patients.",
        _copies,
    ),
    "label-direction": _check(
        ["error"],
        "A site's label runs opposite to the other sites', seen from columns that they share: it may be inverted.",
        "Find out what the target means there, and map its words under `labels`; accept it if the label is right.",
        _label_direction,
        _label_direction_remedy,
        same_by=(),  # which columns show it best may differ between seeds
    ),
    "one-class": _check(
        ["error"],
        "All training rows of all sites are of one class.",
        "Check the target column and its words.",
        _one_class,
    ),
    "rare-class": _check(
        ["warning"],
        "A class has fewer than 10 rows at all sites together.",
        "It may be a typo: correct it, or keep it as a class of its own.",
        _rare_class,
        _rare_class_remedy,
    ),
    "missing-class": _check(
        ["warning"],
        "A site has no training row, or no test row, of some class.",
        f"{NOTHING} Metrics that need every class are left out at that site.",
        _missing_class,
        _missing_class_remedy,
    ),
    "empty-column": _check(
        ["warning"],
        "A column of a site's file has no value in its training rows. (A column that the file does not have is "
        "`column-not-recorded`.)",
        f"{NOTHING} Its gaps are filled from the other sites, or with the middle of the public range "
        '(`missing = "range"`).',
        lambda n: f"{', '.join(n.columns)}: never recorded (left out, or filled by what others or the study know)",
        lambda n: "Nothing need be done, but this site can say nothing about it.",
    ),
    "constant-column": _check(
        ["warning"],
        "A column has one value in all training rows of a site.",
        f"{NOTHING} The site can say nothing about it.",
        lambda n: f"{', '.join(n.columns)}: the same in all training rows",
        lambda n: "Nothing need be done, but this site can say nothing about it.",
    ),
    "odd-values": _check(
        ["warning"],
        "A site has numbers so far from its others that they may be typos.",
        "Look at the cells; `wardround data describe FILE` gives the line of the first. Correct those that are wrong, "
        "or empty them. Medians are hardly affected, means and scales are.",
        lambda n: (
            ", ".join(f"{name} ({count})" for name, count in n.per_column.items())
            + ": values so far from this site's others that they may be typos"
        ),
    ),
    "equal-rows": _check(
        ["warning"],
        "Rows equal rows of other patients at other sites, beyond what chance explains.",
        "If they are the same people under two numbers, remove the copies.",
        lambda n: _share(n, f"rows equal rows of other patients elsewhere{_by_chance(n)}"),
    ),
    "label-not-compared": _check(
        ["warning"],
        "A site shares no usable column with any other site, so that an inverted label would not be seen.",
        "Make sure that the target means the same there; columns are compared where their names are known.",
        lambda n: "has no column to compare with other sites', so that an inverted label would not be seen",
    ),
    "few-matched-patients": _warning(
        "Few of the label holder's training patients are at all parties.",
        "Look whether all parties write ids alike, or find more patients in common.",
        lambda n: (
            f"only {_count(n, 'patients')} of {_count(n, 'of')} training patients are at all parties, so that its "
            "model says little"
        ),
    ),
    # reading files
    "column-not-recorded": Code(
        ("info", "warning"),
        "A site does not record a column that others have, or has no value in it.",
        NOTHING + " It is missing there, or the site uses its own columns.",
        lambda n: (
            f"does not record {_quoted(n.columns)}"
            + {"own": "; it uses the columns that it has", "missing": "; counts as missing there"}[
                str(n.details["use"])
            ]
        ),
    ),
    "column-not-shared": _info(
        'Columns are left out because not every hospital has them (`columns = "common"`).',
        'Use `columns = "all"` or `"own"` to keep them.',
        lambda n: f"not at every hospital, left out: {_quoted(n.columns)}",
    ),
    "column-left-out": _info(
        "Columns are not features: identifiers, free text, no values, dates, or ignored by the study.",
        "Declare their `types` in `[data]` to use them.",
        lambda n: f"left out ({LEFT_OUT[str(n.details['reason'])]}): {_quoted(n.columns)}",
    ),
    "column-set-aside": _info(
        "The study says that a site does not really record a column; the values that it has are not used.",
        NOTHING,
        lambda n: (
            f"{', '.join(n.columns)} counts as not recorded; {_count(n)} of {_count(n, 'of')} rows have a value in it"
        ),
    ),
    "declaration-not-used": _info(
        "What the study declares of a column does not fit its type at this site, and is not used there.",
        NOTHING,
        lambda n: (
            f"{_quoted(n.columns)}: the study's `{n.details['setting']}` are not used here: "
            + {
                "levels": "the column holds numbers, which have no levels",
                "ranges": "the column is text, which has no range",
            }[str(n.details["setting"])]
        ),
    ),
    "declared-column-missing": _info(
        "The study declares columns that this site's file does not have.",
        "Check their spelling, if the site has them.",
        lambda n: f"named by the study, and not in this file: {_quoted(n.columns)}",
    ),
    "dates-as-years": _info(
        "A column of dates is read as numbers.",
        NOTHING,
        lambda n: f"{_quoted(n.columns)}: dates, read as years since 2000-01-01",
    ),
    "infinite-values": _info(
        "Infinite values are read as missing.",
        "Correct the cells if they stand for something else.",
        lambda n: f"{_quoted(n.columns)}: {_count(n, 'values')} infinite values, read as missing",
    ),
    "decimal-commas": _info(
        "Commas in numbers are read as decimal signs.",
        "Check that they are not thousands.",
        lambda n: f"{_quoted(n.columns)}: commas read as decimal signs",
    ),
    "impossible-values": _info(
        "Values that cannot be are read as missing.",
        NOTHING,
        lambda n: f"{', '.join(n.columns)} is 0 in {_count(n)} rows, which is impossible; read as missing",
    ),
    "spellings-joined": _info(
        "Several spellings of a level are read as one.",
        "Check the column if the levels are different things.",
        lambda n: f"{_quoted(n.columns)}: {_count(n, 'spellings')} spellings joined into {_count(n, 'levels')} levels",
    ),
    "case-of-levels": _info(
        "Levels of a column differ only in upper and lower case, and count as different.",
        "Write them alike if they mean the same.",
        lambda n: f"{_quoted(n.columns)}: levels that differ only in upper and lower case count as different",
    ),
    "rows-without-target": _info(
        "Rows without a value in the target are left out.",
        NOTHING,
        lambda n: _share(n, f"rows left out, without a value in {_quoted(n.columns)}"),
    ),
    "rows-dropped": _info(
        'Rows with gaps are left out (`missing = "drop"`).',
        'Use `missing = "median"` to keep them.',
        lambda n: _share(n, f"rows have gaps and were dropped, {_count(n, 'of') - _count(n)} remain"),
    ),
    "target-elsewhere": _warning(
        "The target of one hospital is a feature at another.",
        "Make sure that it does not reveal the outcome there; otherwise ignore it under `types`.",
        _target_elsewhere,
    ),
    "target-words": _warning(
        "Hospitals write the two classes in different words, which were taken to mean the same.",
        "Confirm that they do, or map the words under `labels`.",
        _target_words,
    ),
    "age-not-in-years": _info(
        "A column of ages does not hold numbers, so that there are no age groups.",
        "Name the column with the age in years (`age`).",
        lambda n: f"{_quoted(n.columns)} is not in years, so there are no age groups",
    ),
    "no-patient-column": _info(
        "No column says which patient a row is of.",
        "Name it (`patient`), so that a patient's rows stay on one side of a split.",
        lambda n: (
            "no patient numbers: two images of one patient can be on two sides"
            if n.details.get("images")
            else "no column says which patient a row is of; equal rows count as one patient"
        ),
    ),
    "unknown-patients": _info(
        "Some rows or images have no patient number; each is taken as another patient's.",
        NOTHING,
        lambda n: (
            f"{_count(n, 'images')} images without a patient number, each taken as another patient's"
            if "images" in n.counts
            else f"{_count(n)} rows without a value in {_quoted(n.columns)}, each taken as another patient's"
        ),
    ),
    "impossible-ages": _info(
        "Ages that cannot be are read as missing.",
        NOTHING,
        lambda n: f"{_count(n, 'ages')} ages are 0, above {_count(n, 'oldest')} or not a number, read as missing",
    ),
    "party-lacks-patients": _info(
        "A party does not have all patients of the label holder.",
        NOTHING,
        lambda n: f"does not have {_count(n, 'patients')} of the {_count(n, 'of')} patients of {n.other_sites[0]!r}",
    ),
    "ids-spelt-differently": _warning(
        "More patients of a party would be matched if ids were compared without leading zeros, capitals and prefixes.",
        "Look at how both parties write their ids.",
        lambda n: (
            f"{_count(n, 'patients')} more patients would be matched if ids were compared without leading zeros, "
            "capitals and what stands before the digits: please look at how both write them"
        ),
    ),
    "visits-not-matched": _info(
        "Rows of the label holder are of visits that another party does not have.",
        NOTHING,
        lambda n: f"does not have the visits of {_count(n)} rows of {n.other_sites[0]!r}",
    ),
    "synthetic-rows": _info(
        "The rows are synthetic: no patient is behind them.",
        "Do not report figures on them as results about patients.",
        lambda n: (
            f"all {_count(n)} {n.details['what']} are synthetic ({n.details['recipe']}, seed {_count(n, 'seed')}): no "
            "patient is behind them"
        ),
    ),
    "synthetic-prevalence": _info(
        "How the findings of synthetic images were drawn.",
        NOTHING,
        lambda n: (
            f"findings occur together as in 112,120 images of the NIH (Wang et al., CVPR 2017); {n.details['shares']}"
        ),
    ),
    "phantoms-stand-in": _info(
        "The study names no path to images, so synthetic phantoms stand in.",
        "Write `path` in `[data]` to use real images.",
        lambda n: "the study names no path to images, so synthetic phantoms stand in",
    ),
    "sites-cut": _info(
        "Synthetic sites are cut to their largest allowed number of rows.",
        NOTHING,
        lambda n: f"cut {_count(n, 'sites')} of {_count(n, 'of')} sites to their first {_count(n)} rows",
    ),
    "parts-joined": _info(
        "The training and test images of a published data set are joined, and split anew.",
        NOTHING,
        lambda n: f"joined {_count(n, 'training')} training and {_count(n, 'test')} test images",
    ),
    "rows-chosen": _info(
        "The study uses some of the images only (`rows`).",
        NOTHING,
        lambda n: (
            f"kept {_count(n, 'images')} of {_count(n, 'of')} images, "
            + {"patients": "by patients drawn at random", "classes": "as equally over the classes as possible"}[
                str(n.details["by"])
            ]
        ),
    ),
    "images-of-side": _info(
        "How many images each part of an archive holds.",
        NOTHING,
        lambda n: f"{n.details['part']}: {_count(n, 'images')} images",
    ),
    "side-list-alone": _info(
        "One of NIH's two lists of training and test images is there without the other, and is not used.",
        "Put both lists beside the table.",
        lambda n: f"{n.files[0]} is there without its counterpart, and is not used",
    ),
    "image-missing": _info(
        "Images that the table names have no file, and are left out.",
        "Fetch the files, or correct the table.",
        _images("that the table names have no file", "left out"),
    ),
    "image-unreadable": _info(
        "Images cannot be read, or are not one grey picture, and are left out.",
        "Fetch the files again.",
        _images("cannot be read, or are not one grey picture", "left out"),
    ),
    "image-16-bit": _info(
        "Images have 16 bits per pixel, and are converted to 8.",
        NOTHING,
        _images("have 16 bits per pixel", "converted to 8"),
    ),
    "image-colour": _info(
        "Images are in colour or have transparency, and are converted to grey.",
        NOTHING,
        _images("are in colour or have transparency", "converted to grey"),
    ),
    "image-other-size": _info(
        "Images differ in size from most, and are resized like all.",
        NOTHING,
        _images("differ in size from most", "resized like all"),
    ),
    "image-unknown-finding": _info(
        "Images have a finding that is not known, or none at all; what is unknown is ignored.",
        "Correct the label table, or name the findings.",
        _images("have a finding that is not known, or none at all", "what is unknown is ignored"),
    ),
    "image-extra": _info(
        "Images are named by no table, and are not used.",
        NOTHING,
        _images("are named by no table", "not used"),
    ),
    "images-rescaled": _info(
        "Images are resized, or stretched because they are not square.",
        NOTHING,
        lambda n: (
            f"{n.files[0]}: resized from {_count(n, 'width')} x {_count(n, 'height')} to "
            f"{_count(n, 'size')} x {_count(n, 'size')} pixels"
            if n.files
            else f"{_count(n, 'images')} images are not square, stretched to {_count(n, 'size')} x {_count(n, 'size')}"
        ),
    ),
    "dicom-inverted": _info(
        "DICOM images that are stored with dark bones (MONOCHROME1) are inverted.",
        NOTHING,
        lambda n: f"{_count(n, 'images')} images stored with dark bones (MONOCHROME1) were inverted",
    ),
    "dicom-unwindowed": _info(
        "DICOM images have no usable window; percentiles of their pixels become black and white.",
        NOTHING,
        lambda n: (
            f"{_count(n, 'images')} images without a usable window: the {_count(n, 'black')}th percentile became "
            f"black, the {_count(n, 'white')}th white"
        ),
    ),
    "dicom-turned": _info(
        "DICOM images are turned upright by their PatientOrientation.",
        NOTHING,
        lambda n: f"{_count(n, 'images')} images were turned upright by their PatientOrientation",
    ),
    "dicom-unoriented": _info(
        "DICOM images do not say how they are turned, and are taken as they are.",
        "Look at some of them.",
        lambda n: (
            f"{_count(n, 'images')} images do not say how they are turned (PatientOrientation) and were taken as they "
            "are"
        ),
    ),
    "uncertain-labels": _info(
        "Labels are marked as uncertain (-1); `uncertain` in `[data]` says what they count as.",
        "Choose `uncertain` to suit the question.",
        lambda n: (
            f"{_count(n, 'labels')} uncertain labels (-1) in {_count(n, 'images')} images, "
            + {"ignore": "not counted", "zero": "taken as absent", "one": "taken as present"}[
                str(n.details["uncertain"])
            ]
        ),
    ),
    "boxes-used": _info(
        "How many bounding boxes belong to the images and findings of the study.",
        NOTHING,
        _boxes,
    ),
    # `wardround data describe`
    "may-be-target": _info(
        "A column's words would make it a target of two classes.",
        "If the word taken as positive means healthy, say so with `positive`, or with `labels`.",
        lambda n: (
            f"{n.columns[0]!r}: as a target, {n.classes[1]!r} would be the positive class and {n.classes[0]!r} the "
            f"other. If {n.classes[1]!r} means healthy here, say so with `positive`, or with `labels`"
        ),
    ),
    "header-is-data": _warning(
        "The first line of a file holds numbers or dates instead of names.",
        "If it is a row of data, add a line of names above it.",
        lambda n: "the first line holds numbers or dates; if it is a row of data, add a line of names above it",
    ),
    "file-copies": _warning(
        "Rows of a file are equal to an earlier row.",
        "If they are copies, remove them.",
        lambda n: (
            f"{_count(n)} rows are equal to an earlier row in every column but the identifiers. If they are copies of "
            "one patient under several numbers, they would be trained on and tested: remove them"
            if n.details.get("but_ids")
            else f"{_count(n)} rows are equal to an earlier row in every column; {_count(n, 'of') - _count(n)} of "
            f"{_count(n, 'of')} are different. Split at random, copies would be trained on and tested. Equal rows are "
            "kept on one side of a split, as if they were of one patient; if they are copies, remove them"
        ),
    ),
    # training
    "diverged": _warning(
        "Training diverged: scores are not numbers, and count nowhere.",
        LR_HIGH,
        _diverged,
    ),
    "constant-scores": _warning(
        "Scores of all test rows are within 0.001 of each other.",
        "Nothing was learnt; try another learning rate (`lr`).",
        lambda n: "gives all test rows nearly the same score",
    ),
    "saturated-scores": _warning(
        "The test loss after the last round is more than 5 % above that of the constant answer, which gives every row "
        "the shares of the classes among the test rows, and 1 % of the scores or more are within 0.001 of 0 or 1.",
        "The learning rate (`lr`) may be too high, or the rows too few for the model.",
        _saturated,
    ),
    "unfinished-training": _warning(
        "The test loss is as high, without such scores: common with a rare outcome and few rounds.",
        "Training may have stopped too early: try more `rounds` or a higher learning rate (`lr`).",
        lambda n: "has a higher test loss than one answer for everybody would have, without any extreme score",
    ),
    "rising-loss": _warning(
        "The mean training loss of the last tenth of the rounds is more than 5 % above that of the first round.",
        LR_HIGH,
        lambda n: "has a higher training loss at the end than after the first round",
    ),
    "flat-loss": _warning(
        "The training loss fell by less than 0.1 %.",
        "The learning rate (`lr`) may be too low, or the rounds too few.",
        lambda n: "has hardly changed its training loss",
    ),
    "update-not-finite": _warning(
        "A site's updates had numbers that are not finite, and counted for nothing.",
        LR_HIGH,
        lambda n: (
            f"its update of {n.arm} had numbers that are not finite in {_plural(_count(n, 'rounds'), 'round')}, and "
            "counted for nothing there"
        ),
    ),
    # across hospitals
    "figures-withheld": _info(
        "A site, or a class at a site, has too few patients for figures to leave it (`smallest_cell`).",
        NOTHING,
        _withheld,
    ),
    "large-share-of-weight": _warning(
        "One site has more than half of all training rows, and so more than half of the weight.",
        "Ask the site to confirm how many rows it has, or choose an algorithm that weights sites alike.",
        lambda n: (
            f"has {n.counts['share']:.0%} of all training rows, so that it alone decides more than half of every "
            "average that is weighted by rows"
        ),
    ),
    "matched-rows": _info(
        "How many training rows of the label holder are of patients whom all parties have.",
        NOTHING,
        lambda n: f"all parties have the patients of {_count(n):,} of {_count(n, 'of'):,} training rows",
    ),
    "site-late": _warning(
        "A site did not answer in time, before the first round.",
        "Ask the site whether it was running.",
        lambda n: (
            "did not answer the greeting in time"
            if n.details.get("greeting")
            else "did not answer in time, before the first round"
        ),
    ),
    "site-revoked": _warning("A site's key was revoked.", "Provision the site anew.", lambda n: "its key was revoked"),
    "site-refused": _warning(
        "A site refused to take part, by its policy or its approvals.",
        "Settle it with the site.",
        _reason("refused"),
    ),
    "site-failed": _warning(
        "A site could not do what it was asked.",
        "Settle it with the site; its own screen says more.",
        _reason("failed"),
    ),
    "site-data-unusable": _warning(
        "A site's rows cannot be read or used.",
        "The site's own screen says why.",
        lambda n: "failed: its rows cannot be used as they are; its own screen says why",
    ),
    "site-fails-check": _warning(
        "A site's rows fail a check.",
        "The site's own screen says how.",
        lambda n: f"failed: its rows fail the check {n.details['check']}; its own screen says how",
    ),
    "site-answer-unusable": _warning(
        "A site sent an answer that cannot be used.",
        "Install the same version of wardround everywhere.",
        _reason("sent an answer that cannot be used"),
    ),
    "site-disagrees": _warning(
        "A site's data do not fit with those of most other sites.",
        "Change the site's file as its remedy says.",
        lambda n: str(n.details["reason"]),
    ),
    "site-away": _warning(
        "A site was away when models were evaluated.",
        "No figure has its rows; evaluate again when it is there.",
        lambda n: "was away when models were evaluated, so that no figure has its rows",
    ),
}
CHECKS = {code: known.meaning for code, known in CODES.items() if known.is_check}


# -- from notices to text


def text_of(notice: Notice) -> str:
    """What was found, without the site's or arm's name."""
    accepted = " (accepted by the study)" if notice.accepted else ""
    seeds = f" (with {notice.seeds[0]} of {notice.seeds[1]} seeds)" if notice.seeds else ""
    return f"{CODES[notice.code].text(notice)}{accepted}{seeds}"


def remedy_of(notice: Notice) -> str:
    known = CODES[notice.code]
    return known.remedy if known.remedy_for is None else known.remedy_for(notice)


def line_of(notice: Notice) -> str:
    """The whole remark in one line: variant, site or arm, and what was found."""
    variant = f"variant {notice.variant}: " if notice.variant else ""
    place = place_of(notice)
    return f"{variant}{place}: {text_of(notice)}" if place else f"{variant}{text_of(notice)}"


def place_of(notice: Notice) -> str:
    """The sites, or the arm, that a line begins with."""
    if notice.code == "label-direction" and len(notice.other_sites) == 1:
        return f"{notice.site} and {notice.other_sites[0]}"
    return notice.site or notice.arm or ("all sites" if CODES[notice.code].is_check else "")


def lines_of(notices: Iterable[Notice]) -> list[str]:
    """Lines for people: what many sites have in common is said once."""
    return [line for _, line in grouped(notices)]


def grouped(notices: Iterable[Notice]) -> list[tuple[list[Notice], str]]:
    """Notices that share a line, and the line. The order is that of the first of each group."""
    groups: dict[tuple[object, ...], list[Notice]] = {}
    for notice in notices:
        groups.setdefault(_shared(notice), []).append(notice)
    found: list[tuple[list[Notice], str]] = []
    for members in groups.values():
        if len(members) < MANY_SITES:
            found += [([notice], line_of(notice)) for notice in members]
        else:
            found.append((members, _line_for_many(members)))
    return found


def identity(notice: Notice) -> tuple[object, ...]:
    """Equal for notices that differ in their counts only, as those of two seeds do."""
    by = [getattr(notice, name) for name in CODES[notice.code].same_by]
    plain = [tuple(sorted(value.items())) if isinstance(value, Mapping) else value for value in by]
    return notice.code, notice.site, notice.arm, notice.variant, *plain


def over_seeds(by_seed: Iterable[Iterable[Notice]]) -> list[Notice]:
    """The first of each remark, with the number of seeds that have it where not all have it."""
    found: dict[tuple[object, ...], list[Notice]] = {}
    total = 0
    for notices in by_seed:
        total += 1
        for key, notice in {identity(notice): notice for notice in notices}.items():
            found.setdefault(key, []).append(notice)
    return [
        notices[0] if len(notices) == total else replace(notices[0], seeds=(len(notices), total))
        for notices in found.values()
    ]


def read_notice(value: object) -> Notice:
    """From a file or another institution. ValueError where it is none, or of a code that is not known."""
    notice = Notice.from_json(value)
    declared: Severity = "error" if notice.accepted else notice.severity  # an accepted error is a warning
    if notice.code not in CODES or declared not in CODES[notice.code].severities:
        raise ValueError("a notice has a code or a severity that is not known")
    try:
        text_of(notice)
    except (KeyError, IndexError, TypeError, ValueError):
        raise ValueError("a notice lacks what its code needs") from None
    return notice


def written(notices: Iterable[Notice]) -> list[dict[str, object]]:
    """For JSON files that people read too: each with its text."""
    return [{**notice.to_json(), "text": line_of(notice)} for notice in notices]


def reference() -> str:
    """The tables of docs/reference/notices.md."""
    rows = ["| code | severity | meaning | what to do |", "|---|---|---|---|"]
    rows += [
        f"| `{code}` | {' or '.join(known.severities)} | {_cell(known.meaning)} | {_cell(known.remedy)} |"
        for code, known in CODES.items()
    ]
    return "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _shared(notice: Notice) -> tuple[object, ...]:
    """What is equal for notices that may share a line; one of no site stands for itself."""
    alone = () if notice.site and not notice.other_sites else (id(notice),)
    return notice.code, notice.severity, notice.variant, notice.accepted, notice.details.get("part"), *alone


def _line_for_many(notices: Sequence[Notice]) -> str:
    first, texts = notices[0], {text_of(notice) for notice in notices}
    sites = list(dict.fromkeys(notice.site for notice in notices))
    variant = f"variant {first.variant}: " if first.variant else ""
    if len(texts) == 1:
        return f"{variant}{_few(sites)}: {texts.pop()}"
    briefs = [f"{notice.site}{_brief(notice)}" for notice in notices]
    accepted = " (accepted by the study)" if first.accepted else ""
    return f"{variant}{CODES[first.code].meaning[:-1]}{accepted} ({len(sites)} sites): {_few(briefs)}"


def _brief(notice: Notice) -> str:
    """What tells one site's remark from another's, in brackets."""
    if notice.per_column:
        return f" ({', '.join(f'{name} {count}' for name, count in notice.per_column.items())})"
    if notice.columns or notice.classes:
        return f" ({', '.join((*notice.columns, *notice.classes))})"
    if "rows" in notice.counts:
        of = f" of {_count(notice, 'of')}" if "of" in notice.counts else ""
        return f" ({_count(notice)}{of} rows)"
    return ""


def _few(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
