"""The registry of all codes, and the only place where notices become text.

A code's `text` says what was found at one site, without the site's name; its `meaning` says it once for all, for the
reference and where many sites have the same.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from wardround.core.notices.check_codes import CHECK_CODES
from wardround.core.notices.code import Code, count, few, plural
from wardround.core.notices.explanation_codes import EXPLANATION_CODES
from wardround.core.notices.file_codes import FILE_CODES
from wardround.core.notices.image_codes import IMAGE_CODES
from wardround.core.notices.notice import LONGEST_TEXT, Notice, Severity
from wardround.core.notices.run_codes import RUN_CODES

CODES: Mapping[str, Code] = {**CHECK_CODES, **FILE_CODES, **IMAGE_CODES, **EXPLANATION_CODES, **RUN_CODES}
ABSENCES = frozenset(code for code, known in CODES.items() if known.is_absence)
CHECKS = {code: known.meaning for code, known in CODES.items() if known.is_check}
MANY = 3  # so many sites, arms or columns with the same remark share a line
MOST_NAMED = 20  # of such a line


def text_of(notice: Notice) -> str:
    """What was found, without the site's or arm's name."""
    accepted = " (accepted by the study)" if notice.accepted else ""
    seeds = f" (with {notice.seeds[0]} of {notice.seeds[1]} seeds)" if notice.seeds else ""
    return f"{CODES[notice.code].text(notice)}{accepted}{seeds}"


def remedy_of(notice: Notice) -> str:
    known = CODES[notice.code]
    return known.remedy if known.remedy_for is None else known.remedy_for(notice)


def line_of(notice: Notice) -> str:
    """The whole remark in one line: variant, site or arm, and what was found."""
    variant = f"variant {notice.variant}: " if notice.variant else ""
    place = place_of(notice)
    return f"{variant}{place}: {text_of(notice)}" if place else f"{variant}{text_of(notice)}"


def place_of(notice: Notice) -> str:
    """The sites, or the arm, that a line begins with."""
    if notice.code == "label-direction" and len(notice.other_sites) == 1:
        return f"{notice.site} and {notice.other_sites[0]}"
    return notice.site or notice.arm or ("all sites" if CODES[notice.code].is_check else "")


def lines_of(notices: Iterable[Notice]) -> list[str]:
    """Lines for people: what many sites, arms or columns have in common is said once."""
    return [line for _, line in grouped(notices)]


def lines_of_json(notices: Iterable[Mapping[str, object]]) -> list[str]:
    """`lines_of` notices as JSON files have them; where one is not known, their texts as they stand."""
    entries = list(notices)
    try:
        return lines_of(read_notice(entry) for entry in entries)
    except ValueError:
        return [str(entry["text"]) for entry in entries]


def grouped(notices: Iterable[Notice]) -> list[tuple[list[Notice], str]]:
    """Notices that share a line, and the line. The order is that of the first of each group."""
    groups: dict[tuple[object, ...], list[Notice]] = {}
    for notice in notices:
        groups.setdefault(_shared(notice), []).append(notice)
    lines: list[tuple[list[Notice], str]] = []
    for members in groups.values():
        if len(members) < MANY:
            lines += [([notice], line_of(notice)) for notice in members]
        else:
            lines.append((members, _line_for_many(members)))
    return lines


def identity(notice: Notice) -> tuple[object, ...]:
    """Equal for notices that differ in their counts only, as those of two seeds do."""
    by = [getattr(notice, name) for name in CODES[notice.code].same_by]
    plain = [tuple(sorted(value.items())) if isinstance(value, Mapping) else value for value in by]
    return notice.code, notice.site, notice.arm, notice.variant, *plain


def over_seeds(by_seed: Iterable[Iterable[Notice]]) -> list[Notice]:
    """The first of each remark, with the number of seeds that have it where not all have it."""
    alike: dict[tuple[object, ...], list[Notice]] = {}
    total = 0
    for notices in by_seed:
        total += 1
        for key, notice in {identity(notice): notice for notice in notices}.items():
            alike.setdefault(key, []).append(notice)
    return [replace(notices[0], seeds=some_of(len(notices), total)) for notices in alike.values()]


def as_notice(note: Notice | str) -> Notice:
    """A source of somebody else's may remark in plain sentences."""
    if isinstance(note, Notice):
        return note
    text = "".join(letter if letter.isprintable() else " " for letter in note)[:LONGEST_TEXT]
    return Notice("source-note", "info", details={"text": text})


