"""A study file with a comment for each key, from what was assumed."""

from collections.abc import Mapping
from typing import Any

import tomli_w

# Those of the shipped study of hospitals with columns of their own; all else is as `wardround.compare` has it.
OWN_COLUMNS_TRAINING = {"rounds": 35, "local_epochs": 2, "batch_size": 32, "lr": 0.02}
TRAINING_COMMENTS = {
    "rounds": "how often the hospitals' models are averaged",
    "local_epochs": "passes over its own rows that a hospital makes in each round",
    "batch_size": "rows of one step of training",
    "lr": "the learning rate: lower it where the report says that training diverged",
    "lr_decay": "smaller steps in later rounds",
}
EVALUATION_COMMENTS = {
    "test_share": "of the patients of each hospital: never trained on",
    "validation_share": "for thresholds and calibration",
    "reference": "what the other arms are compared with",
}
ARM_COMMENTS = {
    "local": "each hospital alone",
    "fedavg": "the average of the hospitals' models, round by round",
    "fedprox": "the same, and each hospital stays closer to the average",
}
Line = tuple[str, Any, str]  # key, value, comment


def study_text(
    name: str,
    compared: Mapping[str, Any],
    head: list[Line],
    files: Mapping[str, str],
    patients: Mapping[str, str],
    ignored: Mapping[str, str],
    own_columns: bool,
    classes: bool,
) -> str:
    """`compared` is the study of `wardround.compare`. `head` are lines of [data]; `patients` columns by hospital where
    they differ; `ignored` columns and why."""
    training = OWN_COLUMNS_TRAINING if own_columns else compared["training"]
    evaluation = compared["evaluation"] | {"seeds": {"first": 42, "count": 20}}
    comments = EVALUATION_COMMENTS | {"seeds": "each draws other test patients, so that chance is seen"}
    parts = [
        "# Written by `wardround init`; every line may be changed. Then: wardround check, wardround run.\n"
        "# All keys: docs/reference/study-file.md",
        _lines([("name", name, "names the run folder"), ("question", compared["question"], "what the report answers")]),
        _table("data", [("source", "csv", "one file for each hospital"), *head]),
        _table(
            "data.files",
            [(site, path, "" if number else "paths begin at this file") for number, (site, path) in _numbered(files)],
        ),
    ]
    if patients:
        parts.append(_table("data.patients", [(site, column, "") for site, column in patients.items()]))
    if ignored:
        parts.append(_table("data.types", [(column, "ignore", reason) for column, reason in ignored.items()]))
    parts += [
        _model(own_columns, classes, compared["model"]["l2"]),
        _table("training", [(key, value, TRAINING_COMMENTS[key]) for key, value in training.items()]),
        _table("evaluation", [(key, value, comments[key]) for key, value in evaluation.items()]),
        "# Each arm is a way of training that the report compares.",
        *map(_arm, compared["arms"]),
    ]
    if not own_columns:
        parts.append(
            "# A yardstick where all rows may be at one place, as in this simulation; hospitals apart cannot run it.\n"
            "# It is one more comparison, for which every interval is corrected.\n"
            '# [[arms]]\n# name = "pooled"\n# algorithm = "pooled"'
        )
    return "\n\n".join(parts) + "\n"


def plain_text(content: Mapping[str, Any]) -> str:
    """A study without comments: its own keys, its tables, its arms."""
    own = [(key, value, "") for key, value in content.items() if not isinstance(value, Mapping | list)]
    tables = [(name, table) for name, table in content.items() if isinstance(table, Mapping) and table]
    parts = [_lines(own), *(_table(name, [(key, value, "") for key, value in table.items()]) for name, table in tables)]
    parts += ["[[arms]]\n" + _lines([(key, value, "") for key, value in arm.items()]) for arm in content["arms"]]
    return "\n\n".join(parts) + "\n"


def _model(own_columns: bool, classes: bool, l2: float) -> str:
    if own_columns:
        return _table(
            "model",
            [
                ("kind", "adapter", "a private layer from each hospital's columns into one shared model"),
                ("latent", 16, "numbers that it makes of a patient"),
                ("hidden", [32], "widths of the shared layers"),
            ],
        )
    kind = "logistic" if classes else "linear"
    return _table("model", [("kind", kind, f"{kind} regression"), ("l2", l2, "keeps coefficients small")])


def _arm(arm: Mapping[str, Any]) -> str:
    comments = {"name": ARM_COMMENTS[arm["name"]], "mu": "how close"}
    return "[[arms]]\n" + _lines([(key, value, comments.get(key, "")) for key, value in arm.items()])


def _table(name: str, lines: list[Line]) -> str:
    return f"[{name}]\n{_lines(lines)}"


def _lines(lines: list[Line]) -> str:
    written = [(f"{_key(key)} = {_value(value)}", comment) for key, value, comment in lines]
    width = min(48, max(len(text) for text, _ in written))
    return "\n".join(f"{text:<{width}}  # {_one_line(comment)}" if comment else text for text, comment in written)


def _one_line(comment: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in comment)


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(key)} = {_value(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_value, value)) + "]"
    return tomli_w.dumps({"v": value}).removeprefix("v = ").rstrip("\n")


def _key(key: str) -> str:
    """Quoted where TOML wants it."""
    return tomli_w.dumps({key: 0}).removesuffix(" = 0\n")


def _numbered(files: Mapping[str, str]) -> enumerate[tuple[str, str]]:
    return enumerate(files.items())
