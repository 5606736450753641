"""The tables of a report, each a function of the evidence."""

from collections.abc import Mapping
from typing import Any

from wardround.report.evidence import STAY, Evidence, rows_of
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
    points,
    share_limits,
)

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


def all_tables(evidence: Evidence) -> dict[str, Table]:
    """Those that the run has something for."""
    makers = (
        site_table,
        leakage_table,
        arm_table,
        variant_table,
        hospital_table,
        spread_table,
        benefit_table,
        best_single_table,
        external_table,
        number_table,
        calibration_table,
        subgroup_table,
        sweep_table,
        selection_table,
        test_table,
        claim_table,
        cost_table,
    )
    made = [maker(evidence) for maker in makers]
    return {table.name: table for table in made if table is not None and table.rows}


def site_table(evidence: Evidence) -> Table:
    rows = []
    positive = evidence.classes[1] if len(evidence.classes) == 2 else None
    for described in evidence.results["sites"]:
        for site, counts in described["sites"].items():
            total = rows_of(counts)
            small = any(count is None or 0 < count < FEWEST for count in counts["classes"].values())
            share = counts["classes"][positive] / total if positive and not small else None
            age = (counts.get("age") or {}) if total >= 2 * FEWEST else {}
            sizes = [total, counts["train"], counts["validation"], counts["test"]]
            rows.append(
                [
                    f"{site}{' (disjoint)' if described['partition'].get('disjoint') else ''}",
                    *sizes,
                    share,
                    age.get("mean"),
                    age.get("sd"),
                ]
            )
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
    return make_table("sites", "The sites, with the first seed", columns, rows, note)


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
    rows = []
    for name, arm in evidence.arms.items():
        found = arm["metrics"]
        low, high = share_limits(found["accuracy"]["interval"])
        figures = [found[metric]["mean"] for metric in list(METRICS)[1:]]
        kilobytes = arm["cost"]["bytes"] / 1000
        rows.append([name, found["accuracy"]["mean"], found["accuracy"]["sd"], low, high, *figures, kilobytes])
    columns: dict[str, Format | None] = {"arm": None, "accuracy, %": percent, "SD": percent, "from": percent}
    columns |= {"to": percent} | dict.fromkeys(list(METRICS.values())[1:], decimals) | {"KB": one}
    note = f"Means over {evidence.seeds} seeds on all sites' test rows; the 95 % interval of the accuracy."
    if evidence.deployed:
        note += (
            " From sites' counts and sums, over the sites that may tell them. AUC is from histograms of their scores "
            f"and may be off by up to {evidence.auc_uncertain_by:.3f}."
        )
    return make_table("arms", "All arms", columns, rows, note)


def variant_table(evidence: Evidence) -> Table | None:
    variants = list(evidence.variants)
    if not variants:
        return None
    arms = evidence.results["arms"]

    def of(name: str) -> list[Any]:
        found = arms[name]["metrics"]["accuracy"] if name in arms else {"mean": None, "sd": None}
        return [found["mean"], found["sd"]]

    rows = [[name, *of(name), *(x for v in variants for x in of(f"{name}@{v}"))] for name in evidence.arms]
    columns: dict[str, Format | None] = {"arm": None, "as it stands, %": percent, "SD": percent}
    for variant in variants:
        columns |= {f"{variant}, %": percent, f"SD, {variant}": percent}
    note = " ".join(f"{name}: {variant['text']}." for name, variant in evidence.variants.items())
    return make_table("variants", "Accuracy in the variants of the study", columns, rows, note)


def hospital_table(evidence: Evidence) -> Table | None:
    if len(evidence.sites) > 30:
        return None
    rows = [
        [name, *(x for s in evidence.sites for x in _mean_sd(arm["sites"].get(s, {}).get("accuracy")))]
        for name, arm in evidence.arms.items()
    ]
    columns: dict[str, Format | None] = {"arm": None}
    for site in evidence.sites:
        columns |= {f"{site}, %": percent, f"SD, {site}": percent}
    return make_table("hospitals", "Accuracy at each site", columns, rows, "Each site's own test rows.")


