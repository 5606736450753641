"""Which class a hospital's word means: said by the study, known, or refused; never guessed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.real_data import shared_data
from wardround.core.errors import DataError, StudyError
from wardround.core.notices import Notice
from wardround.data.records import Records
from wardround.data.sources.csv.hospital_files import csv
from wardround.data.sources.csv.target_classes import MEANINGS, PAIRS, differ_by_one_typo

TWO = ("no disease", "disease")
TURNED = {"0": "disease", "1": "no disease"}


def hospitals(folder: Path, **words: str) -> dict[str, Path]:
    """A file per hospital, whose rows have the given words, separated by spaces, as target `y`."""
    files = {}
    for site, text in words.items():
        files[site] = folder / f"{site}.csv"
        files[site].write_text("x,y\n" + "".join(f"{i},{word}\n" for i, word in enumerate(text.split())))
    return files


def load(folder: Path, words: dict[str, str], **choices: Any) -> Records:
    return csv(hospitals(folder, **words), "y", **choices).load()


def error(folder: Path, words: dict[str, str], **choices: Any) -> DataError:
    with pytest.raises(DataError) as caught:
        load(folder, words, **choices)
    return caught.value


def test_a_hospital_says_what_its_words_mean(tmp_path: Path) -> None:
    words = {"north": "0 1 1 0.0", "south": "Disease disease healthy"}
    labels = {"north": TURNED, "south": {"disease": "disease", "healthy": "no disease"}}
    records = load(tmp_path, words, classes=TWO, labels=labels)
    assert records.classes == TWO
    assert records.target.tolist() == [1, 0, 0, 1, 1, 1, 0]
    assert records.vocabulary == {
        "north": {"0": "disease", "1": "no disease"},
        "south": {"disease": "disease", "healthy": "no disease"},
    }
    assert records.notices == ()  # nothing was taken for granted, so nothing is to be confirmed


def test_words_are_compared_by_number_and_without_case(tmp_path: Path) -> None:
    labels = {"a": {"1.0": "Ill", "WELL": "Fine"}}
    records = load(tmp_path, {"a": "1 01 well Well"}, classes=("fine", "ill"), labels=labels)
    assert records.classes == ("fine", "ill")  # as the study lists them, not as a hospital spells them
    assert records.target.tolist() == [1, 1, 0, 0]
    assert records.vocabulary == {"a": {"1": "ill", "well": "fine"}}


def test_several_words_may_mean_one_class(tmp_path: Path) -> None:
    """As in UCI's files, in which 1 to 4 are grades of the disease."""
    labels = {"a": {"0": "no disease", "1": "disease", "2": "disease", "3": "disease"}}
    records = load(tmp_path, {"a": "0 1 2 3 0 1 2 3", "b": "disease disease"}, classes=TWO, labels=labels)
    assert records.target.tolist() == [0, 1, 1, 1, 0, 1, 1, 1, 1, 1]


def test_labels_without_a_list_follow_the_known_words(tmp_path: Path) -> None:
    records = load(tmp_path, {"a": "1 0 0", "b": "positive negative"}, labels={"a": {"0": "positive", "1": "negative"}})
    assert records.classes == ("negative", "positive")
    assert records.target.tolist() == [0, 1, 1, 1, 0]
    assert records.notices == ()
    named = load(tmp_path, {"a": "1 0"}, labels={"a": TURNED}, positive="disease")
    assert (named.classes, named.target.tolist()) == (TWO, [0, 1])


def test_a_declared_class_that_no_row_has_is_a_class(tmp_path: Path) -> None:
    records = load(tmp_path, {"a": "0 0"}, labels={"a": TURNED}, positive="disease")
    assert records.classes == TWO
    assert records.vocabulary == {"a": TURNED}


def test_vocabularies_without_labels(tmp_path: Path) -> None:
    records = load(tmp_path, {"a": "Yes NO no", "b": "1 0.0"})
    assert records.vocabulary == {"a": {"yes": "Yes", "no": "NO"}, "b": {"1": "Yes", "0": "NO"}}
    several = load(tmp_path, {"a": "b c a a b c", "b": "C c"})
    assert several.vocabulary == {"a": {"a": "a", "b": "b", "c": "c"}, "b": {"c": "c"}}


def test_words_that_labels_do_not_name(tmp_path: Path) -> None:
    refusal = error(
        tmp_path, {"a": "yes no Maybe yes no Maybe", "b": "disease"}, classes=TWO, labels={"a": {"yes": TWO[1]}}
    )
    assert refusal.where == "hospital 'a'"
    hidden = "1 that the study does not declare (the first at 'a' in line 4)"
    assert refusal.problem == f"words in its target column that `labels` does not name: 'no', {hidden}"
    assert "The classes are: 'disease', 'no disease'" in refusal.remedy


