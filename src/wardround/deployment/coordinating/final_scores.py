"""The end of a wave: final models are sent to all, who score them; their figures are kept for the results."""

from collections.abc import Generator, Mapping, Sequence
from typing import TypeVar

from wardround.core.tree import Tree
from wardround.deployment.common.deployment_results import save_summaries
from wardround.deployment.common.messaging import Answered, Check, Messenger, Step
from wardround.deployment.common.site_store import NONE_YET
from wardround.deployment.common.waves import TrialRecord, WaveState, scored_records, seal_with_models
from wardround.protocol.catalogue import Evaluate, RegionSummary, Summaries, Summary
from wardround.runs.prediction_tables import saved_leaves
from wardround.training.round_record import RoundRecord
from wardround.training.trial import Trial

E = TypeVar("E", Summary, RegionSummary)


def scored_at_the_end(messenger: Messenger, trials: Sequence[Trial]) -> list[int]:
    """Trials whose curves end with the final model; a held-out site's rows have no curve."""
    return [n for n, trial in enumerate(trials) if messenger.study.arm(trial.arm).held_out is None]


def ask_for_scores(
    messenger: Messenger,
    number: int,
    trials: Sequence[Trial],
    state: WaveState,
    score: Sequence[int],
    answer: type[E],
    check: Check[E],
    own: Mapping[str, Tree] | None = None,
) -> Generator[Step, None, dict[str, Answered[E]]]:
    """Send the final models and collect summaries. Where sites form regions, `own` are the regions' own models."""
    requests = {
        site: (
            Evaluate(run=messenger.run_name, wave=number, counted=state.counted.get(site, NONE_YET), score=list(score)),
            range(len(trials)),
        )
        for site in messenger.present
    }
    sealed = seal_with_models(messenger, trials, state, requests, own, final=True)
    answers = yield from messenger.answers(sealed, answer, "evaluation", check=check)
    return {site: answers[site] for site in messenger.present if site in answers}


def keep_scores(
    messenger: Messenger,
    number: int,
    trials: Sequence[Trial],
    state: WaveState,
    pending: Sequence[TrialRecord],
    answers: Mapping[str, Answered[E]],
    summaries: Mapping[str, Summaries],
) -> list[RoundRecord]:
    """The last records. `summaries` are those of each hospital."""
    figures = [answered.body.figures for answered in answers.values()]
    ready, _ = scored_records(pending, trials, state.round, figures, final=True)
    save_summaries(messenger.folder, number, trials, summaries)
    for trial, run in zip(trials, state.runs, strict=True):
        if messenger.study.arm(trial.arm).held_out is None:
            messenger.folder.save_model(trial.arm, trial.seed, saved_leaves(run))
    log_wave(messenger, number, answers)
    return ready


def log_wave(messenger: Messenger, number: int, answers: Mapping[str, Answered[E]]) -> None:
    messenger.log.add("wave finished", wave=number, heads={site: a.log for site, a in answers.items()})
