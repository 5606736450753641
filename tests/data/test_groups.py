"""Columns that a study declares as groups of patients."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from wardround import load_plan, load_study
from wardround.core.errors import WardroundError
from wardround.data.checks.declared_groups import LONGEST_LEVEL, MOST_LEVELS, with_groups
from wardround.data.sources.heart import heart
from wardround.runs.plan import Plan
from wardround.runs.prediction_tables import group_table


def frame(rows: int = 60, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": rng.integers(30, 80, rows),
            "x": rng.normal(size=rows),
            "ethnicity": rng.choice(
                np.array(["white", "black", "asian", None], dtype=object), rows, p=[0.5, 0.3, 0.1, 0.1]
            ),
            "plan": rng.choice([1, 2, 3], rows),
            "ward": np.arange(rows),
            "note": ["x" * (LONGEST_LEVEL + 1)] * rows,
            "empty": [None] * rows,
            "died": rng.choice(["yes", "no"], rows),
        }
    )


def plan_with(groups: list[str], files: dict[str, pd.DataFrame] | None = None, **data: Any) -> Plan:
    source = {"source": "csv", "files": files or {"north": frame(), "south": frame(seed=1)}, "target": "died"}
    types = dict.fromkeys(("ethnicity", "plan", "ward", "note", "empty"), "ignore")
    raw = {
        "name": "g",
        "data": {**source, "positive": "yes", "types": types, **data},
        "evaluation": {"groups": groups},
        "arms": [{"algorithm": "fedavg"}],
    }
    return load_plan(*load_study(raw))


def groups_of(plan: Plan) -> pd.DataFrame:
    return group_table(list(plan.cohorts.values()))


def test_a_group_need_not_be_a_feature() -> None:
    plan = plan_with(["ethnicity", "plan"])
    (cohort,) = plan.cohorts.values()
    assert {column.name for column in cohort.records.columns} == {"age", "x"}
    table, whole = groups_of(plan), pd.concat([frame(), frame(seed=1)], ignore_index=True)
    assert list(table.columns) == ["row", "ethnicity", "plan", "age"]
    assert table["ethnicity"].tolist() == whole["ethnicity"].where(whole["ethnicity"].notna(), None).tolist()
    assert table["plan"].tolist() == whole["plan"].astype(str).tolist()
    assert not cohort.records.aside  # nothing else is held


def test_a_feature_may_be_a_group_as_well() -> None:
    plan = plan_with(["ethnicity"], types={"plan": "ignore", "ward": "ignore", "note": "ignore"})
    (cohort,) = plan.cohorts.values()
    assert "ethnicity" in {column.name for column in cohort.records.columns}
    assert set(groups_of(plan)["ethnicity"].dropna()) == {"white", "black", "asian"}


def test_codes_of_a_numeric_column_are_levels_and_measurements_are_none() -> None:
    records = with_groups(heart(hospitals=("cleveland",)).load(), ["cp", "fbs", "sex", "age"])
    assert list(records.groups.columns) == ["sex", "age", "cp", "fbs"]  # sex and age as they were
    assert set(records.groups["cp"]) == {"1", "2", "3", "4"}
    assert set(records.groups["fbs"]) == {"0", "1"}
    with pytest.raises(WardroundError, match=f"different values, and a column of groups may have {MOST_LEVELS}"):
        with_groups(heart(hospitals=("cleveland",)).load(), ["chol"])


def test_rows_without_a_value_are_in_no_group_and_counted() -> None:
    plan = plan_with(["ethnicity"])
    unknown = [notice for notice in plan.source_notices if notice.code == "group-unknown"]
    missing = {"north": int(frame()["ethnicity"].isna().sum()), "south": int(frame(seed=1)["ethnicity"].isna().sum())}
    assert {notice.site: notice.counts["rows"] for notice in unknown} == missing
    assert int(groups_of(plan)["ethnicity"].isna().sum()) == sum(missing.values())


@pytest.mark.parametrize(
    ("groups", "problem"),
    [
        (["ward"], f"has 120 different values|has 60 different values, and a column of groups may have {MOST_LEVELS}"),
        (["note"], f"text of more than {LONGEST_LEVEL} characters"),
        (["empty"], "has no value in any row"),
        (["ethnicty"], "no column is called so"),
        (["died"], "no column is called so"),
        (["row"], "is the name of a column of `groups.parquet`"),
        (["plan", "plan"], "two columns are called 'plan'"),
    ],
)
def test_what_is_no_group_is_refused(groups: list[str], problem: str) -> None:
    with pytest.raises(WardroundError, match=problem) as error:
        plan_with(groups)
    assert "xxx" not in str(error.value)


def test_a_hospital_may_lack_the_column_where_others_have_it() -> None:
    files = {"north": frame(), "south": frame(seed=1).drop(columns="ethnicity")}
    table = groups_of(plan_with(["ethnicity"], files, columns="common"))
    assert table["ethnicity"].isna().to_numpy()[60:].all()
    assert not table["ethnicity"].isna().to_numpy()[:60].all()


def test_a_hospital_alone_with_what_all_declare_may_lack_it() -> None:
    records = with_groups(heart(hospitals=("cleveland",)).load(), ["insurance"], alone=True)
    assert records.groups["insurance"].isna().all()
    assert [notice.code for notice in records.notices][-1] == "group-not-recorded"


def test_a_study_without_groups_keeps_its_hash() -> None:
    raw: dict[str, Any] = {"name": "h", "data": {"source": "heart"}, "arms": [{"algorithm": "fedavg"}]}
    plain, _ = load_study(raw)
    empty, _ = load_study({**raw, "evaluation": {"groups": []}})
    declared, _ = load_study({**raw, "evaluation": {"groups": ["cp"]}})
    assert plain.hash == empty.hash != declared.hash


def test_parties_with_different_columns_have_no_declared_groups() -> None:
    raw = {
        "name": "v",
        "data": {"source": "heart", "hospitals": ["cleveland"]},
        "topology": {
            "kind": "vertical",
            "parties": {"clinic": ["age", "sex", "cp"], "laboratory": ["chol", "thalach"]},
        },
        "model": {"kind": "joined"},
        "evaluation": {"groups": ["cp"]},
        "arms": [{"algorithm": "split"}],
    }
    with pytest.raises(WardroundError, match="parties hold different columns"):
        load_study(raw)


def test_a_file_is_read_as_a_frame_is(tmp_path: Path) -> None:
    paths = {name: tmp_path / f"{name}.csv" for name in ("north", "south")}
    for seed, path in enumerate(paths.values()):
        frame(seed=seed).to_csv(path, index=False)
    from_files = groups_of(plan_with(["ethnicity", "plan"], {name: str(path) for name, path in paths.items()}))  # type: ignore[misc]
    pd.testing.assert_frame_equal(from_files, groups_of(plan_with(["ethnicity", "plan"])))
