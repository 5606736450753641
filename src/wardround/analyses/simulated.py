"""The analyses of a study in a simulation: which rows they look at, and all of them one after another."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from wardround.analyses.agreement import schema_of
from wardround.analyses.analysis import Analysis, Schema
from wardround.analyses.conduct import Terms, conduct
from wardround.analyses.site_rows import SiteRows, site_rows, table_of
from wardround.core.errors import StudyError
from wardround.data.cohort import Cohort, place_rows
from wardround.evaluation.results import SCHEMA_VERSION
from wardround.privacy.disclosure import Limits
from wardround.study.analyses import AnalysedRows, StudyAnalysis, build_analysis, in_analysis
from wardround.study.parser import Families
from wardround.study.schema import Study
from wardround.tasks import Task


@dataclass(frozen=True, eq=False)
class Analysed:
    """All rows of the study's sites: an analysis has no training and no test rows."""

    study: Study
    families: Families
    cohort: Cohort

    @cached_property
    def schema(self) -> Schema:
        return schema_of(table_of(self.cohort.records)[1])

    @cached_property
    def sites(self) -> dict[str, SiteRows]:
        chosen = rows_of(self.study).sites.build(self.families.partitioners)
        if chosen.overlapping:
            problem = "a row may be at several sites, and an analysis would count it more than once"
            raise StudyError("sites: partition", problem, "Choose a partition in which each row has one site.")
        evaluation = self.study.evaluation
        placed = place_rows(self.cohort, chosen, evaluation.seed_for("partition", evaluation.seeds.first))
        return site_rows(self.cohort.records, placed)


def rows_of(study: Study) -> AnalysedRows:
    return study.analyses[0].rows


def terms_for(study: Study, analysis: StudyAnalysis) -> Terms:
    privacy = analysis.rows.privacy
    return Terms(analysis.name, Limits(smallest_cell=study.deployment.smallest_cell), privacy.secure_sum, study.hash)


def check_columns(analysed: Analysed) -> None:
    """StudyError where an analysis names a column that the data do not have, or that is of another kind."""
    for chosen in analysed.study.analyses:
        try:
            build_analysis(chosen, analysed.families.analyses).uses(analysed.schema)
        except StudyError as error:
            raise in_analysis(error, chosen.name) from None


def conduct_all(analysed: Analysed) -> Generator[tuple[int, str], None, dict[str, Any]]:
    """Yields how many are finished, and what is done now."""
    results: dict[str, Any] = {}
    for number, chosen in enumerate(analysed.study.analyses):
        built: Analysis = build_analysis(chosen, analysed.families.analyses)
        steps = conduct(built, terms_for(analysed.study, chosen), analysed.schema, analysed.sites)
        while True:
            try:
                yield number, f"{chosen.name}: {next(steps)}"
            except StopIteration as end:
                results[chosen.name] = end.value
                break
            except StudyError as error:
                raise error if error.where.startswith("analyses") else in_analysis(error, chosen.name) from None
    return results


def without_arms(study: Study, task: Task, sites: Sequence[str], deployed: bool = False) -> dict[str, Any]:
    """`results.json` of a study that trains nothing: what a reader of any run relies on, and nothing to rank."""
    rows = rows_of(study)
    return {
        "schema_version": SCHEMA_VERSION,
        "deployed": deployed,
        "task": task.to_json(),
        "findings": [],
        "classes": [],
        "primary_metric": study.evaluation.metric,
        "primary_within_sites": False,
        "study": {"name": study.name, "question": study.question, "hash": study.hash},
        "seeds": [],
        "variants": {},
        "arms": {},
        **{name: [] for name in ("tests", "benefit", "site_differences", "best_single", "by_number_of_sites")},
        "decision": None,
        "curves": {},
        "selection": [],
        "claims": [],
        "citations": list(filter(None, (rows.data.facts.citation, rows.sites.facts.citation))),
        "notices": [],
        "answer": [],
        "start_from": {},
        "privacy": None,
        "sites": [],
        "analysed_sites": list(sites),
        "synthetic": False,
    }
