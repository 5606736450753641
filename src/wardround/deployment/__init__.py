"""Studies across hospitals: coordinator and sites, their kits, approvals and policies."""

from typing import TYPE_CHECKING

from wardround.core.lazy import lazy

if TYPE_CHECKING:
    from wardround.deployment.common.deployable import refuse_undeployable as refuse_undeployable
    from wardround.deployment.common.local_predictions import load_predictions as load_predictions
    from wardround.deployment.common.messaging import Step as Step
    from wardround.deployment.common.parity import Parity as Parity
    from wardround.deployment.common.parity import replay as replay
    from wardround.deployment.coordinate import coordinate_study as coordinate_study
    from wardround.deployment.coordinate import deployed_folder as deployed_folder
    from wardround.deployment.demo import Demo as Demo
    from wardround.deployment.demo import run_demo as run_demo
    from wardround.deployment.flat.site_bundle import make_site_bundle as make_site_bundle
    from wardround.deployment.governance.approvals import approvals_of as approvals_of
    from wardround.deployment.governance.approvals import approve as approve
    from wardround.deployment.governance.approvals import withdraw as withdraw
    from wardround.deployment.governance.plain_words import in_plain_words as in_plain_words
    from wardround.deployment.governance.policy import Policy as Policy
    from wardround.deployment.governance.policy import Refusal as Refusal
    from wardround.deployment.governance.policy import Refused as Refused
    from wardround.deployment.governance.policy import objections as objections
    from wardround.deployment.join import join_studies as join_studies
    from wardround.deployment.join import preflight as preflight
    from wardround.deployment.provisioning.kit import CoordinatorKit as CoordinatorKit
    from wardround.deployment.provisioning.provision import provision as provision
    from wardround.deployment.provisioning.provision import revoke as revoke
    from wardround.deployment.provisioning.region_file import RegionFile as RegionFile
    from wardround.deployment.provisioning.site_file import SiteFile as SiteFile
    from wardround.deployment.provisioning.site_file import open_source as open_source
    from wardround.deployment.regional.region_run import coordinate_region as coordinate_region
    from wardround.deployment.regional.region_run import preflight_region as preflight_region

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
