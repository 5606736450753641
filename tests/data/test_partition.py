"""Every member of PARTITIONERS passes the contract tests; what only one of them promises is tested below them."""

from collections import Counter
from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_bipartite_matching

from wardround.core.errors import DataError, StudyError
from wardround.core.seeds import generator
from wardround.core.settings import parse, settings_of
from wardround.data.heterogeneity import measure
from wardround.data.partition import PARTITIONERS, Partitioner
from wardround.data.partition.age_windows import age_windows
from wardround.data.partition.by_column import by_column
from wardround.data.partition.by_hospital import by_hospital
from wardround.data.partition.dirichlet import dirichlet
from wardround.data.partition.iid import iid
from wardround.data.partition.partition import site_names
from wardround.data.partition.quantity import quantity
from wardround.data.partition.specialty import specialty
from wardround.data.records import Column, Records

REQUIRED: dict[str, dict[str, Any]] = {"by-column": {"column": "sex"}}  # settings without a default
REFUSES_REPEATED_PATIENTS = {"age-windows"}
EVERY_PARTITIONER = pytest.mark.parametrize("name", PARTITIONERS)
EVERY_PARTITIONER_WITH_A_COUNT = pytest.mark.parametrize(
    "name", [name for name, factory in PARTITIONERS.items() if "count" in settings_of(factory)]
)


