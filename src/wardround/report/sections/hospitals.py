"""Hospital by hospital: what each got alone, together, and from the models of others."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from wardround.evaluation.comparisons.compare import in_words, interval_words, why_unknown
from wardround.evaluation.comparisons.differences import UNKNOWN, is_clear
from wardround.report.evidence import Evidence, rows_of
from wardround.report.headline import HEADLINES, Headline, headline_of
from wardround.report.phrases import corrected
from wardround.report.render.figures import Drawing
from wardround.report.render.style import COLOURS, MARKERS, bar, figure, legend, looks, name_rows
from wardround.report.render.table import (
    Format,
    Table,
    decimals,
    few,
    limits,
    listed,
    make_table,
    mean_sd,
    p_text,
    percent,
    share_limits,
    without_empty,
)
from wardround.report.section import Section

UNLIKE = 20  # per cent by which disease rates must differ to be named as a reason


def best_single_sentences(evidence: Evidence) -> list[str]:
    """Which federated arm is at least as good as the best single-hospital model everywhere, or where and why not."""
    entries = evidence.results["best_single"]
    if not entries:
        return []
    arms = dict.fromkeys(entry["arm"] for entry in entries if not evidence.results["arms"][entry["arm"]]["variant"])
    everywhere = [arm for arm in arms if all(entry["as_good"] for entry in entries if entry["arm"] == arm)]
    if everywhere:
        return [
            f"At every hospital the mean over seeds is at least that of the best single model: {listed(everywhere)}."
        ]

    def worst(arm: str) -> float:
        found = [entry["difference"] for entry in entries if entry["arm"] == arm]
        return min(-1.0 if difference is None else evidence.headline.sign * difference for difference in found)

    closest = max(arms, key=worst)
    sentences = [
        "No federated arm has a mean over seeds that is at least that of the best single model at every hospital. The "
        f"closest is {closest}; beside each difference stands whether chance explains it."
    ]
    sizes = evidence.results["sites"][0]["sites"]
    headline = headline_of(entries[0])
    shared = evidence.reference if evidence.reference in arms else closest
    for arm in dict.fromkeys((closest, shared)):
        told = []
        for entry in (entry for entry in entries if entry["arm"] == arm and entry["difference"] is not None):
            rows = sizes[entry["site"]]["test"]
            patients = f"{entry['difference'] * rows:+.1f} of {rows} test rows, "
            if headline.metric != "accuracy" or evidence.findings:
                patients = ""  # only an accuracy counts them
            chance = {"gains": "a gain", "loses": "a loss"}.get(entry["verdict"], "within chance")
            amount = in_words(entry["difference"], headline.metric)
            told.append(f"{entry['site']} {amount} ({patients}{chance}; best: {entry['best']})")
        sentences.append(f"{arm}: {'; '.join(told)}.")
    rates = evidence.rates
    lowest, highest = (min(rates.values()), max(rates.values())) if rates else (0.0, 0.0)
    sentences.append(
        f"Likely reasons: the best single model is picked by its test {headline.word}, which no hospital could do "
        "beforehand"
        + (
            f"; and the share of {evidence.classes[1]} runs from {lowest:.0f} to {highest:.0f} % between hospitals, so "
            "that one shared model may not suit every one of them."
            if highest - lowest > UNLIKE
            else "."
        )
    )
    return sentences


def hospital_sentences(evidence: Evidence, site: str) -> list[str]:
    """Did federation help this hospital?"""
    entries = [entry for entry in evidence.benefit() if entry["site"] == site and entry["difference"] is not None]
    federated = [entry for entry in entries if entry["arm"] in evidence.federated]
    if not federated:
        why = f"has no {evidence.headline.word} on these test rows" if evidence.local else "is not in the study"
        return [f"Training alone {why}, so that it cannot be said whether joining helped."]
    arm = evidence.reference if evidence.reference in evidence.federated else federated[0]["arm"]
    entry = next((e for e in federated if e["arm"] == arm), federated[0])
    metric, word = evidence.headline.metric, evidence.headline.word
    amount = f"with {entry['arm']}, {in_words(entry['difference'], metric)} of {word} against training alone"
    if entry["verdict"] == UNKNOWN:
        sentences = [f"{amount[0].upper()}{amount[1:]}; {why_unknown(entry)}."]
    else:
        words = {"gains": "Joining helped", "loses": "Joining harmed"}
        told = words.get(entry["verdict"], "There is no evidence that joining helped or harmed")
        sentences = [f"{told}: {amount} ({interval_words(entry)})."]
    for other in (e for e in federated if is_clear(e) and e["arm"] != entry["arm"]):
        amount = in_words(other["difference"], metric)
        sentences.append(f"With {other['arm']} it {other['verdict']}: {amount} ({interval_words(other)}).")
    return sentences


MOST_DESCRIBED = 30  # with a paragraph of their own


def site_summary(evidence: Evidence, site: str) -> Mapping[str, Any]:
    counts = evidence.results["sites"][0]["sites"].get(site)
    rows = ""
    if counts:
        classes = ", ".join(f"{name} {few(count)}" for name, count in counts["classes"].items())
        rows = f"{rows_of(counts)} rows ({classes}); {counts['train']} train, {counts['test']} test."
    return {"words": hospital_sentences(evidence, site), "rows": rows}


MOST = 6  # arms with a sentence of their own; the table has them all


def site_difference_sentences(evidence: Evidence) -> list[str]:
    """Federated arms against training alone on average over sites: who is at least as good, and why others are not."""
    means = {}
    for name in evidence.federated:
        entry = next((e for e in evidence.across(name, "alone") if e["site"] is None), None)
        if entry is not None and entry["difference"] is not None:
            means[name] = entry
    sign = evidence.headline.sign
    ahead = [f"{name} ({_told(evidence, entry)})" for name, entry in means.items() if sign * entry["difference"] >= 0]
    behind = {name: entry for name, entry in means.items() if sign * entry["difference"] < 0}
    made = []
    if ahead:
        who = listed(ahead)
        made.append(f"On average over sites, each counting the same, the difference from training alone: {who}.")
    made += [_behind(evidence, name, entry) for name, entry in list(behind.items())[:MOST]]
    if len(behind) > MOST:
        made.append(f"Behind training alone are also {listed(list(behind)[MOST:])}; the table says by how much.")
    return made


def _told(evidence: Evidence, entry: dict[str, Any]) -> str:
    difference = _points(evidence, entry["difference"])
    if entry["interval"] is None:
        return f"{difference}; {why_unknown(entry)}"
    return f"{difference}, {interval_words(entry)}"


def _points(evidence: Evidence, difference: float) -> str:
    """A difference that is not 0 is not told as 0.0."""
    told = in_words(difference, evidence.headline.metric)
    nothing = in_words(0.0, evidence.headline.metric)
    return told if difference == 0 or told != nothing else f"less than {in_words(0.001, evidence.headline.metric)[1:]}"


def _behind(evidence: Evidence, name: str, entry: dict[str, Any]) -> str:
    """Who pulls it down: those sites, how far, and with how many training rows."""
    chance = {"loses": "more than chance explains", "no evidence": "no more than chance explains"}
    verdict = f": {chance[entry['verdict']]}" if entry["verdict"] in chance else ""
    said = f"On average over sites, {name} is behind training alone ({_told(evidence, entry)}){verdict}."
    sites = [one for one in evidence.benefit() if one["arm"] == name and one["difference"] is not None]
    sign = evidence.headline.sign
    lower = sorted((e for e in sites if sign * e["difference"] < 0), key=lambda e: sign * e["difference"])
    if not lower:
        return said
    counts = evidence.results["sites"][0]["sites"]

    def told(one: dict[str, Any]) -> str:
        rows = counts.get(one["site"], {}).get("train")
        size = f", {rows} training rows" if rows is not None else ""
        return f"{one['site']} ({_points(evidence, one['difference'])}{size})"

    above = [one["site"] for one in sites if sign * one["difference"] > 0]
    rest = f", above at {listed(above)}" if above else ""
    return f"{said} Its mean is below at {listed([told(one) for one in lower])}{rest}."


def hospital_table(evidence: Evidence) -> Table | None:
    if len(evidence.sites) > 30:
        return None
    headline = evidence.headline
    rows = [
        [name, *(x for s in evidence.sites for x in mean_sd(arm["sites"].get(s, {}).get(headline.metric)))]
        for name, arm in evidence.arms.items()
    ]
    columns: dict[str, Format | None] = {"arm": None}
    for site in evidence.sites:
        columns |= {headline.above(site): headline.shown, f"SD, {site}": headline.shown}
    made = make_table("hospitals", f"{headline.title} at each site", columns, rows, "Each site's own test rows.")
    return without_empty(made) if evidence.of_images else made


def spread_table(evidence: Evidence) -> Table | None:
    headline = evidence.headline
    rows = []
    for name, arm in evidence.arms.items():
        means = {site: found[headline.metric]["mean"] for site, found in arm["sites"].items()}
        known = {site: mean for site, mean in means.items() if mean is not None}
        if known:
            worst, best = min(known, key=known.__getitem__), max(known, key=known.__getitem__)
            ends = [f"{site} ({headline.shown(known[site])})" for site in (worst, best)]
            sd = float(np.std(list(known.values()), ddof=1)) if len(known) > 1 else None
            rows.append([name, sd, known[best] - known[worst], *ends])
    columns = {"arm": None, "SD over sites": percent, "highest - lowest": percent, "lowest": None, "highest": None}
    note = f"Of the sites' means of {headline.word}, in points: hundredths."
    return make_table("spread", "How evenly the sites are served", columns, rows, note)


def difference_columns(headline: Headline) -> dict[str, Format | None]:
    """A difference and its interval."""
    return {headline.points: headline.difference, "from": headline.difference, "to": headline.difference}


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
    headline = evidence.headline
    columns: dict[str, Format | None] = {"arm": None, "site": None, **difference_columns(headline)}
    columns |= {"p": p_text, "verdict": None}
    paired = "paired over seeds" if evidence.seeds != 1 else "on the same test rows"
    note = f"{headline.title} against the same site training alone, {paired}. {corrected(evidence)}{headline.point}"
    return make_table("benefit", "What joining changed for each site", columns, rows, note)


def site_difference_table(evidence: Evidence) -> Table | None:
    """Each hospital counts the same here, however many rows it has."""
    headline = evidence.headline
    rows = []
    for name, arm in evidence.arms.items():
        mean = arm["within_sites"].get(headline.metric)
        if mean is None or mean["mean"] is None or len(arm["sites"]) < 2:
            continue
        line: list[Any] = [name, mean["mean"], *share_limits(mean["interval"])]
        for kind in ("alone", "reference"):
            entry = next((e for e in evidence.across(name, kind) if e["site"] is None), None)
            line += [entry["difference"], *limits(entry["interval"])] if entry else [None, None, None]
        rows.append(line)
    reference = evidence.reference or "the reference"
    columns: dict[str, Format | None] = {"arm": None, headline.above("mean over sites"): headline.shown}
    columns |= {"its lower limit": headline.shown, "its upper limit": headline.shown}
    for rival in ("alone", reference):
        columns |= {f"against {rival}": headline.difference}
        columns |= {f"from ({rival})": headline.difference, f"to ({rival})": headline.difference}
    note = f"Each site counts the same. Differences are paired. {corrected(evidence)}{headline.point}"
    return without_empty(make_table("across-sites", "On average over sites", columns, rows, note))


def reference_table(evidence: Evidence) -> Table | None:
    """Each hospital against the reference; against training alone it stands in `benefit`."""
    entries = [e for name in evidence.arms for e in evidence.across(name, "reference") if e["site"] is not None]
    rows = [[e["arm"], e["site"], e["difference"], *limits(e["interval"]), e["p_value"], e["verdict"]] for e in entries]
    columns: dict[str, Format | None] = {"arm": None, "site": None, **difference_columns(evidence.headline)}
    columns |= {"p": p_text, "verdict": None}
    title = f"Each site under each arm against {evidence.reference}"
    note = f"{evidence.headline.title} on each site's own test rows, paired. {corrected(evidence)}"
    note += evidence.headline.point
    return make_table("against-reference", title, columns, rows, note)


def best_single_table(evidence: Evidence) -> Table | None:
    entries = evidence.results["best_single"]
    if not entries:
        return None
    headline = headline_of(entries[0])
    rows = []
    for entry in entries:
        rows.append(
            [
                entry["arm"],
                entry["site"],
                entry["best"],
                entry[f"best_{entry['metric']}"],
                entry["difference"],
                *limits(entry["interval"]),
                entry["verdict"],
            ]
        )
    columns = {
        "arm": None,
        "site": None,
        "best single model from": None,
        headline.above(f"its {headline.word}"): headline.shown,
        **difference_columns(headline),
        "verdict": None,
    }
    note = f"The best model that one hospital alone could have trained, picked by its test {headline.word} there. "
    note += f"95 % CI, corrected for the {entries[0]['comparisons']} rows of this table."
    return make_table("best-single", "Against the best single-hospital model", columns, rows, note)


def external_table(evidence: Evidence) -> Table | None:
    headline = evidence.headline
    other = "auc" if headline.metric == "accuracy" else "accuracy"
    rows = []
    for arm in evidence.partial.values():
        outside = [site for site in arm["sites"] if site not in arm["train_at"]]
        if len(outside) == 1:
            found = arm["sites"][outside[0]]
            main = found[headline.metric]
            figures = [main["mean"], *share_limits(main["interval"]), found[other]["mean"]]
            own = evidence.arms[evidence.local]["sites"].get(outside[0]) if evidence.local else None
            rows.append([outside[0], arm["algorithm"]["name"], *figures, mean_sd(own and own[headline.metric])[0]])
    shown = headline.shown
    columns: dict[str, Format | None] = {"left out": None, "algorithm": None, headline.above(): shown}
    columns |= {"from": shown, "to": shown, HEADLINES[other].word: decimals, headline.above("its own model"): shown}
    note = "Trained by all other hospitals, tested at the one that took no part; beside it, its own model."
    return make_table("external", "A hospital left out, as an external test", columns, rows, note)


def number_table(evidence: Evidence) -> Table | None:
    entries = evidence.results["by_number_of_sites"]
    if not entries:
        return None
    headline = headline_of(entries[0])
    rows = []
    for entry in entries:
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
    shown = headline.shown
    columns: dict[str, Format | None] = {"algorithm": None, "hospitals": str, "combinations": str}
    columns |= {headline.above("taking part"): shown, "from": shown, "to": shown}
    columns |= {headline.above("outside"): shown, "from ": shown, "to ": shown}
    return make_table("number-of-sites", f"{headline.title} against the number of hospitals", columns, rows)


MOST_SITES = 12  # with a panel or a row of their own


def hospitals(evidence: Evidence) -> Figure | None:
    """Each arm at each site."""
    headline = evidence.headline
    sites, arms = evidence.sites, list(evidence.arms)
    if not 1 < len(sites) <= MOST_SITES:
        return None
    columns = min(len(sites), 4)
    rows = -(-len(sites) // columns)
    drawn = figure(rows * (0.7 + 0.19 * len(arms)))
    grid = drawn.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axes in grid.flat[len(sites) :]:
        axes.set_visible(False)
    for axes, site in zip(grid.flat, sites, strict=False):
        for place, arm in enumerate(arms):
            found = evidence.arms[arm]["sites"].get(site)
            if found:
                bar(axes, found[headline.metric], place, headline.scale, looks(evidence, arm)["color"])
        axes.set_title(site, fontsize=9)
    name_rows(grid[0, 0], arms)
    for axes in grid.flat[max(0, len(sites) - columns) : len(sites)]:
        axes.tick_params(labelbottom=True)  # below the last panel of each column, whichever row it is in
    drawn.supxlabel(f"{headline.word} on the site's own test rows{headline.unit}, with 95 % CI", fontsize=9)
    return drawn


def benefit(evidence: Evidence) -> Figure | None:
    """What joining changed for each site, against training alone."""
    entries = {(e["arm"], e["site"]): e for e in evidence.benefit() if e["interval"] is not None}
    known = {arm for arm, _ in entries}
    arms = [arm for arm in evidence.few_arms if arm in evidence.federated and arm in known]
    if not arms:  # in a grid, training alone may stand beside other arms than the first
        arms = list(
            {evidence.arms[arm]["family"]: arm for arm in reversed(evidence.federated) if arm in known}.values()
        )
    if not entries or not arms or len(evidence.sites) > 20:
        return None
    scale = evidence.headline.difference_scale
    drawn = figure(0.9 + len(evidence.sites) * max(0.4, 0.16 * len(arms)))
    axes = drawn.subplots()
    axes.axvline(0, color="black", linewidth=0.8)
    for a, arm in enumerate(arms):
        offset = (a - (len(arms) - 1) / 2) * 0.75 / len(arms)
        for place, site in enumerate(evidence.sites):
            entry = entries.get((arm, site))
            if entry:
                low, high = (scale * limit for limit in entry["interval"])
                colour = looks(evidence, arm)["color"]
                axes.plot([low, high], [place + offset] * 2, color=colour, linewidth=1.4)
                label = arm if place == 0 else None
                axes.plot(scale * entry["difference"], place + offset, "o", color=colour, markersize=4, label=label)
    name_rows(axes, evidence.sites)
    axes.set_xlabel(
        f"{evidence.headline.difference_unit}{evidence.headline.word} more than alone, with corrected 95 % CI"
    )
    legend(drawn, loc="outside lower center", ncols=4)
    return drawn


def elsewhere(evidence: Evidence) -> Figure | None:
    """Where a model was trained against where it was tested."""
    arms = [name for name in evidence.partial if len(evidence.partial[name]["sites"]) <= MOST_SITES]
    if not arms:
        return None
    rows = {"+".join(evidence.partial[name]["train_at"]): evidence.partial[name]["sites"] for name in arms}
    drawn = figure(1.1 + 0.24 * len(rows))
    axes = drawn.subplots()
    sites, headline = evidence.sites, evidence.headline
    values = np.array([[_value(row.get(site), headline) for site in sites] for row in rows.values()])
    image = axes.imshow(values, cmap="cividis", aspect="auto")
    middle = (np.nanmin(values) + np.nanmax(values)) / 2
    for i, trained in enumerate(rows):
        for j, site in enumerate(sites):
            inside = site in trained.split("+")
            if np.isnan(values[i, j]):
                continue  # a site with too few rows of one class
            text = headline.shown(values[i, j] / headline.scale) + (" ·" if inside else "")
            axes.text(
                j, i, text, ha="center", va="center", fontsize=8, color="black" if values[i, j] > middle else "white"
            )
    axes.set_xticks(range(len(sites)), sites)
    axes.set_yticks(range(len(rows)), [trained.replace("+", " + ") for trained in rows])
    axes.set_xlabel("tested at (· took part in training)")
    axes.set_ylabel("trained at")
    axes.grid(visible=False)
    drawn.colorbar(image, ax=axes, label=f"{headline.word}{headline.unit}")
    return drawn


def _value(figures: dict[str, Any] | None, headline: Headline) -> float:
    mean = figures[headline.metric]["mean"] if figures else None
    return float("nan") if mean is None else headline.scale * float(mean)


def number_of_sites(evidence: Evidence) -> Figure | None:
    entries = evidence.results["by_number_of_sites"]
    if not entries:
        return None
    headline = headline_of(entries[0])
    drawn = figure(3.0, 5.6)
    axes = drawn.subplots()
    for number, (key, label) in enumerate((("inside", "sites that took part"), ("outside", "sites that did not"))):
        points = [(entry["sites"], entry[key]) for entry in entries if entry[key] and entry[key]["mean"] is not None]
        offset = (number - 0.5) * 0.08
        means = [headline.scale * p["mean"] for _, p in points]
        axes.plot([n + offset for n, _ in points], means, color=COLOURS[number], alpha=0.5)
        for place, (size, point) in enumerate(points):
            title = label if place == 0 else None
            colour, mark = COLOURS[number], MARKERS[number]
            bar(axes, point, size + offset, headline.scale, colour, mark, title, upright=True)
    axes.set_xticks(sorted({entry["sites"] for entry in entries}))
    axes.set_xlabel("hospitals that train together")
    axes.set_ylabel(f"mean {headline.word}{headline.unit}")
    legend(drawn, loc="outside lower center", ncols=2)
    return drawn


def _values(evidence: Evidence) -> dict[str, Any]:
    return {
        "across": site_difference_sentences(evidence),
        "best_single": best_single_sentences(evidence),
        "per_site": {site: site_summary(evidence, site) for site in evidence.sites[:MOST_DESCRIBED]},
    }


PAGE = """
<section id="hospitals"><h2>Hospital by hospital</h2>
{% for sentence in across %}<p>{{ sentence }}</p>{% endfor %}
{{ show("across-sites") }}{{ draw("benefit") }}{{ show("hospitals") }}{{ draw("hospitals") }}{{ show("spread") }}
{% if best_single or "elsewhere" in svgs %}<h3>Against the best single hospital</h3>
{% for sentence in best_single %}<p>{{ sentence }}</p>{% endfor %}
{{ draw("elsewhere") }}{{ show("external") }}{{ show("number-of-sites") }}{{ draw("number-of-sites") }}
{% call fold("Every arm at every hospital against the best single model") %}{{ show("best-single") }}{% endcall %}
{% endif %}
{% for site, summary in per_site.items() %}<article class="site"><h3>{{ site }}</h3>
{% for sentence in summary.words %}<p>{{ sentence }}</p>{% endfor %}
<p class="meta">{{ summary.rows }}</p></article>
{% endfor %}
{% call fold("Every arm at every site against training alone") %}{{ show("benefit") }}{% endcall %}
{% if "against-reference" in tables %}
{% call fold("Every arm at every site against " ~ evidence.reference) %}{{ show("against-reference") }}{% endcall %}
{% endif %}
</section>"""
SECTION = Section(
    PAGE,
    "hospitals",
    "Hospital by hospital",
    _values,
    tables=(
        hospital_table,
        spread_table,
        site_difference_table,
        benefit_table,
        reference_table,
        best_single_table,
        external_table,
        number_table,
    ),
    figures={
        "hospitals": Drawing(
            "{Metric} at each site", "Each site's own test rows, with 95 % intervals.", hospitals, tall=True
        ),
        "benefit": Drawing(
            "What joining changed for each site",
            "Against the same site training alone, paired over seeds. Right of 0: joining helped.{point}",
            benefit,
            one_seed="Against the same site training alone, on the same test rows. Right of 0: joining helped.{point}",
        ),
        "elsewhere": Drawing(
            "One hospital's model at another",
            "Mean {metric} over seeds. A cell without a dot is an external test: that hospital took no part.",
            elsewhere,
        ),
        "number-of-sites": Drawing(
            "{single} against the number of hospitals",
            "Mean over the combinations of that many hospitals in the study, every hospital counting alike, with 95 % "
            "intervals over seeds.",
            number_of_sites,
        ),
    },
)
