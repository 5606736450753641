"""Visits to a doctor in a year: the RAND Health Insurance Experiment, 20,190 person-years (public domain).

The table is the one that statsmodels ships (`statsmodels.datasets.randhie`; Cameron and Trivedi 2005, chapter 20): it
is read there and not copied. Families were assigned to insurance plans, so that a plan is no choice of theirs.

The table has no number of the person. What it says of people and plans was recorded once for the three or five years
in which they took part, so that rows with equal features are taken for one person: all years of a person come together,
and sometimes those of several. It names no place either, although there were six: sites are formed by a partition.
"""

from typing import Literal

import numpy as np
import pandas as pd

from wardround.core.notices import Notice
from wardround.core.settings import NonNegative
from wardround.data.records import Column, Records, Source
from wardround.study.facts import SourceFacts, declares
from wardround.tasks import Count

# Limits are wide ones from the definitions of the columns; they are not read off the data.
COLUMNS = (
    Column("lncoins", limits=(0, 4.62)),  # ln(coinsurance + 1); coinsurance is 0 to 100 per cent of the bill
    Column("idp", limits=(0, 1)),  # the plan has a deductible for each person
    Column("lpi", limits=(0, 10)),  # ln(max(1, yearly payment for taking part)), dollars
    Column("fmde", limits=(0, 12)),  # ln(max(1, 100 x most that a family pays / coinsurance)); 0 where idp is 1
    Column("physlm", limits=(0, 1)),  # a physical limitation; between 0 and 1 where it was estimated
    Column("disea", limits=(0, 100)),  # chronic diseases, an index
    Column("health", "categorical", None, False, ("excellent", "fair", "good", "poor")),  # by the person's own account
)
TARGET, HOSPITAL = "visits", "rand"
HEALTH = {"hlthg": "good", "hlthf": "fair", "hlthp": "poor"}  # 0 and 1 in the table; none of them: excellent

CITATION = (
    "RAND Health Insurance Experiment, as in Cameron and Trivedi. Microeconometrics: Methods and Applications. "
    "Cambridge University Press 2005, chapter 20, and in statsmodels (public domain)"
)


@declares(SourceFacts(citation=CITATION, tasks={"": "count"}))
def visits(dispersion: NonNegative | Literal["fitted"] = "fitted") -> Source:
    """Outpatient visits to a doctor in a person-year. `dispersion` is that of the task `count`."""
    return Source(lambda: _load(dispersion))


def _load(dispersion: float | Literal["fitted"]) -> Records:
    from statsmodels.datasets import randhie  # here, because it takes long to load, and only this source needs it

    table = randhie.load_pandas().data
    health = np.select([table[name] == 1 for name in HEALTH], list(HEALTH.values()), "excellent")
    features = table[[column.name for column in COLUMNS[:-1]]].astype(float).assign(health=health.astype(object))
    alike = features.groupby(list(features.columns), sort=False).ngroup().to_numpy()
    target = np.column_stack([table["mdvis"].to_numpy(dtype=np.float64), np.ones(len(table))])
    return Records(
        features=features,
        target=target,
        classes=(),
        hospital=np.full(len(table), HOSPITAL, dtype=object),
        columns=COLUMNS,
        patient=np.array([f"{number:05}" for number in alike]),
        groups=pd.DataFrame(index=pd.RangeIndex(len(table))),
        notes=(Notice("no-patient-column", "info", HOSPITAL, details={"features": True}),),
        given_task=Count((TARGET,), dispersion=dispersion),
    )
