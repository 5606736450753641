"""Topology: sites in regions, and parties with different columns of the same patients."""

from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from wardround.evaluation.comparisons.compare import in_words, interval_words
from wardround.report.evidence import Evidence
from wardround.report.render.figures import Drawing
from wardround.report.render.style import COLOURS, WIDTH, bar, figure, legend, name_rows
from wardround.report.render.table import Format, Table, count_text, listed, make_table, one_decimal
from wardround.report.section import Section

LINKS = {
    "site_region": "sites and their regions",
    "region_global": "regions and the coordinator of all",
    "flat": "if flat: sites and the one coordinator",
}


VERDICTS = {"gains": "own model better", "loses": "model of all better", "no evidence": "no evidence of a difference"}


MOST_NAMED = 8  # regions that a sentence names


def region_sentences(evidence: Evidence) -> list[str]:
    """Who is in which region and how often regions meet; what that cost; and whose own model is better at home."""
    alike: dict[str, list[str]] = {}
    told = evidence.topologies("hierarchical")
    for name, topology in told.items():
        shape = {region: found["sites"] for region, found in topology["regions"].items()}
        alike.setdefault(repr((shape, topology["regional_rounds"], topology["global_rounds"])), []).append(name)
    made = []
    for names in alike.values():
        made += [_formed(names, told[names[0]]), _cost(names[0], told[names[0]], len(names) > 1)]
    found: dict[str, list[str]] = {}
    for name, topology in told.items():
        verdict = _verdict(evidence, topology)
        if verdict is not None:
            found.setdefault(verdict, []).append(name)
    return made + [f"In {listed(names)}, {verdict}." for verdict, names in found.items()]


def _formed(arms: list[str], topology: dict[str, Any]) -> str:
    regions, each, merged = topology["regions"], topology["regional_rounds"], topology["global_rounds"]
    count = sum(len(found["sites"]) for found in regions.values())
    names = [f"{name} ({_counted(len(found['sites']), 'site')})" for name, found in regions.items()]
    shown = (
        listed(names)
        if len(names) <= MOST_NAMED
        else f"{', '.join(names[:MOST_NAMED])} and {len(names) - MOST_NAMED} more"
    )
    rounds = "each round" if each == 1 else f"every {each} rounds"
    return (
        f"In {listed(arms)}, {_counted(count, 'site')} form {_counted(len(regions), 'region')}: {shown}. A region's "
        f"coordinator averages the updates of its own sites; after {rounds} the coordinator of all averages the "
        f"regions' models, {_counted(merged, 'time')} in all, each by the weight of the updates behind it."
    )


def _cost(arm: str, topology: dict[str, Any], several: bool) -> str:
    top, flat = topology["cost"]["region_global"], topology["cost"]["flat"]
    of = f" (of {arm})" if several else ""
    less = f", {_total(flat) / _total(top):.1f} times as much" if _total(top) else ""
    return (
        f"With one seed{of}, {_messages(top):,.0f} messages with {_total(top) / 1000:,.1f} KB went between regions and "
        f"the coordinator of all. In a flat federation of as many rounds it would have had {_messages(flat):,.0f} "
        f"messages with {_total(flat) / 1000:,.1f} KB{less}; here those go between sites and their regions."
    )


def _verdict(evidence: Evidence, topology: dict[str, Any]) -> str | None:
    """Where regions' own models are better at home than the model of all, and where they are not."""
    metric, word = evidence.headline.metric, evidence.headline.word
    known = {
        region: found["difference"][metric]
        for region, found in topology["regions"].items()
        if found["difference"] is not None and found["difference"][metric]["difference"] is not None
    }
    if not known or len(topology["regions"]) < 2:
        return None
    by = {verdict: [region for region, entry in known.items() if entry["verdict"] == verdict] for verdict in VERDICTS}
    parts = []
    if by["gains"]:
        parts.append(f"the region's own model is better in {listed(by['gains'])}")
    if by["loses"]:
        parts.append(f"the model of all is better in {listed(by['loses'])}")
    if by["no evidence"]:
        where = "any region" if len(by["no evidence"]) == len(known) else listed(by["no evidence"])
        parts.append(f"there is no evidence of a difference between the two in {where}")
    if not parts:
        return f"it cannot be told whether a region's own model has a better {word} at home than the model of all"
    return f"by {word} on a region's own test rows, {'; '.join(parts)} (corrected for the number of regions)"


