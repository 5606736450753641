"""An analysis in a simulation: the loop of `analysis.py` over sites of one process."""

from collections.abc import Generator, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from wardround.analyses.agreement import admission, admitted, agree, survey
from wardround.analyses.analysis import Agreed, Analysis, LeftOut, Question, Schema, Sums, Survey
from wardround.analyses.site_rows import SiteRows
from wardround.analyses.summing import add_up, add_up_securely, check_sums, encoding_for
from wardround.core.errors import StudyError
from wardround.privacy.disclosure import Limits
from wardround.study.schema import SecureSum

MOST_STEPS = 500  # of any analysis: beyond it something is wrong with the analysis itself


@dataclass(frozen=True)
class Terms:
    """How an analysis is run, whatever it is."""

    name: str
    limits: Limits = field(default_factory=Limits)  # of what may leave a site
    secure: SecureSum | None = None
    context: str = ""  # of secure sums: which run it is

    @property
    def where(self) -> str:
        return f"analyses: {self.name}"

    @property
    def most_rows(self) -> int:
        return (self.secure or SecureSum()).most_rows


def conduct(
    analysis: Analysis, terms: Terms, schema: Schema, sites: Mapping[str, SiteRows]
) -> Generator[str, None, dict[str, Any]]:
    """Yields the title of each step; returns what `results.json` has of the analysis."""
    refuse_secure(analysis, terms)
    sites = {site: rows.under(terms.limits) for site, rows in sites.items()}
    surveys = {site: survey(analysis, schema, rows, terms.limits) for site, rows in sites.items()}
    while True:
        agreed, left_out = agree(analysis, schema, surveys, terms.most_rows, terms.where)
        counted = {site: admitted(analysis, agreed, sites[site]) for site in agreed.sites}
        yield "rules of disclosure"
        masked = terms.secure is not None
        admissions = {site: admission(analysis, agreed, rows, terms.limits, masked) for site, rows in counted.items()}
        surveys, settled = with_admissions(surveys, admissions)
        if settled:
            break
    state, steps, asked = analysis.begin(agreed), 0, []
    while (question := analysis.ask(state)) is not None:
        yield question.title or question.step
        asked.append(question)
        steps = next_step(steps, terms)
        sums, by_site = _sum(analysis, agreed, question, counted, terms, steps)
        state = analysis.advance(state, sums, by_site if analysis.tells_sites else {})
    rules = sorted({rule for own in surveys.values() for rule in own.rules})
    return described(analysis, analysis.result(state), agreed, left_out, rules, asked, terms)


def with_admissions(surveys: Mapping[str, Survey], admissions: Mapping[str, Survey]) -> tuple[dict[str, Survey], bool]:
    """Without sites that a rule keeps out now that they know what they would release. Whether all others may stay."""
    after = {
        site: replace(own, rules=admissions[site].rules, broken=admissions[site].broken) if site in admissions else own
        for site, own in surveys.items()
    }
    return after, not any(own.broken for own in admissions.values())


def next_step(steps: int, terms: Terms) -> int:
    if steps >= MOST_STEPS:
        raise StudyError(terms.where, f"has no end after {MOST_STEPS} steps", "Please report it.")
    return steps + 1


def _sum(
    analysis: Analysis, agreed: Agreed, question: Question, counted: Mapping[str, SiteRows], terms: Terms, step: int
) -> tuple[Sums, Mapping[str, Sums]]:
    blocks = analysis.blocks(agreed, question)

    def answer(site: str) -> Sums:
        sums = analysis.answer(agreed, question, counted[site])
        check_sums(question, blocks, sums, site)
        return sums

    if terms.secure is None:
        by_site = {site: answer(site) for site in agreed.sites}
        return add_up(by_site), by_site
    context = f"{terms.context}/{terms.name}/{step}".encode()
    answers = ((site, lambda site=site: answer(site)) for site in agreed.sites)
    return add_up_securely(blocks, answers, agreed.sites, terms.secure, context), {}


def refuse_secure(analysis: Analysis, terms: Terms) -> None:
    if terms.secure is not None and analysis.tells_sites:
        problem = f"it needs {analysis.tells_sites}, and a secure sum shows nothing of a single hospital"
        raise StudyError(terms.where, problem, 'Leave it out, or write `"privacy.secure_sum" = "off"`.')


def described(
    analysis: Analysis,
    result: dict[str, Any],
    agreed: Agreed,
    left_out: list[LeftOut],
    rules: list[str],
    asked: list[Question],
    terms: Terms,
) -> dict[str, Any]:
    """The result with what is the same for every kind."""
    return {
        "kind": analysis.kind,
        **result,
        "sites": list(agreed.sites),
        "left_out": [asdict(site) for site in left_out],
        "rules": rules,
        "citations": list(analysis.citations),
        "tells_sites": analysis.tells_sites or None,
        "steps": len(asked),
        "secure_sum": None if terms.secure is None else _secure(analysis, agreed, asked),
    }


def _secure(analysis: Analysis, agreed: Agreed, asked: list[Question]) -> dict[str, Any]:
    """The widest cap of any block, and the finest step to which its sums were rounded."""
    encodings = [encoding_for(analysis.blocks(agreed, question), len(agreed.sites)) for question in asked]
    return {
        "sites": len(agreed.sites),
        "largest_cap": max(encoding.largest_cap for encoding in encodings),
        "coarsest_step": max(encoding.coarsest_step for encoding in encodings),
    }
