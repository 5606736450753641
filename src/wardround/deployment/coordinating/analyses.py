"""The coordinator's part in analyses: the loop of `wardround.analyses`, whose questions travel as messages.

The same hospitals answer in every step, or sums of two steps would be about different patients. A hospital that does
not answer therefore stops the analysis; the coordinator that is started again goes on with the step it was in, because
the state follows from the sums, which are on disk.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from safetensors.torch import load_file

from wardround.analyses.agreement import agree
from wardround.analyses.analysis import Agreed, Analysis, ColumnFacts, LeftOut, Question, Schema, Sums, Survey
from wardround.analyses.conduct import Terms, described, next_step, refuse_secure, with_admissions
from wardround.analyses.simulated import terms_for
from wardround.analyses.summing import add_up, encoding_for
from wardround.core.errors import DataError, DeployError, SecureSumError, StudyError
from wardround.core.extras import needs
from wardround.core.tree import Tree
from wardround.deployment.common.messaging import Answered, Messenger, Step
from wardround.deployment.common.secure_sum_coordinator import Sum, begin_sum, share_keys, unmask
from wardround.deployment.common.secure_wave import Place
from wardround.deployment.common.spool import MASKED, Entry, Shape, Spool
from wardround.deployment.common.update_checks import leaves_hash
from wardround.deployment.flat.analysis_parts import (
    as_arrays,
    as_tensors,
    read_schema,
    summands_of,
    write_agreed,
)
from wardround.privacy.disclosure import RULES
from wardround.protocol.catalogue import (
    Admitted,
    Analyse,
    AskAdmission,
    AskSurvey,
    StepSums,
    Surveyed,
)
from wardround.protocol.messages import message_of
from wardround.runs.checkpoint import read_leaves, write_leaves
from wardround.study.analyses import StudyAnalysis, build_analysis, in_analysis
from wardround.tasks.task import require

with needs("deploy", "a study across hospitals"):
    from msgspec import structs

AGAIN = "Settle it with the hospital and start the coordinator again: it goes on with this step."


def conduct_analyses(messenger: Messenger, waves: int) -> Generator[Step, None, dict[str, Any]]:
    """What `results.json` has of each, by name. Analyses count as waves after the `waves` of training."""
    results = {}
    for number, chosen in enumerate(messenger.study.analyses):
        analysis: Analysis = build_analysis(chosen, messenger.families.analyses)
        conducted = DeployedAnalysis(messenger, number, chosen, analysis, waves + number)
        try:
            results[chosen.name] = yield from conducted.run()
        except StudyError as error:
            raise error if error.where.startswith("analyses") else in_analysis(error, chosen.name) from None
    return results


@dataclass
class DeployedAnalysis:
    messenger: Messenger
    number: int
    chosen: StudyAnalysis
    analysis: Analysis
    wave: int

    def __post_init__(self) -> None:
        self.terms: Terms = terms_for(self.messenger.study, self.chosen)
        self.folder = self.messenger.folder.path / "state" / "analyses" / self.chosen.name

    def run(self) -> Generator[Step, None, dict[str, Any]]:
        refuse_secure(self.analysis, self.terms)
        self.messenger.title = f"{self.chosen.name}: who takes part"
        agreed, left_out, rules = yield from self._agree()
        analysis, asked, steps = self.analysis, [], 0
        state = analysis.begin(agreed)
        while (question := analysis.ask(state)) is not None:
            self.messenger.title = f"{self.chosen.name}: {question.title or question.step}"
            yield self.messenger.step()
            asked.append(question)
            sums, by_site = yield from self._summed(agreed, question, steps)
            steps = next_step(steps, self.terms)
            state = analysis.advance(state, sums, by_site if analysis.tells_sites else {})
        return described(analysis, analysis.result(state), agreed, left_out, rules, asked, self.terms)

    def _agree(self) -> Generator[Step, None, tuple[Agreed, list[LeftOut], list[str]]]:
        messenger, run = self.messenger, self.messenger.run_name
        told: dict[str, Answered[Surveyed]] = yield from messenger.ask_all(
            AskSurvey(run=run, analysis=self.number), Surveyed, check=_check_survey
        )
        schema = common_schema({site: read_schema(own.body.columns) for site, own in told.items()}, self.terms.where)
        surveys = {site: _survey(own.body) for site, own in told.items()}
        while True:
            agreed, left_out = agree(self.analysis, schema, surveys, self.terms.most_rows, self.terms.where)
            request = AskAdmission(
                run=run, analysis=self.number, agreed=write_agreed(agreed), masked=self.terms.secure is not None
            )
            requests = {site: messenger.sealed(message_of(request), site) for site in agreed.sites}
            answers: dict[str, Answered[Admitted]] = yield from messenger.answers(
                requests, Admitted, "rules of disclosure", check=_check_admission
            )
            admissions = {
                site: Survey(own.body.broken or "", rules=tuple(own.body.rules)) for site, own in answers.items()
            }
            self._require_all(agreed, admissions)
            surveys, settled = with_admissions(surveys, admissions)
            if settled:
                break
        rules = sorted({rule for own in surveys.values() for rule in own.rules})
        facts = {"sites": list(agreed.sites), "left_out": {own.site: own.rule for own in left_out}, "rules": rules}
        messenger.log.add("analysis agreed", analysis=self.chosen.name, **facts)
        return agreed, left_out, rules

    def _require_all(self, agreed: Agreed, answered: Mapping[str, object]) -> None:
        missing = [site for site in agreed.sites if site not in answered]
        if missing:
            problem = f"{', '.join(missing)} did not answer, and every step needs the same hospitals"
            raise DeployError(self.terms.where, problem, AGAIN)

    def _summed(
        self, agreed: Agreed, question: Question, number: int
    ) -> Generator[Step, None, tuple[Sums, Mapping[str, Sums]]]:
        """The sums of a step, from disk where they are known."""
        path = self.folder / f"step-{number:04}.safetensors"
        if not path.is_file():
            spool = Spool(self.messenger.folder.path / "state", self.wave, number)
            if self.terms.secure is None:
                by_site = yield from self._in_the_open(agreed, question, number, spool)
            else:
                by_site = {"": (yield from self._masked(agreed, question, number, spool))}
            flat = {f"{site}/{name}": array for site, sums in by_site.items() for name, array in sums.items()}
            write_leaves(path, as_tensors(flat), {"sites": list(by_site)})
            spool.clear()
        leaves, place = read_leaves(path)
        known = {site: as_arrays(_of_site(leaves, site)) for site in place["sites"]}
        if self.terms.secure is None:
            return add_up(known), known
        return known[""], {}

    def _in_the_open(
        self, agreed: Agreed, question: Question, number: int, spool: Spool
    ) -> Generator[Step, None, dict[str, Sums]]:
        blocks = self.analysis.blocks(agreed, question)
        expected: dict[str, Shape] = {name: ("F64", block.shape) for name, block in blocks.items()}
        entries = yield from self._ask(agreed, question, number, spool, expected, None)
        return {site: as_arrays(load_file(entries[site].path)) for site in agreed.sites}

    def _masked(self, agreed: Agreed, question: Question, number: int, spool: Spool) -> Generator[Step, None, Sums]:
        """SecureSumError where the sum comes to nothing: too few hospitals, or not those that took part before."""
        messenger = self.messenger
        encoding = encoding_for(self.analysis.blocks(agreed, question), len(agreed.sites))
        models = {str(self.number): leaves_hash(as_tensors(question.arrays)).hex()}
        summands = summands_of(self.number, self.chosen, agreed)
        place = Place(messenger.study.hash, messenger.run_name, self.wave, number)
        sums = begin_sum(messenger, place, summands, models, spool.folder)
        yield from share_keys(messenger, sums)
        self._require_all(agreed, dict.fromkeys(sums.sharers))
        expected: dict[str, Shape] = {MASKED: ("I64", (encoding.length + 1,))}
        entries = yield from self._ask(agreed, question, number, spool, expected, sums)
        yield from unmask(messenger, sums, entries)
        if sums.total is None or set(sums.survivors or ()) != set(agreed.sites):
            problem = "not all hospitals that take part are in the sum"
            raise SecureSumError(self.terms.where, problem, AGAIN)
        return encoding.decode(sums.total)

    def _ask(
        self,
        agreed: Agreed,
        question: Question,
        number: int,
        spool: Spool,
        expected: Mapping[str, Shape],
        sums: Sum | None,
    ) -> Generator[Step, None, Mapping[str, Entry[StepSums]]]:
        messenger, tensors = self.messenger, as_tensors(question.arrays)
        request = Analyse(
            run=messenger.run_name, wave=self.wave, round=number, analysis=self.number, step=question.step
        )
        sealed = {}
        for site in agreed.sites:
            own = request if sums is None else structs.replace(request, sum=sums.payload(site))
            if site in messenger.present:
                sealed[site] = messenger.sealed(replace(message_of(own), tensors=tensors), site)

        def take(site: str, answered: Answered[StepSums]) -> None:
            spool.add(site, answered, expected)

        yield from messenger.collect(sealed, StepSums, take, question.step, closing=True, stored=spool.sealed)
        entries = spool.entries(list(agreed.sites), StepSums)
        self._require_all(agreed, entries)
        told = {site: {"message": own.message, "bytes": own.size, "head": own.log} for site, own in entries.items()}
        messenger.log.add("analysis step", analysis=self.chosen.name, step=question.step, round=number, sums=told)
        return entries


def _of_site(leaves: Tree, site: str) -> Tree:
    prefix = f"{site}/"
    return {name.removeprefix(prefix): leaf for name, leaf in leaves.items() if name.startswith(prefix)}


def _survey(body: Surveyed) -> Survey:
    return Survey(body.broken or "", {name: tuple(levels) for name, levels in body.levels.items()})


def _check_survey(site: str, body: Surveyed) -> None:
    require(body.broken is None or body.broken in RULES, "a rule that nobody knows")
    names = [column.name for column in body.columns]
    require(len(set(names)) == len(names) and set(body.levels) <= set(names), "levels of columns that it does not name")


def _check_admission(site: str, body: Admitted) -> None:
    require(body.broken is None or body.broken in RULES, "a rule that nobody knows")
    require(set(body.rules) <= set(RULES), "rules that nobody knows")


def common_schema(schemas: Mapping[str, Schema], where: str) -> Schema:
    """The columns as all hospitals that take part have them. DataError where one is text here and a number there."""
    common: dict[str, ColumnFacts] = {}
    first: dict[str, str] = {}
    for site, schema in schemas.items():
        for name, own in schema.items():
            known = common.setdefault(name, own)
            if known.kind != own.kind:
                problem = f"column {name!r} is {own.kind} at {site} and {known.kind} at {first[name]}"
                raise DataError(where, problem, "Declare its type in [data] of their site files.")
            first.setdefault(name, site)
            common[name] = replace(known, limits=_wider(known, own), levels=_all_levels(known, own))
    return common


def _wider(one: ColumnFacts, other: ColumnFacts) -> tuple[float, float] | None:
    if one.limits is None or other.limits is None:
        return None
    return min(one.limits[0], other.limits[0]), max(one.limits[1], other.limits[1])


def _all_levels(one: ColumnFacts, other: ColumnFacts) -> tuple[str, ...] | None:
    if one.levels is None or other.levels is None:
        return None
    return tuple(dict.fromkeys([*one.levels, *other.levels]))
