"""Topology: sites in regions, and parties with different columns of the same patients."""

from collections.abc import Mapping
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from wardround.evaluation.comparisons.compare import interval_words
from wardround.evaluation.comparisons.listing import grouped
from wardround.report.evidence import Evidence
from wardround.report.render.figures import Drawing
from wardround.report.render.style import COLOURS, WIDTH, bar, legend, name_rows, single_axes
from wardround.report.render.table import CI, Table, count_text, counted, limits, listed, make_table, one_decimal, whole
from wardround.report.section import Section

LINKS = {
    "site_region": "sites and their regions",
    "region_global": "regions and the coordinator of all",
    "flat": "if flat: sites and the one coordinator",
}
OWN_MODEL = {"gains": "own model better", "loses": "model of all better", "no evidence": "no evidence of a difference"}
WITHOUT_PARTY = {"gains": "better without", "loses": "worse without", "no evidence": "no evidence of a difference"}
MOST_NAMED = 8  # regions in a sentence
MOST_SITES, MOST_REGIONS = 150, 40  # that are drawn
SITES_IN_A_LINE = 5
LINE = 0.26  # inches
ROOT, REGION, SITES, END = 0.09, 0.3, 0.47, 0.985  # where columns begin, as parts of the width
SHORTEN = 14  # letters of a site's name
Topology = dict[str, Any]  # what results.json has of the topology of an arm


def topology_sentences(evidence: Evidence) -> list[str]:
    return [*region_sentences(evidence), *party_sentences(evidence)]


def region_sentences(evidence: Evidence) -> list[str]:
    """Who is in which region and how often regions meet; what that cost; and whose own model is better at home."""
    arms = evidence.topologies("hierarchical")

    def shape(topology: Topology) -> str:
        sites = {region: entry["sites"] for region, entry in topology["regions"].items()}
        return repr((sites, topology["regional_rounds"], topology["global_rounds"]))

    sentences = []
    for names in grouped((shape(topology), name) for name, topology in arms.items()).values():
        sentences += [_formed(names, arms[names[0]]), _cost(names[0], arms[names[0]], len(names) > 1)]
    verdicts = grouped((_verdict(evidence, topology), name) for name, topology in arms.items())
    return sentences + [f"In {listed(names)}, {verdict}." for verdict, names in verdicts.items() if verdict]


def _formed(arms: list[str], topology: Topology) -> str:
    regions, each, merged = topology["regions"], topology["regional_rounds"], topology["global_rounds"]
    count = sum(len(region["sites"]) for region in regions.values())
    names = [f"{name} ({counted(len(region['sites']), 'site')})" for name, region in regions.items()]
    more = [f"{len(names) - MOST_NAMED} more"] if len(names) > MOST_NAMED else []
    shown = listed([*names[:MOST_NAMED], *more])
    rounds = "each round" if each == 1 else f"every {each} rounds"
    return (
        f"In {listed(arms)}, {counted(count, 'site')} form {counted(len(regions), 'region')}: {shown}. A region's "
        f"coordinator averages the updates of its own sites; after {rounds} the coordinator of all averages the "
        f"regions' models, {counted(merged, 'time')} in all, each by the weight of the updates behind it."
    )


def _cost(arm: str, topology: Topology, many_arms: bool) -> str:
    links = [topology["cost"][link] for link in ("region_global", "flat")]
    top, flat = (link["bytes_down"] + link["bytes_up"] for link in links)
    messages, flat_messages = (link["messages_down"] + link["messages_up"] for link in links)
    of = f" (of {arm})" if many_arms else ""
    less = f", {flat / top:.1f} times as much" if top else ""
    return (
        f"With one seed{of}, {messages:,.0f} messages with {top / 1000:,.1f} KB went between regions and "
        f"the coordinator of all. In a flat federation of as many rounds it would have had {flat_messages:,.0f} "
        f"messages with {flat / 1000:,.1f} KB{less}; here those go between sites and their regions."
    )


