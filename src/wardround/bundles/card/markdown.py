"""A card as Markdown, for a clinician and a compliance officer. Every word comes from the card's data."""

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
        _section("How sure it is", _sure(card["sure"])),
        _section("Privacy", _privacy(card["privacy"])),
        _section("Image that it needs", _image(card["takes"]["image"])),
        _section("Parties", _parties(card["takes"]["parties"])),
        _section("Columns that it needs", _columns(card["columns"]) if card["columns"] else []),
        _section(
            "Gaps, unseen levels, far rows",
            _bullets([*card["gaps"], *card["unseen_levels"], *card["out_of_distribution"]]),
        ),
        _section("Limits", _bullets(card["limits"]) or ["None are known."]),
        _section("Where it comes from", _origin(card["origin"], card["hashes"])),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"


def plain(text: Any) -> str:
    """A name from somebody's file, so that it can break neither a table nor a page."""
    kept = " ".join(str(text).split())
    for mark in ("\\", "|", "`", "<", "*", "_", "["):
        kept = kept.replace(mark, f"\\{mark}")
    return kept


def _section(title: str, lines: Sequence[str]) -> list[str]:
    return [f"## {title}", "", *lines] if lines else []


def _bullets(lines: Sequence[str]) -> list[str]:
    return [f"* {plain(line)}" for line in lines]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def _predicts(card: Mapping[str, Any]) -> list[str]:
    told = card["predicts"]
    if told["findings"]:
        return [
            f"Each of {len(told['classes'])} findings, present or absent: {', '.join(map(plain, told['classes']))}."
        ]
    if told["positive"] is None:
        return [f"One of {len(told['classes'])} classes: {', '.join(map(plain, told['classes']))}."]
    positive, negative = plain(told["positive"]), plain(told["classes"][0])
    return [f"The outcome of a row: **{positive}** (the positive class) or {negative}."]