def region_table(evidence: Evidence) -> Table:
    """Each region's own model beside the model of all, on the same rows."""
    headline, rows = evidence.headline, []
    for name, topology in evidence.topologies("hierarchical").items():
        for region, found in topology["regions"].items():
            figures: list[Any] = [None] * 6
            test = None if found["test"] is None else _whole(found["test"])
            if found["metrics"] is not None:
                entry = found["difference"][headline.metric]
                means = [found["metrics"][kind][headline.metric]["mean"] for kind in ("regional", "global")]
                limits = entry["interval"] or [None, None]
                figures = [*means, entry["difference"], *limits, VERDICTS.get(entry["verdict"], entry["verdict"])]
            rows.append([name, region, len(found["sites"]), found["train"], test, *figures])
    columns: dict[str, Format | None] = {"arm": None, "region": None, "sites": str, "training rows": str}
    columns |= {"test rows": count_text, headline.above(f"own model: {headline.word}"): headline.shown}
    columns |= {headline.above(f"model of all: {headline.word}"): headline.shown}
    columns |= {f"own less all, {headline.points}": headline.difference}
    columns |= {"from": headline.difference, "to": headline.difference, "verdict": None}
    note = (
        "A region's own model is the one that it had before the last average over regions. Both are scored on the test "
        f"rows of the region's sites; the difference is paired, with its 95 % CI, corrected for the "
        f"number of regions.{headline.point}"
    )
    note = " ".join([note, *_as_told(evidence)])
    return make_table("regions", "Each region's own model beside the model of all", columns, rows, note)


def _as_told(evidence: Evidence) -> list[str]:
    """Of a run across hospitals: how figures of regions were put together, and whose rows are not among them."""
    regions = [found for told in evidence.topologies("hierarchical").values() for found in told["regions"].values()]
    if not evidence.deployed or not regions:
        return []
    words = ["Each hospital scored both models and told counts, so that intervals are over seeds and need two of them."]
    bounds = [value or 0.0 for one in regions for value in (one.get("auc_error_bound") or {}).values()]
    if evidence.headline.metric == "auc" and any(bounds):
        off = f"The AUC of a region may be off by up to {max(bounds):.3f}"
        words.append(f"{off}; intervals of AUC are wider by what both models' may be.")
    silent = dict.fromkeys(site for one in regions for site in one.get("withheld") or ())
    if silent:
        smallest = (evidence.study.get("deployment") or {}).get("smallest_cell")
        fewer = f" (fewer than {smallest} patients tested)" if smallest else ""
        words.append(f"Without rows that a hospital withholds with some seed{fewer}: of {listed(list(silent))}.")
    if any(one["metrics"] is None for one in regions):
        words.append("A region without figures has no hospital that told any.")
    return words


def link_table(evidence: Evidence) -> Table:
    rows = []
    for name, topology in evidence.topologies("hierarchical").items():
        rounds = topology["regional_rounds"] * topology["global_rounds"]
        for key, title in LINKS.items():
            link = topology["cost"][key]
            sizes = [link["bytes_down"] / 1000, link["bytes_up"] / 1000, _total(link) / 1000 / rounds]
            messages = [_whole(link[key]) for key in ("messages_down", "messages_up")]
            rows.append([name, title, *messages, *sizes])
    columns: dict[str, Format | None] = {
        "arm": None,
        "between": None,
        "messages down": count_text,
        "messages up": count_text,
    }
    columns |= {"KB down": one_decimal, "KB up": one_decimal, "KB a round": one_decimal}
    note = "Of one seed: tensors without framing. Down is towards the sites. Flat: as many rounds without regions."
    return make_table("links", "What each kind of link carried", columns, rows, note)


def region_privacy_sentences(evidence: Evidence) -> list[str]:
    """Who sees what, where there are regions."""
    arms = evidence.topologies("hierarchical")
    if not arms:
        return []
    secure = (evidence.study.get("privacy") or {}).get("secure_sum") is not None
    sees = "the sum of its sites' updates" if secure else "its sites' updates"
    return [
        f"A region's coordinator sees {sees}; the coordinator of all sees the regions' models and no site's update. In "
        f"{listed(list(arms))} what is said of one coordinator holds for these two kinds."
    ]


