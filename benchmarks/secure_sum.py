"""What a secure sum costs: processor time of one site and of the coordinator in one round, and bytes on the way.

`python -m benchmarks.secure_sum [--parameters 1000000] [--sites 4,10] [--repeats 3]` prints a table. One site plays its
whole part: keys, shares, encoding, masks, confirmation and reveal, signed with keys as kits have them (P-384). The
others do what it waits for; in the place of their masked vectors the coordinator adds noise, which is as much work. The
coordinator is measured with all sites there, and with as many gone as the threshold allows after they have shared:
that leaves it the most masks to undo.
"""

import argparse
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import orjson
from cryptography.hazmat.primitives.asymmetric import ec
from rich.console import Console
from rich.table import Table

from wardround.core.errors import SecureSumError
from wardround.privacy.secure_sum.fixed_point import Encoding
from wardround.privacy.secure_sum.secure_sum import Collector, InMemory, Member, Terms, default_threshold
from wardround.protocol.signing import Key, PublicKey

PARAMETERS = (10_000, 100_000, 1_000_000, 25_000_000)
SITES = (4, 10, 50)


class Clock:
    """Processor time of this thread, added up over all that is done within."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> Self:
        self.start = time.thread_time()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds += time.thread_time() - self.start


@dataclass
class Cost:
    messages: int = 0  # bytes to and from one site as JSON, its masked vector aside
    site: Clock = field(default_factory=Clock)
    mask: Clock = field(default_factory=Clock)  # the part of `site` that grows with parameters times sites
    coordinator: Clock = field(default_factory=Clock)


def play(parameters: int, sites: int, gone: int) -> Cost:
    """One round, of which the vectors of `gone` sites never come."""
    cost, encoding = Cost(), Encoding(sites, most_weight=1000.0, largest=1.0)
    roster = tuple(f"site-{number:02}" for number in range(sites))
    terms = Terms(os.urandom(8), roster, default_threshold(sites))
    private = {site: Key(ec.generate_private_key(ec.SECP384R1())) for site in roster}
    public = {site: PublicKey(key.private.public_key()) for site, key in private.items()}
    noise = np.random.default_rng(0).integers(0, 2**64, parameters + 2, dtype=np.uint64)
    update = np.random.default_rng(0).uniform(-1, 1, parameters).astype(np.float32)
    chosen, collector = roster[0], Collector(terms, public)
    clocks = {site: cost.site if site == chosen else Clock() for site in roster}
    members: dict[str, Member] = {}
    for site in roster:
        with clocks[site]:
            members[site] = Member(site, terms, os.urandom(32), private[site], public, InMemory())
            advert = members[site].advertise()
        with cost.coordinator:
            collector.take_advert(advert)
    adverts = collector.adverts()
    for site in roster:
        with clocks[site]:
            shares = members[site].share(adverts)
        with cost.coordinator:
            collector.take_shares(site, shares)
    sealed = collector.sealed()
    for site in roster[: sites - gone]:
        with clocks[site]:
            members[site].receive(sealed[site])
        masked = noise
        if site == chosen:
            with cost.site, cost.mask:
                masked = members[site].mask(encoding.encode(update, 100.0))
        with cost.coordinator:
            collector.take_masked(site, masked)
    survivors = collector.survivors()
    for site in survivors:
        with clocks[site]:
            signature = members[site].confirm(survivors)
        with cost.coordinator:
            collector.take_confirmation(site, signature)
    confirmations = collector.confirmations()
    for site in survivors:
        with clocks[site]:
            reveal = members[site].reveal(survivors, confirmations)
        with cost.coordinator:
            collector.take_reveal(reveal)
    with cost.coordinator, suppress(SecureSumError):  # that the sum is noise is seen at the very end
        collector.total()
    member = members[chosen]
    sent = [member.advertise().plain(), _hex(member.share(adverts)), signature.hex(), reveal.plain()]
    received = [[advert.plain() for advert in adverts], _hex(sealed[chosen]), survivors, _hex(confirmations)]
    cost.messages = len(orjson.dumps(sent)) + len(orjson.dumps(received))
    return cost


def _hex(contents: Mapping[str, bytes]) -> dict[str, Any]:
    return {site: content.hex() for site, content in contents.items()}


def main() -> None:
    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(prog="python -m benchmarks.secure_sum", description=__doc__)
    parser.add_argument("--parameters", type=numbers, default=PARAMETERS)
    parser.add_argument("--sites", type=numbers, default=SITES)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    table = Table(title="One round of a secure sum: processor seconds (median of the repeats)")
    columns = ("parameters", "sites", "one site", "of it encode and mask", "coordinator", "with most gone", "gone")
    for column in (*columns, "KB of messages", "KB of vector", "KB in single precision"):
        table.add_column(column, justify="right")
    for parameters in arguments.parameters:
        for sites in arguments.sites:
            gone = sites - default_threshold(sites)
            every = [play(parameters, sites, 0) for _ in range(arguments.repeats)]
            few = [play(parameters, sites, gone) for _ in range(arguments.repeats)]
            site, mask, all_there, most_gone = (
                f"{np.median([clock.seconds for clock in clocks]):.4f}"
                for clocks in (
                    [cost.site for cost in every],
                    [cost.mask for cost in every],
                    [cost.coordinator for cost in every],
                    [cost.coordinator for cost in few],
                )
            )
            sizes = (every[0].messages, 8 * (parameters + 2), 4 * parameters)
            size = (f"{bytes_ / 1000:,.1f}" for bytes_ in sizes)
            table.add_row(f"{parameters:,}", f"{sites}", site, mask, all_there, most_gone, f"{gone}", *size)
    Console(width=150).print(table)


if __name__ == "__main__":
    main()
