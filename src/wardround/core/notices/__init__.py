"""Structured remarks about data or a run: values with a code; text is rendered last."""

from wardround.core.notices.code import Code
from wardround.core.notices.notice import Notice, Plain, Severity, errors_among
from wardround.core.notices.notice_texts import (
    ABSENCES,
    CHECKS,
    CODES,
    as_notice,
    grouped,
    identity,
    line_of,
    lines_of,
    lines_of_json,
    over_seeds,
    place_of,
    read_notice,
    reference,
    remedy_of,
    some_of,
    text_of,
    with_texts,
)

__all__ = [
    "ABSENCES",
    "CHECKS",
    "CODES",
    "Code",
    "Notice",
    "Plain",
    "Severity",
    "as_notice",
    "errors_among",
    "grouped",
    "identity",
    "line_of",
    "lines_of",
    "lines_of_json",
    "over_seeds",
    "place_of",
    "read_notice",
    "reference",
    "remedy_of",
    "some_of",
    "text_of",
    "with_texts",
]