def _verdict(evidence: Evidence, topology: Topology) -> str | None:
    """Where regions' own models are better at home than the model of all, and where they are not."""
    metric, word = evidence.headline.metric, evidence.headline.word
    compared = {name: (region["difference"] or {}).get(metric) for name, region in topology["regions"].items()}
    regions = grouped((e["verdict"], name) for name, e in compared.items() if e and e["difference"] is not None)
    if not regions or len(topology["regions"]) < 2:
        return None
    texts = {
        "gains": "the region's own model is better in",
        "loses": "the model of all is better in",
        "no evidence": "there is no evidence of a difference between the two in",
    }
    where = {"no evidence": ["any region"]} if list(regions) == ["no evidence"] else regions
    parts = [f"{text} {listed(where[verdict])}" for verdict, text in texts.items() if verdict in where]
    if not parts:
        return f"it cannot be told whether a region's own model has a better {word} at home than the model of all"
    return f"by {word} on a region's own test rows, {'; '.join(parts)} (corrected for the number of regions)"


def region_table(evidence: Evidence) -> Table:
    """Each region's own model beside the model of all, on the same rows."""
    headline, rows = evidence.headline, []
    for name, topology in evidence.topologies("hierarchical").items():
        for region, entry in topology["regions"].items():
            figures: list[Any] = [None] * 6
            if entry["metrics"] is not None:
                difference = entry["difference"][headline.metric]
                means = [entry["metrics"][kind][headline.metric]["mean"] for kind in ("regional", "global")]
                verdict = OWN_MODEL.get(difference["verdict"], difference["verdict"])
                figures = [*means, difference["difference"], *limits(difference["interval"]), verdict]
            test = None if entry["test"] is None else whole(entry["test"])
            rows.append([name, region, len(entry["sites"]), entry["train"], test, *figures])
    note = (
        "A region's own model is the one that it had before the last average over regions. Both are scored on the test "
        f"rows of the region's sites; the difference is paired, with its 95 % CI, corrected for the "
        f"number of regions.{headline.point}"
    )
    return make_table(
        "regions",
        "Each region's own model beside the model of all",
        {
            "arm": None,
            "region": None,
            "sites": str,
            "training rows": str,
            "test rows": count_text,
            headline.above(f"own model: {headline.word}"): headline.shown,
            headline.above(f"model of all: {headline.word}"): headline.shown,
            **dict.fromkeys((f"own less all, {headline.points}", *CI), headline.difference),
            "verdict": None,
        },
        rows,
        " ".join([note, *_deployed_notes(evidence)]),
    )


def _deployed_notes(evidence: Evidence) -> list[str]:
    """Of a run across hospitals: how figures of regions were put together, and whose rows are not among them."""
    topologies = evidence.topologies("hierarchical").values() if evidence.deployed else ()
    regions = [region for topology in topologies for region in topology["regions"].values()]
    if not regions:
        return []
    notes = ["Each hospital scored both models and told counts, so that intervals are over seeds and need two of them."]
    off_by = _auc_bound(regions)
    if evidence.headline.metric == "auc" and off_by:
        off = f"The AUC of a region may be off by up to {off_by:.3f}"
        notes.append(f"{off}; intervals of AUC are wider by what both models' may be.")
    silent = dict.fromkeys(site for region in regions for site in region.get("withheld") or ())
    if silent:
        fewer = f" (fewer than {evidence.deployment.smallest_cell} patients tested)"
        notes.append(f"Without rows that a hospital withholds with some seed{fewer}: of {listed(list(silent))}.")
    if any(region["metrics"] is None for region in regions):
        notes.append("A region without figures has no hospital that told any.")
    return notes


def _auc_bound(regions: list[Mapping[str, Any]]) -> float:
    bounds = [value for region in regions for value in (region.get("auc_error_bound") or {}).values()]
    return max(filter(None, bounds), default=0.0)


