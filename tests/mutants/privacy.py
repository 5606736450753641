"""Mistakes that leave a promise of privacy empty, and that nothing else would show."""

import math
from dataclasses import replace
from typing import Any

import torch

from tests.mutants.mutant import Mutant, returns, with_field
from wardround.engines.split import exchange
from wardround.models.patient_gradients import Patients
from wardround.privacy import validation
from wardround.privacy.dp import example_dp, noise, protection
from wardround.privacy.dp.example_dp import PrivateGradient, Rule
from wardround.privacy.dp.noise import SecretStream
from wardround.privacy.dp.protection import Sampling
from wardround.training import intake, schedule
from wardround.training.intake import Intake
from wardround.training.trial import Trial

PATIENTS = "privacy/test_example_dp.py"
PLAN = "privacy/test_protection.py"
ROUNDS = "privacy/test_in_rounds.py"
SCHEDULE = "privacy/test_schedule.py"
NOISE = "privacy/test_noise.py"
SITES = "privacy/test_site_dp.py"
EMBEDDINGS = "engines/test_split.py"

NOISE_OF_A_STEP = (f"{PATIENTS}::test_noise_has_the_standard_deviation_that_is_charged",)
ONE_PATIENT = (f"{PATIENTS}::test_no_patient_moves_the_sum_by_more_than_the_clip",)


def _with_its_loss(original: Any, self: Any, params: Any, buffers: Any, x: Any, y: Any, masks: Any, *rest: Any) -> Any:
    gradient, _, after = original(self, params, buffers, x, y, masks, *rest)
    return gradient, self.model.loss(params, buffers, x, y, masks)[0].detach(), after


def _uncentred(original: Any, clip: float, lengths: Any, rule: Any, how: Any, stream: Any) -> float:
    count = float((lengths <= clip).double().sum()) + how.count_noise * float(stream.normal(1, torch.float64)[0])
    return clip * math.exp(-how.rate * (min(1.0, max(0.0, count / rule.expected)) - how.quantile))


