"""Promises of [privacy] that a study's own sites cannot keep are refused before anything trains."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.small_federations import ragged_sites, trial
from wardround.algorithms.fedavg import fedavg
from wardround.core.errors import MachineError, StudyError
from wardround.data.site import Site
from wardround.study.schema import AdaptiveClip, ExamplePrivacy, Privacy, SecureSum, SitePrivacy
from wardround.training.trial import Trial
from wardround.training.validation import refuse_unkept

EXAMPLE = ExamplePrivacy(epsilon=4.0, delta=1e-5, clip=1.0)


def promising(privacy: Privacy, sites: Sequence[Site] | None = None, **training: Any) -> Trial:
    return replace(trial(fedavg(), sites, **training), privacy=privacy)


@pytest.mark.parametrize(
    ("privacy", "training", "where", "problem"),
    [
        (Privacy(example=replace(EXAMPLE, delta=0.2)), {}, "example: delta", "ten times the 5 patients of site-1"),
        (Privacy(site=SitePrivacy(4.0, 0.2, 1.0)), {}, "site: delta", "one in 6 sites"),
        (Privacy(example=replace(EXAMPLE, noise=0.5)), {}, "example: epsilon", "not one round of site-1 fits"),
        (Privacy(secure_sum=SecureSum(threshold=3)), {}, "secure_sum", "3 of 6"),
        (Privacy(secure_sum=SecureSum(threshold=7)), {}, "secure_sum", "7 of 6"),
        (Privacy(secure_sum=SecureSum()), {"share": 0.3}, "secure_sum", "2 sites"),
        (Privacy(secure_sum=SecureSum(most_rows=20)), {}, "secure_sum: most_rows", "site-2 has more"),
        (
            Privacy(example=replace(EXAMPLE, adaptive=AdaptiveClip(count_noise=0.1))),
            {},
            "count_noise",
            "costs more than all that epsilon 4 allows",
        ),
    ],
)
def test_what_cannot_be_kept_is_refused(privacy: Privacy, training: dict[str, Any], where: str, problem: str) -> None:
    with pytest.raises(StudyError) as refused:
        refuse_unkept(promising(privacy, **training))
    assert where in refused.value.where
    assert problem in refused.value.problem


@pytest.mark.parametrize(
    ("package", "privacy"),
    [
        ("dp_accounting", Privacy(example=EXAMPLE)),
        ("dp_accounting", Privacy(site=SitePrivacy(4.0, 1e-3, 1.0))),
        ("cryptography", Privacy(secure_sum=SecureSum())),
    ],
)
def test_a_plain_installation_says_what_is_missing(
    package: str, privacy: Privacy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MachineError, match=f"{package} is not installed") as refused:
        refuse_unkept(promising(privacy))
    assert "wardround[privacy]" in refused.value.remedy


def test_a_patient_at_two_sites_is_refused() -> None:
    """Each site's epsilon would hold for its own releases only, and the patient is in both."""
    first = 0
    sites = []
    for site in ragged_sites():
        sites.append(replace(site, train=replace(site.train, patients=torch.arange(first, first + len(site.train)))))
        first += len(site.train)
    refuse_unkept(promising(Privacy(example=EXAMPLE), sites))
    sites[1] = replace(sites[1], train=replace(sites[1].train, patients=torch.arange(4, 4 + len(sites[1].train))))
    with pytest.raises(StudyError, match="1 patients train at both site-1 and site-2"):
        refuse_unkept(promising(Privacy(example=EXAMPLE), sites[:2]))


def test_what_can_be_kept_is_not_refused() -> None:
    both = Privacy(EXAMPLE, secure_sum=SecureSum(threshold=4))
    refuse_unkept(promising(both))
    refuse_unkept(promising(Privacy(site=SitePrivacy(4.0, 1e-3, 1.0)), share=0.5))
    refuse_unkept(promising(Privacy()))
