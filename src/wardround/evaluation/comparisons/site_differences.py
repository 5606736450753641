"""Arms compared hospital by hospital with the study's reference, and on average over hospitals.

A figure over all test rows speaks mostly of the large hospitals. Here each hospital counts the same: the mean over
hospitals of the paired differences, with its interval over seeds.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from wardround.evaluation.comparisons.benefit import alone_arm, origin_of, trains_at_some
from wardround.evaluation.comparisons.differences import difference_of
from wardround.evaluation.intervals import Resampling
from wardround.evaluation.scores import Figures, Scored, within_sites
from wardround.study.schema import METRICS, Study


def across_sites(study: Study, scores: Scored, names: Sequence[str], metrics: Sequence[str]) -> list[dict[str, Any]]:
    """`names` are all arms of one variant that were scored. An entry without a `site` is the mean over sites."""
    found = []
    for name in (name for name in names if not trains_at_some(study, name)):
        alone = alone_arm(study, name, names)
        reference = study.reference_of(name.partition("@")[2])
        rivals = {"alone": alone.name if alone is not None else None, "reference": reference}
        for kind, rival in rivals.items():
            if rival is None or rival == name or rival not in scores.by_site:
                continue
            if kind == "reference" and rival == rivals["alone"]:
                continue  # said already
            found += _against(study, scores, name, rival, kind, metrics)
    return found


def _against(
    study: Study, scores: Scored, name: str, rival: str, kind: str, metrics: Sequence[str]
) -> list[dict[str, Any]]:
    """Against the site alone, each site's own difference stands in `benefit` already."""
    ours, theirs = scores.by_site[name], scores.by_site[rival]
    differences = {site: ours[site] - theirs[site] for site in ours if site in theirs}
    if not differences:
        return []
    resampling = Resampling.of(study.evaluation_of(origin_of(study, rival)))
    about = {"arm": name, "against": rival, "kind": kind}

    def entries(site: str | None, figures: Figures) -> list[dict[str, Any]]:
        return [
            {**about, "site": site, **difference_of(_column(figures, metric), metric, resampling)} for metric in metrics
        ]

    found = entries(None, within_sites(differences)) if len(differences) > 1 else []
    if kind == "reference":
        found += [entry for site, figures in differences.items() for entry in entries(site, figures)]
    return found


def _column(figures: Figures, metric: str) -> np.ndarray:
    return np.asarray(figures[:, METRICS.index(metric)])
