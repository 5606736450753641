"""The declaration of a notice's code, and phrases that texts of several families share."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from wardround.core.notices.notice import Notice, Severity

Text = Callable[[Notice], str]
NOTHING = "Nothing need be done."


@dataclass(frozen=True)
class Code:
    severities: tuple[Severity, ...]
    meaning: str
    remedy: str
    text: Text
    is_check: bool = False  # a check before training: `[evaluation] accept` may name it
    same_by: tuple[str, ...] = ("columns", "classes", "other_sites", "details", "files")  # beside site, arm, variant
    remedy_for: Text | None = None  # where it depends on the notice
    about_others: bool = False  # may name columns or hospitals that its site must not know of: no card shows it
    is_absence: bool = False  # why a site does not take part


def info(meaning: str, remedy: str, text: Text) -> Code:
    return Code(("info",), meaning, remedy, text)


def warning(meaning: str, remedy: str, text: Text) -> Code:
    return Code(("warning",), meaning, remedy, text)


def absence(meaning: str, remedy: str, text: Text) -> Code:
    return Code(("warning",), meaning, remedy, text, is_absence=True)


def check(
    severities: Sequence[Severity],
    meaning: str,
    remedy: str,
    text: Text,
    remedy_for: Text | None = None,
    same_by: tuple[str, ...] = Code.same_by,
) -> Code:
    return Code(tuple(severities), meaning, remedy, text, True, same_by, remedy_for)


def quoted(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def few(names: Sequence[str], most: int) -> str:
    """The first names, and how many there are besides."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def listed(items: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(items[:-1]), items[-1])))


def count(notice: Notice, name: str = "rows") -> int:
    return int(notice.counts.get(name, 0))


def share_text(notice: Notice, what: str) -> str:
    """`3 of 40 rows ...`"""
    return f"{count(notice)} of {count(notice, 'of')} {what}"


def plural(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"
