"""Synthetic(alpha, beta) and Synthetic-IID: Li et al., FedProx, MLSys 2020, arXiv:1812.06127, section 5.1.

The paper writes u_k ~ N(0, alpha) and B_k ~ N(0, beta) and does not say whether these are variances. The authors' code
(github.com/litian96/FedProx, data/synthetic_*/generate_*.py) hands them to numpy as standard deviations, and so do we.
It makes no difference for 0 and 1.

In that code u_k is one number per site, the mean of all its weights and biases. It raises the scores of all classes
alike and so never changes which is highest: **alpha moves a site's model, but not one label**. Sites differ by their
own draws of W_k, b_k and v_k, and by beta. The recipe is kept as published, so that results can be compared.
"""

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import pandas as pd

from wardround.core.notices import Notice
from wardround.core.seeds import generator
from wardround.core.settings import Count, NonNegative, Range, WholeNumber
from wardround.data.records import Column, Records, Source, numbered
from wardround.study.facts import SourceFacts, declares


@dataclass(frozen=True)
class SiteModel:
    """What a site's rows and labels are drawn from."""

    weights: np.ndarray  # W_k, features x classes
    bias: np.ndarray  # b_k, one per class
    centre: np.ndarray  # v_k, the mean of the site's rows


CITATION = (
    "Li et al. Federated optimization in heterogeneous networks. MLSys 2020 (the synthetic data). arXiv:1812.06127"
)


@declares(SourceFacts(citation=CITATION))
def synthetic(
    alpha: NonNegative = 1.0,
    beta: NonNegative = 1.0,
    iid: bool = False,
    count: Count = 30,
    features: Count = 60,
    classes: Annotated[int, Range(low=2)] = 10,
    largest: Count | None = None,
    seed: WholeNumber = 0,
) -> Source:
    """Sites whose models and rows differ by design. With `iid` they share one model; alpha and beta are then not used.

    Sizes are 50 + lognormal(4, 2): most sites have about a hundred rows, a few may have tens of thousands. `largest`
    cuts those to their first rows; by default, as in the paper, none is cut.
    """

    def load() -> Records:
        numbers = range(1, count + 1)
        if iid:
            models = [shared_model(features, classes, seed)] * count
        else:
            models = [site_model(alpha, beta, features, classes, seed, number) for number in numbers]
        drawn = [site_size(seed, number) for number in numbers]
        sizes = [size if largest is None else min(size, largest) for size in drawn]
        sites = [
            draw_site(model, size, generator(seed, "synthetic rows", site=str(number)))
            for model, size, number in zip(models, sizes, numbers, strict=True)
        ]
        recipe = "Synthetic-IID" if iid else f"Synthetic({alpha:g}, {beta:g})"
        counts, details = {"rows": sum(sizes), "seed": seed}, {"what": "rows", "recipe": recipe}
        notices = [Notice("synthetic-rows", "info", counts=counts, details=details)]
        if sizes != drawn:
            cut = sum(size < full for size, full in zip(sizes, drawn, strict=True))
            notices.append(Notice("sites-cut", "info", counts={"sites": cut, "of": count, "rows": max(sizes)}))
        names = numbered("x", features)
        return Records(
            features=pd.DataFrame(np.concatenate([rows for rows, _ in sites]), columns=names),
            target=np.concatenate([target for _, target in sites]),
            classes=tuple(str(label) for label in range(classes)),
            hospital=np.repeat(numbered("site-", count), sizes),
            columns=tuple(Column(name) for name in names),
            groups=pd.DataFrame(index=pd.RangeIndex(sum(sizes))),
            notes=tuple(notices),
            synthetic=True,
        )

    return Source(load)


# Every draw is keyed by the site's number, so that the first ten of thirty sites are the ten sites of `count = 10`.


def site_size(seed: int, number: int) -> int:
    return int(generator(seed, "synthetic size", site=str(number)).lognormal(4, 2)) + 50


def site_model(alpha: float, beta: float, features: int, classes: int, seed: int, number: int) -> SiteModel:
    draws = generator(seed, "synthetic model", site=str(number))
    model_mean = draws.normal(0, alpha)  # u_k
    centre_mean = draws.normal(0, beta)  # B_k
    return SiteModel(
        weights=draws.normal(model_mean, 1, (features, classes)),
        bias=draws.normal(model_mean, 1, classes),
        centre=draws.normal(centre_mean, 1, features),
    )


def shared_model(features: int, classes: int, seed: int) -> SiteModel:
    """The one model of Synthetic-IID."""
    draws = generator(seed, "synthetic shared model")
    return SiteModel(
        weights=draws.normal(0, 1, (features, classes)), bias=draws.normal(0, 1, classes), centre=np.zeros(features)
    )


def draw_site(model: SiteModel, size: int, draws: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A site's rows and their classes, which are without noise: the class that the site's model scores highest."""
    features = len(model.centre)
    spread = np.arange(1, features + 1) ** -0.6  # square root of Sigma_jj = j^-1.2; Sigma is diagonal
    rows = model.centre + spread * draws.standard_normal((size, features))
    scores = rows @ model.weights + model.bias  # softmax keeps their order
    return rows, scores.argmax(axis=1).astype(np.int64)
