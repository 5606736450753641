"""UCI Heart Disease: four hospitals, 920 patients, 13 columns (Janosi, Steinbrunn, Pfisterer, Detrano; CC BY 4.0).

The files ship with the package, byte for byte as UCI gives them. Disease is `num` above 0.
"""

from dataclasses import replace
from importlib.resources import files
from io import StringIO
from typing import Literal

import numpy as np
import pandas as pd

from wardround.core.errors import StudyError
from wardround.core.notices import Notice
from wardround.data.records import Column, Records, Source
from wardround.study.facts import SourceFacts, declares
from wardround.tasks import Regression

Hospital = Literal["cleveland", "hungarian", "switzerland", "va"]
DISEASE = "disease"
HOSPITALS: tuple[Hospital, ...] = ("cleveland", "hungarian", "switzerland", "va")

# Limits are public clinical bounds for adults, wider than these patients; they are not read off the data.
COLUMNS = (
    Column("age", limits=(18, 100)),
    Column("sex", limits=(0, 1)),  # 1 = male
    Column("cp", "categorical", (1, 4), True, ("1", "2", "3", "4")),  # chest pain: 1-3 some kind, 4 none
    Column("trestbps", limits=(60, 250), missing_codes=(0.0,)),  # resting blood pressure, mm Hg
    Column("chol", limits=(80, 650), missing_codes=(0.0,)),  # serum cholesterol, mg/dl
    Column("fbs", limits=(0, 1)),  # fasting blood sugar above 120 mg/dl
    Column("restecg", "categorical", (0, 2), True, ("0", "1", "2")),
    Column("thalach", limits=(40, 230)),  # highest heart rate
    Column("exang", limits=(0, 1)),  # angina on exercise
    Column("oldpeak", limits=(-5, 10)),  # ST depression
    Column("slope", "categorical", (1, 3), True, ("1", "2", "3")),
    Column("ca", limits=(0, 3)),  # vessels coloured by fluoroscopy
    Column("thal", "categorical", (3, 7), True, ("3", "6", "7")),
)
# nobody alive has 0; the hospitals wrote it for "not measured"
ZERO_IS_MISSING = sorted(column.name for column in COLUMNS if column.missing_codes)

CITATION = (
    "Janosi, Steinbrunn, Pfisterer, Detrano. Heart Disease. UCI Machine Learning Repository 1989. "
    "doi:10.24432/C52P4X (CC BY 4.0)"
)


# columns that may be predicted in place of the disease, and their units
Target = Literal["disease", "thalach", "trestbps", "chol", "oldpeak"]
UNITS = {"thalach": "beats/min", "trestbps": "mm Hg", "chol": "mg/dl", "oldpeak": "mm"}


@declares(
    lambda options: SourceFacts(
        citation=CITATION, tasks={"": "regression" if options.get("target") in UNITS else "binary"}
    )
)
def heart(hospitals: tuple[Hospital, ...] = HOSPITALS, target: Target = "disease") -> Source:
    """With a measurement as the `target`, such as the highest heart rate, that number is predicted from the other
    columns; the diagnosis, which is made later, is then no feature."""
    if not hospitals or len(set(hospitals)) < len(hospitals):
        raise StudyError("data: hospitals", "the list is empty or names one twice", "Name each hospital once.")
    return Source(lambda: _load(hospitals, target))


def read_hospital(name: str) -> pd.DataFrame:
    """One file as it is: 13 columns and `num`, '?' as NaN, nothing corrected."""
    text = files("wardround.data.sources").joinpath("files", f"processed.{name}.data").read_text(encoding="ascii")
    names = [column.name for column in COLUMNS] + ["num"]
    return pd.read_csv(StringIO(text), header=None, names=names, na_values="?").astype(float)


def _load(hospitals: tuple[str, ...], predicted: str) -> Records:
    tables = [read_hospital(name) for name in hospitals]
    table = pd.concat(tables, ignore_index=True)
    hospital = np.repeat(np.array(hospitals, dtype=object), [len(part) for part in tables])
    target = (table.pop("num") > 0).to_numpy(dtype=np.int64)
    notices = []
    for name in ZERO_IS_MISSING:
        zero = (table[name] == 0).to_numpy()
        table[name] = table[name].mask(zero)
        notices += [
            Notice("impossible-values", "info", site, (name,), {"rows": count})
            for site in hospitals
            if (count := int(zero[hospital == site].sum()))
        ]
    groups = pd.DataFrame({"sex": table["sex"].map({0.0: "female", 1.0: "male"}), "age": table["age"]})
    for column in COLUMNS:
        if column.kind == "categorical":
            codes = table[column.name]
            table[column.name] = codes.map(lambda code: str(int(code)), na_action="ignore").astype(object)
    classes = ("no disease", "disease")
    whole = Records(table, target, classes, hospital, COLUMNS, None, groups, tuple(notices), outcome=DISEASE)
    return whole if predicted == DISEASE else _of_measurement(whole, table, predicted)


def _of_measurement(records: Records, table: pd.DataFrame, name: str) -> Records:
    """The rows in which it was measured."""
    measured = table[name].notna().to_numpy()
    limits = next(column.limits for column in COLUMNS if column.name == name)
    counts = {site: (records.hospital == site, measured[records.hospital == site]) for site in records.hospitals}
    notices = tuple(
        Notice("rows-without-target", "info", site, (name,), {"rows": int((~own).sum()), "of": int(rows.sum())})
        for site, (rows, own) in counts.items()
        if not own.all()
    )
    of_number = replace(
        records,
        features=table.drop(columns=name),
        columns=tuple(column for column in COLUMNS if column.name != name),
        target=table[name].to_numpy(dtype=np.float64),
        classes=(),
        notes=(*records.notes, *notices),
        given_task=Regression((name,), range=limits, unit=UNITS[name]),
    )
    return of_number.take(np.flatnonzero(measured))
