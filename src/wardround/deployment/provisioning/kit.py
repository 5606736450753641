"""The coordinator's kit: the folder `coordinator/` that `wardround provision new` makes.

    coordinator.toml  study.toml  ca.pem  ca.key  coordinator.pem  coordinator.key  signing.key  sites/NAME.pub

`coordinator.toml` may be read again at any time: a revocation changes it, and it is replaced as a whole.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import tomli_w

from wardround.core.errors import DeployError, suggest
from wardround.core.settings import Range, settings_of
from wardround.data.parties import IMAGE
from wardround.data.split_files.manifest import split_at
from wardround.deployment.governance.policy import Policy
from wardround.deployment.provisioning.kit_files import (
    need_cryptography,
    read_settings,
    require_file,
    require_private,
    write_private,
)
from wardround.deployment.provisioning.site_file import BY_HOSPITAL, BY_PARTY, TO_FILL_IN, refuse_unusable_name
from wardround.deployment.vertical.vertical_validation import holder_of, is_vertical
from wardround.runs.folder import write_atomically
from wardround.study.parser import plain
from wardround.study.schema import Study
from wardround.tasks import TASKS

FILE = "coordinator.toml"
WARN_BEFORE = 30  # days
SPLIT = "split-on-disk"  # the source that reads what `wardround data split` wrote
OF_LABELS = ("target", "task", "positive", "classes", "labels")  # settings for the party that has them
# sources of files of images, with the settings on which hospitals must agree
IMAGES = {
    "chest-xray": ("size", "findings", "uncertain", "clahe"),
    "images": ("size", "colour", "classes", "uncertain", "clahe"),
}
# sources of files of signals, and what a hospital's own path leads to
SIGNALS = {
    "wfdb": "your folder of WFDB records",
    "signal-arrays": "your .npz or .npy file",
    "visit-sequences": "your CSV file with a row for each visit",
}
NEW_KIT = "Make a new kit with `wardround provision new`, or bring the file back."


@dataclass(frozen=True)
class Keys:
    """The content of `coordinator.toml`."""

    hash: str  # of the study
    hosts: tuple[str, ...]  # names and addresses in the certificate; sites connect to the first
    port: Annotated[int, Range(low=1, high=2**16 - 1)]
    sites: tuple[str, ...]  # in the order of their numbers
    revoked: dict[str, str] = field(default_factory=dict)  # site: date and reason
    hospitals: tuple[str, ...] = ()  # if the sites are regions: all of their hospitals, in the order of their numbers
    connections: Annotated[int, Range(low=16, high=2**16)] = 512  # at once, in all
    connections_per_address: Annotated[int, Range(low=4, high=2**16)] = 32  # of callers that have not authenticated yet


@dataclass(frozen=True, kw_only=True)
class CoordinatorKit(Keys):
    path: Path  # the folder
    study: Path
    public_keys: Mapping[str, bytes]  # as PEM, of all sites, revoked ones too
    ca: Path
    certificate: Path
    key: Path
    signing_key: Path

    @classmethod
    def load(cls, path: Path) -> "CoordinatorKit":
        """`path` is the folder, the one around it, or coordinator.toml. A kit that cannot serve is refused."""
        folder = folder_of(path)
        keys = read_keys(folder)
        public = {name: require_file(folder / "sites" / f"{name}.pub", NEW_KIT) for name in keys.sites}
        kit = cls(
            **vars(keys),
            path=folder,
            study=require_file(folder / "study.toml", NEW_KIT),
            public_keys={name: path.read_bytes() for name, path in public.items()},
            ca=require_file(folder / "ca.pem", NEW_KIT),
            certificate=require_file(folder / "coordinator.pem", NEW_KIT),
            key=require_private(folder / "coordinator.key", NEW_KIT),
            signing_key=require_private(folder / "signing.key", NEW_KIT),
        )
        if (folder / "ca.key").exists():  # it may be kept elsewhere: only new certificates need it
            require_private(folder / "ca.key", NEW_KIT)
        if kit.expires <= datetime.now(UTC):
            problem = f"the certificate expired on {kit.expires:%Y-%m-%d}"
            raise DeployError(str(kit.certificate), problem, "Make a new kit with `wardround provision new`.")
        return kit

    @property
    def expires(self) -> datetime:
        """When the first of the two certificates expires."""
        need_cryptography()
        from wardround.deployment.provisioning.certificates import expires

        dates = []
        for path in (self.ca, self.certificate):
            try:
                dates.append(expires(path.read_bytes()))
            except ValueError:
                raise DeployError(str(path), "is not a certificate in PEM", NEW_KIT) from None
        return min(dates)

    def revoked_now(self) -> Mapping[str, str]:
        """The sites that may no longer take part; it may change during a run."""
        return read_keys(self.path).revoked

    @property
    def days_left(self) -> int:
        """Below `WARN_BEFORE` the coordinator is warned."""
        return (self.expires - datetime.now(UTC)).days

    @property
    def active(self) -> tuple[str, ...]:
        return tuple(name for name in self.sites if name not in self.revoked)


def folder_of(path: Path) -> Path:
    path = path.absolute()
    if path.name == FILE and not path.is_dir():
        return path.parent
    inner = path / "coordinator"
    return inner if not (path / FILE).exists() and (inner / FILE).exists() else path


def read_keys(folder: Path) -> Keys:
    kit = "a coordinator's kit, the folder `coordinator` that `provision new` made"
    keys = Keys(**read_settings(settings_of(Keys), folder / FILE, kit))
    for name in (*keys.sites, *keys.hospitals):
        refuse_unusable_name(name, f"{FILE}: sites")  # it becomes part of a path
    for key, values in (("hosts", keys.hosts), ("sites", keys.sites)):
        if not values or len({value.lower() for value in values}) < len(values):
            raise DeployError(f"{FILE}: {key}", "is empty, or has a duplicate", "Write it as the kit had it.")
    for name in keys.revoked:
        if name not in keys.sites:
            # with a typo in its name, the site that was meant would remain active
            problem = f"no site is called {name!r}"
            raise DeployError(f"{FILE}: revoked", problem, suggest(name, keys.sites, "Sites of this kit"))
    return keys


HEADER = "# The coordinator's kit. `wardround provision revoke` writes this file anew; it may be done during a run.\n"
Trust = Mapping[str, bytes]  # files by which a kit trusts its coordinator, by file name


@dataclass(frozen=True)
class Address:
    hosts: tuple[str, ...]  # names and addresses in the certificate
    port: int

    def __str__(self) -> str:
        """HOST:PORT, as written into the kits of those who connect."""
        host = self.hosts[0]
        return f"[{host}]:{self.port}" if ":" in host else f"{host}:{self.port}"


@dataclass(frozen=True)
class Purpose:
    """What all kits of one `provision` are for."""

    study: Study
    document: bytes  # the study file that goes into each of them
    days: int  # how long certificates are valid


def make_coordinator_kit(
    folder: Path, purpose: Purpose, address: Address, connecting: Mapping[str, bytes], hospitals: Sequence[str] = ()
) -> Trust:
    """`connecting` are the public keys of those who connect to this coordinator; if these are regions, `hospitals` are
    all hospitals of the study."""
    from wardround.deployment.provisioning import certificates

    folder.mkdir(mode=0o700)
    (folder / "sites").mkdir(mode=0o700)
    study, days = purpose.study, purpose.days
    authority_key, authority = certificates.new_authority(study.name, days)
    key, certificate = certificates.new_certificate(study.name, address.hosts, days, authority_key, authority)
    signing = certificates.new_key()
    for name, private in (("ca.key", authority_key), ("coordinator.key", key), ("signing.key", signing)):
        write_private(folder / name, certificates.private_pem(private))
    (folder / "ca.pem").write_bytes(certificates.certificate_pem(authority))
    (folder / "coordinator.pem").write_bytes(certificates.certificate_pem(certificate))
    for name, public in connecting.items():
        (folder / "sites" / f"{name}.pub").write_bytes(public)
    write_keys(folder, Keys(study.hash, address.hosts, address.port, tuple(connecting), hospitals=tuple(hospitals)))
    (folder / "study.toml").write_bytes(purpose.document)
    return {"ca.pem": certificates.certificate_pem(authority), "coordinator.pub": certificates.public_pem(signing)}


def make_key(folder: Path, name: str = "site") -> bytes:
    """The public key of whoever gets this kit. The private key is written into the kit and nowhere else."""
    from wardround.deployment.provisioning import certificates

    for path in (folder.parent, folder):
        path.mkdir(mode=0o700, exist_ok=True)
    key = certificates.new_key()
    write_private(folder / f"{name}.key", certificates.private_pem(key))
    (folder / f"{name}.pub").write_bytes(certificates.public_pem(key))
    return certificates.public_pem(key)


def fill_site_kit(
    folder: Path, purpose: Purpose, sites: Sequence[str], coordinator: Address, trust: Trust, peers: Mapping[str, bytes]
) -> None:
    """Everything in a hospital's kit but its key. `peers` are the other members of its secure sums."""
    (folder / "study.toml").write_bytes(purpose.document)
    for file, content in trust.items():
        (folder / file).write_bytes(content)
    (folder / "peers").mkdir(mode=0o700)
    for peer, key in peers.items():
        (folder / "peers" / f"{peer}.pub").write_bytes(key)
    text = site_template(purpose.study, folder.name, sites, str(coordinator), folder)
    (folder / "site.toml").write_text(text, encoding="utf-8")


