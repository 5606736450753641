"""Names that hospitals give to the same measurement, as far as a short table can know them."""

import re

SEX = "sex"
UNITS = ("mgdl", "mmoll", "gdl", "mmhg", "bpm", "kgm2", "percent", "years", "yrs", "inyears", "celsius")
# A highest heart rate (under exercise) is not a resting one, and a fasting glucose is not one at any time of day:
# they may well point elsewhere.
SAME = {
    "age": ("age", "patientage", "ageatadmission", "alter", "âge", "edad", "età", "leeftijd"),
    SEX: ("sex", "gender", "geschlecht", "sexe", "sexo", "sesso", "geslacht"),
    "systolic blood pressure": (
        "systolicbloodpressure",
        "systolic",
        "systolicbp",
        "sbp",
        "sysbp",
        "trestbps",
        "trtbps",
        "restingbp",
        "restingbloodpressure",
    ),
    "diastolic blood pressure": ("diastolicbloodpressure", "diastolic", "diastolicbp", "dbp", "diabp"),
    "heart rate": ("heartrate", "hr", "pulse", "pulserate", "restingheartrate", "restinghr"),
    "highest heart rate": ("thalach", "thalachh", "maxhr", "hrmax", "maxheartrate", "maximumheartrate"),
    "cholesterol": ("cholesterol", "chol", "totchol", "totalcholesterol", "serumcholesterol"),
    "glucose": ("glucose", "bloodsugar", "bloodglucose", "serumglucose", "randombloodsugar"),
    "fasting glucose": ("fastingglucose", "fastingbloodglucose", "fastingbloodsugar", "fastingbs", "fbs"),
    "creatinine": ("creatinine", "serumcreatinine", "creat"),
    "haemoglobin": ("haemoglobin", "hemoglobin", "hgb", "hb"),
    "body mass index": ("bodymassindex", "bmi"),
    "oxygen saturation": ("oxygensaturation", "spo2", "sao2", "o2sat"),
    "respiratory rate": ("respiratoryrate", "resprate"),
    "temperature": ("temperature", "temp", "bodytemperature"),
    "C-reactive protein": ("creactiveprotein", "crp"),
    "ejection fraction": ("ejectionfraction", "lvef", "ef"),
    "angina on exercise": ("exang", "exng", "exerciseangina", "exerciseinducedangina"),
    "ST depression": ("oldpeak", "stdepression"),
    "white cells": ("whitecells", "whitebloodcells", "wbc", "leukocytes", "leucocytes"),
    "diabetes": ("diabetes", "diabetic"),
    "hypertension": ("hypertension", "htn"),
    "smoker": ("smoker", "currentsmoker", "issmoker"),
}
COMMON = {spelling: name for name, spellings in SAME.items() for spelling in spellings}


def common_name(column: str) -> str:
    """One name for `Age (years)`, `age_years` and `AGE`; an unknown one is its own letters and digits."""
    plain = _plain(re.sub(r"\(.*?\)|\[.*?\]", "", column)) or _plain(column)
    for unit in ("", *UNITS):
        if plain.endswith(unit) and plain.removesuffix(unit) in COMMON:
            return COMMON[plain.removesuffix(unit)]
    return plain


def _plain(text: str) -> str:
    return "".join(filter(str.isalnum, text.casefold()))
