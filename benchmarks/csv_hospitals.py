"""The two made-up hospitals of the study `csv-hospitals`: `python -m benchmarks.csv_hospitals FOLDER`.

Nobody's data: every number is drawn here. One truth holds at both hospitals: who dies depends a little on age, lactate,
blood pressure, the kidneys and inflammation, and most on heart rate, temperature, sodium and potassium, of which both
too much and too little are bad. Such curves take many rows to learn, and their shape is the same at both hospitals.
The hospitals record it differently. They share eight columns by name; `crp` is a number in the north and a word in the
south; the kidneys are creatinine in the north and eGFR in the south; and 0 means dead in the south.
"""

import sys
from collections.abc import Sequence
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import pandas as pd

from wardround.core import seeds

ROWS = {"north": 400, "south": 300}
SEED = 8
RETURNS = 0.25  # of those who live


def admissions(name: str) -> pd.DataFrame:
    """A row per admission, before anything is written down or lost. A patient who lives may come a second time."""
    rng, count = seeds.generator(SEED, "csv-hospitals", site=name), ROWS[name]
    people = pd.DataFrame(
        {
            "who": np.arange(1, count + 1),
            "age": np.clip(rng.normal(64.0 if name == "north" else 68.0, 14.0, count), 18, 99).round(),
            "male": rng.random(count) < 0.55,
            "day": rng.integers(0, 600, count),
        }
    )
    first = _admitted(people, rng)
    back = people[~first["dead"] & (rng.random(count) < RETURNS)]
    second = _admitted(back.assign(day=back["day"] + rng.integers(10, 120, len(back))), rng)
    return pd.concat([first, second]).sort_values(["who", "day"]).head(count).reset_index(drop=True)


def _admitted(people: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    count, age = len(people), people["age"].to_numpy()
    severity = rng.normal(0.0, 1.0, count)
    heart_rate = np.clip(rng.normal(88 + 6 * severity, 18, count), 35, 190).round()
    temperature = np.clip(rng.normal(37.2 + 0.2 * severity, 0.9, count), 33.5, 41.5).round(1)
    systolic = np.clip(rng.normal(122 - 9 * severity, 19, count), 55, 220).round()
    lactate = np.exp(rng.normal(0.55 + 0.35 * severity, 0.45, count)).clip(0.2).round(1)
    crp = np.exp(rng.normal(3.3 + 0.5 * severity, 0.9, count)).clip(0.5).round(1)
    kidneys = rng.normal(-0.3 * severity - 0.015 * (age - 64), 1.0, count)  # the larger the better
    sodium = np.clip(rng.normal(139, 4, count), 115, 160).round()
    potassium = np.clip(rng.normal(4.2, 0.55, count), 2.4, 7.0).round(1)
    score = (
        -9.0
        + 0.035 * (age - 64)
        + 0.9 * (np.log(lactate) - 0.55)
        - 0.018 * (systolic - 122)
        - 0.6 * kidneys
        + 0.3 * (np.log(crp) - 3.3)
        + 2.0 * ((heart_rate - 88) / 19) ** 2
        + 2.0 * ((temperature - 37.2) / 0.9) ** 2
        + 2.0 * ((sodium - 139) / 4) ** 2
        + 2.0 * ((potassium - 4.2) / 0.55) ** 2
    )
    return people.assign(
        severity=severity,
        heart_rate=heart_rate,
        temperature=temperature,
        systolic=systolic,
        lactate=lactate,
        crp=crp,
        sodium=sodium,
        potassium=potassium,
        kidneys=kidneys,
        dead=rng.random(count) < 1 / (1 + np.exp(-score)),
    )


def hospital(name: str) -> dict[str, list[str]]:
    """Every column as this hospital writes it."""
    rows = admissions(name)
    rng, count = seeds.generator(SEED, "csv-hospitals, written", site=name), len(rows)
    day = [date(2022, 1, 1) + timedelta(days=int(days)) for days in rows["day"]]
    male, female = ("m", "f") if name == "north" else ("male", "female")
    common = {
        "age": _rounded(rows["age"]),
        "sex": [male if value else female for value in rows["male"]],
        "heart_rate": _rounded(rows["heart_rate"]),
        "temperature": _with_gaps(_rounded(rows["temperature"], 1), 0.05, rng),
        "systolic": _with_gaps(_rounded(rows["systolic"]), 0.04, rng),
        "sodium": _rounded(rows["sodium"]),
        "potassium": _with_gaps(_rounded(rows["potassium"], 1), 0.03, rng),
        "lactate": _with_gaps(_rounded(rows["lactate"], 1), 0.12 if name == "north" else 0.2, rng),
    }
    if name == "north":
        return {
            "patient_id": [f"N{who:04d}" for who in rows["who"]],
            "admitted": [value.isoformat() for value in day],
            **common,
            "crp": _with_gaps(_rounded(rows["crp"], 1), 0.08, rng),
            "creatinine": _rounded(np.exp(0.05 - 0.35 * rows["kidneys"]), 2),
            "ward": list(rng.choice(["medicine", "surgery", "icu"], count, p=[0.55, 0.3, 0.15])),
            "smoker": _with_gaps(list(rng.choice(["never", "former", "current"], count)), 0.1, rng),
            "died": ["yes" if dead else "no" for dead in rows["dead"]],
        }
    graded = ["low" if crp < 15 else "raised" if crp < 60 else "high" for crp in rows["crp"]]
    return {
        "case": [f"S-{who:04d}" for who in rows["who"]],
        "admission_date": [value.strftime("%d.%m.%Y") for value in day],
        **{name: [cell.replace(".", ",") for cell in cells] for name, cells in common.items()},
        "crp": _with_gaps(graded, 0.06, rng),
        "egfr": _with_gaps(_rounded((85 + 22 * rows["kidneys"]).clip(6, 140)), 0.05, rng),
        "diabetes": ["yes" if value else "no" for value in rng.random(count) < 0.25],
        "triage": _rounded((3 - 0.6 * rows["severity"] + rng.normal(0, 0.7, count)).round().clip(1, 5)),
        "alive_at_30_days": ["0" if dead else "1" for dead in rows["dead"]],
    }


def text_of(name: str) -> str:
    """The file: with commas in the north, with semicolons and decimal commas in the south."""
    columns, separator = hospital(name), "," if name == "north" else ";"
    rows = [list(columns), *zip(*columns.values(), strict=True)]
    return "\n".join(separator.join(row) for row in rows) + "\n"


def _rounded(values: "pd.Series[float]", places: int = 0) -> list[str]:
    return [f"{value:.{places}f}" for value in values]


def _with_gaps(cells: Sequence[str], share: float, rng: np.random.Generator) -> list[str]:
    return ["" if gap else cell for cell, gap in zip(cells, rng.random(len(cells)) < share, strict=True)]


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in ROWS:
        (folder / f"{name}.csv").write_text(text_of(name), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
