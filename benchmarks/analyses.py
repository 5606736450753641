"""How long analyses over hospitals take, and whether intervals cover: `python -m benchmarks.analyses`.

speed       a regression of 20 columns, 10 hospitals of 100,000 rows each, simulated, without and with a secure sum
table       Table 1 of 10 hospitals of as many rows: six columns, by an outcome
coverage    2,000 simulated studies of each family: how often the 95 % interval of a coefficient has the true one
"""

import argparse
import json
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from wardround.analyses.agreement import schema_of
from wardround.analyses.analysis import Analysis
from wardround.analyses.conduct import Terms, conduct
from wardround.analyses.glm.glm import Glm
from wardround.analyses.site_rows import SiteRows
from wardround.analyses.table_one.table_one import TableOne
from wardround.core.seeds import generator
from wardround.data.records import Column
from wardround.study.schema import SecureSum

FAMILIES = ("gaussian", "logistic", "poisson", "negative-binomial")
DISPERSION = 0.5
TRUE = (0.3, 0.4, -0.3)  # intercept, x01, x02


def result_of(analysis: Analysis, terms: Terms, columns: list[Column], sites: Mapping[str, SiteRows]) -> dict[str, Any]:
    steps = conduct(analysis, terms, schema_of(columns), sites)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return dict(end.value)


def outcome_of(family: str, eta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    if family == "gaussian":
        return np.asarray(eta + rng.normal(size=len(eta)))
    if family == "logistic":
        return np.asarray(rng.random(len(eta)) < 1 / (1 + np.exp(-eta)), dtype=float)
    mean = np.exp(eta)
    if family == "poisson":
        return np.asarray(rng.poisson(mean), dtype=float)
    return np.asarray(rng.negative_binomial(1 / DISPERSION, 1 / (1 + DISPERSION * mean)), dtype=float)


def speed(rows: int, hospitals: int, width: int) -> dict[str, float]:
    names = [f"x{number:02}" for number in range(width)]
    columns = [Column(name) for name in [*names, "y"]]
    sites = {}
    for number in range(hospitals):
        rng = generator(1, "rows of a benchmark", site=str(number))
        frame = pd.DataFrame(rng.normal(size=(rows, width)), columns=names)
        eta = 0.1 * frame.to_numpy().sum(axis=1) - 0.5
        sites[f"h{number:02}"] = (frame.assign(y=outcome_of("logistic", eta, rng)), np.arange(rows))
    glm = Glm(formula=f"y ~ {' + '.join(names)}", family="logistic")
    taken = {}
    for title, secure in (("open", None), ("secure sum", SecureSum())):
        own = {site: SiteRows(site, frame, people) for site, (frame, people) in sites.items()}
        began, used = time.perf_counter(), time.process_time()
        result_of(glm, Terms("speed", secure=secure), columns, own)
        taken[title] = time.perf_counter() - began
        taken[f"{title}, of the processor"] = time.process_time() - used  # where others use the machine too
    return taken


def table(rows: int, hospitals: int) -> dict[str, float]:
    numbers, levels = ("age", "stay", "score"), ("f", "m")
    columns = [*(Column(name, limits=(-1000, 1000)) for name in numbers), Column("died", limits=(0, 1))]
    columns += [Column("sex", "categorical", levels=levels), Column("ward", "categorical")]
    sites = {}
    for number in range(hospitals):
        rng = generator(2, "rows of a benchmark", site=str(number))
        frame = pd.DataFrame(rng.normal(50, 15, size=(rows, len(numbers))), columns=list(numbers))
        frame = frame.where(rng.random(frame.shape) > 0.02)
        frame["died"] = (rng.random(rows) < 0.1).astype(float)
        frame["sex"] = rng.choice(levels, rows)
        frame["ward"] = rng.choice(["medical", "surgical", "intensive", "other"], rows)
        sites[f"h{number:02}"] = SiteRows(f"h{number:02}", frame, np.arange(rows))
    began, used = time.perf_counter(), time.process_time()
    result_of(TableOne(by="died"), Terms("table"), columns, sites)
    return {"open": time.perf_counter() - began, "open, of the processor": time.process_time() - used}


def coverage(family: str, studies: int, rows: int = 200, hospitals: int = 3) -> dict[str, float]:
    columns, names = [Column("x01"), Column("x02"), Column("y")], ("Intercept", "x01", "x02")
    glm = Glm(formula="y ~ x01 + x02", family=family, dispersion=DISPERSION if family == "negative-binomial" else None)  # type: ignore[arg-type]
    covered = np.zeros(len(TRUE))
    for study in range(studies):
        rng = generator(study, f"coverage {family}")
        sites = {}
        for number in range(hospitals):
            x = rng.normal(size=(rows, 2))
            y = outcome_of(family, TRUE[0] + x @ np.array(TRUE[1:]), rng)
            frame = pd.DataFrame({"x01": x[:, 0], "x02": x[:, 1], "y": y})
            sites[f"h{number}"] = SiteRows(f"h{number}", frame, np.arange(rows))
        terms = result_of(glm, Terms("coverage"), columns, sites)["terms"]
        ends = [terms[name]["ci"] for name in names]
        covered += [low <= true <= high for (low, high), true in zip(ends, TRUE, strict=True)]
    return {name: float(share) for name, share in zip(names, covered / studies, strict=True)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=2000, help="of each family; 0: none")
    parser.add_argument("--rows", type=int, default=100_000, help="of each hospital; 0: none")
    given = parser.parse_args()
    measured: dict[str, Any] = {}
    if given.rows:
        measured["regression, seconds"] = speed(given.rows, 10, 20)
        measured["Table 1, seconds"] = table(given.rows, 10)
    if given.studies:
        measured["coverage"] = {family: coverage(family, given.studies) for family in FAMILIES}
    print(json.dumps(measured, indent=2))


if __name__ == "__main__":
    main()
