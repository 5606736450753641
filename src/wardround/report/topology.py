"""The section on regions of sites: sentences and tables. Its figures are in `plots_topology.py`."""

from typing import Any

from wardround.report.evidence import Evidence
from wardround.report.table import Format, Table, count_text, listed, make_table, one

LINKS = {
    "site_region": "sites and their regions",
    "region_global": "regions and the coordinator of all",
    "flat": "if flat: sites and the one coordinator",
}
VERDICTS = {"gains": "own model better", "loses": "model of all better", "no evidence": "no evidence of a difference"}
MOST = 8  # regions that a sentence names


def with_regions(evidence: Evidence) -> dict[str, dict[str, Any]]:
    """Arms of the study as it stands whose sites form regions, with what is told of these."""
    found = {name: arm.get("topology") for name, arm in evidence.arms.items()}
    return {name: told for name, told in found.items() if told is not None and told["kind"] == "hierarchical"}


def topology_words(evidence: Evidence) -> list[str]:
    """Who is in which region and how often regions meet; what that cost; and whose own model is better at home."""
    alike: dict[str, list[str]] = {}
    told = with_regions(evidence)
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
    shown = listed(names) if len(names) <= MOST else f"{', '.join(names[:MOST])} and {len(names) - MOST} more"
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
    for name, topology in with_regions(evidence).items():
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
    regions = [found for told in with_regions(evidence).values() for found in told["regions"].values()]
    if not evidence.deployed or not regions:
        return []
    words = ["Each hospital scored both models and told counts, so that intervals are over seeds and need two of them."]
    bounds = [value or 0.0 for one in regions for value in (one.get("auc_uncertain_by") or {}).values()]
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
    for name, topology in with_regions(evidence).items():
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
    columns |= {"KB down": one, "KB up": one, "KB a round": one}
    note = "Of one seed: tensors without framing. Down is towards the sites. Flat: as many rounds without regions."
    return make_table("links", "What each kind of link carried", columns, rows, note)


def privacy_words(evidence: Evidence) -> list[str]:
    """Who sees what, where there are regions."""
    if not with_regions(evidence):
        return []
    secure = (evidence.study.get("privacy") or {}).get("secure_sum") is not None
    sees = "the sum of its sites' updates" if secure else "its sites' updates"
    return [
        f"A region's coordinator sees {sees}; the coordinator of all sees the regions' models and no site's update. In "
        f"{listed(list(with_regions(evidence)))} what is said of one coordinator holds for these two kinds."
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