def write_keys(folder: Path, keys: Keys) -> None:
    content = {name: value for name, value in asdict(keys).items() if name != "hospitals" or value}
    write_atomically(folder / FILE, (HEADER + tomli_w.dumps(content)).encode())


def site_template(study: Study, name: str, sites: Sequence[str], coordinator: str, folder: Path | None = None) -> str:
    """A `site.toml` in which what is known is filled in, and what only the hospital knows is marked. `folder` is where
    it will be."""
    of_split = study.data.name == SPLIT
    keys = {
        "name": name,
        "coordinator": coordinator,
        "sites": list(sites),
        "ca": "ca.pem",
        "key": "site.key",
        "coordinator_key": "coordinator.pub",
        "peers": "peers",
        "state": "state",
        "approved": "approved",
    }
    return "\n".join(
        [
            f"# What {name} brings to the study {study.name}, and what it demands of it.",
            f"# Hash of the study: {study.hash}",
            "# This file is yours and is never sent anywhere. Paths begin at its folder.",
            "",
            tomli_w.dumps(keys),
            "# Your rows, which never leave. In place of `csv` any source may stand, with its own settings.",
            *_named(study),
            tomli_w.dumps({"data": _data_of_split(study, name, folder) if of_split else _data(study, name)}),
            *_labels(study, name),
            _policy(Policy()),
        ]
    )


