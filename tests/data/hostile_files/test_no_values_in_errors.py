"""No error holds a value that came from data, whatever is given to whatever function or command.

The study's own words (keys, names, declared classes), paths and options may be shown; cells, rows, arrays may not.
"""

import ast
import gzip
import inspect
import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import wardround
from tests.bundles.untrained_bundles import write_bundle
from tests.cli.test_commands import wardround as command
from tests.cli.test_commands import write_hospitals
from tests.data.hostile_files.patient_values import DAY, NAME, NUMBER, SIGNS, leaks, planted, raised_by
from tests.representatives import represented
from wardround.bundles import Bundle, Registry, find_bundle, load_bundle, predict_rows
from wardround.core.errors import DataError, StudyError, WardroundError, as_path, shown

SOURCE = Path(wardround.__file__).parent
ERRORS = {kind.__name__ for kind in WardroundError.__subclasses__()} | {"WardroundError"}
PLANTED = dict(planted())


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return load_bundle(write_bundle(tmp_path_factory.mktemp("planted") / "b"))


@pytest.fixture(scope="module")
def usual(bundle: Bundle, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A valid argument for every parameter of a public function that needs one."""
    folder = tmp_path_factory.mktemp("usual")
    study = write_hospitals(folder)
    (folder / "rows.csv").write_text("age,crp,sodium\n1,2,3\n")
    small = {"training.rounds": 1, "evaluation.seeds": {"first": 1, "count": 1}}
    done = wardround.run_study(study, folder / "runs", changes=small, workers=1)
    parsed, families = wardround.load_study(study)
    return {
        "arm": "fedprox",
        "bundle": bundle,
        "data": folder / "rows.csv",
        "families": families,
        "files": [folder / "north.csv", folder / "south.csv"],
        "hospital": folder / "hospital.toml",
        "images": np.zeros((1, 8, 8), np.uint8),
        "name": "Dr. A. Example",
        "out": folder / "out.csv",
        "path": done.folder,
        "paths": [done.folder, done.folder],
        "plan": wardround.load_plan(parsed, families),
        "run": done.folder,
        "shared": folder / "shared",
        "signals": np.zeros((1, 1, 10)),
        "sites": ["north"],
        "source": folder / "rows.csv",
        "study": study,
        "table": pd.DataFrame({"age": [1.0], "crp": [2.0], "sodium": [3.0]}),
        "target": "died",
        "to": "tensorboard",
    }


# what makes a member of a family, hears of progress, or is only asked whether it is true
NOT_DATA = {"progress", "members", "onnx", "again", "quick", "force", "each_seed"}
# lists of names and keys of a study: a text in one is the caller's word, and is shown
WORDS = {"changes", "keep", "sites", "accept", "arms", "only"}
WITH_WORDS = {"by name", "row", "rows", "tuple", "set", "objects", "DataFrame", "text", "arrow"}
CALLS = [
    (name, parameter)
    for name in wardround.__all__
    if inspect.isfunction(getattr(wardround, name))
    for parameter in inspect.signature(getattr(wardround, name)).parameters
    if parameter not in NOT_DATA
]
# these train a study or make a bundle before they fail; another parameter of the same function is tried in every run
LONG = [("run_study", "workers"), ("compare", "workers"), ("make_bundle", "region"), ("make_bundle", "out")]


@pytest.mark.parametrize(("name", "parameter"), represented(CALLS, by=[call for call in CALLS if call not in LONG]))
def test_no_public_function_repeats_what_it_was_given(name: str, parameter: str, usual: dict[str, Any]) -> None:
    function = getattr(wardround, name)
    parameters = inspect.signature(function).parameters
    needed = [n for n, p in parameters.items() if p.default is p.empty and p.kind is not p.VAR_KEYWORD]
    given = {
        needed_name: usual["study" if (name, needed_name) == ("load_plan", "study") else needed_name]
        for needed_name in needed
    }
    if name == "load_plan":
        given["study"] = wardround.load_study(usual["study"])[0]
    if name == "compare":
        given["sites"] = {"north": usual["table"].assign(died=1)}
    if "out" in parameters:
        given.setdefault("out", usual["out"])
    for kind, value in PLANTED.items():
        if parameter in WORDS and kind in WITH_WORDS:
            continue
        error = raised_by(partial(function, **{**given, parameter: value}))
        assert not leaks(error), f"{kind}: {error}"


PATHS: dict[str, Callable[[Any], object]] = {
    "load_study": wardround.load_study,
    "run_study": wardround.run_study,
    "resume_study": wardround.resume_study,
    "build_report": wardround.build_report,
    "compare_runs": lambda path: wardround.compare_runs([path, path]),
    "load_bundle": wardround.load_bundle,
    "load_shared": wardround.load_shared,
    "make_bundle": lambda path: wardround.make_bundle(path, arm="fedprox"),
    "make_bundles": lambda path: wardround.make_bundles(path, sites=["north"]),
    "make_shared": lambda path: wardround.make_shared(path, arm="fedprox"),
    "adapt": lambda path: wardround.adapt(path, path),
    "Registry": Registry,
    "find_bundle": find_bundle,
}


@pytest.mark.parametrize("name", PATHS)
def test_what_cannot_be_a_path_is_told_by_its_type(name: str) -> None:
    for kind in ("DataFrame", "numbers", "tuple", "text", "bytes", "path"):
        with pytest.raises(WardroundError, match="expected a path, found") as caught:
            PATHS[name](PLANTED[kind])
        assert not leaks(caught.value), kind


def test_predict_file_tells_a_table_from_a_path(bundle: Bundle, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"expected a path, found an object of type DataFrame \(2 x 3\)"):
        wardround.predict_file(bundle, PLANTED["DataFrame"], tmp_path / "out.csv")
    with pytest.raises(StudyError, match="expected a path"):
        wardround.predict_file(bundle, "-", PLANTED["DataFrame"])


@pytest.mark.parametrize("place", ["study", "key", "list", "change", "arms", "name", "table"])
def test_a_study_with_rows_in_it_is_refused_and_not_shown(place: str) -> None:
    for kind in PLANTED:
        refuse_rows_in_a_study(kind, place)


def refuse_rows_in_a_study(kind: str, place: str) -> None:
    value, whole = PLANTED[kind], {"name": "a", "data": {"source": "heart"}, "arms": [{"algorithm": "fedavg"}]}
    places: dict[str, dict[str, Any]] = {
        "study": {"study": value},
        "key": {"study": {**whole, "training": {"rounds": value}}},
        "list": {"study": {**whole, "data": {"source": "heart", "hospitals": [value]}}},
        "change": {"study": whole, "changes": {"training.rounds": value}},
        "arms": {"study": {**whole, "arms": value}},
        "name": {"study": {**whole, "name": value}},
        "table": {"study": {**whole, "training": value}},
    }
    with pytest.raises(WardroundError) as caught:
        wardround.load_study(**places[place])
    if (kind, place) in (("row", "table"), ("by name", "table")) or kind in ("row", "by name", "rows"):
        assert not any(sign in str(caught.value) for sign in ("73919", "1931"))  # keys of a table are the study's words
    else:
        assert not leaks(caught.value)


HEADER = "age,sex,ward,crp,admitted,died\n"
GOOD = "".join(
    f"{40 + i},{'mf'[i % 2]},icu,{i}.5,2023-01-{1 + i % 28:02d},{'yes' if i % 2 else 'no'}\n" for i in range(40)
)
CELLS = {
    "number": f"{NAME},m,icu,1.5,2023-01-01,yes\n",
    "number in text": f"1,m,icu,{NAME},2023-01-01,yes\n",
    "date": f"50,m,icu,1.5,{DAY.replace('-', '/')},yes\n",
    "odd date": f"50,m,icu,1.5,{NAME},yes\n",
    "class": f"50,m,icu,1.5,2023-01-01,{NAME}\n",
    "classes": f"50,m,icu,1.5,2023-01-01,{NAME}\n50,m,icu,1.5,2023-01-01,{NAME}2\n",
    "number as class": f"50,m,icu,1.5,2023-01-01,{NUMBER}\n",
    "too many fields": f"50,m,icu,1.5,2023-01-01,yes,{NAME},{NUMBER}\n",
    "open quotation mark": f'50,"{NAME},icu,1.5,2023-01-01,yes\n',
    "zero byte": f"50,{NAME}\0,icu,1.5,2023-01-01,yes\n",
    "half a letter": f"50,{NAME}\udcff,icu,1.5,2023-01-01,yes\n",
}
FILES = {
    **{name: HEADER + GOOD + row for name, row in CELLS.items()},
    "no header": f"{NUMBER},{NAME},icu,1.5,{DAY},yes\n" + GOOD,
    "no header, texts alone": f"{NAME},m,icu,NA,,yes\n" + GOOD,
    "a name twice": f"{NAME},{NAME},{NUMBER},crp,admitted,died\n" + GOOD,
    "only one class": HEADER + f"50,m,icu,1.5,2023-01-01,{NAME}\n" * 20,
    "all values differ": HEADER + "".join(f"50,m,icu,1.5,2023-01-01,{NAME}{i}\n" for i in range(30)),
}


def write_study(folder: Path, content: str, settings: str = "") -> Path:
    (folder / "north.csv").write_bytes(content.encode("utf-8", "surrogateescape"))
    (folder / "south.csv").write_text(HEADER + GOOD)
    study = folder / "study.toml"
    study.write_text(
        'name = "s"\n[data]\nsource = "csv"\nfiles = { north = "north.csv", south = "south.csv" }\ntarget = "died"\n'
        + settings
        + '[training]\nrounds = 1\n[[arms]]\nalgorithm = "fedavg"\n'
    )
    return study


@pytest.mark.parametrize(
    "settings",
    [
        "",
        'classes = ["no", "yes"]\n',
        'positive = "yes"\n',
        'positive = "dead"\n',
        'types = { admitted = "date", age = "numeric" }\n',
        'patient = "sex"\n',
        '[data.labels.north]\nyes = "yes"\nno = "no"\n',
    ],
    ids=["plain", "classes", "positive", "no such class", "types", "patient", "labels"],
)
def test_no_cell_of_a_study_is_in_an_error(settings: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for number, name in enumerate(FILES):
        (tmp_path / str(number)).mkdir()
        raise_no_cell(name, settings, tmp_path / str(number), caplog)


def raise_no_cell(name: str, settings: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    study = write_study(tmp_path, FILES[name], settings)
    with caplog.at_level(logging.DEBUG):
        error = raised_by(lambda: wardround.load_plan(*wardround.load_study(study)))
    assert error is None or isinstance(error, WardroundError)
    assert not leaks(error), str(error)
    assert not [sign for sign in SIGNS if sign in caplog.text]


def test_an_unknown_word_of_a_target_is_told_by_its_place(tmp_path: Path) -> None:
    parsed, families = wardround.load_study(write_study(tmp_path, FILES["class"], 'classes = ["no", "yes"]\n'))
    with pytest.raises(
        DataError, match=r"1 that the study does not declare \(the first at 'north' in line 42\)"
    ) as caught:
        wardround.load_plan(parsed, families)
    assert "The study has 'no', 'yes'" in caught.value.problem


@pytest.mark.parametrize("verb", ["check", "describe", "run"])
def test_no_cell_is_in_what_a_command_says_of_an_error(verb: str, tmp_path: Path) -> None:
    for number, name in enumerate(FILES):
        (tmp_path / str(number)).mkdir()
        say_no_cell(name, verb, tmp_path / str(number))


def say_no_cell(name: str, verb: str, tmp_path: Path) -> None:
    study = write_study(tmp_path, FILES[name])
    words: dict[str, list[str | Path]] = {
        "check": ["check", study],
        "describe": ["data", "describe", tmp_path / "north.csv"],
        "run": ["run", study, "--out", tmp_path / "runs", "--no-report", "--workers", "1"],
    }
    done = command(*words[verb])
    output = done.stderr if done.returncode in (0, 5) else done.stderr + done.stdout
    assert not [sign for sign in SIGNS if sign in output], name
    assert "Traceback" not in done.stderr, name


@pytest.mark.parametrize(
    "row",
    [
        {"age": NAME},
        {"age": DAY},
        {"age": f"{NAME}\ud800"},
        {"age": [NUMBER, NAME]},
        {"age": {NAME: NUMBER}},
        {"age": b"Zaphod"},
        {"age": pd.Timestamp(DAY)},
        {"age": complex(NUMBER)},
        {"age": 10**400},
        {NAME: NUMBER},
    ],
    ids=lambda row: type(next(iter(row.values()))).__name__,
)
def test_no_cell_is_in_an_error_of_a_bundle(row: dict[str, Any], bundle: Bundle, tmp_path: Path) -> None:
    whole = {"age": 1.0, "crp": 2.0, "sodium": 3.0} if "age" in row else {"age": 1.0}
    rows = [{**whole, **row}, {**whole, **row, "crp": f"{NUMBER}{NAME}"}]
    path = tmp_path / "rows.csv"
    text = "\n".join([",".join(rows[0]), *(",".join(map(str, entry.values())) for entry in rows)])
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    packed = tmp_path / "rows.csv.gz"
    packed.write_bytes(gzip.compress(path.read_bytes())[:-9])
    calls: list[Callable[[], object]] = [
        lambda: predict_rows(bundle, rows),
        lambda: wardround.predict_table(bundle, pd.DataFrame(rows, dtype=object)),
        lambda: wardround.predict_file(bundle, path, tmp_path / "out.csv"),
        lambda: wardround.predict_file(bundle, packed, tmp_path / "out.parquet"),
    ]
    for call in calls:
        with pytest.raises(WardroundError) as caught:
            call()
        assert not leaks(caught.value), str(caught.value)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["rows.csv", "rows.csv.gz"]


def test_what_is_no_table_and_no_image_is_refused_by_a_bundle(bundle: Bundle) -> None:
    to_a_file = partial(wardround.predict_file, out="-")
    calls: list[Callable[..., object]] = [wardround.predict_table, wardround.predict_images, predict_rows, to_a_file]
    for kind, value in PLANTED.items():
        for call in calls:
            error = raised_by(partial(call, bundle, value))
            assert isinstance(error, WardroundError), f"{kind}: {error!r}"
            assert not leaks(error), f"{kind}: {error}"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("fedavg", "'fedavg'"),
        (Path("runs/a"), "'runs/a'"),
        (3, "3"),
        (True, "True"),
        (None, "None"),
        (0.5, "0.5"),
        (10**5000, "a whole number of 16610 bits"),
        ("a\nb", "a text of 3 characters"),
        ("a" * 101, "a text of 101 characters"),
        (np.float64(NUMBER), "an object of type float64"),
        ([NUMBER], "an object of type list (1 entries)"),
        ({NAME: NUMBER}, "a table of 1 keys"),
        (np.zeros((3, 1000)), "an object of type ndarray (3 x 1,000)"),
        (object(), "an object of type object"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_how_a_value_is_shown(value: object, expected: str) -> None:
    assert shown(value) == expected


@pytest.mark.parametrize("text", ["a/" + "b" * 256, "a" * 5000, "a\0b", "a\nb", "\ud800"])
def test_texts_that_are_no_paths(text: str) -> None:
    with pytest.raises(StudyError, match="expected a path, found a text of"):
        as_path(text, "somewhere")


def test_what_led_to_an_error_is_in_no_traceback() -> None:
    def fails() -> None:
        try:
            float(NAME)
        except ValueError:
            raise DataError("column 'age'", "is no number", "Correct it.")  # noqa: B904 - what is tested

    with pytest.raises(DataError) as caught:
        fails()
    assert isinstance(caught.value.__context__, ValueError)
    assert not leaks(caught.value)


# Answers of another institution; the coordinator names the kind of error alone, and these lines are Python's for a log.
CAUSES: set[str] = set()


def test_no_error_carries_a_cause_or_the_words_of_another() -> None:
    """pandas, Arrow, numpy and Python quote cells in their messages."""
    nodes = ((path, node) for path in SOURCE.rglob("*.py") for node in ast.walk(ast.parse(path.read_text("utf-8"))))
    for path, node in nodes:
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and isinstance(node.exc.func, ast.Name):
            if node.exc.func.id not in ERRORS:
                continue
            is_none = node.cause is None or (isinstance(node.cause, ast.Constant) and node.cause.value is None)
            assert is_none or path.name in CAUSES, f"{path}, line {node.lineno}: raise ... from None"
        if isinstance(node, ast.ExceptHandler) and node.name and "deployment" not in path.parts:
            for inner in ast.walk(node):
                if isinstance(inner, ast.FormattedValue) and isinstance(inner.value, ast.Name):
                    assert inner.value.id != node.name, f"{path}, line {inner.lineno}: an exception's own words"
