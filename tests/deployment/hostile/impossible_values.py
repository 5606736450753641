"""Figures that no hospital can have, and what would be another hospital's to say: for each kind of answer."""

from collections.abc import Callable, Iterator
from typing import Any

from tests.deployment.hostile.answer_mutations import (
    FORGED_TEXT,
    Expect,
    Many,
    Mutation,
    Raw,
    many_names,
    on_body,
    written,
)

Body = dict[str, Any]
LEVELS = Many('"level @"')
COUNTS = {"1e12": 10**12, "0": 0, "1.5": 1.5, "true": True, "-5": -5, "text": "26", "1e400": Raw("1e400"), "null": None}


def retold(name: str, change: Callable[[Body], Any], expect: Expect = "refused") -> Mutation:
    return Mutation(name, on_body(change), expect)


def put(name: str, path: tuple[Any, ...], value: Any, expect: Expect = "refused") -> Mutation:
    def change(body: Body) -> None:
        place: Any = body
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value

    return retold(name, change, expect)


def of_greeting(body: Body, others: tuple[str, ...]) -> Iterator[Mutation]:
    columns = body["columns"]
    yield put("other things", ("surprise",), {"a": 1}, "safe")
    if columns:
        column = columns[0]
        many = Many(written({**column, "name": "invented @"}).decode())
        yield put("200,000 invented columns", ("columns",), many)
        yield put("200,000 levels", ("columns", -1, "levels"), LEVELS)
        yield put("the same column twice", ("columns",), [*columns, column])
        yield put("a column with control characters", ("columns", 0, "name"), FORGED_TEXT, "safe")
        yield put("a column without a name", ("columns", 0, "name"), "")
        yield put("a column of no kind", ("columns", 0, "kind"), "owned")
        yield put("a column of another kind", ("columns", 0, "kind"), "categorical")
        yield put("limits the wrong way round", ("columns", 0, "limits"), [9, -9])
        yield put("limits without end", ("columns", 0, "limits"), [Raw("-1e400"), Raw("1e400")])
        yield put("one limit", ("columns", 0, "limits"), [1])
        yield put("limits in words", ("columns", 0, "limits"), ["low", "high"])
        yield put("columns with something else in them", ("columns", 0), ["age", "numeric"])
        yield put("images where others have tables", ("columns",), None)
        yield put("images and tables", ("inputs",), [3, 3], "safe")
    if body["task"]:
        yield from of_task(body["task"]["names"], body["task"])
    yield put("versions with control characters", ("versions",), {FORGED_TEXT: FORGED_TEXT}, "safe")
    yield put("200,000 versions", ("versions",), many_names("1"), "safe")
    if "sites" in body:
        yield put("hospitals that nobody invited", ("sites",), [*body["sites"], "elsewhere"], "safe")
        yield put("hospitals of another region", ("sites",), [*body["sites"], *others], "safe")
        yield put("no hospital", ("sites",), [], "safe")
        yield put("a hospital twice", ("sites",), body["sites"] * 2, "safe")
        yield put("hospitals in a number", ("sites",), 2)


def of_task(names: list[Body], task: Body) -> Iterator[Mutation]:
    place = ("task", "names")
    yield put("no class", place, [])
    if len(names) > 1:
        yield put("one class", place, names[:1])
        yield put("classes the other way round", place, names[::-1])
        yield put("a class with another's hash", (*place, 0, "hash"), names[-1]["hash"])
    yield put("200,000 classes", place, Many('{"name":"c@","hash":"@"}'))
    yield put("a name twice", place, names * 2)
    yield put("a class of another name", (*place, 0, "name"), "owned", "safe")
    yield put("a class with control characters", (*place, 0, "name"), FORGED_TEXT, "safe")
    yield put("classes in words", place, ["no", "yes"])
    yield put("no task", ("task",), None)
    yield put("a task in words", ("task",), "binary")
    yield put("findings where others have classes", ("task", "kind"), "multilabel")
    yield put("another task", ("task", "kind"), "count" if task["kind"] == "regression" else "regression")
    yield put("a task that nobody knows", ("task", "kind"), "owned")
    yield put("a task with control characters", ("task", "kind"), FORGED_TEXT)
    yield put("an option that the task does not have", ("task", "options"), {"owned": 1})
    yield put("an option = a task", ("task", "options"), {"names": [task]})
    yield put("an option = the kind", ("task", "options"), {"kind": "regression"})
    yield put("200,000 options", ("task", "options"), many_names(1))
    yield put("options in a list", ("task", "options"), [1])
    yield put("more in a task", ("task", "owned"), 1)


