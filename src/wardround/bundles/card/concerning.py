"""Which of a run's warnings belong on one hospital's card. A simulation knows all hospitals' files; a card goes to one
of them, and must not tell it what stands in the files of the others."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

_QUOTED = r"(?<!\w)(?:'([^']*)'|\"([^\"]*)\")(?!\w)"  # an apostrophe follows a letter, and is none
# a name ends where it cannot go on: `north` is not named in `north-west`
_BEFORE, _AFTER = r"(?<![\w.-])", r"(?![\w-]|\.\w)"


@dataclass(frozen=True)
class Whose:
    """One hospital among others, as far as its warnings must be told from theirs."""

    site: str
    others: tuple[str, ...]  # names of the other sites, also as the source has them
    named: frozenset[str]  # what a line may name: the site's own columns, the classes
    differing: bool  # hospitals may have different columns, so that another name may be another hospital's column


def concerning(lines: Iterable[str], whose: Whose) -> tuple[str, ...]:
    """Those that name no other site, and no column that this site's file does not have."""
    return tuple(line for line in lines if not _names_another(line, whose) and _is_of_own_columns(line, whose))


def _names_another(line: str, whose: Whose) -> bool:
    names = sorted({whose.site, *whose.others}, key=len, reverse=True)  # `st mary` is not about `mary`
    found = re.finditer(f"{_BEFORE}(?:{'|'.join(map(re.escape, names))}){_AFTER}", line)
    return any(_is_a_site(line, one) for one in found if one.group() != whose.site)


def _is_a_site(line: str, found: "re.Match[str]") -> bool:
    """A site may be called 3, and most lines hold counts: such a name is in quotation marks or begins the line."""
    if not found.group().isdigit():
        return True
    before, after = line[: found.start()], line[found.end() :]
    return (before[-1:] in ("'", '"')) or (after.startswith(":") and (not before or before.endswith(": ")))


def _is_of_own_columns(line: str, whose: Whose) -> bool:
    if not whose.differing:
        return True
    rest = re.sub(f"{_QUOTED} at {re.escape(repr(whose.site))}", "", line)  # that is said to be here
    return all("".join(parts) in {*whose.named, whose.site} for parts in re.findall(_QUOTED, rest))