def some_of(seeds: int, total: int) -> tuple[int, int] | None:
    """The field `seeds` of a notice: None where all have it."""
    return None if seeds == total else (seeds, total)


def read_notice(value: object) -> Notice:
    """From a file or another institution. ValueError where it is none, or of a code that is not known."""
    notice = Notice.from_json(value)
    declared: Severity = "error" if notice.accepted else notice.severity  # an accepted error is a warning
    if notice.code not in CODES or declared not in CODES[notice.code].severities:
        raise ValueError("a notice has a code or a severity that is not known")
    try:
        text_of(notice)
    except (KeyError, IndexError, TypeError, ValueError):
        raise ValueError("a notice lacks what its code needs") from None
    return notice


def with_texts(notices: Iterable[Notice]) -> list[dict[str, object]]:
    """For JSON files that people read too: each with its text."""
    return [{**notice.to_json(), "text": line_of(notice)} for notice in notices]


def reference() -> str:
    """The tables of docs/reference/notices.md."""
    rows = ["| code | severity | meaning | what to do |", "|---|---|---|---|"]
    rows += [
        f"| `{code}` | {' or '.join(known.severities)} | {_cell(known.meaning)} | {_cell(known.remedy)} |"
        for code, known in CODES.items()
    ]
    return "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _shared(notice: Notice) -> tuple[object, ...]:
    """Equal for notices that may share a line: of sites, of arms, or of columns of all files."""
    what = (notice.code, notice.severity, notice.variant, notice.accepted, notice.details.get("part"))
    if notice.other_sites:
        return *what, id(notice)
    if notice.site:
        return *what, "site"
    if notice.arm:
        return *what, "arm"
    return *what, repr(dict(notice.details)) if notice.columns else id(notice)


def _line_for_many(notices: Sequence[Notice]) -> str:
    first, texts = notices[0], {text_of(notice) for notice in notices}
    by_place: dict[str, list[str]] = {}
    for notice in notices:
        by_place.setdefault(notice.site or notice.arm, []).append(_brief(notice))
    variant = f"variant {first.variant}: " if first.variant else ""
    if len(texts) == 1 and "" not in by_place:
        return f"{variant}{few(list(by_place), MOST_NAMED)}: {texts.pop()}"
    if "" in by_place:
        kind, named, advice = "column", list(dict.fromkeys(by_place[""])), ""
    else:
        named = [_joined(place, dict.fromkeys(filter(None, own))) for place, own in by_place.items()]
        kind, advice = ("site", "") if first.site else ("arm", f". {CODES[first.code].remedy}")
    accepted = " (accepted by the study)" if first.accepted else ""
    what = f"{CODES[first.code].meaning[:-1]}{accepted} ({plural(len(named), kind)})"
    return f"{variant}{what}: {few(named, MOST_NAMED)}{advice}"


def _joined(place: str, briefs: Iterable[str]) -> str:
    """What tells one place's remarks from another's, in brackets."""
    inside = ", ".join(briefs)
    return f"{place} ({inside})" if inside else place


def _brief(notice: Notice) -> str:
    if notice.per_column:
        return ", ".join(f"{name} {count}" for name, count in notice.per_column.items())
    if notice.columns or notice.classes:
        return ", ".join((*notice.columns, *notice.classes))
    if "rows" in notice.counts:
        of = f" of {count(notice, 'of')}" if "of" in notice.counts else ""
        return f"{count(notice)}{of} rows"
    return ""
