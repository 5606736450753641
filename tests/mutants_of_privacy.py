"""Mistakes that leave a promise of privacy empty, and that nothing else would show. Each must make a test fail."""

from tests.mutant import Mutant

PATIENTS = ("tests/privacy/test_example_dp.py",)
LAYERS = ("tests/privacy/test_rows.py",)
SCHEDULES = ("tests/privacy/test_schedule.py",)
SENSITIVITY = ("tests/privacy/test_sensitivity.py",)
NOISE = ("tests/privacy/test_noise.py",)
PLANNED = ("tests/privacy/test_protection.py",)
REFUSED = ("tests/privacy/test_validate.py",)
SITES = ("tests/privacy/test_site_dp.py",)
ROUNDS = ("tests/privacy/test_in_rounds.py",)
SUMS = ("tests/privacy/test_secure_sum.py", "tests/privacy/test_secure_sum_attacks.py")

MUTANTS = (
    Mutant(
        "no noise on the gradient",
        "privacy/dp/example_dp.py",
        "noisy = with_noise(self.stream, total, self.rule.spread(clip), _dtype(params))",
        "noisy = with_noise(self.stream, total, 0.0, _dtype(params))",
        where=PATIENTS,
    ),
    Mutant(
        "noise as for half the variance",
        "privacy/dp/example_dp.py",
        "self.rule.spread(clip), _dtype(params))",
        "self.rule.spread(clip) / math.sqrt(2), _dtype(params))",
        where=PATIENTS,
    ),
    Mutant(
        "noise that does not follow the clip",
        "privacy/dp/example_dp.py",
        "self.rule.spread(clip), _dtype(params))",
        "self.rule.spread(self.rule.clip), _dtype(params))",
        "adaptive",
        where=PATIENTS,
    ),
    Mutant(
        "the batch is clipped and not each patient",
        "privacy/dp/example_dp.py",
        "        total = summed(_factors(lengths, clip)[groups.place] * groups.part)",
        "        whole = summed(groups.part)\n"
        "        total = {k: v * float(_factors(gradient_lengths({n: w[None] for n, w in whole.items()}), clip)) "
        "for k, v in whole.items()}",
        where=LAYERS,
    ),
    Mutant(
        "each row is clipped and not each patient",
        "privacy/dp/example_dp.py",
        "    groups = Patients.of(patients.to(x.device))",
        "    groups = Patients.of(torch.arange(len(x)))",
        where=PATIENTS,
    ),
    Mutant(
        "a patient's rows add up",
        "models/patient_gradients.py",
        "return cls(place, len(rows), (1 / rows.double())[place] if len(place) else rows.double())",
        "return cls(place, len(rows), torch.ones(len(place)).double())",
        where=LAYERS,
    ),
    Mutant(
        "lengths of rows that cancel come out too small",
        "models/patient_gradients.py",
        "    return squares.clamp(min=0).addcmul(most, most, value=ROUNDING)",
        "    return squares.clamp(min=0)",
        "cancel",
        where=LAYERS,
    ),
    Mutant(
        "a margin for everybody as soon as somebody has several rows",
        "models/patient_gradients.py",
        "        return found\n\n    def lengths_of(",
        "        return found if self.alone else found * (1 + 1e-5)\n\n    def lengths_of(",
        where=SENSITIVITY,
    ),
    Mutant(
        "clipped gradients are added up in single precision",
        "privacy/dp/example_dp.py",
        "        params, x, masks = _in_double(params), x.double(), _in_double(masks)",
        "        pass",
        where=SENSITIVITY,
    ),
    Mutant(
        "rows that reach each other are believed to be apart",
        "models/row_gradients.py",
        "    if not caught.apart and not _rows_apart(caught, run, x):",
        "    if False:",
        where=LAYERS,
    ),
    Mutant(
        "an adapter within a layer has the layer's rule",
        "models/row_gradients.py",
        "    return type(layer) in (nn.Linear, nn.GroupNorm, nn.LayerNorm)",
        "    return isinstance(layer, nn.Linear | nn.GroupNorm | nn.LayerNorm)",
        where=LAYERS,
    ),
    Mutant(
        "a layer that ran twice counts once",
        "models/row_gradients.py",
        "            self.twice = self.twice or name in self.inputs",
        "            pass",
        where=LAYERS,
    ),
    Mutant(
        "divided by the number that was drawn",
        "privacy/dp/example_dp.py",
        "leaf.div_(self.rule.expected)",
        "leaf.div_(max(len(patients.unique()), 1))",
        where=PATIENTS,
    ),
    Mutant(
        "so many patients in every step",
        "privacy/dp/noise.py",
        "    return np.flatnonzero(stream.uniform(count) <= rate)",
        "    return np.sort(np.argsort(stream.uniform(count))[: max(1, round(rate * count))])",
        where=NOISE,
    ),
    Mutant(
        "rows are drawn and not patients",
        "privacy/dp/example_dp.py",
        "    if count == len(place):  # one row each, the commonest case",
        "    if True:\n        place, count = np.arange(len(place)), len(place)",
        where=PATIENTS,
    ),
    Mutant(
        "drawn with a rate of one row more",
        "privacy/dp/protection.py",
        "return poisson_order(rows.people, sampling.rate, sampling.steps",
        "return poisson_order(rows.people, min(1.0, (batch_size + 1) / len(rows)), sampling.steps",
        where=PLANNED,
    ),
    Mutant(
        "a noise schedule is charged as if noise stayed as it was",
        "training/trial.py",
        "        noise = noise_by_round(example, sampling, self.epochs(number))[round_number]",
        "        noise = noise_by_round(example, sampling, self.epochs(number))[0]",
        where=SCHEDULES,
    ),
    Mutant(
        "noise without a clip is charged as if it hid somebody",
        "privacy/dp/protection.py",
        '    return Charge(sampling.rate, 0.0 if example.clip == "none" else noise, sampling.steps * epochs)',
        "    return Charge(sampling.rate, noise, sampling.steps * epochs)",
        where=SCHEDULES,
    ),
    Mutant(
        "one step of each epoch is not charged",
        "privacy/dp/protection.py",
        "return cls(min(1.0, batch_size / rows), -(-rows // batch_size))",
        "return cls(min(1.0, batch_size / rows), rows // batch_size)",
        where=PLANNED,
    ),
    Mutant(
        "private leaves are no part of the vector",
        "training/local.py",
        "            return private(leaves, buffers, x, y, masks, rows.people[batch])",
        "            noisy, none, buffers = private(\n"
        "                {k: v for k, v in leaves.items() if not model.is_private(k)}, buffers, x, y, masks,\n"
        "                rows.people[batch],\n"
        "            )\n"
        "            own, _, _ = model.gradient(leaves, buffers, x, y, masks, weights)\n"
        "            return {**own, **noisy}, none, buffers",
        "what_stays",
        where=ROUNDS,
    ),
    Mutant(
        "private leaves are not clipped with the others",
        "privacy/dp/example_dp.py",
        "    lengths, summed = found\n",
        "    lengths, summed = found\n"
        "    if model.private:\n"
        "        lengths = lengths * 0 + min(float(lengths.min()), 1e-9)\n",
        where=PATIENTS,
    ),
    Mutant(
        "the proximal pull is clipped with the patients' gradients",
        "training/local.py",
        "        corrected = algorithm.correct({name: grad[name] for name in params}, params, shared, memory)",
        "        corrected = algorithm.correct({name: grad[name] for name in params}, params, shared, memory)\n"
        "        size = float(tree.squared_norm(corrected).sqrt())\n"
        "        corrected = tree.scale(corrected, min(1.0, 0.05 / max(size, 1e-9)))",
        "proximal",
        where=PATIENTS,
    ),
    Mutant(
        "a penalty counts among the clipped",
        "privacy/dp/example_dp.py",
        "            gradient = _with_penalty(self.model.penalty, params, gradient)\n",
        "            pass\n",
        where=PATIENTS,
    ),
    Mutant(
        "the loss is told",
        "privacy/dp/example_dp.py",
        "        return gradient, torch.full((), math.nan, dtype=_dtype(params)), buffers",
        "        told = self.model.loss(params, buffers, x, y, masks)[0].detach()\n"
        "        return gradient, told, buffers",
        where=PATIENTS,
    ),
    Mutant(
        "the loss is in the record",
        "training/intake.py",
        "loss=None if trial.privacy.example is not None else loss,",
        "loss=0.0 if trial.privacy.example is not None else loss,",
        "every_algorithm",
        where=ROUNDS,
    ),
    Mutant(
        "a charge is forgotten",
        "training/intake.py",
        "charges={name: (one.rate, one.noise, one.steps) for name, one in charged.items() if one is not None},",
        "charges={name: (one.rate, one.noise, one.steps) for name, one in [*charged.items()][1:] if one is not None},",
        "charged or every_algorithm",
        where=ROUNDS,
    ),
    Mutant(
        "a round that failed is free",
        "training/intake.py",
        "self.failed, self.memories, self.names, self.mean, self.sum = why, {}, [], None, None",
        "self.failed, self.memories, self.names, self.mean, self.sum, self.epochs = why, {}, [], None, None, {}",
        "threshold",
        where=ROUNDS,
    ),
    Mutant(
        "a round that failed is remembered by the sites",
        "training/intake.py",
        "self.failed, self.memories, self.names, self.mean, self.sum = why, {}, [], None, None",
        "self.failed, self.names, self.mean, self.sum = why, [], None, None",
        "threshold",
        where=ROUNDS,
    ),
    Mutant(
        "a site works one round too long",
        "privacy/dp/protection.py",
        "    return charges[: affordable(charges, example.epsilon, example.delta)]",
        "    return charges[: affordable(charges, example.epsilon, example.delta) + 1]",
        where=PLANNED,
    ),
    Mutant(
        "the count of an adaptive clip is free",
        "privacy/dp/example_dp.py",
        "        rest = self.noise**-2 - (2 * self.adaptation.count_noise) ** -2",
        "        rest = self.noise**-2",
        where=PATIENTS,
    ),
    Mutant(
        "a patient moves the count by one",
        "privacy/dp/example_dp.py",
        "float(((lengths <= clip).double() - 0.5).sum())",
        "float((lengths <= clip).double().sum())",
        where=PATIENTS,
    ),
    Mutant(
        "a clip that moved is forgotten",
        "training/local.py",
        'protection = {"clip": number(private.clip)} if private is not None and memory.protection else {}',
        "protection = memory.protection",
        "clip",
        where=ROUNDS,
    ),
    Mutant(
        "noise is rounded before it is added",
        "privacy/dp/noise.py",
        "radius.mul_(angle.sin_())])[:count]",
        "radius.mul_(angle.sin_())])[:count].to(dtype)",
        where=NOISE,
    ),
    Mutant(
        "all purposes share one stream",
        "privacy/dp/noise.py",
        'own = sha256(key + b"\\x1f" + purpose.encode()).digest()',
        "own = sha256(key).digest()",
        where=NOISE,
    ),
    Mutant(
        "all rounds share one key",
        "privacy/dp/noise.py",
        "{seed}\\x1f{round_number}",
        "{seed}",
        where=NOISE,
    ),
    Mutant(
        "BatchNorm is let through",
        "privacy/validation.py",
        "    if buffers:",
        "    if False:",
        where=REFUSED,
    ),
    Mutant(
        "the number of steps travels beside noisy updates of sites",
        "privacy/validation.py",
        "    if algorithm.data_free:",
        "    if False:",
        where=REFUSED,
    ),
    Mutant(
        "no noise for whole sites",
        "training/intake.py",
        "with_noise(stream, leaves, spread)",
        "with_noise(stream, leaves, 0.0)",
        where=SITES,
    ),
    Mutant(
        "whole sites weigh by their rows",
        "training/intake.py",
        'by_rows = trial.algorithm.weighting == "samples" and trial.privacy.site is None',
        'by_rows = trial.algorithm.weighting == "samples"',
        where=SITES,
    ),
    Mutant(
        "whole sites are not clipped",
        "privacy/dp/protection.py",
        "    factor = min(1.0, clip * (1 - 1e-5) / length) if length else 1.0",
        "    factor = 1.0",
        where=SITES,
    ),
    Mutant(
        "each part of a site's update has a clip of its own",
        "engines/serial.py",
        "update=clipped_update(outcome.update, trial.algorithm.data_free, trial.privacy.site.clip)",
        "update={p: clipped_update({p: one}, frozenset(), trial.privacy.site.clip)[p]"
        " for p, one in outcome.update.items()}",
        where=SITES,
    ),
    Mutant(
        "the sum of sites is divided by the number that came",
        "training/intake.py",
        "        expected = trial.training.share * len(trial.sites)",
        "        expected = max(self.count, 1)",
        where=SITES,
    ),
    Mutant(
        "so many sites in every round",
        "training/trial.py",
        "    if by_chance and training.share < 1:",
        "    if False:",
        where=SITES,
    ),
    Mutant(
        "a round without sites has no noise",
        "training/intake.py",
        "        if self.trial.privacy.site is not None and not self.failed:",
        "        if self.trial.privacy.site is not None and not self.failed and self.count:",
        where=SITES,
    ),
    Mutant(
        "losses of sites are told beside their noisy sum",
        "training/intake.py",
        "told = self.count and not masked and trial.privacy.site is None",
        "told = self.count and not masked",
        where=SITES,
    ),
    Mutant(
        "the threshold of a secure sum is not kept",
        "privacy/secure_sum/secure_sum.py",
        "            if len(arrived) < self.terms.threshold:",
        "            if not arrived:",
        where=("tests/privacy/test_secure_sum_dropouts.py", *SUMS),
    ),
    Mutant(
        "a site has no mask of its own",
        "privacy/secure_sum/secure_sum.py",
        "return add_masks(masked, [words.own_key(self.terms, self._seed), *plus], minus)",
        "return add_masks(masked, plus, minus)",
        where=SUMS,
    ),
)