def of_facts(body: Body, others: tuple[str, ...]) -> Iterator[Mutation]:
    for name, value in COUNTS.items():
        yield put(f"training rows = {name}", ("sets", 0, "train"), value)
    train = body["sets"][0]["train"]
    yield put("more training rows than it describes", ("sets", 0, "train"), train + 1000)
    yield put("fewer training rows than it describes", ("sets", 0, "train"), train - 1)
    yield retold("far more rows than all others, in agreement with itself", _claim_many, "safe")
    yield from of_described(body["described"], ("described",))
    yield from of_target(body["sets"][0]["target"], ("sets", 0, "target"))
    yield put("one set more", ("sets",), body["sets"] * 2)
    yield put("no set", ("sets",), [])
    facts = body["sets"][0]["facts"]
    if facts is not None:
        place = ("sets", 0, "facts")
        yield put("fewer columns in `present`", (*place, "present"), facts["present"][:-1])
        yield put("more columns in `gaps`", (*place, "gaps"), [*facts["gaps"], True])
        yield put("fewer columns in `levels`", (*place, "levels"), facts["levels"][:-1])
        yield put("200,000 levels of a column", (*place, "levels", -1), LEVELS)
        yield put("levels of a number", (*place, "levels", 0), ["a", "b"])
        yield put("a level twice", (*place, "levels", -1), ["a", "a"])
        yield put("a level with control characters", (*place, "levels", -1), ["a", "b", FORGED_TEXT], "safe")
        yield put("text for truth", (*place, "present", 0), "no")
    yield put("directions of other columns", ("directions",), {"owned": [0.1, 0.1]}, "safe")
    yield put("200,000 directions", ("directions",), many_names([0.1, 0.1]))
    names = list(body["directions"]) or ["age"]
    yield put("directions out of range", ("directions",), {name: [7.0, -1.0] for name in names})
    yield put("directions of one number", ("directions",), {name: [0.1] for name in names})
    if not body["directions"]:
        yield put("directions where there are no two classes", ("directions",), {"age": [0.1, 0.1]}, "safe")


def of_target(sums: list[float], place: tuple[Any, ...]) -> Iterator[Mutation]:
    """Sums over training rows of what is predicted."""
    if not sums:
        yield put("sums of a target that needs none", place, [26.0, 1.0, 1.0])
        yield put("no list of sums", place, None)
        return
    yield put("no sums of the target", place, [])
    yield put("one sum of the target less", place, sums[:-1])
    yield put("one sum of the target more", place, [*sums, 1.0])
    yield put("200,000 sums of the target", place, Many("1"))
    yield put("sums of the target of other rows", (*place, 0), sums[0] + 1)
    yield put("squares of the target below zero", (*place, 2), -1.0)
    yield put("squares of the target too small for its sum", (*place, 2), 0.0)
    yield put("a sum of the target = 1e300", (*place, 1), 1e300)
    yield put("a sum of the target without end", (*place, 1), Raw("1e400"))
    yield put("a sum of the target in words", (*place, 1), "many")
    yield put("a sum of the target = null", (*place, 1), None)


def of_described(description: Body, place: tuple[Any, ...]) -> Iterator[Mutation]:
    """How a hospital counts its rows."""
    for name, value in COUNTS.items():
        yield put(f"described training rows = {name}", (*place, "train"), value, _null(name, "0"))
        yield put(f"described test rows = {name}", (*place, "test"), value, _null(name, "0"))
        for label in list(description["classes"])[:1]:
            yield put(f"rows of a class = {name}", (*place, "classes", label), value, _null(name))
    yield put("a class that nobody has", (*place, "classes", "elsewhere"), 5)
    yield put("200,000 classes described", (*place, "classes"), many_names(1))
    yield put("more described", (*place, "site"), "elsewhere")
    yield put("an age in words", (*place, "age"), {"mean": "old", "sd": "somewhat"})
    yield put("an age without end", (*place, "age"), {"mean": Raw("1e400"), "sd": 1.0})
    yield put("a deviation below zero", (*place, "age"), {"mean": 50.0, "sd": -1.0})


