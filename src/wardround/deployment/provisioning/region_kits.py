"""Kits of a study whose sites form regions.

OUT/coordinator/             stays with the coordinator of all
OUT/regions/NAME/            goes to that region: its own key towards the coordinator of all, and
OUT/regions/NAME/coordinator/    the kit with which it coordinates its hospitals; beside it a systemd unit and a compose
                                 file that start it
OUT/sites/NAME/              goes to that hospital, which trusts its region's coordinator and nobody else
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import tomli_w

from wardround.deployment.provisioning.kit_making import Address, Purpose, fill_site_kit, make_coordinator_kit, make_key
from wardround.deployment.provisioning.region_services import running_files
from wardround.deployment.regional.regions import regions_of


def make_region_kits(
    folder: Path, purpose: Purpose, public: Mapping[str, bytes], top: Address, addresses: Mapping[str, Address]
) -> None:
    """`public` are the hospitals' keys, in the order that numbers them; `addresses` are those of the regions."""
    sites = list(public)
    regions = regions_of(purpose.study, sites)
    keys = {region: make_key(folder / "regions" / region, "region") for region in regions}
    trust = make_coordinator_kit(folder / "coordinator", purpose, top, keys, sites)
    for region, members in regions.items():
        kit = folder / "regions" / region
        own = {site: public[site] for site in members}
        (kit / "region.toml").write_text(region_template(purpose, region, sites, top), encoding="utf-8")
        for file, text in running_files(purpose.study.name, region, addresses[region].port).items():
            (kit / file).write_text(text, encoding="utf-8")
        for file, content in trust.items():
            (kit / file).write_bytes(content)
        trusted = make_coordinator_kit(kit / "coordinator", purpose, addresses[region], own)
        for site in members:
            fill_site_kit(folder / "sites" / site, purpose, sites, addresses[region], trusted, own)


def region_template(purpose: Purpose, region: str, hospitals: Sequence[str], top: Address) -> str:
    keys = {
        "name": region,
        "coordinator": str(top),
        "hospitals": list(hospitals),
        "ca": "ca.pem",
        "key": "region.key",
        "coordinator_key": "coordinator.pub",
        "kit": "coordinator",
        "state": "state",
    }
    title = f"# How the region {region} takes part in the study {purpose.study.name}: `wardround region region.toml`."
    hashed = f"# Hash of the study: {purpose.study.hash}"
    return "\n".join([title, hashed, "# Paths begin at this file's folder.", "", tomli_w.dumps(keys)])
