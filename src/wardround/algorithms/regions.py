"""Regions of sites, by the names and patterns of [topology.regions]."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from wardround.core.errors import StudyError, suggest
from wardround.core.notices.code import few

MARKS = "*?["  # that make a name a pattern
NAMED = 8  # sites in a message


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


def traffic(regions: Regions, round_number: int, active: int, size: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Messages and bytes between regions and the central coordinator in a round, each as (down, up).

    A model of `size` bytes goes down to each region before its first round. After the last round it goes up from the
    regions that had an update, of which there are `active`.
    """
    down = len(regions.names) if regions.begins(round_number) else 0
    up = active if regions.merges(round_number) else 0
    return (down, up), (down * size, up * size)


def region_of_each(regions: Mapping[str, Sequence[str]], sites: Sequence[str], where: str) -> dict[str, str]:
    """Each site's region. Refused where a site is in none or in two, and where an entry fits no site."""
    region_of: dict[str, str] = {}
    for region, entries in regions.items():
        if not entries:
            raise StudyError(f"{where}: {region}", "has no sites", "List its sites, or leave the region out.")
        for site in (site for entry in entries for site in _members(entry, sites, f"{where}: {region}")):
            if region_of.setdefault(site, region) != region:
                problem = f"{site} is in {region_of[site]!r} and in {region!r}"
                raise StudyError(where, problem, "Name each site in one region, by its name or by one pattern.")
    if lost := [site for site in sites if site not in region_of]:
        problem = f"{few(lost, NAMED)} {'is' if len(lost) == 1 else 'are'} in no region"
        raise StudyError(where, problem, 'Add each site to a region, by its name or by a pattern such as "a-*".')
    return {site: region_of[site] for site in sites}


def _members(entry: str, sites: Sequence[str], where: str) -> list[str]:
    """The sites that a name or a pattern stands for."""
    members = [entry] if entry in sites else [site for site in sites if fnmatchcase(site, entry)]
    if not members:
        pattern = any(mark in entry for mark in MARKS)
        problem = f"the pattern {entry!r} fits no site" if pattern else f"no site is called {entry!r}"
        raise StudyError(where, problem, f"Sites: {few(sites, NAMED)}." if pattern else suggest(entry, sites, "Sites"))
    return members


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
