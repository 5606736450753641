"""The part of the section on topology that is about parties with different columns of the same patients."""

from typing import Any

from wardround.evaluation.comparisons.compare import in_words, interval_words
from wardround.report.evidence import Evidence
from wardround.report.table import Format, Table, count_text, listed, make_table, one

VERDICTS = {"gains": "better without", "loses": "worse without", "no evidence": "no evidence of a difference"}


def with_parties(evidence: Evidence) -> dict[str, dict[str, Any]]:
    """Arms of the study as it stands whose parties hold different columns, with what is told of these."""
    found = {name: arm.get("topology") for name, arm in evidence.arms.items()}
    return {name: told for name, told in found.items() if told is not None and told["kind"] == "vertical"}


def party_words(evidence: Evidence) -> list[str]:
    """Who holds what, whom they have in common, what went between them, and what is lost while one is missing."""
    told = with_parties(evidence)
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
            f"{VERDICTS.get(entry['verdict'], entry['verdict'])}."
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


def privacy_words(evidence: Evidence) -> list[str]:
    """What left a party, where parties hold different columns."""
    told = with_parties(evidence)
    if not told:
        return []
    holders = listed(list(dict.fromkeys(topology["labels"] for topology in told.values())))
    return [
        f"In {listed(list(told))} no weights were sent: each party sent {holders} an embedding of every training row "
        "in each epoch, and got the gradient of that row's loss back. Values may be guessed from embeddings, and "
        "labels from gradients."
    ]


def absent_table(evidence: Evidence) -> Table:
    """With all parties and without each, on the same rows."""
    headline, rows = evidence.headline, []
    for name, topology in with_parties(evidence).items():
        whole = evidence.arms[name]["metrics"][headline.metric]["mean"]
        for party, found in topology["missing_party"].items():
            entry = found["difference"][headline.metric]
            limits = entry["interval"] or [None, None]
            without = found["metrics"][headline.metric]["mean"]
            verdict = VERDICTS.get(entry["verdict"], entry["verdict"])
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
    for name, topology in with_parties(evidence).items():
        cost, matched = topology["cost"], topology["matched"]
        sizes = [cost["bytes_up"] / 1e6, cost["bytes_down"] / 1e6]
        met = [None, None] if matched is None else [matched["common"], matched["train"]]
        rows.append([name, topology["labels"], topology["block"], *met, _whole(cost["exchanges"]), *sizes])
    columns: dict[str, Format | None] = {"arm": None, "labels at": None, "batches in a block": str}
    columns |= {"patients in common": count_text, "rows that train": count_text, "exchanges": count_text}
    columns |= {"MB of embeddings": one, "MB of gradients": one}
    note = "Of one seed, tensors without framing. An exchange: embeddings one way and their gradients the other."
    return make_table("exchanges", "What parties exchanged", columns, rows, note)


def _whole(count: float) -> int | float:
    return int(count) if float(count).is_integer() else count
