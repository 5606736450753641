"""As `impossible.py`, for secure sums, for regions and for parties with different columns."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from tests.deployment.hostile.answer_mutations import FORGED_TEXT, Many, Mutation, Raw, many_names
from tests.deployment.hostile.impossible_values import (
    COUNTS,
    LEVELS,
    Body,
    of_described,
    of_figures,
    of_fill_values,
    of_greeting,
    of_moments,
    of_side,
    of_update,
    put,
    renamed,
    retold,
)

ZEROS = "00" * 32
BAD_BYTES = {"no hexadecimal": "zz" * 32, "half a byte": "abc", "nothing": "", "zeros": ZEROS, "long": "ab" * 100_000}


# -- secure sums


def of_advert(body: Body, others: tuple[str, ...]) -> Iterator[Mutation]:
    advert = body["advert"]
    yield put("in another's name", ("advert", "site"), others[0])
    yield put("two keys exchanged", ("advert", "mask_key"), advert["seal_key"])
    yield put("a key more", ("advert", "owned"), ZEROS, "safe")
    for name in ("seal_key", "mask_key", "seed_hash", "signature"):
        for what, value in BAD_BYTES.items():
            yield put(f"{name}: {what}", ("advert", name), value)


def of_shares(body: Body, others: tuple[str, ...]) -> Iterator[Mutation]:
    shares = body["shares"]
    first, second = list(shares)[:2]
    yield put("no shares", ("shares",), {})
    yield retold("a share less", lambda body: body["shares"].pop(first))
    yield put("a share for a stranger", ("shares", "elsewhere"), shares[first])
    yield put("shares for strangers only", ("shares",), {f"s{n}": shares[first] for n in range(len(shares))})
    yield put("shares for 200,000 strangers", ("shares",), many_names("ab"))
    yield put("another's share twice", ("shares", first), shares[second], "sealed")
    for what, value in BAD_BYTES.items():
        yield put(
            f"a share: {what}",
            ("shares", first),
            value,
            "sealed" if what in ("zeros", "long", "nothing") else "refused",
        )


def of_confirmation(body: Body, others: tuple[str, ...]) -> Iterator[Mutation]:
    for what, value in BAD_BYTES.items():
        yield put(f"signature: {what}", ("signature",), value)


def of_reveal(body: Body, others: tuple[str, ...]) -> Iterator[Mutation]:
    """A share that is wrong is seen when secrets are put together, and then nobody knows whose it was."""
    seeds = body["reveal"]["seeds"]
    first, second = list(seeds)[:2]
    yield put("in another's name", ("reveal", "site"), others[0])
    yield put("no seeds", ("reveal", "seeds"), {}, "closed")
    yield put("seeds exchanged", ("reveal", "seeds", first), seeds[second], "closed")
    yield put("a seed for a stranger", ("reveal", "seeds", "elsewhere"), seeds[first], "closed")
    yield put("keys of those who are there", ("reveal", "keys"), {others[0]: seeds[first]}, "closed")
    yield put("seeds of 200,000 strangers", ("reveal", "seeds"), many_names(ZEROS), "closed")
    for what, value in BAD_BYTES.items():
        yield put(f"a seed: {what}", ("reveal", "seeds", first), value, "closed")


# -- regions: what they tell of their hospitals


def of_region_greeting(body: Body, others: tuple[str, ...]) -> Iterator[Mutation]:
    yield from of_greeting(body, others)
    yield from of_left(body, others)
    if body["columns"]:
        for what, value in {"number": 7, "text": "first", "strangers": [9, 9], "below zero": [-1, -1]}.items():
            yield put(f"place of a column: {what}", ("columns", 0, "place"), value, "safe")


def of_left(body: Body, others: tuple[str, ...]) -> Iterator[Mutation]:
    """Whom a region says to have lost."""
    yield put("another region's hospital has left", ("left",), {others[0]: "it is tired"}, "safe")
    yield put("nobody's hospital has left", ("left",), {"elsewhere": "it is tired"}, "safe")
    yield put("its hospital has left, with control characters", ("left",), {"north": FORGED_TEXT}, "safe")
    yield put("its hospital has left, at length", ("left",), {"north": "x" * 300_000}, "safe")
    yield put("its hospital has left, in a table", ("left",), {"north": {"a": 1}}, "safe")
    yield put("left = list", ("left",), ["north"])
    yield put("left = number", ("left",), 7)
    yield put("left = 200,000 hospitals", ("left",), many_names("gone"))
    if "versions" not in body:
        yield put("another region's hospitals are gone", ("gone",), [others[0]])
        yield put("all hospitals of the other region are gone", ("gone",), list(others))
        yield put("its own hospital is gone", ("gone",), ["north"], "safe")
        yield put("gone = number", ("gone",), 7)
        yield put("gone = text", ("gone",), others[0])


def of_region_facts(body: Body, others: tuple[str, ...]) -> Iterator[Mutation]:
    own = next(iter(body["sets"]))
    for name, value in COUNTS.items():
        yield put(f"training rows of a hospital = {name}", ("sets", own, 0), value)
    yield put("rows of another region's hospital", ("sets", others[0]), body["sets"][own])
    yield put("rows of nobody's hospital", ("sets", "elsewhere"), body["sets"][own])
    yield retold("a hospital without rows", lambda body: body["sets"].pop(own))
    yield put("two sets of a hospital", ("sets", own), body["sets"][own] * 2)
    yield put("sets in a list", ("sets",), [39, 39])
    yield put("another region's hospital described", ("described", others[0]), body["described"][own])
    yield retold("a hospital that is not described", lambda body: body["described"].pop(own))
    yield put("a hospital described in words", ("described", own), "large")
    yield from of_described(body["described"][own], ("described", own))
    yield put("directions of another region's hospital", ("directions", others[0]), {"age": [0.1, 0.1]}, "safe")
    yield put("directions in a list", ("directions",), [1])
    yield put("directions of a hospital out of range", ("directions", own), {"age": [7.0, -1.0]})
    yield put("no kind", ("kinds",), [])
    yield put("a kind twice", ("kinds",), body["kinds"] * 2)
    yield put("a kind of nothing", ("kinds", 0), None)
    yield put("trains in words", ("kinds", 0, "trains"), "no")
    yield put("fewer columns in `present`", ("kinds", 0, "present"), [True])
    yield put("fewer columns in facts", ("kinds", 0, "facts", "gaps"), [True])
    yield put("200,000 levels", ("kinds", 0, "facts", "levels", -1), LEVELS)
    yield put("sums of a target that needs none", ("kinds", 0, "target"), [[26.0], [1.0], [1.0]])
    yield put("sums of a target in words", ("kinds", 0, "target"), "many")
    yield put("200,000 sums of a target", ("kinds", 0, "target"), Many("[1]"))
    yield put("no list of sums of a target", ("kinds", 0, "target"), None)
    yield from of_left(body, others)


def of_region_fill_values(body: Body, others: tuple[str, ...]) -> Iterator[Mutation]:
    yield from of_fill_values(body, others)
    yield from of_left(body, others)


def of_region_moments(body: Body, others: tuple[str, ...]) -> Iterator[Mutation]:
    yield from of_moments(body, others)
    yield from of_left(body, others)


def of_region_update(body: Body, others: tuple[str, ...]) -> Iterator[Mutation]:
    yield from of_update(body, others)
    yield from (mutation for mutation in of_left(body, others) if "gone" not in mutation.name)


def of_region_summary(body: Body, others: tuple[str, ...]) -> Iterator[Mutation]:
    summaries = body["summaries"]
    own, second = list(summaries)[:2]
    number = next(iter(summaries[own]))
    place = ("summaries", own, number, "test")
    yield put("summaries of another region's hospital", ("summaries", others[0]), summaries[own])
    yield put("summaries of nobody's hospital", ("summaries", "elsewhere"), summaries[own])
    yield put("summaries of another region's hospitals only", ("summaries",), {others[0]: summaries[own]})
    yield retold("a hospital without a summary", lambda body: body["summaries"].pop(own), "safe")
    yield put("one hospital's summaries for another", ("summaries", own), summaries[second], "safe")
    yield put("summaries in a list", ("summaries",), [1])
    yield put("a hospital's summaries in a list", ("summaries", own), [1])
    yield put("a trial more", ("summaries", own, "7"), summaries[own][number])
    yield put("a side that nobody asked for", ("summaries", own, number, "train"), summaries[own][number]["test"])
    yield from of_side(place, summaries[own][number]["test"], others)
    yield put("regional rows = -5", ("summaries", own, number, "regional", "rows"), -5)
    yield from of_figures(body)
    yield from (mutation for mutation in of_left(body, others) if "gone" not in mutation.name)


# -- parties with different columns


def of_party_greeting(body: Body, others: tuple[str, ...]) -> Iterator[Mutation]:
    for mutation in of_greeting(body, others):  # what the classes are called only the holder of the labels knows
        yield replace(mutation, expect="safe") if mutation.name == "classes the other way round" else mutation
    yield put("visits that it has not", ("visits",), True, "safe")
    yield put("visits in words", ("visits",), "no")
    yield put("no voucher", ("voucher",), None)
    for name in ("key", "signature"):
        for what, value in BAD_BYTES.items():
            yield put(f"voucher: {name}: {what}", ("voucher", name), value)


def of_match(body: Body, others: tuple[str, ...]) -> Iterator[Mutation]:
    for name, value in COUNTS.items():
        yield put(f"patients in common = {name}", ("common",), value, "safe" if name in ("null", "0") else "refused")
    yield put("one patient more in common", ("common",), (body["common"] or 89) + 1, "safe")


def of_dealt(body: Body, others: tuple[str, ...]) -> Iterator[Mutation]:
    first = body["sizes"][0]
    for name, value in COUNTS.items():
        for side in first:
            yield put(f"{side} rows = {name}", ("sizes", 0, side), value)
        yield put(f"unmatched = {name}", ("unmatched",), value, "safe" if name in ("null", "0") else "refused")
    yield put("no kind", ("sizes",), [])
    yield put("two kinds", ("sizes",), body["sizes"] * 2)
    yield put("a side that is none", ("sizes", 0, "elsewhere"), 5)
    yield put("more rows than it describes", ("sizes", 0, "train"), first["train"] + 1000)
    yield put("200,000 kinds", ("sizes",), Many("{}"))
    yield from of_described(body["described"], ("described",))


def of_shapes(body: Body, others: tuple[str, ...]) -> Iterator[Mutation]:
    wrong: dict[str, Any] = {
        "no number": [[0]],
        "below zero": [[-1]],
        "1e12 numbers": [[10**12]],
        "half a number": [[1.5]],
        "an image": [[3, 3]],
        "no shape": [],
        "two shapes": [[3], [3]],
        "in words": [["a"]],
        "an empty shape": [[]],
        "a number": 3,
        "true": [[True]],
        "200,000 shapes": Many("[3]"),
    }
    for name, value in wrong.items():
        yield put(f"shapes: {name}", ("shapes",), value)


def of_losses(body: Body, others: tuple[str, ...]) -> Iterator[Mutation]:
    yield put("no loss", ("losses",), {})
    yield put("a loss more", ("losses", "7"), 0.5)
    yield put("a loss below zero", ("losses", "0"), -1.0)
    yield put("a loss without end", ("losses", "0"), Raw("1e400"))
    yield put("losses in a list", ("losses",), [0.5])
    yield put("200,000 losses", ("losses",), many_names(0.5))
    yield retold("a loss with a space", lambda body: renamed(body["losses"], "0", " 0"))


def of_judged(body: Body, others: tuple[str, ...]) -> Iterator[Mutation]:
    summary = body["summaries"]["0"]["test"]
    yield from of_side(("summaries", "0", "test"), summary, others)
    yield put("a trial more", ("summaries", "7"), body["summaries"]["0"])
    yield put("no summary", ("summaries",), {})
    yield from of_figures(body)
    party = next(iter(body["without"]["0"]))
    yield put("without = list", ("without",), [1])
    yield put("without = nothing", ("without", "0"), None)
    yield put("without nobody's columns", ("without", "0", "elsewhere"), summary)
    yield put("without a party: forged site", ("without", "0", party, "site"), "elsewhere")
    yield put("without a party: rows = -5", ("without", "0", party, "rows"), -5)
    yield put("without a party: accuracy = 7", ("without", "0", party, "metrics", "accuracy"), 7)
    yield put("without a party: nothing", ("without", "0", party), None)


SECURE = {"advert": of_advert, "shared": of_shares, "confirmed": of_confirmation, "revealed": of_reveal}
REGION = {
    "ready": of_region_greeting,
    "facts": of_region_facts,
    "fill_values": of_region_fill_values,
    "moments": of_region_moments,
    "prepared": of_left,
    "update": of_region_update,
    "summary": of_region_summary,
}
PARTY = {
    "ready": of_party_greeting,
    "matched": of_match,
    "assigned": of_dealt,
    "shaped": of_shapes,
    "learned": of_losses,
    "assessed": of_judged,
}
