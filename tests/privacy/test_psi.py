"""Matching patients: who is found, in which order, with which rows, and at what price in bytes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.real_data import shared_data
from wardround.core.errors import DataError, DeployError, StudyError
from wardround.privacy.psi.psi import Party, PsiMessage, Terms
from wardround.privacy.psi.simulated_psi import match_patients
from wardround.privacy.secure_sum.secure_sum import InMemory
from wardround.privacy.secure_sum.simulated_sum import simulated_key

SETS = st.lists(st.lists(st.integers(0, 12), min_size=1, max_size=20), min_size=2, max_size=4)


@given(SETS, st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_all_parties_find_the_intersection_in_one_order(columns: list[list[int]], seed: int) -> None:
    given_ids = {f"party-{number}": column for number, column in enumerate(columns)}
    expected = sorted(str(value) for value in set.intersection(*(set(column) for column in columns)))
    if not expected:
        with pytest.raises(DataError, match="no patients are common to all of party-0, party-1"):
            match_patients(given_ids, seed=seed)
        return
    matches = match_patients(given_ids, seed=seed).patients
    for name, column in given_ids.items():
        assert list(matches[name].ids) == expected
        for number, patient in enumerate(expected):
            assert [column[row] for row in matches[name].rows_of(number)] == [int(patient)] * column.count(int(patient))


def test_rows_of_one_patient_stand_side_by_side_at_parties_with_other_orders() -> None:
    """Radiology has two images of c and one of a; the laboratory has its rows the other way round."""
    matches = match_patients({"radiology": ["c", "b", "a", "c"], "laboratory": ["x", "a", "c"]}).patients
    assert matches["radiology"].ids == matches["laboratory"].ids == ("a", "c")
    assert [matches["radiology"].rows_of(patient).tolist() for patient in (0, 1)] == [[2], [0, 3]]
    assert [matches["laboratory"].rows_of(patient).tolist() for patient in (0, 1)] == [[1], [2]]


def test_numbers_at_one_party_and_text_at_another_are_the_same_ids() -> None:
    matches = match_patients({"radiology": np.array([3, 1, 2]), "laboratory": ["2 ", "3"]}).patients
    assert matches["radiology"].ids == ("2", "3")
    assert matches["radiology"].rows.tolist() == [2, 0]


def test_secrets_change_every_message_and_never_the_result() -> None:
    ids = {"a": ["1", "2", "3"], "b": ["3", "2", "4"], "c": ["2", "3", "5", "6"]}

    def run(seed: int | None) -> tuple[list[bytes], dict[str, list[int]]]:
        seen = list[bytes]()
        matches = match_patients(ids, seed=seed, watch=lambda to, message: seen.append(message.content)).patients
        return seen, {name: patients.rows.tolist() for name, patients in matches.items()}

    (messages, first), (again, second), (other, third), (real, fourth) = run(1), run(1), run(2), run(None)
    assert first == second == third == fourth == {"a": [1, 2], "b": [1, 0], "c": [0, 1]}
    assert messages == again
    long = [{content for content in contents if len(content) >= 16} for contents in (messages, other, real)]
    assert not long[0] & long[1]
    assert not long[0] & long[2]


@pytest.mark.parametrize(
    ("columns", "forms"),
    [
        ({"lab": [7, 8], "ward": ["007", "008"]}, "lab has digits, ward has digits, some with leading zeros"),
        ({"lab": [7, 8], "ward": ["P7", "P8"]}, "lab has digits, ward has text"),
    ],
)
def test_ids_of_other_forms_have_nobody_in_common_and_the_error_says_so(
    columns: dict[str, list[str]], forms: str
) -> None:
    with pytest.raises(
        DataError, match="no patients are common to all of lab, ward; their ids differ in form"
    ) as error:
        match_patients(columns)
    assert error.value.problem.endswith(forms)
    assert "leading zeros" in error.value.remedy


def test_ids_of_one_form_with_nobody_in_common() -> None:
    with pytest.raises(DataError, match="no patients are common to all of lab, ward\n"):
        match_patients({"lab": ["a"], "ward": ["b"]})


def test_a_party_without_rows_is_named() -> None:
    with pytest.raises(DataError, match="ward: has no rows"):
        match_patients({"lab": ["a"], "ward": []})


def test_too_few_common_patients_are_not_told() -> None:
    messages = list[PsiMessage]()
    columns = {"lab": ["a", "b", "c"], "ward": ["b", "c", "d"]}
    with pytest.raises(DataError, match="2 patients are common to all of lab, ward, but 3 are asked for"):
        match_patients(
            columns,
            terms=Terms(b"s", ("lab", "ward"), least_common=3),
            watch=lambda to, message: messages.append(message),
        )
    assert {message.kind for message in messages} == {"list", "prints"}
    assert len(match_patients(columns, terms=Terms(b"s", ("lab", "ward"), least_common=2)).patients["lab"]) == 2


def test_with_filling_every_list_has_the_same_length_and_the_result_is_the_same() -> None:
    columns = {"lab": ["a", "b", "c"], "ward": [*"bcdefgh"], "third": ["c", "b"]}
    plain = match_patients(columns)
    padded = match_patients(columns, terms=Terms(b"s", tuple(columns), padded_to=9))
    assert plain.sizes == {"lab": 3, "ward": 7, "third": 2}
    assert padded.sizes == {"lab": 9, "ward": 9, "third": 9}
    for name in columns:
        assert padded.patients[name].ids == plain.patients[name].ids == ("b", "c")


@pytest.mark.parametrize("sizes", [{"most_patients": 2}, {"padded_to": 2}])
def test_more_patients_than_agreed_on_are_refused_at_the_party_itself(sizes: dict[str, int]) -> None:
    terms = Terms(b"s", ("lab", "ward"), **sizes)
    with pytest.raises(DataError, match="lab: has 3 patients, but the parties agreed on lists of 2 at most"):
        match_patients({"lab": ["a", "b", "c", "c"], "ward": ["a"]}, terms=terms)


@pytest.mark.parametrize(
    ("roster", "sizes", "problem"),
    [
        (("lab",), {}, "1 party has nobody"),
        (("lab", "lab"), {}, "named twice"),
        (("lab", ""), {}, "has no name"),
        (("lab", "ward"), {"most_patients": 0}, "sizes do not fit: most_patients = 0"),
        (("lab", "ward"), {"least_common": 0}, "sizes do not fit"),
        (("lab", "ward"), {"padded_to": -1}, "sizes do not fit"),
        (("lab", "ward"), {"padded_to": 11, "most_patients": 10}, "sizes do not fit"),
    ],
)
def test_terms_that_make_no_sense_are_refused(roster: tuple[str, ...], sizes: dict[str, int], problem: str) -> None:
    with pytest.raises(StudyError, match=problem):
        Terms(b"session", roster, **sizes)


def test_a_matching_without_a_name_is_refused() -> None:
    with pytest.raises(StudyError, match="no name of its own"):
        Terms(b"", ("lab", "ward"))


@pytest.mark.parametrize(("name", "secret"), [("stranger", bytes(32)), ("lab", bytes(31))])
def test_a_stranger_and_a_short_secret_are_refused(name: str, secret: bytes) -> None:
    keys = {party: simulated_key(party) for party in ("lab", "ward")}
    with pytest.raises(DeployError, match="not in the roster, or lacks"):
        Party(name, ["a"], Terms(b"s", ("lab", "ward")), secret, simulated_key(name), keys, InMemory())


def test_bytes_on_the_way() -> None:
    """Of 40 patients at lab and 24 at ward. Each party sends its list (32 bytes a patient) and short hashes of the
    other's (16), its sum (32) and a short hash of the other's (16). It gets the other's list and sum, a bit for each of
    its own patients and both short hashes of sums."""
    contents = list[int]()
    columns = {"lab": range(40), "ward": range(30, 54)}
    matching = match_patients(columns, watch=lambda to, message: contents.append(len(message.content)))
    assert len(matching.patients["lab"]) == 10
    lists, prints, marks, sums, sum_prints = 2 * 32 * (40 + 24), 16 * (40 + 24), 40 // 8 + 24 // 8, 2 * 2 * 32, 6 * 16
    assert sum(contents) == lists + prints + marks + sums + sum_prints
    heads = 400  # at most, for a message: kind, names, counts and a signature of 64 bytes
    for party, other, own, others in (("lab", "ward", 40, 24), ("ward", "lab", 24, 40)):
        sent = 32 * own + 16 * others + 32 + 16
        assert sent < matching.traffic[party, ""] < sent + 4 * heads
        got = 32 * others + own // 8 + 32 + 2 * 16
        assert got < matching.traffic["", party] < got + 5 * heads
        assert (party, other) not in matching.traffic


def test_images_of_real_patients_find_their_patient() -> None:
    """Radiology has the images, several of a patient; the other party one row for each patient, and some of its own."""
    with np.load(shared_data("nih-cxr14/nih_cxr14_subset_28.npz")) as file:
        images = file["val_patient_id"][:600]
    patients = np.unique(images)
    desk = np.concatenate([patients[::-2], patients.max() + 1 + np.arange(50)])
    matches = match_patients({"radiology": images, "desk": desk}).patients
    assert matches["radiology"].ids == matches["desk"].ids
    assert len(matches["desk"]) == len(patients[::-2])
    radiology, at_desk = matches["radiology"], matches["desk"]
    assert np.array_equal(images[radiology.rows], desk[at_desk.rows][radiology.patient_of_each_row()])
    assert radiology.rows.size == np.isin(images, patients[::-2]).sum() > len(radiology)