def _mean_sd(found: Mapping[str, Any] | None) -> list[Any]:
    return [found["mean"], found["sd"]] if found else [None, None]


def spread_table(evidence: Evidence) -> Table | None:
    rows = []
    for name, arm in evidence.arms.items():
        low, high = arm["spread"]["lowest"], arm["spread"]["highest"]
        if low and high:
            worst, best = (f"{end['site']} ({percent(end['accuracy'])})" for end in (low, high))
            rows.append([name, arm["spread"]["sd"], high["accuracy"] - low["accuracy"], worst, best])
    columns = {"arm": None, "SD over sites": percent, "highest - lowest": percent, "lowest": None, "highest": None}
    return make_table(
        "spread", "How evenly the sites are served", columns, rows, "Of the sites' mean accuracies, in points."
    )


def benefit_table(evidence: Evidence) -> Table:
    rows = [
        [
            entry["arm"],
            entry["site"],
            entry["difference"],
            *limits(entry["interval"]),
            entry["p_value"],
            entry["verdict"],
        ]
        for entry in evidence.benefit()
    ]
    columns = {"arm": None, "site": None, "points": points, "from": points, "to": points, "p": p_text, "verdict": None}
    note = "Accuracy against the same site training alone, paired over seeds, with 95 % intervals."
    return make_table("benefit", "What joining changed for each site", columns, rows, note)


def best_single_table(evidence: Evidence) -> Table:
    rows = []
    for entry in evidence.results["best_single"]:
        rows.append(
            [
                entry["arm"],
                entry["site"],
                entry["best"],
                entry["best_accuracy"],
                entry["difference"],
                *limits(entry["interval"]),
                "yes" if entry["as_good"] else "no",
            ]
        )
    columns = {
        "arm": None,
        "site": None,
        "best single model from": None,
        "its accuracy, %": percent,
        "points": points,
        "from": points,
        "to": points,
        "at least as good": None,
    }
    note = "The best model that one hospital alone could have trained, picked by its test accuracy there."
    return make_table("best-single", "Against the best single-hospital model", columns, rows, note)


def external_table(evidence: Evidence) -> Table | None:
    rows = []
    for arm in evidence.partial.values():
        outside = [site for site in arm["sites"] if site not in arm["train_at"]]
        if len(outside) == 1:
            found = arm["sites"][outside[0]]
            figures = [found["accuracy"]["mean"], *share_limits(found["accuracy"]["interval"]), found["auc"]["mean"]]
            own = evidence.arms[evidence.local]["sites"].get(outside[0]) if evidence.local else None
            rows.append([outside[0], arm["algorithm"]["name"], *figures, _mean_sd(own and own["accuracy"])[0]])
    columns = {"left out": None, "algorithm": None, "accuracy, %": percent, "from": percent, "to": percent}
    note = "Trained by all other hospitals, tested at the one that took no part; beside it, its own model."
    more: dict[str, Format | None] = {"AUC": decimals, "its own model, %": percent}
    return make_table("external", "A hospital left out, as an external test", {**columns, **more}, rows, note)


def number_table(evidence: Evidence) -> Table:
    rows = []
    for entry in evidence.results["by_number_of_sites"]:
        inside, outside = entry["inside"] or {}, entry["outside"] or {}
        rows.append(
            [
                entry["algorithm"],
                entry["sites"],
                entry["combinations"],
                inside.get("mean"),
                *share_limits(inside.get("interval")),
                outside.get("mean"),
                *share_limits(outside.get("interval")),
            ]
        )
    columns = {"algorithm": None, "hospitals": str, "combinations": str, "taking part, %": percent, "from": percent}
    more: dict[str, Format | None] = {"to": percent, "outside, %": percent, "from ": percent, "to ": percent}
    return make_table("number-of-sites", "Accuracy against the number of hospitals", {**columns, **more}, rows)


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
    rows: list[list[Any]] = []
    for name in evidence.few_arms:
        for kind, groups in evidence.arms[name]["subgroups"].items():
            for group, found in groups.items():
                figures = found.get("metrics")
                if figures is None:
                    rows.append([name, f"{kind}: {group}", None, None, None, None, None, None, None])
                    continue
                ends = share_limits(figures["accuracy"]["interval"])
                others = [figures[metric]["mean"] for metric in ("auc", "sensitivity", "specificity")]
                rows.append([name, f"{kind}: {group}", found["rows"], figures["accuracy"]["mean"], *ends, *others])
    columns: dict[str, Format | None] = {"arm": None, "group": None, "rows": one, "accuracy, %": percent}
    columns |= {"from": percent, "to": percent, "AUC": decimals, "sensitivity": decimals, "specificity": decimals}
    note = "Rows: mean test rows per seed. A group with fewer than 10 is suppressed."
    if evidence.deployed:
        note = f"Rows: mean test rows per seed, at the sites at which the group has {evidence.smallest_group} or more."
    return make_table("subgroups", "By sex and age", columns, rows, note)


