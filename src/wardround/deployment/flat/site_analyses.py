"""A hospital's part in analyses: whether it takes part, and its sums in each step.

What may leave is decided here, by the rules of disclosure with the stricter of the study's and this hospital's limits.
"""

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch

from wardround.analyses.agreement import admission, admitted, schema_of, survey
from wardround.analyses.analysis import Agreed, Analysis, Question, Schema, Sums
from wardround.analyses.conduct import MOST_STEPS, Terms
from wardround.analyses.simulated import terms_for
from wardround.analyses.site_rows import SiteRows, site_rows, table_of
from wardround.analyses.summing import check_sums, encoding_for
from wardround.core.errors import DeployError
from wardround.core.tree import Tree
from wardround.data.cohort import Cohort, load_cohort
from wardround.data.sources import Source
from wardround.deployment.common.deployed_plan import for_own_columns
from wardround.deployment.common.secure_wave import Summands
from wardround.deployment.common.update_checks import leaves_hash
from wardround.deployment.flat.analysis_parts import (
    as_arrays,
    as_tensor,
    read_agreed,
    summands_of,
    write_schema,
)
from wardround.deployment.flat.explained_rows_at_site import explained_rows
from wardround.deployment.flat.explanation_parts import built, conducted
from wardround.deployment.flat.site_session import Session
from wardround.deployment.site.answering import Reply
from wardround.deployment.site.session import write_session
from wardround.privacy.disclosure import Limits
from wardround.privacy.disclosure.earlier_releases import ReleaseMemory
from wardround.privacy.secure_sum.fixed_point import Whole
from wardround.protocol.catalogue import (
    Admitted,
    Analyse,
    AskAdmission,
    AskSurvey,
    StepSums,
    SumTerms,
    Surveyed,
)
from wardround.study.analyses import StudyAnalysis, build_analysis
from wardround.study.explanations import KIND

AGAIN = "Start the coordinator again: it begins the analysis anew."


