"""Table 1 over hospitals equals the one of all rows together wherever nothing is withheld, and what is withheld cannot
be told from the rest."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import linprog

from wardround.analyses.analysis import ColumnFacts, Schema
from wardround.analyses.conduct import Terms, conduct
from wardround.analyses.site_rows import SiteRows
from wardround.analyses.table_one.table_one import TableOne
from wardround.core.errors import StudyError
from wardround.privacy.disclosure import Limits
from wardround.privacy.disclosure.told_cells import ToldCells
from wardround.study.schema import SecureSum

SCHEMA: Schema = {
    "age": ColumnFacts("age", "numeric", limits=(0, 120)),
    "stay": ColumnFacts("stay", "numeric", limits=(0, 1000)),
    "sex": ColumnFacts("sex", "categorical"),
    "ward": ColumnFacts("ward", "categorical"),
    "died": ColumnFacts("died", "numeric", limits=(0, 1)),
}
FLOOR = 5


def frame(rows: int, seed: int, deaths: float = 0.2, rare: float = 0.0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    wards = rng.choice(["medical", "surgical", "rare"], rows, p=[0.6 - rare / 2, 0.4 - rare / 2, rare])
    table = pd.DataFrame(
        {
            "age": rng.normal(60, 12, rows).round(),
            "stay": rng.lognormal(1, 1, rows),
            "sex": rng.choice(["f", "m"], rows),
            "ward": wards,
            "died": (rng.random(rows) < deaths).astype(float),
        }
    )
    for name in ("age", "stay", "sex"):
        table.loc[rng.random(rows) < 0.02, name] = np.nan
    return table


def described(
    frames: Mapping[str, pd.DataFrame],
    visits: int = 1,
    secure: SecureSum | None = None,
    told: Mapping[str, ToldCells] | None = None,
    **settings: Any,
) -> dict[str, Any]:
    sites = {
        name: SiteRows(
            *(name, own.drop(columns="patient", errors="ignore"), np.arange(len(own)) // visits),
            told=(told or {}).get(name, ToldCells()),
        )
        for name, own in frames.items()
    }
    steps = conduct(TableOne(**settings), Terms("t", Limits(smallest_cell=FLOOR), secure), SCHEMA, sites)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return dict(end.value)


def lines(column: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield "overall", column["overall"]
    for part in ("groups", "hospitals"):
        yield from column.get(part, {}).items()


HOSPITALS = {"north": frame(400, 1), "south": frame(150, 2), "east": frame(90, 3)}


@pytest.mark.parametrize("secure", [None, SecureSum()], ids=["open", "secure"])
def test_it_is_that_of_all_rows_together(secure: SecureSum | None) -> None:
    table = described(HOSPITALS, secure=secure, hospitals=secure is None, counted=("died",))
    check_against_pandas(table["columns"], pd.concat(HOSPITALS.values()), "overall")
    assert table["flow"]["overall"] == {
        "rows": 640,
        "patients": 640,
        "complete": int(pd.concat(HOSPITALS.values()).notna().all(axis=1).sum()),
    }
    assert ("hospitals" in table["columns"]["age"]) == (secure is None)
    for name, own in HOSPITALS.items() if secure is None else ():
        alone = {
            key: {"kind": column["kind"], "overall": column["hospitals"][name]}
            for key, column in table["columns"].items()
        }
        check_against_pandas(alone, own, "overall")


def check_against_pandas(columns: Mapping[str, Any], rows: pd.DataFrame, line: str) -> None:
    """Nothing is withheld here."""
    for name, column in columns.items():
        values, own = rows[name], column[line]
        assert own["missing"] == values.isna().sum()
        if column["kind"] == "levels":
            counts = values.dropna().map(lambda v: f"{v:g}" if isinstance(v, float) else v).value_counts()
            assert {level: count for level, count in own["levels"].items() if count} == counts.to_dict()
            continue
        assert own["count"] == values.count()
        assert own["mean"] == pytest.approx(values.mean(), rel=1e-12)
        assert own["sd"] == pytest.approx(values.std(), rel=1e-10)
        for key, share in {"q1": 0.25, "median": 0.5, "q3": 0.75}.items():
            if own[key] is not None:
                assert abs(own[key] - values.quantile(share)) <= own[f"{key}_error"] * (1 + 1e-9)
        assert own["median"] is not None


def test_groups_are_those_of_all_rows_together() -> None:
    table = described(HOSPITALS, by="died")
    rows = pd.concat(HOSPITALS.values())
    assert table["rows"] == {
        "overall": 640,
        "0": int((rows.died == 0).sum()),
        "1": int((rows.died == 1).sum()),
        "other or missing": 0,
    }
    assert "died" not in table["columns"]
    for group, value in {"0": 0.0, "1": 1.0}.items():
        parts = {name: {"kind": c["kind"], "overall": c["groups"][group]} for name, c in table["columns"].items()}
        known = {n: c for n, c in parts.items() if c["kind"] == "number" and c["overall"]["count"] is not None}
        check_against_pandas(known, rows[rows.died == value], "overall")
        assert {"age", "stay"} <= set(known)


def test_standardised_differences_are_those_of_the_figures_shown() -> None:
    table = described(HOSPITALS, by="died")["columns"]
    first, second = (table["age"]["groups"][group] for group in ("0", "1"))
    expected = abs(first["mean"] - second["mean"]) / np.sqrt((first["sd"] ** 2 + second["sd"] ** 2) / 2)
    assert table["age"]["difference_of_groups"] == pytest.approx(expected)
    shares = [own["levels"]["f"] / sum(own["levels"].values()) for own in table["sex"]["hospitals"].values()]
    pairs = [(shares[a], shares[b]) for a, b in ((0, 1), (0, 2), (1, 2))]
    # of two levels it is the known formula for proportions
    expected = max(abs(p - q) / np.sqrt((p * (1 - p) + q * (1 - q)) / 2) for p, q in pairs)
    assert table["sex"]["difference_of_hospitals"] == pytest.approx(expected)


def intervals(table: Mapping[str, Any], site: str, n: int) -> dict[tuple[str, str], tuple[float, float]]:
    """What anybody who reads a hospital's table can tell of each withheld count there: an independent linear programme
    over all its columns. Levels, others and gaps of a column make up the rows."""
    bounds = {}
    for name, column in table["columns"].items():
        own = column["hospitals"][site]
        cells = {**own["levels"], "": own["other"]} if column["kind"] == "levels" else {"value": own["count"]}
        cells |= {"missing": own["missing"]}
        unknown = [key for key, count in cells.items() if count is None]
        rest = n - sum(count for count in cells.values() if count is not None)
        for place, key in enumerate(unknown):
            weights = np.zeros(len(unknown))
            weights[place] = 1
            low, high = (
                float(
                    np.asarray(
                        linprog(sign * weights, A_eq=np.ones((1, len(unknown))), b_eq=[rest], bounds=(0, None)).x
                    )[place]
                )
                for sign in (1, -1)
            )
            bounds[name, key] = (low, high)
    return bounds


@pytest.mark.parametrize("seed", range(6))
def test_a_withheld_count_can_be_anything_within_more_than_the_floor(seed: int) -> None:
    hospitals = {name: frame(40 + 30 * k, 10 * seed + k, rare=0.05) for k, name in enumerate(("a", "b", "c"))}
    table = described(hospitals, counted=("died",))
    found = 0
    for site, own in hospitals.items():
        for low, high in intervals(table, site, len(own)).values():
            found += 1
            assert high - low > FLOOR
    assert found
    for name, column in table["columns"].items():  # a total is known only where every hospital tells its part
        if column["kind"] == "levels":
            for level, count in column["overall"]["levels"].items():
                parts = [own["levels"][level] for own in column["hospitals"].values()]
                assert (count is None) == (None in parts), (name, level)


def test_no_count_of_few_patients_is_told_however_many_rows_they_have() -> None:
    own = frame(60, 4)
    own.loc[:19, "ward"] = "rare"  # twenty rows of two patients
    own.loc[20:, "ward"] = np.where(np.arange(40) % 2, "medical", "surgical")
    hospitals = {"north": own, "south": frame(100, 5, rare=0.5)}
    table = described(hospitals, visits=10)
    ward = table["columns"]["ward"]["hospitals"]["north"]["levels"]
    assert ward["rare"] is None
    assert list(ward.values()).count(None) >= 2


def test_sums_of_a_few_patients_or_of_one_above_all_stay() -> None:
    own = frame(60, 6)
    own["stay"] = [1e6, *[1.0] * 59]
    few = frame(50, 7)
    few.loc[3:, "age"] = np.nan
    columns = described({"rich": own, "gaps": few})["columns"]
    assert columns["stay"]["hospitals"]["rich"]["mean"] is None
    assert columns["age"]["hospitals"]["gaps"] | {"count": None, "missing": None} == dict.fromkeys(
        columns["age"]["overall"]
    )
    assert columns["stay"]["overall"]["mean"] is None
    assert columns["age"]["hospitals"]["rich"]["mean"] is not None


def test_a_hospital_below_the_floor_is_left_out_and_the_table_is_that_of_the_others() -> None:
    table = described(HOSPITALS | {"tiny": frame(4, 8)}, counted=("died",))
    assert table["left_out"] == [{"site": "tiny", "rule": "smallest-cell"}]
    check_against_pandas(table["columns"], pd.concat(HOSPITALS.values()), "overall")
    assert {"smallest-cell", "secondary-suppression", "dominance"} <= set(table["rules"])


def test_a_column_that_nobody_has_or_that_is_empty() -> None:
    with pytest.raises(StudyError, match="no hospital has a column 'agee'") as error:
        described(HOSPITALS, columns=("agee",))
    assert "age" in error.value.remedy
    empty = {name: own.assign(stay=np.nan, sex=None) for name, own in HOSPITALS.items()}
    columns = described(empty)["columns"]
    assert columns["stay"]["overall"] == dict.fromkeys(columns["stay"]["overall"]) | {"count": 0, "missing": 640}
    assert columns["sex"]["overall"] == {"levels": {}, "other": 0, "missing": 640}


def test_the_lines_of_hospitals_are_refused_under_a_secure_sum() -> None:
    with pytest.raises(StudyError, match="shows nothing of a single hospital"):
        described(HOSPITALS, secure=SecureSum())
