"""The tables of a report, each a function of the evidence."""

from typing import Any

from wardround.report.arms import partition_title
from wardround.report.attacked import audit_table, inversion_table, membership_table
from wardround.report.claims import claim_count_table, claim_table
from wardround.report.evidence import STAY, Evidence, rows_of
from wardround.report.headline import HEADLINES
from wardround.report.parties import absent_table, exchange_table
from wardround.report.table import (
    FEWEST,
    Format,
    Table,
    decimals,
    limits,
    make_table,
    one,
    p_text,
    percent,
    share_limits,
    without_empty,
)
from wardround.report.tables_findings import (
    all_confusion_table,
    all_findings_at_sites_table,
    all_findings_table,
    confusion_table,
    finding_table,
    findings_at_sites_table,
    prevalence_table,
)
from wardround.report.tables_grid import grid_table, heterogeneity_table, sides_table
from wardround.report.tables_privacy import length_table, protection_table, spent_table, total_table
from wardround.report.tables_sites import (
    across_table,
    benefit_table,
    best_single_table,
    corrected,
    external_table,
    hospital_table,
    mean_sd,
    number_table,
    reference_table,
    schema_table,
    spread_table,
)
from wardround.report.tables_sure import (
    referral_table,
    strange_table,
    sure_findings_table,
    sure_sites_table,
    sureness_table,
)
from wardround.report.topology import link_table, region_table, with_regions
from wardround.report.ways import ways_table
from wardround.report.words import groups_title
from wardround.report.words_on_data import ranking_words

METRICS = {
    "accuracy": "accuracy",
    "auc": "AUC",
    "f1": "F1",
    "sensitivity": "sensitivity",
    "specificity": "specificity",
    "ppv": "PPV",
    "npv": "NPV",
    "brier": "Brier",
}
OF_FINDINGS = {"pr_auc": "PR-AUC", "f1": "F1", "sensitivity": "sensitivity", "specificity": "specificity"}
OF_FINDINGS |= {"ppv": "PPV", "npv": "NPV", "brier": "Brier", "accuracy": "accuracy"}


def all_tables(evidence: Evidence) -> dict[str, Table]:
    """Those that the run has something for."""
    makers = (
        site_table,
        schema_table,
        prevalence_table,
        heterogeneity_table,
        leakage_table,
        arm_table,
        variant_table,
        hospital_table,
        spread_table,
        across_table,
        benefit_table,
        reference_table,
        best_single_table,
        external_table,
        number_table,
        calibration_table,
        subgroup_table,
        sweep_table,
        grid_table,
        sides_table,
        selection_table,
        test_table,
        other_test_table,
        finding_table,
        confusion_table,
        findings_at_sites_table,
        all_findings_table,
        all_confusion_table,
        all_findings_at_sites_table,
        claim_count_table,
        claim_table,
        ways_table,
        cost_table,
        region_table,
        link_table,
        exchange_table,
        absent_table,
        sureness_table,
        referral_table,
        sure_sites_table,
        sure_findings_table,
        strange_table,
        protection_table,
        spent_table,
        total_table,
        length_table,
        audit_table,
        inversion_table,
        membership_table,
    )
    made = [maker(evidence) for maker in makers]
    return {table.name: table for table in made if table is not None and table.rows}


def site_table(evidence: Evidence) -> Table:
    rows = []
    # the last of a row's findings is that it has none
    positive = evidence.classes[-1] if len(evidence.classes) == 2 or evidence.findings else None
    for described in evidence.results["sites"]:
        for site, counts in described["sites"].items():
            total = rows_of(counts)
            told = [counts["classes"][positive]] if evidence.findings else counts["classes"].values()
            small = any(count is None or 0 < count < FEWEST for count in told)
            share = counts["classes"][positive] / total if positive and not small else None
            age = (counts.get("age") or {}) if total >= 2 * FEWEST else {}
            sizes = [total, counts["train"], counts["validation"], counts["test"]]
            title = partition_title(evidence, described["partition"])
            rows.append([f"{site} ({title})" if title else site, *sizes, share, age.get("mean"), age.get("sd")])
    columns: dict[str, Format | None] = {
        "site": None,
        "rows": str,
        "train": str,
        "validation": str,
        "test": str,
        f"{positive or 'positive'}, %": percent,
        "mean age": one,
        "SD of age": one,
    }
    h = evidence.results["sites"][0]["heterogeneity"]
    words = [f"{label} {h[key]:.3f}" for key, label in HETEROGENEITY.items() if h[key] is not None]
    note = "Between sites: " + ", ".join(words) + "."
    if evidence.deployed:
        note += " How far apart their features are (MMD) cannot be known without rows, which stay at their hospital."
    return _full(evidence, make_table("sites", "The sites, with the first seed", columns, rows, note))


def _full(evidence: Evidence, table: Table) -> Table:
    """Studies of images often have one seed, and no ages: without the columns that then are empty."""
    return without_empty(table) if evidence.of_images else table


HETEROGENEITY = {
    "js": "Jensen-Shannon divergence of the labels",
    "kl": "Kullback-Leibler divergence of the labels",
    "mmd": "MMD of the features",
    "gini": "Gini coefficient of the sizes",
}


