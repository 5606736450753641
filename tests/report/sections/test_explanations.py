"""What the report says of an explanation: which columns matter beyond chance, and about which hospitals disagree."""

from typing import Any

import pytest

from wardround.report.explained.explained_figures import effects_figure, importance_figure, known_part
from wardround.report.explained.explained_tables import coefficient_table, importance_table, rise, tables_of
from wardround.report.sections.explaining.explanations import apart, important, left_out


def importance(**columns: tuple[float, float]) -> dict[str, Any]:
    return {
        name: {"increase": own, "se": error, "interval": [own - 1.96 * error, own + 1.96 * error]}
        for name, (own, error) in columns.items()
    }


def effect(values: list[float] | list[str], rows: list[float]) -> dict[str, Any]:
    ordered = not isinstance(values[0], str)
    return {"ordered": ordered, "values": values, "rows": rows, "effect": [[0.1 * n for n in range(len(values))]]}


def site(patients: int, **columns: tuple[float, float]) -> dict[str, Any]:
    effects = {"age": effect([-1.0, 0.0, 1.0, 2.0], [0.0, 9.0, 0.0]), "ward": effect(["a", "b"], [9.0, 9.0])}
    return {"patients": patients, "rows": patients, "importance": importance(**columns), "effects": effects}


CONTENT: dict[str, Any] = {
    "scale": "log odds",
    "outputs": ["ill"],
    "whole": site(1500, age=(0.2, 0.02), ward=(0.04, 0.018), noise=(0.001, 0.02)),
    "hospitals": {"north": site(800, age=(0.3, 0.03), ward=(0.05, 0.02), noise=(0.0, 0.02)),
                  "south": site(700, age=(0.1, 0.03), ward=(0.03, 0.02), noise=(0.2, 0.02))},
    "differences": {"age": {"p": 0.001, "p_holm": 0.003}, "ward": {"p": 0.5, "p_holm": 1.0},
                    "noise": {"p": 0.2, "p_holm": 0.4}},
    "left_out": [{"site": "east", "rule": "smallest-cell"}],
    "coefficients": {
        "ratio": "odds ratio", "per": {"age": 9.4}, "hospitals": None,
        "whole": [
            {"output": "ill", "term": "age", "seeds": 3, "coefficient": 0.5, "interval": [0.2, 0.8], "ratio": 1.65,
             "ratio_interval": [1.22, 2.23]},
            {"output": "ill", "term": "intercept", "seeds": 3, "coefficient": -1.0, "interval": None, "ratio": None,
             "ratio_interval": None},
        ],
    },
}  # fmt: skip


def test_columns_are_named_only_where_chance_cannot_explain_them_among_so_many() -> None:
    """ward: 0.04 / 0.018 = 2.2 standard errors, which is beyond 1.96 and within Bonferroni's 2.39 for three columns."""
    [sentence] = important(CONTENT, "fedavg")
    assert sentence == (
        "fedavg relies most on age: shuffled, it raises the loss on 1,500 test patients. "
        "2 of 3 columns cannot be told from chance (corrected for their number)."
    )
    nothing = {"whole": site(40, age=(0.01, 0.02), ward=(-0.01, 0.02))}
    [sentence] = important(nothing, "fedavg")
    assert sentence == "No column of fedavg matters by more than chance can explain, on 40 test patients."


def test_hospitals_that_disagree_are_named_with_their_figures() -> None:
    [sentence] = apart(CONTENT)
    assert sentence.startswith("Hospitals disagree about age: shuffling it changes the loss by +0.300 at north")
    assert "+0.100 at south" in sentence
    agreeing = {**CONTENT, "differences": {"age": {"p": 0.02, "p_holm": 0.06}}}
    assert apart(agreeing) == ["For no column do hospitals differ in importance by more than chance can explain."]
    assert apart({**CONTENT, "hospitals": None}) == []  # with secure sums
    assert left_out(CONTENT) == ["Left out by a rule of disclosure: east."]


def test_tables_have_the_figures() -> None:
    table = importance_table(CONTENT)
    assert table is not None
    assert [row[0] for row in table.rows] == ["age", "ward", "noise"]
    assert table.rows[0][4:] == ["1 of 2", 0.003]  # in the south noise comes first
    coefficients = coefficient_table(CONTENT)
    assert coefficients is not None
    assert coefficients.shown()[0] == [
        "age",
        "9.40",
        "0.500",
        "0.200",
        "0.800",
        "1.65",
        "1.22",
        "2.23",
        "1.05",
    ]  # exp(0.5 / 9.4)
    assert coefficients.shown()[1][1] == "–"
    assert [own.name for own in tables_of(CONTENT)] == ["importance", "importance-hospitals", "coefficients", "effects"]
    assert tables_of({"withheld": "private", "coefficients": None}) == []
    assert (rise(0.00123), rise(-0.5), rise(0.0)) == ("+0.00123", "-0.500", "0")


@pytest.mark.rendered
def test_figures_end_where_nothing_is_known() -> None:
    places, line = known_part(CONTENT["whole"]["effects"]["age"], [0.0, 0.1, 0.2, 0.3])
    assert places.tolist() == [0.0, 1.0]  # the only bin with rows
    assert line.tolist() == [0.1, 0.2]
    drawn = importance_figure(CONTENT)
    assert drawn is not None
    assert [label.get_text() for label in drawn.axes[0].get_yticklabels()] == ["age", "ward", "noise"]
    assert effects_figure(CONTENT) is not None
    assert importance_figure({"withheld": "private"}) is None
    assert effects_figure({"withheld": "private"}) is None
