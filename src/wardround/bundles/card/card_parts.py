"""Parts of a card that not every bundle has: findings, images, parties, how sure it is. As plain data."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from scipy import stats

from wardround.bundles.bundle import Bundle
from wardround.bundles.uncertainty import Uncertainty
from wardround.data.parties import IMAGE
from wardround.evaluation.intervals import CONFIDENCE
from wardround.evaluation.metrics import SMALLEST_GROUP, metrics

Row = dict[str, Any]
ENSEMBLE = (
    "The study tells how sure an ensemble of its seeds' models is. This bundle is one of these models: what the report "
    "says of uncertainty is the ensemble's, and what is said here is of this model alone."
)


def findings_told(found: Mapping[str, Any], site: str) -> dict[str, Any]:
    """Of each finding, from an arm's entry in results.json: over all sites, and at this one."""
    return {
        name: {
            "positives": told["sites"].get(site, {}).get("positives"),
            "all_sites": told["metrics"].get("auc"),
            "this_site": told["sites"].get(site, {}).get("metrics", {}).get("auc"),
        }
        for name, told in found["findings"].items()
    }


def findings_of(
    bundle: Bundle, about: Mapping[str, Any], told: Mapping[str, Any], score: np.ndarray, label: np.ndarray
) -> list[Row] | None:
    """With how often each is called right at its threshold, on test rows of this site with this seed."""
    if not bundle.findings:
        return None
    called = bundle.calls(score) == 1
    made = []
    for f, one in enumerate(about["findings"]):
        known, positive = label[:, f] >= 0, label[:, f] == 1
        made.append(
            {
                **one,
                "auc": told.get(one["name"], {}),
                "positives": int(positive.sum()),
                "sensitivity": None if about["private"] else share_of(called[positive, f]),
                "specificity": None if about["private"] else share_of(~called[known & ~positive, f]),
            }
        )
    return made


def share_of(hits: np.ndarray) -> dict[str, Any] | None:
    """With its interval (Wilson, JASA 1927); None where there are too few rows to speak of."""
    n = len(hits)
    if n < SMALLEST_GROUP:
        return None
    p, z = float(hits.mean()), float(stats.norm.ppf((1 + CONFIDENCE) / 2))
    middle = (p + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * float(np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2)))
    return {"value": p, "interval": [max(0.0, middle - half), min(1.0, middle + half)], "rows": n}


def own_figures(score: np.ndarray, label: np.ndarray, names: tuple[str, ...]) -> dict[str, Any]:
    """Of these rows alone, where the run's results are of another model."""
    found = metrics(label, score)
    return {name: {"mean": None if np.isnan(found[name]) else float(found[name])} for name in names}


def takes(bundle: Bundle) -> dict[str, Any]:
    """What a row is made of."""
    images, parts = bundle.inputs.images, bundle.inputs.parts
    held = bundle.inputs.columns or {}
    scale = {
        "none": "pixels count from 0 to 1 as they are",
        "site": "pixels are brought to the scale of this site's training images",
        "image": "each image is brought to one mean and one contrast by itself",
    }
    return {
        "image": None
        if images is None
        else {"pixels": images.shape[1], "scale": scale[images.scale], "clahe": images.clahe},
        "parties": [
            {
                "name": part.party,
                "holds": ["the image" if name == IMAGE else name for name in held.get(part.party, ())],
                "may_be_absent": part.present is not None,
            }
            for part in parts
        ],
    }


def from_what(bundle: Bundle) -> str:
    """In words, for a sentence."""
    images, columns = bundle.inputs.images is not None, bool(bundle.recipe.columns)
    if images and columns:
        return "from an image and the columns listed below"
    return "from an image" if images else "from the columns listed below"


def sure_words(how: Uncertainty | None, asked: str | None = None) -> list[str]:
    """What each of the columns means, or why it is not there. `asked` is the method of the study, if it names one."""
    if how is None:
        return []
    lines = {
        "dropout": f"Interval: {how.passes} networks, each with other cells left out (Monte Carlo dropout), give a "
        "score each; the middle 90 % of them, and the score itself, lie between low and high.",
        "laplace": "Interval: weights of the last layer that fit the training rows of this site about as well "
        "(Laplace's approximation) give a score between low and high with a probability of 90 %.",
        "none": f"There is no interval: {how.why}.",
    }
    told = [lines[how.method]]
    if asked == "ensemble":
        told.insert(0, ENSEMBLE)
    if how.method != "none":
        told.append("An interval says how much the model itself wavers. It does not say that the truth lies within it.")
    if how.cuts is not None:
        alike = "" if how.cuts.values.shape[0] > 2 and how.cuts.values.ndim == 1 else ", of either answer alike"
        told.append(
            "Set: the answers that are not stranger than those of validation rows, and the call. In at least "
            f"{100 * (1 - how.cuts.alpha):.0f} % of rows that are drawn as these were{alike}, the right answer is in "
            "it. Several rows of one patient make that promise weaker."
        )
        few = int(np.isinf(how.cuts.values).sum())
        if few:
            told.append(f"For {few} answers there were too few validation rows: they stand in every set.")
    if how.referral is not None:
        told.append(
            f"Refer: of rows like the validation rows the {100 * how.referral.share:.0f} % that are least clear; every "
            "row whose call had to be added to its set; and every row that is far from the training rows, has a level, "
            "a gap or a value that training did not have, or has no score. The column why names each reason."
        )
    if how.unchosen:
        told.append(
            "There are no sets, and rows are referred only if they are far or unlike training in another way: "
            f"{how.unchosen}."
        )
    return told