def _one_step_less(original: Any, cls: Any, rows: int, batch_size: int) -> Any:
    return replace(original(cls, rows, batch_size), steps=max(1, rows // batch_size))


def _noise_of_the_first_round(original: Any, self: Any, number: int, epochs: int, round_number: int) -> Any:
    return original(self, number, epochs, 0)


def _one_round_more(original: Any, example: Any, sampling: Any, epochs: Any) -> Any:
    charges = original(example, sampling, epochs)
    whole = original(replace(example, epsilon=1e6), sampling, epochs)
    return whole[: len(charges) + 1]


def _each_part(original: Any, update: Any, exempt: Any, clip: float) -> Any:
    return {part: original({part: leaves}, exempt, clip)[part] for part, leaves in update.items()}


def _failed_but_remembered(original: Any, self: Any, why: str) -> Any:
    memories = self.memories
    original(self, why)
    self.memories = memories


def _free_of_charge(original: Any, self: Any, why: str) -> Any:
    original(self, why)
    self.epochs = {}


MUTANTS = (
    Mutant("no noise on the gradient", Rule.spread, returns(0.0), "noise is what is charged", NOISE_OF_A_STEP),
    Mutant(
        "noise as for half the variance",
        Rule.spread,
        lambda original, self, clip: original(self, clip) / math.sqrt(2),
        "noise has the standard deviation that is charged",
        NOISE_OF_A_STEP,
    ),
    Mutant(
        "noise that does not follow the clip",
        Rule.spread,
        lambda original, self, clip: original(self, self.clip),
        "the noise of an adaptive clip follows the clip",
        (f"{PATIENTS}::test_the_noise_of_an_adaptive_clip_follows_the_clip_and_the_formula",),
    ),
    Mutant(
        "the count of an adaptive clip is free",
        Rule.gradient_noise,
        lambda original, self: self.noise,
        "gradient and count together cost what is charged",
        (f"{PATIENTS}::test_both_releases_together_cost_what_is_charged",),
    ),
    Mutant(
        "nothing is clipped",
        example_dp._factors,
        lambda original, lengths, clip: torch.ones_like(lengths),
        "no patient moves the sum by more than the clip",
        ONE_PATIENT,
    ),
    Mutant(
        "each row is clipped and not each patient",
        Patients.of,
        lambda original, cls, patients: original(cls, torch.arange(len(patients))),
        "no patient moves the sum by more than the clip",
        ONE_PATIENT,
    ),
    Mutant(
        "a patient's rows add up",
        Patients.of,
        lambda original, cls, patients: replace(
            original(cls, patients), part=torch.ones(len(patients), dtype=torch.float64)
        ),
        "a patient counts by the mean of the rows",
        ("privacy/test_rows.py::test_tables",),
    ),
    Mutant(
        "a penalty is forgotten",
        example_dp._with_penalty,
        lambda original, penalty, params, gradient: gradient,
        "a penalty is added after the noise",
        (f"{PATIENTS}::test_a_penalty_is_added_after_the_noise_and_not_clipped",),
    ),
    Mutant(
        "the loss leaves beside the noisy gradient",
        PrivateGradient.__call__,
        _with_its_loss,
        "no loss is told under differential privacy",
        (f"{PATIENTS}::test_the_loss_is_told_to_nobody",),
    ),
    Mutant(
        "a patient moves the count of an adaptive clip by one",
        example_dp.adapted,
        _uncentred,
        "one patient moves the count by a half",
        (f"{PATIENTS}::test_one_patient_moves_the_count_by_a_half",),
    ),
    Mutant(
        "rows are drawn instead of patients",
        example_dp.poisson_order,
        lambda original, patients, *rest: original(torch.arange(len(patients)), *rest),
        "all rows of a patient are drawn or none",
        (f"{PATIENTS}::test_all_rows_of_a_patient_are_drawn_or_none",),
    ),
    Mutant(
        "patients are drawn more often than is charged",
        noise.chosen,
        lambda original, stream, count, rate: original(stream, count, min(1.0, 1.2 * rate)),
        "the rate that is charged is the rate of drawing",
        (f"{PATIENTS}::test_patients_are_drawn_with_the_rate_that_is_charged",),
    ),
    Mutant(
        "one step of each epoch is not charged",
        Sampling.of,
        _one_step_less,
        "an epoch has as many steps as batches of the mean size",
        (f"{PLAN}::test_an_epoch_has_as_many_steps_as_batches_of_the_mean_size",),
    ),
    Mutant(
        "noise without a clip is charged as if it hid somebody",
        protection.charge_of,
        lambda original, example, sampling, noise, epochs: original(
            replace(example, clip=1.0), sampling, noise, epochs
        ),
        "without a clip noise hides nobody",
        (f"{SCHEDULE}::test_noise_without_a_clip_is_drawn_and_does_not_count",),
    ),
    Mutant(
        "a noise schedule is charged as if noise stayed as it was",
        Trial.charge,
        _noise_of_the_first_round,
        "what is drawn is what is charged, in every round",
        (f"{SCHEDULE}::test_what_is_drawn_is_what_is_charged_in_every_round",),
    ),
    Mutant(
        "a site works one round too long",
        protection.charges_within,
        _one_round_more,
        "a site stops before it would exceed epsilon",
        (f"{PLAN}::test_with_a_given_noise_a_site_stops_before_it_would_exceed_epsilon",),
    ),
    Mutant(
        "a round that failed is remembered by the sites",
        Intake.fail,
        _failed_but_remembered,
        "below the threshold a round fails closed",
        (f"{ROUNDS}::test_below_the_threshold_a_round_fails_closed",),
    ),
    Mutant(
        "a round that failed is free",
        Intake.fail,
        _free_of_charge,
        "work that was done is charged, whether or not its sum came about",
        (f"{ROUNDS}::test_below_the_threshold_a_round_fails_closed",),
    ),
    Mutant(
        "the loss is in the record",
        Intake.record,
        with_field(loss=0.0),
        "no record of a private round has a loss",
        (f"{ROUNDS}::test_every_algorithm_trains_and_charges",),
    ),
    Mutant(
        "all purposes share one stream",
        SecretStream.__init__,
        lambda original, self, key, purpose: original(self, key, ""),
        "another purpose gives other numbers",
        (f"{NOISE}::test_the_same_key_gives_the_same_numbers_and_any_other_key_or_purpose_gives_others",),
    ),
    Mutant(
        "all rounds share one key",
        noise.site_key,
        lambda original, secret, run, arm, seed, round_number: original(secret, run, arm, seed, 0),
        "a site's key depends on everything that names a round",
        (f"{NOISE}::test_a_sites_key_depends_on_everything_that_names_a_round",),
    ),
    Mutant(
        "noise of a secret stream is rounded before it is added",
        SecretStream.normal,
        lambda original, self, count, dtype: original(self, count, dtype).to(dtype),
        "noise is rounded with the sum and not before",
        (f"{NOISE}::test_noise_of_a_secret_stream_is_rounded_with_the_sum_and_not_before",),
    ),
    Mutant(
        "BatchNorm is let through",
        validation.refuse_unsound,
        returns(None),
        "statistics of batches are refused under differential privacy",
        ("privacy/test_validate.py::test_batch_norm_is_refused",),
    ),
    Mutant(
        "no noise for whole sites",
        noise.with_noise,
        lambda original, stream, leaves, spread, *rest: original(stream, leaves, 0.0, *rest),
        "noise on the sum of sites is what is charged",
        (f"{SITES}::test_noise_on_the_sum_is_what_is_charged_over_the_number_that_is_expected",),
    ),
    Mutant(
        "whole sites weigh by their rows",
        intake.weight_of,
        lambda original, trial, site: float(len(site.train)),
        "with privacy for sites every update weighs the same",
        (f"{SITES}::test_every_update_is_clipped_and_weighs_the_same",),
    ),
    Mutant(
        "whole sites are not clipped",
        protection.clipped_update,
        lambda original, update, exempt, clip: update,
        "every update is clipped",
        (f"{SITES}::test_every_update_is_clipped_and_weighs_the_same",),
    ),
    Mutant(
        "each part of a site's update has a clip of its own",
        protection.clipped_update,
        _each_part,
        "an update is clipped as one vector",
        (f"{PLAN}::test_an_update_is_clipped_as_one_vector_and_what_is_data_free_is_left_alone",),
    ),
    Mutant(
        "as many sites in every round",
        schedule.roster,
        lambda original, training, sites, seed, number, by_chance=False: original(training, sites, seed, number),
        "with privacy for sites each is drawn by itself",
        (f"{SITES}::test_sites_are_drawn_by_themselves",),
    ),
    Mutant(
        "embeddings leave without a clip",
        exchange.clipped,
        lambda original, embedding, clip: embedding.clone(),
        "an embedding leaves clipped and with noise",
        (f"{EMBEDDINGS}::test_an_embedding_leaves_clipped_and_with_noise",),
    ),
    Mutant(
        "two parties have the same noise on embeddings",
        protection.seeded_streams,
        lambda original, seed, round_number, site: original(seed, round_number, ""),
        "every party has other noise",
        (f"{EMBEDDINGS}::test_every_party_has_other_noise_in_every_round_and_batch",),
    ),
    Mutant(
        "noise on embeddings is the same in every round",
        protection.seeded_streams,
        lambda original, seed, round_number, site: original(seed, 0, site),
        "noise is another in every round",
        (f"{EMBEDDINGS}::test_every_party_has_other_noise_in_every_round_and_batch",),
    ),
)