def link_table(evidence: Evidence) -> Table:
    rows = []
    for name, topology in evidence.topologies("hierarchical").items():
        rounds = topology["regional_rounds"] * topology["global_rounds"]
        for key, title in LINKS.items():
            link = topology["cost"][key]
            down, up = (link[direction] / 1000 for direction in ("bytes_down", "bytes_up"))
            messages = [whole(link[direction]) for direction in ("messages_down", "messages_up")]
            rows.append([name, title, *messages, down, up, (link["bytes_down"] + link["bytes_up"]) / 1000 / rounds])
    return make_table(
        "links",
        "What each kind of link carried",
        {
            "arm": None,
            "between": None,
            **dict.fromkeys(("messages down", "messages up"), count_text),
            **dict.fromkeys(("KB down", "KB up", "KB a round"), one_decimal),
        },
        rows,
        "Of one seed: tensors without framing. Down is towards the sites. Flat: as many rounds without regions.",
    )


def privacy_sentences(evidence: Evidence) -> list[str]:
    sentences = []
    regional, vertical = evidence.topologies("hierarchical"), evidence.topologies("vertical")
    if regional:
        secure = (evidence.study.get("privacy") or {}).get("secure_sum") is not None
        sees = "the sum of its sites' updates" if secure else "its sites' updates"
        sentences.append(
            f"A region's coordinator sees {sees}; the coordinator of all sees the regions' models and no site's "
            f"update. In {listed(list(regional))} what is said of one coordinator holds for these two kinds."
        )
    if vertical:
        holders = listed(list(dict.fromkeys(topology["labels"] for topology in vertical.values())))
        sentences.append(
            f"In {listed(list(vertical))} no weights were sent: each party sent {holders} an embedding of every "
            "training row in each epoch, and got the gradient of that row's loss back. Values may be guessed from "
            "embeddings, and labels from gradients."
        )
    return sentences


def party_sentences(evidence: Evidence) -> list[str]:
    """Who holds what, whom they have in common, what went between them, and what is lost while one is missing."""
    arms = evidence.topologies("vertical")
    alike = grouped((repr((t["parties"], t["labels"], t["matched"])), name) for name, t in arms.items())
    sentences = []
    for names in alike.values():
        topology = arms[names[0]]
        sentences.append(_held(names, topology))
        if topology["matched"] is not None:
            sentences.append(_matched(topology["matched"]))
    sentences += [_exchanged(name, topology) for name, topology in arms.items()]
    for name, topology in arms.items():
        sentences += _missing(evidence, name, topology)
        if topology["embeddings"] is not None:
            sentences.append(_noise(name, topology["embeddings"]))
    return sentences


def _held(arms: list[str], topology: Topology) -> str:
    holds = [f"{name} holds {_columns(party['columns'])}" for name, party in topology["parties"].items()]
    return (
        f"In {listed(arms)}, parties hold different columns of the same patients: {'; '.join(holds)}. "
        f"{topology['labels']} has the labels. Each trains a part of the network on its own columns."
    )


def _columns(names: list[str]) -> str:
    if not names:
        return "labels alone"
    shown = ["the image" if name == "image" else name for name in names]
    return listed(shown) if len(shown) <= 6 else f"{', '.join(shown[:5])} and {len(shown) - 5} more"


def _matched(matched: Mapping[str, Any]) -> str:
    each = listed([f"{count:,} at {name}" for name, count in matched["patients"].items()])
    size = "" if matched["bytes"] is None else f" The matching took {matched['bytes'] / 1e6:,.1f} MB of messages."
    lost = matched["unmatched_train"]
    left = f" {lost:,} training rows of patients whom another party lacks were not trained on." if lost else ""
    return (
        f"Of {each}, {matched['common']:,} patients are common to all; {matched['train']:,} rows trained.{left}{size}"
    )


def _exchanged(arm: str, topology: Topology) -> str:
    cost, block = topology["cost"], topology["block"]
    each = "each batch" if block == 1 else f"every {block} batches"
    size = (cost["bytes_up"] + cost["bytes_down"]) / 1e6
    return (
        f"In {arm}, embeddings went to {topology['labels']} and their gradients back for {each}: "
        f"{cost['exchanges']:,.0f} exchanges with {size:,.1f} MB, with one seed."
    )


