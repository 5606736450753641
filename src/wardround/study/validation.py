"""What must hold between the parts of a study, once each part is well formed by itself."""

from collections.abc import Sequence

from wardround.core.errors import StudyError, refuse_strangers, suggest
from wardround.study.claims import AFTER_TRAINING, METRIC, QUANTITIES, check_claim
from wardround.study.explanations import check_explain
from wardround.study.facts import TaskFacts
from wardround.study.robustness.adversary_validation import check_adversaries
from wardround.study.robustness.aggregation_validation import check_aggregation
from wardround.study.robustness.contribution import check_contribution
from wardround.study.robustness.screening import check_screening
from wardround.study.schema import KIND_OF_SETTING, SELECTED, Arm, Compression, Study, in_variant
from wardround.study.sweeps import NAME
from wardround.study.timing_validation import check_timing

TABLE_OF_GROUPS = ("row", "patient")  # columns of groups.parquet beside the groups
SAME_ROWS = ("partition", "split")  # what must stay where the models of several seeds are put together


def check_uncertainty(study: Study, where: str) -> None:
    arms = [arm for arm in study.arms if arm.uncertainty is not None]
    evaluation = study.evaluation
    # a split that comes with the data may have validation rows; whether it has is known with the data
    if arms and not evaluation.validation_share and evaluation.split == "drawn":
        problem = "there are no validation rows, and whatever is chosen for it is chosen on them"
        remedy = "Set evaluation.validation_share above 0, such as 0.1, or leave [uncertainty] out."
        raise StudyError(f"{where}: uncertainty", problem, remedy)
    for arm in (arm for arm in arms if arm.uncertainty is not None and arm.uncertainty.method == "ensemble"):
        here = f"{where}: arms: {arm.name}: uncertainty: method"
        if evaluation.seeds.count < 2:
            problem = "an ensemble is the models of several seeds, and there is one"
            raise StudyError(here, problem, "Write `count = 3` or more in evaluation.seeds, or use another method.")
        if moved := [name for name in arm.vary if name in SAME_ROWS]:
            problem = (
                f"its seeds vary {' and '.join(moved)}, so that one model would have trained on another's test rows"
            )
            raise StudyError(here, problem, 'Write `vary = ["batches", "init"]` in [evaluation].')


def refuse_undeployable_uncertainty(study: Study) -> None:
    """Across hospitals each one's bundle says how sure its model is, from rows that stay there. What no bundle could
    say is refused."""
    for arm in study.arms:
        if arm.uncertainty is None:
            continue
        where = f"arms: {arm.name}: uncertainty"
        if arm.topology.kind == "vertical":
            problem = "it is told by a bundle, and where parties have parts of a model none of them has a bundle of it"
            raise StudyError(where, problem, "Leave [uncertainty] out, or simulate the study with `wardround run`.")
        if arm.uncertainty.method == "ensemble":
            problem = "it is told by a hospital's bundle, which holds one model, the model of one seed"
            remedy = 'Write method = "dropout", "laplace" or "swag", or simulate the study with `wardround run`.'
            raise StudyError(f"{where}: method", problem, remedy)


def _check_start(arm: Arm, where: str) -> None:
    """What [model] start_from may say."""
    source = arm.start.start_from
    if source is None:
        return
    if arm.model.options.get("weights") is not None:
        problem = "`weights` and `start_from` both say where training begins"
        raise StudyError(f"{where}: weights", problem, "Leave one of the two out.")
    if source.run is not None and source.bundle is not None:
        raise StudyError(where, "a run and a bundle are named", "Name the one with whose model training begins.")
    if source.run is not None and source.arm is None:
        remedy = 'Write start_from = { run = "FOLDER", arm = "NAME" }: `wardround report FOLDER` lists its arms.'
        raise StudyError(f"{where}: arm", "missing", remedy)
    if source.run is None and (source.arm is not None or source.seed is not None):
        problem = "`arm` and `seed` are those of a run, and a bundle is one model"
        raise StudyError(where, problem, 'Write start_from = { bundle = "FOLDER" }, or name a `run`.')
    if not source.is_named and source.digest is None:
        remedy = 'Write start_from = { run = "FOLDER", arm = "NAME" } or { bundle = "FOLDER" }.'
        raise StudyError(where, "names neither a run nor a bundle", remedy)