def _null(name: str, *more: str) -> Expect:
    """Counts that are few are withheld, so that none need be told."""
    return "safe" if name in ("null", *more) else "refused"


def _claim_many(body: Body) -> None:
    """A million rows that add up."""
    body["sets"][0]["train"] += 10**6
    body["described"]["train"] += 10**6
    for label in list(body["described"]["classes"])[:1]:
        body["described"]["classes"][label] += 10**6


def of_fill_values(body: Body, others: tuple[str, ...]) -> Iterator[Mutation]:
    counts, fill = body["fill_values"][0]["counts"], body["fill_values"][0]["fill"]
    for name, value in COUNTS.items():
        if name != "0":
            yield put(f"rows of a fill value = {name}", ("fill_values", 0, "counts", -1), value)
    yield put("more rows than it has", ("fill_values", 0, "counts", -1), 5000)
    unasked = [9e9 if count == 0 else value for value, count in zip(fill, counts, strict=True)]
    yield put("fill of what nobody asked for", ("fill_values", 0, "fill"), unasked, "safe")
    yield put("fill = 1e400", ("fill_values", 0, "fill", -1), Raw("1e400"))
    yield put("fill = null", ("fill_values", 0, "fill", -1), None)
    yield put("one fill more", ("fill_values", 0, "fill"), [*fill, 1.0])
    yield put("one count less", ("fill_values", 0, "counts"), counts[:-1])
    yield put("levels of a column that nobody has", ("fill_values", 0, "levels"), {"owned": {"a": 5}}, "safe")
    yield put("200,000 levels", ("fill_values", 0, "levels"), {"ward": many_names(5)})
    yield put("levels that are counted in words", ("fill_values", 0, "levels"), {"ward": {"a": "many"}})
    yield put("no fill values", ("fill_values",), [])
    yield put("fill values twice", ("fill_values",), body["fill_values"] * 2)


def of_moments(body: Body, others: tuple[str, ...]) -> Iterator[Mutation]:
    first = body["moments"][0]
    for name, value in COUNTS.items():
        if name != "0":
            yield put(f"rows of a sum = {name}", ("moments", 0, "count", 0), value)
    yield put("more rows than train", ("moments", 0, "count", 0), first["count"][0] + 1000)
    yield put("a sum of squares below zero", ("moments", 0, "squares", 0), -1.0)
    yield put("squares too small for the sum", ("moments", 0, "squares", 0), 0.0)
    yield put("a sum of 1e300", ("moments", 0, "total", 0), 1e300)
    yield put("a sum without end", ("moments", 0, "total", 0), Raw("-1e400"))
    yield put("one sum more", ("moments", 0, "total"), [*first["total"], 1.0])
    yield put("one sum less", ("moments", 0, "squares"), first["squares"][:-1])
    yield put("200,000 sums", ("moments", 0), {name: Many("1") for name in first})
    yield put("no sums", ("moments",), [None])
    yield put("no set of sums", ("moments",), [])


def of_update(body: Body, others: tuple[str, ...]) -> Iterator[Mutation]:
    trials = body["trials"]
    if trials:
        number = next(iter(trials))
        for name, value in COUNTS.items():
            if "epochs" in trials[number]:
                yield put(f"epochs = {name}", ("trials", number, "epochs"), value)
            if "weight" in trials[number] and name not in ("0", "1.5"):
                yield put(f"weight = {name}", ("trials", number, "weight"), value)
        yield put("a trial more", ("trials", "7"), trials[number])
        yield put("a trial below zero", ("trials", "-1"), trials[number])
        yield retold("a trial with a space", lambda body: renamed(body["trials"], number, f" {number}"))
        yield put("more in a trial", ("trials", number, "site"), others[0] if others else "elsewhere")
        yield put("no trial", ("trials",), {})
        yield put("200,000 trials", ("trials",), many_names(trials[number]))
        if trials[number].get("length") is not None:
            yield put("a length below zero", ("trials", number, "length"), -1.0)
            yield put("a loss without end", ("trials", number, "loss"), Raw("1e400"))
    yield from of_figures(body)
    yield from of_rounds(body, others)