def _missing(evidence: Evidence, arm: str, topology: Topology) -> list[str]:
    measure, word, sentences = evidence.headline.measure, evidence.headline.word, []
    for party, entry in topology["missing_party"].items():
        difference = entry["difference"][measure.metric.name]
        if difference["difference"] is not None:
            interval = "" if difference["interval"] is None else f" ({interval_words(difference, measure)})"
            amount = f"{measure.difference(difference['difference'])}{interval}"
            verdict = WITHOUT_PARTY.get(difference["verdict"], difference["verdict"])
            sentences.append(f"While {party} is missing, {word} of {arm} changes by {amount}: {verdict}.")
    return sentences


def _noise(arm: str, embeddings: Mapping[str, Any]) -> str:
    cut = f"In {arm}, embeddings are cut to a length of {embeddings['clip']:g} and get"
    if not embeddings["noise"]:
        return f"{cut} no noise, which hides nothing."
    cut += f" noise of SD {embeddings['noise']:g} clips."
    if embeddings["epsilon"] is None:
        return f"{cut} Another arm sends those of the same rows without any, so that nothing is hidden."
    covers = embeddings.get("covers", "one seed")
    return (
        f"{cut} Each row's leaves {embeddings['releases']:,} times in training, with {covers}: together they tell of "
        f"its numbers with epsilon {embeddings['epsilon']:.1f} at delta {embeddings['delta']:g}, given the party's "
        "weights. What the row did to those, and the gradients that come back, are not covered."
    )


def missing_party_table(evidence: Evidence) -> Table:
    headline, rows = evidence.headline, []
    for name, topology in evidence.topologies("vertical").items():
        complete = evidence.arms[name]["metrics"][headline.metric]["mean"]
        for party, entry in topology["missing_party"].items():
            difference, without = entry["difference"][headline.metric], entry["metrics"][headline.metric]["mean"]
            change = [difference["difference"], *limits(difference["interval"])]
            verdict = WITHOUT_PARTY.get(difference["verdict"], difference["verdict"])
            rows.append([name, party, complete, without, *change, verdict])
    return make_table(
        "missing-parties",
        "While a party is missing",
        {
            "arm": None,
            "missing": None,
            headline.above(f"with it: {headline.word}"): headline.shown,
            headline.above(f"without it: {headline.word}"): headline.shown,
            **dict.fromkeys((headline.points, *CI), headline.difference),
            "verdict": None,
        },
        rows,
        f"All test rows; the difference is paired, with its 95 % CI.{headline.point}",
    )


def exchange_table(evidence: Evidence) -> Table:
    rows = []
    for name, topology in evidence.topologies("vertical").items():
        cost, matched = topology["cost"], topology["matched"] or {}
        counts = [matched.get("common"), matched.get("train"), whole(cost["exchanges"])]
        sizes = [cost["bytes_up"] / 1e6, cost["bytes_down"] / 1e6]
        rows.append([name, topology["labels"], topology["block"], *counts, *sizes])
    return make_table(
        "exchanges",
        "What parties exchanged",
        {
            "arm": None,
            "labels at": None,
            "batches in a block": str,
            **dict.fromkeys(("patients in common", "rows that train", "exchanges"), count_text),
            **dict.fromkeys(("MB of embeddings", "MB of gradients"), one_decimal),
        },
        rows,
        "Of one seed, tensors without framing. An exchange: embeddings one way and their gradients the other.",
    )