def leakage_table(evidence: Evidence) -> Table | None:
    rows = [
        [variant or "as it stands", site, found["test_rows"], found["rows"], found["share"]]
        for variant, sites in evidence.results["leakage"].items()
        for site, found in sites.items()
    ]
    if not any(row[3] for row in rows):
        return None
    columns = {"study": None, "site": None, "test rows": str, "also trained on": one, "share, %": percent}
    note = "Test rows whose patient is among some site's training rows, on average over seeds."
    return make_table("leakage", "Patients on both sides", columns, rows, note)


def arm_table(evidence: Evidence) -> Table:
    headline = evidence.headline
    others = OF_FINDINGS if evidence.findings else {k: v for k, v in METRICS.items() if k != headline.metric}
    rows = []
    for name, arm in evidence.arms.items():
        found = evidence.figure(name)
        figures = [arm["metrics"][metric]["mean"] for metric in others]
        if evidence.ranked_within:
            figures.insert(0, arm["metrics"][headline.metric]["mean"])
        kilobytes = arm["cost"]["bytes"] / 1000
        rows.append([name, found["mean"], found["sd"], *share_limits(found["interval"]), *figures, kilobytes])
    shown = headline.shown
    columns: dict[str, Format | None] = {"arm": None, headline.above(evidence.primary_word): shown}
    columns |= {"SD": shown, "from": shown, "to": shown}
    columns |= {headline.above(f"{headline.word} over all rows"): shown} if evidence.ranked_within else {}
    columns |= dict.fromkeys(others.values(), decimals) | {"KB": one}
    seeds = f"Means over {evidence.seeds} seeds" if evidence.seeds != 1 else "One seed,"
    note = f"{seeds} on all sites' test rows; the 95 % CI is that of the {evidence.primary_word}, by itself."
    if evidence.findings:
        note += " Every figure is the mean over findings."
    if evidence.ranked_within:
        note += f" {ranking_words(evidence)}"
    if evidence.deployed:
        note += (
            " From sites' counts and sums, over the sites that may tell them. AUC is from histograms of their scores "
            f"and may be off by up to {evidence.auc_uncertain_by:.3f}."
        )
    return _full(evidence, make_table("arms", "All arms", columns, rows, note))


def variant_table(evidence: Evidence) -> Table | None:
    variants = list(evidence.variants)
    if not variants:
        return None
    arms = evidence.results["arms"]

    def of(name: str) -> list[Any]:
        found = evidence.figure(name) if name in arms else {"mean": None, "sd": None}
        return [found["mean"], found["sd"]]

    rows = [[name, *of(name), *(x for v in variants for x in of(f"{name}@{v}"))] for name in evidence.arms]
    headline, shown = evidence.headline, evidence.headline.shown
    columns: dict[str, Format | None] = {"arm": None, headline.above("as it stands"): shown, "SD": shown}
    for variant in variants:
        columns |= {headline.above(variant): shown, f"SD, {variant}": shown}
    note = " ".join(f"{name}: {variant['text']}." for name, variant in evidence.variants.items())
    return make_table("variants", f"{headline.title} in the variants of the study", columns, rows, note)


def calibration_table(evidence: Evidence) -> Table:
    rows = []
    for name, arm in evidence.arms.items():
        if arm["calibration"] and arm["calibration"]["slope"]:
            slope, intercept = arm["calibration"]["slope"], arm["calibration"]["intercept"]
            brier = arm["metrics"]["brier"]["mean"]
            rows.append([name, slope["value"], *slope["interval"], intercept["value"], *intercept["interval"], brier])
    columns: dict[str, Format | None] = {"arm": None, "slope": decimals, "from": decimals, "to": decimals}
    columns |= {"intercept": decimals, "from ": decimals, "to ": decimals, "Brier": decimals}
    note = "A slope of 1 and an intercept of 0 are calibrated; a slope below 1 means scores that are too extreme."
    return make_table("calibration", "Calibration", columns, rows, note)


def subgroup_table(evidence: Evidence) -> Table:
    headline = evidence.headline
    others = {"auc": "AUC"} if headline.metric != "auc" else {"pr_auc": "PR-AUC"}
    others |= {"sensitivity": "sensitivity", "specificity": "specificity"}
    others = {metric: word for metric, word in others.items() if metric != headline.metric}
    rows: list[list[Any]] = []
    for name in evidence.few_arms:
        for kind in evidence.kinds:
            for group, found in evidence.arms[name]["subgroups"].get(kind, {}).items():
                figures = found.get("metrics")
                if figures is None:
                    rows.append([name, f"{kind}: {group}", *[None] * (4 + len(others))])
                    continue
                main = figures[headline.metric]
                means = [figures[metric]["mean"] for metric in others]
                rows.append(
                    [name, f"{kind}: {group}", found["rows"], main["mean"], *share_limits(main["interval"]), *means]
                )
    shown = headline.shown
    columns: dict[str, Format | None] = {"arm": None, "group": None, "rows": one, headline.above(): shown}
    columns |= {"from": shown, "to": shown, **dict.fromkeys(others.values(), decimals)}
    note = "Rows: mean test rows per seed. A group with fewer than 10 is suppressed."
    if evidence.deployed:
        note = f"Rows: mean test rows per seed, at the sites at which the group has {evidence.smallest_group} or more."
    return _full(evidence, make_table("subgroups", groups_title(evidence), columns, rows, note))