def check_whole(study: Study, where: str, task: TaskFacts) -> None:
    names = [arm.name for arm in study.arms]
    _refuse_repeated([variant.name for variant in study.variants], f"{where}: variants", "variants")
    _refuse_repeated(names, f"{where}: arms", "arms")
    for arm in study.arms:
        _refuse_repeated(arm.train_at, f"{where}: arms: {arm.name}: train_at", "sites")
        _check_start(arm, f"{where}: arms: {arm.name}: model: start_from")
    reference = study.evaluation.reference
    main = [arm.name for arm in study.arms if not arm.variant]
    if reference is not None:
        refuse_strangers([reference], main, f"{where}: evaluation: reference", "arm", "Arms")
    if study.evaluation.test_share + study.evaluation.validation_share >= 1:
        raise StudyError(
            f"{where}: evaluation", "test_share and validation_share leave no training rows", "Lower one of them."
        )
    _check_groups(study, f"{where}: evaluation: groups")
    if study.deployment.deadline is not None and study.deployment.quorum is None:
        problem = "without a quorum every site is needed, so a round cannot close early"
        raise StudyError(f"{where}: deployment: deadline", problem, "Give `quorum`, or leave `deadline` out.")
    _check_outcome(study, where, task)
    _check_regions(study, where)
    check_timing(study, where)
    _check_compression(study, where)
    check_adversaries(study, where)
    _check_analyses(study, where)
    check_aggregation(study, where)
    check_uncertainty(study, where)
    check_screening(study, where)
    check_contribution(study, where)
    check_explain(study, where)
    _check_variants(study, where)
    _check_selection(study, where)
    known = dict.fromkeys(task.metrics, METRIC) | QUANTITIES | dict.fromkeys(task.after_training, AFTER_TRAINING)
    for number, claim in enumerate(study.claims):
        check_claim(claim, [*names, *selected_names(study)], known, f"{where}: claims[{number}]")


def _check_groups(study: Study, where: str) -> None:
    names = study.evaluation.groups
    _refuse_repeated(names, where, "columns")
    for name in names:
        if name in TABLE_OF_GROUPS:
            raise StudyError(where, f"{name!r} is the name of a column of `groups.parquet`", "Rename it in the files.")
    if names and any(arm.topology.kind == "vertical" for arm in study.arms):
        problem = "parties hold different columns, and the one with the outcome may not have these"
        raise StudyError(where, problem, "Leave it out: sex and age are groups where that party has them.")


def _check_outcome(study: Study, where: str, task: TaskFacts) -> None:
    """Figures of arms are compared, so that all are of one outcome."""
    for arm in study.arms:
        here = f"{where}: arms: {arm.name}"
        if arm.data.facts.tasks != study.data.facts.tasks:
            problem = "it predicts another kind of outcome than the other arms, and figures of the two do not compare"
            raise StudyError(f"{here}: data: task", problem, "Write a study of its own for it.")
        mix, several = arm.training.mix, len(study.data.facts.tasks) > 1
        if mix is not None and mix.kind == "smote":
            place = f"{here}: training: mix"
            if several or not task.has_classes:
                problem = "SMOTE is about rare classes of one outcome, and there are none"
                raise StudyError(place, problem, 'Write `mix = { kind = "mixup" }`.')
            if not arm.training.oversample:
                problem = "SMOTE changes the rows that oversampling repeats, and none are repeated"
                raise StudyError(place, problem, "Write `oversample = 1.0` too, or less.")
        by_class = {"class_weights": arm.training.class_weights != "none", "oversample": bool(arm.training.oversample)}
        for setting, used in by_class.items():
            several = len(study.data.facts.tasks) > 1
            if used and (several or not task.has_classes):
                what = "several outcomes are" if several else "a number is"
                problem = f"is about rare classes of one outcome, and {what} predicted"
                raise StudyError(f"{here}: training: {setting}", problem, f"Leave `{setting}` out.")