def test_a_list_of_two_is_held_to_at_every_hospital(tmp_path: Path) -> None:
    records = load(tmp_path, {"a": "ill well", "b": "ILL"}, classes=("well", "ill"))
    assert (records.classes, records.target.tolist()) == (("well", "ill"), [1, 0, 1])
    turned = load(tmp_path, {"a": "ill well"}, classes=("ill", "well"))
    assert turned.target.tolist() == [0, 1]


def test_a_known_pair_is_not_taken_for_the_listed_classes(tmp_path: Path) -> None:
    """1 may mean the disease or its absence: with a list of classes, only the hospital can say which."""
    refusal = error(tmp_path, {"a": "negative positive", "b": "0 1 1"}, classes=("negative", "positive"))
    assert refusal.where == "target 'y'"
    assert refusal.problem == (
        "2 classes are not in the study's list: '0', '1'. "
        "The study has 'negative', 'positive'; 'a' has 'negative', 'positive'; 'b' has '0', '1'"
    )
    assert "[data.labels.b]" in refusal.remedy
    assert load(tmp_path, {"a": "0 1 1.0"}, classes=("0", "1")).target.tolist() == [0, 1, 1]


def test_classes_that_differ_say_what_each_hospital_has(tmp_path: Path) -> None:
    refusal = error(tmp_path, {"a": "ill well ill", "b": "0 1 0 1"}, labels={"b": {"0": "sick", "1": "fit"}})
    assert "none has them all" in refusal.problem
    assert "'a' has 2 that the study does not declare" in refusal.problem
    assert "'b' has 'fit', 'sick'" in refusal.problem
    assert "`labels`" in refusal.remedy


@pytest.mark.parametrize(
    ("choices", "where", "problem"),
    [
        ({"labels": {"c": TURNED}}, "data: labels: c", "no file is of a hospital with this name"),
        ({"targets": {"c": "z"}}, "data: targets: c", "no file is of a hospital with this name"),
        ({"patients": {"c": "z"}}, "data: patients: c", "no file is of a hospital with this name"),
        ({"patients": {"b": "y"}}, "data: patient", "this is the target"),
        ({"labels": {"a": {}}}, "data: labels: a", "no word is named"),
        ({"labels": {"a": {"0": "diseased"}}, "classes": TWO}, "data: labels: a: 0", "'diseased' is not one of"),
        ({"labels": {"a": {"1": "u", "1.0": "v"}}}, "data: labels: a: 1.0", "this word is given two classes"),
        ({"labels": {"a": {"+": "u", "-": "v"}}}, "data: labels: a", "'-' counts as a gap"),
        ({"labels": {"a": {" Unknown": "u"}}}, "data: labels: a", "' Unknown' counts as a gap"),
        ({"classes": ("ill",)}, "data: classes", "two or more different classes"),
        ({"classes": ("ill", "Ill")}, "data: classes", "two or more different classes"),
        ({"classes": ("ill", "well"), "positive": "ill"}, "data: positive", "is not the second of the two"),
    ],
)
def test_what_is_wrong_is_said_before_any_file_is_read(choices: dict[str, Any], where: str, problem: str) -> None:
    with pytest.raises(StudyError) as caught:
        csv({"a": Path("gone-a.csv"), "b": Path("gone-b.csv")}, "y", **choices)
    assert caught.value.where == where
    assert problem in caught.value.problem


def test_positive_may_repeat_the_second_of_two_classes(tmp_path: Path) -> None:
    assert load(tmp_path, {"a": "ill well"}, classes=("well", "ill"), positive="Ill").target.tolist() == [1, 0]


def test_a_remark_does_not_pass_for_a_word_to_be_mapped(tmp_path: Path) -> None:
    refusal = error(tmp_path, {"a": " ".join(f"SECRET{i}" for i in range(30))}, classes=TWO, labels={"a": TURNED})
    assert "looks like free text" in refusal.problem
    assert "SECRET" not in str(refusal)


def test_a_word_has_one_meaning() -> None:
    assert len(MEANINGS) == 2 * len(PAIRS)


# --- targets and patients with names of their own ---


