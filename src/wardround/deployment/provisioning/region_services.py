"""Files of a region's kit that start it for good: a systemd unit, and a compose file for a container.

They are in the kit because they name its port. What they close and open is as in `services/` and `containers/`.
"""

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
    """As compose allows it: small letters, digits, '-' and '_'."""
    return "".join(message if message.isalnum() or message in "-_" else "-" for message in region.lower())
