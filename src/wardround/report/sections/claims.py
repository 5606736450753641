"""Published claims in a report: a table of counts by subject, and each subject's own table."""

from collections.abc import Mapping, Sequence
from typing import Any

from wardround.evaluation.claims.verdicts import FigureFormat, by_group, count_outcomes, figure_text
from wardround.report.evidence import Evidence
from wardround.report.render.table import NONE, Table, make_table
from wardround.report.section import Section

AS_IT_STANDS = "as it stands"
OTHER = "Other claims"  # of no subject, beside some that have one
FEW = 12  # that a terminal shows one by one


def subjects(evidence: Evidence) -> list[dict[str, Any]]:
    """The claims of each subject, as a page shows them, in the study's order."""
    groups = by_group(evidence.results["claims"])
    return [_subject(title or (OTHER if len(groups) > 1 else ""), claims) for title, claims in groups.items()]


def _subject(title: str, claims: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    sources = {claim["source"] for claim in claims}
    variants = dict.fromkeys(variant or AS_IT_STANDS for claim in claims for variant in claim["variants"])
    return {
        "title": title,
        "source": sources.pop() if len(sources) == 1 else "",  # of all of them, where it is one
        "derived": any(claim["recomputed"] for claim in claims),  # from other figures of their source
        "variants": list(variants) if len(variants) > 1 else [],  # in which some have a figure of ours
        "claims": [_shown(claim) for claim in claims],
    }


def _shown(claim: Mapping[str, Any]) -> dict[str, Any]:
    form = FigureFormat(claim["metric"], claim["statistic"], claim["compare"], bool(claim["against"]))

    def text(value: float | None) -> str:
        return NONE if value is None else figure_text(value, form)

    return {
        **claim,
        "kind": claim["outcome"].split()[0],
        "published": text(claim["published"]),
        "derived": " or ".join(text(value) for value in claim["recomputed"]),
        "ours": text(claim["ours"]),
        "variants": {name or AS_IT_STANDS: text(value) for name, value in claim["variants"].items()},
    }


def claim_table(evidence: Evidence) -> Table:
    names = ("text", "source", "published", "ours", "outcome", "verdict")
    rows = [[claim["group"] or None, *(claim[name] for name in names)] for claim in evidence.results["claims"]]
    columns = ("subject", "claim", *names[1:])
    return make_table("claims", "Published claims", dict.fromkeys(columns), rows)


def claim_count_table(evidence: Evidence) -> Table | None:
    """How the claims of each subject fared; None where they have no subjects."""
    groups = by_group(evidence.results["claims"])
    if len(groups) < 2:
        return None
    used = [outcome for outcome, count in count_outcomes(evidence.results["claims"]).items() if count]
    rows: list[list[Any]] = [
        [title or OTHER, len(claims), *(count_outcomes(claims)[outcome] for outcome in used)]
        for title, claims in groups.items()
    ]
    rows.append(["all", *(sum(row[place] for row in rows) for place in range(1, len(used) + 2))])
    return make_table(
        "claims-by-subject",
        "Published claims by subject",
        {"subject": None, "claims": str, **dict.fromkeys(used, str)},
        rows,
    )


PAGE = """
{% macro claim_rows(subject) %}
{% if subject.source %}<p class="meta">Source: {{ subject.source }}.</p>{% endif %}
<div class="scroll"><table class="claims"><thead><tr><th scope="col">claim</th>
{% if not subject.source %}<th scope="col">source</th>{% endif %}
<th scope="col" class="n">published</th>
{% if subject.derived %}<th scope="col" class="n">from its other figures</th>{% endif %}
<th scope="col" class="n">ours</th><th scope="col">verdict</th>
{% for variant in subject.variants %}<th scope="col" class="n">ours, {{ variant }}</th>{% endfor %}</tr></thead><tbody>
{% for claim in subject.claims %}<tr><th scope="row">{{ claim.text }}</th>
{% if not subject.source %}<td>{{ claim.source }}</td>{% endif %}
<td class="n">{{ claim.published }}</td>
{% if subject.derived %}<td class="n">{{ claim.derived }}</td>{% endif %}
<td class="n">{{ claim.ours }}</td>
<td><span class="verdict {{ claim.kind }}">{{ claim.outcome }}</span>
{%- if claim.reason %}: {{ claim.reason }}{% endif %}</td>
{% for variant in subject.variants %}<td class="n">{{ claim.variants.get(variant, "") }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>{% endmacro %}
<section id="claims"><h2>Published claims, and what we found</h2>
{{ show("claims-by-subject") }}
{% for subject in subjects %}{% if subject.title %}<details{{ " open" if loop.length < 3 }}>
<summary>{{ subject.title }} ({{ subject.claims | length }})</summary>{{ claim_rows(subject) }}</details>
{% else %}{{ claim_rows(subject) }}{% endif %}
{% endfor %}</section>"""
SECTION = Section(PAGE, "claims", "Claims", {"subjects": subjects}, tables=(claim_count_table, claim_table))