def _refuse_repeated(names: Sequence[str], where: str, what: str) -> None:
    for name in names:
        if list(names).count(name) > 1:
            raise StudyError(where, f"two {what} are called {name!r}", "Name each once.")


def _check_regions(study: Study, where: str) -> None:
    """What can be known of regions before the sites are. An arm may switch them off, so that one must use them."""
    here = f"{where}: topology"
    used = [arm for arm in study.arms if arm.topology.kind == "hierarchical"]
    if not used and any(arm.topology.regions for arm in study.arms):
        problem = "regions are given, and no arm is hierarchical"
        raise StudyError(f"{here}: regions", problem, 'Write `kind = "hierarchical"` in [topology], or leave them out.')
    if not used and any(arm.topology.regional_rounds != 1 for arm in study.arms):
        problem = "there are no regions that could have rounds of their own"
        remedy = 'Write `kind = "hierarchical"` in [topology] with `regions`, or leave it out.'
        raise StudyError(f"{here}: regional_rounds", problem, remedy)
    for arm in used:
        if arm.algorithm.facts.federated:  # others have no coordinator, so that regions do not matter to them
            _check_arm_in_regions(arm, f"{where}: arms: {arm.name}")


def _check_arm_in_regions(arm: Arm, where: str) -> None:
    topology = arm.topology
    if not topology.regions:
        remedy = 'Add [topology.regions] with the sites of each: north = ["a", "b-*"].'
        raise StudyError(
            f"{where}: topology: regions", "a hierarchical federation has regions, and none is named", remedy
        )
    for name, sites in topology.regions.items():
        if not NAME.fullmatch(name):
            remedy = "Use letters, digits, '.', '_' and '-'; begin with a letter or a digit."
            raise StudyError(f"{where}: topology: regions", f"{name!r} cannot be the name of a region", remedy)
        if not sites:
            remedy = "List its sites, or leave the region out."
            raise StudyError(f"{where}: topology: regions: {name}", "has no sites", remedy)
        _refuse_repeated(sites, f"{where}: topology: regions: {name}", "sites")
    off = 'or write `"topology.kind" = "flat"` in this arm.'
    if arm.algorithm.facts.not_regional:
        problem = f"{arm.algorithm.name} {arm.algorithm.facts.not_regional}"
        raise StudyError(f"{where}: algorithm", problem, f"Use fedavg or fedprox, {off}")
    if arm.privacy.site is not None:
        problem = "its noise is on one sum of all sites' updates, and regions have sums of their own"
        raise StudyError(f"{where}: privacy: site", problem, f"Use [privacy.example], {off}")
    rounds, each = arm.training.rounds, topology.regional_rounds
    if rounds % each:
        problem = f"{rounds} rounds are no multiple of {each}, so that the last would never be averaged over regions"
        near = f"{rounds - rounds % each} or {rounds - rounds % each + each}" if rounds > each else f"{each}"
        raise StudyError(f"{where}: topology: regional_rounds", problem, f"Write training.rounds = {near}.")


def _check_compression(study: Study, where: str) -> None:
    for arm in study.arms:
        here, kind = f"{where}: arms: {arm.name}: compression", arm.compression.kind
        _refuse_unused(study, arm, here)
        if kind == "none" or not arm.algorithm.facts.federated:  # without a coordinator there are no updates
            continue
        off = 'Write `"compression.kind" = "none"` in this arm.'
        if arm.topology.kind == "vertical":
            problem = "parties exchange embeddings and gradients, which are no updates"
            raise StudyError(f"{here}: kind", problem, off)
        if arm.privacy.secure_sum is not None:
            problem = "under its mask every number of an update is random in all 64 bits, so that nothing gets smaller"
            raise StudyError(f"{here}: kind", problem, f'{off[:-1]}, or `"privacy.secure_sum" = "off"`.')


