"""The rows of a hospital on which a model is explained: its test rows, with the model that the run has left here."""

import pandas as pd
from safetensors.torch import load_file

from wardround.core.errors import DeployError
from wardround.deployment.flat.explanation_parts import explained_arm
from wardround.deployment.flat.site_session import Session
from wardround.explain import Columns, Scorer
from wardround.explain.across_sites import ModelRows
from wardround.runs.explaining.site_models import recipe_of
from wardround.study.analyses import StudyAnalysis

AGAIN = "Let the coordinator go on: models are explained after the last round."


def explained_rows(session: Session, chosen: StudyAnalysis) -> ModelRows:
    arm, seed = explained_arm(session.plan, chosen)
    trial = session.plan.trial(arm, seed)
    site = next((scored for scored in trial.scored if scored.name == session.site), None)
    path = session.folder / "models" / arm.name / f"seed-{seed}.safetensors"
    if site is None or not path.is_file():
        raise DeployError("coordinator", f"asks for {chosen.name} before this site has its model", AGAIN)
    leaves = load_file(path)
    params, buffers = ({name: leaves[name] for name in part} for part in trial.model.init(0))
    columns, scale = Columns.of(recipe_of(site).layout.columns), session.plan.target_scale_of(arm, seed)
    x, y = site.test.everything(trial.dtype)
    return ModelRows(
        site.name,
        pd.DataFrame(index=site.test_rows),
        site.test.people.numpy(),
        scorer=Scorer(trial.model, params, buffers, columns, scale),
        x=x,
        y=y,
    )
