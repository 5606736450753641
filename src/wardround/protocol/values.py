"""Kinds of values in messages, with their limits: what is larger comes from a mistake or from ill will."""

from typing import Annotated, Any

from wardround.core.extras import needs

with needs("deploy", "a study across hospitals"):
    from msgspec import Meta, Struct


MOST_ROWS = 100_000_000  # of one hospital
MOST_COLUMNS = 50_000
MOST_LEVELS = 100_000  # of one column
MOST_CLASSES = 10_000
MOST_METRICS = 50  # of a task, or sums that its metrics follow from
MOST_TRIALS = 100_000
MOST_SITES = 10_000
MOST_HEAD = 256 * 2**20  # bytes of an answer beside its tensors

Count = Annotated[int, Meta(ge=0, le=MOST_ROWS)]
Place = Annotated[int, Meta(ge=0, le=MOST_TRIALS)]
Name = Annotated[str, Meta(min_length=1, max_length=500)]  # of a site, a column, a class, a level
Key = Annotated[str, Meta(min_length=1, max_length=9, pattern=r"\A[0-9]+\Z")]  # the number of a trial
Text = Annotated[str, Meta(max_length=20_000)]  # for people; shown through `plain_text`
Hex = Annotated[str, Meta(max_length=4096, pattern=r"\A[0-9a-f]*\Z")]
Hash = Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")]
Share = Annotated[float, Meta(ge=0, le=1 + 1e-9)]  # room for rounding
Positive = Annotated[float, Meta(ge=0)]
Bytes = Annotated[int, Meta(ge=0, le=2**60)]
Value = Annotated[float, Meta(ge=-1e15, le=1e15)]  # of a column: its square is a number in single precision too
Values = Annotated[list[Value], Meta(max_length=MOST_COLUMNS)]
Totals = Annotated[list[Annotated[float, Meta(ge=-1e24, le=1e24)]], Meta(max_length=MOST_COLUMNS)]  # over all rows
Squares = Annotated[list[Annotated[float, Meta(ge=0, le=1e39)]], Meta(max_length=MOST_COLUMNS)]
Sums = Annotated[list[Annotated[float, Meta(ge=-1e39, le=1e39)]], Meta(max_length=MOST_METRICS)]
ExactSum = Annotated[list[Annotated[float, Meta(ge=-1e39, le=1e39)]], Meta(max_length=64)]
Counts = Annotated[list[Count], Meta(max_length=MOST_COLUMNS)]
Flags = Annotated[list[bool], Meta(max_length=MOST_COLUMNS)]
Shape = Annotated[list[Annotated[int, Meta(ge=1, le=1_000_000)]], Meta(max_length=4)]
Epochs = Annotated[int, Meta(ge=1, le=1_000_000)]
Sites = Annotated[list[Name], Meta(max_length=MOST_SITES)]
Word = Annotated[str, Meta(max_length=500)]
Words = Annotated[list[Word | float], Meta(max_length=MOST_CLASSES)]
TaskJson = Annotated[dict[Name, Word | float | bool | Words | None], Meta(max_length=20)]  # which `read_task` checks
Remark = Annotated[dict[Name, Any], Meta(max_length=20)]  # a notice, which its reader checks
Left = Annotated[dict[Name, Remark], Meta(max_length=MOST_SITES)]  # hospitals that left their region, and why


class Part(Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A part of a message. A field with a default may be missing."""
