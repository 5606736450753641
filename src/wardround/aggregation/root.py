"""Root data: rows at the coordinator, public and known to be good, with which some rules compare updates."""

from collections.abc import Sequence

from wardround.core.errors import StudyError, refuse_strangers
from wardround.data.site import Site
from wardround.models import Model
from wardround.study.schema import Arm


def root_of(arm: Arm, sites: Sequence[Site], members: Sequence[str], model: Model) -> Site | None:
    """The site whose training rows are the coordinator's; None where the arm's rule asks for none."""
    name, where = "" if arm.by_mean else arm.aggregation.facts.root, f"arms: {arm.name}: aggregation: root"
    if not name:
        return None
    refuse_strangers([name], [site.name for site in sites], where, "site", "Sites")
    if name in members:
        problem = f"{name} trains as well, and root data are the coordinator's alone"
        raise StudyError(where, problem, "Name the other sites in `train_at`, or give rows that no site trains on.")
    if model.private:
        problem = "the model keeps a part of itself at each site, which root data would train anew in each round"
        raise StudyError(where, problem, "Choose another model, or another rule.")
    return next(site for site in sites if site.name == name)
