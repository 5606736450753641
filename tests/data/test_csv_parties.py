"""Files of several parties as one table: who is whose, what is missing, what is refused and how it is said."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from wardround.core.errors import DataError, StudyError, WardroundError
from wardround.core.notices import Notice
from wardround.data.parties import holdings_of
from wardround.data.records import Column, Records
from wardround.data.sources import SOURCES
from wardround.study.schema import Topology

CLINIC = """pid,age,sex,sick
A1,50,f,yes
B2,61,m,no
C3,72,m,yes
B2,62,m,no
D4,44,f,no
"""
LAB = """number,crp,kind
D4,4.5,x
B2,2.5,y
A1,,x
Z9,9.5,z
"""


def load(folder: Path, texts: dict[str, str], **changes: Any) -> Records:
    files = {}
    for party, text in texts.items():
        files[party] = folder / f"{party}.csv"
        files[party].write_text(text, encoding="utf-8")
    settings = {"files": files, "patient": "pid", "target": "sick", **changes}
    return SOURCES["csv-parties"](**settings).load()


def joined(folder: Path, **changes: Any) -> Records:
    return load(folder, {"clinic": CLINIC, "lab": LAB}, patients={"lab": "number"}, **changes)


def refusal(folder: Path, texts: dict[str, str], **changes: Any) -> WardroundError:
    with pytest.raises(WardroundError) as caught:
        load(folder, texts, **changes)
    return caught.value


def test_a_row_for_each_row_of_the_party_with_the_labels(tmp_path: Path) -> None:
    records = joined(tmp_path)
    table = records.features
    assert isinstance(table, pd.DataFrame)
    assert [column.name for column in records.columns] == ["age", "sex", "crp", "kind"]
    assert records.held == {"clinic": ("age", "sex"), "lab": ("crp", "kind")}
    assert table["age"].tolist() == [50, 61, 72, 62, 44]
    np.testing.assert_array_equal(table["crp"].to_numpy(), [np.nan, 2.5, np.nan, 2.5, 4.5])
    assert table["kind"].tolist() == ["x", "y", None, "y", "x"]  # B2 has two rows, and the laboratory one for both
    assert records.target.tolist() == [1, 0, 1, 0, 0]
    assert records.classes == ("no", "yes")
    assert records.known_to["lab"].tolist() == [True, True, False, True, True]
    assert list(records.known_to) == ["lab"]
    assert records.hospitals == ("clinic",)


def test_a_patient_with_several_rows_stays_one(tmp_path: Path) -> None:
    patient = joined(tmp_path).patient
    assert patient is not None
    assert patient[1] == patient[3]
    assert len(set(patient.tolist())) == 4
    assert not set(patient.tolist()) & {"A1", "B2", "C3", "D4"}


def test_what_others_lack_is_counted_and_nobody_named(tmp_path: Path) -> None:
    notices = joined(tmp_path).notices
    counts = {"patients": 1, "of": 4}
    assert Notice("party-lacks-patients", "info", "lab", counts=counts, other_sites=("clinic",)) in notices
    assert not [n for n in notices for name in ("A1", "B2", "C3", "D4", "Z9") if name in str(n.to_json())]


def test_the_holder_need_not_be_the_first(tmp_path: Path) -> None:
    texts = {"lab": LAB, "clinic": CLINIC}
    records = load(tmp_path, texts, patients={"lab": "number"}, holder="clinic")
    assert [column.name for column in records.columns] == ["crp", "kind", "age", "sex"]
    assert records.hospitals == ("clinic",)
    assert list(records.known_to) == ["lab"]


def test_a_holder_may_have_labels_and_nothing_else(tmp_path: Path) -> None:
    outcomes = "pid,sick\nA1,yes\nB2,no\nD4,no\n"
    records = load(tmp_path, {"registry": outcomes, "lab": LAB}, patients={"lab": "number"})
    assert records.held == {"registry": (), "lab": ("crp", "kind")}
    assert records.target.tolist() == [1, 0, 0]


def test_a_party_alone_reads_the_same_values_as_all_together(tmp_path: Path) -> None:
    together = joined(tmp_path)
    alone = load(tmp_path, {"lab": LAB}, patient="number", target=None)
    assert alone.columns == tuple(column for column in together.columns if column.name in together.held["lab"])
    assert alone.classes == ("",)
    assert alone.ids is not None
    assert alone.ids.tolist() == ["D4", "B2", "A1", "Z9"]
    assert alone.visits is None
    assert "D4" not in repr(alone)
    holder = load(tmp_path, {"clinic": CLINIC})
    np.testing.assert_array_equal(holder.target, together.target)
    np.testing.assert_array_equal(holder.patient, together.patient)


def test_rows_taken_keep_their_ids(tmp_path: Path) -> None:
    subset = load(tmp_path, {"lab": LAB}, patient="number", target=None).take([2, 0])
    assert subset.ids is not None
    assert subset.ids.tolist() == ["A1", "D4"]


VISITS = "pid,exam,age,sick\nA1,1,50,yes\nA1,2,51,no\nB2,1,60,no\nC3,1,70,yes\n"
EXAMS = "pid,exam,crp\nB2,1,2.5\nA1,2,7.5\nA1,1,6.5\nC3,4,1.5\n"


def test_visits_are_joined_one_by_one(tmp_path: Path) -> None:
    records = load(tmp_path, {"clinic": VISITS, "lab": EXAMS}, visit="exam")
    table = records.features
    assert isinstance(table, pd.DataFrame)
    np.testing.assert_array_equal(table["crp"].to_numpy(), [6.5, 7.5, 2.5, np.nan])
    assert records.known_to["lab"].tolist() == [True, True, True, False]
    expected = Notice("visits-not-matched", "info", "lab", counts={"rows": 1}, other_sites=("clinic",))
    assert expected in records.notices


def test_visits_may_have_names_of_their_own(tmp_path: Path) -> None:
    exams = EXAMS.replace("exam", "study_no")
    records = load(tmp_path, {"clinic": VISITS, "lab": exams}, visit="exam", visits={"lab": "study_no"})
    assert records.known_to["lab"].sum() == 3


def test_a_party_without_visits_counts_for_all_of_them(tmp_path: Path) -> None:
    lab = "pid,crp\nA1,6.5\nB2,2.5\nC3,1.5\n"
    records = load(tmp_path, {"clinic": VISITS, "lab": lab}, visit="exam")
    assert isinstance(records.features, pd.DataFrame)
    assert records.features["crp"].tolist() == [6.5, 6.5, 2.5, 1.5]


@pytest.mark.parametrize(
    ("texts", "settings", "words"),
    [
        (
            {"clinic": VISITS, "lab": EXAMS},
            {"types": {"exam": "ignore"}},
            "1 patients have several rows, and no column",
        ),
        ({"clinic": VISITS, "lab": EXAMS + "B2,1,3.5\n"}, {"visit": "exam"}, "1 rows are of a visit that another"),
        ({"clinic": VISITS + "B2,1,61,no\n", "lab": EXAMS}, {"visit": "exam"}, "1 rows are of a visit that another"),
        ({"clinic": VISITS.replace("exam", "x"), "lab": EXAMS}, {"visit": "exam"}, "'lab' tells visits apart"),
        ({"clinic": VISITS, "lab": EXAMS.replace(",1,", ",8,").replace(",2,", ",9,")}, {"visit": "exam"}, "no visit"),
        ({"clinic": VISITS, "lab": EXAMS + ",3,1.5\n"}, {"visit": "exam"}, "1 rows have no value in 'pid'"),
        ({"clinic": VISITS, "lab": EXAMS + "B2,,1.5\n"}, {"visit": "exam"}, "1 rows have no value in 'exam'"),
        ({"clinic": VISITS, "lab": EXAMS}, {"visit": "exm"}, "no file has a column 'exm'"),
        ({"clinic": VISITS, "lab": EXAMS}, {"visit": "exam", "holder": "lob"}, "no party is called 'lob'"),
        ({"clinic": VISITS, "lab": EXAMS}, {"visit": "exam", "target": None}, "missing"),
        ({"clinic": VISITS, "lab": EXAMS}, {"visit": "exam", "patient": "mrn"}, "there is no column 'mrn'"),
        ({"clinic": VISITS, "lab": EXAMS}, {"visit": "exam", "visits": {"heart": "x"}}, "no file is of a party"),
        ({"clinic": VISITS, "lab": EXAMS.replace("crp", "age")}, {"visit": "exam"}, "'age' is in the files of"),
    ],
)
def test_what_cannot_be_joined_is_refused(
    tmp_path: Path, texts: dict[str, str], settings: dict[str, Any], words: str
) -> None:
    error = refusal(tmp_path, texts, **settings)
    assert words in f"{error.where}: {error.problem}"
    assert error.remedy
    assert not [name for name in ("A1", "B2", "C3") if name in str(error)]


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        (("7", "8"), "'lab' has digits"),
        (("007", "008"), "'lab' has digits, some with leading zeros (3 characters)"),
        (("Q-007", "Q-0080"), "'lab' has text with capitals (5 to 6 characters)"),
        (("p-007", "p-008"), "'clinic' has text with capitals (5 characters), 'lab' has text without capitals"),
    ],
)
def test_ids_that_never_meet_are_told_by_their_form(tmp_path: Path, ids: tuple[str, str], words: str) -> None:
    clinic = "pid,age,sick\nP-007,50,yes\nP-008,60,no\n"
    error = refusal(tmp_path, {"clinic": clinic, "lab": f"pid,crp\n{ids[0]},1.5\n{ids[1]},2.5\n"})
    assert isinstance(error, DataError)
    assert "have no patient in common" in error.problem
    assert words in error.problem
    assert "leading zeros" in error.remedy
    assert not [name for name in ("P-007", "P-008", *ids) if len(name) > 1 and name in str(error)]


@pytest.mark.parametrize("holder", [None, "clinic", "lab"])
def test_the_outcome_is_in_one_file(tmp_path: Path, holder: str | None) -> None:
    """Else the other party's would be a feature, from which it is predicted without a fault."""
    texts = {"clinic": CLINIC, "lab": "pid,crp,sick\nA1,1.5,yes\nB2,2.5,no\nD4,3.5,no\n"}
    error = refusal(tmp_path, texts, **({} if holder is None else {"holder": holder}))
    assert "'sick', the outcome, is in the files of" in error.problem
    records = load(tmp_path, texts, types={"sick": "ignore"})
    assert records.held["lab"] == ("crp",)