def _messages(link: dict[str, float]) -> float:
    return link["messages_down"] + link["messages_up"]


def _whole(count: float) -> int | float:
    """On average over seeds it need not be."""
    return int(count) if count.is_integer() else count


def _total(link: dict[str, float]) -> float:
    return link["bytes_down"] + link["bytes_up"]


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


WITHOUT_PARTY = {"gains": "better without", "loses": "worse without", "no evidence": "no evidence of a difference"}


def party_sentences(evidence: Evidence) -> list[str]:
    """Who holds what, whom they have in common, what went between them, and what is lost while one is missing."""
    told = evidence.topologies("vertical")
    alike: dict[str, list[str]] = {}
    for name, topology in told.items():
        alike.setdefault(repr((topology["parties"], topology["labels"], topology["matched"])), []).append(name)
    made = []
    for names in alike.values():
        topology = told[names[0]]
        made.append(_held(names, topology))
        if topology["matched"] is not None:
            made.append(_matched(topology["matched"]))
    made += [_exchanged(name, topology) for name, topology in told.items()]
    for name, topology in told.items():
        made += _absent(evidence, name, topology)
        if topology["embeddings"] is not None:
            made.append(_noise(name, topology["embeddings"]))
    return made


def _held(arms: list[str], topology: dict[str, Any]) -> str:
    holds = [f"{name} holds {_columns(one['columns'])}" for name, one in topology["parties"].items()]
    return (
        f"In {listed(arms)}, parties hold different columns of the same patients: {'; '.join(holds)}. "
        f"{topology['labels']} has the labels. Each trains a part of the network on its own columns."
    )


def _columns(names: list[str]) -> str:
    if not names:
        return "labels alone"
    shown = ["the image" if name == "image" else name for name in names]
    return listed(shown) if len(shown) <= 6 else f"{', '.join(shown[:5])} and {len(shown) - 5} more"


def _matched(matched: dict[str, Any]) -> str:
    each = listed([f"{count:,} at {name}" for name, count in matched["patients"].items()])
    sent = "" if matched["bytes"] is None else f" The matching took {matched['bytes'] / 1e6:,.1f} MB of messages."
    lost = matched["unmatched_train"]
    left = f" {lost:,} training rows of patients whom another party lacks were not trained on." if lost else ""
    return (
        f"Of {each}, {matched['common']:,} patients are common to all; {matched['train']:,} rows trained.{left}{sent}"
    )


def _exchanged(arm: str, topology: dict[str, Any]) -> str:
    cost, block = topology["cost"], topology["block"]
    each = "each batch" if block == 1 else f"every {block} batches"
    size = (cost["bytes_up"] + cost["bytes_down"]) / 1e6
    return (
        f"In {arm}, embeddings went to {topology['labels']} and their gradients back for {each}: "
        f"{cost['exchanges']:,.0f} exchanges with {size:,.1f} MB, with one seed."
    )


def _absent(evidence: Evidence, arm: str, topology: dict[str, Any]) -> list[str]:
    metric, word = evidence.headline.metric, evidence.headline.word
    made = []
    for party, found in topology["missing_party"].items():
        entry = found["difference"][metric]
        if entry["difference"] is None:
            continue
        limits = entry["interval"]
        said = "" if limits is None else f" ({interval_words(entry)})"
        made.append(
            f"While {party} is missing, {word} of {arm} changes by {in_words(entry['difference'], metric)}{said}: "
            f"{WITHOUT_PARTY.get(entry['verdict'], entry['verdict'])}."
        )
    return made


def _noise(arm: str, told: dict[str, Any]) -> str:
    cut = f"In {arm}, embeddings are cut to a length of {told['clip']:g} and get"
    if not told["noise"]:
        return f"{cut} no noise, which hides nothing."
    cut += f" noise of SD {told['noise']:g} clips."
    if told["epsilon"] is None:
        return f"{cut} Another arm sends those of the same rows without any, so that nothing is hidden."
    covers = told.get("covers", "one seed")
    return (
        f"{cut} Each row's leaves {told['releases']:,} times in training, with {covers}: together they tell of its "
        f"numbers with epsilon {told['epsilon']:.1f} at delta {told['delta']:g}, given the party's weights. What the "
        "row did to those, and the gradients that come back, are not covered."
    )