def renamed(table: dict[str, Any], old: str, new: str) -> None:
    table[new] = table.pop(old)


def of_figures(body: Body) -> Iterator[Mutation]:
    figures = body["figures"]
    yield put("figures = a number for a trial", ("figures",), {"0": 7})
    yield put("figures = nothing for a trial", ("figures",), {"0": None})
    yield put("figures = nothing for a side", ("figures",), {"0": {"test": None}})
    yield put("figures = an empty side", ("figures",), {"0": {"test": {}}})
    yield put("figures of a trial that nobody asked for", ("figures", "7"), {"test": _figure()})
    yield put("figures of 200,000 trials", ("figures",), many_names({"test": _figure()}))
    if not figures:
        yield put("figures that nobody asked for", ("figures",), {"0": {"test": _figure()}})
        return
    number = next(iter(figures))
    side = next(iter(figures[number]))
    figure = figures[number][side]
    for name, value in COUNTS.items():
        yield put(f"rows of a figure = {name}", ("figures", number, side, "rows"), value)
    yield put("rows of a figure: one more", ("figures", number, side, "rows"), figure["rows"] + 1)
    yield put("figures of training rows", ("figures", number, "train"), figure)
    place = ("figures", number, side, "figures")
    curve = next(name for name in figure["figures"] if name != "loss")
    yield put(f"{curve} = -0.1", (*place, curve), -0.1)
    yield put(f"{curve} = text", (*place, curve), "0.9")
    if curve == "accuracy":
        yield put("accuracy = 7", (*place, curve), 7)
        yield put("accuracy of half a row", (*place, curve), 0.5 / figure["rows"])
    yield put("loss = -3", (*place, "loss"), -3.0)
    yield put("more in a figure", ("figures", number, side, "site"), "elsewhere")
    yield put("another metric in a figure", (*place, "owned"), 0.5)
    yield put("200,000 metrics in a figure", place, many_names(0.5))
    yield put(f"no {curve}", place, {"loss": figure["figures"]["loss"]})


def _figure() -> Body:
    return {"rows": 12, "figures": {"loss": 0.1, "accuracy": 0.5}}


def of_rounds(body: Body, others: tuple[str, ...]) -> Iterator[Mutation]:
    """What a region tells of its rounds."""
    if not body.get("rounds"):
        return
    first = body["rounds"][0]
    yield put("a hospital of another region in a round", ("rounds", 0, "sites"), [*first["sites"], "south"])
    yield put("no round", ("rounds",), [])
    yield put("a round twice", ("rounds",), [*body["rounds"], first])
    yield put("a round of another trial", ("rounds", 0, "trial"), 7)
    yield put("a round that is not due", ("rounds", 0, "round"), 9)
    yield put("a round = text", ("rounds", 0, "round"), "1")
    yield put("bytes below zero", ("rounds", 0, "bytes_up"), -1)
    yield put("charges that nobody paid", ("rounds", 0, "charges"), {first["sites"][0]: [9, 9, 9]})
    yield put("weight of a round = 1e12", ("rounds", 0, "weight"), 10**12)
    yield put("weight of a round below zero", ("rounds", 0, "weight"), -1.0)
    yield put("a failure with control characters", ("rounds", 0, "failed"), FORGED_TEXT, "safe")
    yield put("200,000 rounds", ("rounds",), Many("{}"))


def of_summary(body: Body, others: tuple[str, ...]) -> Iterator[Mutation]:
    summaries = body["summaries"]
    number = next(iter(summaries))
    if "test" in summaries[number]:
        yield from of_side(("summaries", number, "test"), summaries[number]["test"], others)
        yield retold(
            "the test side under another name", lambda body: renamed(body["summaries"][number], "test", "validation")
        )
        yield put("a side that nobody asked for", ("summaries", number, "train"), summaries[number]["test"])
        asked: Expect = "safe" if "regional" in summaries[number] else "refused"
        yield put("a region's side", ("summaries", number, "regional"), summaries[number]["test"], asked)
    yield put("a trial more", ("summaries", "7"), summaries[number])
    yield put("a trial below zero", ("summaries", "-1"), summaries[number])
    yield retold("a trial less", lambda body: body["summaries"].pop(number))
    yield put("no summary", ("summaries",), {})
    yield put("a trial without sides", ("summaries", number), {})
    yield put("200,000 summaries", ("summaries",), many_names({}))
    if len(summaries) > 1:
        yield retold("trials exchanged", lambda body: _exchange(body["summaries"]), "safe")
    yield from of_figures(body)