def test_who_has_the_outcome_need_not_be_named(tmp_path: Path) -> None:
    """It is the only file with that column, and `labels` of the topology may name its party."""
    records = load(tmp_path, {"lab": LAB.replace("number", "pid"), "clinic": CLINIC})
    assert records.hospitals == ("clinic",)
    vertical = Topology("vertical", parties={"lab": ("*",), "clinic": ("*",)}, labels="clinic")
    assert holdings_of(vertical, records).labels == "clinic"


def test_a_missing_column_of_patients_is_not_guessed(tmp_path: Path) -> None:
    error = refusal(tmp_path, {"clinic": CLINIC, "lab": "pin,crp\nA1,1.5\n"})
    assert "lab.csv" in error.where
    assert "Did you mean" not in error.remedy
    assert (
        'Columns of this file: crp, pin. If it has another name here, write `patients = { lab = "name" }`'
        in error.remedy
    )
    assert "hospital" not in str(error)


def test_leading_zeros_at_some_patients_only_are_noticed(tmp_path: Path) -> None:
    clinic = "pid,age,sick\n7,50,yes\n12,60,no\n13,61,no\n"
    records = load(tmp_path, {"clinic": clinic, "lab": "pid,crp\n007,1.5\n12,2.5\n"})
    assert records.known_to["lab"].tolist() == [False, True, False]
    assert Notice("ids-spelt-differently", "warning", "lab", counts={"patients": 1}) in records.notices


