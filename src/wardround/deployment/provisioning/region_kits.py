"""Kits of a study whose sites form regions.

OUT/coordinator/                 stays with the top coordinator
OUT/regions/NAME/                goes to that region: its own key for the top coordinator, and a systemd unit and a
                                 compose file that start it. They name its port; their restrictions are those of
                                 `services/` and `containers/`
OUT/regions/NAME/coordinator/    the kit with which the region coordinates its hospitals
OUT/sites/NAME/                  goes to that hospital, which trusts its region's coordinator and nobody else
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import tomli_w

from wardround.deployment.provisioning.kit import Address, Purpose, fill_site_kit, make_coordinator_kit, make_key
from wardround.deployment.regional.regions import regions_of

UNIT, COMPOSE = "wardround-region.service", "compose.yaml"
HOME = "/etc/wardround/region"  # where the unit expects the kit


def running_files(study: str, region: str, port: int) -> dict[str, str]:
    """By file name."""
    return {UNIT: unit_text(study, region, port), COMPOSE: compose_text(study, region, port)}


def unit_text(study: str, region: str, port: int) -> str:
    return f"""\
# Coordinates the region {region} in the study {study}. It expects wardround in /opt/wardround/.venv, this kit in
# {HOME}, and a user `wardround` to whom the kit belongs; services/README.md says how.
[Unit]
Description=wardround: coordinator of the region {region}
Documentation=file:///opt/wardround/docs/how-to/regions.md
Wants=network-online.target
After=network-online.target time-sync.target
# Whatever goes wrong, it is tried again; there is no number of failures after which systemd gives up.
StartLimitIntervalSec=0

[Service]
Type=exec
User=wardround
Group=wardround
ExecStart=/opt/wardround/.venv/bin/wardround region {HOME}/region.toml --listen 0.0.0.0
WorkingDirectory=/var/lib/wardround
# It runs until it is stopped. Started again after a crash or a kill it goes on in the middle of the round it was in.
# The waits grow from systemd 254 on; an older one says that it does not know two lines, and waits for RestartSec.
Restart=always
RestartSec=5
RestartSteps=6
RestartMaxDelaySec=300
# What Ctrl-C does: every closed round is kept, and answers that had arrived.
KillSignal=SIGINT
KillMode=mixed
SuccessExitStatus=130
TimeoutStopSec=60

# It writes to its state, and to two places of `coordinator`: `link` is Flower's while it runs, and `provision revoke`
# writes coordinator.toml. Its hospitals connect to port {port}.
UMask=0077
StateDirectory=wardround
StateDirectoryMode=0700
ReadWritePaths=/var/lib/wardround {HOME}
# It speaks to its own SuperLink over loopback, which no proxy must see.
# Messages of a large model are copied several times; with large pages that costs a third less.
Environment=HOME=/tmp FLWR_HOME=/tmp/flwr MPLCONFIGDIR=/tmp/matplotlib NO_PROXY=127.0.0.1 \
GLIBC_TUNABLES=glibc.malloc.hugetlb=1
NoNewPrivileges=yes
ProtectSystem=strict
ProtectHome=yes
PrivateTmp=yes
PrivateDevices=yes
ProtectClock=yes
ProtectControlGroups=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectProc=invisible
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RestrictNamespaces=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
LockPersonality=yes
CapabilityBoundingSet={_capabilities(port)}
AmbientCapabilities={_capabilities(port)}
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""


def _capabilities(port: int) -> str:
    """None, unless the port is one that only root may open otherwise."""
    return "CAP_NET_BIND_SERVICE" if port < 1024 else ""


def compose_text(study: str, region: str, port: int) -> str:
    return f"""\
# Coordinates the region {region} in the study {study}, in a container. The image is that of containers/Dockerfile;
# its user, number 10001, must own this folder: chown -R 10001:10001 .
#
#     docker compose run --rm region region /kit/region.toml --listen 0.0.0.0 --check
#     docker compose up --detach
name: wardround-{_project(region)}

services:
  region:
    image: wardround
    command: [region, /kit/region.toml, --listen, 0.0.0.0]
    init: true
    read_only: true
    tmpfs: [/tmp]
    cap_drop: [ALL]
    security_opt: ["no-new-privileges:true"]
    restart: unless-stopped
    ports: ["{port}:{port}"]
    volumes:
      - .:/kit  # it writes to state, coordinator/link and, when a hospital is revoked, coordinator/coordinator.toml
"""


def _project(region: str) -> str:
    """Compose allows lower-case letters, digits, '-' and '_'."""
    return "".join(char if char.isalnum() or char in "-_" else "-" for char in region.lower())


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
