"""Which sites of two studies may have the same patients, from names and rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.runs.continual.chained_studies import plan_of, run
from wardround.runs.continual.earlier import Earlier, open_earlier, shared_rows, sharing
from wardround.runs.execute import StudyRun
from wardround.runs.plan import Plan


def rows(seed: int, count: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 3)).round(4)
    label = np.where(x.sum(axis=1) + rng.normal(size=count) > x.sum(axis=1).mean(), "yes", "no")
    return pd.DataFrame({"x0": x[:, 0], "x1": x[:, 1], "x2": x[:, 2], "died": label})


def document(folder: Path, name: str, tables: dict[str, pd.DataFrame], **changes: Any) -> dict[str, Any]:
    files = {}
    for hospital, table in tables.items():
        path = folder / f"{name}-{hospital}.csv"
        table.to_csv(path, index=False)
        files[hospital] = str(path)
    data = {"source": "csv", "files": files, "target": "died", "indicator": False, **changes.pop("data", {})}
    return {
        "name": name,
        "data": data,
        "model": {"kind": "logistic", **changes.pop("model", {})},
        "training": {"rounds": 1},
        "evaluation": {"seeds": {"first": 1, "count": 1}, "accept": ["copies", "shared-rows", "leak"]},
        "arms": [{"algorithm": "fedavg"}],
        **changes,
    }


def shares(old: StudyRun, plan: Plan) -> dict[str, tuple[str, ...]]:
    arm = plan.study.arms[0]
    predecessor = plan.predecessor_of(arm)
    assert predecessor is not None
    earlier = open_earlier(predecessor, plan)
    assert isinstance(earlier, Earlier), earlier
    return sharing(plan, arm, predecessor.first.description.trained[0], earlier)


def after(folder: Path, old: StudyRun, tables: dict[str, pd.DataFrame], **changes: Any) -> Plan:
    model = {"start_from": {"run": str(old.folder), "arm": "fedavg"}}
    return plan_of(document(folder, "later", tables, model=model, **changes))


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, StudyRun]:
    folder = tmp_path_factory.mktemp("old")
    return folder, run(document(folder, "old", {"a": rows(1), "b": rows(2)}), folder)


def test_names_and_copies(old: tuple[Path, StudyRun]) -> None:
    """A copy of a hospital's file under another name is found by its rows."""
    folder, first = old
    plan = after(folder, first, {"a": rows(7), "c": rows(3), "copy": rows(2)})
    assert shares(first, plan) == {"a": ("a",), "c": (), "copy": ("b",)}


def test_rows_are_recognised_in_other_company(tmp_path: Path) -> None:
    """Another column, and another order of the same ones: the same patients."""
    first = run(document(tmp_path, "old", {"a": rows(1), "b": rows(2)}), tmp_path)
    more = rows(2).assign(weight=np.arange(60))[["weight", "x2", "x0", "x1", "died"]]
    later = plan_of(document(tmp_path, "later", {"c": more, "d": rows(4).assign(weight=1.5)}))
    arm, old_plan = later.study.arms[0], plan_of(document(tmp_path, "old", {"a": rows(1), "b": rows(2)}))
    found = shared_rows(old_plan.cohort_of(old_plan.study.arms[0]), later.cohort_of(arm))
    seen = found.seen(np.arange(120), np.arange(60))  # of hospital c
    assert not seen[:60].any()
    assert seen[60:].all()
    assert first.fresh


def test_a_coincidence_does_not_make_two_hospitals_one(tmp_path: Path) -> None:
    """Three rows of sixty: a transferred patient, or chance."""
    first = run(document(tmp_path, "old", {"a": rows(1), "b": rows(2)}), tmp_path)
    tables = {"c": pd.concat([rows(5, 57), rows(1).head(3)]), "d": rows(6)}
    assert shares(first, after(tmp_path, first, tables)) == {"c": (), "d": ()}


def test_sites_that_were_drawn_share_patients_where_any_row_is_common(old: tuple[Path, StudyRun]) -> None:
    folder, first = old
    tables = {"c": pd.concat([rows(5, 59), rows(1).head(1)]), "d": rows(6)}
    plan = after(folder, first, tables, sites={"partition": "iid", "count": 2})
    found = shares(first, plan)
    assert sorted(found.values()) == [(), ("a",)]


def test_patients_go_by_their_numbers_too(tmp_path: Path) -> None:
    """A patient's new row is not the old one; the number tells."""
    data = {"data": {"patient": "id", "shared_ids": True}}
    numbered = [rows(n).assign(id=[f"{n}-{place}" for place in range(60)]) for n in (1, 2, 3)]
    first = run(document(tmp_path, "old", {"a": numbered[0], "b": numbered[1]}, **data), tmp_path)
    again = rows(9).assign(id=numbered[1]["id"])  # other values of the patients of b
    assert shares(first, after(tmp_path, first, {"c": again, "d": numbered[2]}, **data)) == {"c": ("b",), "d": ()}
