"""Codes of explanations that do not pass a check of whether they are true to the model."""

from wardround.core.notices.code import Code, Text, count, warning
from wardround.core.notices.notice import Notice

FIGURES = "{figure:.2f} on average, 95 % CI {low:.2f} to {high:.2f}"


def _failed(what: str) -> Text:
    def text(notice: Notice) -> str:
        figures = FIGURES.format(**{name: float(notice.counts[name]) for name in ("figure", "low", "high")})
        passes = f"it passes where {notice.details['rule']}"
        return f"{notice.details['method']} {what} ({figures}, {count(notice)} rows; {passes})"

    return text


EXPLANATION_CODES: dict[str, Code] = {
    "explanation-not-faithful": warning(
        "What an explanation puts first does not move the score more than what stands at random places.",
        "Do not take it as a reason for the score; look at another method that passes.",
        _failed("does not show what moves the score"),
    ),
    "explanation-ignores-the-model": warning(
        "An explanation stays much the same when the model's weights are shuffled.",
        "Do not use it: it shows the row, and not what the model does with it. Use another method that passes.",
        _failed("hardly changes when the model's weights are shuffled"),
    ),
    "explanation-unstable": warning(
        "An explanation changes much when a row changes hardly at all.",
        "Do not read single values from it; look at another method that passes.",
        _failed("changes much when a row changes hardly at all"),
    ),
    "explanations-disagree": warning(
        "Two methods put different columns, or places, first.",
        "Trust neither because it looks plausible: look at which of them passes the other checks.",
        _failed("do not agree on what comes first"),
    ),
}