def test_ids_in_other_forms_of_characters_are_the_same_id(tmp_path: Path) -> None:
    records = load(tmp_path, {"clinic": CLINIC, "lab": "pid,crp\nＡ１,1.5\nB2 ,2.5\n"})
    assert records.known_to["lab"].tolist() == [True, True, False, True, False]


def test_one_patient_in_two_forms_at_one_party_is_refused(tmp_path: Path) -> None:
    error = refusal(tmp_path, {"clinic": CLINIC, "lab": "pid,crp\nＡ１,1.5\nA1,2.5\n"})
    assert "differ from another in forms of characters only" in error.problem


def test_columns_that_both_parties_ignore_may_share_a_name(tmp_path: Path) -> None:
    texts = {"clinic": CLINIC, "lab": LAB.replace("kind", "sex")}
    records = load(tmp_path, texts, patients={"lab": "number"}, types={"sex": "ignore"})
    assert records.held == {"clinic": ("age",), "lab": ("crp",)}


def test_holdings_from_files(tmp_path: Path) -> None:
    records = joined(tmp_path)
    everything = Topology("vertical", parties={"clinic": ("*",), "lab": ("*",)})
    assert holdings_of(everything, records).parties == {"clinic": ("age", "sex"), "lab": ("crp", "kind")}
    some = Topology("vertical", parties={"clinic": ("age",), "lab": ("crp",)})
    assert holdings_of(some, records).parties == {"clinic": ("age",), "lab": ("crp",)}
    left_out = Topology("vertical", parties={"clinic": ("age",), "lab": ()})
    assert holdings_of(left_out, records).parties == {"clinic": ("age",)}


@pytest.mark.parametrize(
    ("parties", "labels", "words"),
    [
        ({"clinic": ("age", "crp"), "lab": ("kind",)}, None, "'crp' is in the file of 'lab'"),
        ({"clinic": ("*",), "heart": ("*",)}, None, "no file is of a party called 'heart'"),
        ({"clinic": ("*",), "lab": ("*",)}, "lab", "the file of 'lab' has no labels"),
        ({"clinic": ("*",), "lab": ("crb",)}, None, "no column is called 'crb'"),
        ({"clinic": ("*", "age"), "lab": ("crp",)}, None, "no column is called '*'"),
    ],
)
def test_holdings_that_files_contradict(
    tmp_path: Path, parties: dict[str, tuple[str, ...]], labels: str | None, words: str
) -> None:
    with pytest.raises(StudyError) as caught:
        holdings_of(Topology("vertical", parties=parties, labels=labels), joined(tmp_path))
    assert words in caught.value.problem


def test_all_columns_of_a_file_need_files_by_party() -> None:
    table = pd.DataFrame({"a": [1.0, 2.0], "b": [1.0, 2.0]})
    records = Records(table, np.array([0, 1]), ("n", "y"), np.array(["h", "h"]), (Column("a"), Column("b")))
    with pytest.raises(StudyError, match="not in files by party"):
        holdings_of(Topology("vertical", parties={"x": ("*",), "y": ("b",)}), records)
