"""Mistakes with columns, labels and bundles: what is private is sent, or a model is used wrongly. Each is noticed."""

from tests.mutant import Mutant

ADAPTER = ("tests/models/test_adapter.py",)
WIRE = ("tests/deployment/test_private_columns.py",)
DIRECTIONS = ("tests/deployment/test_directions.py",)
CHECKS = ("tests/data/test_direction.py", "tests/data/test_copies.py", "tests/data/test_coincidences.py")
TARGET_LEAKS, WORDS = ("tests/data/test_target_leak.py",), ("tests/data/test_vocabulary.py",)
CHOICES = ("tests/bundles/test_choices.py", "tests/bundles/test_make.py")
SEALED = ("tests/bundles/test_tampering.py",)
PREDICTED = ("tests/bundles/test_predict.py", "tests/bundles/test_reading.py")
ACROSS = ("tests/evaluation/test_across.py",)
JOINED = ("tests/adaptation",)
PARITY = ("tests/bundles/test_make.py", "tests/bundles/test_parity.py")

MUTANTS = (
    Mutant(
        "certainty from figures that are all the same",
        "evaluation/intervals.py",
        "if len(x) < 2 or tells_nothing(x, resampling):\n        return None\n    half",
        "if len(x) < 2:\n        return None\n    half",
        where=("tests/evaluation/test_intervals.py",),
    ),
    Mutant(
        "adapters are averaged", "models/adapter.py", 'private = ("adapter.", OWN,', "private = (OWN,", where=ADAPTER
    ),
    Mutant(
        "what a site knows of itself is sent",
        "models/adapter.py",
        'private = ("adapter.", OWN,',
        'private = ("adapter.",',
        where=WIRE,
    ),
    Mutant(
        "names have no say in where a column begins",
        "models/adapter.py",
        'if start == "names" else',
        'if start == "random" else',
        where=ADAPTER,
    ),
    Mutant(
        "alignment pushes sites apart",
        "models/adapter.py",
        "total = strength * (seen @ apart)",
        "total = -strength * (seen @ apart)",
        where=ADAPTER,
    ),
    Mutant(
        "what is known of all does not follow",
        "models/adapter.py",
        "FOLLOW_ALL * (params[ALL] - kept)",
        "0 * (params[ALL] - kept)",
        where=ADAPTER,
    ),
    Mutant(
        "alignment is counted as loss",
        "models/adapter.py",
        "return total - total.detach()",
        "return total",
        where=ADAPTER,
    ),
    Mutant(
        "a running mean is used before it has come any way",
        "models/adapter.py",
        "return followed[1:] / followed[:1].clamp(min=SEEN)",
        "return followed[1:]",
        where=ADAPTER,
    ),
    Mutant(
        "values that a hospital does not really record are used",
        "data/cohort.py",
        "table[name] = table[name].mask(rows,",
        "table[name].mask(rows,",
        where=ADAPTER,
    ),
    Mutant(
        "columns of its own are told",
        "deployment/flat/site_session.py",
        "told = records.is_table and not self.keeps_columns",
        "told = records.is_table",
        where=WIRE,
    ),
    Mutant(
        "facts of its own columns are told",
        "deployment/flat/site_session.py",
        "facts = None if self.keeps_columns else self.plan.own_facts(key)",
        "facts = self.plan.own_facts(key)",
        where=WIRE,
    ),
    Mutant(
        "own columns in the order of the file",
        "data/agreement.py",
        "layout = in_own_order(layout_of(table.columns, [facts(table, rows, settings)], settings), table.columns)",
        "layout = layout_of(table.columns, [facts(table, rows, settings)], settings)",
        where=WIRE,
    ),
    Mutant(
        "columns that are not on the public list are told",
        "deployment/common/label_directions.py",
        "if name in SAME or not only_public",
        "if True",
        where=DIRECTIONS,
    ),
    Mutant(
        "directions of patients who were promised privacy",
        "deployment/flat/site_session.py",
        "if is_private(self.study) or not self.study.deployment.compare_labels:",
        "if not self.study.deployment.compare_labels:",
        where=DIRECTIONS,
    ),
    Mutant(
        "an inverted label is let through",
        "deployment/common/label_directions.py",
        "if CHECK not in study.evaluation.accept:",
        "if CHECK in study.evaluation.accept:",
        where=DIRECTIONS,
    ),
    Mutant(
        "labels that agree are called inverted",
        "data/checks/label_direction.py",
        "-2 * effects * mean /",
        "2 * effects * mean /",
        where=CHECKS,
    ),
    Mutant(
        "a copy counts as another patient in the direction of a column",
        "data/checks/label_direction.py",
        "distinct = rows[np.unique(cohort.prints[rows], return_index=True)[1]]",
        "distinct = rows",
        where=CHECKS,
    ),
    Mutant(
        "chance explains no equal rows",
        "data/checks/coincidences.py",
        "return ALWAYS + likely + 3 * sqrt(likely)",
        "return ALWAYS",
        where=CHECKS,
    ),
    Mutant(
        "a column that follows from another counts as evidence of its own",
        "data/checks/coincidences.py",
        "if both == alone[other]:",
        "if False:",
        where=CHECKS,
    ),
    Mutant(
        "six rows that equal a single one are six coincidences",
        "data/checks/duplicates.py",
        "np.minimum(here[common].to_numpy(), there[common].to_numpy()).sum()",
        "here[common].to_numpy().sum()",
        where=CHECKS,
    ),
    Mutant(
        "numbers of patients that cannot be compared are compared",
        "data/checks/duplicates.py",
        "    if not records.numbering:",
        "    if True:",
        where=CHECKS,
    ),
    Mutant(
        "a row tells its own class in a target leak",
        "data/checks/target_leak.py",
        "(of_class - positive[:, None] + 0.5) / counts",
        "(of_class + 0.5) / (counts + 1)",
        where=TARGET_LEAKS,
    ),
    Mutant(
        "few rows are enough to refuse a column",
        "data/checks/target_leak.py",
        "if _chance(alike, rarer, MARKER) < UNLIKELY:",
        "if True:",
        where=TARGET_LEAKS,
    ),
    Mutant(
        "hospitals of other units are a target leak",
        "data/checks/target_leak.py",
        "rows = np.flatnonzero(records.hospital == hospital)",
        "rows = np.arange(len(records))",
        where=TARGET_LEAKS,
    ),
    Mutant(
        "a misspelt word is a class",
        "data/sources/csv/target_words.py",
        "    _refuse_misspellings(where, told)\n",
        "",
        where=WORDS,
    ),
    Mutant(
        "a threshold is chosen on the rows of a private study",
        "bundles/build/operating_point.py",
        "    if private:",
        "    if False:",
        where=CHOICES,
    ),
    Mutant("the worst threshold", "evaluation/thresholds.py", "index.argmax()", "index.argmin()", where=CHOICES),
    Mutant(
        "calibration without restraint",
        "bundles/build/operating_point.py",
        "gradient = design.T @ (p - label) + RIDGE * (beta - prior)",
        "gradient = design.T @ (p - label)",
        where=CHOICES,
    ),
    Mutant(
        "rows measure their own distance with themselves in the mean",
        "bundles/out_of_distribution.py",
        "lengths: np.ndarray = factor * np.sqrt((rows - 2) * q / (1 - factor * q))",
        "lengths: np.ndarray = np.sqrt((rows - 1) * q)",
        where=CHOICES,
    ),
    Mutant(
        "a changed file passes",
        "bundles/sealed_files.py",
        "if sha256(content[name]).hexdigest() != digest:",
        "if False:",
        where=SEALED,
    ),
    Mutant("a newer format is read", "bundles/sealed_files.py", "if number > newest:", "if False:", where=SEALED),
    Mutant("a stray file passes", "bundles/sealed_files.py", "    if extra:\n", "    if False:\n", where=SEALED),
    Mutant(
        "numbers that stand for a gap are taken as they are",
        "bundles/predict/reading.py",
        "            if column.absent",
        "            if False",
        where=PREDICTED,
    ),
    Mutant(
        "an unseen level is not marked",
        "bundles/predict/reading.py",
        "strange = values.codes >= len(usable)",
        "strange = values.codes > len(usable) + 9",
        where=PREDICTED,
    ),
    Mutant(
        "the mean over sites is of the first alone",
        "evaluation/comparisons/site_differences.py",
        "found = entries(None, within_sites(differences)) if",
        "found = entries(None, next(iter(differences.values()))) if",
        where=ACROSS,
    ),
    Mutant(
        "the shared part moves while a newcomer trains",
        "adaptation/constant.py",
        "for name, leaf in first.items() if model.is_private(name)}",
        "for name, leaf in first.items()}",
        where=JOINED,
    ),
    Mutant(
        "a bundle that is not the run's model is given out",
        "bundles/build/assemble.py",
        "if not apart <= EQUAL:",
        "if False:",
        where=PARITY,
    ),
)