@dataclass
class AnalysesAtSite:
    session: Session
    counted: dict[int, tuple[Agreed, SiteRows]] = field(default_factory=dict)  # by analysis, once it is agreed

    @cached_property
    def cohort(self) -> Cohort:
        """All rows: an analysis has no training and no test rows, and fills no gap."""
        session = self.session
        preparation = for_own_columns(conducted(session.study)[0].rows.preparation, session.site, session.records)
        return load_cohort(Source(lambda: session.records), replace(preparation, missing="median"))

    @cached_property
    def schema(self) -> Schema:
        return schema_of(table_of(self.cohort.records)[1])

    @cached_property
    def rows(self) -> SiteRows:
        site, records = self.session.site, self.cohort.records
        limits = self.limits(terms_for(self.session.study, self.session.study.analyses[0]))  # alike for all of them
        rows = site_rows(records, {site: np.arange(len(records))})[site].under(limits)
        return replace(rows, told=self.memory.cells(self._marks(rows))) if self._tells_tables() else rows

    def rows_for(self, chosen: StudyAnalysis) -> SiteRows:
        """All rows of the site; where a model is explained, its test rows."""
        if chosen.kind != KIND:
            return self.rows
        return explained_rows(self.session, chosen).under(self.limits(terms_for(self.session.study, chosen)))

    def _tells_tables(self) -> bool:
        """Whether an analysis of the study tells counts of all rows, which must go together with those told before."""
        kinds = self.session.families.analyses
        built: list[Analysis] = [build_analysis(chosen, kinds) for chosen in self.session.study.analyses]
        return any(analysis.uses(self.schema).every_row for analysis in built)

    @cached_property
    def memory(self) -> ReleaseMemory:
        return ReleaseMemory(self.session.folder.parent / "releases")

    def limits(self, terms: Terms) -> Limits:
        return terms.limits.and_those_of(self.session.gate.limits())

    def chosen(self, number: int) -> tuple[StudyAnalysis, Analysis, Terms]:
        analyses = conducted(self.session.study)
        if number >= len(analyses):
            raise DeployError("coordinator", "asks for an analysis that this study does not have", AGAIN)
        analysis = built(analyses[number], self.session.plan, self.session.families.analyses)
        return analyses[number], analysis, terms_for(self.session.study, analyses[number])

    def survey(self, request: AskSurvey) -> Surveyed:
        chosen, analysis, terms = self.chosen(request.analysis)
        schema = {} if chosen.kind == KIND else self.schema
        own = survey(analysis, schema, self.rows_for(chosen), self.limits(terms))
        used = {name: schema[name] for name in analysis.uses(schema).columns}
        told = {} if own.broken else used
        levels = {name: list(levels) for name, levels in own.levels.items()}
        return Surveyed(**request.place, broken=own.broken or None, columns=write_schema(told), levels=levels)

    def admission(self, request: AskAdmission) -> Admitted:
        """The last one that is asked before the first step stands."""
        number, kept = request.analysis, self.session.kept
        chosen, analysis, terms = self.chosen(number)
        if number in kept.begun_analyses and kept.analyses.get(number) != request.agreed:
            problem = f"asks for {chosen.name} on other terms than those on which it was answered"
            raise DeployError("coordinator", problem, AGAIN)
        agreed = read_agreed(request.agreed, terms.most_rows)
        if self.session.site not in agreed.sites or (terms.secure is not None) != request.masked:
            raise DeployError("coordinator", f"asks for {chosen.name} otherwise than the study has it", AGAIN)
        counted = admitted(analysis, agreed, self.rows_for(chosen))
        own = admission(analysis, agreed, counted, self.limits(terms), request.masked, self._earlier(chosen, counted))
        counted.once(("rules",), lambda: own.rules)
        kept.analyses[number] = request.agreed
        self.counted[number] = agreed, counted
        write_session(self.session)
        return Admitted(**request.place, broken=own.broken or None, rules=list(own.rules))

    def _earlier(self, chosen: StudyAnalysis, counted: SiteRows) -> tuple[frozenset[str], list[frozenset[str]]]:
        """The patients of this answer, and of those to the same question before."""
        return self._marks(counted), self.memory.earlier(question_of(chosen))

    def _marks(self, counted: SiteRows) -> frozenset[str]:
        return counted.once(("marks",), lambda: self.memory.marks(self._people(counted)))

    def _people(self, counted: SiteRows) -> list[Any]:
        """Names of patients that are the same in another study: their numbers, or without any what their rows hold."""
        records = self.cohort.records
        names = self.cohort.prints if records.patient is None else records.patient
        people: list[Any] = np.asarray(names)[counted.frame.index.to_numpy()].tolist()
        return people

    def answer(self, request: Analyse, tensors: Tree) -> Sums:
        """Its sums in a step. A site that answers remembers about whom, before anything leaves."""
        number, kept = request.analysis, self.session.kept
        chosen, analysis, terms = self.chosen(number)
        if self.session.analysis_at(request.wave) != number or request.round >= MOST_STEPS:
            raise DeployError("coordinator", f"asks for a step that {chosen.name} does not have", AGAIN)
        if (request.sum is None) != (terms.secure is None):
            problem = "asks for sums without masks, where the study adds them up securely"
            raise DeployError("coordinator", problem, "Ask the coordinator why; nothing was told.")
        agreed, counted = self._agreed(number, chosen, analysis, terms)
        question = Question(request.step, as_arrays(tensors))
        sums = analysis.answer(agreed, question, counted)
        check_sums(question, analysis.blocks(agreed, question), sums, self.session.site)
        if number not in kept.begun_analyses:
            self.memory.remember(question_of(chosen), self._marks(counted))
            if chosen.kind != KIND and analysis.uses(self.schema).every_row:
                self.memory.remember_cells(self._marks(counted), counted.told)
            kept.begun_analyses.append(number)
            write_session(self.session)
        return sums

    def _agreed(self, number: int, chosen: StudyAnalysis, analysis: Analysis, terms: Terms) -> tuple[Agreed, SiteRows]:
        """As it stands, or as the session's file has it after a restart."""
        part = self.session.kept.analyses.get(number)
        if part is None:
            raise DeployError("coordinator", "asks for a step of an analysis that was not agreed on", AGAIN)
        if number not in self.counted:
            agreed = read_agreed(part, terms.most_rows)
            self.counted[number] = agreed, admitted(analysis, agreed, self.rows_for(chosen))
        return self.counted[number]

    def rules(self, number: int) -> tuple[str, ...]:
        """Those that were asked before anything of the analysis left."""
        chosen, analysis, terms = self.chosen(number)
        agreed, counted = self._agreed(number, chosen, analysis, terms)

        def ask() -> tuple[str, ...]:
            limits, masked = self.limits(terms), terms.secure is not None
            return admission(analysis, agreed, counted, limits, masked, self._earlier(chosen, counted)).rules

        return counted.once(("rules",), ask)

    def summands(self, wave: int) -> tuple[Summands, list[str]]:
        """Of the secure sum of a step: every site that takes part contributes."""
        number = self.session.analysis_at(wave)
        chosen, analysis, terms = self.chosen(number)
        agreed, _ = self._agreed(number, chosen, analysis, terms)
        if terms.secure is None:
            raise DeployError("coordinator", "asks for a secure sum that the study does not have", AGAIN)
        return summands_of(number, chosen, agreed), [str(number)]

    def check_question(self, request: Analyse, tensors: Tree, terms: SumTerms) -> None:
        """That it is what was announced to all sites."""
        if terms.models.get(str(request.analysis)) != leaves_hash(tensors).hex():
            problem = "asks another question than it told all sites of"
            raise DeployError("coordinator", problem, "Ask the coordinator why; nothing was told.")

    def vector(self, request: Analyse, tensors: Tree, sums: Sums) -> Whole:
        chosen, analysis, terms = self.chosen(request.analysis)
        agreed, _ = self._agreed(request.analysis, chosen, analysis, terms)
        blocks = analysis.blocks(agreed, Question(request.step, as_arrays(tensors)))
        return encoding_for(blocks, len(agreed.sites)).encode(sums, self.session.site)

    def reply(self, request: Analyse, sums: Sums | Tree) -> Reply:
        chosen, _, _ = self.chosen(request.analysis)
        leaving = {name: own if isinstance(own, torch.Tensor) else as_tensor(own) for name, own in sums.items()}
        line = f"{chosen.name}, step {request.round + 1} ({request.step}): sums"
        released = {"analysis": chosen.name, "step": request.step, "rules": list(self.rules(request.analysis))}
        return Reply(StepSums(**request.place), leaving, (line,), released)


def question_of(chosen: StudyAnalysis) -> str:
    """The same in every study that asks it."""
    return f"{chosen.kind} {sorted(chosen.options.items())}"
