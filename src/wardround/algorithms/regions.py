"""Regions of sites: who belongs where, by the names and patterns of [topology.regions]."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import NamedTuple

from wardround.core.errors import StudyError, suggest

MARKS = "*?["  # that make a name a pattern


@dataclass(frozen=True)
class Regions:
    """The regions in which some site trains, and which of them each training site is in."""

    names: tuple[str, ...]
    of_site: tuple[int, ...]  # by the site's number
    rounds: int  # of each region by itself, before all regions are averaged

    def merges(self, round_number: int) -> bool:
        """Whether all regions are averaged after this round; the first is 0."""
        return (round_number + 1) % self.rounds == 0

    def begins(self, round_number: int) -> bool:
        """Whether regions are sent the model of all before this round."""
        return round_number % self.rounds == 0

    def first_site(self, region: int) -> int:
        return self.of_site.index(region)


class Sent(NamedTuple):
    """Between the regions and the coordinator of all in a round: down to the regions, and up from them."""

    messages: tuple[int, int]
    bytes: tuple[int, int]


def between_regions(regions: Regions, round_number: int, heard: int, size: int) -> Sent:
    """A model of `size` bytes goes down to every region before its first round, and up after its last from each of the
    `heard` that had an update."""
    down = len(regions.names) if regions.begins(round_number) else 0
    up = heard if regions.merges(round_number) else 0
    return Sent((down, up), (down * size, up * size))


def region_of_each(regions: Mapping[str, Sequence[str]], sites: Sequence[str], where: str) -> dict[str, str]:
    """Each site's region. Refused where a site is in none or in two, and where an entry fits no site."""
    found: dict[str, str] = {}
    for region, entries in regions.items():
        if not entries:
            raise StudyError(f"{where}: {region}", "has no sites", "List its sites, or leave the region out.")
        for entry in entries:
            members = [entry] if entry in sites else [site for site in sites if fnmatchcase(site, entry)]
            if not members:
                pattern = any(mark in entry for mark in MARKS)
                problem = f"the pattern {entry!r} fits no site" if pattern else f"no site is called {entry!r}"
                remedy = f"Sites: {_some(sites)}." if pattern else suggest(entry, sites, "Sites")
                raise StudyError(f"{where}: {region}", problem, remedy)
            for site in members:
                if found.setdefault(site, region) != region:
                    problem = f"{site} is in {found[site]!r} and in {region!r}"
                    raise StudyError(where, problem, "Name each site in one region, by its name or by one pattern.")
    lost = [site for site in sites if site not in found]
    if lost:
        problem = f"{_some(lost)} {'is' if len(lost) == 1 else 'are'} in no region"
        raise StudyError(where, problem, 'Add each site to a region, by its name or by a pattern such as "a-*".')
    return {site: found[site] for site in sites}


def with_only(regions: Mapping[str, Sequence[str]], sites: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The same regions with the names of those sites that are there: in a deployment some may be away. A region of
    which none is there is left out."""
    fitting = {
        region: tuple(site for site in sites if any(entry == site or fnmatchcase(site, entry) for entry in entries))
        for region, entries in regions.items()
    }
    return {region: members for region, members in fitting.items() if members}


def form_regions(
    regions: Mapping[str, Sequence[str]], rounds: int, sites: Sequence[str], trainers: Sequence[str], where: str
) -> Regions:
    """`sites` are all of a study's, `trainers` those that train in an arm: a region without one takes no part in it."""
    region_of = region_of_each(regions, sites, where)
    there = [name for name in regions if any(region_of[site] == name for site in trainers)]
    return Regions(tuple(there), tuple(there.index(region_of[site]) for site in trainers), rounds)


def _some(sites: Sequence[str]) -> str:
    return ", ".join(sites[:8]) + (f" and {len(sites) - 8} more" if len(sites) > 8 else "")