def party_privacy_sentences(evidence: Evidence) -> list[str]:
    """What left a party, where parties hold different columns."""
    told = evidence.topologies("vertical")
    if not told:
        return []
    holders = listed(list(dict.fromkeys(topology["labels"] for topology in told.values())))
    return [
        f"In {listed(list(told))} no weights were sent: each party sent {holders} an embedding of every training row "
        "in each epoch, and got the gradient of that row's loss back. Values may be guessed from embeddings, and "
        "labels from gradients."
    ]


def missing_party_table(evidence: Evidence) -> Table:
    """With all parties and without each, on the same rows."""
    headline, rows = evidence.headline, []
    for name, topology in evidence.topologies("vertical").items():
        whole = evidence.arms[name]["metrics"][headline.metric]["mean"]
        for party, found in topology["missing_party"].items():
            entry = found["difference"][headline.metric]
            limits = entry["interval"] or [None, None]
            without = found["metrics"][headline.metric]["mean"]
            verdict = WITHOUT_PARTY.get(entry["verdict"], entry["verdict"])
            rows.append([name, party, whole, without, entry["difference"], *limits, verdict])
    columns: dict[str, Format | None] = {
        "arm": None,
        "missing": None,
        headline.above(f"with it: {headline.word}"): headline.shown,
        headline.above(f"without it: {headline.word}"): headline.shown,
        headline.points: headline.difference,
        "from": headline.difference,
        "to": headline.difference,
        "verdict": None,
    }
    note = f"All test rows; the difference is paired, with its 95 % interval.{headline.point}"
    return make_table("missing-parties", "While a party is missing", columns, rows, note)


def exchange_table(evidence: Evidence) -> Table:
    rows = []
    for name, topology in evidence.topologies("vertical").items():
        cost, matched = topology["cost"], topology["matched"]
        sizes = [cost["bytes_up"] / 1e6, cost["bytes_down"] / 1e6]
        met = [None, None] if matched is None else [matched["common"], matched["train"]]
        rows.append([name, topology["labels"], topology["block"], *met, _whole_number(cost["exchanges"]), *sizes])
    columns: dict[str, Format | None] = {"arm": None, "labels at": None, "batches in a block": str}
    columns |= {"patients in common": count_text, "rows that train": count_text, "exchanges": count_text}
    columns |= {"MB of embeddings": one_decimal, "MB of gradients": one_decimal}
    note = "Of one seed, tensors without framing. An exchange: embeddings one way and their gradients the other."
    return make_table("exchanges", "What parties exchanged", columns, rows, note)


def _whole_number(count: float) -> int | float:
    return int(count) if float(count).is_integer() else count


SITES_IN_A_LINE = 5  # sites in a line


MOST_SITES = 150


LINE = 0.26  # inches


ROOT, REGION, SITES, END = 0.09, 0.3, 0.47, 0.985  # where columns begin, as parts of the width


SHORTEN = 14  # letters of a site's name


