"""Notices: values that travel, filters on fields, and the one place where they become sentences."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from wardround.core.notices import (
    CHECKS,
    CODES,
    Notice,
    identity,
    line_of,
    lines_of,
    lines_of_json,
    over_seeds,
    read_notice,
    reference,
    remedy_of,
    text_of,
    with_texts,
)
from wardround.core.notices.notice import LONGEST_TEXT, MOST_NAMES

ROOT = Path(__file__).parents[2]
LEAK = Notice("leak", "error", "north", counts={"rows": 3, "of": 10})
WHOLE = Notice(
    "target-leak",
    "warning",
    "north",
    ("crp",),
    {"rows": 44, "of": 100, "auc": 0.995},
    {"crp": 2},
    ("yes",),
    ("south",),
    "fedavg",
    "fixed",
    (3, 10),
    ("a.png",),
    {"by_gap": True, "part": "test", "names": ("x", "y")},
    True,
)


def test_a_notice_goes_through_json_and_comes_back_equal() -> None:
    for notice in (LEAK, WHOLE):
        assert read_notice(json.loads(json.dumps(notice.to_json()))) == notice
    assert LEAK.to_json() == {"code": "leak", "severity": "error", "site": "north", "counts": {"rows": 3, "of": 10}}
    assert with_texts([LEAK])[0]["text"] == line_of(LEAK)
    assert read_notice(with_texts([LEAK])[0]) == LEAK  # its text is made again, never read


@pytest.mark.parametrize(
    "change",
    [
        {"code": "no-such-code"},
        {"code": 3},
        {"severity": "fatal"},
        {"severity": "info"},
        {"unknown": 1},
        {"site": "a\x1b[2Jb"},
        {"site": "x" * (LONGEST_TEXT + 1)},
        {"site": None},
        {"columns": "crp"},
        {"columns": ["x"] * (MOST_NAMES + 1)},
        {"columns": [["crp"]]},
        {"counts": {"rows": float("nan")}},
        {"counts": {"rows": True}},
        {"counts": {"rows": "3"}},
        {"counts": [3]},
        {"counts": {}},  # its text needs none, but of none nothing can be said of a share
        {"seeds": [3]},
        {"seeds": [4, 3]},
        {"seeds": [1.5, 3]},
        {"details": {"x": {"y": 1}}},
        {"details": []},
        {"accepted": "yes"},
    ],
)
def test_what_is_not_a_notice_is_refused_without_showing_it(change: dict[str, Any]) -> None:
    given = {**LEAK.to_json(), **change}
    if change == {"counts": {}}:
        given["code"], given["severity"] = "large-share-of-weight", "warning"
    with pytest.raises(ValueError, match="notice") as refused:
        read_notice(given)
    assert "\x1b" not in str(refused.value)
    assert "xxxx" not in str(refused.value)


def test_notices_of_two_seeds_are_one_where_they_differ_in_counts_only() -> None:
    other = replace(LEAK, counts={"rows": 4, "of": 10})
    assert identity(LEAK) == identity(other)
    for change in ({"site": "3"}, {"columns": ("a1",)}, {"classes": ("2",)}, {"arm": "b"}, {"details": {"part": "x"}}):
        assert identity(replace(LEAK, **change)) != identity(LEAK)
    assert over_seeds([[LEAK], [], [other]]) == [replace(LEAK, seeds=(2, 3))]
    assert over_seeds([[LEAK], [other]]) == [LEAK]
    shown = Notice("label-direction", "error", "a", per_column={"age": 1}, classes=("sick",), details={"certain": True})
    assert identity(shown) == identity(replace(shown, per_column={"crp": -1}))  # which columns show it may differ


def test_every_code_is_declared_whole_and_every_code_that_is_raised_is_declared() -> None:
    for code, known in CODES.items():
        assert re.fullmatch("[a-z0-9]+(-[a-z0-9]+)*", code)
        assert known.severities
        for sentence in (known.meaning, known.remedy):
            assert sentence[0].isupper() or sentence[0] in "`"
            assert sentence.endswith((".", ".)"))
    source = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    raised = set(re.findall(r'Notice\(\s*"([a-z0-9-]+)"', source))
    assert raised <= set(CODES)
    families = re.findall(r'Notice\(\s*f"([a-z]+-){', source)  # a code for each kind of problem of an image
    unused = [code for code in CODES if f'"{code}"' not in source.replace(f'"{code}":', "")]
    assert [code for code in unused if not code.startswith(tuple(families))] == []
    assert set(CHECKS) >= {"no-rows", "few-rows", "one-site", "shared-rows", "leak", "target-leak", "copies"}
    assert set(CHECKS) >= {"label-direction", "one-class", "rare-class", "missing-class", "empty-column"}
    assert set(CHECKS) >= {"constant-column", "odd-values"}


def test_the_reference_is_that_of_the_registry() -> None:
    """Written anew with scripts/write_notices_page.py."""
    assert (ROOT / "docs/reference/notices.md").read_text(encoding="utf-8").endswith(f"\n{reference()}")


# -- wording: here and nowhere else

WORDING = {
    LEAK: "north: 3 of 10 test rows are also training rows of some site, so that test figures are too good",
    replace(LEAK, severity="warning", accepted=True, seeds=(2, 3), variant="fixed"): (
        "variant fixed: north: 3 of 10 test rows are also training rows of some site, so that test figures are too "
        "good (accepted by the study) (with 2 of 3 seeds)"
    ),
    Notice("shared-rows", "error", "a", counts={"rows": 5, "of": 40, "by_chance": 2}): (
        "a: 5 of 40 rows are also at another site (chance explains at most 2 equal rows in these columns)"
    ),
    Notice("equal-rows", "warning", "a", counts={"rows": 5, "of": 40}): (
        "a: 5 of 40 rows equal rows of other patients elsewhere"
    ),
    Notice("target-leak", "error", "h0", ("crp",), {"rows": 44, "of": 600, "auc": 1.0}, classes=("a", "b")): (
        "h0: column 'crp' alone tells 'a' and 'b' from the rest: area under the ROC curve 1.000 over 600 rows, 44 of "
        "them of the rarer class"
    ),
    Notice("odd-values", "warning", "b", ("hr", "steps"), per_column={"hr": 3, "steps": 1}): (
        "b: hr (3), steps (1): values so far from this site's others that they may be typos"
    ),
    Notice("one-class", "error", classes=("yes",)): (
        "all sites: every training row is of class 'yes'; there is nothing to learn"
    ),
    Notice("one-class", "error"): (
        "all sites: no finding is present in some training rows and absent in others; there is nothing to learn"
    ),
    Notice("rare-class", "warning", classes=("x",), counts={"rows": 1}): "all sites: class 'x' has only 1 rows",
    Notice("missing-class", "warning", "b", classes=tuple("vwxy"), counts={"of": 9}, details={"part": "test"}): (
        "b: no test row of class 'v', 'w', 'x' and 1 more (4 of 9 classes)"
    ),
    Notice(
        "missing-class", "warning", "b", classes=("v",), counts={"of": 9}, details={"part": "test", "findings": True}
    ): ("b: no test row with 'v' (1 of 9 findings)"),
    Notice("few-rows", "warning", "b", counts={"rows": 20, "test": 5}): (
        "b: only 20 rows (5 of them for testing); its own figures will say little"
    ),
    Notice("label-direction", "error", "a", per_column={"age": 1, "hr": -1}, classes=("sick",), other_sites=("b",)): (
        "a and b: the label of one of them seems to be inverted (which one cannot be known from two): 'sick' goes with "
        "higher age and lower hr at a, and with the opposite at b"
    ),
    Notice("label-direction", "error", "a", per_column={"age": 1}, classes=("sick",), details={"certain": True}): (
        "a: its label seems to be inverted: 'sick' goes with higher age here, and with the opposite at the other sites"
    ),
    Notice("label-direction", "error", "a", per_column={"age": 1}, classes=("sick",), other_sites=("b", "c")): (
        "a: its label, or that of b and c, seems to be inverted: 'sick' goes with higher age here, and with the "
        "opposite at the other sites"
    ),
    Notice("few-matched-patients", "warning", arm="split", counts={"patients": 16, "of": 160}): (
        "split: only 16 of 160 training patients are at all parties, so that its model says little"
    ),
    # reading
    Notice("source-note", "info", details={"text": "made-up rows"}): "made-up rows",
    Notice("column-not-recorded", "info", "a", ("x", "y"), details={"use": "own"}): (
        "a: does not record 'x', 'y'; it uses the columns that it has"
    ),
    Notice("column-not-recorded", "warning", "a", ("x",), details={"use": "missing"}): (
        "a: does not record 'x'; counts as missing there"
    ),
    Notice("column-not-shared", "info", columns=("x",)): "not at every hospital, left out: 'x'",
    Notice("column-left-out", "info", "a", ("x",), details={"reason": "id"}): "a: left out (identifiers): 'x'",
    Notice("column-left-out", "info", columns=("x",), details={"reason": "undeclared date"}): (
        "left out (dates; `types = { NAME = \"date\" }` makes one a feature): 'x'"
    ),
    Notice("column-set-aside", "info", "a", ("x",), {"rows": 3, "of": 9}): (
        "a: x counts as not recorded; 3 of 9 rows have a value in it"
    ),
    Notice("declaration-not-used", "info", columns=("x",), details={"setting": "levels"}): (
        "'x': the study's `levels` are not used here: the column holds numbers, which have no levels"
    ),
    Notice("declared-column-missing", "info", "a", ("x",)): "a: named by the study, and not in this file: 'x'",
    Notice("dates-as-years", "info", columns=("x",)): "'x': dates, read as years since 2000-01-01",
    Notice("infinite-values", "info", "a", ("x",), {"values": 3}): "a: 'x': 3 infinite values, read as missing",
    Notice("decimal-commas", "info", "a", ("x",)): "a: 'x': commas read as decimal signs",
    Notice("impossible-values", "info", "a", ("x",), {"rows": 3}): (
        "a: x is 0 in 3 rows, which is impossible; read as missing"
    ),
    Notice("spellings-joined", "info", columns=("x",), counts={"spellings": 5, "levels": 2}): (
        "'x': 5 spellings joined into 2 levels"
    ),
    Notice("case-of-levels", "info", columns=("x",)): (
        "'x': levels that differ only in upper and lower case count as different"
    ),
    Notice("rows-without-target", "info", "a", ("y",), {"rows": 1, "of": 3}): (
        "a: 1 of 3 rows left out, without a value in 'y'"
    ),
    Notice("rows-dropped", "info", "a", counts={"rows": 6, "of": 303}): (
        "a: 6 of 303 rows have gaps and were dropped, 297 remain"
    ),
    Notice("target-elsewhere", "warning", "a", ("worse",), other_sites=("b",)): (
        "a: 'worse', the target at 'b', is a feature: does it reveal the outcome?"
    ),
    Notice("target-words", "warning", columns=("y",), other_sites=("a", "b"), details={"a": "yes/no", "b": "1/0"}): (
        "target 'y': yes/no at 'a', 1/0 at 'b'. These were taken to mean the same; please confirm that they do."
    ),
    Notice("age-not-in-years", "info", "a", ("age",)): "a: 'age' is not in years, so there are no age groups",
    Notice("no-patient-column", "info", "a"): (
        "a: no column says which patient a row is of; equal rows count as one patient"
    ),
    Notice("unknown-patients", "info", "a", ("who",), {"rows": 2}): (
        "a: 2 rows without a value in 'who', each taken as another patient's"
    ),
    Notice("impossible-ages", "info", counts={"ages": 2, "oldest": 120}): (
        "2 ages are 0, above 120 or not a number, read as missing"
    ),
    Notice("party-lacks-patients", "info", "lab", counts={"patients": 1, "of": 4}, other_sites=("clinic",)): (
        "lab: does not have 1 of the 4 patients of 'clinic'"
    ),
    Notice("visits-not-matched", "info", "lab", counts={"rows": 1}, other_sites=("clinic",)): (
        "lab: does not have the visits of 1 rows of 'clinic'"
    ),
    Notice("may-be-target", "info", columns=("y",), classes=("no", "yes")): (
        "'y': as a target, 'yes' would be the positive class and 'no' the other. If 'yes' means healthy here, say so "
        "with `positive`, or with `labels`"
    ),
    # images and synthetic rows
    Notice("synthetic-rows", "info", counts={"rows": 9, "seed": 1}, details={"what": "rows", "recipe": "r"}): (
        "all 9 rows are synthetic (r, seed 1): no patient is behind them"
    ),
    Notice("image-missing", "info", counts={"images": 7, "of": 9}, files=("a.png", "b.png")): (
        "images that the table names have no file, left out: 7 of 9 (a.png, b.png, ...)"
    ),
    Notice("dicom-unwindowed", "info", counts={"images": 2, "black": 0.1, "white": 99.9}): (
        "2 images without a usable window: the 0.1th percentile became black, the 99.9th white"
    ),
    Notice("uncertain-labels", "info", counts={"labels": 3, "images": 2}, details={"uncertain": "zero"}): (
        "3 uncertain labels (-1) in 2 images, taken as absent"
    ),
    # runs
    Notice("diverged", "warning", arm="fedavg", seeds=(1, 4)): (
        "fedavg: training diverged; the scores are not numbers and count nowhere (with 1 of 4 seeds)"
    ),
    Notice("saturated-scores", "warning", arm="fedavg", counts={"share": 0.25}): (
        "fedavg: has a higher test loss than the same answer for everybody would have, and 25% of its scores are "
        "nearly 0 or 1; the learning rate (`lr`) may be too high, or the rows too few for the model"
    ),
    Notice("flat-loss", "warning", arm="fedavg"): (
        "fedavg: has hardly changed its training loss; the learning rate (`lr`) may be too low, or the rounds too few"
    ),
    Notice("update-not-finite", "warning", "a", arm="fedavg", counts={"rounds": 1}): (
        "a: its update of fedavg had numbers that are not finite in 1 round, and counted for nothing there"
    ),
    Notice("never-counted", "warning", "a", arm="fedbuff", counts={"dropped": 3}): (
        "a: none of its work counted in fedbuff, so that the shared model has learnt nothing from its patients: 3 "
        "pieces of it came too late"
    ),
    Notice(
        "figures-withheld",
        "info",
        "a",
        counts={"smallest": 5},
        classes=("v",),
        seeds=(2, 4),
        details={"part": "tested"},
    ): (
        "a: fewer than 5 patients tested of class v; its figures by class stay there and count nowhere else (with 2 of "
        "4 seeds)"
    ),
    Notice("large-share-of-weight", "warning", "a", counts={"share": 0.987}): (
        "a: has 99% of all training rows, so that it alone decides more than half of every average that is weighted by "
        "rows"
    ),
    Notice("site-failed", "warning", "a", other_sites=("b",), details={"reason": "sent nothing"}): (
        "a: failed: b: sent nothing"
    ),
    Notice("site-fails-check", "warning", "a", details={"check": "leak"}): (
        "a: failed: its rows fail the check leak; its own screen says how"
    ),
    Notice("site-answer-unusable", "warning", "a", details={"reason": "too long"}): (
        "a: sent an answer that cannot be used: too long"
    ),
    Notice("region-left", "warning", "a", details={"region": "north"}): "a: its region north left",
}


@pytest.mark.parametrize("notice", WORDING, ids=lambda notice: notice.code)
def test_wording(notice: Notice) -> None:
    assert line_of(notice) == WORDING[notice]
    assert line_of(notice).endswith(text_of(notice))
    assert remedy_of(notice)


def test_what_many_sites_have_is_said_once_with_the_sites() -> None:
    silent = [Notice("label-not-compared", "warning", f"s{number:02}") for number in range(50)]
    (line,) = lines_of(silent)
    assert line.startswith("s00, s01, ")
    assert line.endswith(f"s19 and 30 more: {text_of(silent[0])}")
    few = [Notice("few-rows", "warning", site, counts={"rows": rows, "test": 2}) for site, rows in (("a", 9), ("b", 8))]
    assert lines_of(few) == [line_of(notice) for notice in few]  # two are said one by one
    few.append(Notice("few-rows", "warning", "c", counts={"rows": 7, "test": 2}))
    assert lines_of([few[0], LEAK, *few[1:]]) == [
        "A site has fewer than 30 rows, so that its own figures say little (3 sites): a (9 rows), b (8 rows), c (7 "
        "rows)",
        line_of(LEAK),
    ]


def test_what_many_columns_or_arms_have_is_said_once_with_their_names_and_a_count() -> None:
    cased = [Notice("case-of-levels", "info", columns=(name,)) for name in ("ward", "unit", "drug")]
    assert lines_of(cased) == [
        "Levels of a column differ only in upper and lower case, and count as different (3 columns): ward, unit, drug"
    ]
    assert len(lines_of(cased[:2])) == 2
    unused = [
        Notice("declaration-not-used", "info", columns=(name,), details={"setting": setting})
        for name, setting in (("a", "levels"), ("b", "ranges"), ("c", "levels"))
    ]
    assert len(lines_of(unused)) == 3  # they say different things
    commas = [Notice("decimal-commas", "info", site, (name,)) for site in ("x", "y") for name in ("crp", "lactate")]
    assert lines_of(commas) == [
        "Commas in numbers are read as decimal signs (2 sites): x (crp, lactate), y (crp, lactate)"
    ]
    assert lines_of(commas[:2]) == [line_of(notice) for notice in commas[:2]]
    flat = [Notice("flat-loss", "warning", arm=arm) for arm in ("a", "b", "c")]
    assert lines_of(flat) == [f"a, b, c: {text_of(flat[0])}"]
    high = [
        Notice("saturated-scores", "warning", arm=arm, counts={"share": share})
        for arm, share in (("a", 0.1), ("b", 0.2), ("c", 0.3))
    ]
    (line,) = lines_of(high)
    assert "(3 arms): a, b, c. The learning rate" in line


def test_notices_of_thirty_hospitals_are_few_lines() -> None:
    sites = [f"s{number:02}" for number in range(30)]
    notices = [
        *(Notice("few-rows", "warning", site, counts={"rows": 20, "test": 4}) for site in sites),
        *(Notice("infinite-values", "info", site, (name,), {"values": 1}) for site in sites for name in ("a", "b")),
        *(Notice("update-not-finite", "warning", site, counts={"rounds": 2}, arm="fedavg") for site in sites),
    ]
    lines = lines_of_json(with_texts(notices))
    assert len(lines) == 3
    assert all("and 10 more" in line for line in lines)


def test_texts_of_notices_that_are_not_known_stand_as_they_are() -> None:
    assert lines_of_json([{"code": "of-a-later-version", "text": "Something."}]) == ["Something."]