def _data_of_split(study: Study, name: str, folder: Path | None) -> dict[str, Any]:
    """The site's own file, by a path that begins at its site file, where the split is on this machine."""
    options = {key: value for key, value in study.data.options.items() if key != "path" and value}
    manifest = split_at(study.data.options["path"])
    own = None if manifest is None else next((site for site in manifest.sites if site.name == name), None)
    path = f"{TO_FILL_IN}: your file of the split, with manifest.json beside it"
    if own is not None and folder is not None:
        place = study.data.options["path"].absolute()
        path = os.path.relpath((place if place.is_dir() else place.parent) / own.file, folder.absolute())
    return {"source": SPLIT, "path": path, **plain(options)}


def _data(study: Study, name: str) -> dict[str, Any]:
    """A csv study has settings on which hospitals must agree, such as the target; the file is the hospital's own."""
    options = study.data.options
    if study.data.name in IMAGES and (not is_vertical(study) or IMAGE in study.arms[0].topology.parties[name]):
        return _data_of_images(study)
    if is_vertical(study):
        return _data_of_party(study, name)
    if study.data.name in SIGNALS:
        return _data_of_signals(study)
    agreed: dict[str, Any] = {"target": f"{TO_FILL_IN}: the column to predict", **_task(study)}
    if study.data.name == "csv":
        agreed = {key: value for key, value in options.items() if key not in ("files", "labels", *BY_HOSPITAL)}
        for key, by_site in (("target", options["targets"]), ("patient", options["patients"])):
            agreed[key] = (by_site or {}).get(name, agreed[key])
        agreed["labels"] = (options["labels"] or {}).get(name)
        agreed["ranges"] = _own_ranges(options, agreed["target"])
    return {"source": "csv", "file": f"{TO_FILL_IN}: the path of your CSV file", **plain(agreed)}