def _exchange(table: dict[str, Any]) -> None:
    first, second = list(table)[:2]
    table[first], table[second] = table[second], table[first]


def of_side(place: tuple[Any, ...], summary: Body, others: tuple[str, ...]) -> Iterator[Mutation]:
    forged = {"site": others[0] if others else "elsewhere", "arm": "elsewhere", "seed": 99, "subset": "validation"}
    for name, value in forged.items():
        yield put(f"forged {name}", (*place, name), value)
    yield put("forged site that does not exist", (*place, "site"), "elsewhere")
    yield put("forged site, arm, seed and side", place, {**summary, **forged})
    yield put("a key that nobody knows", (*place, "surprise"), 1)
    for name, value in COUNTS.items():
        yield put(f"summary rows = {name}", (*place, "rows"), value)
    yield put("summary rows: one more than agreed", (*place, "rows"), summary["rows"] + 1)
    yield put("summary rows: one less than agreed", (*place, "rows"), summary["rows"] - 1)
    for name in summary:
        rest = {key: value for key, value in summary.items() if key != name}
        yield put(f"a summary without {name}", place, rest, "safe" if name == "small_classes" else "refused")
    yield put("suppressed, and told", (*place, "suppressed"), True)
    yield put("diverged in words", (*place, "diverged"), "no")
    yield from of_groups(place, summary)
    yield from of_number_sums(place, summary) if "terms" in summary else of_class_sums(place, summary)


def of_class_sums(place: tuple[Any, ...], summary: Body) -> Iterator[Mutation]:
    yield put("sums of numbers", (*place, "terms"), [float(summary["rows"]), 1.0, 1.0])
    yield put("cells of residuals", (*place, "cells"), [])
    yield put("a small class that is none", (*place, "small_classes"), [99])
    metrics, sums = (*place, "metrics"), (*place, "sums")
    yield put("accuracy of a summary = 7", (*metrics, "accuracy"), 7)
    yield put("accuracy that its counts do not give", (*metrics, "accuracy"), 0.987)
    yield put("AUC = 1.5", (*metrics, "auc"), 1.5)
    yield put("AUC = -0.5", (*metrics, "auc"), -0.5)
    yield put("Brier score = 9", (*metrics, "brier"), 9.0)
    yield put("loss of a summary = -1", (*metrics, "loss"), -1.0)
    yield put("loss of a summary without end", (*metrics, "loss"), Raw("1e400"))
    yield put("a metric that nobody knows", (*metrics, "owned"), 1.0)
    yield put("metrics in a list", metrics, [1, 2])
    for name, value in {**COUNTS, "more than rows": summary["rows"] + 1}.items():
        if name != "0":
            yield put(f"right = {name}", (*sums, "right"), value)
    yield put("sum of Brier scores below zero", (*sums, "brier"), -4.0)
    yield put("sum of Brier scores above rows", (*sums, "brier"), 3.0 * summary["rows"])
    yield put("sum of losses below zero", (*sums, "loss"), -4.0)
    if summary["sums"]["confusion"]:
        yield from _of_counts(sums, summary)
    if summary["histogram"]:
        yield from _of_histogram((*place, "histogram"), summary)


