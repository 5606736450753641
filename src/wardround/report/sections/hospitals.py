"""Hospital by hospital: what each got alone, together, and from the models of others."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from wardround.evaluation.comparisons.compare import interval_words, why_unknown
from wardround.evaluation.comparisons.listing import grouped
from wardround.report.evidence import Evidence
from wardround.report.headline import Headline
from wardround.report.phrases import corrected, drawn_up_to
from wardround.report.render.figures import Drawing
from wardround.report.render.style import (
    COLOURS,
    MARKERS,
    bar,
    difference_text,
    legend,
    looks,
    name_rows,
    offset,
    panel_grid,
    single_axes,
    tell,
)
from wardround.report.render.table import (
    CI,
    OTHER_CI,
    Format,
    Table,
    limits,
    listed,
    make_table,
    mean_sd,
    p_text,
    without_empty,
)
from wardround.report.section import Section, compact

UNLIKE = 20  # per cent by which disease rates must differ to be named as a reason
MOST_ARMS = 6  # with a sentence of their own; the table has them all
MOST_PANELS = 12
MOST_ROWS = 20


def best_single_sentences(evidence: Evidence) -> list[str]:
    """Which federated arm is at least as good as the best single-hospital model everywhere, or where and why not."""
    singles, arms = evidence.results["best_single"], evidence.results["arms"]
    entries = grouped((entry["arm"], entry) for entry in singles if not arms[entry["arm"]]["variant"])
    if not entries:
        return []
    everywhere = [arm for arm, those in entries.items() if all(entry["as_good"] for entry in those)]
    if everywhere:
        return [
            f"At every hospital the mean over seeds is at least that of the best single model: {listed(everywhere)}."
        ]

    def worst(arm: str) -> float:
        differences = [entry["difference"] for entry in entries[arm]]
        return min(-1.0 if value is None else evidence.headline.sign * value for value in differences)

    closest = max(entries, key=worst)
    shared = evidence.reference if evidence.reference in entries else closest
    return [
        "No federated arm has a mean over seeds that is at least that of the best single model at every hospital. The "
        f"closest is {closest}; beside each difference stands whether chance explains it.",
        *(_against_best(evidence, arm, entries[arm]) for arm in dict.fromkeys((closest, shared))),
        _likely_reasons(evidence, evidence.headline_for(entries[closest][0]["metric"]).word),
    ]


def _against_best(evidence: Evidence, arm: str, entries: Sequence[Mapping[str, Any]]) -> str:
    parts = []
    for entry in (entry for entry in entries if entry["difference"] is not None):
        rows = evidence.site_counts[entry["site"]]["test"]
        measure = evidence.headline_for(entry["metric"]).measure
        counts_patients = measure.metric.counts_rows and not evidence.findings
        patients = f"{entry['difference'] * rows:+.1f} of {rows} test rows, " if counts_patients else ""
        chance = {"gains": "a gain", "loses": "a loss"}.get(entry["verdict"], "within chance")
        amount = measure.difference(entry["difference"])
        parts.append(f"{entry['site']} {amount} ({patients}{chance}; best: {entry['best']})")
    return f"{arm}: {'; '.join(parts)}."


def _likely_reasons(evidence: Evidence, word: str) -> str:
    reasons = (
        f"Likely reasons: the best single model is picked by its test {word}, which no hospital could do beforehand"
    )
    rates = evidence.rates
    if not rates or max(rates) - min(rates) <= UNLIKE:
        return f"{reasons}."
    return (
        f"{reasons}; and the share of {evidence.classes[1]} runs from {min(rates):.0f} to {max(rates):.0f} % between "
        "hospitals, so that one shared model may not suit every one of them."
    )


def site_difference_sentences(evidence: Evidence) -> list[str]:
    """Federated arms against training alone on average over sites: who is at least as good, and why others are not."""
    means = {name: evidence.mean_difference(name, "alone") for name in evidence.federated}
    known = {name: entry for name, entry in means.items() if entry and entry["difference"] is not None}
    sign = evidence.headline.sign
    ahead = [f"{name} ({_amount(evidence, entry)})" for name, entry in known.items() if sign * entry["difference"] >= 0]
    behind = {name: entry for name, entry in known.items() if sign * entry["difference"] < 0}
    sentences = []
    if ahead:
        who = listed(ahead)
        sentences.append(f"On average over sites, each counting the same, the difference from training alone: {who}.")
    sentences += [_behind(evidence, name, entry) for name, entry in list(behind.items())[:MOST_ARMS]]
    if len(behind) > MOST_ARMS:
        others = listed(list(behind)[MOST_ARMS:])
        sentences.append(f"Behind training alone are also {others}; the table says by how much.")
    return sentences


def _amount(evidence: Evidence, entry: Mapping[str, Any]) -> str:
    difference = _points(evidence, entry["difference"])
    if entry["interval"] is None:
        return f"{difference}; {why_unknown(entry)}"
    return f"{difference}, {interval_words(entry, evidence.headline.measure)}"


def _points(evidence: Evidence, difference: float) -> str:
    """A difference that is not 0 is not shown as 0.0."""
    measure = evidence.headline.measure
    text = measure.difference(difference)
    rounded_away = difference != 0 and text == measure.difference(0.0)
    return f"less than {measure.least}" if rounded_away else text


def _behind(evidence: Evidence, name: str, entry: Mapping[str, Any]) -> str:
    """Who pulls it down: those sites, how far, and with how many training rows."""
    chance = {"loses": ": more than chance explains", "no evidence": ": no more than chance explains"}
    verdict = chance.get(entry["verdict"], "")
    sentence = f"On average over sites, {name} is behind training alone ({_amount(evidence, entry)}){verdict}."
    sites = [each for each in evidence.benefit() if each["arm"] == name and each["difference"] is not None]
    gains = {each["site"]: evidence.headline.sign * each["difference"] for each in sites}
    differences = {each["site"]: each["difference"] for each in sites}
    lower = sorted((site for site, gain in gains.items() if gain < 0), key=gains.__getitem__)
    if not lower:
        return sentence

    def described(site: str) -> str:
        rows = evidence.site_counts.get(site, {}).get("train")
        size = f", {rows} training rows" if rows is not None else ""
        return f"{site} ({_points(evidence, differences[site])}{size})"

    above = [site for site, gain in gains.items() if gain > 0]
    worse, better = ("higher", "lower") if evidence.headline.sign < 0 else ("below", "above")
    rest = f", {better} at {listed(above)}" if above else ""
    return f"{sentence} Its mean is {worse} at {listed([described(site) for site in lower])}{rest}."


def hospital_table(evidence: Evidence) -> Table:
    headline, columns = evidence.headline, []
    rows = [
        [name, *(x for s in evidence.sites for x in mean_sd(arm["sites"].get(s, {}).get(headline.metric)))]
        for name, arm in evidence.arms.items()
    ]
    for site in evidence.sites:
        columns += [headline.above(site), f"SD, {site}"]
    return compact(
        evidence,
        make_table(
            "hospitals",
            f"{headline.title} at each site",
            {"arm": None, **dict.fromkeys(columns, headline.shown)},
            rows,
            "Each site's own test rows.",
        ),
    )


def spread_table(evidence: Evidence) -> Table:
    headline, rows = evidence.headline, []
    for name, arm in evidence.arms.items():
        low, high = arm["spread"]["lowest"], arm["spread"]["highest"]
        if low:
            ends = [f"{end['site']} ({headline.shown(end[headline.metric])})" for end in (low, high)]
            rows.append([name, arm["spread"]["sd"], high[headline.metric] - low[headline.metric], *ends])
    return make_table(
        "spread",
        "How evenly the sites are served",
        {
            "arm": None,
            **dict.fromkeys(("SD over sites", "highest - lowest"), headline.spread),
            "lowest": None,
            "highest": None,
        },
        rows,
        f"Of the sites' means of {headline.word}, {headline.difference_words}{': hundredths' * headline.in_points}.",
    )


def _difference_columns(headline: Headline) -> dict[str, Format | None]:
    return dict.fromkeys((headline.points, *CI), headline.difference)


def benefit_table(evidence: Evidence) -> Table:
    headline = evidence.headline
    paired = "paired over seeds" if evidence.seeds != 1 else "on the same test rows"
    note = f"{headline.title} against the same site training alone, {paired}. {corrected(evidence)}{headline.point}"
    title = "What joining changed for each site"
    return _difference_table("benefit", title, evidence.benefit(), headline, note)


def reference_table(evidence: Evidence) -> Table:
    """Each hospital against the reference; against training alone it stands in `benefit`."""
    entries = [entry for name in evidence.arms for entry in evidence.site_differences(name, "reference")]
    title = f"Each site under each arm against {evidence.reference}"
    headline = evidence.headline
    note = f"{headline.title} on each site's own test rows, paired. {corrected(evidence)}{headline.point}"
    of_sites = [entry for entry in entries if entry["site"] is not None]
    return _difference_table("against-reference", title, of_sites, headline, note)


def _difference_table(
    name: str, title: str, entries: Sequence[Mapping[str, Any]], headline: Headline, note: str
) -> Table:
    rows = [[e["arm"], e["site"], e["difference"], *limits(e["interval"]), e["p_value"], e["verdict"]] for e in entries]
    return make_table(
        name,
        title,
        {"arm": None, "site": None, **_difference_columns(headline), "p": p_text, "verdict": None},
        rows,
        note,
    )


def site_difference_table(evidence: Evidence) -> Table:
    headline, rows = evidence.headline, []
    for name, arm in evidence.arms.items():
        mean = arm["within_sites"].get(headline.metric)
        if mean is None or mean["mean"] is None or len(arm["sites"]) < 2:
            continue
        row: list[Any] = [name, mean["mean"], *headline.limits(mean["interval"])]
        for kind in ("alone", "reference"):
            entry = evidence.mean_difference(name, kind)
            row += [entry["difference"], *limits(entry["interval"])] if entry else [None, None, None]
        rows.append(row)
    means = (headline.above("mean over sites"), *CI)
    rivals = ("alone", evidence.reference or "the reference")
    differences = [column for rival in rivals for column in (f"against {rival}", *(f"{end} ({rival})" for end in CI))]
    return without_empty(
        make_table(
            "site-differences",
            "On average over sites",
            {"arm": None, **dict.fromkeys(means, headline.shown), **dict.fromkeys(differences, headline.difference)},
            rows,
            f"Each site counts the same. Differences are paired. {corrected(evidence)}{headline.point}",
        )
    )


def best_single_table(evidence: Evidence) -> Table | None:
    entries = evidence.results["best_single"]
    if not entries:
        return None
    headline = evidence.headline_for(entries[0]["metric"])
    rows = [
        [
            *(entry[key] for key in ("arm", "site", "best", f"best_{entry['metric']}", "difference")),
            *limits(entry["interval"]),
            entry["verdict"],
        ]
        for entry in entries
    ]
    return make_table(
        "best-single",
        "Against the best single-hospital model",
        {
            "arm": None,
            "site": None,
            "best single model from": None,
            headline.above(f"its {headline.word}"): headline.shown,
            **_difference_columns(headline),
            "verdict": None,
        },
        rows,
        f"The best model that one hospital alone could have trained, picked by its test {headline.word} there. "
        f"95 % CI, corrected for the {entries[0]['comparisons']} rows of this table.",
    )


def external_table(evidence: Evidence) -> Table:
    headline = evidence.headline
    others = evidence.task.report.at_outsiders(headline.metric)
    rows = []
    for arm in evidence.partial.values():
        outside = [site for site in arm["sites"] if site not in arm["train_at"]]
        if len(outside) == 1:
            figures = arm["sites"][outside[0]]
            main = figures[headline.metric]
            own = evidence.arms[evidence.local]["sites"].get(outside[0]) if evidence.local else None
            means = [main["mean"], *headline.limits(main["interval"]), *(figures[other]["mean"] for other in others)]
            rows.append([outside[0], arm["algorithm"]["name"], *means, mean_sd(own and own[headline.metric])[0]])
    return make_table(
        "external",
        "A hospital left out, as an external test",
        {
            "left out": None,
            "algorithm": None,
            **dict.fromkeys((headline.above(), *CI), headline.shown),
            **dict(evidence.headline_for(other).column for other in others),
            headline.above("its own model"): headline.shown,
        },
        rows,
        "Trained by all other hospitals, tested at the one that took no part; beside it, its own model.",
    )


def number_table(evidence: Evidence) -> Table | None:
    entries = evidence.results["by_number_of_sites"]
    if not entries:
        return None
    headline, rows = evidence.headline_for(entries[0]["metric"]), []
    for entry in entries:
        inside, outside = entry["inside"] or {}, entry["outside"] or {}
        figures = [x for part in (inside, outside) for x in (part.get("mean"), *headline.limits(part.get("interval")))]
        rows.append([entry["algorithm"], entry["sites"], entry["combinations"], *figures])
    shown = (headline.above("taking part"), *CI, headline.above("outside"), *OTHER_CI)
    return make_table(
        "number-of-sites",
        f"{headline.title} against the number of hospitals",
        {"algorithm": None, "hospitals": str, "combinations": str, **dict.fromkeys(shown, headline.shown)},
        rows,
    )


def hospitals(evidence: Evidence) -> Figure | None:
    sites, arms, headline = evidence.sites, list(evidence.arms), evidence.headline
    if not 1 < len(sites) <= MOST_PANELS:
        return None
    columns = min(len(sites), 4)
    height = -(-len(sites) // columns) * (0.7 + 0.19 * len(arms))
    drawn, panels = panel_grid(len(sites), columns, height, sharey=True)
    for axes, site in zip(panels.flat, sites, strict=False):
        for place, arm in enumerate(arms):
            figures = evidence.arms[arm]["sites"].get(site)
            if figures and arm not in evidence.off_scale:
                bar(
                    axes,
                    figures[headline.metric],
                    place,
                    headline,
                    looks(evidence, arm)["color"],
                    told=f"{arm}, {site}",
                )
        axes.set_title(site, fontsize=9)
    name_rows(panels[0, 0], arms)
    for axes in panels.flat[max(0, len(sites) - columns) : len(sites)]:
        axes.tick_params(labelbottom=True)  # below the last panel of each column, whichever row it is in
    drawn.supxlabel(f"{headline.word} on the site's own test rows{headline.unit}, with 95 % CI", fontsize=9)
    return drawn


def benefit(evidence: Evidence) -> Figure | None:
    """What joining changed for each site, against training alone."""
    shown = [entry for entry in evidence.benefit() if entry["arm"] not in evidence.off_scale]
    entries = {(e["arm"], e["site"]): e for e in shown if e["interval"] is not None}
    arms = _compared_with_alone(evidence, {arm for arm, _ in entries})
    if not arms or len(evidence.sites) > MOST_ROWS:
        return None
    scale = evidence.headline.difference_scale
    drawn, axes = single_axes(0.9 + len(evidence.sites) * max(0.4, 0.16 * len(arms)))
    axes.axvline(0, color="black", linewidth=0.8)
    for number, arm in enumerate(arms):
        colour, aside = looks(evidence, arm)["color"], offset(number, len(arms), 0.75)
        for place, site in enumerate(evidence.sites):
            entry = entries.get((arm, site))
            if entry:
                ends, y = [scale * limit for limit in entry["interval"]], place + aside
                axes.plot(ends, [y, y], color=colour, linewidth=1.4)
                label = arm if place == 0 else None
                (mark,) = axes.plot(scale * entry["difference"], y, "o", color=colour, markersize=4, label=label)
                tell(mark, f"{arm}, {site}: {difference_text(evidence, entry)}")
    name_rows(axes, evidence.sites)
    more = evidence.headline.more_than(evidence.headline.word, "alone")
    axes.set_xlabel(f"{more}, with corrected 95 % CI")
    legend(drawn, loc="outside lower center", ncols=4)
    return drawn


def _compared_with_alone(evidence: Evidence, known: set[str]) -> list[str]:
    """One arm of each family. In a grid, training alone may stand beside other arms than the first."""
    first = [arm for arm in evidence.few_arms if arm in evidence.federated and arm in known]
    families = {evidence.arms[arm]["family"]: arm for arm in reversed(evidence.federated) if arm in known}
    return first or list(families.values())


def elsewhere(evidence: Evidence) -> Figure | None:
    arms = [arm for arm in evidence.partial.values() if len(arm["sites"]) <= MOST_PANELS]
    if not arms:
        return None
    rows = {"+".join(arm["train_at"]): arm["sites"] for arm in arms}
    sites, headline = evidence.sites, evidence.headline
    drawn, axes = single_axes(1.1 + 0.24 * len(rows))
    means = [[row[site][headline.metric]["mean"] if site in row else None for site in sites] for row in rows.values()]
    values = headline.scale * np.array(means, dtype=float)
    image = axes.imshow(values, cmap="cividis", aspect="auto")
    middle = (np.nanmin(values) + np.nanmax(values)) / 2
    for (i, j), value in np.ndenumerate(values):
        if not np.isnan(value):  # it is at a site with too few rows of one class
            inside = sites[j] in list(rows)[i].split("+")
            text = headline.shown(value / headline.scale) + (" ·" if inside else "")
            colour = "black" if value > middle else "white"
            axes.text(j, i, text, ha="center", va="center", fontsize=8, color=colour)
    axes.set_xticks(range(len(sites)), sites)
    axes.set_yticks(range(len(rows)), [trained.replace("+", " + ") for trained in rows])
    axes.set(xlabel="tested at (· took part in training)", ylabel="trained at")
    axes.grid(visible=False)
    drawn.colorbar(image, ax=axes, label=f"{headline.word}{headline.unit}")
    return drawn


def number_of_sites(evidence: Evidence) -> Figure | None:
    entries = evidence.results["by_number_of_sites"]
    if not entries:
        return None
    headline = evidence.headline_for(entries[0]["metric"])
    drawn, axes = single_axes(3.0)
    for number, (key, title) in enumerate((("inside", "sites that took part"), ("outside", "sites that did not"))):
        points = [(entry["sites"], entry[key]) for entry in entries if entry[key] and entry[key]["mean"] is not None]
        aside, colour, mark = (number - 0.5) * 0.08, COLOURS[number], MARKERS[number]
        means = [headline.scale * figures["mean"] for _, figures in points]
        if len(points) > 2:  # two points are no trend
            axes.plot([size + aside for size, _ in points], means, color=colour, alpha=0.5)
        for place, (size, figures) in enumerate(points):
            label = title if place == 0 else None
            bar(axes, figures, size + aside, headline, colour, mark, label, upright=True, told=f"{title}, {size}")
    axes.set_xticks(sorted({entry["sites"] for entry in entries}))
    axes.set(xlabel="hospitals that train together", ylabel=f"mean {headline.word}{headline.unit}")
    legend(drawn, loc="outside lower center", ncols=2)
    return drawn


def not_drawn(evidence: Evidence) -> list[str]:
    count = len(evidence.sites)
    lines = drawn_up_to(MOST_PANELS, count, "Hospitals with a panel of their own")
    return [*lines, *(drawn_up_to(MOST_ROWS, count, "Hospitals under every arm") if evidence.local else [])]


PAGE = """
<section id="hospitals"><h2>Hospital by hospital</h2>
{% for sentence in site_differences %}<p>{{ sentence }}</p>{% endfor %}
{{ show("site-differences") }}{{ draw("benefit") }}{{ show("hospitals") }}{{ draw("hospitals") }}
{{ show("spread") }}{{ part("fairness.evenness") }}
{% if best_single or "elsewhere" in svgs %}<h3>Against the best single hospital</h3>
{% for sentence in best_single %}<p>{{ sentence }}</p>{% endfor %}
{{ draw("elsewhere") }}{{ show("external") }}{{ show("number-of-sites") }}{{ draw("number-of-sites") }}
{% call fold("Every arm at every hospital against the best single model") %}{{ show("best-single") }}{% endcall %}
{% endif %}
{% call fold("Every arm at every site against training alone") %}{{ show("benefit") }}{% endcall %}
{% if "against-reference" in tables %}
{% call fold("Every arm at every site against " ~ evidence.reference) %}{{ show("against-reference") }}{% endcall %}
{% endif %}
</section>"""
SECTION = Section(
    PAGE,
    "hospitals",
    "Hospital by hospital",
    {
        "site_differences": site_difference_sentences,
        "best_single": best_single_sentences,
    },
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
        "hospitals": Drawing("{Metric} at each site", "Each site's own test rows, with 95 % CI.", hospitals, tall=True),
        "benefit": Drawing(
            "What joining changed for each site",
            "Against the same site training alone, paired over seeds. {better} of 0: joining helped.{point}",
            benefit,
            one_seed="Against the same site training alone, on the same test rows. {better} of 0: joining "
            "helped.{point}",
        ),
        "elsewhere": Drawing(
            "One hospital's model at another",
            "Mean {metric} over seeds. A cell without a dot is an external test: that hospital took no part.",
            elsewhere,
        ),
        "number-of-sites": Drawing(
            "{single} against the number of hospitals",
            "Mean over the combinations of that many hospitals in the study, every hospital counting alike, with 95 % "
            "CI over seeds.",
            number_of_sites,
        ),
    },
    remarks={"limits": not_drawn},
)