def regions_tree(evidence: Evidence) -> Figure | None:
    """The coordinator of all, its regions, and each region's sites; of the first arm that has regions."""
    told = next(iter(evidence.topologies("hierarchical").values()), None)
    if told is None or sum(len(found["sites"]) for found in told["regions"].values()) > MOST_SITES:
        return None
    lines = [-(-len(found["sites"]) // SITES_IN_A_LINE) for found in told["regions"].values()]
    height = 0.45 + LINE * sum(max(count, 2) + 0.6 for count in lines)
    drawn = Figure(figsize=(WIDTH, height))
    axes = drawn.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, 1)
    axes.set_ylim(height, 0)
    axes.axis("off")
    middles, top = [], 0.4
    for number, ((name, found), count) in enumerate(zip(told["regions"].items(), lines, strict=True)):
        tall = LINE * max(count, 2)
        middles.append(top + tall / 2)
        _region(axes, name, found, middles[-1], COLOURS[number % len(COLOURS)], top + (tall - LINE * count) / 2)
        top += tall + 0.6 * LINE
    root = (middles[0] + middles[-1]) / 2
    for middle in middles:
        axes.plot([ROOT, REGION - 0.06], [root, middle], color="grey", linewidth=1, zorder=0)
    box = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": "black"}
    axes.text(ROOT, root, "coordinator\nof all", ha="center", va="center", fontsize=8, bbox=box)
    each, merged = told["regional_rounds"], told["global_rounds"]
    times = f"{merged} average{'s' if merged != 1 else ''} over regions"
    rounds = f"{each} round{'s' if each != 1 else ''} of the sites before each of them"
    axes.text((ROOT + REGION) / 2 - 0.02, 0.16, times, ha="center", va="center", fontsize=7.5, color="dimgrey")
    axes.text((SITES + END) / 2, 0.16, rounds, ha="center", va="center", fontsize=7.5, color="dimgrey")
    return drawn


def _region(axes: Any, name: str, found: dict[str, Any], middle: float, colour: str, top: float) -> None:
    """One region's box, and its sites line by line."""
    step = (END - SITES) / SITES_IN_A_LINE
    lines = -(-len(found["sites"]) // SITES_IN_A_LINE)
    across = min(len(found["sites"]), SITES_IN_A_LINE)
    corner, size = (SITES - 0.018, top), (step * across + 0.005, LINE * lines)
    axes.add_patch(Rectangle(corner, *size, facecolor=colour, edgecolor="none", alpha=0.12, zorder=0))
    axes.plot([REGION + 0.06, corner[0]], [middle, middle], color=colour, linewidth=1.2, zorder=0)
    for number, site in enumerate(found["sites"]):
        row, column = divmod(number, SITES_IN_A_LINE)
        x, y = SITES + step * column, top + LINE * (row + 0.5)
        axes.plot(x, y, "o", color=colour, markersize=5)
        shown = site if len(site) <= SHORTEN else f"{site[: SHORTEN - 1]}…"
        axes.text(x + 0.012, y, shown, va="center", fontsize=7)
    box = {"boxstyle": "round,pad=0.3", "facecolor": "white", "edgecolor": colour}
    text = f"{name if len(name) <= SHORTEN else f'{name[: SHORTEN - 1]}…'}\n{found['train']:,} rows train"
    axes.text(REGION, middle, text, ha="center", va="center", fontsize=7.5, bbox=box)


def regional_models(evidence: Evidence) -> Figure | None:
    """Own model and model of all in each region, of every arm that has regions."""
    headline = evidence.headline
    scored = {
        (name, region): found["metrics"]
        for name, topology in evidence.topologies("hierarchical").items()
        for region, found in topology["regions"].items()
        if found["metrics"] is not None
    }
    if not scored or len(scored) > 40:
        return None
    drawn = figure(1.0 + 0.3 * len(scored))
    axes = drawn.subplots()
    kinds = {"regional": ("the region's own model", COLOURS[1], "s"), "global": ("the model of all", COLOURS[0], "o")}
    for place, metrics in enumerate(scored.values()):
        for offset, (kind, (title, colour, marker)) in zip((-0.13, 0.13), kinds.items(), strict=True):
            label = title if place == 0 else None
            bar(axes, metrics[kind][headline.metric], place + offset, headline.scale, colour, marker, label)
    several = len({name for name, _ in scored}) > 1
    name_rows(axes, [f"{name}: {region}" if several else region for name, region in scored])
    axes.set_xlabel(f"{headline.word} on the region's own test rows{headline.unit}, with 95 % interval")
    legend(drawn, loc="outside lower center", ncols=2)
    return drawn


def _values(evidence: Evidence) -> dict[str, Any]:
    return {"sentences": [*region_sentences(evidence), *party_sentences(evidence)]}


def _privacy(evidence: Evidence) -> list[str]:
    return [*region_privacy_sentences(evidence), *party_privacy_sentences(evidence)]


PAGE = """
<section id="topology"><h2>Topology: who exchanges with whom</h2>
{% for sentence in sentences %}<p>{{ sentence }}</p>
{% endfor %}
{{ draw("regions") }}{{ show("links") }}{{ draw("regional-models") }}{{ show("regions") }}
{{ show("exchanges") }}{{ show("missing-parties") }}
</section>"""
SECTION = Section(
    PAGE,
    "topology",
    "Topology",
    _values,
    tables=(region_table, link_table, exchange_table, missing_party_table),
    figures={
        "regions": Drawing(
            "Regions and their sites",
            "With the rows that train in each region, with the study's first seed.",
            regions_tree,
            tall=True,
        ),
        "regional-models": Drawing(
            "Each region's own model beside the model of all",
            "Both on the test rows of the region's sites.",
            regional_models,
        ),
    },
    remarks={"privacy": _privacy},
)
