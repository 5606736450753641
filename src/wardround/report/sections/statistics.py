"""The comparisons with the reference, as verdicts follow from them and by other methods."""

from typing import Any

from wardround.report.evidence import STAY, Evidence
from wardround.report.phrases import corrected
from wardround.report.render.table import CI, Table, decimals, limits, make_table, p_text, without_empty
from wardround.report.section import Section


def test_table(evidence: Evidence) -> Table:
    """The comparisons that verdicts stand on, corrected and by themselves."""
    headline, rows = evidence.headline, []
    for test in _tests(evidence):
        alone = test["uncorrected"] or {"interval": None, "p_value": None}
        figures = [test["difference"], *limits(test["interval"]), test["p_value"], *limits(alone["interval"])]
        rows.append([test["arm"], *figures, alone["p_value"], test["p_value_holm"]])
    note = (
        f"{headline.title} against the reference; {evidence.results['interval']['method']}. {corrected(evidence)} By "
        "itself: as if there were no other comparison. Holm's p-values are corrected too, but have no intervals."
    )
    return without_empty(
        make_table(
            "tests",
            f"Comparisons with {evidence.reference}",
            {
                "arm": None,
                **dict.fromkeys((headline.points, *CI), headline.difference),
                "p": p_text,
                **dict.fromkeys((f"{end}, by itself" for end in CI), headline.difference),
                **dict.fromkeys(("p by itself", "p, Holm"), p_text),
            },
            rows,
            f"{note}{headline.point}",
        )
    )


def _tests(evidence: Evidence) -> list[dict[str, Any]]:
    """Of the study as it stands and of its variants."""
    return [test for variant in evidence.results["variants"] for test in evidence.tests(variant)]


def other_test_table(evidence: Evidence) -> Table:
    rows = []
    for test in _tests(evidence):
        bootstrap = limits(test["bootstrap"]["interval"] if test["bootstrap"] else None)
        figures = [test["p_value_paired"], test["p_value_independent"], *test["effect"].values()]
        rows.append([test["arm"], test["difference"], *bootstrap, *figures])
    note = (
        "For comparison with publications; no verdict of this report follows from them, and none is corrected. Both "
        "t-tests take seeds for independent studies, and reject too often. BCa: a bootstrap, d: Cohen's effect sizes."
    )
    if evidence.deployed:
        note += f" The bootstrap draws seeds anew and not patients, because {STAY}."
    return without_empty(
        make_table(
            "tests-as-published",
            "The same by other methods",
            {
                "arm": None,
                **dict.fromkeys((evidence.headline.points, "BCa from", "BCa to"), evidence.headline.difference),
                **dict.fromkeys(("p, paired t", "p, independent t"), p_text),
                **dict.fromkeys(("d (paired)", "d (independent)"), decimals),
            },
            rows,
            note,
        )
    )


PAGE = """
<section id="statistics"><h2>Statistics</h2>
<p>{{ results.interval.method | capitalize }}; every 95 % CI covers {{ results.interval.covers }}.</p>
{{ show("tests") }}{{ show("tests-as-published") }}
</section>"""
SECTION = Section(PAGE, "statistics", "Statistics", tables=(test_table, other_test_table))
