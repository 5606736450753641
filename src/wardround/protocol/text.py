"""Text from another institution, made safe to show: it reaches terminals, logs and reports."""

import unicodedata

MOST_CHARACTERS = 300
UNSAFE = ("Cc", "Cf", "Cs", "Zl", "Zp")  # format characters include those that change the direction of text
JOINERS = "\u200c\u200d"  # format characters that ordinary words of some languages are written with


def plain_text(text: object, most: int = MOST_CHARACTERS) -> str:
    """One line without control characters, cut to a length that fits a screen."""
    if not isinstance(text, str):
        return ""
    line = " ".join("".join(c if _is_safe(c) else " " for c in text[: 4 * most]).split())
    return line if len(line) <= most and len(text) <= 4 * most else f"{line[: most - 3]}..."


def is_plain(text: str) -> bool:
    """Whether a name can be shown as it is."""
    return text.isprintable() or all(map(_is_safe, text))


def _is_safe(character: str) -> bool:
    return character in JOINERS or unicodedata.category(character) not in UNSAFE
