"""Codes of the checks of the rows, before anything trains."""

from collections.abc import Mapping

from wardround.core.notices.code import NOTHING, Code, check, count, few, listed, quoted, share_text, warning
from wardround.core.notices.notice import Notice

NATURAL = "This may be natural; is it known before the outcome?"
FEW_CLASSES = 3  # named in a line


def _by_chance(notice: Notice) -> str:
    if not count(notice, "by_chance"):
        return ""
    return f" (chance explains at most {count(notice, 'by_chance')} equal rows in these columns)"


def _one_class(notice: Notice) -> str:
    if not notice.classes:
        return "no finding is present in some training rows and absent in others; there is nothing to learn"
    return f"every training row is of class {notice.classes[0]!r}; there is nothing to learn"


def _rare_class(notice: Notice) -> str:
    if notice.details.get("findings"):
        return f"finding {notice.classes[0]!r} is in only {count(notice)} rows"
    return f"class {notice.classes[0]!r} has only {count(notice)} rows"


def _missing_class(notice: Notice) -> str:
    names = few([repr(name) for name in notice.classes], FEW_CLASSES)
    of, part = count(notice, "of"), notice.details["part"]
    if notice.details.get("findings"):
        return f"no {part} row with {names} ({len(notice.classes)} of {of} findings)"
    return f"no {part} row of class {names} ({len(notice.classes)} of {of} classes)"


def _target_leak(notice: Notice) -> str:
    column = notice.columns[0]
    what = f"whether {column!r} has a value" if notice.details.get("by_gap") else f"column {column!r}"
    if "number" in notice.details:
        text = (
            f"{what} alone tells {notice.details['number']!r}: it tells high values from low ones with an area under "
            f"the ROC curve of {notice.counts['auc']:.3f} over {count(notice, 'of')} rows"
        )
        return text if notice.severity == "error" or notice.accepted else f"{text}. {NATURAL}"
    text = (
        f"{what} alone tells {listed([repr(name) for name in notice.classes])} from the rest: area under the ROC "
        f"curve {notice.counts['auc']:.3f} over {count(notice, 'of')} rows, {count(notice)} of them of the rarer "
        "class"
    )
    if notice.severity == "warning" and not notice.accepted:
        text += f". {NATURAL}"
    return text