def of_number_sums(place: tuple[Any, ...], summary: Body) -> Iterator[Mutation]:
    terms, cells = summary["terms"], summary["cells"]
    at, first = (*place, "terms"), (*place, "cells", 0)
    yield put("no terms", at, [])
    yield put("one term more", at, [*terms, 1.0])
    yield put("200,000 terms", at, Many("1"))
    yield put("terms in words", at, ["many"] * len(terms))
    yield put("a term = null", (*at, 1), None)
    yield put("a term without end", (*at, 1), Raw("1e400"))
    yield put("terms of other rows", (*at, 0), terms[0] + 1)
    yield put("absolute errors below zero", (*at, 1), -1.0)
    yield put("absolute errors without squares", (*at, 2), 0.0)
    yield put("squares of errors below zero", (*at, 2), -1.0)
    yield put("squares of the outcome below zero", (*at, 4), -1.0)
    yield put("squares of the outcome too small for its sum", (*at, 4), 0.0)
    yield put("squares of predictions too small for their sum", (*at, 6), 0.0)
    yield put("products that no numbers have", (*at, 7), 10 * (terms[4] + terms[6]))
    yield put("metrics of classes", (*place, "metrics"), {"accuracy": 0.5})
    yield put("sums of classes", (*place, "sums"), None)
    yield put("no cells", (*place, "cells"), [])
    yield put("200,000 cells", (*place, "cells"), Many(written(cells[0]).decode()))
    yield put("a cell twice", (*place, "cells"), [*cells, cells[0]])
    yield put("a cell of one row more", (*first, "rows"), cells[0]["rows"] + 1)
    yield put("a cell of no row", (*first, "rows"), 0)
    yield put("squares of a cell below zero", (*first, "squares"), -1.0)
    yield put("another sum of outcomes in a cell", (*first, "label_sum"), 3 * cells[0]["label_sum"] + 1e12)
    yield put("a cell in words", first, "low")
    if len(cells) > 1:
        yield put("cells the other way round", (*place, "cells"), cells[::-1])


def of_groups(place: tuple[Any, ...], summary: Body) -> Iterator[Mutation]:
    yield put("200,000 groups", (*place, "groups"), {"age": many_names({})})
    yield put("groups in a list", (*place, "groups"), [1])
    yield put("a kind of group that nobody knows", (*place, "groups"), {"owned": {}}, "safe")
    kinds = {kind: groups for kind, groups in summary["groups"].items() if groups}
    for kind, groups in list(kinds.items())[:1]:
        group = next(iter(groups))
        yield put("an empty group", (*place, "groups", kind, group), {})
        yield put(
            "a group with more rows than there are", (*place, "groups", kind, group, "rows"), summary["rows"] + 99
        )
        yield put("a group with rows below zero", (*place, "groups", kind, group, "rows"), -5)


def _of_counts(sums: tuple[Any, ...], summary: Body) -> Iterator[Mutation]:
    cell = summary["sums"]["confusion"][0]
    for name, value in COUNTS.items():
        if name != "0":
            yield put(f"true positives = {name}", (*sums, "confusion", 0, "tp"), value)
    yield put("a confusion of one row more", (*sums, "confusion", 0), {**cell, "tn": cell["tn"] + 1})
    yield put(
        "a confusion that goes below zero",
        (*sums, "confusion", 0),
        {**cell, "tn": cell["tn"] + 99, "tp": cell["tp"] - 99},
    )
    yield put("a confusion of more classes", (*sums, "confusion"), [cell] * 3)
    yield put("no confusion", (*sums, "confusion"), [])
    yield put("a confusion with another name", (*sums, "confusion", 0, "xx"), 1)
    yield put("a confusion without true negatives", (*sums, "confusion", 0), {"tp": 1, "fp": 1, "fn": 1})


def _of_histogram(place: tuple[Any, ...], summary: Body) -> Iterator[Mutation]:
    bins = summary["histogram"][0]
    for name, value in COUNTS.items():
        yield put(f"rows of a bin = {name}", (*place, 0, 0, "rows"), value)
    yield put("a histogram of one row more", (*place, 0, 0, "rows"), bins[0]["rows"] + 1)
    yield put("a bin the wrong way round", (*place, 0, 0, "low"), 0.99)
    yield put("a bin out of range", (*place, 0, 0, "high"), 7.0)
    yield put("scores that are not in the bin", (*place, 0, 0, "score_sum"), 99.0)
    yield put("a bin twice", (*place, 0), [*bins, bins[0]])
    yield put("200,000 bins", (*place, 0), Many(written({**bins[0], "rows": 0, "score_sum": 0.0}).decode()))
    yield put("a histogram of one class", place, summary["histogram"][:1])
    yield put("a bin of words", (*place, 0, 0), "low")


HOSPITAL = {
    "ready": of_greeting,
    "facts": of_facts,
    "fill_values": of_fill_values,
    "moments": of_moments,
    "update": of_update,
    "summary": of_summary,
}