def test_targets_and_patients_have_their_own_names(tmp_path: Path) -> None:
    files = {"a": tmp_path / "a.csv", "b": tmp_path / "b.csv"}
    files["a"].write_text("mrn,x,died\n1,5,yes\n1,6,no\n2,7,no\n")
    files["b"].write_text("x,outcome,case\n3,yes,k\n4,,k\n5,no,k\n6,no,\n")
    records = csv(files, "died", targets={"b": "outcome"}, patient="mrn", patients={"b": "case"}).load()
    assert [column.name for column in records.columns] == ["x"]
    assert records.target.tolist() == [1, 0, 0, 1, 0, 0]
    assert records.patient is not None
    first, second, third, fourth, fifth, sixth = records.patient.tolist()
    assert (first, fourth) == (second, fifth)
    assert len({first, third, fourth, sixth}) == 4
    assert records.notices == (
        Notice("rows-without-target", "info", "b", ("outcome",), {"rows": 1, "of": 4}),
        Notice("unknown-patients", "info", "b", ("case",), {"rows": 1}),
    )


def test_a_hospital_without_patient_numbers_counts_equal_rows_as_one(tmp_path: Path) -> None:
    files = {"a": tmp_path / "a.csv", "b": tmp_path / "b.csv"}
    files["a"].write_text("mrn,x,y\n1,5,yes\n2,5,yes\n")
    files["b"].write_text("x,y\n5,yes\n5,no\n5,yes\n")
    records = csv(files, "y", patients={"a": "mrn"}).load()
    assert records.patient is not None
    codes = np.unique(records.patient, return_inverse=True)[1].tolist()
    assert codes[2] == codes[4]
    assert len(set(codes)) == 4
    assert records.notices == (Notice("no-patient-column", "info", "b"),)


def test_a_target_that_has_another_name_here_is_asked_for(tmp_path: Path) -> None:
    files = {"a": tmp_path / "a.csv", "b": tmp_path / "b.csv"}
    files["a"].write_text("x,target\n1,yes\n2,no\n")
    files["b"].write_text("x,Result\n1,yes\n2,no\n")
    with pytest.raises(DataError, match=r"b\.csv: there is no column 'target'") as caught:
        csv(files, "target").load()
    assert "`targets = { b = " in caught.value.remedy
    assert csv(files, "target", targets={"b": "Result"}).load().target.tolist() == [1, 0, 1, 0]
    with pytest.raises(DataError, match="there is no column 'target'") as alone:
        csv({"b": files["b"]}, "target").load()
    assert "targets" not in alone.value.remedy


def test_a_target_that_is_a_feature_elsewhere_is_noted(tmp_path: Path) -> None:
    files = {"a": tmp_path / "a.csv", "b": tmp_path / "b.csv"}
    files["a"].write_text("x,died,worse\n1,yes,yes\n2,no,no\n")
    files["b"].write_text("x,worse\n1,yes\n2,no\n")
    notice = Notice("target-elsewhere", "warning", "a", ("worse",), other_sites=("b",))
    choices: dict[str, Any] = {"targets": {"b": "worse"}, "columns": "own"}
    assert notice in csv(files, "died", **choices).load().notices
    assert csv(files, "died", **choices, types={"worse": "ignore"}).load().recorded == {"a": ("x",), "b": ("x",)}


# --- the two real files, as a newcomer would bring them ---


def seed_files() -> dict[str, Path]:
    folder = shared_data("seed-csv")
    return {"a": folder / "Medicaldataset_heart_attack.csv", "b": folder / "cardiac_arrest_dataset_1025.csv"}


def test_the_seed_files_are_refused_until_their_target_is_named_and_mapped() -> None:
    files = seed_files()
    with pytest.raises(DataError, match=r"no column 'target'.*\n.*targets = "):
        csv(files, "target").load()
    with pytest.raises(DataError, match="the columns differ between the hospitals"):
        csv(files, "target", targets={"a": "Result"}).load()
    with pytest.raises(DataError, match="2 classes are not in the study's list: '0', '1'"):
        csv(files, "target", targets={"a": "Result"}, columns="own", classes=("negative", "positive")).load()


def test_the_seed_files_load_when_mapped() -> None:
    """In the second file 1 means no disease (526 of 1,025 rows), which nothing in the file itself says."""
    records = csv(
        seed_files(),
        "target",
        targets={"a": "Result"},
        classes=("negative", "positive"),
        labels={"b": {"0": "positive", "1": "negative"}},
        columns="own",
    ).load()
    rows = {site: records.target[records.hospital == site] for site in "ab"}
    assert {site: (len(target), int(target.sum())) for site, target in rows.items()} == {
        "a": (1319, 810),
        "b": (1025, 499),
    }
    assert (len(records.recorded["a"]), len(records.recorded["b"])) == (8, 13)
    assert not set(records.recorded["a"]) & set(records.recorded["b"])  # Age and age are two columns
    assert records.groups["age"].notna().all()  # but one group
    assert records.vocabulary["b"] == {"0": "positive", "1": "negative"}