def _copies(notice: Notice) -> str:
    if notice.details.get("patients_known"):
        return share_text(notice, "rows are equal in every column to a row of another patient of this site")
    return share_text(
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
    text = f"{notice.classes[0]!r} goes with {listed(seen)} {here}, and with the opposite {there}"
    if notice.details.get("number"):
        return f"its {notice.classes[0]!r} may be turned round: {text}"
    if pair:
        return f"the label of one of them seems to be inverted (which one cannot be known from two): {text}"
    if notice.details.get("certain"):
        return f"its label seems to be inverted: {text}"
    return f"its label, or that of {listed(notice.other_sites)}, seems to be inverted: {text}"


def _target_units(notice: Notice) -> str:
    factor = float(notice.counts["factor"])
    times = f"{factor:.2g} times" if factor > 1 else f"1/{1 / factor:.2g} of"
    there = f"that at {notice.other_sites[0]}" if len(notice.other_sites) == 1 else "that at the other sites"
    which = "one of the two" if len(notice.other_sites) == 1 else "it"
    return f"the median of {quoted(notice.columns)} is about {times} {there}: {which} may be in another unit"


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


CHECK_CODES: Mapping[str, Code] = {
    # checks of the rows, before anything trains
    "no-rows": check(
        ["error"],
        "A site has no training rows or no test rows.",
        "Leave the site out, join it with another, or change the shares in `[evaluation]`. If accepted, a site without "
        "test rows only trains and has no figures of its own.",
        lambda n: f"{count(n)} rows leave no {n.details['part']} rows",
        lambda n: "Leave this site out, join it with another, or change the shares in [evaluation].",
    ),
    "few-rows": check(
        ["warning"],
        "A site has fewer than 30 rows, so that its own figures say little.",
        "Read its own figures with care. Its rows still count in the overall figures.",
        lambda n: f"only {count(n)} rows ({count(n, 'test')} of them for testing); its own figures will say little",
        lambda n: "Leave this site out, join it with another, or change the shares in [evaluation].",
    ),
    "one-site": check(
        ["warning"],
        "An arm is federated and there is one hospital.",
        "Name more `files` or `hospitals` in `[data]`, or form sites with a `partition` in `[sites]`.",
        lambda n: "is the only hospital, so that federated training has nobody to learn from and equals training alone",
    ),
    "shared-rows": check(
        ["error", "warning"],
        "The same patient is at two sites, or rows are equal there, beyond what chance explains.",
        "Remove the copies.",
        lambda n: share_text(n, f"rows are also at another site{_by_chance(n)}"),
        _overlap_remedy,
    ),
    "leak": check(
        ["error", "warning"],
        "A patient in some site's test rows is also in some site's training rows.",
        "Remove the copies. For `age-windows`: `disjoint = true`. The [results](results.md#leakage--variant--site) "
        "count them.",
        lambda n: share_text(n, "test rows are also training rows of some site, so that test figures are too good"),
        _overlap_remedy,
    ),
    "target-leak": check(
        ["error", "warning"],
        "A column tells the outcome by itself.",
        "Find out how it is recorded. What is known only after the outcome, or because of it, is not a feature: leave "
        'it out (`types = { NAME = "ignore" }`).',
        _target_leak,
        lambda n: (
            "Find out how it is recorded: what is known only after the outcome, or because of it, is not a feature. "
            f'Leave it out; in a file, with `types = {{ "{n.columns[0]}" = "ignore" }}` in [data].'
        ),
    ),
    "start-leak": check(
        ["error", "warning"],
        "Patients whom an arm tests were among those with whom the model that it starts from was trained.",
        "Start from a run that drew the same seeds from the same rows, so that its test rows are these; or test other "
        "patients.",
        lambda n: share_text(
            n,
            "test rows, all seeds together, are of patients with whom the model that training starts from was trained, "
            "so that test figures are too good",
        ),
    ),
    "start-unknown": check(
        ["warning"],
        "The rows of the model that an arm starts from are not at hand: its hospitals may have trained on patients "
        "whom this study tests.",
        "Test patients who came after that model was trained, or start from a run whose rows are here.",
        lambda n: (
            "whether the model that training starts from knows patients who are tested here cannot be told"
            + (f": it was trained at {listed(n.other_sites)} too" if n.other_sites else "")
        ),
    ),
    "copies": check(
        ["error", "warning"],
        "Many rows of a site are copies of an earlier one, more than chance explains.",
        "Remove the copies from the file, keeping one of each, unless they are different patients.",
        _copies,
    ),
    "label-direction": check(
        ["error", "warning"],
        "A site's label runs opposite to the other sites', seen from columns that they share: it may be inverted. Of a "
        "number it is a warning: what goes with it may truly differ from hospital to hospital.",
        "Find out what the target means there, and map its words under `labels`; accept it if the label is right.",
        _label_direction,
        lambda n: (
            f"Find out what {n.classes[0]!r} means at each of them, and where high values are low ones there, correct "
            "the file."
            if n.details.get("number")
            else f"Find out what the target means at each of them. Where {n.classes[0]!r} is read from the wrong word, "
            "map the words under `labels` in the source or the site file."
        ),
        same_by=(),  # which columns show it best may differ between seeds
    ),
    "target-units": check(
        ["warning"],
        "A number's median at a site is several times that at the other sites, which agree: it may be in another unit.",
        "Find out its unit there, and convert the column in that site's file. Nothing need be done if the patients "
        "differ so much.",
        _target_units,
        same_by=(),  # the factor may differ between seeds
    ),
    "one-class": check(
        ["error"],
        "All training rows of all sites are of one class.",
        "Check the target column and its words.",
        _one_class,
    ),
    "constant-target": check(
        ["error", "warning"],
        "The number to be predicted is the same in all training rows, of all sites or of one.",
        "Check the target column.",
        lambda n: f"{quoted(n.columns)} is the same in all training rows{'' if n.site else ' of all sites'}",
        lambda n: "Nothing need be done, but this site can say nothing about it." if n.site else "Check the column.",
    ),
    "rare-class": check(
        ["warning"],
        "A class has fewer than 10 rows at all sites together.",
        "It may be a typo: correct it, or keep it as a class of its own.",
        _rare_class,
        _rare_class_remedy,
    ),
    "missing-class": check(
        ["warning"],
        "A site has no training row, or no test row, of some class.",
        f"{NOTHING} Metrics that need every class are left out at that site.",
        _missing_class,
        _missing_class_remedy,
    ),
    "empty-column": check(
        ["warning"],
        "A column of a site's file has no value in its training rows. (A column that the file does not have is "
        "`column-not-recorded`.)",
        f"{NOTHING} Its gaps are filled from the other sites, or with the middle of the public range "
        '(`missing = "range"`).',
        lambda n: f"{', '.join(n.columns)}: never recorded (left out, or filled by what others or the study know)",
        lambda n: "Nothing need be done, but this site can say nothing about it.",
    ),
    "constant-column": check(
        ["warning"],
        "A column has one value in all training rows of a site.",
        f"{NOTHING} The site can say nothing about it.",
        lambda n: f"{', '.join(n.columns)}: the same in all training rows",
        lambda n: "Nothing need be done, but this site can say nothing about it.",
    ),
    "odd-values": check(
        ["warning"],
        "A site has numbers so far from its others that they may be typos.",
        "Look at the cells; `wardround data describe FILE` gives the line of the first. Correct those that are wrong, "
        "or empty them. Medians are hardly affected, means and scales are.",
        lambda n: (
            ", ".join(f"{name} ({count})" for name, count in n.per_column.items())
            + ": values so far from this site's others that they may be typos"
        ),
    ),
    "equal-rows": check(
        ["warning"],
        "Rows equal rows of other patients at other sites, beyond what chance explains.",
        "If they are the same people under two numbers, remove the copies.",
        lambda n: share_text(n, f"rows equal rows of other patients elsewhere{_by_chance(n)}"),
    ),
    "label-not-compared": check(
        ["warning"],
        "A site shares no usable column with any other site, so that an inverted label would not be seen.",
        "Make sure that the target means the same there; columns are compared where their names are known.",
        lambda n: "has no column to compare with other sites', so that an inverted label would not be seen",
    ),
    "few-matched-patients": warning(
        "Few of the label holder's training patients are at all parties.",
        "Look whether all parties write ids alike, or find more patients in common.",
        lambda n: (
            f"only {count(n, 'patients')} of {count(n, 'of')} training patients are at all parties, so that its "
            "model says little"
        ),
    ),
}