def _check_analyses(study: Study, where: str) -> None:
    """What an analysis tells is exact, so that it would undo what differential privacy promises the same patients."""
    if not study.analyses:
        return
    here = f"{where}: analyses: {study.analyses[0].name}"
    for privacy in (study.analyses[0].rows.privacy, *(arm.privacy for arm in study.trained_arms)):
        if privacy.example is not None or privacy.site is not None:
            problem = "its sums are exact, and would tell about the same patients what the study's noise hides"
            raise StudyError(here, problem, "Write a study of its own for it, without [privacy.example] or .site.")
    if any(arm.topology.kind == "vertical" for arm in study.trained_arms):
        problem = "it adds up rows of hospitals, and here parties hold different columns of one patient"
        raise StudyError(here, problem, "Write a study of its own for it.")


def _refuse_unused(study: Study, arm: Arm, where: str) -> None:
    """Settings of another kind. What a study says for some arms may stand in the others, where it does nothing."""
    for name, kind in KIND_OF_SETTING.items():
        users = [other.compression for other in study.arms if other.compression.kind == kind]
        known = [getattr(compression, name) for compression in (Compression(), *users)]
        if arm.compression.kind != kind and getattr(arm.compression, name) not in known:
            problem = f'is a setting of "{kind}", and the kind of compression here is "{arm.compression.kind}"'
            raise StudyError(f"{where}: {name}", problem, f'Leave it out, or write kind = "{kind}".')


def selected_names(study: Study) -> list[str]:
    """The arms that a selection adds."""
    if study.selection is None:
        return []
    return [
        in_variant(f"{family}[{SELECTED}]", variant)
        for variant in dict.fromkeys(arm.variant for arm in study.arms)
        for family in study.selection.arms
        if any(arm.family == family and arm.variant == variant for arm in study.arms)
    ]


def _check_variants(study: Study, where: str) -> None:
    families = dict.fromkeys(arm.family for arm in study.arms)
    for variant in study.variants:
        here = f"{where}: variants: {variant.name}: arms"
        refuse_strangers(variant.arms, families, here, "arm", "Arms")
        reference = study.reference_of(variant.name)
        if reference is not None and reference not in [arm.name for arm in study.arms]:
            problem = f"leaves out {study.evaluation.reference!r}, with which the others are compared"
            raise StudyError(here, problem, "Name it there too.")


def _check_selection(study: Study, where: str) -> None:
    selection, here = study.selection, f"{where}: selection"
    if selection is None:
        return
    _refuse_repeated(selection.arms, f"{here}: arms", "arms")
    swept = dict.fromkeys(arm.family for arm in study.arms if arm.name.split("@")[0] != arm.family)
    for family in selection.arms:
        if family not in swept:
            remedy = suggest(family, swept, "Swept arms") if swept else "Give an arm a list of values, such as mu."
            raise StudyError(f"{here}: arms", f"no swept arm is called {family!r}", remedy)
    if not selection.arms:
        raise StudyError(f"{here}: arms", "is empty", suggest("", swept, "Swept arms"))
    own_split = study.evaluation.split == "given"  # it may have validation rows; whether it has is known with the data
    if selection.on == "validation" and not study.evaluation.validation_share and not own_split:
        remedy = "Set evaluation.validation_share above 0: a value is never chosen on test rows."
        raise StudyError(f"{here}: on", "there are no validation rows to choose on", remedy)
    if (selection.on == "site") != (selection.site is not None):
        remedy = 'Write `on = "site"` together with `site = "..."`, or neither.'
        raise StudyError(f"{here}: site", "`on` and `site` do not go together", remedy)