def test_of_three_classes_none_is_the_positive_one(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="there are 3 classes, and none of them is the positive one"):
        load(tmp_path, {"north": "a b c"}, classes=("a", "b", "c"), positive="c")


# --- words that are misspelt, numbers that are no classes ---


def many(**counts: int) -> str:
    return " ".join(word for word, count in counts.items() for _ in range(count))


@pytest.mark.parametrize("word", ["noo", "n0", "o", "on", "nno", "nö", "n.o"])
def test_a_word_of_one_slip_is_refused_with_its_place_and_what_to_write(tmp_path: Path, word: str) -> None:
    words = {"north": f"{many(no=60, yes=40)} {word} {word}", "south": many(no=30, yes=20)}
    if word in ("n0", "o"):  # with a digit, or of one letter: a name of its own, as grades have
        assert load(tmp_path, words).classes == tuple(sorted(("no", "yes", word)))
        return
    refusal = error(tmp_path, words)
    assert refusal.where == "target 'y'"
    how = "in accents, spaces or signs" if word in ("nö", "n.o") else "by one letter"
    assert refusal.problem == f"a word of 2 of 152 rows differs from 'no' {how} alone (lines 102, 103 at 'north')"
    assert '[data.labels.north] with a line `"word" = "class"`' in refusal.remedy
    assert "`classes = [...]`" in refusal.remedy
    assert word not in (str(refusal).replace("noo", "") if word == "on" else str(refusal)).split()
    # each of the two remedies works
    meant = {"north": {"no": "no", "yes": "yes", word: "no"}}
    assert load(tmp_path, words, labels=meant).target.sum() == 60
    assert len(load(tmp_path, words, classes=("no", "yes", word)).classes) == 3


def test_a_word_that_is_not_public_is_not_shown_in_an_error(tmp_path: Path) -> None:
    refusal = error(tmp_path, {"a": many(severe=50, mild=50, moderate=30, moderat=3)})
    assert refusal.problem == (
        "a word of 3 of 133 rows differs from another word of 30 rows by one letter alone (lines 132, 133, 134 at 'a')"
    )
    assert "moderat" not in str(refusal)
    few = error(tmp_path, {"a": many(severe=90, mild=50, sevrre=9)})
    assert "(lines 142, 143, 144, 145, 146 and 4 more at 'a')" in few.problem


@pytest.mark.parametrize(
    "words",
    [
        many(I=50, II=50, III=2),
        many(t1=50, t2=50, t3=2),
        many(a=50, b=50, c=2),
        many(hypotension=50, hypertension=2, normal=50),
        many(male=40, female=40, other=2),
        many(mild=40, wild=20, other=30),  # one letter apart and both frequent: two words
        many(**{"0": 50, "1": 40, "2": 30, "3": 2}),
    ],
)
def test_words_that_are_near_each_other_by_nature_stay_classes(tmp_path: Path, words: str) -> None:
    assert len(load(tmp_path, {"a": words}).classes) == len(set(words.split()))


def test_a_count_is_no_set_of_classes(tmp_path: Path) -> None:
    counts = many(**{str(n): 60 // (n + 1) for n in range(6)})
    refusal = error(tmp_path, {"a": counts})
    assert refusal.problem == (
        "6 different numbers would be 6 classes without an order: it looks like a count or a score"
    )
    assert "threshold" in refusal.remedy
    assert '`classes = ["1", "2", ...]`' in refusal.remedy
    assert len(load(tmp_path, {"a": counts}, classes=tuple(map(str, range(6)))).classes) == 6
    joined = {"a": {"0": "none", **{str(n): "some" for n in range(1, 6)}}}
    records = load(tmp_path, {"a": counts}, labels=joined, positive="some")
    assert records.classes == ("none", "some")


@pytest.mark.parametrize(
    ("word", "other", "near"),
    [
        ("no", "noo", True),
        ("no", "on", True),
        ("yes", "yas", True),
        ("yes", "ye", True),
        ("yes", "yes", False),
        ("no", "nooo", False),
        ("abcd", "bacd", True),
        ("abcd", "badc", False),
        ("abcd", "dbca", False),
    ],
)
def test_one_slip_is_damerau_and_levenshteins_distance_of_1(word: str, other: str, near: bool) -> None:
    assert differ_by_one_typo(word, other) is near
    assert differ_by_one_typo(other, word) is near
