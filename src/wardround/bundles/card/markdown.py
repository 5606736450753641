"""A card as Markdown, for a clinician and a compliance officer. All of it comes from the card's data."""

from collections.abc import Mapping, Sequence
from typing import Any

from wardround.privacy.dp.epsilons import format_epsilon

METRICS = {
    "auc": "AUC",
    "accuracy": "accuracy",
    "sensitivity": "sensitivity",
    "specificity": "specificity",
    "ppv": "positive predictive value",
    "npv": "negative predictive value",
    "brier": "Brier score (lower is better)",
}
UNKNOWN = "not known"
OF_FINDINGS = "Each finding by itself, on validation rows of this site, where the table above says so."
WITHIN = (
    "The AUC of all sites is the mean of the sites' own, because each site predicts with a model of its own, and "
    "scores of different models are not ranked together."
)


def render(card: Mapping[str, Any]) -> str:
    parts = [
        [f"# {plain(card['title'])}"],
        [plain(card["question"])] if card["question"] else [],
        [plain(" ".join(card["introduction"]))] if card["introduction"] else [],
        _section("What it predicts", _predicts(card)),
        _section("Intended use", _bullets(card["intended_use"])),
        _section("Not intended for", _bullets(card["not_intended"])),
        _section("Training", _training(card["training"])),
        _section("Figures on test rows", _figures(card["figures"])),
        _section("Adapted or alone", _adapted(card["training"]["adapter"])),
        _section("Threshold", _threshold(card)),
        _section("Findings", _findings(card["findings"])),
        _section("Calibration", _calibration(card["calibration"]) if not card["findings"] else [OF_FINDINGS]),
        _section("Uncertainty", _uncertainty(card["uncertainty"])),
        _section("Privacy", _privacy(card["privacy"])),
        _section("Image that it needs", _image(card["takes"]["image"])),
        _section("Parties", _parties(card["takes"]["parties"])),
        _section("Columns that it needs", _columns(card["columns"]) if card["columns"] else []),
        _section(
            "Gaps, unseen levels, rows out of distribution",
            _bullets([*card["gaps"], *card["unseen_levels"], *card["out_of_distribution"]]),
        ),
        _section("Limits", _bullets(card["limits"]) or ["None are known."]),
        _section("Where it comes from", _origin(card["origin"], card["hashes"])),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def plain(text: Any) -> str:
    """A name from somebody's file, so that it can break neither a table nor a page."""
    escaped = " ".join(str(text).split())
    for mark in ("\\", "|", "`", "<", "*", "_", "["):
        escaped = escaped.replace(mark, f"\\{mark}")
    return escaped


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return [f"## {title}", "", *lines] if lines else []


def _bullets(lines: Sequence[str]) -> list[str]:
    return [f"* {plain(line)}" for line in lines]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def _predicts(card: Mapping[str, Any]) -> list[str]:
    classes, positive = list(map(plain, card["predicts"]["classes"])), card["predicts"]["positive"]
    if card["predicts"]["findings"]:
        return [f"Each of {len(classes)} findings, present or absent: {', '.join(classes)}."]
    if positive is None:
        return [f"One of {len(classes)} classes: {', '.join(classes)}."]
    return [f"The outcome of a row: **{plain(positive)}** (the positive class) or {classes[0]}."]


def _training(training: Mapping[str, Any]) -> list[str]:
    here, rounds, adapter = training["rows_here"], training["rounds"], training["adapter"]
    known = [rows for rows in training["sites"].values() if rows is not None]
    rows = [[plain(site), UNKNOWN if count is None else f"{count:,}"] for site, count in training["sites"].items()]
    if len(known) == len(rows) > 1:
        rows.append(["all", f"{sum(known):,}"])
    where = "simulated on one machine" if training["simulated"] else "across hospitals"
    settings = f"lgorithm {plain(training['algorithm'])}, model {plain(training['model'])}, {rounds} rounds, {where}."
    lines = [
        f"A{settings}" if adapter is None else f"Two trainings. The shared part, without this site: a{settings}",
        "",
        *_table(["trained at", "training rows"], rows),
        "",
    ]
    if adapter is not None:
        lines += [
            f"The adapter, at this site alone: {adapter['epochs']} epochs on {adapter['rows']:,} training rows of its "
            "own, while the shared part stayed as it was.",
            "",
        ]
    unused = "" if training["this_site_trained"] else " (not used by this model)"
    return [
        *lines,
        f"Rows of this site: {here['train']:,} for training{unused}, {here['validation']:,} for validation, "
        f"{here['test']:,} for test.",
    ]


def _figures(figures: Mapping[str, Any]) -> list[str]:
    columns = {"this site": figures["this_site"], "all sites": figures["all_sites"]}
    known = {name: metrics for name, metrics in columns.items() if metrics is not None}
    if not known:
        return ["None are known."]
    rows = [
        [shown, *(_estimate(metrics.get(metric), share=metric != "brier") for metrics in known.values())]
        for metric, shown in METRICS.items()
    ]
    seeds, interval = figures["seeds"], figures["interval"]
    many = f"Means over {len(seeds)} seeds" if len(seeds) > 1 and not figures["this_seed_only"] else "Of one seed"
    if interval is None:
        shown = "without intervals"
    else:
        confidence = f"{100 * interval['confidence']:.0f} %"
        shown = f"with intervals of {confidence} ({interval['method']}; they cover {interval['covers']})"
    threshold = "the study's thresholds" if figures["findings"] else "a threshold of 0.5"
    return [
        f"{many}, {shown}. Predicted at {threshold}. This bundle is seed {figures['seed']}.",
        "",
        *_table(["", *known], rows),
        *(["", WITHIN] if figures["auc_within_sites"] and "all sites" in known else []),
    ]


def _adapted(adapter: Mapping[str, Any] | None) -> list[str]:
    """What the site gains by the shared part, on its test rows."""
    if adapter is None:
        return []
    warning = [f"**{plain(adapter['caution'])}**", ""] if adapter["caution"] else []
    return [*warning, *_bullets(adapter["result"])]


def _estimate(figure: Mapping[str, Any] | None, share: bool = True) -> str:
    value = figure.get("mean", figure.get("value")) if figure else None
    if figure is None or value is None:
        return UNKNOWN
    if not figure.get("interval"):
        return f"{value:.3f}"
    low, high = figure["interval"]
    if share:  # a t-interval does not know that a share is between 0 and 1
        low, high = max(0.0, low), min(1.0, high)
    return f"{value:.3f} ({low:.3f} to {high:.3f})"


def _threshold(card: Mapping[str, Any]) -> list[str]:
    threshold, figures = card["threshold"], card["at_threshold"]
    if threshold is None:
        findings = card["predicts"]["findings"]
        return [
            "Each finding has its own, below." if findings else "None: the class with the highest score is predicted."
        ]
    lines = [
        f"{plain(card['predicts']['positive'])} is predicted at a score of {threshold['value']:.4f} or more "
        f"({'chosen by' if threshold['chosen'] else 'not chosen:'} {plain(threshold['why'])})."
    ]
    if figures is None:
        return lines
    rows = [
        [
            name,
            _estimate(figures[name]) if figures[name] else "too few rows",
            str(figures[name]["rows"]) if figures[name] else "",
        ]
        for name in ("sensitivity", "specificity")
    ]
    return [
        *lines,
        "",
        f"On the {figures['rows']} test rows of this site with this seed, with Wilson's intervals:",
        "",
        *_table(["", "at this threshold", "rows"], rows),
    ]


def _calibration(calibration: Mapping[str, Any]) -> list[str]:
    fitted = calibration["fitted"]
    if fitted is None:
        lines = [f"Scores are given as they are: {plain(calibration['why_not'])}."]
    else:
        lines = [
            f"Probabilities are scores recalibrated on {fitted['rows']} validation rows of this site (slope "
            f"{fitted['slope']:.3f}, intercept {fitted['intercept']:.3f} on the logit)."
        ]
    known = {name: calibration[name] for name in ("before", "after") if calibration[name] is not None}
    if not known:
        return lines
    titles = {"before": "scores", "after": "probabilities"}
    rows = [
        ["slope (1 is right)", *(_estimate(figures.get("slope"), share=False) for figures in known.values())],
        ["intercept (0 is right)", *(_estimate(figures.get("intercept"), share=False) for figures in known.values())],
        ["Brier score", *(f"{figures['brier']:.3f}" for figures in known.values())],
    ]
    count = next(iter(known.values()))["rows"]
    return [
        *lines,
        "",
        f"On the {count} test rows of this site with this seed:",
        "",
        *_table(["", *(titles[name] for name in known)], rows),
    ]


def _findings(findings: Sequence[Mapping[str, Any]] | None) -> list[str]:
    if not findings:
        return []
    rows = [
        [
            plain(finding["name"]),
            str(finding["positives"]),
            _estimate(finding["auc"].get("this_site")),
            _estimate(finding["auc"].get("all_sites")),
            f"{finding['threshold']['value']:.4f}{'' if finding['threshold']['chosen'] else ' (not chosen)'}",
            *(_estimate(finding[name]) if finding[name] else "too few rows" for name in ("sensitivity", "specificity")),
            "yes" if finding["calibration"] else "no",
        ]
        for finding in findings
    ]
    why = {plain(finding["threshold"]["why"]): None for finding in findings}
    head = ["finding", "test rows with it", "AUC here", "AUC, all sites", "threshold", "sensitivity", "specificity"]
    return [
        "AUC as in the study's results; sensitivity and specificity at the threshold, on this site's test rows with "
        "this seed, with Wilson's intervals.",
        "",
        *_table([*head, "calibrated"], rows),
        "",
        *(f"* Threshold: {reason}." for reason in why),
    ]


def _uncertainty(uncertainty: Mapping[str, Any]) -> list[str]:
    """What intervals, prediction sets and referral mean, and how they did on test rows."""
    evaluation, lines = uncertainty["evaluation"], _bullets(uncertainty["text"])
    if not evaluation or not lines:
        return lines
    rows = [["mean width of an interval", f"{evaluation['width']:.3f}"]] if evaluation["width"] else []
    rows += _sets(evaluation["sets"]) if "sets" in evaluation else []
    if "ece" in evaluation:
        for when, ece in evaluation["ece"].items():
            rows.append([f"calibration error (ECE) {when} temperature", f"{ece:.3f}"])
    if "referral" in evaluation:
        referral = evaluation["referral"]
        rows.append(
            ["rows referred for doubt, or because the prediction was added to its set", f"{referral['share']:.3f}"]
        )
        for key, which in (("all", "all rows"), ("kept", "rows that are kept"), ("referred", "rows referred")):
            share = UNKNOWN if referral[key] is None else f"{referral[key]:.3f}"
            rows.append([f"predictions that are right, of {which}", share])
    count = f"On the {evaluation['rows']} test rows of this site with this seed:"
    return [*lines, "", count, "", *_table(["", ""], rows)]


def _sets(sets: Mapping[str, Any]) -> list[list[str]]:
    coverage, by_finding = sets["coverage"], ""
    if isinstance(coverage, Mapping):
        known = [share for share in coverage.values() if share is not None]
        coverage = sum(known) / len(known) if known else None
        by_finding = f" ({min(known):.3f} to {max(known):.3f} by finding)" if known else ""
    return [
        [
            f"sets that hold the right answer (target: {sets['target']:.2f})",
            UNKNOWN if coverage is None else f"{coverage:.3f}{by_finding}",
        ],
        ["answers in a set, mean", f"{sets['size']:.2f}"],
        ["sets to which the prediction was added", f"{sets['added']:.3f}"],
    ]


def _image(image: Mapping[str, Any] | None) -> list[str]:
    if image is None:
        return []
    size = image["pixels"]
    lines = [
        f"One grey picture a row, PNG, JPEG or DICOM of any size; it becomes {size} x {size} pixels with bone bright.",
        f"{image['scale'][:1].upper()}{image['scale'][1:]}.",
    ]
    return _bullets([*lines, *(["Contrast is evened out (CLAHE)."] if image["clahe"] else [])])


def _parties(parties: Sequence[Mapping[str, Any]]) -> list[str]:
    if not parties:
        return []
    rows = [
        [
            plain(party["name"]),
            ", ".join(map(plain, party["holds"])),
            "may be absent" if party["may_be_absent"] else "needed",
        ]
        for party in parties
    ]
    return [
        *_table(["party", "holds", ""], rows),
        "",
        "Where nothing is known of a row by a party that may be absent, a learned stand-in takes its place, and the "
        "prediction says so.",
    ]


def _privacy(privacy: Mapping[str, Any] | None) -> list[str]:
    if privacy is None:
        return ["Neither differential privacy nor secure aggregation was used in this arm."]
    lines = []
    if privacy["example"]:
        allowed, spent = privacy["example"], privacy["spent"]
        if allowed.get("clip") == "none":
            lines.append("No patient is protected: gradients were not clipped, so that epsilon is infinite.")
        else:
            lines.append(
                f"Each patient is protected: epsilon {allowed['epsilon']:g} at delta {allowed['delta']:g} was allowed."
            )
        if spent:
            lines.append(
                f"Spent at this site by one training of this arm, at most: epsilon "
                f"{format_epsilon(spent['epsilon'], '.3f')} at delta "
                f"{spent['delta']:g}, in "
                f"{spent['rounds']} rounds."
            )
        if privacy["spent_by_the_whole_run"]:
            whole = privacy["spent_by_the_whole_run"]
            lines.append(
                "Spent at this site by all arms and seeds of the run: epsilon "
                f"{format_epsilon(whole['epsilon'], '.3f')} at delta {whole['delta']:g}."
            )
        lines.append("Figures on test rows and counts of rows are not covered by it.")
    if privacy["site"]:
        lines.append(
            f"Each hospital as a whole is protected: epsilon {privacy['site']['epsilon']:g} at delta "
            f"{privacy['site']['delta']:g} was allowed."
        )
        if privacy["spent_on_sites"]:
            lines.append(
                f"Spent by one training of this arm, at most: epsilon {privacy['spent_on_sites']['epsilon']:.3f}."
            )
    if privacy["secure_sum"] is not None:
        lines.append("The coordinator saw sums of updates only, and no single one.")
    if (privacy["example"] or privacy["site"]) and not privacy["guarantee"]:
        lines.append("No guarantee: this was a simulation, whose noise follows from the study's seed.")
    return _bullets(lines)


def _columns(columns: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = []
    for column in columns:
        limits, levels = column["range"], column["levels"]
        allowed = "" if limits is None else f"{limits[0]:g} to {limits[1]:g}"
        if levels is not None:
            allowed = ", ".join(map(plain, levels))
        if not column["recorded_here"]:
            allowed += " (not recorded at this site; may be left out)"
        rows.append([plain(column["written"]), plain(column["name"]), column["kind"], allowed])
    if all(row[0] == row[1] for row in rows):
        return _table(["column", "kind", "range or levels"], [row[1:] for row in rows])
    return _table(["column in the file", "name in the study", "kind", "range or levels"], rows)


def _origin(origin: Mapping[str, Any], hashes: Mapping[str, str]) -> list[str]:
    arm = (
        origin["arm"] if origin["arm"] == origin["trained_as"] else f"{origin['arm']}, which is {origin['trained_as']}"
    )
    lines = {
        "study": plain(origin["study"]["name"]),
        "hash of the study": f"`{origin['study']['hash']}`",
        "run": plain(origin["run"]),
        "arm, seed, site": f"{plain(arm)}, {origin['seed']}, {plain(origin['site'])}",
        "made with": f"wardround {origin['wardround']}",
        **{f"SHA-256 of {name}": f"`{digest}`" for name, digest in sorted(hashes.items())},
    }
    return _table(["", ""], [[name, value] for name, value in lines.items()])