def sweep_table(evidence: Evidence) -> Table | None:
    from wardround.report.plots_results import swept_values

    rows = []
    for family, (setting, values) in swept_values(evidence).items():
        for value, name in values.items():
            arm = evidence.arms[name]
            converged = arm["convergence"]
            figures = mean_sd(evidence.figure(name))
            rounds = [converged["rounds_to_95_percent"]["mean"], converged["rounds_to_95_percent"]["sd"]]
            rows.append([family, f"{setting} {value:g}", *figures, *rounds, converged["mean_change"]])
    headline, shown = evidence.headline, evidence.headline.shown
    columns: dict[str, Format | None] = {"arm": None, "value": None, headline.above(): shown, "SD": shown}
    columns |= {"rounds to 95 %": one, "SD ": one, "weight change per round": decimals}
    return _full(evidence, make_table("sweep", "The swept setting", columns, rows))


def selection_table(evidence: Evidence) -> Table:
    rows = []
    for choice in evidence.results["selection"]:
        chosen = list(choice["chosen"].values())
        for name, score in choice["scores"].items():
            rows.append([choice["arm"], name, score, chosen.count(name)])
    columns = {"arm": None, "value": None, "score": decimals, "seeds that chose it": str}
    selection = evidence.study.get("selection", {})
    where = (
        f"at {selection.get('site')}, with models trained without it, on patients whom nobody else trains on or tests"
        if selection.get("on") == "site"
        else "on validation rows"
    )
    metric = next((choice["metric"] for choice in evidence.results["selection"]), evidence.headline.metric)
    note = f"Mean {HEADLINES[metric].word} {where}. Ties go to the first value. Test rows had no say."
    return make_table("selection", "How the value was selected", columns, rows, note)


def test_table(evidence: Evidence) -> Table:
    """The comparisons that verdicts stand on, corrected and by themselves."""
    headline, rows = evidence.headline, []
    for variant in evidence.results["variants"]:
        for test in evidence.tests(variant=variant):
            alone = test["uncorrected"] or {"interval": None, "p_value": None}
            figures = [test["difference"], *limits(test["interval"]), test["p_value"], *limits(alone["interval"])]
            rows.append([test["arm"], *figures, alone["p_value"], test["p_value_holm"]])
    shown = headline.difference
    columns: dict[str, Format | None] = {"arm": None, headline.points: shown, "from": shown, "to": shown, "p": p_text}
    columns |= {"from, by itself": shown, "to, by itself": shown, "p by itself": p_text, "p, Holm": p_text}
    note = (
        f"{headline.title} against the reference; {evidence.results['interval']['method']}. {corrected(evidence)} By "
        "itself: as if there were no other comparison. Holm's p-values are corrected too, but have no intervals."
    )
    title = f"Comparisons with {evidence.reference}"
    return without_empty(make_table("tests", title, columns, rows, f"{note}{headline.point}"))


def other_test_table(evidence: Evidence) -> Table:
    """What others would have printed of the same comparisons."""
    rows = []
    for variant in evidence.results["variants"]:
        for test in evidence.tests(variant=variant):
            bootstrap = limits(test["bootstrap"]["interval"] if test["bootstrap"] else None)
            figures = [test["p_value_paired"], test["p_value_independent"], *test["effect"].values()]
            rows.append([test["arm"], test["difference"], *bootstrap, *figures])
    shown = evidence.headline.difference
    columns: dict[str, Format | None] = {"arm": None, evidence.headline.points: shown}
    columns |= {"BCa from": shown, "BCa to": shown, "p, paired t": p_text, "p, independent t": p_text}
    columns |= {"d (paired)": decimals, "d (independent)": decimals}
    note = (
        "For comparison with publications; no verdict of this report follows from them, and none is corrected. Both "
        "t-tests take seeds for independent studies, and reject too often. BCa: a bootstrap, d: Cohen's effect sizes."
    )
    if evidence.deployed:
        note += f" The bootstrap draws seeds anew and not patients, because {STAY}."
    return without_empty(make_table("tests-as-published", "The same by other methods", columns, rows, note))


def cost_table(evidence: Evidence) -> Table:
    rows = [
        [name, a["cost"]["rounds"], a["cost"]["bytes_up"] / 1000, a["cost"]["bytes_down"] / 1000, a["cost"]["seconds"]]
        for name, a in evidence.arms.items()
    ]
    columns = {"arm": None, "rounds": str, "KB from the sites": one, "KB to the sites": one, "seconds": decimals}
    time = "the rounds' time, waiting included" if evidence.deployed else "this machine's time for training"
    regions = " What went between regions is in Topology." if with_regions(evidence) else ""
    note = f"Of one seed: tensors without framing, and {time}.{regions}"
    return make_table("cost", "Cost", columns, rows, note)