def regions_tree(evidence: Evidence) -> Figure | None:
    """The coordinator of all, its regions, and each region's sites; of the first arm that has regions."""
    topology = next(iter(evidence.topologies("hierarchical").values()), None)
    if topology is None or sum(len(region["sites"]) for region in topology["regions"].values()) > MOST_SITES:
        return None
    lines = [-(-len(region["sites"]) // SITES_IN_A_LINE) for region in topology["regions"].values()]
    height = 0.45 + LINE * sum(max(count, 2) + 0.6 for count in lines)
    drawn = Figure(figsize=(WIDTH, height))
    axes = drawn.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 1), ylim=(height, 0))
    axes.axis("off")
    middles, top = [], 0.4
    for number, ((name, region), count) in enumerate(zip(topology["regions"].items(), lines, strict=True)):
        tall = LINE * max(count, 2)
        middles.append(top + tall / 2)
        _draw_region(axes, name, region, middles[-1], COLOURS[number % len(COLOURS)], top + (tall - LINE * count) / 2)
        top += tall + 0.6 * LINE
    root = (middles[0] + middles[-1]) / 2
    for middle in middles:
        axes.plot([ROOT, REGION - 0.06], [root, middle], color="grey", linewidth=1, zorder=0)
    box = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": "black"}
    axes.text(ROOT, root, "coordinator\nof all", ha="center", va="center", fontsize=8, bbox=box)
    times = f"{counted(topology['global_rounds'], 'average')} over regions"
    rounds = f"{counted(topology['regional_rounds'], 'round')} of the sites before each of them"
    axes.text((ROOT + REGION) / 2 - 0.02, 0.16, times, ha="center", va="center", fontsize=7.5, color="dimgrey")
    axes.text((SITES + END) / 2, 0.16, rounds, ha="center", va="center", fontsize=7.5, color="dimgrey")
    return drawn


def _draw_region(axes: Any, name: str, region: Mapping[str, Any], middle: float, colour: str, top: float) -> None:
    """A region's box, and its sites line by line."""
    sites, step = region["sites"], (END - SITES) / SITES_IN_A_LINE
    lines = -(-len(sites) // SITES_IN_A_LINE)
    corner, size = (SITES - 0.018, top), (step * min(len(sites), SITES_IN_A_LINE) + 0.005, LINE * lines)
    axes.add_patch(Rectangle(corner, *size, facecolor=colour, edgecolor="none", alpha=0.12, zorder=0))
    axes.plot([REGION + 0.06, corner[0]], [middle, middle], color=colour, linewidth=1.2, zorder=0)
    for number, site in enumerate(sites):
        row, column = divmod(number, SITES_IN_A_LINE)
        x, y = SITES + step * column, top + LINE * (row + 0.5)
        axes.plot(x, y, "o", color=colour, markersize=5)
        axes.text(x + 0.012, y, _short(site), va="center", fontsize=7)
    box = {"boxstyle": "round,pad=0.3", "facecolor": "white", "edgecolor": colour}
    text = f"{_short(name)}\n{region['train']:,} rows train"
    axes.text(REGION, middle, text, ha="center", va="center", fontsize=7.5, bbox=box)


def _short(name: str) -> str:
    return name if len(name) <= SHORTEN else f"{name[: SHORTEN - 1]}…"


def regional_models(evidence: Evidence) -> Figure | None:
    headline = evidence.headline
    scored = {
        (name, region): entry["metrics"]
        for name, topology in evidence.topologies("hierarchical").items()
        for region, entry in topology["regions"].items()
        if entry["metrics"] is not None
    }
    if not scored or len(scored) > MOST_REGIONS:
        return None
    drawn, axes = single_axes(1.0 + 0.3 * len(scored))
    kinds = {"regional": ("the region's own model", COLOURS[1], "s"), "global": ("the model of all", COLOURS[0], "o")}
    for place, metrics in enumerate(scored.values()):
        for aside, (kind, (title, colour, marker)) in zip((-0.13, 0.13), kinds.items(), strict=True):
            label = title if place == 0 else None
            bar(axes, metrics[kind][headline.metric], place + aside, headline, colour, marker, label)
    several_arms = len({name for name, _ in scored}) > 1
    name_rows(axes, [f"{name}: {region}" if several_arms else region for name, region in scored])
    axes.set_xlabel(f"{headline.word} on the region's own test rows{headline.unit}, with 95 % CI")
    legend(drawn, loc="outside lower center", ncols=2)
    return drawn


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
    {"sentences": topology_sentences},
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
    remarks={"privacy": privacy_sentences},
)
