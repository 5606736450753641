"""What [uncertainty] asks of the rest of a study, as far as the study file alone can tell."""

from wardround.errors import StudyError
from wardround.study import Study

SAME_ROWS = ("partition", "split")  # what must stay where the models of several seeds are put together


def check_uncertainty(study: Study, where: str) -> None:
    asked = [arm for arm in study.arms if arm.uncertainty is not None]
    evaluation = study.evaluation
    # a split that comes with the data may have validation rows; whether it has is known with the data
    if asked and not evaluation.validation_share and evaluation.split == "drawn":
        problem = "there are no validation rows, and whatever is chosen for it is chosen on them"
        remedy = "Set evaluation.validation_share above 0, such as 0.1, or leave [uncertainty] out."
        raise StudyError(f"{where}: uncertainty", problem, remedy)
    for arm in asked:
        if arm.uncertainty is None or arm.uncertainty.method != "ensemble":
            continue
        here = f"{where}: arms: {arm.name}: uncertainty: method"
        if evaluation.seeds.count < 2:
            problem = "an ensemble is the models of several seeds, and there is one"
            raise StudyError(here, problem, "Write `count = 3` or more in evaluation.seeds, or use another method.")
        moved = [name for name in arm.vary if name in SAME_ROWS]
        if moved:
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
            remedy = 'Write method = "dropout" or "laplace", or simulate the study with `wardround run`.'
            raise StudyError(f"{where}: method", problem, remedy)
