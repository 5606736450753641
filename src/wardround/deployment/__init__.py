"""Studies across hospitals: coordinator and sites, their kits, approvals and policies."""

from typing import TYPE_CHECKING

from wardround.core.lazy import lazy

if TYPE_CHECKING:
    from wardround.deployment.common.deployable import refuse_undeployable
    from wardround.deployment.common.local_predictions import load_predictions
    from wardround.deployment.common.messaging import Step
    from wardround.deployment.common.parity import Parity, replay
    from wardround.deployment.coordinate import coordinate_study, deployed_folder
    from wardround.deployment.demo import Demo, run_demo
    from wardround.deployment.flat.site_bundle import make_site_bundle
    from wardround.deployment.governance.approvals import approvals_of, approve, withdraw
    from wardround.deployment.governance.plain_words import in_plain_words
    from wardround.deployment.governance.policy import Policy, Refusal, Refused, objections
    from wardround.deployment.join import join_studies, preflight
    from wardround.deployment.provisioning.kit import CoordinatorKit
    from wardround.deployment.provisioning.provision import provision, revoke
    from wardround.deployment.provisioning.region_file import RegionFile
    from wardround.deployment.provisioning.site_file import SiteFile, open_source
    from wardround.deployment.regional.region_run import coordinate_region, preflight_region

_HOMES = {
    "wardround.deployment.common.deployable": ("refuse_undeployable",),
    "wardround.deployment.common.local_predictions": ("load_predictions",),
    "wardround.deployment.common.messaging": ("Step",),
    "wardround.deployment.common.parity": (
        "Parity",
        "replay",
    ),
    "wardround.deployment.coordinate": (
        "coordinate_study",
        "deployed_folder",
    ),
    "wardround.deployment.demo": (
        "Demo",
        "run_demo",
    ),
    "wardround.deployment.flat.site_bundle": ("make_site_bundle",),
    "wardround.deployment.governance.approvals": (
        "approvals_of",
        "approve",
        "withdraw",
    ),
    "wardround.deployment.governance.plain_words": ("in_plain_words",),
    "wardround.deployment.governance.policy": (
        "Policy",
        "Refusal",
        "Refused",
        "objections",
    ),
    "wardround.deployment.join": (
        "join_studies",
        "preflight",
    ),
    "wardround.deployment.provisioning.kit": ("CoordinatorKit",),
    "wardround.deployment.provisioning.provision": (
        "provision",
        "revoke",
    ),
    "wardround.deployment.provisioning.region_file": ("RegionFile",),
    "wardround.deployment.provisioning.site_file": (
        "SiteFile",
        "open_source",
    ),
    "wardround.deployment.regional.region_run": ("coordinate_region", "preflight_region"),
}
__all__ = [
    "CoordinatorKit",
    "Demo",
    "Parity",
    "Policy",
    "Refusal",
    "Refused",
    "RegionFile",
    "SiteFile",
    "Step",
    "approvals_of",
    "approve",
    "coordinate_region",
    "coordinate_study",
    "deployed_folder",
    "in_plain_words",
    "join_studies",
    "load_predictions",
    "make_site_bundle",
    "objections",
    "open_source",
    "preflight",
    "preflight_region",
    "provision",
    "refuse_undeployable",
    "replay",
    "revoke",
    "run_demo",
    "withdraw",
]
__getattr__ = lazy(__name__, _HOMES)