def _own_ranges(options: Mapping[str, Any], target: str) -> dict[str, Any] | None:
    """The range of what is predicted stands under the hospital's own name for that column."""
    ranges: dict[str, Any] | None = options["ranges"]
    if not ranges or options["target"] not in ranges:
        return ranges
    others = {column: limits for column, limits in ranges.items() if column != options["target"]}
    return {**others, target: ranges[options["target"]]}


def _data_of_signals(study: Study) -> dict[str, Any]:
    """Rate, length and channels must be alike at all; the files are the hospital's own."""
    agreed = {key: value for key, value in study.data.options.items() if key not in ("path", "labels", "recorded_rate")}
    return {"source": study.data.name, "path": f"{TO_FILL_IN}: {SIGNALS[study.data.name]}", **plain(agreed)}


def _data_of_images(study: Study) -> dict[str, Any]:
    """Where its images are is the hospital's own; what they become, and which findings, must be alike at all."""
    agreed = {key: study.data.options[key] for key in IMAGES[study.data.name]}
    return {
        "source": study.data.name,
        "path": f"{TO_FILL_IN}: your folder of images, their table, or an .npz file",
        **plain(agreed),
    }


def _named(study: Study) -> list[str]:
    known = ("csv", "csv-parties", "at-sites", SPLIT, *IMAGES, *SIGNALS)
    return [] if study.data.name in known else [f"# The study itself names: {study.data.name}"]


def _data_of_party(study: Study, name: str) -> dict[str, Any]:
    """A party's own file: the column that says whose a row is, and at one party what is to be predicted."""
    options, labelled = study.data.options, name == holder_of(study)
    agreed: dict[str, Any] = {"patient": f"{TO_FILL_IN}: the column with the number of the patient"}
    if study.data.name == "csv-parties":
        agreed = {key: value for key, value in options.items() if key not in ("files", *BY_PARTY)}
        for key in ("patient", "visit"):
            agreed[key] = (options[f"{key}s"] or {}).get(name, agreed[key])
    elif labelled:
        agreed |= {"target": f"{TO_FILL_IN}: the column to predict", **_task(study)}
    if not labelled:
        agreed = {key: value for key, value in agreed.items() if key not in OF_LABELS}
    return {"source": "csv-parties", "file": f"{TO_FILL_IN}: the path of your CSV file", **plain(agreed)}


def _task(study: Study) -> dict[str, Any]:
    """What is predicted, where the study says so and its data are elsewhere."""
    task = study.data.options.get("task")
    return {"task": task} if task else {}


def _labels(study: Study, name: str) -> list[str]:
    """How a hospital says what its own words mean, where the study does not know."""
    if study.data.name in (SPLIT, *IMAGES, *SIGNALS) or (is_vertical(study) and name != holder_of(study)):
        return []
    if any(TASKS[kind].reads == "numbers" for kind in study.data.facts.tasks.values()):
        return []
    options = study.data.options if study.data.name == "csv" else {}
    if name in (options.get("labels") or {}):
        return []
    classes = options.get("classes") or ("died", "survived")
    return [
        "# If your file has words of its own for the classes, say which class of the study each of them means. Every",
        "# word that occurs must stand here: look twice at 0 and 1, which are not the same everywhere.",
        "# [data.labels]",
        *(f"# {_quoted(f'your word for {word}')} = {_quoted(word)}" for word in classes),
        "",
    ]


def _quoted(text: str) -> str:
    return tomli_w.dumps({"x": text}).removeprefix("x = ").rstrip()


def _policy(default: Policy) -> str:
    return f"""\
# What is demanded of a study before anything trains here. A line that begins with '#' demands nothing.
[policy]
# models = ["logistic"]              # only these; not given: any
# algorithms = ["fedavg", "local"]   # only these; not given: any
most_rounds = {default.most_rounds}
# most_seeds = 50
least_sites = {default.least_sites}                      # whose work is averaged in a round in which this site works
least_rows = {default.least_rows}                      # training rows of this site
smallest_cell = {default.smallest_cell}                    # what counts fewer patients does not leave
# secure_aggregation = true          # refuse a study without it
# most_epsilon = 8.0                 # refuse a study without differential privacy of at most this epsilon
# most_total_epsilon = 10.0          # over all studies together: work stops before patients have paid more
# most_delta = 1e-5                  # of any study; well below one in ten times the number of your patients
# hours = "18:00-06:00"              # local time; may pass midnight
# days = ["mon", "tue", "wed", "thu", "fri"]
"""
