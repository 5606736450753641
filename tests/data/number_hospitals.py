"""Three made-up hospitals with a number and a count to predict, in whose files a test may put what it likes."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from wardround.core.notices import Notice
from wardround.runs.catalog import load_study
from wardround.runs.plan import check_study, load_plan, rehearse

SITES = ("north", "south", "east")
COUNT = {"target": "admissions", "task": {"kind": "count", "exposure": "months"}}
Tables = dict[str, pd.DataFrame]


def hospitals(rows: int = 80) -> Tables:
    return {site: hospital(rows, seed) for seed, site in enumerate(SITES)}


def hospital(rows: int, seed: int) -> pd.DataFrame:
    """`stay` grows with age, `admissions` with age and the months in which they were counted."""
    rng = np.random.default_rng(seed)
    age, crp, months = rng.normal(60, 12, rows).round(), rng.gamma(2, 20, rows).round(1), rng.uniform(1, 12, rows)
    stay = (4 + 0.2 * (age - 60) + 0.02 * crp + rng.normal(0, 2, rows)).clip(0.1).round(1)
    admissions = rng.poisson(0.3 * months * np.exp(0.03 * (age - 60)))
    return pd.DataFrame(
        {"age": age, "crp": crp, "months": months.round(1), "stay": stay, "admissions": admissions}, dtype=object
    )


def put(column: str, *values: object, site: str = "north") -> Callable[[Tables], None]:
    """These values in the first lines of a hospital's column."""

    def change(tables: Tables) -> None:
        tables[site][column] = [*values, *tables[site][column][len(values) :]]

    return change


def everywhere(column: str, values: Callable[[pd.DataFrame], Any], sites: tuple[str, ...] = SITES) -> Any:
    def change(tables: Tables) -> None:
        for site in sites:
            tables[site][column] = values(tables[site])

    return change


def study_of(folder: Path, tables: Tables, data: Mapping[str, Any] | None = None, **sections: Any) -> dict[str, Any]:
    """Their files in the folder, and a study of them that predicts `stay` unless `data` says otherwise."""
    folder.mkdir(parents=True, exist_ok=True)
    for site, table in tables.items():
        table.to_csv(folder / f"{site}.csv", index=False)
    files = {site: str(folder / f"{site}.csv") for site in tables}
    return {
        "name": "numbers",
        "data": {"source": "csv", "files": files, "target": "stay", "task": "regression", **(data or {})},
        "training": {"rounds": 2, "lr": 0.1},
        "evaluation": {"seeds": {"count": 1}},
        "arms": [{"algorithm": "fedavg"}],
        **sections,
    }


def notices_of(study: Mapping[str, Any]) -> list[Notice]:
    """All that is said before training; WardroundError where it is refused from the text, the files or a rehearsal."""
    parsed, families = load_study(study)
    plan = load_plan(parsed, families)
    notices = [*plan.source_notices, *check_study(plan)]
    rehearse(plan)
    return notices
