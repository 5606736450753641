"""What `run_study`, `resume_study` and `compare` return."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from wardround.core.errors import RunError, suggest
from wardround.core.notices import Notice
from wardround.runs.finished_run import RunReference
from wardround.runs.folder import RunFolder
from wardround.runs.interface.notebook import show_figures
from wardround.runs.interface.summary import as_html, as_text, summary_of

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from wardround.bundles.build.make import FinishedRun
    from wardround.bundles.estimator import BundleClassifier, BundleRegressor


@dataclass(frozen=True, repr=False)
class StudyRun(RunReference):
    """A finished run. It may be given wherever a run's folder may: `make_bundle(run, ...)`, `build_report(run)`."""

    results: Mapping[str, Any]  # the content of results.json
    fresh: bool  # False: it was complete already, and is shown

    def __repr__(self) -> str:
        return as_text(summary_of(self.folder, self.results))

    def _repr_html_(self) -> str:
        return as_html(summary_of(self.folder, self.results))

    def table(self) -> pd.DataFrame:
        """One row per arm: mean of each metric over seeds, for all test rows together. Where arms are compared by the
        mean of the sites' own figures, that comes first, as in `auc_within_sites`."""
        primary = self.results["primary_metric"] if self.results.get("primary_within_sites") else None
        rows = {
            arm: ({} if primary is None else {f"{primary}_within_sites": content["within_sites"][primary]["mean"]})
            | {name: figure["mean"] for name, figure in content["metrics"].items()}
            for arm, content in self.results["arms"].items()
        }
        return pd.DataFrame.from_dict(rows, orient="index")

    @property
    def analyses(self) -> Mapping[str, Any]:
        """What the study's analyses found, by name; empty without any."""
        found: Mapping[str, Any] = self.results.get("analyses") or {}
        return found

    def predictions(self) -> pd.DataFrame:
        """One row for each test row of each arm and seed, with its site, label and scores."""
        return RunFolder(self.folder).predictions()

    def records(self) -> pd.DataFrame:
        """One row for each round of each arm and seed."""
        return RunFolder(self.folder).records()

    @property
    def notices(self) -> list[Notice]:
        """What was noticed about data and training, warnings first."""
        found = [Notice.from_json(notice) for notice in self.results["notices"]]
        return sorted(found, key=lambda notice: notice.severity == "info")

    def report(self) -> Path:
        """Make `report.html` with its figures and tables, and return its path."""
        from wardround.report import build_report

        return build_report(self.folder)

    def plot(self, name: str = "benefit") -> "Figure":
        """A figure of the report: `benefit` shows what training together changed at each hospital.

        The names are those of the files in `figures/`, which `report()` makes.
        """
        import matplotlib as mpl

        from wardround.report import read_evidence, sections_of
        from wardround.report.render.style import STYLE

        evidence = read_evidence(RunFolder(self.folder))
        known = {name: drawing for part in sections_of(evidence).values() for name, drawing in part.figures.items()}
        drawing = known.get(name)
        if drawing is None or drawing.draw is None:
            raise RunError("plot", "no figure of this run has this name", suggest(name, known, "Figures"))
        with mpl.rc_context(STYLE):
            figure = drawing.draw(evidence)
        if figure is None:
            raise RunError("plot", f"this run has nothing to show as {name!r}", "Look at run.report() for what it has.")
        show_figures()
        return figure

    def model(
        self,
        arm: str,
        *,
        site: str | None = None,
        seed: int | None = None,
        region: str | None = None,
        outcome: str | None = None,
    ) -> "BundleClassifier | BundleRegressor":
        """What one site predicts with, as a fitted estimator of scikit-learn's conventions.

        The arguments are those of `make_bundle`: `site` may be left out where there is one, `seed` is the study's
        first, unless given. The bundle is made in the run folder, or was made there before.
        """
        from wardround.bundles.build.make import bundle_in_run
        from wardround.bundles.estimator import as_estimator

        models = self.members.get("models")
        path = bundle_in_run(self._finished, arm=arm, site=site, seed=seed, region=region, outcome=outcome)
        return as_estimator(path, models)

    @cached_property
    def _finished(self) -> "FinishedRun":
        from wardround.bundles import open_finished_run

        return open_finished_run(self)