def a_table(rows: int = 400, rows_per_patient: int = 1, classes: int = 2, seed: int = 0) -> Records:
    """Sex, age and hospital belong to the patient; label and features to the row."""
    rng = generator(seed, "test records")
    patient = rng.permutation(np.arange(rows) // rows_per_patient)
    age = rng.integers(29, 78, rows)[patient].astype(float)
    return Records(
        features=pd.DataFrame({"pressure": rng.normal(130, 15, rows), "pain": rng.choice(["none", "some"], rows)}),
        target=rng.integers(0, classes, rows),
        classes=tuple(f"class {number}" for number in range(classes)),
        hospital=rng.choice(["Ost", "West", "Nord"], rows)[patient],
        columns=(Column("pressure"), Column("pain", "categorical")),
        patient=patient if rows_per_patient > 1 else None,
        groups=pd.DataFrame({"sex": rng.choice(["male", "female"], rows)[patient], "age": age}),
    )


def some_images(rows: int = 400) -> Records:
    table = a_table(rows)
    pixels = np.zeros((rows, 1, 4, 4), dtype=np.float32)
    return Records(pixels, table.target, table.classes, table.hospital, groups=table.groups)


def made(name: str, **settings: Any) -> Partitioner:
    return PARTITIONERS[name](**REQUIRED.get(name, {}), **settings)


def sites_of(partitioner: Partitioner, records: Records, seed: int = 0) -> dict[str, np.ndarray]:
    return partitioner.assign(records, generator(seed, "partition"))


def assert_same_sites(first: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> None:
    assert list(first) == list(other)
    for name in first:
        np.testing.assert_array_equal(first[name], other[name])


@EVERY_PARTITIONER
@pytest.mark.parametrize("make", [a_table, some_images])
def test_rows_are_sorted_numbers_of_rows_and_no_site_is_empty(name: str, make: Callable[[], Records]) -> None:
    records = make()
    sites = sites_of(made(name), records)
    assert sites
    for rows in sites.values():
        assert rows.dtype == np.int64
        assert rows.size > 0
        assert (np.diff(rows) > 0).all()  # sorted, and no row twice at one site
        assert rows[0] >= 0
        assert rows[-1] < len(records)


@EVERY_PARTITIONER
def test_every_row_is_placed_exactly_once_unless_declared_otherwise(name: str) -> None:
    records, partitioner = a_table(), made(name)
    placed = np.concatenate(list(sites_of(partitioner, records).values()))
    if not partitioner.overlapping:
        assert np.unique(placed).size == placed.size
    if partitioner.complete:
        assert np.unique(placed).size == len(records)


@EVERY_PARTITIONER
def test_the_same_seed_gives_the_same_sites(name: str) -> None:
    assert_same_sites(sites_of(made(name), a_table()), sites_of(made(name), a_table()))


@EVERY_PARTITIONER
def test_the_records_are_left_as_they_were(name: str) -> None:
    records, untouched = a_table(), a_table()
    for array in (records.target, records.hospital):
        array.setflags(write=False)
    sites_of(made(name), records)
    pd.testing.assert_frame_equal(pd.DataFrame(records.features), pd.DataFrame(untouched.features))
    pd.testing.assert_frame_equal(records.groups, untouched.groups)
    np.testing.assert_array_equal(records.target, untouched.target)
    np.testing.assert_array_equal(records.hospital, untouched.hospital)


@EVERY_PARTITIONER
def test_the_rows_of_a_patient_stay_together(name: str) -> None:
    records = a_table(rows_per_patient=3)
    if name in REFUSES_REPEATED_PATIENTS:
        with pytest.raises(DataError, match="patient"):
            sites_of(made(name), records)
        return
    sites = sites_of(made(name), records)
    homes = Counter(patient for rows in sites.values() for patient in np.unique(records.units[rows]).tolist())
    assert set(homes.values()) == {1}
    assert sum(rows.size for rows in sites.values()) == len(records)


@EVERY_PARTITIONER
def test_no_rows_are_refused_in_plain_words(name: str) -> None:
    with pytest.raises(DataError, match="no rows"):
        sites_of(made(name), a_table().take([]))


@EVERY_PARTITIONER
def test_every_default_is_a_value_that_a_study_file_may_hold(name: str) -> None:
    for setting in settings_of(PARTITIONERS[name]).values():
        if not setting.required:
            assert parse(setting.kind, setting.default, setting.name) == setting.default


@EVERY_PARTITIONER_WITH_A_COUNT
def test_more_sites_than_patients_are_refused(name: str) -> None:
    with pytest.raises(DataError, match=r"13 sites .* only 12 patients") as caught:
        sites_of(made(name, count=13), a_table(rows=36, rows_per_patient=3))
    assert "`count` to at most 12" in caught.value.remedy


@EVERY_PARTITIONER_WITH_A_COUNT
def test_counted_sites_are_numbered(name: str) -> None:
    assert list(sites_of(made(name, count=3), a_table())) == ["site-01", "site-02", "site-03"]


def test_numbers_are_padded_so_that_names_sort() -> None:
    assert site_names(2) == ["site-01", "site-02"]
    assert site_names(100)[0] == "site-001"
    assert sorted(site_names(1200)) == site_names(1200)


def test_iid_deals_patients_evenly() -> None:
    records = a_table(rows=400)
    assert sorted(rows.size for rows in sites_of(iid(count=7), records).values()) == [57] * 6 + [58]  # 400 = 7 * 57 + 1
    paired = a_table(rows=400, rows_per_patient=2)  # 200 patients = 7 * 28 + 4
    assert sorted(rows.size // 2 for rows in sites_of(iid(count=7), paired).values()) == [28] * 3 + [29] * 4


@pytest.mark.parametrize("partitioner", [iid(), dirichlet(), quantity(), specialty(), age_windows()])
def test_another_seed_gives_other_sites(partitioner: Partitioner) -> None:
    records = a_table()
    first, other = (sites_of(partitioner, records, seed)["site-01"] for seed in (0, 1))
    assert first.tolist() != other.tolist()


def label_skew(partitioner: Partitioner, records: Records, seed: int) -> float:
    sites = sites_of(partitioner, records, seed)
    labels = {name: records.target[rows] for name, rows in sites.items()}
    return float(measure(labels, None, len(records.classes), generator(seed, "heterogeneity"))["js"])


def test_a_small_alpha_skews_labels_more_than_a_large_one() -> None:
    records = a_table(rows=1000, classes=5)
    small, middle, large = (
        np.mean([label_skew(dirichlet(count=5, alpha=alpha), records, seed) for seed in range(5)])
        for alpha in (0.1, 1.0, 1000.0)
    )
    assert small > 2 * middle
    assert middle > 2 * large
    assert large < 0.01


def test_dirichlet_with_a_huge_alpha_gives_each_site_its_part_of_each_class() -> None:
    """Shares tend to 1/4 each, and 100 patients of a class then give 25 to each site."""
    records = Records(pd.DataFrame(), np.repeat([0, 1], 100), ("no", "yes"), np.full(200, "Ost"))
    for rows in sites_of(dirichlet(count=4, alpha=1e9), records).values():
        assert np.bincount(records.target[rows]).tolist() == [25, 25]
        assert np.ptp(rows[:25]) > 50  # drawn from all 100 rows of the class, not a stretch of the source's order


@pytest.mark.parametrize("factory", [dirichlet, quantity])
def test_the_smallest_site_is_as_large_as_asked_for(factory: Callable[..., Partitioner]) -> None:
    for seed in range(5):
        sites = sites_of(factory(count=5, alpha=0.3, smallest=20), a_table(), seed)
        assert min(rows.size for rows in sites.values()) >= 20


@pytest.mark.parametrize("factory", [dirichlet, quantity])
def test_a_draw_that_never_fits_says_what_to_change(factory: Callable[..., Partitioner]) -> None:
    with pytest.raises(DataError, match=r"alpha 0\.01") as caught:
        sites_of(factory(count=10, alpha=0.01, smallest=30), a_table())
    for setting in ("alpha", "count", "smallest"):
        assert f"`{setting}`" in caught.value.remedy


@pytest.mark.parametrize("factory", [dirichlet, quantity, specialty])
def test_sites_that_no_draw_could_fill_are_refused(factory: Callable[..., Partitioner]) -> None:
    with pytest.raises(DataError, match="10 sites of at least 41 rows need 410, but there are 400"):
        sites_of(factory(count=10, smallest=41), a_table())


def test_quantity_skews_sizes_and_not_labels() -> None:
    """With 2000 rows at a site, a share of one class of 1/2 has a standard error of about 0.01."""
    records = a_table(rows=8000)
    sites = sites_of(quantity(count=4, alpha=0.5, smallest=500), records)
    sizes = [rows.size for rows in sites.values()]
    assert max(sizes) > 2 * min(sizes)
    for rows in sites.values():
        assert abs(records.target[rows].mean() - records.target.mean()) < 4 * 0.5 / np.sqrt(rows.size)


def test_specialty_keeps_the_promised_part_at_home() -> None:
    """4 classes of about 2000 rows: the part at home is binomial, with a standard error of 0.01."""
    records = a_table(rows=8000, classes=4)
    for number, rows in enumerate(sites_of(specialty(count=4, richness=0.7), records).values()):
        of_the_class = np.bincount(records.target[rows], minlength=4) / np.bincount(records.target)
        assert of_the_class[number] == pytest.approx(0.7, abs=0.04)
        assert np.delete(of_the_class, number) == pytest.approx(np.full(3, 0.1), abs=0.03)  # 0.3 over three others


def test_specialty_shares_a_class_among_homes_when_sites_outnumber_classes() -> None:
    records = a_table(rows=1000, classes=2)
    sites = sites_of(specialty(count=4, richness=1.0), records)
    assert [set(records.target[rows].tolist()) for rows in sites.values()] == [{0}, {1}, {0}, {1}]


def test_specialty_gives_a_site_several_classes_when_classes_outnumber_sites() -> None:
    records = a_table(rows=1000, classes=5)
    sites = sites_of(specialty(count=2, richness=1.0), records)
    assert [set(records.target[rows].tolist()) for rows in sites.values()] == [{0, 2, 4}, {1, 3}]


def test_specialty_copes_with_a_single_class() -> None:
    assert len(sites_of(specialty(count=3), a_table(classes=1))) == 3


def test_specialty_refuses_sites_that_stay_too_small() -> None:
    target = np.repeat([0, 1], [190, 10])
    records = Records(pd.DataFrame(), target, ("no", "yes"), np.full(200, "Ost"))
    with pytest.raises(DataError, match="1 of 2 sites would hold fewer than 50 rows") as caught:
        sites_of(specialty(count=2, richness=1.0, smallest=50), records)
    assert "`smallest`" in caught.value.remedy


def test_age_windows_have_the_sizes_of_the_study() -> None:
    sites = sites_of(age_windows(), a_table(rows=297))
    assert {name: rows.size for name, rows in sites.items()} == {
        "site-01": 95,
        "site-02": 83,
        "site-03": 44,
        "site-04": 71,
    }
    assert age_windows().overlapping
    assert any(np.intersect1d(a, b).size for a, b in combinations(sites.values(), 2))


@pytest.mark.parametrize("disjoint", [False, True])
def test_ages_lie_within_their_windows(disjoint: bool) -> None:
    """Of 297 rows: 40 % is row 118.8, 30 % 89.1, 70 % 207.9, 20 % 59.4 and 50 % 148.5, rounded (half to even)."""
    records = a_table(rows=297)
    ages = np.sort(records.groups["age"].to_numpy())
    windows = [(119, 297), (89, 208), (59, 148), (0, 119)]
    for seed in range(5):
        sites = sites_of(age_windows(disjoint=disjoint), records, seed)
        for (start, end), rows in zip(windows, sites.values(), strict=True):
            own = records.groups["age"].to_numpy()[rows]
            assert ages[start] <= own.min()
            assert own.max() <= ages[end - 1]


def test_disjoint_age_windows_share_no_row_and_keep_the_sizes() -> None:
    assert not age_windows(disjoint=True).overlapping
    for seed in range(10):
        sites = sites_of(age_windows(disjoint=True), a_table(rows=297), seed)
        assert [rows.size for rows in sites.values()] == [95, 83, 44, 71]
        assert np.unique(np.concatenate(list(sites.values()))).size == 95 + 83 + 44 + 71


@pytest.mark.parametrize("disjoint", [False, True])
def test_age_windows_draw_from_the_whole_window(disjoint: bool) -> None:
    """Not always the youngest: over 30 seeds, each of the 119 youngest of 297 rows is at site-04 at least once."""
    records = a_table(rows=297)
    records.groups["age"] = np.arange(297) / 4
    drawn = [sites_of(age_windows(disjoint=disjoint), records, seed)["site-04"] for seed in range(30)]
    assert set(np.concatenate(drawn).tolist()) == set(range(119))


def test_rows_of_one_age_are_ordered_by_chance() -> None:
    """With all ages equal the youngest 40 % are any rows; were ties kept in order, no row after 118 would be drawn."""
    records = a_table(rows=297)
    records.groups["age"] = 60.0
    assert sites_of(age_windows(), records)["site-04"].max() > 118


def test_age_windows_shrink_by_a_common_factor_when_rows_are_few() -> None:
    """Of 100 rows the second window has 40, fewer than 83: all sizes are multiplied by 40/83 and rounded down.

    95 * 40/83 = 45.8, 83 * 40/83 = 40, 44 * 40/83 = 21.2 and 71 * 40/83 = 34.2. Without common rows, those 139 are more
    than 100: the tightest stretch is the whole, and 100/293 gives 32.4, 28.3, 15.02 and 24.2.
    """
    records = a_table(rows=100)
    assert [rows.size for rows in sites_of(age_windows(), records).values()] == [45, 40, 21, 34]
    assert [rows.size for rows in sites_of(age_windows(disjoint=True), records).values()] == [32, 28, 15, 24]


@pytest.mark.parametrize("seed", range(40))
def test_disjoint_windows_shrink_only_if_no_matching_exists(seed: int) -> None:
    """The reference is SciPy's matching of wanted rows to rows; rows are few, so that many cases are tight."""
    rng = generator(seed, "test windows")
    rows, count = int(rng.integers(8, 25)), int(rng.integers(1, 5))
    edges = np.sort(rng.choice(rows + 1, (count, 2)), axis=1)
    edges[:, 1] = np.maximum(edges[:, 1], edges[:, 0] + 1).clip(max=rows)
    edges[:, 0] = np.minimum(edges[:, 0], edges[:, 1] - 1)
    sizes = tuple(int(rng.integers(1, high - low + 1)) for low, high in edges)
    records = a_table(rows=rows)
    records.groups["age"] = np.arange(rows, dtype=float)

    slots = [edge for edge, size in zip(edges.tolist(), sizes, strict=True) for _ in range(size)]
    reachable = np.array([[low <= row < high for row in range(rows)] for low, high in slots])
    possible = (maximum_bipartite_matching(csr_array(reachable), perm_type="column") >= 0).all()

    partitioner = age_windows(True, tuple((low / rows, high / rows) for low, high in edges.tolist()), sizes)
    try:
        sites = list(sites_of(partitioner, records).values())
    except DataError:
        assert not possible
        return
    assert (tuple(chosen.size for chosen in sites) == sizes) == possible
    assert np.unique(np.concatenate(sites)).size == sum(chosen.size for chosen in sites)
    for (low, high), chosen in zip(edges.tolist(), sites, strict=True):
        assert low <= chosen.min()
        assert chosen.max() < high


def test_rows_of_unknown_age_are_left_out() -> None:
    records = a_table(rows=400)
    records.groups.loc[::4, "age"] = np.nan  # 300 ages remain
    placed = np.concatenate(list(sites_of(age_windows(), records).values()))
    assert records.groups["age"].iloc[placed].notna().all()


def test_age_windows_need_an_age() -> None:
    records = Records(pd.DataFrame(), np.zeros(300, dtype=np.int64), ("no", "yes"), np.full(300, "Ost"))
    with pytest.raises(DataError, match="no age"):
        sites_of(age_windows(), records)


@pytest.mark.parametrize("disjoint", [False, True])
def test_age_windows_refuse_a_handful_of_rows(disjoint: bool) -> None:
    with pytest.raises(DataError, match="too few rows of known age"):
        sites_of(age_windows(disjoint=disjoint), a_table(rows=2))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"sizes": (10, 10)}, "4 windows and 2 sizes"),
        ({"windows": (), "sizes": ()}, "0 windows"),
        ({"windows": ((0.5, 0.2),), "sizes": (5,)}, r"windows\[0\] runs from 0.5 to 0.2"),
        ({"windows": ((0.0, 1.2),), "sizes": (5,)}, r"windows\[0\]"),
        ({"windows": ((0.0, 1.0),), "sizes": (0,)}, "`sizes` is 0"),
    ],
)
def test_age_windows_refuse_settings_that_make_no_sense(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(StudyError, match=words):
        age_windows(**settings)


def people(**columns: Any) -> Records:
    groups = pd.DataFrame(columns)
    rows = len(groups)
    return Records(
        np.zeros((rows, 2)), np.zeros(rows, dtype=np.int64), ("no", "yes"), np.full(rows, "Ost"), groups=groups
    )


def as_lists(sites: dict[str, np.ndarray]) -> dict[str, list[int]]:
    return {name: rows.tolist() for name, rows in sites.items()}


def test_a_site_for_each_value_and_one_for_missing_ones() -> None:
    records = people(sex=["male", "female", None, "male", " "])
    assert as_lists(sites_of(by_column("sex"), records)) == {"sex-female": [1], "sex-male": [0, 3], "unknown": [2, 4]}


def test_bands_hold_their_lower_cut_point() -> None:
    records = people(age=[39.9, 40.0, 54.0, 55.0, np.nan, 80.0])
    sites = sites_of(by_column("age", bands=(40.0, 55.0)), records)
    assert list(sites) == ["age-below-40", "age-40-to-55", "age-55-and-over", "unknown"]
    assert as_lists(sites) == {
        "age-below-40": [0],
        "age-40-to-55": [1, 2],
        "age-55-and-over": [3, 5],
        "unknown": [4],
    }


def test_numbers_with_few_values_need_no_bands() -> None:
    records = people(vessels=[2.0, 0.0, 2.0, np.nan])
    assert as_lists(sites_of(by_column("vessels"), records)) == {"vessels-0": [1], "vessels-2": [0, 2], "unknown": [3]}


def test_a_feature_goes_before_a_group_of_the_same_name() -> None:
    groups = pd.DataFrame({"sex": ["x", "x"]})
    records = Records(pd.DataFrame({"sex": ["f", "m"]}), np.array([0, 1]), ("a", "b"), np.full(2, "Ost"), groups=groups)
    assert list(sites_of(by_column("sex"), records)) == ["sex-f", "sex-m"]


def test_names_of_sites_are_safe_as_folders() -> None:
    records = people(**{"Chest pain": ["at rest", "none / mild"]})
    assert list(sites_of(by_column("Chest pain"), records)) == ["chest-pain-at-rest", "chest-pain-none-mild"]


@pytest.mark.parametrize(
    ("partitioner", "records", "words"),
    [
        (by_column("sexx"), people(sex=["f", "m"]), "Did you mean 'sex'"),
        (by_column("age"), people(age=np.arange(30) + 0.25), "30 different values\n.*`bands"),
        (by_column("sex", (1.0,)), people(sex=["f", "m"]), "holds no numbers\n.*`bands`"),
        (by_column("age", (40.0, 200.0)), people(age=[30.25, 41.25]), "1 of 3 bands hold no rows\n.*`bands`"),
        (by_column("sex"), people(sex=["Male", "male"]), "2 values would give only 1"),
        (by_column("sex"), people(sex=[None, None]), "no values"),
    ],
)
def test_columns_that_cannot_form_sites_are_refused(partitioner: Partitioner, records: Records, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        sites_of(partitioner, records)
    assert ".25" not in str(caught.value)  # no patient's value in a message


def test_cut_points_must_rise() -> None:
    with pytest.raises(StudyError, match="do not rise"):
        by_column("age", bands=(55.0, 40.0))


def test_a_patient_with_two_values_is_refused_by_count_alone() -> None:
    groups = pd.DataFrame({"ward": ["alpha", "beta", "alpha", "alpha"]})
    patient = np.array(["secret-1", "secret-1", "secret-2", "secret-2"])
    records = Records(np.zeros((4, 1)), np.zeros(4, dtype=np.int64), ("a", "b"), np.full(4, "Ost"), (), patient, groups)
    with pytest.raises(DataError, match="more than one site: 1\n") as caught:
        sites_of(by_column("ward"), records)
    assert "secret" not in str(caught.value)
    assert "beta" not in str(caught.value)


def test_hospitals_keep_their_names_and_the_order_of_the_source() -> None:
    records = Records(
        pd.DataFrame(), np.zeros(4, dtype=np.int64), ("a", "b"), np.array(["West", "Ost", "West", "Nord"])
    )
    sites = sites_of(by_hospital(), records)
    assert list(sites) == ["West", "Ost", "Nord"]
    assert as_lists(sites) == {"West": [0, 2], "Ost": [1], "Nord": [3]}


def test_a_patient_of_two_hospitals_stays_at_both_for_the_checks_to_report() -> None:
    hospital = np.array(["West", "Ost", "West"])
    records = Records(pd.DataFrame(), np.zeros(3, dtype=np.int64), ("a", "b"), hospital, patient=np.array([1, 1, 2]))
    assert as_lists(sites_of(by_hospital(), records)) == {"West": [0, 2], "Ost": [1]}