def sweep_table(evidence: Evidence) -> Table | None:
    from wardround.report.plots_results import swept_values

    rows = []
    for family, (setting, values) in swept_values(evidence).items():
        for value, name in values.items():
            arm = evidence.arms[name]
            converged = arm["convergence"]
            figures = [arm["metrics"]["accuracy"]["mean"], arm["metrics"]["accuracy"]["sd"]]
            rounds = [converged["rounds_to_95_percent"]["mean"], converged["rounds_to_95_percent"]["sd"]]
            rows.append([family, f"{setting} {value:g}", *figures, *rounds, converged["mean_change"]])
    columns: dict[str, Format | None] = {"arm": None, "value": None, "accuracy, %": percent, "SD": percent}
    columns |= {"rounds to 95 %": one, "SD ": one, "weight change per round": decimals}
    return make_table("sweep", "The swept setting", columns, rows)


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
    note = f"Mean {selection.get('metric', 'accuracy')} {where}. Ties go to the first value. Test rows had no say."
    return make_table("selection", "How the value was selected", columns, rows, note)


def test_table(evidence: Evidence) -> Table:
    rows = []
    for variant in evidence.results["variants"]:
        for test in evidence.tests(variant=variant):
            bootstrap = limits(test["bootstrap"]["interval"] if test["bootstrap"] else None)
            names = ("p_value", "p_value_holm", "p_value_bonferroni", "p_value_paired", "p_value_independent")
            figures = [test["difference"], *limits(test["interval"]), *bootstrap, *(test[name] for name in names)]
            rows.append([test["arm"], *figures, test["effect"]["d_z"], test["effect"]["d_s"]])
    columns: dict[str, Format | None] = {"arm": None, "points": points, "from": points, "to": points}
    columns |= {"BCa from": points, "BCa to": points, "p": p_text, "Holm": p_text, "Bonferroni": p_text}
    columns |= {"p, paired t": p_text, "p, independent t": p_text, "d (paired)": decimals, "d (independent)": decimals}
    note = (
        "Accuracy against the reference. The first p-value allows for seeds sharing patients; the paired and the "
        "independent t-test do not, and reject too often. Where test rows are fixed, all p-values and intervals "
        "speak of the randomness of training alone. Holm and Bonferroni over the arms of one variant."
    )
    if evidence.deployed:
        note += f" The bootstrap draws seeds anew and not patients, because {STAY}."
    return make_table("tests", f"Comparisons with {evidence.reference}", columns, rows, note)


def claim_table(evidence: Evidence) -> Table:
    rows = [[claim["text"], claim["source"], claim["verdict"]] for claim in evidence.results["claims"]]
    return make_table("claims", "Published claims", {"claim": None, "source": None, "verdict": None}, rows)


def cost_table(evidence: Evidence) -> Table:
    rows = [
        [name, a["cost"]["rounds"], a["cost"]["bytes_up"] / 1000, a["cost"]["bytes_down"] / 1000, a["cost"]["seconds"]]
        for name, a in evidence.arms.items()
    ]
    columns = {"arm": None, "rounds": str, "KB from the sites": one, "KB to the sites": one, "seconds": decimals}
    time = "the rounds' time, waiting included" if evidence.deployed else "this machine's time for training"
    note = f"Of one seed: tensors without framing, and {time}."
    return make_table("cost", "Cost", columns, rows, note)