def _training(told: Mapping[str, Any]) -> list[str]:
    here, rounds, adapter = told["rows_here"], told["rounds"], told["adapter"]
    known = [rows for rows in told["sites"].values() if rows is not None]
    rows = [[plain(site), UNKNOWN if count is None else f"{count:,}"] for site, count in told["sites"].items()]
    if len(known) == len(rows) > 1:
        rows.append(["all", f"{sum(known):,}"])
    where = "simulated on one machine" if told["simulated"] else "across hospitals"
    made = f"lgorithm {plain(told['algorithm'])}, model {plain(told['model'])}, {rounds} rounds, {where}."
    lines = [
        f"A{made}" if adapter is None else f"Two trainings. The shared part, without this site: a{made}",
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
    return [
        *lines,
        f"Rows of this site: {here['train']:,} for training"
        f"{'' if told['this_site_trained'] else ' (not used by this model)'}, {here['validation']:,} for validation, "
        f"{here['test']:,} for test.",
    ]


def _figures(told: Mapping[str, Any]) -> list[str]:
    columns = {"this site": told["this_site"], "all sites": told["all_sites"]}
    known = {name: metrics for name, metrics in columns.items() if metrics is not None}
    if not known:
        return ["None were told."]
    rows = [
        [shown, *(_estimate(metrics.get(metric), share=metric != "brier") for metrics in known.values())]
        for metric, shown in METRICS.items()
    ]
    seeds, interval = told["seeds"], told["interval"]
    many = f"Means over {len(seeds)} seeds" if len(seeds) > 1 and not told["this_seed_only"] else "Of one seed"
    if interval is None:
        shown = "without intervals"
    else:
        confidence = f"{100 * interval['confidence']:.0f} %"
        shown = f"with intervals of {confidence} ({interval['method']}; they cover {interval['covers']})"
    calls = "Calls at the study's thresholds" if told["findings"] else "Calls at a score of 0.5"
    return [
        f"{many}, {shown}. {calls}. This bundle is seed {told['seed']}.",
        "",
        *_table(["", *known], rows),
        *(["", WITHIN] if told["auc_within_sites"] and "all sites" in known else []),
    ]


def _adapted(told: Mapping[str, Any] | None) -> list[str]:
    """What the site gains by the shared part, on its test rows."""
    if told is None:
        return []
    warning = [f"**{plain(told['caution'])}**", ""] if told["caution"] else []
    return [*warning, *_bullets(told["result"])]


def _estimate(found: Mapping[str, Any] | None, share: bool = True) -> str:
    if not found or found.get("mean", found.get("value")) is None:
        return UNKNOWN
    value, interval = found.get("mean", found.get("value")), found.get("interval")
    if not interval:
        return f"{value:.3f}"
    # a t-interval does not know that a share is between 0 and 1
    low, high = (max(0.0, interval[0]), min(1.0, interval[1])) if share else interval
    return f"{value:.3f} ({low:.3f} to {high:.3f})"


def _threshold(card: Mapping[str, Any]) -> list[str]:
    told, found = card["threshold"], card["at_threshold"]
    if told is None:
        each = card["predicts"]["findings"]
        return ["Each finding has its own, below." if each else "None: the class with the highest score is called."]
    lines = [
        f"A row is called {plain(card['predicts']['positive'])} at a score of {told['value']:.4f} or more "
        f"({'chosen by' if told['chosen'] else 'not chosen:'} {plain(told['why'])})."
    ]
    if found is None:
        return lines
    rows = [
        [
            name,
            _estimate(found[name]) if found[name] else "too few rows",
            str(found[name]["rows"]) if found[name] else "",
        ]
        for name in ("sensitivity", "specificity")
    ]
    return [
        *lines,
        "",
        f"On the {found['rows']} test rows of this site with this seed, with Wilson's intervals:",
        "",
        *_table(["", "at this threshold", "rows"], rows),
    ]


def _calibration(told: Mapping[str, Any]) -> list[str]:
    fitted = told["fitted"]
    if fitted is None:
        lines = [f"Scores are given as they are: {plain(told['why_not'])}."]
    else:
        lines = [
            f"Probabilities are scores recalibrated on {fitted['rows']} validation rows of this site (slope "
            f"{fitted['slope']:.3f}, intercept {fitted['intercept']:.3f} on the logit)."
        ]
    known = {name: told[name] for name in ("before", "after") if told[name] is not None}
    if not known:
        return lines
    titles = {"before": "scores", "after": "probabilities"}
    rows = [
        ["slope (1 is right)", *(_estimate(found.get("slope"), share=False) for found in known.values())],
        ["intercept (0 is right)", *(_estimate(found.get("intercept"), share=False) for found in known.values())],
        ["Brier score", *(f"{found['brier']:.3f}" for found in known.values())],
    ]
    count = next(iter(known.values()))["rows"]
    return [
        *lines,
        "",
        f"On the {count} test rows of this site with this seed:",
        "",
        *_table(["", *(titles[name] for name in known)], rows),
    ]


def _findings(told: Sequence[Mapping[str, Any]] | None) -> list[str]:
    if not told:
        return []
    rows = [
        [
            plain(one["name"]),
            str(one["positives"]),
            _estimate(one["auc"].get("this_site")),
            _estimate(one["auc"].get("all_sites")),
            f"{one['threshold']['value']:.4f}{'' if one['threshold']['chosen'] else ' (not chosen)'}",
            *(_estimate(one[name]) if one[name] else "too few rows" for name in ("sensitivity", "specificity")),
            "yes" if one["calibration"] else "no",
        ]
        for one in told
    ]
    why = {plain(one["threshold"]["why"]): None for one in told}
    head = ["finding", "test rows with it", "AUC here", "AUC, all sites", "called from", "sensitivity", "specificity"]
    return [
        "AUC as in the study's results; sensitivity and specificity at the threshold, on this site's test rows with "
        "this seed, with Wilson's intervals.",
        "",
        *_table([*head, "calibrated"], rows),
        "",
        *(f"* Threshold: {one}." for one in why),
    ]


def _sure(told: Mapping[str, Any]) -> list[str]:
    """What intervals, sets and referral mean, and what they were worth on test rows."""
    worth, lines = told["worth"], _bullets(told["words"])
    if not worth or not lines:
        return lines
    rows = []
    if worth["width"]:
        rows.append(["mean width of an interval", f"{worth['width']:.3f}"])
    if "sets" in worth:
        held = worth["sets"]["coverage"]
        known = [share for share in held.values() if share is not None] if isinstance(held, Mapping) else [held]
        of = f" ({min(known):.3f} to {max(known):.3f} by finding)" if isinstance(held, Mapping) and known else ""
        asked = f"sets that hold the right answer (asked: {worth['sets']['asked']:.2f})"
        rows.append([asked, f"{sum(known) / len(known):.3f}{of}" if known else UNKNOWN])
        rows.append(["answers in a set, mean", f"{worth['sets']['size']:.2f}"])
        rows.append(["sets to which the call was added", f"{worth['sets']['added']:.3f}"])
    if "ece" in worth:
        rows.append(["calibration error (ECE) before temperature", f"{worth['ece']['before']:.3f}"])
        rows.append(["calibration error (ECE) after temperature", f"{worth['ece']['after']:.3f}"])
    if "referral" in worth:
        found = worth["referral"]
        rows.append(["rows referred as unclear, or because the call was added", f"{found['share']:.3f}"])
        for key, words in (("all", "of all rows"), ("kept", "of rows that are kept"), ("referred", "of rows referred")):
            rows.append([f"calls that are right, {words}", UNKNOWN if found[key] is None else f"{found[key]:.3f}"])
    return [*lines, "", f"On the {worth['rows']} test rows of this site with this seed:", "", *_table(["", ""], rows)]


def _image(told: Mapping[str, Any] | None) -> list[str]:
    if told is None:
        return []
    size = told["pixels"]
    lines = [
        f"One grey picture a row, PNG, JPEG or DICOM of any size; it becomes {size} x {size} pixels with bone bright.",
        f"{told['scale'][:1].upper()}{told['scale'][1:]}.",
    ]
    return _bullets([*lines, *(["Contrast is evened out (CLAHE)."] if told["clahe"] else [])])


def _parties(told: Sequence[Mapping[str, Any]]) -> list[str]:
    if not told:
        return []
    rows = [
        [plain(one["name"]), ", ".join(map(plain, one["holds"])), "may be absent" if one["may_be_absent"] else "needed"]
        for one in told
    ]
    return [
        *_table(["party", "holds", ""], rows),
        "",
        "Where nothing is known of a row by a party that may be absent, a learned stand-in takes its place, and the "
        "prediction says so.",
    ]


def _privacy(told: Mapping[str, Any] | None) -> list[str]:
    if told is None:
        return ["Neither differential privacy nor secure aggregation was used in this arm."]
    lines = []
    if told["example"]:
        asked, spent = told["example"], told["spent"]
        if asked.get("clip") == "none":
            lines.append("No patient is protected: gradients were not clipped, so that epsilon is infinite.")
        else:
            lines.append(
                f"Each patient is protected: epsilon {asked['epsilon']:g} at delta {asked['delta']:g} was allowed."
            )
        if spent:
            lines.append(
                f"Spent at this site by one training of this arm, at most: epsilon "
                f"{format_epsilon(spent['epsilon'], '.3f')} at delta "
                f"{spent['delta']:g}, in "
                f"{spent['rounds']} rounds."
            )
        if told["spent_by_the_whole_run"]:
            whole = told["spent_by_the_whole_run"]
            lines.append(
                "Spent at this site by all arms and seeds of the run: "
                f"epsilon {format_epsilon(whole['epsilon'], '.3f')} at delta {whole['delta']:g}."
            )
        lines.append("Figures on test rows and counts of rows are not covered by it.")
    if told["site"]:
        lines.append(
            f"Each hospital as a whole is protected: epsilon {told['site']['epsilon']:g} at delta "
            f"{told['site']['delta']:g} was allowed."
        )
        if told["spent_on_sites"]:
            lines.append(
                f"Spent by one training of this arm, at most: epsilon {told['spent_on_sites']['epsilon']:.3f}."
            )
    if told["secure_sum"] is not None:
        lines.append("The coordinator saw sums of updates only, and no single one.")
    if (told["example"] or told["site"]) and not told["guarantee"]:
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


def _origin(told: Mapping[str, Any], hashes: Mapping[str, str]) -> list[str]:
    arm = told["arm"] if told["arm"] == told["trained_as"] else f"{told['arm']}, which is {told['trained_as']}"
    lines = {
        "study": plain(told["study"]["name"]),
        "hash of the study": f"`{told['study']['hash']}`",
        "run": plain(told["run"]),
        "arm, seed, site": f"{plain(arm)}, {told['seed']}, {plain(told['site'])}",
        "made with": f"wardround {told['wardround']}",
        **{f"SHA-256 of {name}": f"`{digest}`" for name, digest in sorted(hashes.items())},
    }
    return _table(["", ""], [[name, value] for name, value in lines.items()])
